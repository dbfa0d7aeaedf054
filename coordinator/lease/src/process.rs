//! Processes as leases identify them.

use serde::{Deserialize, Serialize};

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// The process id.
    pub pid: u32,
    /// The start time of the process, in clock ticks since boot.
    pub start_time: u64,
    /// The pid namespace in which `pid` is valid.
    pub pid_ns: String,
}
