//! Memory, and the limits of this process.

use std::path::Path;

use model_boss_config::Config;
use model_boss_host::descriptors::Shares;
use model_boss_host::probe::{HostProbe, Probe};
use model_boss_protocol::ByteCount;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::geteuid;

use super::super::checks::limits::LimitFacts;
use super::super::checks::memory::MemoryFacts;
use super::machine::{control_groups, field, number, room, text};

/// The memory that this process may use.
pub(crate) fn memory(config: &Config, has_gpu: bool) -> MemoryFacts {
    let info = text("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| {
        let value = field(&info, name)?;
        value.strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| ByteCount(kib << 10))
    };
    let total = kib("MemTotal");
    let usable = HostProbe::new(None, None).sample(&[]).into_iter().next();
    let limit = usable.as_ref().and_then(|sample| sample.capacity).filter(|capacity| Some(*capacity) < total);
    let version = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { 2 } else { 1 };
    let pages = text("/sys/kernel/mm/transparent_hugepage/enabled");
    MemoryFacts {
        total,
        available: usable.and_then(|sample| Some(sample.capacity?.saturating_sub(sample.used?))),
        swap_total: kib("SwapTotal").unwrap_or(ByteCount::ZERO),
        swap_free: kib("SwapFree").unwrap_or(ByteCount::ZERO),
        group_limit: limit.map(|limit| (limit, version)),
        address_space: soft(Resource::RLIMIT_AS).map(ByteCount),
        data: soft(Resource::RLIMIT_DATA).map(ByteCount),
        locked: locked(),
        overcommit: number("/proc/sys/vm/overcommit_memory").and_then(|mode| u8::try_from(mode).ok()),
        huge_pages: pages.and_then(|pages| Some(pages.split_once('[')?.1.split_once(']')?.0.to_owned())),
        reserved_huge: kib("Hugetlb").unwrap_or(ByteCount::ZERO),
        most_maps: number("/proc/sys/vm/max_map_count"),
        shared: room(Path::new("/dev/shm")).map(|room| room.all),
        oom_adjustment: text("/proc/self/oom_score_adj").and_then(|score| score.parse().ok()).unwrap_or(0),
        host_memory: config.host_memory,
        has_gpu,
        is_root: geteuid().is_root(),
    }
}

#[cfg(target_os = "linux")]
fn locked() -> Option<ByteCount> {
    soft(Resource::RLIMIT_MEMLOCK).map(ByteCount)
}

#[cfg(not(target_os = "linux"))]
fn locked() -> Option<ByteCount> {
    None
}

/// A limit of this process; `None`: there is none.
fn soft(resource: Resource) -> Option<u64> {
    getrlimit(resource).ok().map(|(soft, _)| soft).filter(|soft| *soft != RLIM_INFINITY)
}

/// Limits on descriptors and processes.
pub(crate) fn limits(config: &Config) -> LimitFacts {
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).ok();
    let reachable = descriptors.map_or(0, |(soft, hard)| Shares::reachable(soft, hard).connections);
    let group = control_groups("pids").into_iter().filter_map(|group| number(group.join("pids.max"))).min();
    LimitFacts {
        descriptors,
        connections: reachable,
        queue: config.limits.queue_total,
        processes: soft(Resource::RLIMIT_NPROC).filter(|_| !geteuid().is_root()),
        group_processes: group,
        dumps_cores: soft(Resource::RLIMIT_CORE) != Some(0),
    }
}
