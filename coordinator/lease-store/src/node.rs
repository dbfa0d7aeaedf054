//! Device nodes of GPUs, and the users that may open them. A user without access cannot use the GPU, so a claim of
//! that user does not count.

use std::ffi::CString;
use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use model_boss_lease::DeviceKey;
use nix::unistd::{Uid, User, getgrouplist};

/// The folder with the NVIDIA driver's descriptions of its GPUs, one folder each.
const GPUS: &str = "/proc/driver/nvidia/gpus";

/// Whether this user may use the device, as far as its node shows: a device without a node is open to all.
pub(crate) fn may_use(device: &DeviceKey, uid: u32) -> bool {
    node_of(device).and_then(|node| fs::metadata(node).ok()).is_none_or(|node| may_open(&node, uid, groups_of))
}

fn node_of(device: &DeviceKey) -> Option<PathBuf> {
    let texts =
        fs::read_dir(GPUS).ok()?.flatten().filter_map(|gpu| fs::read_to_string(gpu.path().join("information")).ok());
    texts
        .into_iter()
        .find_map(|text| minor_of(&text, device.as_str()))
        .map(|minor| format!("/dev/nvidia{minor}").into())
}

/// The minor number in a driver's description, if it describes this GPU.
fn minor_of(description: &str, uuid: &str) -> Option<u32> {
    let value = |name: &str| {
        let lines = description.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(known, _)| known.trim() == name).map(|(_, value)| value.trim())
    };
    if value("GPU UUID")? == uuid { value("Device Minor")?.parse().ok() } else { None }
}

/// Whether reading is allowed, by the rules of path_resolution(7).
fn may_open(node: &Metadata, uid: u32, groups: impl Fn(u32) -> Vec<u32>) -> bool {
    let mode = node.permissions().mode();
    let bits = if uid == node.uid() {
        mode >> 6
    } else if groups(uid).contains(&node.gid()) {
        mode >> 3
    } else {
        mode
    };
    uid == 0 || bits & 0o4 != 0
}

fn groups_of(uid: u32) -> Vec<u32> {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let groups = user.and_then(|user| getgrouplist(&CString::new(user.name).ok()?, user.gid).ok());
    groups.unwrap_or_default().into_iter().map(nix::unistd::Gid::as_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_found_by_its_uuid() {
        let text = "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1-2\nBus Location: \t 0000:00:05.0\nDevice Minor: \t 3\n";
        assert_eq!(minor_of(text, "GPU-1-2"), Some(3));
        assert_eq!(minor_of(text, "GPU-1-3"), None);
        assert_eq!(minor_of("GPU UUID: GPU-1-2", "GPU-1-2"), None);
    }

    #[test]
    fn who_may_not_open_the_node_may_not_use_the_device() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let with = |mode: u32| {
            file.as_file().set_permissions(fs::Permissions::from_mode(mode)).unwrap();
            file.as_file().metadata().unwrap()
        };
        let (owner, group) = (with(0o660).uid(), with(0o660).gid());
        let stranger = owner + 1_000;
        assert!(may_open(&with(0o660), owner, |_| vec![]) && may_open(&with(0o666), stranger, |_| vec![]));
        assert!(may_open(&with(0o660), stranger, |_| vec![group]));
        assert!(
            !may_open(&with(0o660), stranger, |_| vec![group + 1])
                && !may_open(&with(0o606), stranger, |_| vec![group])
        );
        assert!(may_open(&with(0), 0, |_| vec![]));
        assert!(may_use(&DeviceKey::cpu(), stranger), "every user may use memory");
    }
}
