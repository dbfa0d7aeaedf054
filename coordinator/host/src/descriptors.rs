//! File descriptors: the limit of this process and its shares for clients, workers and everything else. A process
//! without a free descriptor cannot reach its own workers, so clients are refused before that happens.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};

/// The highest limit that is requested: some programs close every number up to their limit, which takes long.
const MOST: rlim_t = 65_536;
/// The most connections of clients, however high the limit is.
const MOST_CONNECTIONS: usize = 8_192;
/// Descriptors reserved for pipes to workers, their health checks, state files and refusals: a quarter of the limit,
/// within these bounds.
const LEAST_RESERVE: usize = 40;
const MOST_RESERVE: usize = 1_024;
/// The limit that is assumed until [`raise`] has read the system's.
const UNKNOWN: usize = 1_024;

/// The soft and hard limit with which this process was started.
static INHERITED: OnceLock<(rlim_t, rlim_t)> = OnceLock::new();
/// The shares, set once the limit was raised.
static SHARES: OnceLock<Shares> = OnceLock::new();
/// The number of idle connections to workers, kept for later requests.
static IDLE: AtomicUsize = AtomicUsize::new(0);

/// Shares of the descriptor limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The limit, in descriptors, of which the other fields are shares.
    pub limit: usize,
    /// Client connections that are served. Each may need a second descriptor, for a connection to a worker or a
    /// provider.
    pub connections: usize,
    /// Client connections that are being refused.
    pub refusals: usize,
    /// Connections to workers kept for later requests.
    idle: usize,
}

impl Shares {
    /// The shares of a process that is started with these limits, once it has raised them.
    pub fn reachable(soft: rlim_t, hard: rlim_t) -> Self {
        Self::of(usize::try_from(hard.min(MOST).max(soft)).unwrap_or(usize::MAX))
    }

    fn of(limit: usize) -> Self {
        let reserve = (limit / 4).clamp(LEAST_RESERVE, MOST_RESERVE);
        let rest = limit.saturating_sub(reserve);
        let idle = rest / 8;
        let connections = ((rest - idle) / 2).clamp(1, MOST_CONNECTIONS);
        Self { limit, connections, refusals: reserve / 8, idle }
    }
}

/// Raises the limit as far as the system permits. Programs that this process starts get the original limit: a program
/// that waits with select(2) breaks on descriptors beyond 1,024.
pub fn raise() -> Shares {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, hard)| {
        INHERITED.get_or_init(|| (soft, hard));
        let wanted = hard.min(MOST).max(soft);
        // A system that refuses has stated its limit by that.
        if setrlimit(Resource::RLIMIT_NOFILE, wanted, hard).is_ok() { wanted } else { soft }
    });
    let limit = raised.map_or(UNKNOWN, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    *SHARES.get_or_init(|| Shares::of(limit))
}

/// The limits for programs that this process starts, where its own limits were raised above them.
pub(crate) fn inherited() -> Option<(rlim_t, rlim_t)> {
    INHERITED.get().copied()
}

/// The permission to keep one connection to a worker idle; counted until it is dropped.
#[derive(Debug)]
pub struct Idle(());

impl Idle {
    /// Counts one more idle connection, unless its share is used up.
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
