//! The phases of a slot's states while it has a generation in progress.

use schemars::JsonSchema;
use serde::Serialize;

/// The progress of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadPhase {
    /// The ledger has the request for the bytes.
    AwaitingLease,
    /// The worker is being started behind its gate.
    Spawning,
    /// The worker reads its weights.
    Weights,
}

/// Whether a ready slot accepts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadyPhase {
    /// The slot accepts requests.
    Serving,
    /// The slot finishes its requests and then stops.
    Draining,
}

/// The progress of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopPhase {
    /// The ledger has not yet answered a request that is no longer needed.
    AwaitingLease,
    /// The worker has the order to end.
    Terminating,
    /// The worker has exited; its bytes are being released.
    Releasing,
}
