//! Files of the state folder, each written whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// As far as the umask lets them.
const EVERYBODY: u32 = 0o666;
const THIS_USER: u32 = 0o600;

/// Puts these bytes in the place of a file, whatever ends meanwhile. Neither a link nor a pipe that lies there is
/// written through: each is replaced.
///
/// Errors: what the system says; the file is then as it was.
pub(crate) fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    replace_for(EVERYBODY, file, content)
}

/// The same for a file that only this user may read.
pub(crate) fn replace_secret(file: &Path, content: &[u8]) -> io::Result<()> {
    replace_for(THIS_USER, file, content)
}

fn replace_for(mode: u32, file: &Path, content: &[u8]) -> io::Result<()> {
    let mut draft_name = file.file_name().unwrap_or_default().to_owned();
    draft_name.push(".new");
    let draft = file.with_file_name(draft_name);
    // A draft that a killed process left.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft).and_then(|mut new| {
        new.write_all(content)?;
        new.sync_all()?;
        fs::rename(&draft, file)
    });
    match written {
        Ok(()) => file.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all()),
        Err(error) => {
            // On a full disk half a draft takes room that others need.
            _ = fs::remove_file(&draft);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_no_link_or_pipe_is_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        replace(&at("f.json"), b"one").unwrap();
        replace(&at("f.json"), b"two").unwrap();
        fs::write(at("other"), "untouched").unwrap();
        symlink(at("other"), at("link.json")).unwrap();
        symlink(at("other"), at("f.json.new")).unwrap();
        nix::unistd::mkfifo(&at("pipe.json"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        for name in ["f.json", "link.json", "pipe.json"] {
            replace(&at(name), b"three").unwrap();
            assert_eq!(fs::read(at(name)).unwrap(), b"three", "{name}");
        }
        assert_eq!(fs::read(at("other")).unwrap(), b"untouched");
        fs::create_dir(at("folder.json")).unwrap();
        assert!(replace(&at("folder.json"), b"four").is_err());
        let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["f.json", "folder.json", "link.json", "other", "pipe.json"], "no draft is left");
    }
}
