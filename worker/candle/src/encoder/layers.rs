//! The layers of an encoder. Rows are the tokens of several texts, one text behind the other, without padding.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};

use super::attend::AttendTexts;
use super::facts::EncoderSpec;
use crate::error::ModelError;
use crate::layers::linear::{Bias, Linear};
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::spec::{NormKind, NormSpec};

/// Buckets of distances in each direction, and the distance from which on all are one, as in T5 (Raffel et al., 2019,
/// arXiv 1910.10683).
const BUCKETS: usize = 16;
const FARTHEST: f32 = 128.0;

pub(crate) struct EncoderLayer {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    attention_norm: Norm,
    up: Linear,
    down: Linear,
    norm: Norm,
}

/// The parts of a pass that its layers share.
pub(crate) struct EncoderPass<'a> {
    pub(crate) spec: &'a EncoderSpec,
    /// The rows of each text.
    pub(crate) texts: &'a [Range<usize>],
    /// Biases of scores by distance, `[heads, longest, longest]`; none where there are none.
    pub(crate) distances: Option<&'a Tensor>,
}

impl EncoderLayer {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &EncoderSpec,
        path: &str,
    ) -> std::result::Result<Self, ModelError> {
        let names = spec.names;
        let norm = norm_spec(spec);
        let mut linear = |name: &str| Linear::read(parts, &format!("{path}.{name}"), Bias::With);
        let (query, key, value, out) =
            (linear(names.query)?, linear(names.key)?, linear(names.value)?, linear(names.out)?);
        let (up, down) = (linear(names.up)?, linear(names.down)?);
        let mut norm_at = |name: &str| Norm::read(parts, &format!("{path}.{name}"), norm);
        let (attention_norm, norm) = (norm_at(names.attention_norm)?, norm_at(names.norm)?);
        Ok(Self { query, key, value, out, attention_norm, up, down, norm })
    }

    /// `[tokens, hidden]` → `[tokens, hidden]`.
    pub(crate) fn forward(&self, x: &Tensor, pass: &EncoderPass<'_>) -> Result<Tensor> {
        let [query, key, value] = Linear::forward_all([&self.query, &self.key, &self.value], x)?;
        let sight = Sight { heads: pass.spec.heads, biases: pass.distances, farthest: None };
        let attended = self.out.forward(&attend([&query, &key, &value], pass.texts, &sight)?)?;
        let x = self.attention_norm.forward(&(x + attended)?)?;
        let inner = pass.spec.activation.forward(&self.up.forward(&x)?)?;
        self.norm.forward(&(&x + self.down.forward(&inner)?)?)
    }
}

/// The norms of an encoder.
pub(crate) fn norm_spec(spec: &EncoderSpec) -> NormSpec {
    NormSpec { kind: NormKind::LayerWithBias, eps: spec.eps }
}

/// The tokens of its text that a token sees.
pub(crate) struct Sight<'a> {
    pub(crate) heads: usize,
    /// Biases of scores by distance, `[heads, longest, longest]`.
    pub(crate) biases: Option<&'a Tensor>,
    /// The farthest token, on both sides; all of the text's without.
    pub(crate) farthest: Option<usize>,
}

/// Attention of each text's tokens to those of the same text, `[tokens, hidden]`.
pub(crate) fn attend(rows: [&Tensor; 3], texts: &[Range<usize>], sight: &Sight<'_>) -> Result<Tensor> {
    let [query, key, value] = rows;
    let Sight { heads, biases, farthest } = *sight;
    if query.device().is_cpu() {
        return query.apply_op3_no_bwd(key, value, &AttendTexts { texts, heads, biases, farthest });
    }
    let hidden = query.dim(1)?;
    let dim = hidden / heads;
    let scale = 1.0 / (dim as f64).sqrt();
    let mut all = Vec::with_capacity(texts.len());
    for text in texts {
        let count = text.len();
        let of_heads =
            |x: &Tensor| x.narrow(0, text.start, count)?.reshape((count, heads, dim))?.transpose(0, 1)?.contiguous();
        let mut scores = (of_heads(query)? * scale)?.matmul(&of_heads(key)?.t()?)?;
        if let Some(biases) = biases {
            scores = (scores + biases.narrow(1, 0, count)?.narrow(2, 0, count)?)?;
        }
        if let Some(farthest) = farthest.filter(|farthest| *farthest < count) {
            let hidden = |from: usize| {
                (0..count).map(move |to| if from.abs_diff(to) > farthest { f32::NEG_INFINITY } else { 0.0 })
            };
            let mask: Vec<f32> = (0..count).flat_map(hidden).collect();
            let mask = Tensor::from_vec(mask, (1, count, count), scores.device())?.to_dtype(scores.dtype())?;
            scores = scores.broadcast_add(&mask)?;
        }
        let mixed = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&of_heads(value)?)?;
        all.push(mixed.transpose(0, 1)?.reshape((count, hidden))?);
    }
    Tensor::cat(&all, 0)
}

/// Biases by distance for texts of up to `longest` tokens, `[heads, longest, longest]`. The table has the shape
/// `[buckets, heads]`.
pub(crate) fn biases_by_distance(table: &Tensor, longest: usize, device: &Device) -> Result<Tensor> {
    let buckets: Vec<u32> =
        (0..longest).flat_map(|from| (0..longest).map(move |to| bucket(from as i64 - to as i64))).collect();
    let rows = table.index_select(&Tensor::from_vec(buckets, longest * longest, device)?, 0)?;
    rows.reshape((longest, longest, ()))?.permute((2, 0, 1))?.contiguous()
}

/// The bucket of a distance: near ones have their own, far ones share some by their logarithm.
fn bucket(behind: i64) -> u32 {
    let side = if behind < 0 { BUCKETS } else { 0 };
    let (distance, near) = (behind.unsigned_abs() as usize, BUCKETS / 2);
    let place = if distance < near {
        distance
    } else {
        let share = (distance as f32 / near as f32).ln() / (FARTHEST / near as f32).ln();
        (near + (share * (BUCKETS - near) as f32) as usize).min(BUCKETS - 1)
    };
    (side + place) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_1_far_tokens_share_buckets() {
        let of = |behind: &[i64]| behind.iter().map(|at| bucket(*at)).collect::<Vec<_>>();
        assert_eq!(of(&[0, 1, 7, 8, 11, 12, 16, 64, 127, 5_000]), [0, 1, 7, 8, 8, 9, 10, 14, 15, 15]);
        assert_eq!(of(&[-1, -7, -8, -200]), [17, 23, 24, 31]);
    }
}
