//! Processes that a holder left behind who is gone with all its guards: found by its leases, with everything of their trees,
//! ended only when number and start time are those that were seen. Until the devices show their memory free it stays counted.

use std::time::{Duration, Instant};

use model_boss_host::guard::end_leftovers_at_once;
use model_boss_lease_store::{Holder, Leftover, StoreError};
use model_boss_protocol::Later;

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
                "of holders that are gone these do not end, their memory stays counted: {}",
                names.join(", ")
            );
            return Ok(true);
        }
        end_leftovers_at_once(&leftovers);
        std::thread::park_timeout(INTERVAL);
    }
}
