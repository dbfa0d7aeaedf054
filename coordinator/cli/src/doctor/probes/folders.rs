//! Folders that are written to: rights, space, file system. The probe only asks; it writes nothing.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{AccessFlags, access, geteuid};

use super::super::checks::state::FolderFacts;
use super::machine::{mount_of, room, user_name};

/// The facts of a folder, which may not exist.
pub(crate) fn folder(path: &Path) -> FolderFacts {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let about = path.metadata().ok();
    // The file system of a folder that does not exist is that of the nearest one above.
    let present = path.ancestors().find(|above| above.exists()).unwrap_or(Path::new("/"));
    let real = present.canonicalize().unwrap_or_else(|_| present.to_owned());
    let space = room(present);
    FolderFacts {
        exists: about.is_some(),
        denied: denied(present),
        owner: about.as_ref().map(|about| (user_name(about.uid()), about.uid() == geteuid().as_raw())),
        mode: about.as_ref().map_or(0, MetadataExt::mode),
        free: space.map(|space| space.free),
        inodes: space.map(|space| (space.free_inodes, space.inodes)),
        file_system: mount_of(&real).map(|(kind, _)| kind),
        path,
    }
}

/// Why this process may not write to a folder.
pub(crate) fn denied(folder: &Path) -> Option<String> {
    if !folder.is_dir() {
        return Some("it is not a folder".to_owned());
    }
    let wanted = AccessFlags::W_OK | AccessFlags::X_OK;
    let refused = access(folder, wanted).err()?;
    Some(match refused {
        nix::errno::Errno::EROFS => "its file system is mounted read-only".to_owned(),
        nix::errno::Errno::EACCES => format!("this user may not write to {}", folder.display()),
        other => other.desc().to_owned(),
    })
}

/// Whether this process may read a file or a folder.
pub(crate) fn may_read(path: &Path) -> bool {
    access(path, AccessFlags::R_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_1_a_folder_that_is_not_there_is_judged_by_the_one_above() {
        let folder_above = tempfile::tempdir().unwrap();
        let absent = folder(&folder_above.path().join("a/b"));
        assert!(!absent.exists && absent.denied.is_none() && absent.free.is_some() && absent.file_system.is_some());
        assert!(!folder_above.path().join("a").exists(), "the probe makes nothing");
        let file = folder_above.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(folder(&file.join("below")).denied.as_deref(), Some("it is not a folder"));
    }
}
