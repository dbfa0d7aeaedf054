//! Memory: what this process may use, and limits that make a load fail.

use model_boss_protocol::ByteCount;

use super::super::finding::{Area, Finding};

/// The least available memory with which models are of use.
const LITTLE: ByteCount = ByteCount::gib(1);
/// The least shared memory that engines of other projects need.
const LITTLE_SHARED: ByteCount = ByteCount::mib(512);
/// The usual number of maps of a process.
const FEW_MAPS: u64 = 65_530;

/// Facts about memory. An absent limit is `None`.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryFacts {
    pub(crate) total: Option<ByteCount>,
    pub(crate) available: Option<ByteCount>,
    pub(crate) swap_total: ByteCount,
    pub(crate) swap_free: ByteCount,
    /// The lowest limit of the control groups of this process, and the version of their interface.
    pub(crate) group_limit: Option<(ByteCount, u8)>,
    /// RLIMIT_AS.
    pub(crate) address_space: Option<ByteCount>,
    /// RLIMIT_DATA.
    pub(crate) data: Option<ByteCount>,
    /// RLIMIT_MEMLOCK.
    pub(crate) locked: Option<ByteCount>,
    /// `vm.overcommit_memory`.
    pub(crate) overcommit: Option<u8>,
    /// The chosen word of transparent huge pages.
    pub(crate) huge_pages: Option<String>,
    /// Memory set aside for explicit huge pages.
    pub(crate) reserved_huge: ByteCount,
    /// `vm.max_map_count`.
    pub(crate) most_maps: Option<u64>,
    /// The size of /dev/shm.
    pub(crate) shared: Option<ByteCount>,
    /// `oom_score_adj` of this process.
    pub(crate) oom_adjustment: i32,
    /// The setting `host_memory`.
    pub(crate) host_memory: Option<ByteCount>,
    pub(crate) has_gpu: bool,
    pub(crate) is_root: bool,
}

pub(crate) fn judge(facts: &MemoryFacts) -> Vec<Finding> {
    let mut findings = vec![amount(facts)];
    findings.extend(group(facts));
    findings.extend(process_limits(facts));
    findings.extend(kernel(facts));
    findings
}

fn usable(facts: &MemoryFacts) -> Option<ByteCount> {
    [facts.total, facts.group_limit.map(|(limit, _)| limit)].into_iter().flatten().min()
}

fn amount(facts: &MemoryFacts) -> Finding {
    let area = Area::Memory;
    let (Some(total), Some(available)) = (facts.total, facts.available) else {
        return Finding::warning(area, "memory", "the system does not tell its memory (/proc/meminfo)")
            .why("The size of the device cpu is unknown, so no model is placed there")
            .remedy("Mount /proc");
    };
    let swap = match facts.swap_total {
        ByteCount::ZERO => "no swap".to_owned(),
        swap => format!("{swap} of swap"),
    };
    let found = format!("{available} of {total} are available, {swap}");
    let swapped = facts.swap_total.saturating_sub(facts.swap_free);
    if available < LITTLE {
        Finding::warning(area, "memory", found)
            .why("Models on the CPU are streamed from disk, or not loaded")
            .remedy("End other programs; `model-boss devices` shows who holds memory")
    } else if swapped.0 > facts.swap_total.0 / 2 && facts.swap_total > ByteCount::ZERO {
        Finding::note(area, "memory", format!("{found}, more than half of it in use"))
            .why("Memory of models that was swapped out makes their next step slow")
            .remedy("Set host_memory lower, so that models leave room for other programs")
    } else {
        Finding::ok(area, "memory", found)
    }
}

fn group(facts: &MemoryFacts) -> Vec<Finding> {
    let area = Area::Memory;
    let mut findings = Vec::new();
    if let (Some((limit, version)), Some(total)) = (facts.group_limit, facts.total)
        && limit < total
    {
        let found = format!("a control group (version {version}) permits {limit} of the machine's {total}");
        findings.push(
            Finding::note(area, "control_group", found)
                .why("The device cpu has that size; a process beyond it is killed")
                .remedy("Raise the limit of the container or the service (MemoryMax=) if more is meant"),
        );
    }
    if let (Some(wanted), Some(usable)) = (facts.host_memory, usable(facts))
        && wanted > usable
    {
        findings.push(
            Finding::warning(area, "host_memory", format!("host_memory is {wanted}, and there are {usable}"))
                .why("The setting has no effect above what there is")
                .remedy("Lower it, or leave it out"),
        );
    }
    findings
}

fn process_limits(facts: &MemoryFacts) -> Vec<Finding> {
    let area = Area::Memory;
    let mut findings = Vec::new();
    for (check, name, limit) in
        [("address_space", "RLIMIT_AS", facts.address_space), ("data", "RLIMIT_DATA", facts.data)]
    {
        if let Some(limit) = limit {
            let flag = if check == "data" { "-d" } else { "-v" };
            findings.push(
                Finding::failure(area, check, format!("{name} is {limit}"))
                    .why("Weights are mapped, and drivers of GPUs map much more than they use: loads fail with 'out of memory'")
                    .remedy(format!("`ulimit {flag} unlimited` before the start, or no {}= in the service", name.replace("RLIMIT_", "Limit"))),
            );
        }
    }
    if let Some(locked) = facts.locked
        && facts.has_gpu
        && !facts.is_root
        && locked < ByteCount::gib(1)
    {
        findings.push(
            Finding::note(area, "locked_memory", format!("RLIMIT_MEMLOCK is {locked}"))
                .why("Buffers from which GPUs copy are locked; some drivers count them against this limit")
                .remedy("LimitMEMLOCK=infinity in the service, or `ulimit -l unlimited`"),
        );
    }
    if facts.oom_adjustment > 0 {
        findings.push(
            Finding::note(area, "oom_score", format!("oom_score_adj is {}", facts.oom_adjustment))
                .why("This process and its workers are killed before others when memory is short")
                .remedy("OOMScoreAdjust=0 in the service"),
        );
    }
    findings
}

fn kernel(facts: &MemoryFacts) -> Vec<Finding> {
    let area = Area::Memory;
    let mut findings = Vec::new();
    if facts.overcommit == Some(2) {
        findings.push(
            Finding::warning(area, "overcommit", "vm.overcommit_memory is 2")
                .why("Reserved memory counts as used, so that loads fail while memory is free; CUDA reserves a lot")
                .remedy("`sysctl vm.overcommit_memory=0`"),
        );
    }
    if facts.huge_pages.as_deref() == Some("never") {
        findings.push(
            Finding::note(area, "huge_pages", "transparent huge pages are off")
                .why("Large weights in memory take more time for each access")
                .remedy("`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled` as root"),
        );
    }
    if let Some(total) = facts.total
        && facts.reserved_huge.0 > total.0 / 10
    {
        findings.push(
            Finding::note(area, "reserved_huge_pages", format!("{} are set aside for huge pages", facts.reserved_huge))
                .why("Models cannot use that memory")
                .remedy("`sysctl vm.nr_hugepages=0`, unless another program needs them"),
        );
    }
    if let Some(maps) = facts.most_maps.filter(|maps| *maps < FEW_MAPS) {
        findings.push(
            Finding::warning(area, "maps", format!("vm.max_map_count is {maps}"))
                .why("A process with many maps fails to get memory")
                .remedy(format!("`sysctl vm.max_map_count={FEW_MAPS}`")),
        );
    }
    if let Some(shared) = facts.shared.filter(|shared| *shared < LITTLE_SHARED) {
        findings.push(
            Finding::note(area, "shared_memory", format!("/dev/shm has {shared}"))
                .why("Our worker needs none, but engines such as vLLM on several GPUs fail with little")
                .remedy("docker: --shm-size 8g or --ipc host"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::super::finding::{Grade, results};
    use super::*;

    fn good() -> MemoryFacts {
        MemoryFacts {
            total: Some(ByteCount::gib(64)),
            available: Some(ByteCount::gib(60)),
            overcommit: Some(0),
            huge_pages: Some("madvise".into()),
            most_maps: Some(65_530),
            shared: Some(ByteCount::gib(32)),
            ..MemoryFacts::default()
        }
    }

    #[test]
    fn op_1_limits_of_memory_are_found() {
        assert_eq!(results(&judge(&good())), [("memory", Grade::Ok)]);
        let small = Some(ByteCount::mib(64));
        for (facts, expected) in [
            (MemoryFacts { total: None, ..good() }, ("memory", Grade::Warning)),
            (MemoryFacts { available: small, ..good() }, ("memory", Grade::Warning)),
            (MemoryFacts { swap_total: ByteCount::gib(2), ..good() }, ("memory", Grade::Note)),
            (MemoryFacts { group_limit: Some((ByteCount::gib(8), 2)), ..good() }, ("control_group", Grade::Note)),
            (MemoryFacts { host_memory: Some(ByteCount::gib(99)), ..good() }, ("host_memory", Grade::Warning)),
            (MemoryFacts { address_space: small, ..good() }, ("address_space", Grade::Failure)),
            (MemoryFacts { data: small, ..good() }, ("data", Grade::Failure)),
            (MemoryFacts { locked: small, has_gpu: true, ..good() }, ("locked_memory", Grade::Note)),
            (MemoryFacts { oom_adjustment: 500, ..good() }, ("oom_score", Grade::Note)),
            (MemoryFacts { overcommit: Some(2), ..good() }, ("overcommit", Grade::Warning)),
            (MemoryFacts { huge_pages: Some("never".into()), ..good() }, ("huge_pages", Grade::Note)),
            (MemoryFacts { reserved_huge: ByteCount::gib(32), ..good() }, ("reserved_huge_pages", Grade::Note)),
            (MemoryFacts { most_maps: Some(1_000), ..good() }, ("maps", Grade::Warning)),
            (MemoryFacts { shared: small, ..good() }, ("shared_memory", Grade::Note)),
        ] {
            let found = results(&judge(&facts));
            assert!(found.contains(&expected), "{expected:?} in {found:?}");
        }
    }

    #[test]
    fn op_1_limits_that_do_not_matter_are_not_mentioned() {
        let locked = MemoryFacts { locked: Some(ByteCount::mib(8)), ..good() };
        assert_eq!(results(&judge(&locked)), [("memory", Grade::Ok)], "without a GPU nothing is locked");
        let wide = MemoryFacts { group_limit: Some((ByteCount(u64::MAX), 1)), ..good() };
        assert_eq!(results(&judge(&wide)), [("memory", Grade::Ok)]);
    }
}
