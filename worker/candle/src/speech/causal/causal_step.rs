//! One step of a stack of layers: angles of its moments, and the keys that each sees.

use candle_core::Tensor;

/// The parts of a step that its layers share.
pub(super) struct CausalStep {
    /// `[moments, planes]` each.
    pub(super) cos: Tensor,
    pub(super) sin: Tensor,
    /// The numbers that are added to scores, `[moments, keys]`: 0, or negative infinity where a moment sees no key.
    /// None where each sees all.
    pub(super) mask: Option<Tensor>,
    /// Keys that are kept for the moments behind the step.
    pub(super) kept: usize,
}
