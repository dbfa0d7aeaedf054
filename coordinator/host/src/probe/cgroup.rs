//! The memory limits that control groups put on this process, version 1 and 2.

use std::fs;
use std::path::{Path, PathBuf};

use model_boss_protocol::ByteCount;

/// One limit on this process, and how much of it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryLimit {
    pub(super) limit: ByteCount,
    /// Bytes in use without the page cache, which the kernel reclaims when it needs memory.
    pub(super) used: Option<ByteCount>,
}

/// The file names of one cgroup version.
struct Files {
    limit: &'static str,
    usage: &'static str,
    cache: [&'static str; 2],
}

const V2: Files = Files { limit: "memory.max", usage: "memory.current", cache: ["active_file", "inactive_file"] };
const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: ["total_active_file", "total_inactive_file"],
};

/// Every memory limit above this process: its own group's and those of the groups around it.
pub(super) fn limits(proc: &Path, cgroup: &Path) -> Vec<MemoryLimit> {
    let groups = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    let mut limits = Vec::new();
    for line in groups.lines() {
        // "0::/path" in version 2, "9:memory:/path" in version 1.
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if number == "0" && controllers.is_empty() {
            climb(cgroup, path, &V2, &mut limits);
            climb(&cgroup.join("unified"), path, &V2, &mut limits);
        } else if controllers.split(',').any(|name| name == "memory") {
            climb(&cgroup.join("memory"), path, &V1, &mut limits);
        }
    }
    limits
}

/// Reads the group at `path` below `root` and every group above it. Inside a container the path may name a group of the
/// host that is not visible. Then only visible groups count, above all the mounted root.
fn climb(root: &Path, path: &str, files: &Files, limits: &mut Vec<MemoryLimit>) {
    let relative = PathBuf::from(path.trim_start_matches('/'));
    for group in relative.ancestors() {
        if group.components().any(|part| part == std::path::Component::ParentDir) {
            continue;
        }
        limits.extend(read(&root.join(group), files));
    }
}

fn read(group: &Path, files: &Files) -> Option<MemoryLimit> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // "max" in version 2 and a number near 2^63 in version 1 mean no limit; the caller takes the smaller of limit and
    // memory.
    let limit = number(files.limit)?;
    let used = number(files.usage).map(|usage| {
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let cache: u64 = stat
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| files.cache.contains(name))
            .filter_map(|(_, bytes)| bytes.parse::<u64>().ok())
            .sum();
        ByteCount(usage.saturating_sub(cache))
    });
    Some(MemoryLimit { limit: ByteCount(limit), used })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn read_tree(files: &[(&str, &str)]) -> Vec<MemoryLimit> {
        let root = tree(files);
        limits(&root.path().join("proc"), &root.path().join("cg"))
    }

    #[test]
    fn bc_1_version_2_reads_its_group_and_those_above() {
        let limits = read_tree(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("cg/a/b/memory.max", "max\n"),
            ("cg/a/memory.max", "4096\n"),
            ("cg/a/memory.current", "3000\n"),
            ("cg/a/memory.stat", "anon 1\nactive_file 500\ninactive_file 1500\n"),
        ]);
        assert_eq!(limits, [MemoryLimit { limit: ByteCount(4096), used: Some(ByteCount(1000)) }]);
    }

    #[test]
    fn bc_1_version_1_in_a_container_falls_back_to_the_mounted_root() {
        let limits = read_tree(&[
            ("proc/self/cgroup", "9:cpu,memory:/docker/gone\n3:pids:/x\n"),
            ("cg/memory/memory.limit_in_bytes", "8192\n"),
            ("cg/memory/memory.usage_in_bytes", "4096\n"),
            ("cg/memory/memory.stat", "total_inactive_file 96\ninactive_file 7\n"),
        ]);
        assert_eq!(limits, [MemoryLimit { limit: ByteCount(8192), used: Some(ByteCount(4000)) }]);
    }

    #[test]
    fn bc_1_no_groups_are_no_limits() {
        assert!(read_tree(&[]).is_empty());
        assert!(read_tree(&[("proc/self/cgroup", "nonsense\n0::/../../etc\n")]).is_empty());
    }
}
