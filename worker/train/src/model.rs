//! A small Llama with trainable parameters: shape, random start from a seed, forward pass.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, Var};
use serde::{Deserialize, Serialize};

use crate::ops::{self, Rotary};
use crate::rng::Rng;

/// The shape of a Llama, in the words of its `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Architecture {
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward part's inner layer.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of query heads; their width is `hidden_size / num_attention_heads`.
    pub num_attention_heads: usize,
    /// Number of key and value heads, each shared by a group of query heads.
    pub num_key_value_heads: usize,
    /// The longest sequence, in tokens.
    pub max_position_embeddings: usize,
    /// The base of the rotary angles.
    pub rope_theta: f64,
    /// The epsilon of RMSNorm, added to the mean square.
    pub rms_norm_eps: f64,
}

impl Architecture {
    /// The shape of `guide` for a vocabulary of this size.
    pub fn guide(vocab_size: usize) -> Self {
        Self {
            vocab_size,
            hidden_size: 192,
            intermediate_size: 512,
            num_hidden_layers: 4,
            num_attention_heads: 6,
            num_key_value_heads: 2,
            max_position_embeddings: 512,
            rope_theta: 10_000.0,
            rms_norm_eps: 1e-5,
        }
    }

    fn head_width(&self) -> usize {
        self.hidden_size / self.num_attention_heads
    }

    /// The names and shapes of all parameters, with Hugging Face's names. The output layer is the embedding.
    fn parameters(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let keys = self.num_key_value_heads * self.head_width();
        let mut all = vec![("model.embed_tokens.weight".into(), vec![self.vocab_size, hidden])];
        for layer in 0..self.num_hidden_layers {
            let mut add = |name: &str, shape: &[usize]| {
                all.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
            };
            add("input_layernorm", &[hidden]);
            add("self_attn.q_proj", &[hidden, hidden]);
            add("self_attn.k_proj", &[keys, hidden]);
            add("self_attn.v_proj", &[keys, hidden]);
            add("self_attn.o_proj", &[hidden, hidden]);
            add("post_attention_layernorm", &[hidden]);
            add("mlp.gate_proj", &[inner, hidden]);
            add("mlp.up_proj", &[inner, hidden]);
            add("mlp.down_proj", &[hidden, inner]);
        }
        all.push(("model.norm.weight".into(), vec![hidden]));
        all
    }
}

/// A Llama with trainable parameters in f32.
pub struct GuideModel {
    /// The shape of the model.
    pub architecture: Architecture,
    /// The parameters by their Hugging Face names, in the order of the names.
    pub parameters: BTreeMap<String, Var>,
}

impl GuideModel {
    /// Random parameters: normal, `1 / sqrt(fan in)` wide, narrower by `1 / sqrt(2 * layers)` where a layer writes to
    /// the residual stream (Radford et al., 2019); norms start at one.
    pub fn random(architecture: Architecture, seed: u64) -> Result<Self> {
        let mut rng = Rng::new(seed, 0);
        let mut parameters = BTreeMap::new();
        for (name, shape) in architecture.parameters() {
            let count = shape.iter().product();
            let residual = 1.0 / (2.0 * architecture.num_hidden_layers as f64).sqrt();
            let width =
                match shape.last() {
                    Some(&fan_in) if shape.len() > 1 => (fan_in as f64).powf(-0.5),
                    _ => 0.0,
                } * if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") { residual } else { 1.0 };
            let centre = if shape.len() == 1 { 1.0 } else { 0.0 };
            let values: Vec<f32> = (0..count).map(|_| (centre + width * rng.normal()) as f32).collect();
            parameters.insert(name, Var::from_vec(values, shape, &Device::Cpu)?);
        }
        Ok(Self { architecture, parameters })
    }

    /// A model with the given tensors as parameters. All parameters of the architecture must be among them, with its
    /// shapes.
    pub fn from_tensors(architecture: Architecture, tensors: &HashMap<String, Tensor>) -> Result<Self> {
        let mut parameters = BTreeMap::new();
        for (name, shape) in architecture.parameters() {
            let tensor = match tensors.get(&name) {
                Some(tensor) if tensor.dims() == shape => tensor.to_dtype(DType::F32)?,
                Some(tensor) => candle_core::bail!("{name} is {:?}, not {shape:?}", tensor.dims()),
                None => candle_core::bail!("{name} is missing"),
            };
            parameters.insert(name, Var::from_tensor(&tensor)?);
        }
        Ok(Self { architecture, parameters })
    }

    /// The number of the model's parameters.
    pub fn parameter_count(&self) -> usize {
        self.parameters.values().map(|var| var.elem_count()).sum()
    }

    /// Logits `[places, vocabulary]` after the tokens at `places`, which are indices into `batch * time` of `tokens:
    /// [batch, time]`.
    ///
    /// `starts: [batch * time]` is the time in its row at which each token's conversation began; earlier tokens are not
    /// visible. Rotary positions only affect distances, so a conversation in the middle of a row has the same logits as
    /// alone.
    pub fn forward(&self, tokens: &Tensor, starts: &Arc<[u32]>, places: Vec<u32>) -> Result<Tensor> {
        let shape = &self.architecture;
        let (_, time) = tokens.dims2()?;
        let eps = shape.rms_norm_eps as f32;
        let rotary = Rotary::new(time, shape.head_width(), shape.rope_theta);
        let embedding = self.parameter("model.embed_tokens")?;
        let mut x = embedding.index_select(&tokens.flatten_all()?, 0)?;
        for layer in 0..shape.num_hidden_layers {
            let weight = |name: &str| self.parameter(&format!("model.layers.{layer}.{name}"));
            let normed = ops::rms_norm(&x, weight("input_layernorm")?, eps)?;
            let queries = linear(&normed, weight("self_attn.q_proj")?)?;
            let keys = linear(&normed, weight("self_attn.k_proj")?)?;
            let values = linear(&normed, weight("self_attn.v_proj")?)?;
            let mixed = self.attend([&queries, &keys, &values], starts, &rotary)?;
            x = (x + linear(&mixed, weight("self_attn.o_proj")?)?)?;

            let normed = ops::rms_norm(&x, weight("post_attention_layernorm")?, eps)?;
            let gate = linear(&normed, weight("mlp.gate_proj")?)?;
            let up = linear(&normed, weight("mlp.up_proj")?)?;
            x = (x + linear(&ops::swiglu(&gate, &up)?, weight("mlp.down_proj")?)?)?;
        }
        let count = places.len();
        let x = x.index_select(&Tensor::from_vec(places, count, x.device())?, 0)?;
        linear(&ops::rms_norm(&x, self.parameter("model.norm")?, eps)?, embedding)
    }

    /// Attention of `[batch * time, heads * width]`. The query heads of a group follow each other, so that keys and
    /// values are never repeated.
    fn attend(&self, [q, k, v]: [&Tensor; 3], starts: &Arc<[u32]>, rotary: &Rotary) -> Result<Tensor> {
        let shape = &self.architecture;
        let time = rotary.time();
        let batch = q.dim(0)? / time;
        let (heads, groups, width) = (shape.num_attention_heads, shape.num_key_value_heads, shape.head_width());
        let stacked = heads / groups * time;
        let queries = ops::rotary_heads(q, heads, rotary)?.reshape((batch, groups, stacked, width))?;
        let keys = ops::rotary_heads(k, groups, rotary)?;
        let values = v.reshape((batch, time, groups, width))?.transpose(1, 2)?.contiguous()?;
        let scores = queries.matmul(&keys.t()?)?;
        let weights = ops::causal_softmax(&scores, starts, (width as f32).powf(-0.5))?;
        let mixed = weights.matmul(&values)?.reshape((batch, heads, time, width))?;
        mixed.transpose(1, 2)?.reshape((batch * time, heads * width))
    }

    fn parameter(&self, name: &str) -> Result<&Tensor> {
        match self.parameters.get(&format!("{name}.weight")) {
            Some(var) => Ok(var.as_tensor()),
            None => candle_core::bail!("there is no parameter {name}"),
        }
    }
}

fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    x.matmul(&weight.t()?)
}
