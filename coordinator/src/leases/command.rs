//! Commands to the thread of the ledger.

use model_boss_lease_store::StoreError;
use model_boss_protocol::{Generation, ModelId, SlotId};
use tokio::sync::oneshot;

use super::held::Ask;
use super::ledger::Ledger;

/// What the ledger's thread is told.
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
    /// Anything else that is done there; gets an error in place of the ledger while there is none.
    Do(Job),
}

pub(super) type Job = Box<dyn FnOnce(Result<&mut Ledger, StoreError>) + Send>;
