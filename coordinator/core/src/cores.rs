//! The division of the host's cores between models that compute at the same time (FA-5). The module is pure
//! arithmetic: it knows priorities and numbers of cores, and neither slots nor workers.

use std::cmp::Reverse;
use std::num::NonZero;

use model_boss_protocol::{CpuShare, LOWEST_NICE, Priority, WorkerCores};

/// A model that computes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoreClaim {
    /// The priority of its most important request in flight.
    pub(crate) priority: Priority,
    /// The cores of its worker.
    pub(crate) cores: WorkerCores,
}

/// One core, in the unit of parts.
const CORE: u64 = 1 << 20;

/// The weight of a thread or of a session by its `nice` value, from 0 on (`sched_prio_to_weight` of Linux).
const WEIGHTS: [u64; 20] =
    [1_024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15];

/// A part that counts as a core where priorities of threads are chosen.
const ALMOST: u64 = CORE / 4 * 3;

/// The least part that the system is asked for, so that no model is starved.
const LEAST: u64 = CORE / 10;

/// The share of each claim, in their order.
///
/// - A claim alone has all threads of its worker.
/// - Each step of priority doubles a claim's part of the cores. A worker gets no more threads than it has, and others
///   get the rest.
/// - Parts of a core or more become whole threads. The largest remainders are rounded up first, and between equals that
///   of the more important and then of the earlier claim.
/// - Smaller parts that together come to a core or more, when rounded, become one thread each. Otherwise no core is
///   left to them, and they compute in the gaps of the others, with all their threads. Both have a low priority, by
///   which the system gives them about their part.
/// - Where the system first divides cores between sessions, each worker's session has a weight by its part of them.
pub(crate) fn divide(claims: &[CoreClaim]) -> Vec<CpuShare> {
    if let [alone] = claims {
        return vec![CpuShare::whole(alone.cores)];
    }
    let parts = parts(claims);
    let round = |sum: u64| (sum + CORE / 2) / CORE;
    let small: u64 = parts.iter().filter(|part| **part < CORE).sum();
    let in_gaps = round(small) == 0;
    let threads = round(parts.iter().sum()).saturating_sub(round(small));
    let floors: u64 = parts.iter().map(|part| part / CORE).sum();
    let mut spare = threads.saturating_sub(floors);
    let mut by_remainder: Vec<usize> = (0..claims.len()).filter(|&at| parts[at] >= CORE).collect();
    by_remainder.sort_by_key(|&at| (Reverse(parts[at] % CORE), claims[at].priority, at));
    let mut whole: Vec<u64> = parts.iter().map(|part| part / CORE).collect();
    for at in by_remainder {
        if spare > 0 && whole[at] < u64::from(claims[at].cores.threads.get()) {
            whole[at] += 1;
            spare -= 1;
        }
    }
    for (at, part) in parts.iter().enumerate().filter(|(_, part)| **part < CORE) {
        let WorkerCores { threads, cores } = claims[at].cores;
        whole[at] = if in_gaps && *part > 0 { u64::from(threads.min(cores).get()) } else { 1 };
    }
    // Where no thread has the usual priority, the most important ones get it: other programs should not disturb them.
    let of_threads = |at: usize| match parts[at] {
        part if part >= ALMOST => 0,
        part => nice(part.max(LEAST), CORE * whole[at]),
    };
    let nices: Vec<u8> = (0..claims.len()).map(of_threads).collect();
    let least = nices.iter().copied().min().unwrap_or(0);
    let largest = parts.iter().copied().max().unwrap_or(0);
    let share = |at: usize| {
        let threads = u32::try_from(whole[at]).ok().and_then(NonZero::new).unwrap_or(NonZero::<u32>::MIN);
        CpuShare { threads, nice: nices[at] - least, group_nice: nice(parts[at].max(LEAST), largest) }
    };
    (0..claims.len()).map(share).collect()
}

/// The part of the cores that each claim gets, in fractions of a core.
fn parts(claims: &[CoreClaim]) -> Vec<u64> {
    let weight = |at: &usize| 1_u64 << (Priority::LOWEST.number() - claims[*at].priority.number());
    let most = |at: &usize| u64::from(claims[*at].cores.threads.get()) * CORE;
    let mut parts = vec![0; claims.len()];
    let mut left = claims.iter().map(|claim| u64::from(claim.cores.cores.get()) * CORE).max().unwrap_or(0);
    let mut open: Vec<usize> = (0..claims.len()).collect();
    while !open.is_empty() {
        let all: u64 = open.iter().map(weight).sum();
        let part = |at: &usize| u64::try_from(u128::from(left) * u128::from(weight(at)) / u128::from(all)).unwrap_or(0);
        let (full, rest): (Vec<usize>, Vec<usize>) = open.iter().partition(|at| part(at) >= most(at));
        if full.is_empty() {
            rest.iter().for_each(|at| parts[*at] = part(at));
            break;
        }
        full.iter().for_each(|at| parts[*at] = most(at));
        left -= full.iter().map(most).sum::<u64>().min(left);
        open = rest;
    }
    parts
}

/// The `nice` value by which a thread or session gets this part of what one of usual priority gets. The weights are a
/// factor of 1.25 apart, and the nearest is taken.
fn nice(part: u64, usual: u64) -> u8 {
    let wanted = WEIGHTS[0] * part / usual.max(1);
    let nice = WEIGHTS.iter().position(|weight| weight * 1_000 <= wanted * 1_118);
    nice.or(WEIGHTS.len().checked_sub(1)).and_then(|nice| u8::try_from(nice).ok()).unwrap_or(LOWEST_NICE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(priority: u8, threads: u32, cores: u32) -> CoreClaim {
        let number = |number| NonZero::new(number).unwrap();
        let cores = WorkerCores { threads: number(threads), cores: number(cores) };
        CoreClaim { priority: Priority::new(priority).unwrap(), cores }
    }

    /// The shares as `threads` or `threads/nice`, for workers with a thread for each of `cores`.
    fn shares(cores: u32, priorities: &[u8]) -> String {
        let claims: Vec<_> = priorities.iter().map(|priority| claim(*priority, cores, cores)).collect();
        text(&divide(&claims))
    }

    fn text(shares: &[CpuShare]) -> String {
        let text = |share: &CpuShare| match share.nice {
            0 => share.threads.to_string(),
            nice => format!("{}/{nice}", share.threads),
        };
        shares.iter().map(text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn fa_5_a_model_alone_has_all_its_threads_whatever_its_priority() {
        assert_eq!(shares(8, &[9]), "8");
        assert_eq!(text(&divide(&[claim(5, 12, 8)])), "12", "an operator's number of threads");
        assert!(divide(&[]).is_empty());
    }

    #[test]
    fn fa_5_each_step_of_priority_doubles_the_cores() {
        assert_eq!(shares(8, &[5, 5]), "4 4");
        assert_eq!(shares(9, &[4, 5]), "6 3");
        assert_eq!(shares(16, &[2, 5]), "14 2");
        assert_eq!(shares(6, &[5, 5, 5]), "2 2 2");
        assert_eq!(shares(4, &[5, 5, 5]), "2 1 1", "the first of equals gets what is left");
        assert_eq!(shares(12, &[4, 5, 5, 5]), "5 3 2 2");
    }

    #[test]
    fn fa_5_less_than_a_core_is_a_low_priority() {
        assert_eq!(shares(2, &[2, 5]), "2 2/10", "0.22 of a core, in the gaps");
        assert_eq!(shares(2, &[2, 8]), "2 2/13", "no model is starved");
        assert_eq!(shares(1, &[2, 5]), "1 1/10");
        assert_eq!(shares(8, &[0, 9, 9]), "8 8/19 8/19");
        // Many small parts fill cores, which the others then do not use.
        assert_eq!(shares(8, &[2, 5, 5, 5, 5, 5, 5, 5, 5]), "4 1/3 1/3 1/3 1/3 1/3 1/3 1/3 1/3");
    }

    #[test]
    fn fa_5_more_models_than_cores_share_by_priority_alone() {
        assert_eq!(shares(2, &[5, 5, 5]), "1 1 1");
        assert_eq!(shares(2, &[5; 9]), "1 1 1 1 1 1 1 1 1");
        assert_eq!(shares(2, &[4, 4, 5, 5, 5]), "1 1 1/3 1/3 1/3");
        assert_eq!(shares(1, &[5, 5]), "1 1");
    }

    #[test]
    fn fa_5_sessions_weigh_as_much_as_their_parts() {
        let groups = |cores, priorities: &[u8]| {
            let claims: Vec<_> = priorities.iter().map(|priority| claim(*priority, cores, cores)).collect();
            divide(&claims).iter().map(|share| share.group_nice).collect::<Vec<_>>()
        };
        assert_eq!(groups(8, &[5]), [0]);
        assert_eq!(groups(8, &[5, 5]), [0, 0]);
        assert_eq!(groups(8, &[4, 5]), [0, 3], "half as much");
        assert_eq!(groups(2, &[2, 5]), [0, 9], "an eighth");
        assert_eq!(groups(8, &[0, 9]), [0, 19], "a tenth of a core beside eight");
        assert_eq!(groups(1, &[0, 9]), [0, 10]);
    }

    #[test]
    fn fa_5_cores_that_a_worker_has_no_threads_for_go_to_others() {
        assert_eq!(text(&divide(&[claim(5, 1, 8), claim(5, 8, 8)])), "1 7");
        assert_eq!(text(&divide(&[claim(2, 2, 8), claim(5, 8, 8), claim(5, 8, 8)])), "2 3 3");
        assert_eq!(text(&divide(&[claim(5, 1, 8), claim(5, 2, 8)])), "1 2", "some cores are not used");
    }

    proptest! {
        #[test]
        fn fa_5_shares_use_all_cores_and_follow_the_priorities(
            cores in 1_u32..130,
            wants in prop::collection::vec((0_u8..10, 1_u32..130), 1..12),
        ) {
            let claims: Vec<_> = wants.iter().map(|(priority, threads)| claim(*priority, *threads, cores)).collect();
            let shares = divide(&claims);
            prop_assert_eq!(shares.len(), claims.len());
            let wanted: u32 = wants.iter().map(|(_, threads)| *threads).sum();
            for (share, claim) in shares.iter().zip(&claims) {
                prop_assert!(share.threads <= claim.cores.threads);
                prop_assert!(share.nice <= LOWEST_NICE && share.group_nice <= LOWEST_NICE);
            }
            if claims.len() > 1 {
                let all: u32 = shares.iter().map(|share| share.threads.get()).sum();
                prop_assert!(all >= cores.min(wanted), "cores without a thread: {:?}", shares);
                let usual = shares.iter().filter(|share| share.nice == 0).map(|share| share.threads.get());
                let several = usual.filter(|threads| *threads > 1);
                prop_assert!(several.sum::<u32>() <= cores, "threads of one model wait for each other: {:?}", shares);
            }
            for (a, first) in shares.iter().zip(&claims) {
                for (b, second) in shares.iter().zip(&claims) {
                    if first.priority < second.priority && first.cores.threads >= second.cores.threads {
                        let more = a.threads >= b.threads || b.nice > 0;
                        // Several threads of a lower priority may weigh more than one of a higher.
                        let nicer = a.nice <= b.nice || a.threads > b.threads;
                        let nicer = nicer && a.group_nice <= b.group_nice;
                        prop_assert!(more && nicer, "{:?} {:?}", shares, claims);
                    }
                }
            }
        }
    }
}
