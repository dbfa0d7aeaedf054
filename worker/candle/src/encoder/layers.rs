//! The layers of an encoder. Rows are the tokens of several texts, one text behind the other, without padding.

use std::ops::Range;

use candle_core::{Result, Tensor};

use super::adapted::AdaptedLinear;
use super::attend::{ScoreBiases, Sight, attend};
use super::family::Pause;
use super::row_parts::in_parts;
use super::spec::EncoderSpec;
use crate::adapter::rows::NO_ADAPTERS;
use crate::error::ModelError;
use crate::layers::experts::Experts;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::Norm;
use crate::layers::rope::Angles;
use crate::read::reader::WeightReader;
use crate::spec::Activation;

pub(crate) struct EncoderLayer {
    query: AdaptedLinear,
    key: AdaptedLinear,
    value: AdaptedLinear,
    /// Norms of queries and of keys over all heads.
    head_norms: Option<[Norm; 2]>,
    out: AdaptedLinear,
    attention_norm: Norm,
    /// One more norm, of the sum of the layer's input and what attention became behind its own norm.
    second_norm: Option<Norm>,
    mlp: EncoderMlp,
    norm: Norm,
}

/// The feed-forward part.
enum EncoderMlp {
    Dense(DenseMlp),
    Experts { experts: Experts, bias: Option<Tensor> },
}

struct DenseMlp {
    gate: Option<AdaptedLinear>,
    up: AdaptedLinear,
    down: AdaptedLinear,
    activation: Activation,
}

/// The parts of a pass that its layers share.
pub(crate) struct EncoderPass<'a> {
    pub(crate) spec: &'a EncoderSpec,
    /// The rows of each text.
    pub(crate) texts: &'a [Range<usize>],
    /// Biases of scores by distance, as in [`ScoreBiases`]; none where there are none.
    pub(crate) distances: Option<&'a Tensor>,
    /// The loss of scores for each token of distance, by the head.
    pub(crate) slopes: Option<&'a [f32]>,
    /// The angles of all tokens' places.
    pub(crate) angles: Option<Angles>,
    /// The task whose adapters are used.
    pub(crate) task: Option<usize>,
    pub(crate) pause: Pause<'a>,
}

impl EncoderLayer {
    pub(crate) fn read(
        reader: &mut WeightReader<'_>,
        spec: &EncoderSpec,
        layer: usize,
    ) -> std::result::Result<Self, ModelError> {
        let path = |part: &str| format!("layer.{layer}.{part}");
        let linear = |reader: &mut WeightReader<'_>, path: &str| AdaptedLinear::read(reader, path, &spec.adapters);
        let norm = |part: &str, reader: &mut WeightReader<'_>| {
            let there = reader.files().has(&format!("{}.weight", path(part)));
            there.then(|| Norm::read(reader, &path(part), spec.norm)).transpose()
        };
        let head_norms = match (norm("query_norm", reader)?, norm("key_norm", reader)?) {
            (Some(query), Some(key)) => Some([query, key]),
            _ => None,
        };
        let second_norm = norm("second_norm", reader)?;
        let experts = spec.experts.as_ref().filter(|experts| experts.are_in(layer));
        let mlp = match experts {
            Some(experts) => {
                let bias = path("experts.bias");
                let bias = reader.files().has(&bias).then(|| reader.tensor(&bias)).transpose()?;
                EncoderMlp::Experts { experts: Experts::read(reader, &experts.spec, layer, None)?, bias }
            }
            None => {
                let gated = reader.files().has(&path("gate.weight"));
                let gate = gated.then(|| linear(reader, &path("gate"))).transpose()?;
                let (up, down) = (linear(reader, &path("up"))?, linear(reader, &path("down"))?);
                EncoderMlp::Dense(DenseMlp { gate, up, down, activation: spec.activation })
            }
        };
        Ok(Self {
            query: linear(reader, &path("query"))?,
            key: linear(reader, &path("key"))?,
            value: linear(reader, &path("value"))?,
            head_norms,
            out: linear(reader, &path("out"))?,
            attention_norm: Norm::read(reader, &path("attention_norm"), spec.norm)?,
            second_norm,
            mlp,
            norm: Norm::read(reader, &path("norm"), spec.norm)?,
        })
    }

    /// `[tokens, hidden]` → `[tokens, hidden]`.
    pub(crate) fn forward(&self, x: &Tensor, pass: &EncoderPass<'_>) -> Result<Tensor> {
        let EncoderPass { texts, task, pause, .. } = *pass;
        pause();
        let [query, key, value] = self.projected(x, pass)?;
        let sight = Sight {
            heads: pass.spec.heads,
            biases: pass.distances.map(ScoreBiases::ByDistance),
            slopes: pass.slopes,
            farthest: None,
        };
        let attended = attend([&query, &key, &value], texts, &sight)?;
        pause();
        let hidden = x.dim(1)?;
        let [out] = match &self.mlp {
            EncoderMlp::Dense(mlp) => in_parts([x, &attended], [hidden], pause, |[x, attended]| {
                let inner = self.behind_attention(x, attended, task)?;
                Ok([self.norm.of_sum_alone(&inner, mlp.forward(&inner, task)?)?])
            })?,
            EncoderMlp::Experts { experts, bias } => {
                let inner = self.behind_attention(x, &attended, task)?;
                pause();
                let sum = experts.forward(&inner, &|| false, &NO_ADAPTERS)?;
                let sum = match bias {
                    Some(bias) => sum.broadcast_add(bias)?,
                    None => sum,
                };
                [self.norm.of_sum_alone(&inner, sum)?]
            }
        };
        Ok(out)
    }

    /// Queries, keys and values.
    fn projected(&self, x: &Tensor, pass: &EncoderPass<'_>) -> Result<[Tensor; 3]> {
        let (heads, all) = (pass.spec.heads, [&self.query, &self.key, &self.value]);
        let widths = [self.query.outs()?, self.key.outs()?, self.value.outs()?];
        let normed = |x: &Tensor| {
            let [query, key, value] = AdaptedLinear::forward_all(all, x, pass.task)?;
            match &self.head_norms {
                Some([of_query, of_key]) => Ok([of_query.forward(&query)?, of_key.forward(&key)?, value]),
                None => Ok([query, key, value]),
            }
        };
        let Some(Angles { planes, cos, sin }) = &pass.angles else {
            return in_parts([x], widths, pass.pause, |[x]| normed(x));
        };
        in_parts([x, cos, sin], widths, pass.pause, |[x, cos, sin]| {
            let angles = Angles { planes: *planes, cos: cos.clone(), sin: sin.clone() };
            let turned = |x: &Tensor| angles.rotate(x, heads, 0)?.reshape(x.shape());
            let [query, key, value] = normed(x)?;
            Ok([turned(&query)?, turned(&key)?, value])
        })
    }

    /// The input of the feed-forward part: a layer's input and what attention gives, through the norms of their sum.
    fn behind_attention(&self, x: &Tensor, attended: &Tensor, task: Option<usize>) -> Result<Tensor> {
        let inner = self.attention_norm.of_sum_alone(x, self.out.forward(attended, task)?)?;
        match &self.second_norm {
            Some(norm) => norm.of_sum_alone(x, inner),
            None => Ok(inner),
        }
    }
}

impl DenseMlp {
    fn forward(&self, x: &Tensor, task: Option<usize>) -> Result<Tensor> {
        let Self { gate, up, down, activation } = self;
        let inner = match gate {
            None => activation.in_place(up.forward(x, task)?)?,
            Some(gate) => {
                let [gate, up] = AdaptedLinear::forward_all([gate, up], x, task)?;
                activation.gated(&gate, &up)?
            }
        };
        down.forward(&inner, task)
    }
}

/// The loss of scores for each token of distance, by the head (ALiBi: Press et al., 2021, arXiv 2108.12409). It is a
/// geometric series. Of a number of heads that is no power of two, the rest takes every second member of the next
/// one's.
pub(crate) fn slopes(heads: usize) -> Vec<f32> {
    let whole = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
    let series = |count: usize| (1..=count).map(move |at| (-8.0 * at as f64 / count as f64).exp2() as f32);
    series(whole).chain(series(2 * whole).step_by(2)).take(heads).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_1_heads_lose_by_distance_in_a_geometric_series() {
        assert_eq!(slopes(4), [0.25, 0.0625, 0.015_625, 0.003_906_25]);
        assert_eq!(slopes(6)[4..], [0.5, 0.125]);
    }
}
