//! Types of the queue's entries, of their keys, and of the questions about them. The only order here is that of two
//! keys.

use model_boss_protocol::{ByteCount, KeepAlive, Priority, RequestId};

use crate::Moment;
use crate::catalog::ModelIndex;
use crate::client::ClientIndex;
use crate::ladder::Climb;

/// A position in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival {
    /// The position as a number, which rises with the moment. So it decides the order alone.
    pub(super) number: u64,
    pub(crate) at: Moment,
}

/// The key of RC-4's order, without `warm_bump`: the smallest key is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OrderKey {
    pub(crate) effective: Priority,
    /// The service that the request's client got, in whole steps.
    pub(crate) service: u64,
    pub(crate) arrival: Arrival,
}

/// The purpose of a waiting caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The caller waits for the dispatch of its request.
    Inference,
    /// The caller waits for the model's load; answered with `Done`.
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
    /// The amount of work, where it is known.
    pub(crate) work: Option<u64>,
    /// The number of retries after the request's worker died.
    pub(crate) retries: u32,
    /// The other rungs the request could move to; `None` for a request that names one model of this machine.
    pub(crate) climb: Option<Box<Climb>>,
}

/// The first request of a (model, priority), which represents all of them when room is sought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) key: OrderKey,
    pub(crate) id: RequestId,
    pub(crate) base: Priority,
}

impl Head {
    /// The head of a hypothetical request: the last to arrive, of a client without service so far.
    pub(crate) fn imagined(id: RequestId, base: Priority, now: Moment) -> Self {
        let arrival = Arrival { at: now, number: u64::MAX };
        let key = OrderKey { effective: base, service: 0, arrival };
        Self { key, id, base }
    }
}

/// Whether a model is loaded, as far as the order of the queue is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LoadState {
    /// The model needs a load: its waiting requests are candidates for one.
    #[default]
    Absent,
    /// The model is loading.
    Coming,
    /// The model is loaded and needs no load (RC-4).
    Resident,
}

/// A class of models that are alike for placement. When the first of a queue finds neither free memory nor a right to
/// evict, the models after it find none either. Their base priority is the same or less important, and they need as
/// much memory or more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Likeness {
    /// Models with the same possible sites.
    pub(crate) family: u32,
    /// The base priority of the models' requests.
    pub(crate) base: Priority,
    /// The memory that the model needs, in steps of a sixteenth of an octave.
    pub(crate) need: u16,
}

impl Likeness {
    /// The step of [`Self::need`] that a number of bytes belongs to.
    pub(crate) fn step_of(bytes: ByteCount) -> u16 {
        // Bytes are rounded to whole MiB. The logarithm of 2^44 MiB is no more than 44 octaves.
        let mib = (bytes.0 >> 20).max(1) as f64;
        (mib.log2() * 16.0) as u16
    }

    /// Whether a failed placement of `self` implies that `other` would fail too.
    pub(crate) fn covers(self, other: Self) -> bool {
        self.family == other.family && self.base <= other.base && self.need <= other.need
    }
}

/// A model that wants a load, by its first request.
pub(crate) type Wanting = (OrderKey, ModelIndex);

/// The limit of the queue that a request exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueFull {
    ForModel {
        limit: usize,
    },
    /// The limit for all cloud providers together.
    Elsewhere {
        limit: usize,
    },
    InAll {
        limit: usize,
    },
}

/// The numbers of requests that may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) per_model: usize,
    pub(crate) in_all: usize,
}
