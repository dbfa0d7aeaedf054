//! Requests for pictures, and what becomes of them.

use std::time::Duration;

use model_boss_engine::{DecoderError, PaintError, PaintProgress, PictureRequest};
use model_boss_images::RgbImage;
use model_boss_protocol::Priority;
use tokio::sync::mpsc;

/// The pictures of one request.
pub(crate) struct PaintJob {
    /// The pictures that are painted together. Those of the same request differ in their seeds alone.
    pub(crate) batches: Vec<PictureRequest>,
    /// How many unfinished pictures are shown, of each one.
    pub(crate) previews: usize,
    pub(crate) priority: Priority,
    /// The request is cancelled by closing it.
    pub(crate) events: mpsc::UnboundedSender<PaintEvent>,
}

/// News of a request.
#[derive(Debug)]
pub(crate) enum PaintEvent {
    /// A step was made, of all batches together.
    Step(PaintProgress),
    /// Unfinished pictures: the number of the show, and the pictures of a batch behind those of the batches before.
    Preview { show: usize, first: usize, pictures: Vec<RgbImage> },
    /// All pictures.
    Done(PaintedPictures),
    /// The request failed.
    Failed(PaintFailure),
}

/// All pictures of a request.
#[derive(Debug)]
pub(crate) struct PaintedPictures {
    pub(crate) pictures: Vec<RgbImage>,
    pub(crate) times: PaintTimes,
}

/// The times of a request, those of other requests in between left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PaintTimes {
    /// Reading prompts and pictures.
    pub(crate) begin: Duration,
    /// Steps that were made.
    pub(crate) steps: usize,
    pub(crate) painting: Duration,
    /// Making pictures of latent ones, unfinished ones too.
    pub(crate) decoding: Duration,
}

/// The reason why a request got no pictures.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PaintFailure {
    #[error("{why}")]
    Refused { field: &'static str, why: String },
    #[error("there is no memory for this: {0}")]
    OutOfMemory(String),
    #[error("the picture could not be painted: {0}")]
    Step(String),
}

impl From<&PaintError> for PaintFailure {
    fn from(error: &PaintError) -> Self {
        match error {
            PaintError::Refused { field, why } => Self::Refused { field, why: why.clone() },
            PaintError::Device(DecoderError::OutOfMemory(why)) => Self::OutOfMemory(why.clone()),
            PaintError::Device(error) => Self::Step(error.to_string()),
        }
    }
}
