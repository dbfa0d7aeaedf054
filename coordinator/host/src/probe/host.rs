//! The device `cpu`: the machine's memory, as far as this process may use it (BC-1).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use model_boss_protocol::{ByteCount, DeviceId};

use super::{DeviceSample, Probe, cgroup};

/// Reads the memory from `/proc` and the control groups.
pub struct HostProbe {
    proc: PathBuf,
    cgroup: PathBuf,
    /// The retention budget for idle models, where the operator sets one.
    cache: Option<ByteCount>,
    /// The upper limit of all models together, where the operator sets one.
    most: Option<ByteCount>,
    /// Memory that gives way to models.
    spare: SpareMemory,
}

/// Host memory for things that give way to models: the bytes that they have, which count as free, and what else is
/// free. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SpareMemory(Arc<SpareBytes>);

#[derive(Debug)]
struct SpareBytes {
    taken: AtomicU64,
    /// By the last sample; the largest number while it is unknown.
    free: AtomicU64,
}

impl Default for SpareMemory {
    fn default() -> Self {
        Self(Arc::new(SpareBytes { taken: AtomicU64::new(0), free: AtomicU64::new(UNKNOWN) }))
    }
}

/// A figure that is not known.
const UNKNOWN: u64 = u64::MAX;

impl SpareMemory {
    /// Things that give way have so many bytes from now on.
    pub fn taken(&self, bytes: ByteCount) {
        self.0.taken.store(bytes.0, Ordering::Relaxed);
    }

    /// The bytes that are free beside them and the reserve for other programs, by the last sample.
    pub fn free(&self) -> Option<ByteCount> {
        Some(self.0.free.load(Ordering::Relaxed)).filter(|free| *free != UNKNOWN).map(ByteCount)
    }

    /// Notes what is free. Gives the bytes that count as free beside it.
    fn saw(&self, free: Option<ByteCount>) -> ByteCount {
        self.0.free.store(free.map_or(UNKNOWN, |free| free.0), Ordering::Relaxed);
        ByteCount(self.0.taken.load(Ordering::Relaxed))
    }
}

/// The default retention budget as a share of the usable memory, the reserve included.
const CACHE_SHARE: f64 = 0.6;

/// The retention budget (BC-1): the operator's value, else a share of the usable memory.
pub(super) fn retention(cache: Option<ByteCount>, usable: Option<ByteCount>) -> Option<ByteCount> {
    cache.or_else(|| Some(usable?.scaled(CACHE_SHARE)))
}

impl HostProbe {
    /// The probe of this machine: `cache` is the retention budget of idle models, `most` the limit of all models.
    pub fn new(cache: Option<ByteCount>, most: Option<ByteCount>) -> Self {
        Self { proc: "/proc".into(), cgroup: "/sys/fs/cgroup".into(), cache, most, spare: SpareMemory::default() }
    }

    /// The same beside things that give way to models.
    pub fn beside(self, spare: SpareMemory) -> Self {
        Self { spare, ..self }
    }
}

/// A sample of which models may use only `most`. Memory of other programs counts as far as it reaches into that part.
fn only(most: ByteCount, sample: DeviceSample) -> DeviceSample {
    let Some(total) = sample.capacity else { return sample };
    let most = most.min(total - sample.reserve);
    let models: ByteCount = sample.processes.iter().map(|&(_, bytes)| bytes).sum();
    let not_theirs = total - sample.reserve - most;
    let used = sample.used.map(|used| models + ((used - models) - not_theirs));
    DeviceSample { capacity: Some(most), reserve: ByteCount::ZERO, used, ..sample }
}

impl Probe for HostProbe {
    fn sample(&mut self, leased: &[u32]) -> Vec<DeviceSample> {
        let sampled_at = Instant::now();
        let memory = fs::read_to_string(self.proc.join("meminfo")).unwrap_or_default();
        let mut capacity = kib_field(&memory, "MemTotal");
        let mut available = kib_field(&memory, "MemAvailable");
        for limit in cgroup::limits(&self.proc, &self.cgroup) {
            if capacity.is_some_and(|total| limit.limit < total) {
                capacity = Some(limit.limit);
            }
            if let Some(used) = limit.used {
                available = available.map(|free| free.min(limit.limit.saturating_sub(used)));
            }
        }
        let reserve = capacity.map_or(ByteCount::gib(1), |total| total.scaled(0.1).max(ByteCount::gib(1)));
        let spare = self.spare.saw(available.map(|free| free - reserve));
        let sample = DeviceSample {
            device: DeviceId::Cpu,
            name: processor(&self.proc),
            uuid: None,
            capacity,
            reserve,
            used: capacity.zip(available).map(|(total, free)| total - free - spare),
            told_apart: true,
            processes: anonymous_memory(&self.proc, leased),
            retention: None,
            trouble: None,
            exclusive: false,
            sampled_at,
        };
        let sample = match self.most {
            Some(most) => only(most, sample),
            None => sample,
        };
        vec![DeviceSample { retention: retention(self.cache, sample.capacity), ..sample }]
    }
}

/// The value of a line such as `Field:   1234 kB`.
fn kib_field(text: &str, field: &str) -> Option<ByteCount> {
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| ByteCount(kib * 1024))
}

fn processor(proc: &Path) -> String {
    let text = fs::read_to_string(proc.join("cpuinfo")).unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let name = name.map_or("CPU", |(_, name)| name.trim());
    format!("{name}, {cores} {}", if cores == 1 { "core" } else { "cores" })
}

/// The anonymous memory of every process in each tree: descendants, and members of the groups and sessions that they
/// lead. The page cache of mapped weights is not charged, because the system can reclaim it.
fn anonymous_memory(proc: &Path, roots: &[u32]) -> Vec<(u32, ByteCount)> {
    if roots.is_empty() {
        return Vec::new();
    }
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut below: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in pids {
        for above in leaders_of(proc, pid).into_iter().flatten() {
            below.entry(above).or_default().push(pid);
        }
    }
    let mut open: Vec<u32> = roots.to_vec();
    let mut tree: BTreeSet<u32> = open.iter().copied().collect();
    while let Some(pid) = open.pop() {
        for member in below.remove(&pid).unwrap_or_default() {
            if tree.insert(member) {
                open.push(member);
            }
        }
    }
    // A zombie has no such line and uses no memory.
    let used = |pid: u32| {
        let status = fs::read_to_string(proc.join(pid.to_string()).join("status")).ok()?;
        Some((pid, without_others_part(proc, pid, kib_field(&status, "RssAnon")?)))
    };
    tree.into_iter().filter_map(used).collect()
}

/// The largest process whose shared pages are counted. The kernel walks over every page for that, which takes some
/// milliseconds at this size.
const WALKED: ByteCount = ByteCount::gib(1);

/// The part of a process's `bytes` that is its own. Forks share pages with their parent, as renderers share a worker's
/// vocabulary and data loaders their data. Without this, each of them would be charged with all shared pages.
fn without_others_part(proc: &Path, pid: u32, bytes: ByteCount) -> ByteCount {
    if bytes > WALKED {
        return bytes;
    }
    let rollup = fs::read_to_string(proc.join(pid.to_string()).join("smaps_rollup")).unwrap_or_default();
    kib_field(&rollup, "Pss_Anon").unwrap_or(bytes)
}

/// The parent, the group and the session of a process. They are the second to fourth field after the name, which is in
/// parentheses and may contain any character. An orphan's parent is init, which holds no lease, so orphans are related
/// only by group and session.
fn leaders_of(proc: &Path, pid: u32) -> Option<[u32; 3]> {
    let stat = fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(1).map(str::parse);
    let (parent, group, session) = (fields.next()?.ok()?, fields.next()?.ok()?, fields.next()?.ok()?);
    Some([parent, group, session])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, HostProbe) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let probe =
            HostProbe { proc: root.path().join("proc"), cgroup: root.path().join("cg"), ..HostProbe::new(None, None) };
        (root, probe)
    }

    const MEMINFO: &str = "MemTotal:       33554432 kB\nMemFree:        1 kB\nMemAvailable:   20971520 kB\n";

    #[test]
    fn bc_1_without_a_group_the_machine_counts() {
        let (_root, mut probe) = machine(&[("proc/meminfo", MEMINFO)]);
        let sample = probe.sample(&[]).remove(0);
        assert_eq!(sample.capacity, Some(ByteCount::gib(32)));
        assert_eq!(sample.used, Some(ByteCount::gib(12)));
        assert_eq!(sample.reserve, ByteCount::gib(32).scaled(0.1));
        assert_eq!(sample.retention, Some(ByteCount::gib(32).scaled(0.6)));
        probe.cache = Some(ByteCount::ZERO);
        assert_eq!(probe.sample(&[]).remove(0).retention, Some(ByteCount::ZERO));
    }

    #[test]
    fn en_3_memory_that_gives_way_to_models_counts_as_free() {
        let (_root, probe) = machine(&[("proc/meminfo", MEMINFO)]);
        let spare = SpareMemory::default();
        let mut probe = probe.beside(spare.clone());
        assert_eq!(spare.free(), None, "nothing was looked at yet");
        spare.taken(ByteCount::gib(2));
        assert_eq!(probe.sample(&[]).remove(0).used, Some(ByteCount::gib(10)));
        let reserve = ByteCount::gib(32).scaled(0.1);
        assert_eq!(spare.free(), Some(ByteCount::gib(20) - reserve), "beside the two");
        spare.taken(ByteCount::gib(99));
        assert_eq!(probe.sample(&[]).remove(0).used, Some(ByteCount::ZERO));
    }

    #[test]
    fn what_others_use_counts_only_where_it_reaches_into_the_models_share() {
        let gib = ByteCount::gib;
        let (_root, mut probe) = machine(&[]);
        let sample = probe.sample(&[]).remove(0);
        let seen = |used: u64, models: u64| {
            let (capacity, used, reserve) = (Some(gib(32)), Some(gib(used)), gib(4));
            let processes = vec![(7, gib(models))];
            let seen = only(gib(8), DeviceSample { capacity, used, reserve, processes, ..sample.clone() });
            assert_eq!((seen.capacity, seen.reserve), (Some(gib(8)), ByteCount::ZERO));
            seen.used
        };
        assert_eq!(seen(19, 0), Some(ByteCount::ZERO), "20 GiB are for others");
        assert_eq!(seen(23, 3), Some(gib(3)));
        assert_eq!(seen(25, 3), Some(gib(5)), "they took 2 GiB of the models' share");
        let small = only(gib(99), DeviceSample { capacity: Some(gib(32)), reserve: gib(4), ..sample });
        assert_eq!(small.capacity, Some(gib(28)), "never more than there is");
    }

    #[test]
    fn bc_1_a_tighter_group_wins_and_the_reserve_is_at_least_one_gib() {
        let (_root, mut probe) = machine(&[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/"),
            ("cg/memory.max", "4294967296"),
            ("cg/memory.current", "2147483648"),
            ("cg/memory.stat", "inactive_file 1073741824\n"),
        ]);
        let sample = probe.sample(&[]).remove(0);
        assert_eq!(sample.capacity, Some(ByteCount::gib(4)));
        assert_eq!(sample.used, Some(ByteCount::gib(1)));
        assert_eq!(sample.reserve, ByteCount::gib(1));
    }

    #[test]
    fn bc_1_anonymous_memory_of_the_whole_session_is_the_workers() {
        let (_root, mut probe) = machine(&[
            ("proc/meminfo", MEMINFO),
            ("proc/70/stat", "70 (model-boss wor) S 1 70 70 0 -1"),
            ("proc/70/status", "Name:\tx\nRssAnon:\t    1048576 kB\nRssFile:\t 9999999 kB\n"),
            ("proc/71/stat", "71 (a) b) R 70 71 70 0 -1"),
            ("proc/71/status", "RssAnon:\t    1048576 kB\n"),
            ("proc/72/stat", "72 (stranger) R 1 72 72 0 -1"),
            ("proc/72/status", "RssAnon:\t    1048576 kB\n"),
            ("proc/80/stat", "80 (python) S 60 60 60 0 -1"),
            ("proc/80/status", "RssAnon:\t    1048576 kB\n"),
            ("proc/81/stat", "81 (data loader) S 80 60 60 0 -1"),
            ("proc/81/status", "RssAnon:\t    1048576 kB\n"),
            ("proc/82/stat", "82 (rank of its own session) S 81 82 82 0 -1"),
            ("proc/82/status", "RssAnon:\t    1048576 kB\n"),
            ("proc/60/stat", "60 (the shell of both) S 1 60 60 0 -1"),
            ("proc/60/status", "RssAnon:\t    1048576 kB\n"),
        ]);
        let mut trees = |roots: &[u32]| {
            let processes = probe.sample(roots).remove(0).processes;
            processes.into_iter().map(|(pid, bytes)| (pid, bytes.0 >> 30)).collect::<Vec<_>>()
        };
        assert_eq!(trees(&[70]), [(70, 1), (71, 1)]);
        // A process that leads no group counts with its descendants in all sessions, but not with its siblings.
        assert_eq!(trees(&[80]), [(80, 1), (81, 1), (82, 1)]);
    }

    #[test]
    fn what_forks_share_counts_once() {
        let rollup =
            |kib: u32| format!("5000-6000 ---p 00000000 00:00 0   [rollup]\nRss:   409600 kB\nPss_Anon:   {kib} kB\n");
        let (_root, mut probe) = machine(&[
            ("proc/meminfo", MEMINFO),
            ("proc/70/stat", "70 (worker) S 1 70 70 0 -1"),
            ("proc/70/status", "RssAnon:\t    2097152 kB\n"),
            ("proc/70/smaps_rollup", &rollup(1)),
            ("proc/71/stat", "71 (text host) S 70 70 70 0 -1"),
            ("proc/71/status", "RssAnon:\t    409600 kB\n"),
            ("proc/71/smaps_rollup", &rollup(204_800)),
            ("proc/72/stat", "72 (renderer) S 71 70 70 0 -1"),
            ("proc/72/status", "RssAnon:\t    409600 kB\n"),
            ("proc/72/smaps_rollup", &rollup(204_800)),
        ]);
        let mut processes = probe.sample(&[70]).remove(0).processes;
        processes.sort();
        let mib = ByteCount::mib;
        assert_eq!(processes, [(70, mib(2_048)), (71, mib(200)), (72, mib(200))], "a large one is not walked");
    }

    #[test]
    fn rc_21_an_unreadable_system_is_unknown_not_zero() {
        let (_root, mut probe) = machine(&[]);
        let sample = probe.sample(&[]).remove(0);
        assert_eq!((sample.capacity, sample.used), (None, None));
    }

    #[test]
    fn this_machine_has_memory() {
        let sample = HostProbe::new(None, None).sample(&[]).remove(0);
        assert!(sample.capacity.is_some_and(|bytes| bytes > ByteCount::ZERO));
        assert!(sample.used.is_some());
    }
}
