//! Products of a stream around attention.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::stream_turns::StreamTurns;
use crate::encoder::attend::{Sight, attend};
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::norm::RmsNorm;
use crate::pictures::layers::PlaneWeights;
use crate::spec::{NormKind, NormSpec};
use crate::speech::weights::SpeechWeights;

/// The norms of queries and keys.
const NORM: NormSpec = NormSpec { kind: NormKind::Rms, eps: 1e-6 };

/// The names of a stream's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pictures) struct StreamNames {
    products: [&'static str; 3],
    norms: [&'static str; 2],
    /// None where the rows behind attention have no product of their own.
    out: Option<&'static str>,
}

impl StreamNames {
    /// Of a picture.
    pub(in crate::pictures) const IMAGE: Self =
        Self { products: ["to_q", "to_k", "to_v"], norms: ["norm_q", "norm_k"], out: Some("to_out.0") };
    /// Of a text beside it.
    pub(in crate::pictures) const TEXT: Self = Self {
        products: ["add_q_proj", "add_k_proj", "add_v_proj"],
        norms: ["norm_added_q", "norm_added_k"],
        out: Some("to_add_out"),
    };

    /// The same without a product behind attention.
    pub(in crate::pictures) const fn without_out(self) -> Self {
        Self { out: None, ..self }
    }
}

/// Products for queries, keys and values, and one behind attention.
pub(in crate::pictures) struct StreamAttention {
    products: [Linear; 3],
    norms: Option<[RmsNorm; 2]>,
    out: Option<Linear>,
    heads: usize,
}

/// The rows that see each other, and their turns by place.
#[derive(Clone, Copy)]
pub(in crate::pictures) struct StreamSight<'a> {
    pub(in crate::pictures) heads: usize,
    /// The rows of each picture.
    pub(in crate::pictures) ranges: &'a [Range<usize>],
    pub(in crate::pictures) turns: Option<&'a StreamTurns>,
}

impl StreamSight<'_> {
    /// Attention of queries to keys and values.
    pub(in crate::pictures) fn attend(&self, [query, key, value]: [Tensor; 3]) -> Result<Tensor> {
        let (query, key) = match self.turns {
            Some(turns) => (turns.turned(&query)?, turns.turned(&key)?),
            None => (query, key),
        };
        let sight = Sight { heads: self.heads, biases: None, slopes: None, farthest: None };
        attend([&query, &key, &value], self.ranges, &sight)
    }
}

impl StreamAttention {
    pub(in crate::pictures) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        (path, names): (&str, StreamNames),
        [width, heads]: [usize; 2],
        has_norms: bool,
    ) -> std::result::Result<Self, ModelError> {
        let mut product = |name: &str| weights.panels(&format!("{path}.{name}"), [width, width]);
        let [query, key, value] = names.products;
        let products = [product(query)?, product(key)?, product(value)?];
        let out = names.out.map(product).transpose()?;
        let mut norm = |name: &str| {
            let name = format!("{path}.{name}.weight");
            weights.tensor(&name, &[width / heads])?;
            RmsNorm::read(weights.reader, &name, NORM)
        };
        let norms = if has_norms { Some([norm(names.norms[0])?, norm(names.norms[1])?]) } else { None };
        Ok(Self { products, norms, out, heads })
    }

    /// The queries, keys and values of rows.
    pub(in crate::pictures) fn before(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        let [query, key, value] = &self.products;
        let [mut query, mut key, value] = Linear::forward_all([query, key, value], x)?;
        if let Some([of_query, of_key]) = &self.norms {
            let (rows, width) = query.dims2()?;
            let heads = (rows * self.heads, width / self.heads);
            query = of_query.forward(&query.reshape(heads)?)?.reshape((rows, width))?;
            key = of_key.forward(&key.reshape(heads)?)?.reshape((rows, width))?;
        }
        Ok([query, key, value])
    }

    /// The rows behind attention.
    pub(in crate::pictures) fn behind(&self, mixed: Tensor) -> Result<Tensor> {
        match &self.out {
            Some(out) => out.forward(&mixed),
            None => Ok(mixed),
        }
    }
}
