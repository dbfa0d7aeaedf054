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
use crate::spec::{NormKind, NormSpec};

pub(super) enum LoadedStep {
    Pool(Vec<Pooling>),
    Dense(DenseStep),
    Norm(Norm),
    Normalise,
    /// The first numbers alone.
    First(usize),
}

/// A product, an activation, and the vector before them that is added.
pub(super) struct DenseStep {
    product: Linear,
    activation: DenseActivation,
    residual: DenseResidual,
}

/// The vector before a product, added behind it.
enum DenseResidual {
    Without,
    AsItIs,
    /// Through a product of its own.
    Through(Linear),
}

impl DenseStep {
    /// A product without a residual.
    pub(super) fn plain(product: Linear, activation: DenseActivation) -> LoadedStep {
        LoadedStep::Dense(Self { product, activation, residual: DenseResidual::Without })
    }

    fn forward(&self, x: &Tensor) -> CandleResult<Tensor> {
        let out = self.activation.forward(&self.product.forward(x)?)?;
        match &self.residual {
            DenseResidual::Without => Ok(out),
            DenseResidual::AsItIs => out + x,
            DenseResidual::Through(product) => out + product.forward(x)?,
        }
    }
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
        PoolStep::Norm { at, width } => {
            let files = ModelFiles::plain(at)?.0;
            let bytes = checked(&files, "norm.weight", &[*width])? + checked(&files, "norm.bias", &[*width])?;
            let mut ignored = |_| {};
            let mut reader = WeightReader::new(&files, target, bytes, &mut ignored);
            // The epsilon of torch's own default.
            let spec = NormSpec { kind: NormKind::LayerWithBias, eps: 1e-5 };
            LoadedStep::Norm(Norm::read(&mut reader, "norm", spec)?)
        }
        PoolStep::Dense { at, shape, bias, activation, residual } => {
            let (files, name) = match at {
                DenseFile::Folder(folder) => (ModelFiles::plain(folder)?.0, "linear"),
                DenseFile::Gguf(file, name) => (ModelFiles::of_gguf(GgufModel::open(file)?), *name),
            };
            let mut bytes = checked(&files, &format!("{name}.weight"), shape)?;
            let through = *residual && shape[0] != shape[1];
            if through {
                bytes += checked(&files, "residual.weight", shape)?;
            }
            let mut ignored = |_| {};
            let mut reader = WeightReader::new(&files, target, bytes, &mut ignored);
            let product = Linear::read(&mut reader, name, Bias::from(*bias))?;
            let residual = match (residual, through) {
                (false, _) => DenseResidual::Without,
                (true, false) => DenseResidual::AsItIs,
                (true, true) => DenseResidual::Through(Linear::read(&mut reader, "residual", Bias::from(false))?),
            };
            LoadedStep::Dense(DenseStep { product, activation: *activation, residual })
        }
    })
}

/// The bytes of a tensor that has this shape.
fn checked(files: &ModelFiles, name: &str, shape: &[usize]) -> Result<u64, ModelError> {
    let stored = files.get(name)?;
    if stored.shape != shape {
        let what = format!("has the shape {:?} in place of {shape:?}", stored.shape);
        return Err(ModelError::Tensor { name: name.to_owned(), what });
    }
    Ok(stored.len())
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
                let of_text = |(range, text): (Range<usize>, &EncoderText<'_>)| {
                    let rows = tokens.narrow(0, range.start, range.len())?;
                    let parts =
                        ways.iter().map(|way| way.of(&rows, text.left_out)).collect::<CandleResult<Vec<_>>>()?;
                    Tensor::cat(&parts, 1)
                };
                let all = ranges(texts).into_iter().zip(texts);
                Tensor::cat(&all.map(of_text).collect::<CandleResult<Vec<_>>>()?, 0)?
            }
            LoadedStep::Dense(dense) => dense.forward(&vectors)?,
            LoadedStep::Norm(norm) => norm.forward(&vectors)?,
            LoadedStep::Normalise => normalised(&vectors)?,
            LoadedStep::First(count) => vectors.narrow(1, 0, vectors.dim(1)?.min(*count))?,
        };
    }
    vectors.to_dtype(DType::F32)?.to_vec2()
}
