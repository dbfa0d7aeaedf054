//! The contract of models that paint: a text in, pictures out after some steps.
//!
//! One call of [`Painter::start`] makes the pictures of one request, all of one size. [`Painting::step`] calls the
//! model once for all of them. A request is cancelled by dropping its [`Painting`] between two steps.

use std::sync::Arc;

use model_boss_images::{MaskImage, RgbImage};

use crate::decoder::DecoderError;
use crate::places::PlaceUse;

/// The kind of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineKind {
    /// Stable Diffusion 1 and 2.
    StableDiffusion,
    /// Stable Diffusion XL.
    StableDiffusionXl,
    /// Stable Diffusion 3 and 3.5.
    StableDiffusion3,
    /// FLUX.1.
    Flux,
}

/// A part of a pipeline that has weights of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PainterComponent {
    /// The name of its folder, such as `unet`.
    pub name: String,
    /// Bytes of its weights.
    pub bytes: u64,
}

/// The facts about a model that paints.
#[derive(Clone, Debug, PartialEq)]
pub struct PainterInfo {
    /// The kind of its pipeline.
    pub pipeline: PipelineKind,
    /// Its parts.
    pub components: Vec<PainterComponent>,
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// Sides of pictures are multiples of this, in pixels.
    pub size_multiple: usize,
    /// The longest side, in pixels.
    pub longest_side: usize,
    /// Width and height of requests that name none.
    pub usual_size: [usize; 2],
    /// Steps of requests that name none.
    pub usual_steps: usize,
    /// The guidance scale of requests that name none.
    pub usual_guidance: f32,
    /// The class of the folder's scheduler.
    pub usual_scheduler: String,
    /// The names of schedulers that a request may have.
    pub schedulers: Vec<String>,
    /// Whether a picture can be begun with.
    pub takes_image: bool,
    /// Whether a part of a picture can be painted anew.
    pub takes_mask: bool,
    /// Whether every request has to paint a part of a picture anew.
    pub needs_mask: bool,
    /// Whether a negative prompt counts.
    pub takes_negative_prompt: bool,
    /// Bytes of activations for each pixel of a picture, about.
    pub bytes_per_pixel: u64,
}

/// A picture that painting begins with.
#[derive(Clone, Debug, PartialEq)]
pub struct BeginningImage {
    /// The picture. It is resized if it has another size than the request.
    pub image: RgbImage,
    /// How much of it is painted anew: 1 leaves nothing of it but what the mask keeps.
    pub strength: f64,
    /// The part that is painted anew; all of it without.
    pub mask: Option<MaskImage>,
}

/// The pictures that are wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureRequest {
    /// The text.
    pub prompt: String,
    /// The text of what shall not be seen.
    pub negative_prompt: Option<String>,
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Steps.
    pub steps: usize,
    /// The weight of the prompt: of at most 1, the negative prompt is not read.
    pub guidance_scale: f32,
    /// The scheduler; the folder's own without a name.
    pub scheduler: Option<String>,
    /// The seed of each picture, which are painted together. At least one.
    pub seeds: Vec<u64>,
    /// The picture to begin with.
    pub beginning: Option<BeginningImage>,
    /// The most tokens of the prompt, for models that read long ones; the model's own number without.
    pub max_sequence_length: Option<usize>,
    /// Layers of the text encoder that are left out at its end.
    pub clip_skip: Option<usize>,
}

/// The reason why pictures are not painted.
#[derive(Debug, thiserror::Error)]
pub enum PaintError {
    /// The request cannot be served by this model; for the client.
    #[error("{why}")]
    Refused {
        /// The field at fault.
        field: &'static str,
        /// The reason, and what would do.
        why: String,
    },
    /// The device failed, or has too little memory.
    #[error(transparent)]
    Device(#[from] DecoderError),
}

impl PaintError {
    /// A refusal because of this field.
    pub fn refused(field: &'static str, why: impl Into<String>) -> Self {
        Self::Refused { field, why: why.into() }
    }
}

/// The state after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaintProgress {
    /// Steps that were made.
    pub step: usize,
    /// All steps. Those that a strength below 1 leaves out do not count.
    pub steps: usize,
}

impl PaintProgress {
    /// Whether no step is left.
    pub fn is_over(self) -> bool {
        self.step >= self.steps
    }
}

/// A model that paints. Its weights do not change, so that several requests may be painted by turns.
pub trait Painter: Send + Sync {
    /// The facts.
    fn info(&self) -> &PainterInfo;

    /// The use of its devices.
    fn places(&self) -> Arc<[PlaceUse]>;

    /// Reads the prompts and the picture to begin with, and draws the first noise.
    ///
    /// # Errors
    /// The request cannot be served, or the device failed.
    fn start(&self, request: &PictureRequest) -> Result<Box<dyn Painting + '_>, PaintError>;
}

/// The pictures of one request while they are painted.
pub trait Painting: Send {
    /// The state now.
    fn progress(&self) -> PaintProgress;

    /// Makes the next step; nothing after the last one.
    ///
    /// # Errors
    /// The device failed, or has too little memory.
    fn step(&mut self) -> Result<PaintProgress, PaintError>;

    /// The pictures as they are now, decoded. It takes about as long as a step.
    ///
    /// # Errors
    /// The device failed, or has too little memory.
    fn preview(&self) -> Result<Vec<RgbImage>, PaintError>;

    /// The latent pictures as they are now: for each its numbers, channel by channel.
    fn latents(&self) -> &[f32];

    /// The pictures after the last step.
    ///
    /// # Errors
    /// The device failed, or has too little memory.
    fn finish(self: Box<Self>) -> Result<Vec<RgbImage>, PaintError> {
        self.preview()
    }
}
