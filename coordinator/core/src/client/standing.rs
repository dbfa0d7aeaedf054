//! The place of a client in the order of the queue.

/// A client's place in [`Clients`]. Used again for another client when this one is forgotten, which happens only while
/// nothing of it waits or runs.
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

/// A client, as far as the order knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientStanding {
    /// The service that it got, in whole steps. Never falls while the client waits.
    pub(crate) service: u64,
    /// Its rules let it start nothing now: its requests keep their places and are passed over.
    pub(crate) held_back: bool,
}
