//! The engine's thread with an encoder: the texts and images of all requests in batches. The most important come first,
//! a few of each request in turn, and a request that is short is computed in the middle of a long one's batch.

mod job;
mod queue;
mod urgency;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model_boss_engine::{Activity, DecoderError, EncodedForm, EncoderText, EngineError, PausedEncoder, TextEncoder};
use model_boss_images::PixelPlanes;
use tokio::sync::mpsc;

use crate::cpu_share::StepThreads;
use job::EncodePart;
use queue::{EncodeBatch, EncodeQueue};

pub(crate) use job::{EncodeError, EncodeItem, EncodeJob, EncodedRows, TextTokens};
pub(crate) use urgency::{asked_priority, priority_in, with_priority};

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
        let mut total = self.took.lock().unwrap_or_else(PoisonError::into_inner);
        *total = total.saturating_add(took);
        drop(total);
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
