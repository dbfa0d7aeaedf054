//! Mamba-2 (Dao and Gu, 2024, arXiv 2405.21060): each head has a matrix from keys to values, which decays by a step of
//! time that each token chooses, and to which the token's value is added under its key.

use candle_core::{Result, Tensor};
use rayon::prelude::*;

use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::named_weights::NamedWeights;
use crate::layers::recurrent::{
    CausalConv, activate, beside, decays, floats, inverse_rms, on_host, silu, softplus, values,
};
use crate::layers::states::LayerState;
use crate::layers::step::StepContext;
use crate::spec::{GatedNorm, MambaSpec, part_names};

pub(crate) struct Mamba {
    /// `[rows, hidden]` → gates, values, keys, queries and steps.
    input: Linear,
    conv: CausalConv,
    /// Each head's decay, what is added to its step, and the factor on the value that passes by.
    decays: Vec<f32>,
    step_bias: Vec<f32>,
    past_by: Vec<f32>,
    /// `[inner]`; empty without a norm.
    norm: Vec<f32>,
    output: Linear,
    spec: MambaSpec,
}

/// A piece of a sequence, as each head sees it.
struct MambaPiece<'a> {
    /// `[rows, conv_width]`: values, keys and queries.
    mixed: &'a [f32],
    /// `[rows, input_rows]`, with the steps behind all else.
    projected: &'a [f32],
}

impl Mamba {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &MambaSpec,
        index: usize,
    ) -> std::result::Result<Self, ModelError> {
        let path = |part: &str| part_names::layer(index, &format!("mamba.{part}"));
        let mut linear = |part: &str, bias: bool| Linear::read(parts, &path(part), bias.into());
        let (input, output) = (linear("in_proj", spec.bias)?, linear("out_proj", spec.out_bias)?);
        let normed = spec.norm != GatedNorm::None;
        Ok(Self {
            input,
            conv: CausalConv::read(parts, &path("conv1d"), spec.conv_width(), spec.conv_bias)?,
            decays: decays(parts, &path("A_log"), spec.decay)?,
            step_bias: values(parts, &path("dt_bias"))?,
            past_by: values(parts, &path("D"))?,
            norm: if normed { values(parts, &path("norm.weight"))? } else { Vec::new() },
            output,
            spec: *spec,
        })
    }

    /// `[rows, hidden]` → `[rows, hidden]`; `states` has one entry per span.
    pub(crate) fn forward(&self, x: &Tensor, states: Vec<LayerState<'_>>, step: &StepContext) -> Result<Tensor> {
        let projected = self.projected(x, step)?;
        let storage = projected.storage_and_layout();
        let projected = floats(&storage)?;
        let (all, inner, width) = (self.spec.input_rows(), self.spec.inner(), self.spec.conv_width());
        let mut out = Vec::with_capacity(x.dim(0)? * inner);
        for (mut state, span) in states.into_iter().zip(&step.spans) {
            state.run(span.rows.len(), |piece, state| {
                let rows = span.rows.start + piece.start..span.rows.start + piece.end;
                let projected = &projected[rows.start * all..rows.end * all];
                let (window, matrices) = state.split_at_mut(self.spec.window_len());
                let seen: Vec<f32> =
                    projected.chunks_exact(all).flat_map(|row| &row[inner..inner + width]).copied().collect();
                let mut mixed = self.conv.forward(&seen, window);
                activate(self.spec.activation, &mut mixed);
                self.add(&MambaPiece { mixed: &mixed, projected }, matrices, &mut out);
            });
        }
        for (out, row) in out.chunks_exact_mut(inner).zip(projected.chunks_exact(all)) {
            self.gate(out, &row[..inner]);
        }
        self.output.forward_adapted(&beside(out, inner, x)?, &step.adapters)
    }

    /// `[rows, input_rows]` in the host's memory, with the factors of its parts.
    fn projected(&self, x: &Tensor, step: &StepContext) -> Result<Tensor> {
        let MambaSpec { heads, groups, state_dim, factors, .. } = self.spec;
        let projected = on_host(&self.input.forward_adapted(x, &step.adapters)?)?;
        if factors == [1.0; 5] {
            return Ok(projected);
        }
        let (inner, of_groups) = (self.spec.inner(), groups * state_dim);
        let of_parts = factors.into_iter().zip([inner, inner, of_groups, of_groups, heads]);
        let of_columns: Vec<f32> = of_parts.flat_map(|(factor, count)| std::iter::repeat_n(factor, count)).collect();
        projected.broadcast_mul(&Tensor::new(of_columns, projected.device())?)
    }

    /// Runs all heads over a piece, and adds `[rows, inner]` to `out`.
    fn add(&self, piece: &MambaPiece<'_>, matrices: &mut [f32], out: &mut Vec<f32>) {
        let MambaSpec { head_dim, state_dim, .. } = self.spec;
        let matrices = matrices.par_chunks_exact_mut(state_dim * head_dim);
        let heads: Vec<Vec<f32>> =
            matrices.enumerate().map(|(head, matrix)| self.add_head(head, piece, matrix)).collect();
        for row in 0..piece.mixed.len() / self.spec.conv_width() {
            for head in &heads {
                out.extend_from_slice(&head[row * head_dim..(row + 1) * head_dim]);
            }
        }
    }

    /// One head over a piece: `[rows, head_dim]`. `matrix` is `[state_dim, head_dim]`.
    fn add_head(&self, head: usize, piece: &MambaPiece<'_>, matrix: &mut [f32]) -> Vec<f32> {
        let MambaSpec { heads, head_dim, groups, state_dim, least_step, most_step, .. } = self.spec;
        let (inner, all) = (self.spec.inner(), self.spec.input_rows());
        let first_key = inner + head / (heads / groups) * state_dim;
        let rows = piece.mixed.chunks_exact(self.spec.conv_width()).zip(piece.projected.chunks_exact(all));
        let mut out = vec![0.0; rows.len() * head_dim];
        for ((mixed, projected), out) in rows.zip(out.chunks_exact_mut(head_dim)) {
            let step = softplus(projected[all - heads + head] + self.step_bias[head]);
            let step = step.clamp(least_step, most_step);
            let decay = (step * self.decays[head]).exp();
            let value = &mixed[head * head_dim..(head + 1) * head_dim];
            let key = &mixed[first_key..first_key + state_dim];
            let query = &mixed[first_key + groups * state_dim..][..state_dim];
            for (out, value) in out.iter_mut().zip(value) {
                *out = self.past_by[head] * value;
            }
            for ((line, key), query) in matrix.chunks_exact_mut(head_dim).zip(key).zip(query) {
                let key = step * key;
                for ((x, value), out) in line.iter_mut().zip(value).zip(&mut *out) {
                    *x = *x * decay + key * value;
                    *out += *x * query;
                }
            }
        }
        out
    }

    /// The gate of one row, `[inner]`, and the norm.
    fn gate(&self, out: &mut [f32], gates: &[f32]) {
        let open = |out: &mut [f32]| out.iter_mut().zip(gates).for_each(|(out, gate)| *out *= silu(*gate));
        if self.spec.norm != GatedNorm::NormFirst {
            open(out);
        }
        if self.spec.norm != GatedNorm::None {
            let of_group = self.spec.inner() / self.spec.groups;
            for (out, weights) in out.chunks_exact_mut(of_group).zip(self.norm.chunks_exact(of_group)) {
                let scale = inverse_rms(out, self.spec.norm_eps as f32);
                out.iter_mut().zip(weights).for_each(|(out, weight)| *out *= scale * weight);
            }
        }
        if self.spec.norm == GatedNorm::NormFirst {
            open(out);
        }
    }
}
