//! Models that speak: text in, samples out. Rows of tensors are moments, one behind the other.

mod causal;
mod codec;
pub(crate) mod config;
mod convolution;
mod csm;
mod drawing;
mod parler;
pub(crate) mod t5;
mod vits;
pub(crate) mod weights;

use std::path::Path;

use model_boss_engine::Speaker;
use model_boss_protocol::DeviceId;

use crate::device;
use crate::encoder::facts::model_type;
use crate::error::{LoadError, ModelError};
use crate::files::read_config;

/// Loads a model that speaks and reports the progress, as a share from 0 to 1. The path is a folder of `transformers`.
pub fn load_speaker(
    source: &Path,
    on: &DeviceId,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn Speaker>, LoadError> {
    let device = device::open(on)?;
    let failed = |reason: ModelError| match reason {
        ModelError::Device(error) => LoadError::DeviceLost { device: on.clone(), why: error.to_string() },
        reason => LoadError::BadModel { model: source.to_owned(), reason: Box::new(reason) },
    };
    let config = read_config(source).map_err(failed)?;
    let on = (on, &device);
    match model_type(&config).as_deref() {
        Some("csm") => csm::load(source, on, progress).map(|speaker| Box::new(speaker) as Box<dyn Speaker>),
        Some("parler_tts") => parler::load(source, on, progress).map(|speaker| Box::new(speaker) as Box<dyn Speaker>),
        // Files without a kind are taken for the most usual one.
        _ => vits::load(source, on, progress).map(|speaker| Box::new(speaker) as Box<dyn Speaker>),
    }
    .map_err(failed)
}
