//! Commands to the ledger's thread.

use model_boss_lease_store::StoreError;
use model_boss_protocol::{Generation, ModelId, SlotId};
use tokio::sync::oneshot;

use super::held::Ask;
use super::ledger::Ledger;

/// A command to the ledger's thread.
pub(super) enum LeaseCommand {
    Acquire {
        slot: SlotId,
        generation: Generation,
        ask: Ask,
    },
    Wait(Ask),
    Forgo(ModelId),
    Attach {
        slot: SlotId,
        generation: Generation,
        pid: u32,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
    Release {
        slot: SlotId,
        generation: Generation,
    },
    /// Runs a job on the ledger's thread; without a ledger the job gets an error in its place.
    Do(Job),
}

pub(super) type Job = Box<dyn FnOnce(Result<&mut Ledger, StoreError>) + Send>;
