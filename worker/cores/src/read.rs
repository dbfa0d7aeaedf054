//! Reading a machine's processors from the files of Linux.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::quota::quota;
use crate::topology::{CpuTopology, FULL, LogicalCpu};

/// The capacity of an efficiency core where the system only says that it is one.
const EFFICIENCY: u32 = 512;

/// The highest number of a processor that is believed.
const MOST: usize = 1 << 16;

/// Reads the processors that this process may use from the files below `root`, which is `/` but for tests. What cannot
/// be read is replaced: processors without a description are cores of their own, and without any list there are
/// `fallback` of them. The text is a warning about that.
pub fn read(root: &Path, fallback: usize) -> (CpuTopology, Option<String>) {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).and_then(numbers);
    let system = root.join("sys/devices/system");
    let online = list(&system.join("cpu/online"));
    let mut allowed = allowed.unwrap_or_default();
    if let Some(online) = online {
        allowed.retain(|number| online.contains(number));
    }
    if allowed.is_empty() {
        let warning = format!("/proc/self/status and /sys name no processors: {fallback} threads are planned");
        return (CpuTopology { quota: quota(root), ..CpuTopology::unknown(fallback) }, Some(warning));
    }
    let nodes = nodes(&system.join("node"));
    let efficient = list(&root.join("sys/devices/cpu_atom/cpus")).unwrap_or_default();
    let mut unknown = Vec::new();
    let cpus = allowed.iter().map(|&number| {
        let folder = system.join(format!("cpu/cpu{number}"));
        let siblings = ["core_cpus_list", "thread_siblings_list"]
            .into_iter()
            .find_map(|name| list(&folder.join("topology").join(name)).filter(|siblings| siblings.contains(&number)));
        let core = siblings.and_then(|siblings| siblings.first().copied()).unwrap_or_else(|| {
            unknown.push(number);
            number
        });
        let capacity = fs::read_to_string(folder.join("cpu_capacity")).ok().and_then(|text| text.trim().parse().ok());
        let of_kind = if efficient.contains(&number) { EFFICIENCY } else { FULL };
        let node = nodes.iter().find(|(_, cpus)| cpus.contains(&number)).map_or(0, |(node, _)| *node);
        LogicalCpu { number, core, node, capacity: capacity.unwrap_or(of_kind) }
    });
    let topology = CpuTopology { cpus: cpus.collect(), quota: quota(root) };
    let warning = unknown.first().map(|first| {
        let files = format!("/sys/devices/system/cpu/cpu{first}/topology");
        format!("{files} does not name a core: {} processors count as cores of their own", unknown.len())
    });
    (topology, warning)
}

fn nodes(folder: &Path) -> Vec<(usize, BTreeSet<usize>)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let nodes = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        Some((number, list(&entry.path().join("cpulist"))?))
    });
    let mut nodes: Vec<_> = nodes.collect();
    nodes.sort_by_key(|(number, _)| *number);
    nodes
}

fn list(file: &Path) -> Option<BTreeSet<usize>> {
    numbers(&fs::read_to_string(file).ok()?)
}

/// The numbers of a list such as `0-3,8,10-11`; `None` for any other text.
fn numbers(text: &str) -> Option<BTreeSet<usize>> {
    let mut numbers = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last >= MOST {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::plan;

    /// A machine of files. The descriptions of processors are made from each one's siblings.
    fn machine(siblings: impl Fn(usize) -> Option<String>, count: usize, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/status", &format!("Name:\tx\nCpus_allowed_list:\t0-{}\n", count - 1));
        for cpu in 0..count {
            if let Some(siblings) = siblings(cpu) {
                write(&format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list"), &siblings);
            }
        }
        files.iter().for_each(|(path, text)| write(path, text));
        root
    }

    fn alone(cpu: usize) -> Option<String> {
        Some(cpu.to_string())
    }

    fn seen(root: &tempfile::TempDir) -> (usize, usize, Option<f64>, bool) {
        let (topology, warning) = read(root.path(), 3);
        let planned = plan(&topology, None);
        (planned.cores, planned.threads.len(), topology.quota, warning.is_some())
    }

    #[test]
    fn fa_5_cores_of_desktops_servers_and_boards_are_read() {
        let ryzen_5600 = |cpu| Some(format!("{},{}\n", cpu % 6, cpu % 6 + 6));
        assert_eq!(seen(&machine(ryzen_5600, 12, &[])), (6, 6, None, false));
        // The mask names processors that the machine may get one day.
        let online = ("sys/devices/system/cpu/online", "0-11\n");
        let wide = ("proc/self/status", "Cpus_allowed_list:\t0-127\n");
        assert_eq!(seen(&machine(ryzen_5600, 12, &[online, wide])), (6, 6, None, false));
        let alder_lake = |cpu: usize| {
            Some(if cpu < 16 { format!("{0}-{1}", cpu / 2 * 2, cpu / 2 * 2 + 1) } else { cpu.to_string() })
        };
        let atoms = ("sys/devices/cpu_atom/cpus", "16-23\n");
        let root = machine(alder_lake, 24, &[atoms]);
        assert_eq!(seen(&root), (16, 16, None, false));
        assert!(plan(&read(root.path(), 1).0, Some(8)).threads.iter().all(|place| *place == Some((0..16).collect())));
        let files = ["0-15,32-47", "16-31,48-63"];
        let epyc = machine(
            |cpu| Some(format!("{},{}", cpu % 32, cpu % 32 + 32)),
            64,
            &[("sys/devices/system/node/node0/cpulist", files[0]), ("sys/devices/system/node/node1/cpulist", files[1])],
        );
        assert_eq!(seen(&epyc), (32, 32, None, false));
        assert_eq!(plan(&read(epyc.path(), 1).0, None).threads[1], numbers(files[1]));
        let capacities: Vec<(String, &str)> = (0..8)
            .map(|cpu| {
                (format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"), if cpu < 4 { "300\n" } else { "1024\n" })
            })
            .collect();
        let capacities: Vec<(&str, &str)> = capacities.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        assert_eq!(seen(&machine(alone, 8, &capacities)), (8, 4, None, false));
    }

    #[test]
    fn fa_5_groups_and_masks_limit_a_container() {
        let status = ("proc/self/status", "Cpus_allowed_list:\t2-5\n");
        let group = ("proc/self/cgroup", "0::/pod/app\n");
        let own = ("sys/fs/cgroup/pod/app/cpu.max", "max 100000\n");
        let above = ("sys/fs/cgroup/pod/cpu.max", "250000 100000\n");
        assert_eq!(seen(&machine(alone, 8, &[status, group, own])), (4, 4, None, false));
        assert_eq!(seen(&machine(alone, 8, &[status, group, own, above])), (4, 2, Some(2.5), false));
        let first = ("proc/self/cgroup", "9:cpuset:/\n4:cpu,cpuacct:/gone\n0::/../../etc\n");
        let [quota, period] = [("cpu.cfs_quota_us", "150000"), ("cpu.cfs_period_us", "100000")];
        let folder = |(name, text): (&str, &'static str)| (format!("sys/fs/cgroup/cpu,cpuacct/{name}"), text);
        let (quota, period) = (folder(quota), folder(period));
        let files = [first, (&quota.0, quota.1), (&period.0, period.1)];
        assert_eq!(seen(&machine(alone, 8, &files)), (8, 1, Some(1.5), false));
        let none = [first, (&quota.0, "-1"), (&period.0, period.1)];
        assert_eq!(seen(&machine(alone, 8, &none)), (8, 8, None, false));
    }

    #[test]
    fn fa_5_files_that_are_missing_or_wrong_leave_one_warning() {
        assert_eq!(seen(&machine(|_| None, 4, &[])), (4, 4, None, true), "a virtual machine");
        assert_eq!(seen(&machine(|_| Some("7-x".to_owned()), 4, &[])), (4, 4, None, true));
        assert_eq!(seen(&machine(|_| Some("9".to_owned()), 4, &[])), (4, 4, None, true), "the core of another");
        for status in ["Cpus_allowed_list:\t0-99999999999\n", "Cpus_allowed_list:\t5-\n", "", "Cpus_allowed_list:\n"] {
            assert_eq!(seen(&machine(alone, 4, &[("proc/self/status", status)])), (3, 3, None, true), "{status:?}");
        }
        let max = ("sys/fs/cgroup/cpu.max", "0 0\n");
        assert_eq!(seen(&machine(alone, 4, &[("proc/self/cgroup", "0::/\n"), max])), (4, 4, None, false));
        assert_eq!(seen(&tempfile::tempdir().unwrap()), (3, 3, None, true));
    }

    #[test]
    fn fa_5_this_machine_is_read() {
        let (topology, _) = read(Path::new("/"), 1);
        assert!(!plan(&topology, None).threads.is_empty());
    }
}
