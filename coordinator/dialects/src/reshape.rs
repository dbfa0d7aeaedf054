//! An answer on its way from one shape into another.

use bytes::Bytes;
use model_boss_protocol::{ApiError, ErrorCode};

/// What an answer is stamped with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The answer's id.
    pub id: String,
    /// The model that is said to answer.
    pub model: String,
    /// Seconds since 1970.
    pub created: u64,
}

/// Turns one answer into another shape, whole or piece by piece. One value serves one answer.
pub trait Reshape: Send {
    /// A whole answer. Errors of the other side come through here too: what has `status` 400 or more is one. A success that
    /// is no answer of the other side's shape is an error.
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, ApiError>;

    /// The next piece of a stream; may be empty when nothing is complete.
    fn piece(&mut self, bytes: &[u8]) -> Bytes;

    /// What is left to say when the stream has ended by itself.
    fn end(&mut self) -> Bytes;

    /// Whether a whole answer is taken apart into a document, which takes many times its memory.
    fn is_document(&self) -> bool {
        true
    }

    /// Tokens of prompt and answer, where the other side tells them apart from what is passed on.
    fn tokens(&self) -> Option<(u64, u64)> {
        None
    }
}

/// A backend that answered something that is no answer.
pub fn nonsense(what: impl std::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::BackendError, format!("the backend's answer cannot be used: {what}"))
}
