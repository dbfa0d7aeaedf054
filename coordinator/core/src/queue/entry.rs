//! The entries of the queue: what waits, and what is told and asked about it. Knows no order beyond that of two keys.

use model_boss_protocol::{ByteCount, KeepAlive, Priority, RequestId};

use crate::Moment;
use crate::catalog::ModelIndex;
use crate::client::ClientIndex;
use crate::ladder::Climb;

/// A place in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival {
    /// Rises with the moment, so it decides alone.
    pub(super) number: u64,
    pub(crate) at: Moment,
}

/// RC-4's order without `warm_bump`: smaller goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OrderKey {
    pub(crate) effective: Priority,
    /// The service that its client got, in whole steps.
    pub(crate) service: u64,
    pub(crate) arrival: Arrival,
}

/// The purpose of a waiting caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be dispatched.
    Inference,
    /// That the model is loaded; answered with `Done`.
    Load,
}

/// A waiting request.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) id: RequestId,
    pub(crate) model: ModelIndex,
    pub(crate) purpose: Purpose,
    pub(crate) client: ClientIndex,
    pub(crate) priority: Priority,
    pub(crate) arrival: Arrival,
    pub(crate) deadline: Option<Moment>,
    pub(crate) keep_alive: Option<KeepAlive>,
    /// How often it was tried again after its worker died.
    pub(crate) retries: u32,
    /// Where else it could go; `None` for a request that names one model of this machine.
    pub(crate) climb: Option<Box<Climb>>,
}

/// The first of a (model, priority): the one that stands for all of them when room is sought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) key: OrderKey,
    pub(crate) id: RequestId,
    pub(crate) base: Priority,
}

impl Head {
    /// The head of a request that somebody thinks of: the last to arrive, of a client that got nothing yet.
    pub(crate) fn imagined(id: RequestId, base: Priority, now: Moment) -> Self {
        let arrival = Arrival { at: now, number: u64::MAX };
        let key = OrderKey { effective: base, service: 0, arrival };
        Self { key, id, base }
    }
}

/// Where a model is, as far as the order cares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Residency {
    /// It needs a load: its waiting requests are candidates for one.
    #[default]
    Absent,
    /// A load is under way.
    Coming,
    /// It is resident: no bump (RC-4).
    Resident,
}

/// Requests that are alike for placement: where one finds no room and no right to evict, those do not that wait with the same
/// or a less important base priority behind it and need as much or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Likeness {
    /// Models with the same places to go.
    pub(crate) family: u32,
    /// Their base priority.
    pub(crate) base: Priority,
    /// The memory that their model needs, in steps of a sixteenth of an octave.
    pub(crate) need: u16,
}

impl Likeness {
    /// The step of so many bytes.
    pub(crate) fn step_of(bytes: ByteCount) -> u16 {
        // In whole MiB; the logarithm of 2^44 MiB is no more than 44 octaves.
        let mib = (bytes.0 >> 20).max(1) as f64;
        (mib.log2() * 16.0) as u16
    }

    /// Whether a look at one of these spares a look at one of those.
    pub(crate) fn covers(self, other: Self) -> bool {
        self.family == other.family && self.base <= other.base && self.need <= other.need
    }
}

/// A model that wants a load, by its first request.
pub(crate) type Wanting = (OrderKey, ModelIndex);

/// The queue is at a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueFull {
    ForModel {
        limit: usize,
    },
    /// For all providers together.
    Elsewhere {
        limit: usize,
    },
    InAll {
        limit: usize,
    },
}

/// How many may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) per_model: usize,
    pub(crate) in_all: usize,
}
