//! The texts and images of requests for vectors, and what becomes of them.

use std::ops::Range;
use std::sync::Arc;

use model_boss_engine::{DecoderError, EncodedForm, EncoderText};
use model_boss_images::PixelPlanes;
use model_boss_protocol::Priority;
use tokio::sync::oneshot;

use crate::meter::WorkMeter;

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
    pub(super) fn as_text(&self) -> EncoderText<'_> {
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
    /// Counts the items that are done.
    pub(crate) meter: Option<Arc<WorkMeter>>,
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
    pub(super) fn of(error: &DecoderError) -> Self {
        match error {
            DecoderError::OutOfMemory(why) => Self::OutOfMemory(why.clone()),
            error => Self::Step(error.to_string()),
        }
    }
}

/// Some items of one request, and the form that is wanted of their texts.
#[derive(Clone, Debug)]
pub(super) struct EncodePart {
    /// The request's number in the queue.
    pub(super) job: u64,
    pub(super) items: Arc<[EncodeItem]>,
    pub(super) range: Range<usize>,
    pub(super) form: EncodedForm,
}

impl EncodePart {
    /// Each item with the form that is wanted of it.
    pub(super) fn items(&self) -> impl Iterator<Item = (&EncodeItem, EncodedForm)> {
        self.items[self.range.clone()].iter().map(|item| (item, self.form))
    }
}
