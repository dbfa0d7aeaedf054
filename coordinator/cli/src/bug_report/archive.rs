//! The file of a bundle.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};

/// One file of a bundle.
pub(super) struct BundleFile {
    pub(super) name: String,
    pub(super) content: String,
}

/// Writes the files below `folder` into a new archive that only its owner can read. An existing file is not replaced.
pub(super) fn write(path: &Path, folder: &str, files: &[BundleFile], now: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = fill(file, folder, files, now);
    if written.is_err() {
        // A part of a bundle is of no use; the error is reported.
        let _ = std::fs::remove_file(path);
    }
    written
}

fn fill(out: impl Write, folder: &str, files: &[BundleFile], now: u64) -> io::Result<()> {
    let mut archive = Builder::new(GzEncoder::new(out, Compression::default()));
    for file in files {
        let mut header = Header::new_gnu();
        header.set_size(file.content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now);
        archive.append_data(&mut header, format!("{folder}/{}", file.name), file.content.as_bytes())?;
    }
    archive.into_inner()?.finish()?.flush()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn op_1_a_bundle_is_a_new_file_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.tar.gz");
        let files = [BundleFile { name: "a/b.txt".into(), content: "hello".into() }];
        write(&path, "bundle", &files, 7).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let mut archive = tar::Archive::new(GzDecoder::new(std::fs::File::open(&path).unwrap()));
        let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert_eq!((entry.path().unwrap().to_str(), text.as_str()), (Some("bundle/a/b.txt"), "hello"));
        let again = write(&path, "bundle", &files, 7).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    }
}
