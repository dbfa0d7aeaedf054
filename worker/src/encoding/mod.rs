//! The engine's thread with an encoder: the texts and images of all requests in batches. The most important come first,
//! a few of each request in turn, and a request that is short is computed in the middle of a long one's batch.

mod queue;
mod urgency;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model_boss_engine::{Activity, DecoderError, EncodedForm, EncoderText, EngineError, PausedEncoder, TextEncoder};
use model_boss_images::PixelPlanes;
use model_boss_protocol::Priority;
use tokio::sync::{mpsc, oneshot};

use crate::cpu_share::StepThreads;
use queue::{EncodeBatch, EncodeQueue};

pub(crate) use urgency::{asked_priority, priority_in, with_priority};

/// The tokens of a text, or of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TextTokens {
    pub(crate) tokens: Vec<u32>,
    /// As in [`EncoderText`].
    pub(crate) second_from: usize,
    /// As in [`EncoderText`].
    pub(crate) task: Option<usize>,
    /// As in [`EncoderText`].
    pub(crate) left_out: usize,
}

impl TextTokens {
    fn as_text(&self) -> EncoderText<'_> {
        let Self { tokens, second_from, task, left_out } = self;
        EncoderText { tokens, second_from: *second_from, task: *task, left_out: *left_out }
    }
}

impl From<Vec<u32>> for TextTokens {
    fn from(tokens: Vec<u32>) -> Self {
        Self { second_from: tokens.len(), tokens, task: None, left_out: 0 }
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
    pub(crate) items: Arc<[EncodeItem]>,
    /// The form that is wanted of each text.
    pub(crate) form: EncodedForm,
    pub(crate) priority: Priority,
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

/// Some items of one request, and the form that is wanted of their texts.
#[derive(Clone, Debug)]
struct EncodePart {
    /// The request's number in the queue.
    job: u64,
    items: Arc<[EncodeItem]>,
    range: Range<usize>,
    form: EncodedForm,
}

/// Computes until no request can come any more.
pub(crate) fn serve(
    mut encoder: Box<dyn TextEncoder>,
    mut threads: StepThreads,
    inbox: mpsc::Receiver<EncodeJob>,
    activity: &Activity,
) -> Result<(), EngineError> {
    let text_rows = encoder.sight().map_or(0, |sight| sight.text_rows);
    let queue = Mutex::new(EncodeQueue::new(inbox, text_rows, threads.count()));
    loop {
        let Some(batch) = lock(&queue).next_batch(activity) else { return Ok(()) };
        let beside = BesideBatch { queue: &queue, batch: &batch, activity, took: Mutex::default() };
        let begun = Instant::now();
        let encoded = threads.run(|| {
            encoded(&batch.parts, &mut |texts, form| encoder.encode_pausing(texts, form, &|now| beside.compute(now)))
        });
        let encoded = match encoded {
            Ok(rows) => images(&batch.parts, rows, encoder.as_mut(), &mut threads),
            Err(error) => Err(error),
        };
        let elsewhere = beside.took.into_inner().unwrap_or_else(PoisonError::into_inner);
        activity.encoded(batch.rows, begun.elapsed().saturating_sub(elsewhere));
        lock(&queue).finish(&batch, encoded)?;
    }
}

/// Short and more important requests, which are computed in the middle of a batch.
struct BesideBatch<'a> {
    queue: &'a Mutex<EncodeQueue>,
    batch: &'a EncodeBatch,
    activity: &'a Activity,
    /// The time of these requests.
    took: Mutex<Duration>,
}

impl BesideBatch<'_> {
    /// Computes those that are there by now, if any are.
    fn compute(&self, encoder: &dyn PausedEncoder) {
        let Some(batch) = lock(self.queue).urgent_batch(self.batch) else { return };
        let begun = Instant::now();
        let encoded = encoded(&batch.parts, &mut |texts, form| encoder.encode_now(texts, form));
        let took = begun.elapsed();
        self.activity.encoded(batch.rows, took);
        *self.took.lock().unwrap_or_else(PoisonError::into_inner) += took;
        // A lost device is met again by the batch itself.
        let _ = lock(self.queue).finish(&batch, encoded);
    }
}

fn lock(queue: &Mutex<EncodeQueue>) -> MutexGuard<'_, EncodeQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Computes the vectors of texts of which the same is wanted.
type Encode<'a> = dyn FnMut(&[EncoderText<'_>], EncodedForm) -> Result<Vec<EncodedRows>, DecoderError> + 'a;

/// The rows of a batch's items in their order, those of images left empty: all texts of which the same is wanted in one
/// pass.
fn encoded(parts: &[EncodePart], encode: &mut Encode<'_>) -> Result<Vec<EncodedRows>, DecoderError> {
    let items: Vec<(&EncodeItem, EncodedForm)> = parts.iter().flat_map(EncodePart::items).collect();
    let mut rows: Vec<EncodedRows> = items.iter().map(|_| Vec::new()).collect();
    for form in [EncodedForm::Whole, EncodedForm::AnyLength, EncodedForm::EachToken] {
        let (mut places, mut texts) = (Vec::new(), Vec::new());
        for (at, (item, wanted)) in items.iter().enumerate() {
            if let EncodeItem::Text(text) = item
                && *wanted == form
            {
                places.push(at);
                texts.push(text.as_text());
            }
        }
        if !texts.is_empty() {
            for (at, of_text) in places.into_iter().zip(encode(&texts, form)?) {
                rows[at] = of_text;
            }
        }
    }
    Ok(rows)
}

/// Adds the vectors of a batch's images, all in one pass.
fn images(
    parts: &[EncodePart],
    mut rows: Vec<EncodedRows>,
    encoder: &mut dyn TextEncoder,
    threads: &mut StepThreads,
) -> Result<Vec<EncodedRows>, DecoderError> {
    let (mut places, mut planes): (Vec<usize>, Vec<&PixelPlanes>) = (Vec::new(), Vec::new());
    for (at, (item, _)) in parts.iter().flat_map(EncodePart::items).enumerate() {
        if let EncodeItem::Image { planes: of_image, .. } = item {
            places.push(at);
            planes.push(of_image);
        }
    }
    if !planes.is_empty() {
        for (at, vector) in places.into_iter().zip(threads.run(|| encoder.encode_images(&planes))?) {
            rows[at] = vec![vector];
        }
    }
    Ok(rows)
}

impl EncodePart {
    fn items(&self) -> impl Iterator<Item = (&EncodeItem, EncodedForm)> {
        self.items[self.range.clone()].iter().map(|item| (item, self.form))
    }
}
