//! Available host memory, checked before a load: the system kills a process that uses more, without a message.

use std::path::Path;

/// Bytes that the system can allocate without swapping, within the limits of this process's control groups; `None` if
/// unknown.
pub(crate) fn available() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_in(&text));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    [machine, group_allows(&groups, Path::new("/sys/fs/cgroup"))].into_iter().flatten().min()
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes that the tightest control group still allows. Its page cache counts as free, because it can be reclaimed.
fn group_allows(groups: &str, mounted: &Path) -> Option<u64> {
    let allowed = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        let (root, [limit, usage]) = match controllers {
            "" => (mounted.to_owned(), ["memory.max", "memory.current"]),
            list if list.split(',').any(|name| name == "memory") => {
                (mounted.join("memory"), ["memory.limit_in_bytes", "memory.usage_in_bytes"])
            }
            _ => return None,
        };
        // The limit of a group holds for all groups below it. In a container the path may not be visible: then the root
        // of the container's hierarchy is used.
        let place = root.join(path);
        let from = if place.is_dir() { place } else { root.clone() };
        from.ancestors()
            .take_while(|group| group.starts_with(&root))
            .filter_map(|group| left(group, limit, usage))
            .min()
    });
    allowed.min()
}

fn left(group: &Path, limit: &str, usage: &str) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let limit: u64 = read(limit)?.trim().parse().ok()?;
    let usage: u64 = read(usage)?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    // Version 1 has sums over the groups below, with names of their own.
    let field =
        |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
    let cache = |name: &str| field(&format!("total_{name}")).or(field(name)).unwrap_or(0);
    Some(limit.saturating_sub(usage.saturating_sub(cache("active_file") + cache("inactive_file"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_words() {
        let meminfo = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   1048576 kB\n";
        assert_eq!(available_in(meminfo), Some(1 << 30));
        assert_eq!(available_in("MemTotal: 3 kB\n"), None);
        assert_eq!(available_in("MemAvailable: lots\n"), None);
    }

    #[test]
    fn the_tightest_group_counts_without_its_page_cache() {
        let mounted = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = mounted.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("memory/a/b/memory.limit_in_bytes", "1000\n");
        write("memory/a/b/memory.usage_in_bytes", "900\n");
        write("memory/a/b/memory.stat", "active_file 1\ntotal_active_file 100\ntotal_inactive_file 300\n");
        write("memory/a/memory.limit_in_bytes", "2000\n");
        write("memory/a/memory.usage_in_bytes", "1900\n");
        write("v2/memory.max", "max\n");
        let groups = "3:cpu,cpuacct:/x\n2:memory:/a/b\n0::/v2\n";
        assert_eq!(group_allows(groups, mounted.path()), Some(100));
        assert_eq!(group_allows("2:memory:/not/visible\n", mounted.path()), None);
        write("v2/memory.max", "50\n");
        write("v2/memory.current", "20\n");
        assert_eq!(group_allows(groups, mounted.path()), Some(30));
        assert_eq!(group_allows("", mounted.path()), None);
    }
}
