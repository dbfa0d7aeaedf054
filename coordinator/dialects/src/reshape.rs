//! Translation of an answer from one API's shape into another's.

use bytes::Bytes;

use crate::error::{DialectError, DialectFault};

/// Identity of an answer, which every shape repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The answer's id, such as `chatcmpl-…`.
    pub id: String,
    /// The model's name in the answer.
    pub model: String,
    /// The time of the answer, in seconds since 1970.
    pub created: u64,
}

/// Turns one answer into another shape, whole or piece by piece. One value serves one answer.
pub trait Reshape: Send {
    /// Translates a whole answer. A `status` of 400 or more marks `body` as an error of the other side, which is
    /// translated as well. A success whose body lacks the other side's shape is an error.
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, DialectError>;

    /// Translates the next piece of a stream; empty while no event is complete.
    fn piece(&mut self, bytes: &[u8]) -> Bytes;

    /// The bytes that close the stream, once the other side has ended it.
    fn end(&mut self) -> Bytes;

    /// The error that ends the stream behind the last bytes of `piece` or `end`. It is returned once.
    fn failure(&mut self) -> Option<DialectError> {
        None
    }

    /// Whether a whole answer is parsed into a document, which takes many times its memory.
    fn is_document(&self) -> bool {
        true
    }

    /// Tokens of prompt and answer, for translations that count them independently of the usage in the client's answer.
    fn tokens(&self) -> Option<(u64, u64)> {
        None
    }

    /// Tokens of the prompt that the other side had in its cache, where [`Self::tokens`] has its counts.
    fn cached_tokens(&self) -> Option<u64> {
        None
    }
}

/// The error for a backend's answer that has no usable form; `what` describes the fault.
pub fn nonsense(what: impl std::fmt::Display) -> DialectError {
    let message = format!("the backend's answer cannot be used: {what}");
    DialectError::new(DialectFault::UnusableAnswer, message)
}
