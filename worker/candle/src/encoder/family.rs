//! The contract of a family of encoders: what it needs of a file, and what becomes of it.

use std::ops::Range;

use candle_core::{Result as CandleResult, Tensor};
use model_boss_engine::{EncoderText, LabelShares};

use super::pooling::Pooling;
use super::steps::LoadedStep;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::matrix::target::WeightTarget;
use crate::read::reader::WeightReader;

/// A family's description of one model, from its `config.json`.
pub(super) trait EncoderFamily {
    fn size(&self) -> EncoderSize;

    /// The prefix that all names of the layers' tensors may have, and the name of the words' vectors behind it.
    fn prefix(&self) -> (&'static str, &'static str);

    /// Every tensor of the layers with its shape, names with this prefix.
    fn parts(&self, files: &ModelFiles, prefix: &str) -> Vec<NamedShape>;

    /// The same of a classifier's parts behind them.
    fn head_parts(&self, prefix: &str) -> Vec<NamedShape>;

    /// The names of a classifier's labels, and how its numbers become shares.
    fn labels(&self) -> (&[String], LabelShares);

    /// How a classifier makes one vector of a text's tokens.
    fn classifier_pooling(&self) -> Pooling;

    /// Reads the layers, for texts of at most `longest` tokens.
    fn read(
        &self,
        reader: &mut WeightReader<'_>,
        longest: usize,
        target: &WeightTarget,
        prefix: &str,
    ) -> Result<Box<dyn EncoderBody>, ModelError>;

    /// Reads a classifier's parts behind its one vector.
    fn read_head(&self, reader: &mut WeightReader<'_>, prefix: &str) -> Result<Vec<LoadedStep>, ModelError>;
}

/// A tensor's name and shape.
pub(super) type NamedShape = (String, Vec<usize>);

/// The sizes of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EncoderSize {
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) vocabulary: usize,
    /// The longest text, in tokens.
    pub(super) longest: usize,
}

/// Layers with their weights.
pub(super) trait EncoderBody: Send + Sync {
    /// The vectors of all tokens, `[tokens, hidden]`. The ranges are the rows of each text.
    fn rows(&self, texts: &[EncoderText<'_>], ranges: &[Range<usize>]) -> CandleResult<Tensor>;
}
