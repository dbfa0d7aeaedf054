//! Ending what guards left behind that were killed together with their holder, once its lease has told whose it was.

use model_boss_lease_store::{Leftover, Process, process};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Ends them, and does not wait: their leases are settled at the next look.
pub fn end_leftovers_at_once(leftovers: &[Leftover]) {
    for leftover in leftovers {
        for old in &leftover.processes {
            tracing::warn!(lease = leftover.label, pid = old.pid, "ending what a holder left that is gone");
            end(old);
        }
    }
}

fn end(old: &Process) {
    // The number alone could be somebody else's by now.
    let same = process(old.pid).is_ok_and(|now| now == *old);
    if same && let Ok(pid) = i32::try_from(old.pid) {
        // An error means that it is gone already.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}
