//! Leaving the batch and waiting again, and what a decoder's answer means for it. Knows sequences, no steps.

use std::collections::VecDeque;

use crate::decoder::{Decoder, DecoderError, DecoderStep};
use crate::drafts::DraftModel;
use crate::engine::{EngineError, WorkError};
use crate::kv::{BLOCK_TOKENS, BlockTable, KvCache};
use model_boss_protocol::Priority;

use super::sequence::RunningSequence;

/// Takes a sequence's blocks back, and those that a draft model has for it; what they hold can be found from now on.
pub(super) fn release((kv, drafts): (&mut KvCache, &mut Option<DraftModel>), sequence: &mut RunningSequence) {
    if let Some(drafts) = drafts {
        drafts.forget(sequence.id(), sequence.tokens());
    }
    if let Some(table) = sequence.take_table() {
        kv.release(table, sequence.keys());
    }
}

/// Whether a sequence is bulk work, which gives way to everything else.
pub(super) fn is_bulk(sequence: &RunningSequence) -> bool {
    sequence.rank().0 >= Priority::BATCH
}

/// Puts a sequence without blocks into the queue, behind those that are more important or came earlier.
pub(super) fn wait_in_turn(waiting: &mut VecDeque<RunningSequence>, sequence: RunningSequence) {
    let place = waiting.partition_point(|other| other.rank() < sequence.rank());
    waiting.insert(place, sequence);
}

/// Whether a sequence in the batch computes blocks at this moment that another one waits for: it begins with the same
/// tokens. The other one is let in once they are there, in place of computing them twice.
pub(super) fn computes_prefix_of(running: &RunningSequence, waiting: &RunningSequence) -> bool {
    if !running.is_in_prompt() || running.salt().is_none() || running.salt() != waiting.salt() {
        return false;
    }
    let whole_blocks = |tokens: usize| tokens / BLOCK_TOKENS * BLOCK_TOKENS;
    let same = running.keys().iter().zip(waiting.keys()).take_while(|(a, b)| a == b).count();
    whole_blocks(running.fed()) < whole_blocks(same.min(waiting.keys().len().saturating_sub(1)))
}

/// The error that ends the process, if this is one.
pub(super) fn fatal(error: &DecoderError) -> Result<(), EngineError> {
    match error {
        DecoderError::Fatal(why) => Err(EngineError::DeviceLost(why.clone())),
        DecoderError::OutOfMemory(_) | DecoderError::Step(_) | DecoderError::Interrupted => Ok(()),
    }
}

impl From<DecoderError> for WorkError {
    fn from(error: DecoderError) -> Self {
        match error {
            DecoderError::OutOfMemory(why) => Self::OutOfMemory(why),
            DecoderError::Step(why) | DecoderError::Fatal(why) => Self::Step(why),
            DecoderError::Interrupted => Self::Step(error.to_string()),
        }
    }
}

/// Whether the decoder gave what was asked for.
pub(super) fn fits(batch: &[DecoderStep<'_>], rows: &[Vec<f32>], vocab_size: usize) -> bool {
    batch.len() == rows.len()
        && batch.iter().zip(rows).all(|(step, rows)| rows.len() == step.logits.rows(step.tokens.len()) * vocab_size)
}

/// Whether a decoder has the state behind a table's tokens, if it needs one.
pub(super) fn can_go_on(decoder: &dyn Decoder, table: &BlockTable) -> bool {
    decoder.resumable(table.blocks(), table.len()) == table.len()
}
