//! A decoder's description, as data: all properties of an architecture that the layers need, whether from `config.json`
//! or GGUF metadata.

use crate::spec::attention_spec::{AttentionSpec, LatentSpec};
use crate::spec::experts_spec::ExpertsSpec;
use crate::spec::fact_error::FactError;
use crate::spec::mlp_spec::{Activation, MlpSpec};
use crate::spec::recurrent_spec::{DeltaNetSpec, MambaSpec, ShortConvSpec};
use crate::spec::rope_spec::RopeSpec;
use crate::spec::spelling::TensorSpelling;

/// A decoder-only transformer: what is outside of its layers, and each layer.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderSpec {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding: tokens of the vocabulary.
    pub vocab: usize,
    /// The layers, from the first to the last.
    pub layers: Vec<LayerSpec>,
    /// The norms of layers, and the one behind the last.
    pub norm: NormSpec,
    /// The rotary position embeddings that layers choose from.
    pub ropes: Vec<RopeSpec>,
    /// Whether the output head is the embedding.
    pub tied_head: bool,
    /// Whether the output head has a bias.
    pub head_bias: bool,
    /// The factors on values outside of the layers' products.
    pub factors: Factors,
    /// Streams beside the one that layers compute on, as in Gemma 3n.
    pub streams: Option<StreamsSpec>,
    /// The factors on matrices and biases of all layers, by their parts' names.
    pub matrix_factors: Vec<(&'static str, f64)>,
    /// The bound of logits, which the hyperbolic tangent keeps them within.
    pub logit_softcap: Option<f64>,
    /// Whether the places of an image see each other in both directions.
    pub whole_images: bool,
    /// The longest sequence of the model, in tokens.
    pub max_positions: usize,
    /// The names of its tensors in the files.
    pub spelling: TensorSpelling,
}

/// Factors on values that pass between layers. Each is 1 in most families.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// On rows of the embedding.
    pub embedding: f64,
    /// On rows that images have in place of embeddings.
    pub images: f64,
    /// On the result of each part of a layer, before it is added to the stream.
    pub residual: f64,
    /// On logits.
    pub logits: f64,
}

impl Default for Factors {
    fn default() -> Self {
        Self { embedding: 1.0, images: 1.0, residual: 1.0, logits: 1.0 }
    }
}

/// Several residual streams, of which layers compute on one and correct the others (AltUp: Baykal et al., 2023, arXiv
/// 2301.13310); and inputs of tokens that each layer has for itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamsSpec {
    /// Number of streams.
    pub count: usize,
    /// The stream that layers compute on.
    pub active: usize,
    /// Width of a layer's own input.
    pub layer_input: usize,
    /// Rows of the embedding of those inputs; other tokens have that of token 0.
    pub layer_vocab: usize,
    /// Width of the narrow product beside attention (LAuReL: Menghani et al., 2024, arXiv 2411.07501).
    pub laurel_rank: usize,
    /// Whether the stream is scaled before it meets a layer's own input.
    pub scaled: bool,
    /// The activation between the two.
    pub activation: Activation,
}

/// One layer: a part that mixes tokens, and a part that computes on each by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The part that mixes tokens.
    pub mixer: Mixer,
    /// The part that computes on each token by itself.
    pub feed_forward: FeedForward,
    /// The places of norms.
    pub norms: NormPlaces,
}

/// The part of a layer that mixes tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Attention over keys and values of each token.
    Attention(AttentionSpec),
    /// Attention over one latent vector of each token.
    Latent(LatentSpec),
    /// A convolution over the last few tokens.
    ShortConv(ShortConvSpec),
    /// A matrix for each head that learns values by their keys.
    DeltaNet(DeltaNetSpec),
    /// A matrix for each head that adds values by their keys, and decays.
    Mamba(MambaSpec),
    /// Attention and Mamba beside each other, whose results are added.
    Both(AttentionSpec, MambaSpec),
    /// None: the layer has a feed-forward part alone.
    None,
}

impl Mixer {
    /// Numbers of a sequence's state.
    pub fn state_len(&self) -> usize {
        match self {
            Self::Attention(_) | Self::Latent(_) | Self::None => 0,
            Self::ShortConv(spec) => spec.state_len(),
            Self::DeltaNet(spec) => spec.state_len(),
            Self::Mamba(spec) | Self::Both(_, spec) => spec.state_len(),
        }
    }
}

/// The part of a layer that computes on each token by itself.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedForward {
    /// `down(act(gate(x)) * up(x))`.
    Gated(MlpSpec),
    /// `down(act(up(x)))`.
    Plain(MlpSpec),
    /// A router, and the experts that it chooses among.
    Experts(ExpertsSpec),
    /// None: the layer has a part that mixes tokens alone.
    None,
}

/// The norms of a layer, in the order in which families came to have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlaces {
    /// Before each part, as in Llama.
    Before,
    /// Behind each part, before its result is added to the stream, as in OLMo 2.
    Behind,
    /// Before and behind each part, as in Gemma 2.
    Around,
    /// One before both parts, whose results are added to the stream together, as in Cohere.
    Parallel,
}

impl NormPlaces {
    /// Whether a norm comes before each part.
    pub fn before(self) -> bool {
        matches!(self, Self::Before | Self::Around)
    }

    /// Whether a norm comes behind each part.
    pub fn behind(self) -> bool {
        matches!(self, Self::Behind | Self::Around)
    }
}

/// A norm over the stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// The formula.
    pub kind: NormKind,
    /// The number added to the mean square, or to the variance.
    pub eps: f64,
}

/// The formula of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMSNorm (Zhang and Sennrich, 2019, arXiv 1910.07467).
    Rms,
    /// RMSNorm whose stored weights are differences from 1.
    RmsFromOne,
    /// LayerNorm (Ba et al., 2016, arXiv 1607.06450), with weights alone.
    Layer,
    /// LayerNorm with weights and biases.
    LayerWithBias,
}

impl DecoderSpec {
    /// The attention of each layer that has one.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) | Mixer::Both(attention, _) => Some(attention),
            _ => None,
        })
    }

    /// Whether tokens see those behind them, so that texts have to come whole.
    pub fn sees_behind(&self) -> bool {
        self.attentions().any(|attention| attention.both_ways)
    }

    /// Lets tokens see those behind them; not where they are mixed by latent vectors. A window is of as many tokens as
    /// it has on each side beside the own one (the masks of transformers 5.23 without `is_causal`).
    pub(crate) fn look_behind(&mut self) -> Result<(), FactError> {
        if self.layers.iter().any(|layer| matches!(layer.mixer, Mixer::Latent(_))) {
            return Err(FactError::Unsupported("latent attention to tokens behind a token".to_owned()));
        }
        for layer in &mut self.layers {
            if let Mixer::Attention(attention) | Mixer::Both(attention, _) = &mut layer.mixer {
                attention.window = attention.window.map(|window| window.saturating_add(1));
                attention.both_ways = true;
            }
        }
        Ok(())
    }

    /// The earlier layer whose keys and values a layer uses; none where it has its own.
    pub fn lender(&self, layer: usize) -> Option<usize> {
        match &self.layers.get(layer)?.mixer {
            Mixer::Attention(attention) => attention.keys_of,
            _ => None,
        }
    }
}
