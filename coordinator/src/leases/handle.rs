//! The handle of the ledger's thread.

use std::sync::mpsc;

use model_boss_core::SlotKey;
use model_boss_lease_store::StoreError;
use model_boss_protocol::{ByteCount, DeviceId, ModelId, chain};
use tokio::sync::oneshot;

use super::command::LeaseCommand;
use super::held::LeaseAsk;
use super::ledger::LedgerOwner;

/// The handle of the ledger's thread.
#[derive(Clone, Debug)]
pub(crate) struct Leases {
    pub(super) commands: mpsc::Sender<LeaseCommand>,
}

impl Leases {
    /// A handle of the thread that reads these commands.
    pub(super) const fn new(commands: mpsc::Sender<LeaseCommand>) -> Self {
        Self { commands }
    }

    /// Requests memory; answered with `LeaseGranted` or `LeaseRefused`. A refused request keeps its model's place in
    /// the queue.
    pub(crate) fn acquire(&self, slot: SlotKey, ask: LeaseAsk) {
        self.send(LeaseCommand::Acquire { slot, ask });
    }

    /// Takes or keeps a place in the ledger's queue for a model that cannot be loaded yet.
    pub(crate) fn wait(&self, ask: LeaseAsk) {
        self.send(LeaseCommand::Wait(ask));
    }

    /// Cancels a model's place in the queue.
    pub(crate) fn cancel(&self, model: ModelId) {
        self.send(LeaseCommand::Cancel(model));
    }

    /// Lets a process pass the gate, to the devices of its lease. The error has the reason of a refusal.
    pub(crate) async fn attach(&self, slot: SlotKey, pid: u32) -> Result<(), String> {
        let (reply, attached) = oneshot::channel();
        self.send(LeaseCommand::Attach { slot, pid, reply });
        match attached.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(chain(&error)),
            Err(_) => Err("the lease ledger is closed".to_owned()),
        }
    }

    /// Reports that a worker has completed its load, and the most memory that it will hold on each device, if it is
    /// known. Where the driver does not tell processes apart, the next load may begin.
    pub(crate) fn loaded(&self, slot: SlotKey, may_hold: Vec<(DeviceId, ByteCount)>) {
        self.send(LeaseCommand::Do(Box::new(move |ledger| {
            // Without a ledger no load can have begun.
            if let Ok(ledger) = ledger {
                ledger.loaded(slot, may_hold);
            }
        })));
    }

    /// Releases the memory of a reaped worker; answered with `LeaseReleased`, once the store can be reached.
    pub(crate) fn release(&self, slot: SlotKey) {
        self.send(LeaseCommand::Release { slot });
    }

    /// Runs a function on the ledger's thread, between its other work.
    pub(super) async fn on_thread<T: Send + 'static, E: From<StoreError> + Send + 'static>(
        &self,
        act: impl FnOnce(&mut LedgerOwner) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let (reply, done) = oneshot::channel();
        self.send(LeaseCommand::Do(Box::new(move |ledger| {
            // An error means that the caller disconnected.
            let _ = reply.send(ledger.map_err(E::from).and_then(act));
        })));
        done.await.unwrap_or_else(|_| Err(StoreError::Host("the thread that keeps the ledger").into()))
    }

    pub(super) fn send(&self, command: LeaseCommand) {
        // The send cannot fail: the thread ends only after the last handle is dropped.
        let _ = self.commands.send(command);
    }
}
