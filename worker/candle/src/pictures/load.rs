//! Loading a model that paints, by the class of its pipeline.

use std::path::Path;

use model_boss_engine::{Painter, PipelineKind};
use model_boss_protocol::DeviceId;

use super::component::PipelineFolder;
use super::layers::misfit;
use super::pipeline::{load_flux_painter, load_sd3_painter, load_unet_painter};
use crate::device;
use crate::error::{LoadError, ModelError};

/// Loads a model that paints and reports the progress, as a share from 0 to 1. The path is a folder of `diffusers`.
pub fn load_painter(
    source: &Path,
    on: &DeviceId,
    progress: &mut dyn FnMut(f32),
) -> Result<Box<dyn Painter>, LoadError> {
    let device = device::open(on)?;
    let mut load = || {
        let folder = PipelineFolder::open(source)?;
        let kind = kind_of(folder.class())?;
        match kind {
            PipelineKind::StableDiffusion | PipelineKind::StableDiffusionXl => {
                let painter = load_unet_painter(&folder, kind, (on, &device), progress)?;
                Ok(Box::new(painter) as Box<dyn Painter>)
            }
            PipelineKind::Flux => {
                let painter = load_flux_painter(&folder, (on, &device), progress)?;
                Ok(Box::new(painter) as Box<dyn Painter>)
            }
            PipelineKind::StableDiffusion3 => {
                let painter = load_sd3_painter(&folder, (on, &device), progress)?;
                Ok(Box::new(painter) as Box<dyn Painter>)
            }
        }
    };
    load().map_err(|reason: ModelError| match reason {
        ModelError::Device(error) => LoadError::DeviceLost { device: on.clone(), why: error.to_string() },
        reason => LoadError::BadModel { model: source.to_owned(), reason: Box::new(reason) },
    })
}

/// The kind of a pipeline's class. Classes for one use of the same parts are the same kind.
fn kind_of(class: &str) -> Result<PipelineKind, ModelError> {
    match class {
        "StableDiffusionPipeline" | "StableDiffusionImg2ImgPipeline" | "StableDiffusionInpaintPipeline" => {
            Ok(PipelineKind::StableDiffusion)
        }
        "StableDiffusionXLPipeline" | "StableDiffusionXLImg2ImgPipeline" | "StableDiffusionXLInpaintPipeline" => {
            Ok(PipelineKind::StableDiffusionXl)
        }
        "StableDiffusion3Pipeline" | "StableDiffusion3Img2ImgPipeline" | "StableDiffusion3InpaintPipeline" => {
            Ok(PipelineKind::StableDiffusion3)
        }
        "FluxPipeline" | "FluxImg2ImgPipeline" | "FluxInpaintPipeline" => Ok(PipelineKind::Flux),
        other => Err(misfit("model_index.json", format!("the pipeline '{other}' is not known"))),
    }
}
