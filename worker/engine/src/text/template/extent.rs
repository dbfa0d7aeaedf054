//! The depth and the weight of values, and their limits.

use super::fault::{RenderFault, RenderResult};

/// How much there is inside of a value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ValueExtent {
    /// The levels of values in one another.
    pub(super) depth: usize,
    /// The values that a walk through it meets, each as often as it is met, and a unit for 64 bytes of text.
    pub(super) weight: u64,
}

/// Deeper values are refused: Python could not print them, and nothing here could drop them.
const DEEPEST: usize = 500;

/// Larger values are refused. Lists that share their items may hold more than any walk through them could end with.
const HEAVIEST: u64 = 1 << 24;

impl ValueExtent {
    /// The extent of a value that holds these.
    pub(super) fn around(held: impl Iterator<Item = Self>) -> RenderResult<Self> {
        held.fold(Self { depth: 1, weight: 1 }, Self::with).checked()
    }

    pub(super) fn with(self, held: Self) -> Self {
        Self { depth: self.depth.max(held.depth + 1), weight: self.weight.saturating_add(held.weight) }
    }

    pub(super) fn checked(self) -> RenderResult<Self> {
        match self {
            Self { depth, .. } if depth > DEEPEST => Err(RenderFault::Limit("nests values more than 500 deep")),
            Self { weight, .. } if weight > HEAVIEST => {
                Err(RenderFault::Limit("makes a value of more than 16 million parts"))
            }
            fitting => Ok(fitting),
        }
    }
}
