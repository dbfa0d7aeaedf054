//! Commands to the ledger's thread.

use model_boss_core::SlotKey;
use model_boss_lease_store::StoreError;
use model_boss_protocol::ModelId;
use tokio::sync::oneshot;

use super::held::LeaseAsk;
use super::ledger::LedgerOwner;

/// A command to the ledger's thread.
pub(super) enum LeaseCommand {
    Acquire {
        slot: SlotKey,
        ask: LeaseAsk,
    },
    Wait(LeaseAsk),
    Cancel(ModelId),
    Attach {
        slot: SlotKey,
        pid: u32,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
    Release {
        slot: SlotKey,
    },
    /// Runs a job on the ledger's thread; without a ledger the job gets an error in its place.
    Do(Job),
}

pub(super) type Job = Box<dyn FnOnce(Result<&mut LedgerOwner, StoreError>) + Send>;
