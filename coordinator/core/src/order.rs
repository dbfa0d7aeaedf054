//! Orders: what callers ask of the scheduler, each with who asks. News comes as [`Event`]s, which cannot ask for anything.

use model_boss_protocol::{DeviceId, ModelId, Priority, RequestId};

use crate::{Event, LoadOptions, Principal, Submission};

/// What is asked of the scheduler. The shell makes one only from a permission.
#[derive(Clone, Debug)]
pub enum Order {
    /// A client asks for inference.
    Submit(Submission),
    /// A model is to be loaded (`request` is answered with `Done` or `Refuse`). A client's load has the client's priority
    /// and limits, and does not wake a model that is left alone after a failure.
    Load {
        /// Names the caller; shares the number space of inference requests.
        request: RequestId,
        /// Who asks.
        by: Principal,
        /// Which model.
        model: ModelId,
        /// How, where it differs from the manifest.
        options: Box<LoadOptions>,
    },
    /// A loaded model is to be moved (DM-5): loaded there, swapped, the old copy drained. Answered with `Done` at the swap,
    /// or with `Refuse` while the old copy serves on. A caller that goes away does not cancel it.
    Move {
        /// Names the caller.
        request: RequestId,
        /// Who asks.
        by: Principal,
        /// Which model.
        model: ModelId,
        /// Where to.
        device: DeviceId,
        /// Whether other models may be evicted for the second copy (RC-18).
        evict: bool,
        /// How important it is.
        priority: Priority,
    },
    /// The loaded copy of a model is stale (BC-5): it leaves when idle, and the next load is a new one.
    Invalidate {
        /// Names the caller.
        request: RequestId,
        /// Which model.
        model: ModelId,
    },
    /// A model is pinned or unpinned until the process ends.
    Pin {
        /// Names the caller.
        request: RequestId,
        /// Which model.
        model: ModelId,
        /// In place of what the manifest says; `None` gives the word back to the manifest.
        pinned: Option<bool>,
    },
    /// A device is wanted for something else (RC-30): it is closed to loads and its models leave. Answered with `Done` when
    /// it is empty.
    FreeDevice {
        /// Names the caller.
        request: RequestId,
        /// Which device.
        device: DeviceId,
    },
    /// The device may be used again.
    OpenDevice {
        /// Names the caller.
        request: RequestId,
        /// Which device.
        device: DeviceId,
    },
    /// A model is to be unloaded. A client's word ends only its own use: a pinned model stays, and one that others use
    /// leaves when they are done (RC-8).
    Unload {
        /// Names the caller.
        request: RequestId,
        /// Who asks.
        by: Principal,
        /// Which model; all when absent.
        model: Option<ModelId>,
    },
}

/// Everything that the scheduler takes in.
#[derive(Clone, Debug)]
pub enum Input {
    /// Something happened.
    Event(Event),
    /// Something is asked for.
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
