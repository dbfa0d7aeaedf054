//! The place of a client in the order of the queue.

/// A client's index in [`Clients`](super::Clients). It is reused for another client after this one is forgotten,
/// which happens only while none of its requests waits or runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClientIndex(u32);

impl ClientIndex {
    pub(crate) fn new(index: usize) -> Self {
        Self(u32::try_from(index).unwrap_or(u32::MAX))
    }

    pub(crate) const fn get(self) -> usize {
        self.0 as usize
    }
}

/// The properties of a client that the order of the queue depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientStanding {
    /// The service that the client got, in whole steps. It never falls while the client waits.
    pub(crate) service: u64,
    /// Whether the client's limits let it start no request now: its requests keep their places and are skipped.
    pub(crate) held_back: bool,
}
