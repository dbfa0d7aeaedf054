//! A training run on disk: parameters, the optimiser's state and the loss curve, replaced as a whole.

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::{Device, Tensor, safetensors};

use crate::curve::Point;
use crate::model::{Architecture, GuideModel};
use crate::optimizer::AdamW;
use crate::plan::TrainPlan;

/// The state of a training run.
pub struct Checkpoint {
    /// The model at this step.
    pub model: GuideModel,
    /// The optimiser's state, with the number of steps made.
    pub optimizer: AdamW,
    /// The loss of every step.
    pub curve: Vec<Point>,
}

/// The reason why a checkpoint cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be written or replaced.
    #[error("cannot write the checkpoint {}", path.display())]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The tensors cannot be read or written, or do not fit the model.
    #[error("the checkpoint {} does not fit; remove it to start anew", path.display())]
    Tensors {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: candle_core::Error,
    },
    /// The notes cannot be read, or belong to another run.
    #[error("the checkpoint {} is of another run ({problem}); remove it to start anew", path.display())]
    Foreign {
        /// The path of the file.
        path: PathBuf,
        /// The difference from this run, in words.
        problem: String,
    },
}

/// The notes beside the tensors, which identify the run.
#[derive(serde::Serialize, serde::Deserialize)]
struct Notes {
    seed: u64,
    steps: usize,
    architecture: Architecture,
    curve: Vec<Point>,
}

fn notes_path(plan: &TrainPlan) -> PathBuf {
    plan.checkpoint.with_extension("json")
}

/// Writes the run's state into a second file, and then replaces the old one with it.
pub fn save(plan: &TrainPlan, model: &GuideModel, optimizer: &AdamW, curve: &[Point]) -> Result<(), CheckpointError> {
    let path = &plan.checkpoint;
    let tensors = |source| CheckpointError::Tensors { path: path.clone(), source };
    let write = |source| CheckpointError::Write { path: path.clone(), source };
    let mut all: HashMap<String, Tensor> = optimizer.state(&model.parameters).map_err(tensors)?.into_iter().collect();
    all.extend(model.parameters.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())));
    all.insert("step".into(), Tensor::new(&[optimizer.step as u32], &Device::Cpu).map_err(tensors)?);
    let notes =
        Notes { seed: plan.seed, steps: plan.steps, architecture: model.architecture.clone(), curve: curve.to_vec() };
    let notes = serde_json::to_string(&notes).map_err(|e| write(e.into()))?;
    let aside = path.with_extension("new");
    safetensors::save(&all, &aside).map_err(tensors)?;
    std::fs::write(notes_path(plan), notes).map_err(write)?;
    std::fs::rename(&aside, path).map_err(write)
}

/// The state of an earlier run with the same seed, steps and shape, if there is one.
pub fn load(plan: &TrainPlan, architecture: &Architecture) -> Result<Option<Checkpoint>, CheckpointError> {
    let path = &plan.checkpoint;
    if !path.exists() {
        return Ok(None);
    }
    let tensors = |source| CheckpointError::Tensors { path: path.clone(), source };
    let foreign = |problem: String| CheckpointError::Foreign { path: path.clone(), problem };
    let notes = std::fs::read_to_string(notes_path(plan)).map_err(|e| foreign(e.to_string()))?;
    let mut notes: Notes = serde_json::from_str(&notes).map_err(|e| foreign(e.to_string()))?;
    if (notes.seed, notes.steps) != (plan.seed, plan.steps) {
        return Err(foreign(format!("seed {} and {} steps", notes.seed, notes.steps)));
    }
    if notes.architecture != *architecture {
        return Err(foreign("another shape or vocabulary".into()));
    }
    let all = safetensors::load(path, &Device::Cpu).map_err(tensors)?;
    let step = match all.get("step") {
        Some(step) => step.to_vec1::<u32>().map_err(tensors)?.first().copied().unwrap_or(0) as usize,
        None => return Err(foreign("no step".into())),
    };
    // The notes may be one checkpoint ahead of the tensors if the run stopped between the two writes.
    notes.curve.truncate(step);
    let model = GuideModel::from_tensors(architecture.clone(), &all).map_err(tensors)?;
    let optimizer = AdamW::resume(plan.settings, step, &all, &model.parameters).map_err(tensors)?;
    Ok(Some(Checkpoint { model, optimizer, curve: notes.curve }))
}
