//! The effects that the scheduler requests from the shell.

use std::time::Duration;

use model_boss_protocol::{ByteCount, CpuShare, DeviceId, ModelId, Priority, RequestId, Residency};

use crate::refusal::Refusal;
use crate::{EngineOptions, Footprint, RungChoice, SlotKey};

/// An act that the scheduler requests from the shell, which reports back with an [`Event`](crate::Event).
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Reserve bytes in the ledger; answer with `LeaseGranted` or `LeaseRefused`.
    AcquireLease {
        /// The slot that the bytes are for.
        slot: SlotKey,
        /// The model that the bytes are for.
        model: ModelId,
        /// The bytes by device; `auto` is never among the devices.
        parts: Vec<(DeviceId, ByteCount)>,
        /// The priority of the request that caused the load.
        priority: Priority,
        /// Whether a more important request may preempt the lease.
        yields: bool,
    },
    /// Take or keep a place in the ledger's queue for a model, before room is made for it. Later requests then do not
    /// take what becomes free. The `AcquireLease` of the model takes the place with it.
    AwaitLease {
        /// The model that takes the place.
        model: ModelId,
        /// The bytes by device.
        parts: Vec<(DeviceId, ByteCount)>,
        /// The priority of the waiting request.
        priority: Priority,
        /// Whether less important leases that allow it are revoked.
        preempt: bool,
    },
    /// Leave the ledger's queue.
    CancelLease {
        /// The model whose place in the queue is cancelled.
        model: ModelId,
    },
    /// Start the worker behind its gate. The shell answers with `WorkerStarted`, then `WorkerReady` or `WorkerExited`.
    Spawn {
        /// The slot to fill.
        slot: SlotKey,
        /// The model to load.
        model: ModelId,
        /// The bytes by device; `auto` is never among the devices. More than one device is a split (RC-22).
        parts: Vec<(DeviceId, ByteCount)>,
        /// The context to serve, if a load named another one than the manifest.
        context: Option<u64>,
        /// Options that the load gives the model's engine.
        engine: EngineOptions,
        /// Whether the model's layers are streamed to fit into these parts, and through how large a window.
        residency: Residency,
    },
    /// End the worker: SIGTERM, grace, SIGKILL, wait; answer with `WorkerExited`.
    Stop {
        /// The slot of the worker.
        slot: SlotKey,
        /// Whether its prefixes may be parked first (EN-3): its end may take a moment longer then.
        parks: bool,
        /// The model that is loaded in its place, whose own parked prefixes are wanted next.
        successor: Option<ModelId>,
    },
    /// Release the lease, with the evidence that the processes are gone. The shell answers with `LeaseReleased`.
    ReleaseLease {
        /// The slot whose bytes are released.
        slot: SlotKey,
    },
    /// Tell the worker to compute with these threads from its next step on (FA-5). No event follows.
    ShareCores {
        /// The slot of the worker.
        slot: SlotKey,
        /// The worker's threads, and their priority.
        share: CpuShare,
    },
    /// Send the request to this worker now; answer with `Finished`.
    Dispatch {
        /// The request to send.
        request: RequestId,
        /// The slot that serves the request.
        slot: SlotKey,
        /// The request's priority, after the limits of its client.
        priority: Priority,
        /// The time the request waited in the queue.
        queued: Duration,
        /// The part of that time in which a load it caused or shared was running.
        loading: Duration,
        /// The rung of the request's ladder that was chosen, and why.
        rung: RungChoice,
    },
    /// Send the request to this cloud provider now; answer with `Finished` or `RungFailed`.
    DispatchCloud {
        /// The request to send.
        request: RequestId,
        /// The provider's name.
        provider: String,
        /// The name of the provider's model.
        model: String,
        /// The time the request waited in the queue.
        queued: Duration,
        /// The rung of the request's ladder that was chosen, and why.
        rung: RungChoice,
    },
    /// Remove a model that a client named by its path and that is unused, unless it was named again since.
    ForgetModel {
        /// The model's name.
        model: ModelId,
        /// The number of times the model had been named ([`ModelDescription::named`](crate::ModelDescription::named)).
        named: u64,
    },
    /// Store a learned footprint for the next start of the process ([`Event::Footprints`](crate::Event::Footprints)).
    Learned(Footprint),
    /// The operator's order was carried out.
    Done {
        /// The caller's id.
        request: RequestId,
    },
    /// Answer this request with an error, as its final answer.
    Refuse {
        /// The request to refuse.
        request: RequestId,
        /// The error that the client gets.
        error: Refusal,
    },
    /// End a dispatched request with an error, as its final answer; report its end with `Finished`.
    Recall {
        /// The request to end.
        request: RequestId,
        /// The error that the client gets.
        error: Refusal,
    },
    /// After `Drain`, all workers are stopped and their leases released: the process may end.
    Drained,
}
