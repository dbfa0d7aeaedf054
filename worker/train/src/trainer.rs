//! The training run: batches to gradients to steps, with checkpoints and a loss curve. Same seed, steps and corpus give
//! the same weights on the same machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use candle_core::{Device, Tensor};
use indicatif::{ProgressBar, ProgressStyle};

use crate::batch::{Batch, Curriculum};
use crate::checkpoint::{self, Checkpoint, CheckpointError};
use crate::corpus::Family;
use crate::curve::Point;
use crate::model::{Architecture, GuideModel};
use crate::ops;
use crate::optimizer::AdamW;
use crate::plan::TrainPlan;
use crate::text::{GuideText, GuideTextError};

/// The reason why training cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The tokenizer failed.
    #[error("a question could not become tokens")]
    GuideText(#[from] GuideTextError),
    /// A tensor operation failed.
    #[error("a step failed")]
    Step(#[from] candle_core::Error),
    /// The checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The loss is not finite any more.
    #[error("the loss became {loss} at step {step}; a smaller learning rate may help")]
    Diverged {
        /// The loss that is not finite.
        loss: f64,
        /// The step with that loss.
        step: usize,
    },
    /// The corpus gives no batch.
    #[error("the corpus gives no batch")]
    Empty,
}

/// A trained model and its loss curve.
pub struct Trained {
    /// The trained model.
    pub model: GuideModel,
    /// The loss of every step.
    pub curve: Vec<Point>,
}

/// Trains, or continues from the checkpoint. Calls `pause` after every checkpoint with the model so far.
pub fn train(
    plan: &TrainPlan,
    families: &[Family],
    text: &GuideText,
    architecture: Architecture,
    mut pause: impl FnMut(&GuideModel, &[Point]),
) -> Result<Trained, TrainError> {
    let curriculum = Curriculum::new(families, text, plan.seed);
    let Checkpoint { model, mut optimizer, mut curve } = match checkpoint::load(plan, &architecture)? {
        Some(found) => found,
        None => {
            let model = GuideModel::random(architecture, plan.seed)?;
            Checkpoint { model, optimizer: AdamW::new(plan.settings), curve: Vec::new() }
        }
    };
    let bar = progress(plan.steps, optimizer.step);
    let mut saved = Instant::now();
    let (mut epoch, mut batches) = (0, curriculum.epoch(0, plan.rows, plan.time)?);
    let mut first_of_epoch = 0;
    while optimizer.step < plan.steps {
        // A resumed run goes through the same epochs up to its step.
        while optimizer.step - first_of_epoch >= batches.len() {
            if batches.is_empty() {
                return Err(TrainError::Empty);
            }
            first_of_epoch += batches.len();
            epoch += 1;
            batches = curriculum.epoch(epoch, plan.rows, plan.time)?;
        }
        let step = optimizer.step;
        let (loss, gradients) = gradients(&model, &batches[step - first_of_epoch], plan.parts)?;
        if !loss.is_finite() {
            return Err(TrainError::Diverged { loss, step });
        }
        let (rate, length) = optimizer.apply(&model.parameters, &gradients, plan.steps)?;
        curve.push(Point { step: step + 1, loss, rate });
        bar.set_message(format!("epoch {epoch}, loss {:.3}, gradient {length:.2}", recent(&curve)));
        bar.inc(1);
        if saved.elapsed() >= plan.checkpoint_every {
            checkpoint::save(plan, &model, &optimizer, &curve)?;
            pause(&model, &curve);
            saved = Instant::now();
        }
    }
    checkpoint::save(plan, &model, &optimizer, &curve)?;
    bar.finish();
    Ok(Trained { model, curve })
}

/// The mean loss of the last steps.
pub fn recent(curve: &[Point]) -> f64 {
    let tail = &curve[curve.len().saturating_sub(20)..];
    tail.iter().map(|p| p.loss).sum::<f64>() / tail.len().max(1) as f64
}

/// Gradients by the name of their parameter.
pub type Gradients = BTreeMap<String, Vec<f32>>;

/// The batch's loss and the gradient of every parameter. Parts are summed in order, so the result does not depend on
/// the order in which threads end.
pub fn gradients(model: &GuideModel, batch: &Batch, parts: usize) -> candle_core::Result<(f64, Gradients)> {
    let divisor = batch.weight().max(1.0);
    let parts = batch.split(parts.max(1));
    let results: Vec<candle_core::Result<_>> = std::thread::scope(|scope| {
        let running: Vec<_> =
            parts.iter().map(|part| scope.spawn(move || part_gradients(model, part, divisor))).collect();
        let lost = |_| Err(candle_core::Error::Msg("a training thread panicked".into()));
        running.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
    });
    let mut total = 0.0;
    let mut sums = Gradients::new();
    for result in results {
        let (loss, gradients): (f64, Gradients) = result?;
        total += loss;
        for (name, gradient) in gradients {
            match sums.get_mut(&name) {
                Some(sum) => sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g),
                None => drop(sums.insert(name, gradient)),
            }
        }
    }
    Ok((total, sums))
}

fn part_gradients(model: &GuideModel, part: &Batch, divisor: f32) -> candle_core::Result<(f64, Gradients)> {
    let loss = loss(model, part, divisor)?;
    let store = loss.backward()?;
    let mut gradients = Gradients::new();
    for (name, var) in &model.parameters {
        match store.get(var) {
            Some(gradient) => drop(gradients.insert(name.clone(), gradient.flatten_all()?.to_vec1()?)),
            None => candle_core::bail!("no gradient reaches {name}"),
        }
    }
    Ok((f64::from(loss.to_scalar::<f32>()?), gradients))
}

/// The weighted loss of a batch, summed and divided by `divisor`, as a scalar with its graph.
pub fn loss(model: &GuideModel, batch: &Batch, divisor: f32) -> candle_core::Result<Tensor> {
    let rows = batch.tokens.len() / batch.time;
    let tokens = Tensor::from_slice(&batch.tokens, (rows, batch.time), &Device::Cpu)?;
    let places = batch.targets.iter().map(|target| target.at).collect();
    let targets = batch.targets.iter().map(|target| (target.token, target.weight / divisor)).collect();
    let logits = model.forward(&tokens, &batch.starts.as_slice().into(), places)?;
    ops::cross_entropy(&logits, targets)
}

fn progress(steps: usize, done: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64).with_position(done as u64);
    let style = "{elapsed_precise} {bar:30} {pos}/{len} steps, {eta} left, {msg}";
    bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.reset_eta();
    bar
}

/// Writes the curve as CSV.
pub fn write_csv(curve: &[Point], path: &Path) -> std::io::Result<()> {
    let mut text = String::from("step,loss,rate\n");
    for Point { step, loss, rate } in curve {
        text.push_str(&format!("{step},{loss:.5},{rate:.3e}\n"));
    }
    std::fs::write(path, text)
}
