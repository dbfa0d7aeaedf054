//! The load of a model that writes text, with the tower of one that sees.

use std::path::Path;

use model_boss_engine::Decoder;
use model_boss_protocol::DeviceId;

use crate::error::LoadError;
use crate::files::ModelFiles;
use crate::load::{DecoderHead, read_over};
use crate::plan::options::{DecoderLoadOptions, DeviceOptions};
use crate::sight;
use crate::spec::DecoderSpec;

/// Loads a model and reports its progress, as a share from 0 to 1.
///
/// The path `source` is a folder with `config.json` and safetensors, or a weight file in one. It may also be a GGUF
/// file, which may be any part of a split model. A folder with one GGUF model is possible too. The longest sequence
/// wanted is `context_length`, in tokens. The model's own limit bounds it, and is the default.
pub fn load(
    source: &Path,
    device: &DeviceId,
    context_length: Option<u64>,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn Decoder>, LoadError> {
    load_with(source, device, &DecoderLoadOptions { context_length, ..DecoderLoadOptions::default() }, progress)
}

/// Loads as [`load`] does, also models that are larger than the device's memory. Layers that do not fit stay on disk
/// and are streamed in each step.
pub fn load_with(
    source: &Path,
    device: &DeviceId,
    options: &DecoderLoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn Decoder>, LoadError> {
    let place = DeviceOptions { device: device.clone(), share: None, limit: options.memory };
    load_over(source, &[place], options, progress)
}

/// Loads as [`load_with`] does, over several devices. Each computes consecutive layers in proportion to its bytes, and
/// keeps their keys and values. Activations are copied from each device to the next (RC-22). If all devices together
/// are too small, each streams the layers that it cannot hold.
pub fn load_over(
    source: &Path,
    places: &[DeviceOptions],
    options: &DecoderLoadOptions,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn Decoder>, LoadError> {
    let tower = |files: &ModelFiles, spec: &DecoderSpec| sight::plan(source, files, spec);
    Ok(Box::new(read_over(source, places, options, (DecoderHead::Read, &tower), progress)?))
}
