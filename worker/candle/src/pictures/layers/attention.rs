//! Attention between pixels, and of pixels to the rows of a text.

use std::ops::Range;

use candle_core::{Result as CandleResult, Tensor};

use super::plane_norm::{AfterNorm, PlaneNorm};
use super::plane_weights::PlaneWeights;
use super::planes::Planes;
use crate::encoder::attend::{Sight, attend, attend_across};
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::speech::weights::SpeechWeights;

/// Products for queries, keys and values, and one behind attention.
pub(in crate::pictures) struct CrossAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    heads: usize,
}

impl CrossAttention {
    /// Of rows of one width to rows of another.
    pub(in crate::pictures) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        [width, seen]: [usize; 2],
        heads: usize,
    ) -> Result<Self, ModelError> {
        // Files of older versions have other names.
        let is_older = weights.has(&format!("{path}.query.weight"));
        let names =
            if is_older { ["query", "key", "value", "proj_attn"] } else { ["to_q", "to_k", "to_v", "to_out.0"] };
        let mut product = |at: usize, shape| weights.pixel_product(&format!("{path}.{}", names[at]), shape);
        let (query, key) = (product(0, [width, width])?, product(1, [width, seen])?);
        let (value, out) = (product(2, [width, seen])?, product(3, [width, width])?);
        Ok(Self { query, key, value, out, heads })
    }

    /// Rows see all rows of their own range.
    pub(in crate::pictures) fn of_own(&self, x: &Tensor, ranges: &[Range<usize>]) -> CandleResult<Tensor> {
        let [query, key, value] = Linear::forward_all([&self.query, &self.key, &self.value], x)?;
        let sight = Sight { heads: self.heads, biases: None, slopes: None, farthest: None };
        self.out.forward(&attend([&query, &key, &value], ranges, &sight)?)
    }

    /// Rows see all rows of a range of others.
    pub(in crate::pictures) fn of_others(
        &self,
        x: &Tensor,
        ranges: &[Range<usize>],
        (others, seen): (&Tensor, &[Range<usize>]),
    ) -> CandleResult<Tensor> {
        let query = self.query.forward(x)?;
        let [key, value] = Linear::forward_all([&self.key, &self.value], others)?;
        self.out.forward(&attend_across([&query, &key, &value], ranges, seen, self.heads)?)
    }
}

/// Attention between the pixels of a picture behind a norm, added to them.
pub(in crate::pictures) struct PlaneAttention {
    norm: PlaneNorm,
    attention: CrossAttention,
}

impl PlaneAttention {
    pub(in crate::pictures) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        width: usize,
        groups: (usize, f64),
    ) -> Result<Self, ModelError> {
        let norm = weights.plane_norm(&format!("{path}.group_norm"), width, groups)?;
        Ok(Self { norm, attention: CrossAttention::read(weights, path, [width, width], 1)? })
    }

    pub(in crate::pictures) fn forward(&self, x: &Planes) -> CandleResult<Planes> {
        let normed = self.norm.forward(x, AfterNorm::Nothing)?;
        Ok(x.with((&x.rows + self.attention.of_own(&normed.rows, &x.ranges())?)?))
    }
}
