//! A matrix that the CPU computes with as it is stored, and the rows of activations that it is multiplied with.

use crate::kernels::activations::Activations;

/// The name of the order in which a model's file has its bytes.
pub(crate) const ROWS: &str = "rows";

/// The interface of all layouts that weights have outside of tensors: a matrix `[outs, depth]`, computed with as it is
/// stored. A row's result does not depend on the other rows of the call.
pub(crate) trait MatrixKernel: Send + Sync {
    /// Rows.
    fn outs(&self) -> usize;

    /// Columns.
    fn depth(&self) -> usize;

    /// Bytes held.
    fn bytes(&self) -> u64;

    /// Whether products are of activations in 8 bits.
    fn rounds(&self) -> bool {
        false
    }

    /// `x Wᵀ`: `[rows, depth]` → `[rows, outs]`.
    fn multiply(&self, x: &ProductInput<'_>) -> Vec<f32>;

    /// The product for an input that no other matrix shares.
    fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
        self.multiply(&ProductInput::new(x, rows, self.rounds()))
    }

    /// The rows of those numbers as f32, one behind the other. Numbers are below [`Self::outs`].
    fn rows(&self, rows: &[u32]) -> Vec<f32>;
}

/// Rows of activations on their way into products.
pub(crate) struct ProductInput<'a> {
    /// `[rows, depth]`.
    pub(crate) values: &'a [f32],
    pub(crate) rows: usize,
    /// The activations in 8 bits, where they were requested.
    pub(crate) rounded: Option<Activations>,
}

impl<'a> ProductInput<'a> {
    pub(crate) fn new(values: &'a [f32], rows: usize, rounded: bool) -> Self {
        let rounded =
            (rounded && !values.is_empty()).then(|| Activations::quantise(values, rows, values.len() / rows.max(1)));
        Self { values, rows, rounded }
    }
}
