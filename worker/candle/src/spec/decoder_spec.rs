//! A decoder's description, as data. Everything the layers need to know about an architecture stands here; where it was
//! read from (`config.json`, GGUF metadata) does not.

/// A decoder-only transformer of the Llama family.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderSpec {
    /// Transformer layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head. `heads * head_dim` need not be `hidden`.
    pub head_dim: usize,
    /// Width inside the feed-forward part.
    pub intermediate: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Added to the mean square in RMSNorm.
    pub norm_eps: f64,
    /// Rotary position embedding.
    pub rope: RopeSpec,
    /// Whether the output head is the embedding.
    pub tied_head: bool,
    /// The attention projections that have a bias.
    pub attention_bias: AttentionBias,
    /// Whether every query and key head passes an RMSNorm of its own before it is rotated.
    pub head_norm: bool,
    /// Whether the three feed-forward projections have a bias.
    pub mlp_bias: bool,
    /// The gate's activation.
    pub activation: Activation,
    /// Longest sequence the model is meant for, in tokens.
    pub max_positions: usize,
}

/// The attention projections that have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionBias {
    /// None.
    None,
    /// Query, key and value, as in Qwen2.
    QueryKeyValue,
    /// These and the output.
    All,
}

/// Rotary position embedding over the whole head.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// The elements that are rotated together.
    pub planes: RopePlanes,
    /// Base of the wavelengths.
    pub theta: f64,
    /// The change of wavelengths for longer sequences.
    pub scaling: RopeScaling,
}

/// Which two elements of a head make a plane that is rotated. The same weights with their rows in another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePlanes {
    /// Element `i` of the first half with element `i` of the second (GPT-NeoX's way, and that of all safetensors here).
    Halves,
    /// Neighbours (the paper's way, and that of GGUF files with architecture `llama`).
    Neighbours,
}

/// A stretching of rotary wavelengths, by the names of `transformers`.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// As trained. Also used for `dynamic`, which stretches nothing within `max_positions`, and a decoder never serves
    /// more than that.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths divided, short ones kept, a smooth passage between.
    Llama3 {
        /// The divisor of long wavelengths.
        factor: f64,
        /// `original_max_positions / low_freq_factor` is where "long" begins.
        low_freq_factor: f64,
        /// `original_max_positions / high_freq_factor` is where "short" ends.
        high_freq_factor: f64,
        /// Longest sequence before stretching.
        original_max_positions: f64,
    },
    /// Each plane's frequency divided by its own factor, one for each half of `head_dim`. How GGUF files spell Llama
    /// 3.1's.
    Factors(Vec<f32>),
    /// YaRN (Peng et al., 2023, arXiv 2309.00071): interpolation by parts, and warmer attention.
    Yarn {
        /// The divisor of long wavelengths.
        factor: f64,
        /// Factor on cosine and sine.
        attention_factor: f64,
        /// Rotations above which a dimension is kept.
        beta_fast: f64,
        /// Rotations below which a dimension is divided.
        beta_slow: f64,
        /// Longest sequence before stretching.
        original_max_positions: f64,
        /// Whether the ramp's ends are rounded outwards to whole dimensions.
        truncate: bool,
    },
}

/// The activation of a gated feed-forward part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// Exact, with the error function.
    GeluErf,
    /// The approximation with tanh.
    GeluTanh,
    /// `max(x, 0)`.
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

    /// Width of all key heads; values have the same.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}
