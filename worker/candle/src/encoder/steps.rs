//! The steps behind a model's layers with their weights: the rows of a text's tokens become one vector.

use std::ops::Range;

use candle_core::{DType, Result as CandleResult, Tensor};
use model_boss_engine::{EncodedForm, EncoderText};
use model_boss_weights::gguf::GgufModel;

use super::pooling::{DenseActivation, DenseFile, PoolStep, Pooling, normalised};
use super::sentence_folder::SentenceFolder;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layers::linear::{Bias, Linear};
use crate::layers::norm::Norm;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;

pub(super) enum LoadedStep {
    Pool(Vec<Pooling>),
    Dense(Linear, DenseActivation),
    Norm(Norm),
    Normalise,
    /// The first numbers alone.
    First(usize),
}

/// The steps that a folder names.
pub(super) fn loaded_steps(folder: &SentenceFolder, target: &WeightTarget) -> Result<Vec<LoadedStep>, ModelError> {
    folder.steps.iter().map(|step| loaded_step(step, target)).collect()
}

/// A step with its weights.
fn loaded_step(step: &PoolStep, target: &WeightTarget) -> Result<LoadedStep, ModelError> {
    Ok(match step {
        PoolStep::Pool(ways) => LoadedStep::Pool(ways.clone()),
        PoolStep::Normalise => LoadedStep::Normalise,
        PoolStep::First(count) => LoadedStep::First(*count),
        PoolStep::Dense { at, shape, bias, activation } => {
            let (files, name) = match at {
                DenseFile::Folder(folder) => (ModelFiles::plain(folder)?.0, "linear"),
                DenseFile::Gguf(file, name) => (ModelFiles::of_gguf(GgufModel::open(file)?), *name),
            };
            let weight = format!("{name}.weight");
            let stored = files.get(&weight)?;
            if stored.shape != *shape {
                let what = format!("has the shape {:?} in place of {shape:?}", stored.shape);
                return Err(ModelError::Tensor { name: weight, what });
            }
            let mut ignored = |_| {};
            let mut reader = WeightReader::new(&files, target, stored.len(), &mut ignored);
            LoadedStep::Dense(Linear::read(&mut reader, name, Bias::from(*bias))?, *activation)
        }
    })
}

/// The rows of each text.
pub(super) fn ranges(texts: &[EncoderText<'_>]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::with_capacity(texts.len());
    for text in texts {
        let start = ranges.last().map_or(0, |before| before.end);
        ranges.push(start..start + text.tokens.len());
    }
    ranges
}

/// The rows of each text in the form that is wanted, from the rows of all tokens.
pub(super) fn shaped(
    tokens: &Tensor,
    texts: &[EncoderText<'_>],
    steps: &[LoadedStep],
    form: EncodedForm,
) -> CandleResult<Vec<Vec<Vec<f32>>>> {
    if form == EncodedForm::EachToken {
        let rows = |range: &Range<usize>| tokens.narrow(0, range.start, range.len())?.to_dtype(DType::F32)?.to_vec2();
        return ranges(texts).iter().map(rows).collect();
    }
    let steps: Vec<&LoadedStep> = match (form, steps) {
        (EncodedForm::AnyLength, [before @ .., LoadedStep::Normalise]) => before.iter().collect(),
        (EncodedForm::AnyLength, [before @ .., LoadedStep::Normalise, last @ LoadedStep::First(_)]) => {
            before.iter().chain([last]).collect()
        }
        _ => steps.iter().collect(),
    };
    Ok(pooled(tokens, texts, &steps)?.into_iter().map(|vector| vec![vector]).collect())
}

/// The vector of each text, from the rows of all tokens, one text behind the other.
fn pooled(tokens: &Tensor, texts: &[EncoderText<'_>], steps: &[&LoadedStep]) -> CandleResult<Vec<Vec<f32>>> {
    let mut vectors = tokens.clone();
    for step in steps {
        vectors = match step {
            LoadedStep::Pool(ways) => {
                let of_text = |range: &Range<usize>| {
                    let rows = tokens.narrow(0, range.start, range.len())?;
                    let parts = ways.iter().map(|way| way.of(&rows)).collect::<CandleResult<Vec<_>>>()?;
                    Tensor::cat(&parts, 1)
                };
                Tensor::cat(&ranges(texts).iter().map(of_text).collect::<CandleResult<Vec<_>>>()?, 0)?
            }
            LoadedStep::Dense(dense, activation) => {
                let product = dense.forward(&vectors)?;
                match activation {
                    DenseActivation::Tanh => product.tanh()?,
                    DenseActivation::Relu => product.relu()?,
                    DenseActivation::Of(activation) => activation.forward(&product)?,
                    DenseActivation::Identity => product,
                }
            }
            LoadedStep::Norm(norm) => norm.forward(&vectors)?,
            LoadedStep::Normalise => normalised(&vectors)?,
            LoadedStep::First(count) => vectors.narrow(1, 0, vectors.dim(1)?.min(*count))?,
        };
    }
    vectors.to_dtype(DType::F32)?.to_vec2()
}
