//! Orders: what callers ask of the scheduler, each with who asks. News comes as [`Event`]s, which cannot ask for anything.

use model_boss_protocol::{ClientId, DeviceId, ModelId, Priority, RequestId};
use serde::{Serialize, Serializer};

use crate::{Event, LoadOptions, Submission};

/// Who asks. The operator is no client with a certain name, so no client can call itself that.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Principal {
    /// Whoever runs this machine: bound by no client's rules.
    Operator,
    /// A client, by the name it gives.
    Client(ClientId),
}

impl Principal {
    /// The client's name.
    pub fn client(&self) -> Option<&ClientId> {
        match self {
            Self::Operator => None,
            Self::Client(id) => Some(id),
        }
    }

    /// What people read. A client may have the same name as the operator here; [`Principal::kind`] tells them apart.
    pub fn name(&self) -> &str {
        self.client().map_or("operator", ClientId::as_str)
    }

    /// Which of the two it is.
    pub fn kind(&self) -> PrincipalKind {
        match self {
            Self::Operator => PrincipalKind::Operator,
            Self::Client(_) => PrincipalKind::Client,
        }
    }
}

impl From<ClientId> for Principal {
    fn from(client: ClientId) -> Self {
        Self::Client(client)
    }
}

impl Serialize for Principal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// An operator or a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PrincipalKind {
    /// Whoever runs this machine.
    Operator,
    /// Somebody who asks models.
    Client,
}

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
