//! Processes that outlived their holder and all its guards. Their leases name them, and all of their trees are ended. A
//! process is killed only if its pid and start time match. Its memory stays counted until the devices show it free.

use std::time::{Duration, Instant};

use model_boss_host::guard::end_leftovers_at_once;
use model_boss_lease_store::{Holder, Leftover, StoreError};
use model_boss_protocol::Later;

/// The longest wait for the processes' end after SIGKILL.
const LIMIT: Duration = Duration::from_secs(5);
/// The interval between checks during that wait.
const INTERVAL: Duration = Duration::from_millis(50);

/// Ends processes whose holder is gone. Returns whether some are still alive, in a system call that does not return:
/// they are settled later.
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
                "of holders that are gone these do not end, their memory stays counted: {}",
                names.join(", ")
            );
            return Ok(true);
        }
        end_leftovers_at_once(&leftovers);
        std::thread::park_timeout(INTERVAL);
    }
}
