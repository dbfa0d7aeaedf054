//! SigLIP's head: one learned query attends to all rows of an image, and a feed-forward part is behind it (Zhai et al.,
//! 2022, "Scaling Vision Transformers", arXiv 2106.04560).

use std::ops::Range;

use candle_core::{Result as CandleResult, Tensor};

use super::stack::{TowerMlp, TowerPart, linear_parts, norm_parts};
use super::tower_spec::StackSpec;
use crate::device;
use crate::error::ModelError;
use crate::layers::linear::{Bias, Linear};
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::matrix::Matrix;

pub(crate) struct PoolingHead {
    /// `[heads, 1, dim]`, scaled.
    query: Tensor,
    /// Keys and values, one behind the other.
    rows: Linear,
    out: Linear,
    norm: Norm,
    mlp: TowerMlp,
    heads: usize,
}

impl PoolingHead {
    pub(crate) fn parts(spec: &StackSpec, path: &str) -> Vec<TowerPart> {
        let hidden = spec.hidden;
        let mut parts = vec![
            (format!("{path}.probe"), vec![1, 1, hidden]),
            (format!("{path}.attention.in_proj_weight"), vec![3 * hidden, hidden]),
            (format!("{path}.attention.in_proj_bias"), vec![3 * hidden]),
        ];
        parts.extend(linear_parts(&format!("{path}.attention.out_proj"), [hidden; 2]));
        parts.extend(norm_parts(&format!("{path}.layernorm"), hidden));
        parts.extend(spec.mlp_parts(&format!("{path}.mlp")));
        parts
    }

    pub(crate) fn read(parts: &mut dyn NamedWeights, spec: &StackSpec, path: &str) -> Result<Self, ModelError> {
        let failed = |error: candle_core::Error| ModelError::Device(device::failure(&error));
        let probe = parts.tensor(&format!("{path}.probe"))?;
        let weight = parts.tensor(&format!("{path}.attention.in_proj_weight"))?;
        let bias = parts.tensor(&format!("{path}.attention.in_proj_bias"))?;
        let (hidden, heads) = (spec.hidden, spec.heads);
        // The query is the same for all images.
        let query = || -> CandleResult<Tensor> {
            let projection = Linear::new(
                Matrix::Tensor(weight.narrow(0, 0, hidden)?.contiguous()?),
                Some(bias.narrow(0, 0, hidden)?),
            );
            let scale = 1.0 / ((hidden / heads) as f64).sqrt();
            let query = (projection.forward(&probe.reshape((1, hidden))?)? * scale)?;
            query.reshape((heads, 1, hidden / heads))?.contiguous()
        };
        let rows = || -> CandleResult<Linear> {
            let weight = weight.narrow(0, hidden, 2 * hidden)?.contiguous()?;
            Ok(Linear::new(Matrix::Tensor(weight), Some(bias.narrow(0, hidden, 2 * hidden)?.contiguous()?)))
        };
        Ok(Self {
            query: query().map_err(failed)?,
            rows: rows().map_err(failed)?,
            out: Linear::read(parts, &format!("{path}.attention.out_proj"), Bias::With)?,
            norm: Norm::read(parts, &format!("{path}.layernorm"), spec.norm())?,
            mlp: TowerMlp::read(parts, spec, &format!("{path}.mlp"))?,
            heads,
        })
    }

    /// `[rows, hidden]` → `[images, hidden]`.
    pub(crate) fn forward(&self, x: &Tensor, ranges: &[Range<usize>]) -> CandleResult<Tensor> {
        let hidden = x.dim(1)?;
        let dim = hidden / self.heads;
        let both = self.rows.forward(x)?;
        let of_image = |range: &Range<usize>| {
            let part = |at: usize| {
                let rows = both.narrow(0, range.start, range.len())?.narrow(1, at * hidden, hidden)?;
                rows.reshape((range.len(), self.heads, dim))?.transpose(0, 1)?.contiguous()
            };
            let scores = self.query.matmul(&part(0)?.t()?)?;
            let mixed = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&part(1)?)?;
            mixed.reshape((1, hidden))
        };
        let mixed = Tensor::cat(&ranges.iter().map(of_image).collect::<CandleResult<Vec<_>>>()?, 0)?;
        let x = self.out.forward(&mixed)?;
        &x + self.mlp.forward(&self.norm.forward(&x)?)?
    }
}
