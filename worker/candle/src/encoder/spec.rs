//! Descriptions of encoders whose layers have a norm behind each part, as data.

use model_boss_engine::LabelShares;

use crate::spec::{Activation, ExpertsSpec, NormSpec, RopeSpec};

/// An encoder's shape.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EncoderSpec {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    /// Elements of a head.
    pub(crate) head_dim: usize,
    pub(crate) layers: usize,
    pub(crate) vocabulary: usize,
    /// The longest text, in tokens.
    pub(crate) longest: usize,
    pub(crate) places: TokenPlaces,
    pub(crate) kinds: TokenKinds,
    pub(crate) mlp: MlpForm,
    pub(crate) activation: Activation,
    pub(crate) experts: Option<EncoderExperts>,
    pub(crate) adapters: Adapters,
    pub(crate) norm: NormSpec,
    pub(crate) biases: Biases,
    pub(crate) head: HeadForm,
    /// The names of a classifier's labels, in their order.
    pub(crate) labels: Vec<String>,
    pub(crate) shares: LabelShares,
}

/// How tokens have their places in a text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TokenPlaces {
    /// A table of vectors with so many rows; that of a text's first token is `first`. The token in front of that number
    /// is padding: inside a text it has its own row and takes no place.
    Table { rows: usize, first: usize },
    /// Such a table, and biases of scores by distance, which all layers share (Song et al., 2020, arXiv 2004.09297).
    TableAndDistances { rows: usize, first: usize },
    /// Queries and keys are rotated.
    Rope(RopeSpec),
    /// Scores lose by distance, in each head by a factor of its own (ALiBi: Press et al., 2021, arXiv 2108.12409), to
    /// both sides alike.
    Alibi,
}

/// Vectors of the types of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenKinds {
    pub(crate) count: usize,
    /// Whether the tokens of a pair's second text have the second type.
    pub(crate) of_pairs: bool,
}

/// The form of the feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MlpForm {
    /// `down(act(up(x)))`.
    Plain,
    /// `down(act(gate(x)) * up(x))` (Shazeer, 2020, arXiv 2002.05202).
    Gated,
}

/// A mixture of experts in place of some layers' feed-forward part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EncoderExperts {
    pub(crate) spec: ExpertsSpec,
    /// The second of each so many layers has them.
    pub(crate) every: usize,
}

impl EncoderExperts {
    /// Whether a layer has them.
    pub(crate) fn are_in(&self, layer: usize) -> bool {
        self.every > 0 && layer % self.every == 1
    }
}

/// Low-rank additions to matrices for each task (LoRA: Hu et al., 2021, arXiv 2106.09685).
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Adapters {
    /// The names of the tasks.
    pub(crate) tasks: Vec<String>,
    pub(crate) rank: usize,
    /// The factor on additions.
    pub(crate) scale: f64,
}

/// Whether products have a bias; those of GGUF have one where the file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Biases {
    AsStored,
    Of { inputs: bool, out: bool, up: bool, down: bool },
}

impl Biases {
    pub(crate) const ALL: Self = Self::Of { inputs: true, out: true, up: true, down: true };
}

/// A classifier's parts behind the first token's vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadForm {
    /// The pooler of the layers, and a product.
    Pooler,
    /// Two products of the classifier.
    TwoProducts,
    /// DistilBERT's.
    Distil,
    /// The products that a GGUF file has.
    Gguf,
}

impl EncoderSpec {
    /// Elements of all heads.
    pub(crate) fn width(&self) -> usize {
        self.heads * self.head_dim
    }
}
