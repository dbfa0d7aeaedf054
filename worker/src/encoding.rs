//! The engine's thread with an encoder: the texts and images of all requests in batches, a few of each request in turn,
//! so that one text does not wait for a thousand of another client.

use std::collections::VecDeque;

use model_boss_engine::{DecoderError, EncodedForm, EncoderText, EngineError, TextEncoder};
use model_boss_images::PixelPlanes;
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

/// A text or an image of a request.
#[derive(Debug)]
pub(crate) enum EncodeItem {
    Text(TextTokens),
    /// An image's numbers, and the rows that it has in the model.
    Image {
        planes: PixelPlanes,
        rows: usize,
    },
}

impl EncodeItem {
    /// Rows of a batch.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Text(text) => text.tokens.len(),
            Self::Image { rows, .. } => *rows,
        }
    }
}

/// The rows of one item: one vector, or one for each token.
pub(crate) type EncodedRows = Vec<Vec<f32>>;

/// The texts and images of one request.
pub(crate) struct EncodeJob {
    pub(crate) items: Vec<EncodeItem>,
    /// The form that is wanted of each text.
    pub(crate) form: EncodedForm,
    pub(crate) reply: oneshot::Sender<Result<Vec<EncodedRows>, EncodeError>>,
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
    vectors: Vec<EncodedRows>,
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
        let least = encoder.sight().map_or(0, |sight| sight.text_rows);
        let lengths: Vec<Vec<usize>> = pending.iter().map(|pending| pending.lengths_left(least)).collect();
        let counts = batch(&lengths);
        let items: Vec<(&EncodeItem, EncodedForm)> =
            pending.iter().zip(&counts).flat_map(|(pending, count)| pending.next(*count)).collect();
        let encoded = threads.run(|| encoded(encoder.as_mut(), &items));
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
    /// Rows of the items that are left, where a text has at least so many.
    fn lengths_left(&self, least: usize) -> Vec<usize> {
        let rows = |item: &EncodeItem| match item {
            EncodeItem::Text(_) => item.rows().max(least),
            EncodeItem::Image { .. } => item.rows(),
        };
        self.job.items.iter().skip(self.vectors.len()).map(rows).collect()
    }

    fn next(&self, count: usize) -> impl Iterator<Item = (&EncodeItem, EncodedForm)> {
        self.job.items.iter().skip(self.vectors.len()).take(count).map(|item| (item, self.job.form))
    }

    fn is_done(&self) -> bool {
        self.vectors.len() == self.job.items.len()
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

/// The rows of a batch's items in their order: all images in one pass, and all texts of which the same is wanted.
fn encoded(
    encoder: &mut dyn TextEncoder,
    items: &[(&EncodeItem, EncodedForm)],
) -> Result<Vec<EncodedRows>, DecoderError> {
    let mut rows: Vec<EncodedRows> = items.iter().map(|_| Vec::new()).collect();
    let images: Vec<(usize, &PixelPlanes)> = items.iter().enumerate().filter_map(image_of).collect();
    if !images.is_empty() {
        let planes: Vec<&PixelPlanes> = images.iter().map(|(_, planes)| *planes).collect();
        for ((at, _), vector) in images.iter().zip(encoder.encode_images(&planes)?) {
            rows[*at] = vec![vector];
        }
    }
    for form in [EncodedForm::Whole, EncodedForm::AnyLength, EncodedForm::EachToken] {
        let of_form = |(at, (item, wanted)): (usize, &(&'_ EncodeItem, EncodedForm))| match item {
            EncodeItem::Text(_) if *wanted == form => Some(at),
            _ => None,
        };
        let places: Vec<usize> = items.iter().enumerate().filter_map(of_form).collect();
        let texts: Vec<EncoderText<'_>> = places.iter().filter_map(|at| text_of(items[*at].0)).collect();
        if !texts.is_empty() {
            for (at, of_text) in places.iter().zip(encoder.encode_as(&texts, form)?) {
                rows[*at] = of_text;
            }
        }
    }
    Ok(rows)
}

fn image_of<'a>((at, (item, _)): (usize, &(&'a EncodeItem, EncodedForm))) -> Option<(usize, &'a PixelPlanes)> {
    match item {
        EncodeItem::Image { planes, .. } => Some((at, planes)),
        EncodeItem::Text(_) => None,
    }
}

fn text_of(item: &EncodeItem) -> Option<EncoderText<'_>> {
    match item {
        EncodeItem::Text(text) => Some(text.as_text()),
        EncodeItem::Image { .. } => None,
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
