//! The phases of a filled slot.

use serde::Serialize;

/// How far a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadPhase {
    /// The ledger was asked for the bytes.
    AwaitingLease,
    /// The worker is being started behind its gate.
    Spawning,
    /// The worker reads its weights.
    Weights,
}

/// Whether a ready slot takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadyPhase {
    /// It does.
    Serving,
    /// It ends those it has and then leaves.
    Draining,
}

/// How far a slot is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopPhase {
    /// The ledger has not yet answered a question that is not wanted any more.
    AwaitingLease,
    /// The worker was asked to end.
    Terminating,
    /// The worker is gone; its bytes are being given back.
    Releasing,
}
