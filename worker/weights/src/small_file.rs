//! The small files beside a model's weights: settings, vocabularies, templates. The module limits their size and does
//! not interpret them.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The reason why a small file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SmallFileError {
    /// The operating system refused to open or read the file.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A pipe, a device or a folder in the place of a file.
    #[error("{} is no regular file", .0.display())]
    NotRegular(PathBuf),
    /// The file is larger than any known file of its kind.
    #[error("{} has {bytes} bytes; at most {most} are read", path.display())]
    TooLarge {
        /// The path of the file.
        path: PathBuf,
        /// The size of the file.
        bytes: u64,
        /// The limit in bytes.
        most: u64,
    },
}

/// The bytes of a file, or `None` if it does not exist. A file over the limit and a path that is no file are refused
/// before a byte is read.
pub fn read_small_file(path: &Path, most: u64) -> Result<Option<Vec<u8>>, SmallFileError> {
    let failed = |source| SmallFileError::Read { path: path.to_owned(), source };
    // Without this flag, opening a named pipe would wait for a writer, perhaps for ever.
    let opened = File::options().read(true).custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits()).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(failed(source)),
    };
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(SmallFileError::NotRegular(path.to_owned()));
    }
    let too_large = |bytes| SmallFileError::TooLarge { path: path.to_owned(), bytes, most };
    if about.len() > most {
        return Err(too_large(about.len()));
    }
    let mut bytes = Vec::new();
    // A file may grow while it is read.
    file.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > most { Err(too_large(bytes.len() as u64)) } else { Ok(Some(bytes)) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_small_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(read_small_file(&path, 3).unwrap().is_none());
        fs::write(&path, "abc").unwrap();
        assert_eq!(read_small_file(&path, 3).unwrap().unwrap(), b"abc");
        assert!(matches!(read_small_file(&path, 2), Err(SmallFileError::TooLarge { bytes: 3, most: 2, .. })));
        // The file is sparse and needs no space on the disk.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(matches!(read_small_file(&path, 1 << 20), Err(SmallFileError::TooLarge { .. })));
        assert!(matches!(read_small_file(folder.path(), 3), Err(SmallFileError::NotRegular(_))));
    }
}
