//! The encoder with its weights.

use candle_core::{Result as CandleResult, Tensor};

use super::t5_spec::T5Spec;
use crate::encoder::attend::{ScoreBiases, Sight, attend};
use crate::encoder::distances::DistanceBuckets;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::norm::Norm;
use crate::matrix::Matrix;
use crate::matrix::target::WeightTarget;
use crate::spec::Activation;
use crate::speech::weights::SpeechWeights;

/// The texts of an encoder, by which the form of its matrices is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum T5Texts {
    /// A few tokens.
    Short,
    /// Hundreds of tokens.
    Long,
}

/// An encoder with its weights.
pub(crate) struct T5Encoder {
    tokens: Matrix,
    layers: Vec<T5Layer>,
    /// A number of each head by the distance of two tokens, `[buckets, heads]`: those of all layers.
    distances: Tensor,
    buckets: DistanceBuckets,
    norm: Norm,
    target: WeightTarget,
    heads: usize,
    vocabulary: usize,
}

struct T5Layer {
    norm: Norm,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    feed_norm: Norm,
    /// None of a layer without a gate.
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
    /// Scores are sums of products that are not scaled.
    unscaled: f64,
}

impl T5Encoder {
    /// Reads the encoder whose names begin so.
    pub(crate) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        prefix: &str,
        (spec, texts): (&T5Spec, T5Texts),
        target: &WeightTarget,
    ) -> Result<Self, ModelError> {
        let names = [format!("{prefix}shared.weight"), format!("{prefix}encoder.embed_tokens.weight")];
        let name = if weights.has(&names[0]) { &names[0] } else { &names[1] };
        let tokens = weights.rows(name, [spec.vocab_size, spec.d_model])?;
        let block = |at: usize| format!("{prefix}encoder.block.{at}");
        let layers = (0..spec.num_layers).map(|at| T5Layer::read(weights, &block(at), (spec, texts)));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let buckets = spec.buckets();
        let name = format!("{}.layer.0.SelfAttention.relative_attention_bias.weight", block(0));
        let distances = weights.tensor(&name, &[buckets.all(), spec.num_heads])?;
        let norm = weights.norm(&format!("{prefix}encoder.final_layer_norm"), spec.d_model, spec.norm())?;
        let (heads, vocabulary) = (spec.num_heads, spec.vocab_size);
        Ok(Self { tokens, layers, distances, buckets, norm, target: target.clone(), heads, vocabulary })
    }

    /// The rows of some tokens, `[tokens, width]`.
    pub(crate) fn states(&self, tokens: &[u32]) -> CandleResult<Tensor> {
        if tokens.is_empty() || tokens.iter().any(|token| *token as usize >= self.vocabulary) {
            candle_core::bail!("a text has tokens that the model does not have");
        }
        let biases = self.buckets.biases(&self.distances, tokens.len(), &self.target.device)?;
        let biases = Some(ScoreBiases::ByDistance(&biases));
        let sight = Sight { heads: self.heads, biases, slopes: None, farthest: None };
        let mut x = self.tokens.rows(tokens, &self.target)?;
        for layer in &self.layers {
            x = layer.forward(&x, &sight)?;
        }
        self.norm.forward(&x)
    }
}

impl T5Layer {
    fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        (spec, texts): (&T5Spec, T5Texts),
    ) -> Result<Self, ModelError> {
        let (width, inner, attended) = (spec.d_model, spec.d_ff, spec.num_heads * spec.d_kv);
        let (activation, gated) = spec.feed_forward()?;
        let norm = weights.norm(&format!("{path}.layer.0.layer_norm"), width, spec.norm())?;
        let feed_norm = weights.norm(&format!("{path}.layer.1.layer_norm"), width, spec.norm())?;
        let mut product = |name: &str, shape| {
            let linear = weights.product(&format!("{path}.layer.{name}"), shape)?;
            if texts == T5Texts::Long { weights.made(linear.in_panels()) } else { Ok(linear) }
        };
        let mut attention = |name: &str, shape| product(&format!("0.SelfAttention.{name}"), shape);
        let (query, key) = (attention("q", [attended, width])?, attention("k", [attended, width])?);
        let (value, out) = (attention("v", [attended, width])?, attention("o", [width, attended])?);
        let mut feed = |name: &str, shape| product(&format!("1.DenseReluDense.{name}"), shape);
        let gate = if gated { Some(feed("wi_0", [inner, width])?) } else { None };
        let up = feed(if gated { "wi_1" } else { "wi" }, [inner, width])?;
        let down = feed("wo", [width, inner])?;
        let unscaled = (spec.d_kv as f64).sqrt();
        Ok(Self { norm, query, key, value, out, feed_norm, gate, up, down, activation, unscaled })
    }

    fn forward(&self, x: &Tensor, sight: &Sight<'_>) -> CandleResult<Tensor> {
        let [query, key, value] = Linear::forward_all([&self.query, &self.key, &self.value], &self.norm.forward(x)?)?;
        let query = (query * self.unscaled)?;
        let text = 0..x.dim(0)?;
        let mixed = attend([&query, &key, &value], std::slice::from_ref(&text), sight)?;
        let x = (x + self.out.forward(&mixed)?)?;
        let normed = self.feed_norm.forward(&x)?;
        let inner = match &self.gate {
            Some(gate) => {
                let [gate, up] = Linear::forward_all([gate, &self.up], &normed)?;
                self.activation.gated(&gate, &up)?
            }
            None => self.activation.in_place(self.up.forward(&normed)?)?,
        };
        x + self.down.forward(&inner)?
    }
}
