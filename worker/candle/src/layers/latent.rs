//! Attention over one latent vector of each token (DeepSeek-AI, 2024, arXiv 2405.04434). The products that would make
//! each head's keys and values of the vectors are applied to queries and to what they mix, so that one vector is kept
//! of a token, for all heads.

use candle_core::{Result, Tensor};
use model_boss_kernels::{AttentionHeads, KvValues};

use crate::error::ModelError;
use crate::layers::attend::{Attended, ProjectedRows};
use crate::layers::kv::LayerKv;
use crate::layers::linear::{Bias, Linear};
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::RmsNorm;
use crate::layers::step::StepContext;
use crate::spec::{LatentSpec, NormKind, NormSpec, part_names};

pub(crate) struct Latent {
    query: LatentQuery,
    /// `[rows, hidden]` → `[rows, rank + rope_dim]`.
    compress: Linear,
    norm: RmsNorm,
    /// Each head's products with the latent vector: `[rank, plain_dim]` and `[value_dim, rank]`.
    heads: Vec<(Linear, Linear)>,
    output: Linear,
    attended: Attended,
    spec: LatentSpec,
}

/// The way from the stream to queries.
enum LatentQuery {
    Direct(Linear),
    /// Through a narrow vector with a norm.
    Compressed(Linear, RmsNorm, Linear),
}

impl Latent {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &LatentSpec,
        index: usize,
    ) -> std::result::Result<Self, ModelError> {
        let path = |part: &str| part_names::layer(index, part);
        let norm = NormSpec { kind: NormKind::Rms, eps: spec.norm_eps };
        let mut linear = |part: &str, bias: bool| Linear::read(parts, &path(part), bias.into());
        let query = match spec.query_rank {
            None => LatentQuery::Direct(linear("self_attn.q_proj", false)?),
            Some(_) => {
                let (down, up) = (linear("self_attn.q_a_proj", spec.bias)?, linear("self_attn.q_b_proj", false)?);
                let norm = RmsNorm::read(parts, &path("self_attn.q_a_layernorm.weight"), norm)?;
                LatentQuery::Compressed(down, norm, up)
            }
        };
        let mut linear = |part: &str, bias: bool| Linear::read(parts, &path(part), bias.into());
        let compress = linear("self_attn.kv_a_proj_with_mqa", spec.bias)?;
        let output = linear("self_attn.o_proj", spec.bias)?;
        let norm = RmsNorm::read(parts, &path("self_attn.kv_a_layernorm.weight"), norm)?;
        let head = |head: usize| {
            let mut linear =
                |part: &str| Linear::read(parts, &path(&format!("self_attn.heads.{head}.{part}")), Bias::Without);
            Ok((linear("k_proj")?, linear("v_proj")?))
        };
        let heads = (0..spec.heads).map(head).collect::<std::result::Result<_, ModelError>>()?;
        let attended = Attended {
            heads: AttentionHeads {
                heads: spec.heads,
                kv_heads: 1,
                head_dim: spec.key_dim(),
                value_dim: spec.rank,
                scale: spec.scale as f32,
                window: None,
                softcap: None,
                both_ways: false,
            },
            values: KvValues::InKeys(spec.rank),
            rope: Some(spec.rope),
            first: spec.rank,
        };
        Ok(Self { query, compress, norm, heads, output, attended, spec: spec.clone() })
    }

    /// `[rows, hidden]` → `[rows, hidden]`. Writes each sequence's new vectors behind its past.
    pub(crate) fn forward(&self, x: &Tensor, kv: Vec<LayerKv<'_>>, step: &StepContext) -> Result<Tensor> {
        let LatentSpec { heads, rank, plain_dim, rope_dim, .. } = self.spec;
        let (rows, adapters) = (x.dim(0)?, &step.adapters);
        let query = match &self.query {
            LatentQuery::Direct(linear) => linear.forward_adapted(x, adapters)?,
            LatentQuery::Compressed(down, norm, up) => {
                up.forward_adapted(&norm.forward(&down.forward_adapted(x, adapters)?)?, adapters)?
            }
        };
        let query = query.reshape((rows, heads, plain_dim + rope_dim))?;
        let in_latent = |(head, (key, _)): (usize, &(Linear, Linear))| {
            let query = query.narrow(1, head, 1)?.squeeze(1)?;
            let plain = key.forward_adapted(&query.narrow(1, 0, plain_dim)?.contiguous()?, adapters)?;
            Tensor::cat(&[&plain, &query.narrow(1, plain_dim, rope_dim)?], 1)
        };
        let queries = self.heads.iter().enumerate().map(in_latent).collect::<Result<Vec<_>>>()?;
        let both = self.compress.forward_adapted(x, adapters)?;
        let latent = self.norm.forward(&both.narrow(1, 0, rank)?.contiguous()?)?;
        let key = Tensor::cat(&[&latent, &both.narrow(1, rank, rope_dim)?], 1)?;
        let query = Tensor::cat(&queries, 1)?;
        let queries = ProjectedRows { query, key, value: None, norms: None, sinks: None };
        let mixed = self.attended.forward(&queries, kv, step)?;
        let of_head = |(head, (_, value)): (usize, &(Linear, Linear))| {
            value.forward_adapted(&mixed.narrow(1, head * rank, rank)?.contiguous()?, adapters)
        };
        let values = self.heads.iter().enumerate().map(of_head).collect::<Result<Vec<_>>>()?;
        self.output.forward_adapted(&Tensor::cat(&values, 1)?, adapters)
    }
}
