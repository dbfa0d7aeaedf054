//! Files that users write. They are opened without blocking, and read no further than a valid file can be long.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The longest `config.json`, in bytes: real ones list a few thousand modules at most.
pub const CONFIG: u64 = 1 << 20;
/// The longest `tokenizer_config.json`, in bytes: it may repeat the added tokens of a large vocabulary.
pub const TOKENIZER_CONFIG: u64 = 8 << 20;
/// The longest chat template, in bytes.
pub const TEMPLATE: u64 = 256 << 10;

/// The bytes of the file at `path`, following links. A file longer than `limit` gives `limit` + 1 bytes, which show the
/// caller that it is too long.
///
/// Errors: the system's; for a folder, a pipe or a device, an error that names its kind.
pub fn read_plain_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_opened(open(path)?, limit)
}

/// Opens a file for reading, following links. The open does not block on a named pipe, which might never get a writer.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)
}

/// Like [`read_plain_file`], for a file that is already open.
pub fn read_opened(file: File, limit: u64) -> io::Result<Vec<u8>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a small file beside a model's weights. Returns `None` where it cannot be read, is no regular file, or is
/// longer than `longest` bytes.
pub fn text_beside_weights(path: &Path, longest: u64) -> Option<String> {
    let bytes = read_plain_file(path, longest).ok()?;
    if bytes.len() as u64 > longest { None } else { String::from_utf8(bytes).ok() }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn what_is_no_file_is_named_at_once_and_a_long_one_shows() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        nix::unistd::mkfifo(&at("pipe"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        for path in [folder.path().to_owned(), at("pipe"), "/dev/zero".into()] {
            let error = read_plain_file(&path, 10).unwrap_err();
            assert_eq!(error.to_string(), "it is not a file", "{}", path.display());
            assert_eq!(text_beside_weights(&path, 10), None);
        }
        std::fs::write(at("long"), "0123456789abc").unwrap();
        std::os::unix::fs::symlink("long", at("link")).unwrap();
        assert_eq!(text_beside_weights(&at("link"), 13).as_deref(), Some("0123456789abc"));
        assert_eq!(read_plain_file(&at("link"), 10).unwrap(), b"0123456789a");
        assert_eq!(read_plain_file(&at("link"), 13).unwrap().len(), 13);
        assert_eq!(read_plain_file(&at("nothing"), 10).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
