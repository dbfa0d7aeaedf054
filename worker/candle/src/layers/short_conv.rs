//! A gated convolution over the last few tokens, as in LFM2 (Liquid AI, 2025, arXiv 2511.23404): one part of the
//! projected row goes through the convolution, behind a gate and before another.

use candle_core::{Result, Tensor};

use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::named_weights::NamedWeights;
use crate::layers::recurrent::{CausalConv, beside, floats, on_host};
use crate::layers::states::LayerState;
use crate::layers::step::StepContext;
use crate::spec::{ShortConvSpec, part_names};

pub(crate) struct ShortConv {
    /// `[rows, width]` → `[rows, 3 * width]`: gate before, gate behind, and values.
    input: Linear,
    conv: CausalConv,
    output: Linear,
    width: usize,
}

impl ShortConv {
    pub(crate) fn read(
        parts: &mut dyn NamedWeights,
        spec: &ShortConvSpec,
        index: usize,
    ) -> std::result::Result<Self, ModelError> {
        let path = |part: &str| part_names::layer(index, part);
        let mut linear = |part: &str| Linear::read(parts, &path(part), spec.bias.into());
        let (input, output) = (linear("conv.in_proj")?, linear("conv.out_proj")?);
        let conv = CausalConv::read(parts, &path("conv.conv"), spec.width, spec.bias)?;
        Ok(Self { input, conv, output, width: spec.width })
    }

    /// `[rows, width]` → `[rows, width]`; `states` has one entry per span.
    pub(crate) fn forward(&self, x: &Tensor, states: Vec<LayerState<'_>>, step: &StepContext) -> Result<Tensor> {
        let projected = on_host(&self.input.forward_adapted(x, &step.adapters)?)?;
        let storage = projected.storage_and_layout();
        let (projected, width) = (floats(&storage)?, self.width);
        let mut mixed = Vec::with_capacity(x.elem_count());
        for (mut state, span) in states.into_iter().zip(&step.spans) {
            let rows = &projected[span.rows.start * 3 * width..span.rows.end * 3 * width];
            state.run(span.rows.len(), |piece, window| {
                let rows = rows[piece.start * 3 * width..piece.end * 3 * width].chunks_exact(3 * width);
                let opened = |row: &[f32]| row[..width].iter().zip(&row[2 * width..]).map(|(b, x)| b * x).collect();
                let values: Vec<f32> = rows.clone().flat_map(|row| -> Vec<f32> { opened(row) }).collect();
                let mut seen = self.conv.forward(&values, window);
                for (seen, row) in seen.chunks_exact_mut(width).zip(rows) {
                    seen.iter_mut().zip(&row[width..]).for_each(|(seen, gate)| *seen *= gate);
                }
                mixed.extend(seen);
            });
        }
        self.output.forward_adapted(&beside(mixed, width, x)?, &step.adapters)
    }
}
