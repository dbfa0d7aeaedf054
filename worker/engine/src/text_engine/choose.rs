//! The choice of the next token of every sequence of a step.

use rayon::prelude::*;

use super::continuation::Continuation;
use super::sequence::RunningSequence;
use crate::activity::Activity;
use crate::engine::WorkError;
use crate::text::Vocabulary;

/// One result for each running sequence, in order.
pub(super) type StepRows = Vec<Result<Vec<f32>, WorkError>>;

/// Logits of a step that several threads look at: fewer take less time than waking them. In tests, those of two
/// sequences.
const WORTH_SHARING: usize = if cfg!(test) { 1 << 9 } else { 1 << 18 };

/// Lets every sequence take its rows. Those of large vocabularies are shared among threads: a GPU computes a step
/// faster than one thread looks at all logits of a batch.
pub(super) fn choose(
    running: &mut [RunningSequence],
    rows: StepRows,
    shares: &[usize],
    (vocabulary, activity): (&Vocabulary, &Activity),
) -> Vec<Continuation> {
    let logits: usize = rows.iter().flatten().map(Vec::len).sum();
    let advance = |((running, rows), share): ((&mut RunningSequence, _), &usize)| match rows {
        Ok(rows) => running.advance(*share, rows, vocabulary, activity),
        Err(error) => running.fail(error),
    };
    if logits < WORTH_SHARING || running.len() == 1 {
        running.iter_mut().zip(rows).zip(shares).map(advance).collect()
    } else {
        running.par_iter_mut().zip(rows).zip(shares).map(advance).collect()
    }
}
