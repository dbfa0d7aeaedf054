//! The interface of matrices that the CPU multiplies in their stored form, and the activations that they are multiplied
//! with.

use crate::activations::Activations;
use crate::rows::add_to_rows;

/// The name of the order in which a model's file has its bytes: row by row.
pub const ROWS: &str = "rows";

/// The interface of all layouts that weights have outside of tensors. Each is a matrix `[outs, depth]` that is
/// multiplied in its stored form. A row's result does not depend on the other rows of the call.
pub trait MatrixKernel: Send + Sync {
    /// Rows of the matrix: elements of a product.
    fn outs(&self) -> usize;

    /// Columns of the matrix: elements of an input.
    fn depth(&self) -> usize;

    /// Bytes of memory that the matrix holds.
    fn bytes(&self) -> u64;

    /// Whether products round activations to 8 bits.
    fn rounds(&self) -> bool {
        false
    }

    /// `x Wᵀ`: `[rows, depth]` → `[rows, outs]`.
    fn multiply(&self, x: &ProductInput<'_>) -> Vec<f32>;

    /// The same on a bias `[outs]`, which each row of results begins with.
    fn multiply_onto(&self, x: &ProductInput<'_>, bias: &[f32]) -> Vec<f32> {
        let mut y = self.multiply(x);
        add_to_rows(&mut y, bias);
        y
    }

    /// The product for an input that no other matrix shares.
    fn product(&self, x: &[f32], rows: usize) -> Vec<f32> {
        self.multiply(&ProductInput::new(x, rows, self.rounds()))
    }

    /// The rows with these numbers as f32, one after another. Numbers are below [`Self::outs`].
    fn rows(&self, rows: &[u32]) -> Vec<f32>;

    /// All elements row by row, of a matrix that holds them so.
    fn floats(&self) -> Option<StoredFloats<'_>> {
        None
    }
}

/// The bytes of floats as files have them.
#[derive(Clone, Copy, Debug)]
pub enum StoredFloats<'a> {
    /// Of 32 bits.
    F32(&'a [u8]),
    /// Of 16 bits, five of them an exponent.
    F16(&'a [u8]),
    /// Of 16 bits, eight of them an exponent.
    Bf16(&'a [u8]),
}

/// Rows of activations that are the input of products.
pub struct ProductInput<'a> {
    /// The activations `[rows, depth]`.
    pub(crate) values: &'a [f32],
    pub(crate) rows: usize,
    /// The activations in 8 bits, if a matrix requested them.
    pub(crate) rounded: Option<Activations>,
}

impl<'a> ProductInput<'a> {
    /// Rows `[rows, depth]`; `rounded` says whether any of the matrices rounds its input ([`MatrixKernel::rounds`]).
    pub fn new(values: &'a [f32], rows: usize, rounded: bool) -> Self {
        let rounded =
            (rounded && !values.is_empty()).then(|| Activations::quantise(values, rows, values.len() / rows.max(1)));
        Self { values, rows, rounded }
    }
}
