//! The contract between the batching engine and a decoder, which computes logits. It fits on one page: all operations
//! of a decoder are here.

use std::fmt;
use std::sync::Arc;

use crate::places::PlaceUse;
use crate::residency::Monitor;

/// A sequence's keys and values inside a decoder. Opened and closed by the engine; never reused while open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvSlot(pub u32);

/// Facts about a decoder that the engine plans by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderInfo {
    /// Length of a row of logits.
    pub vocab_size: usize,
    /// Longest sequence the decoder can hold, in tokens.
    pub context_length: usize,
    /// Bytes of keys and values for one token of one sequence.
    pub kv_bytes_per_token: usize,
    /// Bytes of weights held.
    pub weight_bytes: u64,
}

/// The tokens that one sequence brings to a step.
#[derive(Clone, Debug)]
pub struct SequenceStep<'a> {
    /// The sequence to continue.
    pub kv: KvSlot,
    /// The new tokens: a piece of prompt, or the one token sampled last. Never empty.
    pub tokens: &'a [u32],
    /// The rows of logits that the engine will read.
    pub logits: Logits,
}

/// The rows of logits that a step returns for a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// None: a piece of prompt that is not the last.
    None,
    /// The row behind the last token.
    Last,
    /// A row behind every token (prompt log-probabilities).
    All,
}

impl Logits {
    /// Rows given back for `tokens` new tokens.
    pub const fn rows(self, tokens: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Last => 1,
            Self::All => tokens,
        }
    }
}

/// Computes logits for several sequences at once. Used by the engine's thread only.
pub trait Decoder: Send {
    /// The facts that do not change.
    fn info(&self) -> &DecoderInfo;

    /// A new, empty sequence that will hold at most `capacity` tokens.
    fn open(&mut self, capacity: usize) -> Result<KvSlot, DecoderError>;

    /// Forgets a sequence and frees its memory. Closing twice is harmless.
    fn close(&mut self, kv: KvSlot);

    /// Tokens the sequence holds.
    fn len(&self, kv: KvSlot) -> usize;

    /// Keeps the first `len` tokens of a sequence and drops the rest.
    fn truncate(&mut self, kv: KvSlot, len: usize);

    /// Appends each sequence's tokens and computes the requested logits. The result has one entry per input, in
    /// order. Each holds `0`, `1` or `tokens.len()` rows of `vocab_size` logits, row after row.
    ///
    /// `stop` is asked between layers, or as often as a decoder can: once it says yes, the step may end early with
    /// [`DecoderError::Interrupted`].
    ///
    /// On an error no sequence's length has changed.
    fn forward_until(
        &mut self,
        batch: &[SequenceStep<'_>],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Vec<f32>>, DecoderError>;

    /// As [`Decoder::forward_until`], to the end.
    fn forward(&mut self, batch: &[SequenceStep<'_>]) -> Result<Vec<Vec<f32>>, DecoderError> {
        self.forward_until(batch, &|| false)
    }

    /// The report on streamed layers; none where all layers are resident.
    fn monitor(&self) -> Option<Arc<Monitor>> {
        None
    }

    /// The devices of its parts, in the order of the layers; empty where they are unknown.
    fn places(&self) -> Arc<[PlaceUse]> {
        Arc::new([])
    }
}

/// The reason why a decoder failed.
#[derive(Debug)]
pub enum DecoderError {
    /// No memory for another sequence; the ones that run are unharmed.
    OutOfMemory(String),
    /// This step failed; the decoder still works.
    Step(String),
    /// The device is gone; the process has to end.
    Fatal(String),
    /// Every request of the step was cancelled.
    Interrupted,
}

impl fmt::Display for DecoderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(what) => write!(f, "out of memory: {what}"),
            Self::Step(what) => write!(f, "the step failed: {what}"),
            Self::Fatal(what) => write!(f, "the device failed: {what}"),
            Self::Interrupted => f.write_str("nobody waits for the step any more"),
        }
    }
}

impl std::error::Error for DecoderError {}
