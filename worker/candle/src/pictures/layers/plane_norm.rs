//! GroupNorm of pictures, with the activation behind it.

use candle_core::{CpuStorage, CustomOp1, D, Layout, Result, Shape, Storage, Tensor, bail};
use model_boss_kernels::GroupNorm;

use super::planes::Planes;
use crate::matrix::tensor_products::contiguous;

/// The step behind a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pictures) enum AfterNorm {
    Nothing,
    Silu,
}

/// A norm with its weights.
pub(in crate::pictures) struct PlaneNorm {
    /// `[channels]`.
    weight: Tensor,
    bias: Tensor,
    groups: usize,
    eps: f64,
}

impl PlaneNorm {
    /// Groups divide the channels.
    pub(in crate::pictures) fn new(weight: Tensor, bias: Tensor, groups: usize, eps: f64) -> Self {
        Self { weight, bias, groups, eps }
    }

    pub(in crate::pictures) fn forward(&self, x: &Planes, after: AfterNorm) -> Result<Planes> {
        let channels = x.channels()?;
        if channels != self.weight.dim(0)? {
            bail!("a norm of {} channels is given {channels}", self.weight.dim(0)?);
        }
        if x.rows.device().is_cpu() {
            let rows = x.rows.contiguous()?;
            return Ok(x.with(rows.apply_op1_no_bwd(&OnHost { norm: self, pixels: x.pixels(), after })?));
        }
        let group = channels / self.groups;
        let grouped = x.rows.reshape((x.images, x.pixels(), self.groups, group))?.transpose(1, 2)?;
        let grouped = grouped.contiguous()?.reshape((x.images * self.groups, x.pixels() * group))?;
        let away = grouped.broadcast_sub(&grouped.mean_keepdim(D::Minus1)?)?;
        let deviation = (away.sqr()?.mean_keepdim(D::Minus1)? + self.eps)?.sqrt()?;
        let normed = away.broadcast_div(&deviation)?.reshape((x.images, self.groups, x.pixels(), group))?;
        let normed = normed.transpose(1, 2)?.contiguous()?.reshape(x.rows.shape())?;
        let normed = normed.broadcast_mul(&self.weight)?.broadcast_add(&self.bias)?;
        Ok(x.with(if after == AfterNorm::Silu { normed.silu()? } else { normed }))
    }
}

struct OnHost<'a> {
    norm: &'a PlaneNorm,
    pixels: usize,
    after: AfterNorm,
}

impl CustomOp1 for OnHost<'_> {
    fn name(&self) -> &'static str {
        "plane-norm"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (weight, bias) = (self.norm.weight.storage_and_layout(), self.norm.bias.storage_and_layout());
        let (Storage::Cpu(of_weight), Storage::Cpu(of_bias)) = (&*weight.0, &*bias.0) else {
            bail!("a norm's weights are not in the memory of the CPU")
        };
        let norm = GroupNorm {
            groups: self.norm.groups,
            weight: contiguous(of_weight, weight.1)?,
            bias: contiguous(of_bias, bias.1)?,
            eps: self.norm.eps as f32,
            silu: self.after == AfterNorm::Silu,
        };
        let mut rows = contiguous(storage, layout)?.to_vec();
        rows.chunks_exact_mut(self.pixels * norm.weight.len()).for_each(|image| norm.in_place(image));
        Ok((CpuStorage::F32(rows), layout.shape().clone()))
    }
}
