//! The cores that a worker computes with on the host: those it could use, and the share that the coordinator gives it
//! while other workers compute too (FA-5).

use std::num::NonZero;

use serde::{Deserialize, Serialize};

/// The `nice` value of the lowest priority.
pub const LOWEST_NICE: u8 = 19;

/// The cores of a worker that computes on the host, as it reports them when it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkerCores {
    /// The threads that the worker computes with while no other model does.
    pub threads: NonZero<u32>,
    /// The physical cores that a process may use on this machine, within its quota.
    pub cores: NonZero<u32>,
}

/// The threads that a worker computes with from its next step on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CpuShare {
    /// The number of threads.
    pub threads: NonZero<u32>,
    /// The `nice` value of the threads, 0 to [`LOWEST_NICE`]: the higher, the less of a core they get beside others.
    pub nice: u8,
    /// The `nice` value of the worker's session, 0 to 19. It counts in place of the threads' where Linux first divides
    /// a core between sessions (`autogroup`).
    #[serde(default)]
    pub group_nice: u8,
}

impl CpuShare {
    /// All threads of a worker, which no other worker disturbs.
    pub const fn whole(cores: WorkerCores) -> Self {
        Self { threads: cores.threads, nice: 0, group_nice: 0 }
    }

    /// The factor by which a step with this share may take longer than one with all threads.
    ///
    /// ```
    /// # use model_boss_protocol::{CpuShare, WorkerCores};
    /// let read = |text| serde_json::from_str(text).unwrap();
    /// let cores: WorkerCores = read(r#"{"threads": 8, "cores": 8}"#);
    /// let slowdown = |text| serde_json::from_str::<CpuShare>(text).unwrap().slowdown(cores);
    /// assert_eq!(slowdown(r#"{"threads": 8, "nice": 0}"#), 1);
    /// assert_eq!(slowdown(r#"{"threads": 3, "nice": 0}"#), 3);
    /// assert_eq!(slowdown(r#"{"threads": 1, "nice": 10}"#), 88);
    /// ```
    pub fn slowdown(self, cores: WorkerCores) -> u32 {
        let fewer = cores.threads.get().div_ceil(self.threads.get());
        // The system gives a thread 1.25 times as much time for each step of `nice`.
        let lower = 1.25_f64.powi(i32::from(self.nice)) + 1.0;
        if self.nice == 0 { fewer } else { fewer.saturating_mul(lower.ceil() as u32) }
    }
}

/// A line to a worker that was started, on the pipe of its start line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerOrder {
    /// To compute with this share.
    Cpu(CpuShare),
}

impl WorkerOrder {
    /// The line, newline included.
    ///
    /// ```
    /// # use model_boss_protocol::WorkerOrder;
    /// let order = WorkerOrder::from_line(br#"{"cpu":{"threads":2,"nice":0}}"#).unwrap();
    /// assert_eq!(WorkerOrder::from_line(order.to_line().unwrap().as_bytes()), Some(order));
    /// assert_eq!(WorkerOrder::from_line(br#"{"cpu":{"threads":0,"nice":0}}"#), None);
    /// ```
    pub fn to_line(self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string(&self)? + "\n")
    }

    /// Reads a line. Lines of another version of the coordinator are ignored, and yield `None`.
    pub fn from_line(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}
