//! Self-attention with shared key and value heads (Ainslie et al., 2023, arXiv 2305.13245). Projections run over
//! the rows of all sequences at once, scores per sequence over its own keys. Holds weights, no keys.

use candle_core::{Result, Tensor};
use model_boss_kernels::{AttentionHeads, KvValues};

use crate::device;
use crate::error::ModelError;
use crate::layers::attend::{Attended, HeadNorms, ProjectedRows};
use crate::layers::kv::LayerKv;
use crate::layers::linear::{Linear, PartRows};
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::{LayerNorm, NormedRows, RmsNorm};
use crate::layers::step::{LentKeys, StepContext};
use crate::spec::{AttentionSpec, NormSpec, QueryKeyNorm, part_names};

pub(crate) struct Attention {
    query: Linear,
    /// Of keys and values; none in a layer that uses those of another.
    key_value: Option<(Linear, Linear)>,
    output: Linear,
    norms: Norms,
    /// The norm of values, without weights: its epsilon.
    value_norm: Option<f32>,
    /// The layer's number, and that of the layer whose keys and values it uses.
    index: usize,
    keys_of: Option<usize>,
    /// Whether another layer uses its keys and values.
    lends: bool,
    /// `[heads]`, in f32.
    sinks: Option<Tensor>,
    attended: Attended,
    output_gate: bool,
    clamp: Option<f64>,
}

/// Norms of queries and keys.
enum Norms {
    None,
    /// Part of attention itself.
    Heads(HeadNorms),
    /// Over all heads.
    Whole(RmsNorm, RmsNorm),
    /// Of each head, and then each head's own weights, `[heads * head_dim]`.
    LayerPerHead(LayerNorm, Tensor, Tensor),
}

impl Attention {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &AttentionSpec,
        norm: NormSpec,
        index: usize,
        lends: bool,
    ) -> std::result::Result<Self, ModelError> {
        let path = |part: &str| part_names::layer(index, part);
        let names = ["self_attn.q_norm.weight", "self_attn.k_norm.weight"].map(path);
        let mut rms = |name: &str| RmsNorm::read(parts, name, norm);
        let norms = match spec.norm {
            QueryKeyNorm::None => Norms::None,
            QueryKeyNorm::Heads(order) => {
                let query = rms(&names[0])?;
                // A layer with keys of another has the other's norm too.
                let key = if spec.keys_of.is_none() { rms(&names[1])? } else { query.clone() };
                Norms::Heads(HeadNorms { query, key, order })
            }
            QueryKeyNorm::Whole => Norms::Whole(rms(&names[0])?, rms(&names[1])?),
            QueryKeyNorm::LayerPerHead => {
                let [query, key] = [parts.tensor(&names[0])?, parts.tensor(&names[1])?];
                let made = || {
                    let plain = LayerNorm::plain(&query, spec.head_dim, norm.eps as f32)?;
                    Ok(Norms::LayerPerHead(plain, query.flatten_all()?, key.flatten_all()?))
                };
                made().map_err(|error: candle_core::Error| ModelError::Device(device::failure(&error)))?
            }
        };
        let sinks = if spec.sinks { Some(parts.tensor(&path("self_attn.sinks"))?) } else { None };
        let mut linear = |part: &str, bias: bool| Linear::read(parts, &path(part), bias.into());
        let (of_inputs, of_output) = (spec.bias.of_inputs(), spec.bias.of_output());
        let key_value = match spec.keys_of {
            None => Some((linear("self_attn.k_proj", of_inputs)?, linear("self_attn.v_proj", of_inputs)?)),
            Some(_) => None,
        };
        Ok(Self {
            query: linear("self_attn.q_proj", of_inputs)?,
            key_value,
            output: linear("self_attn.o_proj", of_output)?,
            norms,
            value_norm: spec.value_norm.then_some(norm.eps as f32),
            index,
            keys_of: spec.keys_of,
            lends,
            sinks,
            attended: Attended {
                heads: AttentionHeads {
                    heads: spec.heads,
                    kv_heads: spec.kv_heads,
                    head_dim: spec.head_dim,
                    value_dim: spec.head_dim,
                    scale: spec.scale as f32,
                    window: spec.window,
                    softcap: spec.softcap.map(|bound| bound as f32),
                    both_ways: spec.both_ways,
                },
                values: KvValues::Apart(spec.head_dim),
                rope: spec.rope,
                first: 0,
            },
            output_gate: spec.output_gate,
            clamp: spec.clamp,
        })
    }

    /// `[rows, hidden]` behind a norm → `[rows, hidden]`, added to a stream if one is given and that takes no launch of
    /// its own. Writes each sequence's new keys and values behind its past; `kv` has one entry per span.
    pub(crate) fn forward(
        &self,
        x: &NormedRows<'_>,
        kv: Vec<LayerKv<'_>>,
        step: &StepContext,
        stream: Option<&Tensor>,
    ) -> Result<PartRows> {
        let (query, lent) = match (&self.key_value, self.keys_of) {
            (Some((key, value)), _) => {
                let [query, key, value] = Linear::forward_normed([&self.query, key, value], x)?;
                (query, LentKeys { key, value: self.normed_value(value)?, key_norm: None })
            }
            (None, of) => {
                let [query] = Linear::forward_normed([&self.query], x)?;
                (query, step.borrow(of.unwrap_or(self.index))?)
            }
        };
        let (query, gate) = if self.output_gate { self.with_gate(&query)? } else { (query, None) };
        let LentKeys { key, mut value, key_norm } = lent;
        let (mut query, mut key, norms) = self.normed(query, key)?;
        if let Some(bound) = self.clamp {
            for x in [&mut query, &mut key, &mut value] {
                *x = x.clamp(-bound, bound)?;
            }
        }
        if self.lends {
            let key_norm = norms.map(|norms| norms.key.clone());
            step.lend(self.index, LentKeys { key: key.clone(), value: value.clone(), key_norm });
        }
        let borrowed = key_norm.zip(norms).map(|(key, norms)| HeadNorms { key, ..norms.clone() });
        let norms = borrowed.as_ref().or(norms);
        let queries = ProjectedRows { query, key, value: Some(value), norms, sinks: self.sinks.as_ref() };
        let mut attended = self.attended.forward(&queries, kv, step)?;
        if let Some(gate) = gate {
            attended = (attended * candle_nn::ops::sigmoid(&gate)?)?;
        }
        self.output.forward_onto(&attended, stream, x.adapters())
    }

    /// Values, each head divided by its root mean square where the layer does that.
    fn normed_value(&self, value: Tensor) -> Result<Tensor> {
        let Some(eps) = self.value_norm else { return Ok(value) };
        let ((rows, width), head_dim) = (value.dims2()?, self.attended.heads.value_dim);
        let heads = value.reshape((rows * width / head_dim, head_dim))?;
        RmsNorm::plain(&value, head_dim, eps)?.forward(&heads)?.reshape((rows, width))
    }

    /// Each head's query and the gate beside it, `[rows, heads * head_dim]` each.
    fn with_gate(&self, both: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        let (rows, AttentionHeads { heads, head_dim, .. }) = (both.dim(0)?, self.attended.heads);
        let both = both.reshape((rows, heads, 2 * head_dim))?;
        let part = |first| both.narrow(2, first, head_dim)?.contiguous()?.reshape((rows, heads * head_dim));
        Ok((part(0)?, Some(part(head_dim)?)))
    }

    /// ProjectedRows and keys behind norms that come before attention, and the norms that are part of it.
    fn normed(&self, query: Tensor, key: Tensor) -> Result<(Tensor, Tensor, Option<&HeadNorms>)> {
        match &self.norms {
            Norms::None => Ok((query, key, None)),
            Norms::Heads(norms) => Ok((query, key, Some(norms))),
            Norms::Whole(of_query, of_key) => Ok((of_query.forward(&query)?, of_key.forward(&key)?, None)),
            Norms::LayerPerHead(plain, of_query, of_key) => {
                let normed = |x: &Tensor, weights: &Tensor| {
                    let (rows, width) = x.dims2()?;
                    let heads = x.reshape((rows * width / self.attended.heads.head_dim, ()))?;
                    plain.forward(&heads)?.reshape((rows, width))?.broadcast_mul(weights)
                };
                Ok((normed(&query, of_query)?, normed(&key, of_key)?, None))
            }
        }
    }
}
