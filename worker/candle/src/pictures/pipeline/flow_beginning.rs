//! The beginning of a request to models with flow matching.

use model_boss_engine::{PaintError, PictureRequest};

use super::beginning::{Beginning, BeginningForm, BeginningRule};
use super::latent_noise::LatentNoise;
use super::latent_painting::on_threads;
use crate::error::ModelError;
use crate::pictures::component::PipelineFolder;
use crate::pictures::layers::misfit;
use crate::pictures::schedulers::{FlowSigmas, FolderRules, SchedulerClass, SchedulerSpec, Solver};
use crate::pictures::vae::Autoencoder;

/// Steps that every scheduler makes.
const SOME_STEPS: usize = 20;

/// The most tokens of a prompt that the pipelines take.
const LONGEST_TEXT: usize = 512;

/// The scheduler of a folder, which has to solve with these sigmas.
pub(super) fn flow_scheduler(folder: &PipelineFolder, sigmas: FlowSigmas) -> Result<SchedulerSpec, ModelError> {
    let config = folder.json("scheduler", "scheduler_config.json")?;
    let spec = SchedulerSpec::from_config(&config, FolderRules::AsWritten);
    let spec = spec.map_err(|error| misfit("scheduler", error))?;
    if !spec.is_flow() {
        return Err(misfit("scheduler", "this transformer was made for flow matching"));
    }
    spec.solver(None, SOME_STEPS, sigmas).map_err(|error| misfit("scheduler", error))?;
    Ok(spec)
}

/// The schedulers that requests may name.
pub(super) fn flow_names() -> Vec<String> {
    SchedulerClass::request_names().filter(|name| name.starts_with("flow")).map(str::to_owned).collect()
}

/// The solver of a request.
pub(super) fn flow_solver(
    scheduler: &SchedulerSpec,
    request: &PictureRequest,
    sigmas: FlowSigmas,
) -> Result<Box<dyn Solver>, PaintError> {
    let solver_of = |steps: usize| scheduler.solver(request.scheduler.as_deref(), steps, sigmas);
    // A scheduler that serves other steps is not at fault.
    let field = || if solver_of(SOME_STEPS).is_ok() { "steps" } else { "scheduler" };
    solver_of(request.steps).map_err(|why| PaintError::refused(field(), why))
}

/// Tokens of the prompt.
pub(super) fn text_length(request: &PictureRequest, usual: usize) -> Result<usize, PaintError> {
    let length = request.max_sequence_length.unwrap_or(usual);
    if (1..=LONGEST_TEXT).contains(&length) {
        return Ok(length);
    }
    let why = format!("'max_sequence_length' is {length}; it is from 1 to {LONGEST_TEXT}");
    Err(PaintError::refused("max_sequence_length", why))
}

/// The generators of a request, and its first latent pictures.
pub(super) fn flow_beginning(
    vae: &Autoencoder,
    request: &PictureRequest,
    solver: &dyn Solver,
    on_host: bool,
) -> Result<(LatentNoise, Beginning), PaintError> {
    let size = [request.width, request.height];
    let one: usize = size.map(|side| side / vae.spec().factor()).iter().product();
    let mut noise = LatentNoise::new(&request.seeds, vae.spec().latent_channels * one);
    let form = BeginningForm { vae, size, reads_mask: false, steps: request.steps, rule: BeginningRule::Flow };
    let beginning = match &request.beginning {
        Some(given) if given.mask.is_some() => {
            return Err(PaintError::refused("mask", "this model paints no part of a picture anew"));
        }
        Some(given) => on_threads(on_host, || Ok(form.image(given, solver, &mut noise)))??,
        None => form.noise(solver, &mut noise),
    };
    Ok((noise, beginning))
}
