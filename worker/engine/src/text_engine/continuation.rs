//! The state of a sequence after a step.

use crate::activity::End;

/// The state of a sequence after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Continuation {
    Continues,
    /// It goes on once its oldest tokens are forgotten.
    NeedsShift,
    Ended(End),
}
