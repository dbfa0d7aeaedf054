//! Orders of callers to the scheduler, each with its principal. Reports arrive as [`Event`]s, which cannot order
//! anything.

use model_boss_protocol::{DeviceId, ModelId, Priority, RequestId};

use crate::{Event, LoadOptions, Principal, Submission};

/// An order to the scheduler. The shell makes one only from a permission.
#[derive(Clone, Debug)]
pub enum Order {
    /// A client's request for inference.
    Submit(Submission),
    /// Load a model (`request` is answered with `Done` or `Refuse`). A client's load has the client's priority and
    /// limits. It does not end the backoff of a failed model.
    Load {
        /// The caller's id, from the same number space as inference requests.
        request: RequestId,
        /// The caller's principal.
        by: Principal,
        /// The model to load.
        model: ModelId,
        /// Options that differ from the manifest.
        options: Box<LoadOptions>,
    },
    /// Move a loaded model (DM-5): a second copy is loaded there and takes over, and the old copy drains. The order is
    /// answered with `Done` at the takeover, or with `Refuse` while the old copy keeps serving. A disconnect of the
    /// caller does not cancel it.
    Move {
        /// The caller's id.
        request: RequestId,
        /// The caller's principal.
        by: Principal,
        /// The model to move.
        model: ModelId,
        /// The device to move to.
        device: DeviceId,
        /// Whether other models may be evicted for the second copy (RC-18).
        evict: bool,
        /// The priority of the move.
        priority: Priority,
    },
    /// Mark the loaded copy of a model as out of date (BC-5): it stops when idle, and the next load is a new one.
    Invalidate {
        /// The caller's id.
        request: RequestId,
        /// The model to mark.
        model: ModelId,
    },
    /// Pin or unpin a model until the process ends.
    Pin {
        /// The caller's id.
        request: RequestId,
        /// The model to pin.
        model: ModelId,
        /// The pin in place of the manifest's; `None` restores the manifest's.
        pinned: Option<bool>,
    },
    /// Close a device to loads and unload its models (RC-30). The order is answered with `Done` when the device is
    /// empty.
    FreeDevice {
        /// The caller's id.
        request: RequestId,
        /// The device to free.
        device: DeviceId,
    },
    /// Open a freed device to loads again.
    OpenDevice {
        /// The caller's id.
        request: RequestId,
        /// The device to open.
        device: DeviceId,
    },
    /// Cancel a waiting or a running request (OP-2). A client's order cancels only requests of that client.
    CancelRequest {
        /// The caller's id.
        request: RequestId,
        /// The caller's principal.
        by: Principal,
        /// The request to cancel.
        target: RequestId,
    },
    /// Unload a model. A client's order ends only its own use: a pinned model stays, and one that others use is
    /// unloaded after their use (RC-8).
    Unload {
        /// The caller's id.
        request: RequestId,
        /// The caller's principal.
        by: Principal,
        /// The model to unload; all when absent.
        model: Option<ModelId>,
    },
}

/// An input of the scheduler.
#[derive(Clone, Debug)]
pub enum Input {
    /// A report of something that happened.
    Event(Event),
    /// An order of a caller.
    Order(Order),
}

impl From<Event> for Input {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

impl From<Order> for Input {
    fn from(order: Order) -> Self {
        Self::Order(order)
    }
}
