//! The contract between the batching engine and a decoder, which computes logits. It fits on one page: all operations
//! of a decoder are here.
//!
//! A decoder knows blocks of keys and values, no sequences. The engine has the table of each sequence's blocks, and so
//! shares blocks between sequences, drops and reuses them (`crate::kv`).
//!
//! Some models also have a state of each sequence, which every token changes. A decoder keeps states beside blocks, at
//! the ends of some prefixes only: a sequence can go on only from these ([`Decoder::resumable`]).

use std::fmt;
use std::sync::Arc;

use model_boss_images::SightFacts;

use crate::adapter::{AdapterLoader, LoadedAdapter};
use crate::images::{ImageTiles, SeenRows, StepImage};
use crate::places::PlaceUse;
use crate::residency::Monitor;

/// A block of keys and values inside a decoder: [`BLOCK_TOKENS`](crate::BLOCK_TOKENS) tokens in all layers. The engine
/// decides which block holds which tokens; numbers are dense, from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// Facts about a decoder that the engine plans by.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderInfo {
    /// Length of a row of logits.
    pub vocab_size: usize,
    /// Longest sequence the decoder can hold, in tokens.
    pub context_length: usize,
    /// Bytes of keys and values for one token of one sequence.
    pub kv_bytes_per_token: usize,
    /// Bytes of a sequence's state beside its blocks; 0 for models that have none.
    pub state_bytes: usize,
    /// The most blocks that there is memory for; `usize::MAX` without a limit.
    pub kv_blocks: usize,
    /// Bytes of weights held.
    pub weight_bytes: u64,
    /// The most tokens of a step that there is memory for; 0 if the decoder sets no size.
    pub step_rows: usize,
    /// Bytes that a step takes on each device beside weights, keys and values, at most.
    pub workspace_bytes: u64,
    /// Whether a token's logits are the same to the bit whatever other tokens the step has. Only then drafts change no
    /// answer.
    pub same_in_any_step: bool,
    /// How the model gets images; none for a model that reads text only.
    pub sight: Option<Arc<SightFacts>>,
    /// Warnings about the model's files for the log; usually none.
    pub warnings: Vec<String>,
}

/// The tokens that one sequence brings to a step.
#[derive(Clone, Debug)]
pub struct DecoderStep<'a> {
    /// The sequence's blocks in the order of its tokens, with room for the new ones. Other sequences may have the same
    /// blocks, but for those that the step writes.
    pub blocks: &'a [BlockId],
    /// Tokens that the blocks hold.
    pub past: usize,
    /// The tokens that the sequence is known to have, those of later steps included: the whole prompt, of a prompt in
    /// pieces. At least as many as behind this step. All tokens of a sequence are computed by one class of lengths.
    pub length: usize,
    /// The first tokens that the sequence shares with an earlier one. Others may begin with them too, so that a state
    /// behind them is worth keeping.
    pub shared: usize,
    /// The new tokens: a piece of prompt, or the one token sampled last. Never empty.
    pub tokens: &'a [u32],
    /// The images of the sequence, in their order, those before and behind the step included. The rows of those that
    /// the step has tokens of are there.
    pub images: &'a [StepImage],
    /// The adapter that the sequence is computed with, from its first token on; the model alone without one.
    pub adapter: Option<&'a Arc<LoadedAdapter>>,
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

    /// Writes each sequence's new keys and values behind its past and computes the requested logits. The result has one
    /// entry per input, in order. Each holds `0`, `1` or `tokens.len()` rows of `vocab_size` logits, row after row.
    /// Memory for blocks is taken when they are first written.
    ///
    /// `stop` is asked between layers, or as often as a decoder can: once it says yes, the step may end early with
    /// [`DecoderError::Interrupted`].
    ///
    /// On an error the past of each sequence is as it was.
    fn forward_until(
        &mut self,
        batch: &[DecoderStep<'_>],
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Vec<Vec<f32>>, DecoderError>;

    /// As [`Decoder::forward_until`], to the end.
    fn forward(&mut self, batch: &[DecoderStep<'_>]) -> Result<Vec<Vec<f32>>, DecoderError> {
        self.forward_until(batch, &|| false)
    }

    /// The rows of an image, which take as many places as the model's [`SightFacts`] says. `stop` is asked between
    /// layers: once it says yes, this may end early with [`DecoderError::Interrupted`].
    fn see(&mut self, _picture: &ImageTiles, _stop: &(dyn Fn() -> bool + Sync)) -> Result<SeenRows, DecoderError> {
        Err(DecoderError::Step("this model sees no images".to_owned()))
    }

    /// The class of sequences of this length. What blocks hold is of no use to a longer sequence of another class: it
    /// is computed again from the beginning. Models whose positions do not depend on the length have one class, 0.
    /// Classes beyond 1 have one length each: what is computed for them is not kept for other sequences.
    fn length_class(&self, _length: usize) -> usize {
        0
    }

    /// The most of the first `tokens` tokens in these blocks that a sequence can go on behind. Models without states go
    /// on behind any token.
    fn resumable(&self, _blocks: &[BlockId], tokens: usize) -> usize {
        tokens
    }

    /// The tokens that `from` holds are in `to` as well, which is used in its place from now on: states move there.
    fn merge(&mut self, _from: BlockId, _to: BlockId) {}

    /// Copies all that a block holds to another one.
    fn copy(&mut self, from: BlockId, to: BlockId) -> Result<(), DecoderError>;

    /// Blocks whose contents are not needed any more: their memory may be given back.
    fn free(&mut self, blocks: &[BlockId]);

    /// A text of everything that the contents of a block depend on beside its tokens, its adapter and the model's
    /// files: shapes, types, kinds of memory, rules of positions. None for a decoder whose blocks cannot be taken out.
    fn block_layout(&self) -> Option<String> {
        None
    }

    /// Appends all that a block holds, states included. Only a decoder with the same [`Decoder::block_layout`] and
    /// files can read it.
    fn read_block(&mut self, _block: BlockId, _contents: &mut Vec<u8>) -> Result<(), DecoderError> {
        Err(DecoderError::Step("blocks cannot be taken out of this decoder".to_owned()))
    }

    /// Writes what [`Decoder::read_block`] gave into a block that holds nothing. On an error it holds nothing still.
    fn write_block(&mut self, _block: BlockId, _contents: &[u8]) -> Result<(), DecoderError> {
        Err(DecoderError::Step("blocks cannot be put into this decoder".to_owned()))
    }

    /// Makes adapters for this model, on other threads too; none for a decoder that takes no adapters.
    fn adapter_loader(&self) -> Option<Arc<dyn AdapterLoader>> {
        None
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
    /// No memory for more blocks; those that hold something are unharmed.
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
