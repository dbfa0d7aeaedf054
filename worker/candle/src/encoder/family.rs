//! The contract of a family of encoders: what it needs of a file, and what becomes of it.

use std::ops::Range;

use candle_core::{Result as CandleResult, Tensor};
use model_boss_engine::{EncoderText, LabelShares};

use super::parts::EncoderPart;
use super::pooling::{DenseActivation, Pooling};
use super::steps::{DenseStep, LoadedStep};
use crate::device;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layers::linear::{Bias, Linear};
use crate::layers::norm::Norm;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;
use crate::spec::NormSpec;

/// A family's description of one model.
pub(super) trait EncoderFamily {
    fn size(&self) -> EncoderSize;

    /// Every tensor of the layers, by the names that [`Self::read`] uses.
    fn parts(&self, files: &ModelFiles) -> Vec<EncoderPart>;

    /// The same of a classifier's parts behind them.
    fn head_parts(&self, files: &ModelFiles) -> Vec<EncoderPart>;

    /// The names of a classifier's labels, and how its numbers become shares.
    fn labels(&self) -> (&[String], LabelShares);

    /// The tasks that it has adapters for.
    fn tasks(&self) -> &[String] {
        &[]
    }

    /// How a classifier makes one vector of a text's tokens.
    fn classifier_pooling(&self) -> Pooling;

    /// Reads the layers, for texts of at most `longest` tokens.
    fn read(
        &self,
        reader: &mut WeightReader<'_>,
        longest: usize,
        target: &WeightTarget,
    ) -> Result<Box<dyn EncoderBody>, ModelError>;

    /// Reads a classifier's parts behind its one vector.
    fn read_head(&self, reader: &mut WeightReader<'_>) -> Result<Vec<LoadedStep>, ModelError>;
}

/// The sizes of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EncoderSize {
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) vocabulary: usize,
    /// The longest text, in tokens.
    pub(super) longest: usize,
}

/// Called between the parts of layers, where other texts may be computed.
pub(crate) type Pause<'a> = &'a (dyn Fn() + Sync);

/// Layers with their weights.
pub(super) trait EncoderBody: Send + Sync {
    /// The vectors of all tokens, `[tokens, hidden]`. The ranges are the rows of each text. All texts are of one task.
    fn rows(&self, texts: &[EncoderText<'_>], ranges: &[Range<usize>], pause: Pause<'_>) -> CandleResult<Tensor>;
}

/// A product with a bias where the files have one.
pub(crate) fn linear(reader: &mut WeightReader<'_>, path: &str) -> Result<Linear, ModelError> {
    let bias = Bias::from(reader.files().has(&format!("{path}.bias")));
    let linear = Linear::read(reader, path, bias)?.in_panels();
    linear.map_err(|error| ModelError::Device(device::failure(&error)))
}

/// The parts of a classifier that the files have: a product with this activation, a norm, and the product for labels.
pub(super) fn read_head(
    reader: &mut WeightReader<'_>,
    activation: DenseActivation,
    norm: NormSpec,
) -> Result<Vec<LoadedStep>, ModelError> {
    let mut steps = Vec::new();
    if reader.files().has("head.dense.weight") {
        steps.push(DenseStep::plain(linear(reader, "head.dense")?, activation));
    }
    if reader.files().has("head.norm.weight") {
        steps.push(LoadedStep::Norm(Norm::read(reader, "head.norm", norm)?));
    }
    if reader.files().has("head.labels.weight") {
        steps.push(DenseStep::plain(linear(reader, "head.labels")?, DenseActivation::Identity));
    }
    Ok(steps)
}
