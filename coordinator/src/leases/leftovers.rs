//! Processes that an earlier coordinator left behind: found by its leases, with everything of their trees, ended only when
//! number and start time are those that were seen. Until the devices show their memory free it stays counted.

use std::time::{Duration, Instant};

use model_boss_lease_store::{Holder, Leftover, Process, StoreError, process};
use model_boss_protocol::Later;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long they are waited for after SIGKILL.
const LIMIT: Duration = Duration::from_secs(5);
/// How often they are looked at meanwhile.
const INTERVAL: Duration = Duration::from_millis(50);

/// Ends them. Says whether some live on (in a system call that does not return): they are settled later.
pub(super) fn end_leftovers(holder: &mut Holder) -> Result<bool, StoreError> {
    let deadline = Instant::now().later(LIMIT);
    loop {
        let leftovers = holder.settle()?;
        if leftovers.is_empty() {
            return Ok(false);
        }
        if Instant::now() > deadline {
            let name = |leftover: &Leftover| format!("{} {:?}", leftover.label, leftover.processes);
            let names: Vec<_> = leftovers.iter().map(name).collect();
            tracing::warn!(
                "of an earlier coordinator these do not end, their memory stays counted: {}",
                names.join(", ")
            );
            return Ok(true);
        }
        for leftover in &leftovers {
            for old in &leftover.processes {
                tracing::warn!(model = leftover.label, pid = old.pid, "ending a worker of an earlier coordinator");
                end(old);
            }
        }
        std::thread::park_timeout(INTERVAL);
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
