//! Safe access to files of the state folder: opening one follows no link, waits for no other process, and takes no
//! device for a file. The content is not interpreted here.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};

/// The use of a file of the state folder. No use empties the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateFileUse {
    /// The file is read, and must exist.
    Read,
    /// The file is read and written, and created if it does not exist.
    Update,
    /// Writes go to the file's end; it is created if it does not exist.
    Append,
}

/// Opens a file of the state folder, never through a link in the last part of its path.
///
/// Errors: the system's own, and for a link, pipe, folder or device one that names its kind.
pub fn open_state_file(path: &Path, file_use: StateFileUse) -> io::Result<File> {
    let mut options = OpenOptions::new();
    match file_use {
        StateFileUse::Read => options.read(true),
        StateFileUse::Update => options.read(true).write(true).create(true),
        StateFileUse::Append => options.append(true).create(true),
    };
    // Opening a named pipe without O_NONBLOCK would wait for its other end.
    let opened = options.mode(0o600).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path);
    let about = match &opened {
        Ok(file) => file.metadata()?,
        Err(_) => match fs::symlink_metadata(path) {
            Ok(about) if !about.is_file() => about,
            _ => return opened,
        },
    };
    match kind_of(&about) {
        None => opened,
        Some(kind) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("it is {kind} and not a file; move it away and start again"),
        )),
    }
}

/// Fails with an error that names its kind if `path` is something other than a file.
pub fn check_state_file(path: &Path) -> io::Result<()> {
    match open_state_file(path, StateFileUse::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => opened.map(drop),
    }
}

/// Replaces the file at `path` by one with this content, completely or not at all, in all failures. A pipe, link or
/// folder at that path is not changed.
pub fn replace_state_file(path: &Path, content: &[u8]) -> io::Result<()> {
    check_state_file(path)?;
    let draft = draft_of(path);
    // A killed process may have left a draft. A link in its place is removed, not its target.
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = write_new(&draft, content).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        // An incomplete draft takes room that others need.
        let _ = fs::remove_file(&draft);
    }
    written?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(O_NOFOLLOW).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

fn draft_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// The identity of a file on this machine, to see whether it is still at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId(u64, u64);

impl FileId {
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|about| Self(about.dev(), about.ino()))
    }

    /// Whether this file is the one at `path`.
    pub(crate) fn is_at(self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|about| Self(about.dev(), about.ino()) == self)
    }
}

/// The kind of an entry that is no regular file.
fn kind_of(about: &fs::Metadata) -> Option<&'static str> {
    let kind = about.file_type();
    if kind.is_file() {
        None
    } else if kind.is_symlink() {
        Some("a link")
    } else if kind.is_fifo() {
        Some("a named pipe")
    } else if kind.is_dir() {
        Some("a folder")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        Some("a device")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn only_a_file_is_opened_and_the_error_names_the_kind() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        nix::unistd::mkfifo(&at("pipe"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        fs::write(at("target"), "kept").unwrap();
        symlink(at("target"), at("link")).unwrap();
        symlink(at("nothing"), at("dangling")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let cases = [("pipe", "a named pipe"), ("link", "a link"), ("dangling", "a link")];
        for (name, kind) in cases.into_iter().chain([("folder", "a folder"), ("socket", "a socket")]) {
            for file_use in [StateFileUse::Read, StateFileUse::Update, StateFileUse::Append] {
                let error = open_state_file(&at(name), file_use).unwrap_err().to_string();
                assert!(error.contains(&format!("it is {kind} and not a file")), "{name} {file_use:?}: {error}");
            }
            assert!(replace_state_file(&at(name), b"new").is_err(), "{name}");
            assert!(check_state_file(&at(name)).is_err(), "{name}");
        }
        assert_eq!(fs::read(at("target")).unwrap(), b"kept");
        assert!(!at("nothing").exists());
        assert!(open_state_file(Path::new("/dev/null"), StateFileUse::Append).is_err());
    }

    #[test]
    fn nothing_is_emptied_and_a_replaced_file_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        check_state_file(&path).unwrap();
        assert_eq!(open_state_file(&path, StateFileUse::Read).unwrap_err().kind(), io::ErrorKind::NotFound);
        replace_state_file(&path, b"one").unwrap();
        drop(open_state_file(&path, StateFileUse::Update).unwrap());
        open_state_file(&path, StateFileUse::Append).unwrap().write_all(b" two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one two");
        let before = FileId::of(&File::open(&path).unwrap()).unwrap();
        assert!(before.is_at(&path));
        // A draft of a killed process, or another entry in its place, is removed.
        symlink("/dev/null", draft_of(&path)).unwrap();
        replace_state_file(&path, b"three").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert!(!before.is_at(&path) && !draft_of(&path).exists());
    }
}
