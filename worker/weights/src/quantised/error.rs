//! Reasons why a quantised matrix cannot be used.

use crate::dtype::Dtype;

/// The reason why a quantised matrix cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantisedError {
    /// A part is missing.
    #[error("the quantised matrix lacks the tensor `{0}`")]
    Missing(String),
    /// A part has the wrong type.
    #[error("`{name}` holds {found}, and {wanted} is expected")]
    Type {
        /// The tensor.
        name: String,
        /// Its type.
        found: Dtype,
        /// The types that would do.
        wanted: &'static str,
    },
    /// A part has the wrong shape.
    #[error("`{name}` has the shape {found:?}, and {wanted:?} is expected")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape it should have.
        wanted: Vec<usize>,
    },
    /// Numbers of the matrix do not fit each other or what is supported.
    #[error("`{name}` cannot be used: {why}")]
    Unusable {
        /// The matrix or the tensor.
        name: String,
        /// The cause.
        why: String,
    },
}
