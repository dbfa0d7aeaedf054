//! A decoder's description, as data: all properties of an architecture that the layers need, whether from `config.json`
//! or GGUF metadata.

use model_boss_kernels::RopePlanes;

/// A decoder-only transformer of the Llama family.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderSpec {
    /// Number of transformer layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head. `heads * head_dim` need not be `hidden`.
    pub head_dim: usize,
    /// Width of the feed-forward part's inner layer.
    pub intermediate: usize,
    /// Rows of the embedding: tokens of the vocabulary.
    pub vocab: usize,
    /// The epsilon of RMSNorm, added to the mean square.
    pub norm_eps: f64,
    /// The rotary position embedding.
    pub rope: RopeSpec,
    /// Whether the output head is the embedding.
    pub tied_head: bool,
    /// The attention projections that have a bias.
    pub attention_bias: AttentionBias,
    /// Whether each query and key head has an RMSNorm before it is rotated.
    pub head_norm: bool,
    /// Whether the three feed-forward projections have a bias.
    pub mlp_bias: bool,
    /// The activation of the feed-forward gate.
    pub activation: Activation,
    /// The longest sequence of the model, in tokens.
    pub max_positions: usize,
}

/// The attention projections that have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionBias {
    /// No projection has a bias.
    None,
    /// The projections of query, key and value, as in Qwen2.
    QueryKeyValue,
    /// All four projections: query, key, value and output.
    All,
}

/// Rotary position embedding over the whole head.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// The pairs of elements that are rotated together.
    pub planes: RopePlanes,
    /// The base of the wavelengths.
    pub theta: f64,
    /// The change of wavelengths for longer sequences.
    pub scaling: RopeScaling,
}

/// The scaling of rotary wavelengths, named as in `transformers`.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling. The variant also serves `dynamic`, which scales only beyond `max_positions`, the most that a decoder
    /// serves.
    None,
    /// Division of every frequency by `factor`.
    Linear {
        /// The divisor of every frequency.
        factor: f64,
    },
    /// The scaling of Llama 3.1: long wavelengths are scaled, short ones are not, and those between are interpolated.
    Llama3 {
        /// The divisor of the frequencies of long wavelengths.
        factor: f64,
        /// Wavelengths above `original_max_positions / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions / high_freq_factor` are short.
        high_freq_factor: f64,
        /// The longest sequence before scaling, in tokens.
        original_max_positions: f64,
    },
    /// Division of each plane's frequency by its own factor, one for each half of `head_dim`. GGUF files express Llama
    /// 3.1's scaling in this way.
    Factors(Vec<f32>),
    /// YaRN (Peng et al., 2023, arXiv 2309.00071): interpolation by parts, and a scale on attention.
    Yarn {
        /// The divisor of the frequencies of long wavelengths.
        factor: f64,
        /// The factor on cosine and sine.
        attention_factor: f64,
        /// Dimensions with more rotations than this are not scaled.
        beta_fast: f64,
        /// Dimensions with fewer rotations than this are divided by `factor`.
        beta_slow: f64,
        /// The longest sequence before scaling, in tokens.
        original_max_positions: f64,
        /// Whether the ramp's ends are rounded outwards to whole dimensions.
        truncate: bool,
    },
}

/// The activation of a gated feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// SiLU: `x * sigmoid(x)`.
    Silu,
    /// GELU, exact by the error function.
    GeluErf,
    /// GELU, approximated by tanh.
    GeluTanh,
    /// ReLU: `max(x, 0)`.
    Relu,
}

impl DecoderSpec {
    /// Query heads per key and value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }

    /// Width of all query heads.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key heads, and of all value heads.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}
