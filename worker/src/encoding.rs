//! The engine's thread with an encoder: the texts of all requests in batches, a few of each request in turn, so that
//! one text does not wait for a thousand of another client.

use std::collections::VecDeque;

use model_boss_engine::{DecoderError, EncoderText, EngineError, TextEncoder};
use tokio::sync::{mpsc, oneshot};

use crate::cpu_share::StepThreads;

/// Tokens of a batch. More do not make products faster, and a text that comes alone waits for one batch at most.
const BATCH_TOKENS: usize = 512;

/// The tokens of a text, or of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextTokens {
    pub(crate) tokens: Vec<u32>,
    /// As in [`EncoderText`].
    pub(crate) second_from: usize,
    /// As in [`EncoderText`].
    pub(crate) task: Option<usize>,
}

impl TextTokens {
    fn as_text(&self) -> EncoderText<'_> {
        EncoderText { tokens: &self.tokens, second_from: self.second_from, task: self.task }
    }
}

impl From<Vec<u32>> for TextTokens {
    fn from(tokens: Vec<u32>) -> Self {
        Self { second_from: tokens.len(), tokens, task: None }
    }
}

/// The texts of one request.
pub(crate) struct EncodeJob {
    pub(crate) texts: Vec<TextTokens>,
    pub(crate) reply: oneshot::Sender<Result<Vec<Vec<f32>>, EncodeError>>,
}

/// The reason why a request got no vectors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EncodeError {
    #[error("there is no memory for this: {0}")]
    OutOfMemory(String),
    #[error("the texts could not be computed: {0}")]
    Step(String),
}

impl EncodeError {
    fn of(error: &DecoderError) -> Self {
        match error {
            DecoderError::OutOfMemory(why) => Self::OutOfMemory(why.clone()),
            error => Self::Step(error.to_string()),
        }
    }
}

/// A request of which some texts are done.
struct PendingJob {
    job: EncodeJob,
    vectors: Vec<Vec<f32>>,
}

/// Computes until no request can come any more.
pub(crate) fn serve(
    mut encoder: Box<dyn TextEncoder>,
    mut threads: StepThreads,
    mut inbox: mpsc::Receiver<EncodeJob>,
) -> Result<(), EngineError> {
    let mut pending: VecDeque<PendingJob> = VecDeque::new();
    loop {
        while let Ok(job) = inbox.try_recv() {
            pending.push_back(PendingJob { job, vectors: Vec::new() });
        }
        // Requests whose clients are gone are dropped.
        pending.retain(|pending| !pending.job.reply.is_closed());
        if pending.is_empty() {
            match inbox.blocking_recv() {
                Some(job) => pending.push_back(PendingJob { job, vectors: Vec::new() }),
                None => return Ok(()),
            }
        }
        let lengths: Vec<Vec<usize>> = pending.iter().map(PendingJob::lengths_left).collect();
        let counts = batch(&lengths);
        let texts: Vec<EncoderText<'_>> =
            pending.iter().zip(&counts).flat_map(|(pending, count)| pending.next(*count)).collect();
        let encoded = threads.run(|| encoder.encode(&texts));
        match encoded {
            Ok(vectors) => {
                let mut vectors = vectors.into_iter();
                for (pending, count) in pending.iter_mut().zip(&counts) {
                    pending.vectors.extend(vectors.by_ref().take(*count));
                }
            }
            Err(DecoderError::Fatal(why)) => return Err(EngineError::DeviceLost(why)),
            Err(error) => {
                // The requests of this batch fail, and others go on.
                let mut counts = counts.iter();
                pending = pending.into_iter().filter_map(|pending| pending.failed(counts.next(), &error)).collect();
            }
        }
        // A request that got its turn is behind the others.
        let (done, mut left): (VecDeque<_>, VecDeque<_>) = pending.into_iter().partition(PendingJob::is_done);
        done.into_iter().for_each(PendingJob::answer);
        if !left.is_empty() {
            left.rotate_left(1);
        }
        pending = left;
    }
}

impl PendingJob {
    fn lengths_left(&self) -> Vec<usize> {
        self.job.texts.iter().skip(self.vectors.len()).map(|text| text.tokens.len()).collect()
    }

    fn next(&self, count: usize) -> impl Iterator<Item = EncoderText<'_>> {
        self.job.texts.iter().skip(self.vectors.len()).take(count).map(TextTokens::as_text)
    }

    fn is_done(&self) -> bool {
        self.vectors.len() == self.job.texts.len()
    }

    fn answer(self) {
        // The client may be gone.
        let _ = self.job.reply.send(Ok(self.vectors));
    }

    /// The request itself if no text of it was in the batch.
    fn failed(self, count: Option<&usize>, error: &DecoderError) -> Option<Self> {
        if count.is_none_or(|count| *count == 0) {
            return Some(self);
        }
        let _ = self.job.reply.send(Err(EncodeError::of(error)));
        None
    }
}

/// How many texts of each request are in the next batch, by the tokens of the texts that are left: one of each in turn,
/// while there is room. The first one is always there.
fn batch(left: &[Vec<usize>]) -> Vec<usize> {
    let mut counts = vec![0; left.len()];
    let (mut tokens, mut any) = (0, false);
    loop {
        let mut grew = false;
        for (texts, count) in left.iter().zip(&mut counts) {
            let Some(length) = texts.get(*count) else { continue };
            if any && tokens + length > BATCH_TOKENS {
                continue;
            }
            tokens += length;
            *count += 1;
            (any, grew) = (true, true);
        }
        if !grew {
            return counts;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_5_a_batch_has_texts_of_each_request_in_turn() {
        assert_eq!(batch(&[vec![10; 1_000], vec![7]]), [50, 1]);
        assert_eq!(batch(&[vec![600], vec![7]]), [1, 0], "a text longer than a batch is alone in one");
        assert_eq!(batch(&[vec![500], vec![100], vec![12]]), [1, 0, 1]);
        assert_eq!(batch(&[vec![200, 200, 200], vec![100, 100]]), [2, 1]);
        assert!(batch(&[]).is_empty());
    }
}
