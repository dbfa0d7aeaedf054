//! A gated delta net (Yang et al., 2024, arXiv 2412.06464), as in Qwen3-Next: each head has a matrix from keys to
//! values, which decays, and learns of each token the difference between its value and what the matrix has for its key.

use candle_core::{Result, Tensor};
use rayon::prelude::*;

use crate::adapter::rows::RowAdapters;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::named_weights::NamedWeights;
use crate::layers::norm::NormedRows;
use crate::layers::recurrent::{
    CausalConv, activate, beside, decays, floats, inverse_rms, on_host, sigmoid, silu, softplus, values,
};
use crate::layers::states::LayerState;
use crate::layers::step::StepContext;
use crate::spec::{DeltaNetSpec, KeySharing, part_names};

/// The number that is added to the square of a query's or key's length.
const LENGTH_EPS: f32 = 1e-6;

pub(crate) struct DeltaNet {
    input: DeltaInput,
    rates: DeltaRates,
    conv: CausalConv,
    /// Each value head's decay, and what is added to its step.
    decays: Vec<f32>,
    step_bias: Vec<f32>,
    /// `[value_dim]`.
    norm: Vec<f32>,
    output: Linear,
    spec: DeltaNetSpec,
}

/// The projections of queries, keys and values, and of gates.
enum DeltaInput {
    Apart {
        mixed: Linear,
        gates: Linear,
    },
    /// Of each key head one behind the other: query, key, and its values and gates.
    ByKeyHead(Linear),
}

/// The projections of learning rates, and of steps.
enum DeltaRates {
    Apart {
        rates: Linear,
        steps: Linear,
    },
    /// Those of each key head one behind the other.
    ByKeyHead(Linear),
}

/// A piece of a sequence, as each head sees it.
struct DeltaPiece<'a> {
    /// `[rows, conv_width]`: queries, keys and values.
    mixed: &'a [f32],
    /// `[rows, value_heads]` each.
    rates: &'a [f32],
    steps: &'a [f32],
}

impl DeltaNet {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &DeltaNetSpec,
        index: usize,
    ) -> std::result::Result<Self, ModelError> {
        let path = |part: &str| part_names::layer(index, &format!("linear_attn.{part}"));
        let mut linear = |part: &str| Linear::read(parts, &path(part), false.into());
        let input = match spec.one_input {
            true => DeltaInput::ByKeyHead(linear("in_proj_qkvz")?),
            false => DeltaInput::Apart { mixed: linear("in_proj_qkv")?, gates: linear("in_proj_z")? },
        };
        let rates = match spec.one_rate {
            true => DeltaRates::ByKeyHead(linear("in_proj_ba")?),
            false => DeltaRates::Apart { rates: linear("in_proj_b")?, steps: linear("in_proj_a")? },
        };
        let output = linear("out_proj")?;
        Ok(Self {
            input,
            rates,
            conv: CausalConv::read(parts, &path("conv1d"), spec.conv_width(), false)?,
            decays: decays(parts, &path("A_log"), spec.decay)?,
            step_bias: values(parts, &path("dt_bias"))?,
            norm: values(parts, &path("norm.weight"))?,
            output,
            spec: *spec,
        })
    }

    /// `[rows, hidden]` → `[rows, hidden]`; `states` has one entry per span.
    pub(crate) fn forward(&self, x: &Tensor, states: Vec<LayerState<'_>>, step: &StepContext) -> Result<Tensor> {
        let ([mixed, gates], [rates, steps]) = (self.projected(x, &step.adapters)?, self.rated(x, &step.adapters)?);
        let [width, heads] = [self.spec.conv_width(), self.spec.value_heads];
        let mut out = Vec::with_capacity(gates.len());
        for (mut state, span) in states.into_iter().zip(&step.spans) {
            state.run(span.rows.len(), |piece, state| {
                let rows = span.rows.start + piece.start..span.rows.start + piece.end;
                let (window, matrices) = state.split_at_mut(self.spec.window_len());
                let mut mixed = self.conv.forward(&mixed[rows.start * width..rows.end * width], window);
                activate(self.spec.activation, &mut mixed);
                let of_heads = rows.start * heads..rows.end * heads;
                let piece = DeltaPiece { mixed: &mixed, rates: &rates[of_heads.clone()], steps: &steps[of_heads] };
                self.learn(&piece, matrices, &mut out);
            });
        }
        let value_dim = self.spec.value_dim;
        for (out, gates) in out.chunks_exact_mut(value_dim).zip(gates.chunks_exact(value_dim)) {
            let scale = inverse_rms(out, self.spec.norm_eps as f32);
            for ((out, gate), weight) in out.iter_mut().zip(gates).zip(&self.norm) {
                *out *= scale * weight * silu(*gate);
            }
        }
        self.output.forward_adapted(&beside(out, self.spec.value_width(), x)?, &step.adapters)
    }

    /// Runs all heads over a piece, and adds `[rows, value_width]` to `out`.
    fn learn(&self, piece: &DeltaPiece<'_>, matrices: &mut [f32], out: &mut Vec<f32>) {
        let DeltaNetSpec { value_heads, key_dim, value_dim, .. } = self.spec;
        let rows = piece.mixed.len() / self.spec.conv_width();
        let matrices = matrices.par_chunks_exact_mut(key_dim * value_dim);
        let heads: Vec<Vec<f32>> =
            matrices.enumerate().map(|(head, matrix)| self.learn_head(head, piece, matrix)).collect();
        for row in 0..rows {
            for head in heads.iter().take(value_heads) {
                out.extend_from_slice(&head[row * value_dim..(row + 1) * value_dim]);
            }
        }
    }

    /// One head over a piece: `[rows, value_dim]`. `matrix` is `[key_dim, value_dim]`.
    fn learn_head(&self, head: usize, piece: &DeltaPiece<'_>, matrix: &mut [f32]) -> Vec<f32> {
        let DeltaNetSpec { key_heads, value_heads, key_dim, value_dim, sharing, .. } = self.spec;
        let (width, key_width) = (self.spec.conv_width(), self.spec.key_width());
        let key_head = match sharing {
            KeySharing::Neighbours => head / (value_heads / key_heads),
            KeySharing::Turns => head % key_heads,
        };
        let rows = piece.mixed.chunks_exact(width).enumerate();
        let mut out = vec![0.0; rows.len() * value_dim];
        let mut learned = vec![0.0; value_dim];
        for (row, mixed) in rows {
            let at = row * value_heads + head;
            let rate = sigmoid(piece.rates[at]);
            let decay = (self.decays[head] * softplus(piece.steps[at] + self.step_bias[head])).exp();
            let query = &mixed[key_head * key_dim..][..key_dim];
            let key = &mixed[key_width + key_head * key_dim..][..key_dim];
            let value = &mixed[2 * key_width + head * value_dim..][..value_dim];
            let of_query = inverse_length(query) * (key_dim as f32).sqrt().recip();
            let of_key = inverse_length(key);
            learned.fill(0.0);
            for (line, key) in matrix.chunks_exact_mut(value_dim).zip(key) {
                let key = key * of_key;
                for (x, learned) in line.iter_mut().zip(&mut learned) {
                    *x *= decay;
                    *learned += *x * key;
                }
            }
            for (learned, value) in learned.iter_mut().zip(value) {
                *learned = (value - *learned) * rate;
            }
            let out = &mut out[row * value_dim..(row + 1) * value_dim];
            for ((line, key), query) in matrix.chunks_exact_mut(value_dim).zip(key).zip(query) {
                let (key, query) = (key * of_key, query * of_query);
                for ((x, learned), out) in line.iter_mut().zip(&learned).zip(&mut *out) {
                    *x += learned * key;
                    *out += *x * query;
                }
            }
        }
        out
    }

    /// ProjectedRows, keys and values, `[rows, conv_width]`, and gates, `[rows, value_width]`.
    fn projected(&self, x: &Tensor, adapters: &RowAdapters) -> Result<[Vec<f32>; 2]> {
        let both = match &self.input {
            DeltaInput::Apart { mixed, gates } => {
                let [mixed, gates] = Linear::forward_normed([mixed, gates], &NormedRows::new(x, None, adapters))?;
                return Ok([numbers(&mixed)?, numbers(&gates)?]);
            }
            DeltaInput::ByKeyHead(both) => numbers(&both.forward_adapted(x, adapters)?)?,
        };
        let DeltaNetSpec { key_heads, key_dim, .. } = self.spec;
        let (of_values, width) = (self.spec.value_width() / key_heads, self.spec.conv_width());
        let of_head = 2 * (key_dim + of_values);
        let rows = both.len() / (key_heads * of_head);
        let mut mixed = Vec::with_capacity(rows * width);
        let mut gates = Vec::with_capacity(rows * self.spec.value_width());
        for row in both.chunks_exact(key_heads * of_head) {
            for (first, count) in [(0, key_dim), (key_dim, key_dim), (2 * key_dim, of_values)] {
                row.chunks_exact(of_head).for_each(|head| mixed.extend_from_slice(&head[first..first + count]));
            }
            row.chunks_exact(of_head).for_each(|head| gates.extend_from_slice(&head[2 * key_dim + of_values..]));
        }
        Ok([mixed, gates])
    }

    /// Learning rates and steps, `[rows, value_heads]` each, before what makes them positive.
    fn rated(&self, x: &Tensor, adapters: &RowAdapters) -> Result<[Vec<f32>; 2]> {
        let both = match &self.rates {
            DeltaRates::Apart { rates, steps } => {
                let [rates, steps] = Linear::forward_normed([rates, steps], &NormedRows::new(x, None, adapters))?;
                return Ok([numbers(&rates)?, numbers(&steps)?]);
            }
            DeltaRates::ByKeyHead(both) => numbers(&both.forward_adapted(x, adapters)?)?,
        };
        let of_head = self.spec.value_heads / self.spec.key_heads;
        let half = |first: usize| both.chunks_exact(of_head).skip(first).step_by(2).flatten().copied().collect();
        Ok([half(0), half(1)])
    }
}

fn numbers(x: &Tensor) -> Result<Vec<f32>> {
    let x = on_host(x)?;
    let storage = x.storage_and_layout();
    Ok(floats(&storage)?.to_vec())
}

fn inverse_length(x: &[f32]) -> f32 {
    (x.iter().map(|x| x * x).sum::<f32>() + LENGTH_EPS).sqrt().recip()
}
