//! The effects that the scheduler asks the shell for.

use std::time::Duration;

use model_boss_protocol::{ApiError, ByteCount, DeviceId, Generation, ModelId, Priority, RequestId, Residency, SlotId};

use crate::{EngineOptions, Footprint, RungChoice};

/// An act that the scheduler asks of the shell, which reports back with an [`Event`](crate::Event).
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Reserve bytes in the ledger; answer with `LeaseGranted` or `LeaseRefused`.
    AcquireLease {
        /// For which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// For which model.
        model: ModelId,
        /// How much on which device. Never `auto`.
        parts: Vec<(DeviceId, ByteCount)>,
        /// The importance of whoever caused the load.
        priority: Priority,
        /// Whether somebody more important may ask for them back.
        yields: bool,
    },
    /// Take or keep a place in the ledger's queue for a model, before room is made for it. Later requests then do not
    /// take what becomes free. The `AcquireLease` of the model takes the place with it.
    AwaitLease {
        /// For which model.
        model: ModelId,
        /// How much on which device.
        parts: Vec<(DeviceId, ByteCount)>,
        /// The importance of who asks.
        priority: Priority,
        /// Ask less important holders that allow it to give memory back.
        preempt: bool,
    },
    /// Leave the ledger's queue.
    ForgoLease {
        /// Which model.
        model: ModelId,
    },
    /// Start the worker behind its gate; answer with `WorkerStarted`, then `WorkerReady` or `WorkerExited`.
    Spawn {
        /// For which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// Which model.
        model: ModelId,
        /// Where, and how much on each device. Never `auto`; more than one device is a split (RC-22).
        parts: Vec<(DeviceId, ByteCount)>,
        /// The context to serve, when a load asked for another one than the manifest's.
        context: Option<u64>,
        /// Options that the load gives its engine.
        engine: EngineOptions,
        /// Whether its layers are streamed to fit into these parts, and through how large a window.
        residency: Residency,
    },
    /// End the worker: SIGTERM, grace, SIGKILL, wait; answer with `WorkerExited`.
    Stop {
        /// Which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
    },
    /// Give the bytes back, with the evidence that the processes are gone; answer with `LeaseReleased`.
    ReleaseLease {
        /// Of which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
    },
    /// Send the request to this worker now; answer with `Finished`.
    Dispatch {
        /// Which request.
        request: RequestId,
        /// To which slot.
        slot: SlotId,
        /// Which filling of it.
        generation: Generation,
        /// How important it is, after the limits of its client.
        priority: Priority,
        /// How long it waited in the queue.
        queued: Duration,
        /// How much of that was a load it caused or shared.
        loading: Duration,
        /// Which rung of its ladder that is, and why.
        rung: RungChoice,
    },
    /// Send the request to this provider now; answer with `Finished` or `RungFailed`.
    DispatchCloud {
        /// Which request.
        request: RequestId,
        /// Which provider.
        provider: String,
        /// Which of its models.
        model: String,
        /// How long it waited in the queue.
        queued: Duration,
        /// Which rung of its ladder that is, and why.
        rung: RungChoice,
    },
    /// A model that a client named by its path is not used any more, and leaves the catalog unless it was named again.
    ForgetModel {
        /// Its name.
        model: ModelId,
        /// How often it had been named ([`ModelDescription::named`](crate::ModelDescription::named)).
        named: u64,
    },
    /// A footprint was learned, and is kept for the next start of the process
    /// ([`Event::Footprints`](crate::Event::Footprints)).
    Learned(Footprint),
    /// The operator's order is done.
    Done {
        /// Which caller.
        request: RequestId,
    },
    /// The final answer of this request is this error.
    Refuse {
        /// Which request.
        request: RequestId,
        /// The error that the client gets.
        error: ApiError,
    },
    /// Everything is stopped and released after `Drain`: the process may end.
    Drained,
}
