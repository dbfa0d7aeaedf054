//! Small readings of `/proc`, `/sys` and the list of users, which several probes share.

use std::fs;
use std::path::{Path, PathBuf};

use model_boss_protocol::ByteCount;
use nix::sys::statvfs::statvfs;
use nix::unistd::{Uid, User};

/// The text of a small file, without space around it.
pub(crate) fn text(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The number in a small file.
pub(crate) fn number(path: impl AsRef<Path>) -> Option<u64> {
    text(path)?.parse().ok()
}

/// The value of a line `Field: value` or `Field=value`.
pub(crate) fn field(text: &str, name: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix([':', '=']))?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// The name of a user, else its number.
pub(crate) fn user_name(uid: u32) -> String {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| format!("user {uid}"), |user| user.name)
}

/// The numbers and names of the processes that can be seen.
pub(crate) fn processes() -> impl Iterator<Item = (u32, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, text(format!("/proc/{pid}/comm"))?)))
}

/// The room of a file system, in bytes and inodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystemRoom {
    pub(crate) all: ByteCount,
    pub(crate) free: ByteCount,
    pub(crate) inodes: u64,
    pub(crate) free_inodes: u64,
}

/// The room of the file system that a path is on.
pub(crate) fn room(path: &Path) -> Option<FileSystemRoom> {
    let about = statvfs(path).ok()?;
    // The widths of these fields differ between systems.
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "only on some systems")]
    let (blocks, free, size) = (about.blocks() as u64, about.blocks_available() as u64, about.fragment_size() as u64);
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "only on some systems")]
    let (inodes, free_inodes) = (about.files() as u64, about.files_available() as u64);
    let bytes = |blocks: u64| ByteCount(blocks.saturating_mul(size));
    Some(FileSystemRoom { all: bytes(blocks), free: bytes(free), inodes, free_inodes })
}

/// The groups of this process in the hierarchy of `controller`, from its own to the root, as folders.
pub(crate) fn control_groups(controller: &str) -> Vec<PathBuf> {
    let groups = text("/proc/self/cgroup").unwrap_or_default();
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let root = match controllers {
            "" => Path::new("/sys/fs/cgroup").to_owned(),
            some if some.split(',').any(|name| name == controller) => Path::new("/sys/fs/cgroup").join(controller),
            _ => continue,
        };
        folders.extend(Path::new(path.trim_start_matches('/')).ancestors().map(|group| root.join(group)));
    }
    folders
}

/// The mount of a path: the kind of its file system, and the mount's options.
pub(crate) fn mount_of(path: &Path) -> Option<(String, String)> {
    let mounts = text("/proc/self/mountinfo")?;
    let found = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let fields: Vec<&str> = before.split(' ').collect();
        let (place, options) = (fields.get(4)?, fields.get(5)?);
        let mut after = after.split(' ');
        let (kind, super_options) = (after.next()?, after.nth(1).unwrap_or_default());
        path.starts_with(place).then(|| (place.len(), kind.to_owned(), format!("{options},{super_options}")))
    });
    found.max_by_key(|(length, ..)| *length).map(|(_, kind, options)| (kind, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_lines_are_found() {
        assert_eq!(field("A:\t 1\nB = \"x y\"\n", "A").as_deref(), Some("1"));
        assert_eq!(field("A: 1\nB=\"x y\"\n", "B").as_deref(), Some("x y"));
        assert_eq!(field("AB: 1", "A"), None);
    }

    #[test]
    fn this_process_and_its_mounts_are_seen() {
        assert!(processes().any(|(pid, _)| pid == std::process::id()));
        assert_eq!(mount_of(Path::new("/proc/self")).map(|(kind, _)| kind).as_deref(), Some("proc"));
    }
}
