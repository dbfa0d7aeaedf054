//! Descriptions of parts that mix tokens by a state of fixed size, which every token changes.

use crate::spec::mlp_spec::Activation;

/// A gated convolution over the last few tokens, as in LFM2 (Liquid AI, 2025, arXiv 2511.23404).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConvSpec {
    /// Width of the stream.
    pub width: usize,
    /// Tokens that the convolution sees, the present one included.
    pub taps: usize,
    /// Whether the projections and the convolution have biases.
    pub bias: bool,
}

/// A matrix for each head that learns values by their keys (Yang et al., 2024, arXiv 2412.06464).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaNetSpec {
    /// Number of heads of queries and keys.
    pub key_heads: usize,
    /// Number of heads of values; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a query and of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Tokens that the convolution sees, the present one included.
    pub taps: usize,
    /// The activation behind the convolution.
    pub activation: Activation,
    /// The epsilon of the norm behind heads.
    pub norm_eps: f64,
    /// The stored form of the decay.
    pub decay: StoredDecay,
    /// Whether the projections of queries, keys, values and gates are one matrix, key head by key head.
    pub one_input: bool,
    /// Whether the projections of learning rates and decays are one matrix, key head by key head.
    pub one_rate: bool,
    /// The key head of each value head.
    pub sharing: KeySharing,
}

/// The key head that a value head has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySharing {
    /// Value heads that are neighbours share a key head.
    Neighbours,
    /// Key heads take turns.
    Turns,
}

/// The stored form of a head's decay, which is a negative number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredDecay {
    /// The logarithm of its size.
    Log,
    /// The number.
    Plain,
}

/// A matrix for each head that adds values by their keys and decays as a whole: Mamba-2 (Dao and Gu, 2024, arXiv
/// 2405.21060).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MambaSpec {
    /// Number of heads.
    pub heads: usize,
    /// Width of a head's value.
    pub head_dim: usize,
    /// Groups of heads, each of which shares a key and a query; divides `heads`.
    pub groups: usize,
    /// Width of a key and of a query.
    pub state_dim: usize,
    /// Tokens that the convolution sees, the present one included.
    pub taps: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// The activation behind the convolution.
    pub activation: Activation,
    /// Whether the projection of inputs has a bias.
    pub bias: bool,
    /// Whether the projection of outputs has one.
    pub out_bias: bool,
    /// The smallest step of time.
    pub least_step: f32,
    /// The largest step of time.
    pub most_step: f32,
    /// The norm behind heads, and its gate.
    pub norm: GatedNorm,
    /// The epsilon of the norm.
    pub norm_eps: f64,
    /// The stored form of the decay.
    pub decay: StoredDecay,
    /// The factors on gates, values, keys, queries and steps, as they are projected.
    pub factors: [f32; 5],
}

/// The norm behind heads, over each group, and the gate of its input or result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatedNorm {
    /// The gate alone.
    None,
    /// The gate opens before the norm.
    GateFirst,
    /// The gate opens behind the norm.
    NormFirst,
}

impl ShortConvSpec {
    /// Numbers of a sequence's state: the tokens that the next one's convolution sees.
    pub fn state_len(&self) -> usize {
        self.taps.saturating_sub(1) * self.width
    }
}

impl DeltaNetSpec {
    /// Width of the queries of all heads, and of their keys.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of the values of all heads.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Width of what the convolution sees: queries, keys and values.
    pub fn conv_width(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Numbers of the tokens that the next one's convolution sees.
    pub fn window_len(&self) -> usize {
        self.taps.saturating_sub(1) * self.conv_width()
    }

    /// Numbers of a sequence's state: tokens for the convolution, then each head's matrix, `[key_dim, value_dim]`.
    pub fn state_len(&self) -> usize {
        self.window_len() + self.value_heads * self.key_dim * self.value_dim
    }
}

impl MambaSpec {
    /// Width of the values of all heads.
    pub fn inner(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of what the convolution sees: values, keys and queries.
    pub fn conv_width(&self) -> usize {
        self.inner() + 2 * self.groups * self.state_dim
    }

    /// Rows of the input's projection: gates, what the convolution sees, and steps.
    pub fn input_rows(&self) -> usize {
        self.inner() + self.conv_width() + self.heads
    }

    /// Numbers of the tokens that the next one's convolution sees.
    pub fn window_len(&self) -> usize {
        self.taps.saturating_sub(1) * self.conv_width()
    }

    /// Numbers of a sequence's state: tokens for the convolution, then each head's matrix, `[state_dim, head_dim]`.
    pub fn state_len(&self) -> usize {
        self.window_len() + self.inner() * self.state_dim
    }
}
