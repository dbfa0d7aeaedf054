//! The plan of threads: their number, and the processors that each may run on.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::topology::CpuTopology;

/// Slower cores than this part of the fastest hold a step up for longer than the work they take off it.
const SLOWEST_USED: u32 = 3;

/// The threads that compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadPlan {
    /// The processors of each thread, or `None` where it may run on all that the process may use.
    pub threads: Vec<Option<BTreeSet<usize>>>,
    /// The physical cores that the process may use.
    pub cores: usize,
    /// A sentence for operators, if fewer threads are planned than were asked for.
    pub warning: Option<String>,
}

/// Plans the threads of a process on a machine.
///
/// - There is one thread for each allowed physical core: two hardware threads of a core share the units that products
///   need.
/// - A quota of control groups is rounded down, to at least 1. A group that uses up its quota stops with all of its
///   threads, so what remains is left to those that serve requests.
/// - Efficiency cores are used, since threads take the next part of a product when they are done with one. Cores slower
///   than a third of the fastest are not.
/// - Threads are spread over NUMA nodes, and each stays in its node.
///
/// `asked` is an operator's number. It overrides all of this, but there are no more threads than allowed processors.
pub fn plan(topology: &CpuTopology, asked: Option<usize>) -> ThreadPlan {
    let cores = ordered_cores(topology);
    let fastest = cores.first().map_or(0, |core| core.capacity);
    let usable = cores.iter().filter(|core| core.capacity.saturating_mul(SLOWEST_USED) >= fastest).count();
    let quota = topology.quota.map_or(usize::MAX, |quota| quota as usize);
    let most = topology.cpus.len().max(1);
    let count = asked.unwrap_or_else(|| usable.min(quota)).clamp(1, most);
    let slowest = cores.iter().take(count).map(|core| core.capacity).min().unwrap_or(0);
    let all = topology.cpus.len();
    let places: BTreeMap<usize, Option<BTreeSet<usize>>> = cores
        .iter()
        .map(|core| {
            let near = topology.cpus.iter().filter(|cpu| cpu.node == core.node && cpu.capacity >= slowest);
            let near: BTreeSet<usize> = near.map(|cpu| cpu.number).collect();
            (core.node, Some(near).filter(|near| near.len() < all))
        })
        .collect();
    let threads = cores.iter().cycle().take(count).map(|core| places[&core.node].clone()).collect::<Vec<_>>();
    let warning = asked.filter(|asked| *asked > most).map(|asked| {
        format!("'threads' is {asked}, but this process may use {most} processors: {most} threads are used")
    });
    let threads = if threads.is_empty() { vec![None] } else { threads };
    ThreadPlan { threads, cores: cores.len(), warning }
}

/// A physical core.
struct PhysicalCore {
    number: usize,
    node: usize,
    capacity: u32,
}

/// The cores in the order in which threads take them: the fastest first, and those of all nodes in turn.
fn ordered_cores(topology: &CpuTopology) -> Vec<PhysicalCore> {
    let mut cores: BTreeMap<usize, PhysicalCore> = BTreeMap::new();
    for cpu in &topology.cpus {
        let core = PhysicalCore { number: cpu.core, node: cpu.node, capacity: cpu.capacity };
        cores.entry(cpu.core).or_insert(core);
    }
    let mut taken: BTreeMap<(u32, usize), usize> = BTreeMap::new();
    let turns = cores.into_values().map(|core| {
        let before = taken.entry((core.capacity, core.node)).or_default();
        *before += 1;
        ((Reverse(core.capacity), *before, core.node, core.number), core)
    });
    let mut turns: Vec<_> = turns.collect();
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, core)| core).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::topology::LogicalCpu;

    fn cpus(all: impl IntoIterator<Item = (usize, usize, usize, u32)>) -> CpuTopology {
        let cpu = |(number, core, node, capacity)| LogicalCpu { number, core, node, capacity };
        CpuTopology { cpus: all.into_iter().map(cpu).collect(), quota: None }
    }

    #[test]
    fn fa_5_a_thread_for_each_core_and_fewer_under_a_quota() {
        let mut ryzen = cpus((0..12).map(|n| (n, n % 6, 0, 1024)));
        let count = |topology: &CpuTopology, asked| plan(topology, asked).threads.len();
        assert_eq!(plan(&ryzen, None), ThreadPlan { threads: vec![None; 6], cores: 6, warning: None });
        for (quota, threads) in [(0.2, 1), (1.0, 1), (1.5, 1), (2.9, 2), (6.0, 6), (64.0, 6)] {
            ryzen.quota = Some(quota);
            assert_eq!(count(&ryzen, None), threads, "quota {quota}");
        }
        ryzen.quota = Some(1.5);
        assert_eq!((count(&ryzen, Some(2)), count(&ryzen, Some(12))), (2, 12), "an operator decides");
        let capped = plan(&ryzen, Some(64));
        assert_eq!(capped.threads.len(), 12);
        assert!(capped.warning.unwrap().contains("'threads' is 64"));
        assert_eq!(count(&CpuTopology::default(), None), 1);
    }

    #[test]
    fn fa_5_fast_cores_come_first_and_very_slow_ones_are_left_out() {
        let alder_lake = (0..8).map(|n| (n, n / 2 * 2, 0, 1024)).chain((8..12).map(|n| (n, n, 0, 512)));
        let alder_lake = cpus(alder_lake);
        assert_eq!(plan(&alder_lake, None).threads, vec![None; 8]);
        let fast: BTreeSet<usize> = (0..8).collect();
        assert_eq!(plan(&alder_lake, Some(4)).threads, vec![Some(fast); 4]);
        let phone = cpus((0..4).map(|n| (n, n, 0, 250)).chain((4..8).map(|n| (n, n, 0, 1024))));
        assert_eq!(plan(&phone, None).threads, vec![Some((4..8).collect()); 4]);
    }

    #[test]
    fn fa_5_threads_are_spread_over_nodes_and_stay_there() {
        let epyc = cpus((0..64).map(|n| (n, n % 32, n % 32 / 16, 1024)));
        let all = plan(&epyc, None).threads;
        let on = |node: usize| Some((0..64).filter(|n| n % 32 / 16 == node).collect::<BTreeSet<usize>>());
        assert_eq!(all.iter().filter(|place| **place == on(0)).count(), 16);
        assert_eq!(all.iter().filter(|place| **place == on(1)).count(), 16);
        assert_eq!(plan(&epyc, Some(3)).threads, [on(0), on(1), on(0)]);
    }

    proptest! {
        #[test]
        fn fa_5_every_thread_has_a_place(
            all in proptest::collection::vec((0usize..8, 0usize..3, 0u32..2000), 0..40),
            quota in proptest::option::of(0.0f64..50.0),
            asked in proptest::option::of(0usize..100),
        ) {
            let numbered = all.into_iter().enumerate().map(|(n, (core, node, capacity))| (n, core, node, capacity));
            let topology = CpuTopology { quota, ..cpus(numbered) };
            let planned = plan(&topology, asked);
            prop_assert!((1..=topology.cpus.len().max(1)).contains(&planned.threads.len()));
            prop_assert!(planned.threads.iter().flatten().all(|cpus| cpus.len() < topology.cpus.len()));
        }
    }
}
