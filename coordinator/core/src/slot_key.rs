//! The name of one filling of a slot.

use model_boss_protocol::{Generation, SlotId};

/// A slot in one of its generations. It names one worker, its process and its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotKey {
    /// The slot.
    pub id: SlotId,
    /// The number of times that the slot was filled.
    pub generation: Generation,
}
