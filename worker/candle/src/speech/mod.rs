//! Models that speak: text in, samples out. Rows of tensors are moments, one behind the other.

mod convolution;
mod vits;
mod weights;

use std::path::Path;

use model_boss_engine::Speaker;
use model_boss_protocol::DeviceId;

use crate::device;
use crate::error::{LoadError, ModelError};

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
    vits::load(source, (on, &device), progress).map(|speaker| Box::new(speaker) as Box<dyn Speaker>).map_err(failed)
}
