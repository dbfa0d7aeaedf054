//! Ends processes that outlived their guards and their holder, all killed at once, after the lease has shown whose they
//! were.

use model_boss_lease_store::{Leftover, Process, process};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Kills the leftovers without waiting for their end: the next check settles their leases.
pub fn end_leftovers_at_once(leftovers: &[Leftover]) {
    for leftover in leftovers {
        for old in &leftover.processes {
            tracing::warn!(lease = leftover.label, pid = old.pid, "ending what a holder left that is gone");
            end(old);
        }
    }
}

fn end(old: &Process) {
    // The pid alone could belong to another process by now.
    let same = process(old.pid).is_ok_and(|now| now == *old);
    if same && let Ok(pid) = i32::try_from(old.pid) {
        // An error means that the process has already ended.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}
