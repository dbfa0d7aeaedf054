//! Causal self-attention with shared key and value heads (Ainslie et al., 2023, arXiv 2305.13245). Projections run over
//! the rows of all sequences at once, scores per sequence over its own keys. Holds weights, no keys.

use std::ops::Deref;

use candle_core::{DType, Layout, Result, Storage, Tensor, bail};
use model_boss_kernels::{AttentionHeads, AttentionRows, HeadNorm, HostKv, Rotation, SequenceRows};

use crate::error::ModelError;
use crate::layers::kv::{DeviceKv, LayerKv};
use crate::layers::linear::Linear;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::RmsNorm;
use crate::layers::step::{ScoreTile, SequenceSpan, StepContext};
use crate::matrix::tensor_products::contiguous;
use crate::spec::tensors;
use crate::spec::{AttentionBias, DecoderSpec};

pub(crate) struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    head_norms: Option<HeadNorms>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl Attention {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &DecoderSpec,
        index: usize,
    ) -> std::result::Result<Self, ModelError> {
        let head_norms = if spec.head_norm { Some(HeadNorms::read(parts, spec, index)?) } else { None };
        let bias = spec.attention_bias;
        let (of_inputs, of_output) = (bias != AttentionBias::None, bias == AttentionBias::All);
        let mut linear = |part: &str, bias: bool| Linear::read(parts, &tensors::layer(index, part), bias.into());
        Ok(Self {
            query: linear("self_attn.q_proj", of_inputs)?,
            key: linear("self_attn.k_proj", of_inputs)?,
            value: linear("self_attn.v_proj", of_inputs)?,
            output: linear("self_attn.o_proj", of_output)?,
            head_norms,
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
        })
    }

    /// `[rows, hidden]` → `[rows, hidden]`. Writes each sequence's new keys and values behind its past; `kv` has one
    /// entry per span.
    pub(crate) fn forward(&self, x: &Tensor, kv: Vec<LayerKv<'_>>, step: &StepContext) -> Result<Tensor> {
        let [query, key, value] = Linear::forward_all([&self.query, &self.key, &self.value], x)?;
        let (mut on_host, mut on_device) = (Vec::new(), Vec::new());
        for kv in kv {
            match kv {
                LayerKv::Host(kv) => on_host.push(kv),
                LayerKv::Device(kv) => on_device.push(kv),
            }
        }
        let attended = match on_host.len() {
            0 => self.attend_on_device(&query, &key, &value, &on_device, step)?,
            _ => self.attend_on_host(&query, &key, &value, &mut on_host, step)?,
        };
        self.output.forward(&attended)
    }

    /// `[rows, heads * head_dim]`, of projections in the host's memory.
    fn attend_on_host(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        kv: &mut [HostKv<'_>],
        step: &StepContext,
    ) -> Result<Tensor> {
        let heads = AttentionHeads { heads: self.heads, kv_heads: self.kv_heads, head_dim: self.head_dim };
        let [q, k, v] = [query, key, value].map(Tensor::storage_and_layout);
        let [cos, sin] = [&step.angles.cos, &step.angles.sin].map(Tensor::storage_and_layout);
        let norms = self.head_norms.as_ref().map(|norms| [norms.query.parts(), norms.key.parts()]);
        let weights = norms.map(|norms| norms.map(|(weight, eps)| (weight.storage_and_layout(), eps)));
        let norm = |index: usize| -> Result<Option<HeadNorm<'_>>> {
            let Some((weight, eps)) = weights.as_ref().map(|weights| &weights[index]) else { return Ok(None) };
            Ok(Some(HeadNorm { weight: floats(weight)?, eps: *eps }))
        };
        let rows = AttentionRows {
            query: floats(&q)?,
            key: floats(&k)?,
            value: floats(&v)?,
            query_norm: norm(0)?,
            key_norm: norm(1)?,
            rotation: Rotation { planes: step.angles.planes, cos: floats(&cos)?, sin: floats(&sin)? },
        };
        let places: Vec<SequenceRows> =
            step.spans.iter().map(|span| SequenceRows { rows: span.rows.clone(), past: span.past }).collect();
        let attended = heads.attend(&rows, &places, kv);
        Tensor::from_vec(attended, query.shape(), query.device())
    }

    /// Attention on other devices than the CPU.
    fn attend_on_device(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        kv: &[DeviceKv<'_>],
        step: &StepContext,
    ) -> Result<Tensor> {
        let rows = query.dim(0)?;
        // Scores are products with the query, so scaling it costs `head_dim` per row in place of one per key.
        let scale = (self.head_dim as f64).powf(-0.5);
        let (mut query, mut key) = (query.clone(), key.clone());
        if let Some(norms) = &self.head_norms {
            query = per_head(&norms.query, &query, self.heads)?;
            key = per_head(&norms.key, &key, self.kv_heads)?;
        }
        let query = (step.angles.rotate(&query, self.heads)? * scale)?;
        let key = step.angles.rotate(&key, self.kv_heads)?;
        let value = value.reshape((rows, self.kv_heads, self.head_dim))?;

        let attended = kv
            .iter()
            .zip(&step.spans)
            .map(|(kv, span)| {
                let of_span = |all: &Tensor| heads_first(&all.narrow(0, span.rows.start, span.rows.len())?);
                kv.write(&of_span(&key)?, &of_span(&value)?, span.past)?;
                self.attend(&of_span(&query)?, kv, span)
            })
            .collect::<Result<Vec<_>>>()?;
        joined(&attended)
    }

    /// One sequence: `[heads, rows, head_dim]` → `[rows, heads * head_dim]`.
    fn attend(&self, query: &Tensor, kv: &DeviceKv<'_>, span: &SequenceSpan) -> Result<Tensor> {
        let tiles = span
            .tiles
            .iter()
            .map(|tile| {
                let query = match span.tiles.len() {
                    1 => query.clone(),
                    _ => query.narrow(1, tile.rows.start, tile.rows.len())?.contiguous()?,
                };
                self.attend_tile(&query, kv, tile)
            })
            .collect::<Result<Vec<_>>>()?;
        joined(&tiles)
    }

    fn attend_tile(&self, query: &Tensor, kv: &DeviceKv<'_>, tile: &ScoreTile) -> Result<Tensor> {
        let (rows, group) = (tile.rows.len(), self.heads / self.kv_heads);
        let (keys, values) = kv.first(tile.keys, query.dtype())?;
        // The query heads that share a key head lie behind one another: as rows of one product they need no copy of it.
        let query = query.reshape((self.kv_heads, group * rows, self.head_dim))?;
        // Softmax in f32, whatever the products are in: a free clone where they are f32 anyway.
        let mut scores = query.matmul(&keys.t()?)?.to_dtype(DType::F32)?;
        if let Some(mask) = &tile.mask {
            scores = scores.reshape((self.heads, rows, tile.keys))?.broadcast_add(mask)?;
            scores = scores.reshape((self.kv_heads, group * rows, tile.keys))?;
        }
        let mixed = candle_nn::ops::softmax_last_dim(&scores)?.to_dtype(values.dtype())?.matmul(&values)?;
        let mixed = mixed.reshape((self.heads, rows, self.head_dim))?;
        let mixed = if rows == 1 { mixed } else { mixed.transpose(0, 1)?.contiguous()? };
        mixed.reshape((rows, self.heads * self.head_dim))
    }
}

/// Norms over each head, `[head_dim]`.
struct HeadNorms {
    query: RmsNorm,
    key: RmsNorm,
}

impl HeadNorms {
    fn read(parts: &mut dyn NamedWeights, spec: &DecoderSpec, index: usize) -> std::result::Result<Self, ModelError> {
        let mut norm = |part: &str| RmsNorm::read(parts, &tensors::layer(index, part), spec.norm_eps);
        Ok(Self { query: norm("self_attn.q_norm.weight")?, key: norm("self_attn.k_norm.weight")? })
    }
}

/// A tensor's numbers where they lie in the host's memory.
fn floats<'a>((storage, layout): &'a (impl Deref<Target = Storage>, &Layout)) -> Result<&'a [f32]> {
    match &**storage {
        Storage::Cpu(storage) => contiguous(storage, layout),
        _ => bail!("keys and values in the host's memory need rows that lie there too"),
    }
}

/// `[rows, heads * head_dim]`, each head by itself.
fn per_head(norm: &RmsNorm, x: &Tensor, heads: usize) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    norm.forward(&x.reshape((rows * heads, width / heads.max(1)))?)?.reshape((rows, width))
}

/// `[rows, heads, head_dim]` → `[heads, rows, head_dim]`, contiguous; free for a single row.
fn heads_first(x: &Tensor) -> Result<Tensor> {
    let (rows, heads, head_dim) = x.dims3()?;
    if rows == 1 { x.reshape((heads, 1, head_dim)) } else { x.transpose(0, 1)?.contiguous() }
}

/// Rows behind rows; free for a single part.
fn joined(parts: &[Tensor]) -> Result<Tensor> {
    match parts {
        [only] => Ok(only.clone()),
        parts => Tensor::cat(parts, 0),
    }
}
