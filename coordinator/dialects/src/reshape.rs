//! An answer on its way from one shape into another.

use bytes::Bytes;

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
    /// A whole answer. Errors of the other side come through here too: what has `status` 400 or more is one.
    fn whole(&mut self, status: u16, body: &[u8]) -> Bytes;

    /// The next piece of a stream; may be empty when nothing is complete.
    fn piece(&mut self, bytes: &[u8]) -> Bytes;

    /// What is left to say when the stream has ended by itself.
    fn end(&mut self) -> Bytes;

    /// Tokens of prompt and answer, where the other side tells them apart from what is passed on.
    fn tokens(&self) -> Option<(u64, u64)> {
        None
    }
}
