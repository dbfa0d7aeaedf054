//! File descriptors: how many this process may have, and how they are shared between clients, workers and everything else.
//! A process that has none left cannot reach its own workers, so clients are refused before that.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// More than this is never asked for: some programs close every number up to their limit.
const MOST: rlim_t = 65_536;
/// Connections of clients, however many descriptors there are.
const MOST_CONNECTIONS: usize = 8_192;
/// Kept for pipes to workers, their health checks, state files and refusals: a quarter, within these bounds.
const LEAST_RESERVE: usize = 40;
const MOST_RESERVE: usize = 1_024;
/// The limit that is assumed where the system was not asked.
const UNKNOWN: usize = 1_024;

/// The limits with which this process was started.
static INHERITED: OnceLock<(rlim_t, rlim_t)> = OnceLock::new();
/// The share of each, once the limit was raised.
static SHARES: OnceLock<Shares> = OnceLock::new();
/// Connections to workers that wait for their next request.
static IDLE: AtomicUsize = AtomicUsize::new(0);

/// How many descriptors there are for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Of this many.
    pub limit: usize,
    /// Connections of clients that are served. Each may need a second one, to a worker or a provider.
    pub connections: usize,
    /// Connections of clients that are being refused.
    pub refusals: usize,
    /// Connections to workers kept for later requests.
    idle: usize,
}

impl Shares {
    fn of(limit: usize) -> Self {
        let reserve = (limit / 4).clamp(LEAST_RESERVE, MOST_RESERVE);
        let rest = limit.saturating_sub(reserve);
        let idle = rest / 8;
        let connections = ((rest - idle) / 2).clamp(1, MOST_CONNECTIONS);
        Self { limit, connections, refusals: reserve / 8, idle }
    }
}

/// Raises the limit as far as the system lets this process. Programs that it starts get the one it was started with: those
/// that wait with select(2) break beyond 1,024.
pub fn raise() -> Shares {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, hard)| {
        INHERITED.get_or_init(|| (soft, hard));
        let wanted = hard.min(MOST).max(soft);
        // A system that does not let us has said so by its limit.
        if setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok() { wanted } else { soft }
    });
    let limit = raised.map_or(UNKNOWN, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    *SHARES.get_or_init(|| Shares::of(limit))
}

/// The limits that programs are started with, where ours are others.
pub(crate) fn inherited() -> Option<(rlim_t, rlim_t)> {
    INHERITED.get().copied()
}

/// A connection that is kept idle, counted until it is dropped.
#[derive(Debug)]
pub struct Idle(());

impl Idle {
    /// Room for one more, if there is.
    pub fn take() -> Option<Self> {
        let most = SHARES.get().map_or(UNKNOWN, |shares| shares.idle);
        let taken = IDLE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |idle| (idle < most).then_some(idle + 1));
        taken.ok().map(|_| Self(()))
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        IDLE.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_never_take_what_workers_need() {
        for limit in [1, 40, 48, 64, 128, 256, 1_024, 4_096, 65_536, 1 << 30] {
            let shares = Shares::of(limit);
            assert!(shares.connections >= 1);
            let taken = 2 * shares.connections + shares.idle;
            assert!(limit < 48 || taken + (limit / 4).clamp(LEAST_RESERVE, MOST_RESERVE) <= limit, "{shares:?}");
        }
        assert_eq!(Shares::of(64), Shares { limit: 64, connections: 10, refusals: 5, idle: 3 });
        assert_eq!(Shares::of(65_536).connections, MOST_CONNECTIONS);
    }
}
