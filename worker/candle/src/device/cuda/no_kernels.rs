//! The stub for this project's own kernels in a build without CUDA: no device is served by them.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::device::blocks::DeviceBlocks;
use crate::device::rows::{AttendedHeads, Beside, NewRows, SiluForm, StepTables};

pub(crate) fn serve(_device: &Device, _head_dim: usize, _value_dim: usize) -> bool {
    false
}

pub(crate) fn place(
    _new: &NewRows<'_>,
    _shape: &AttendedHeads,
    _caches: (&Tensor, &Tensor),
    _tables: &StepTables,
) -> Result<Tensor> {
    bail!("this build has no kernels for GPUs")
}

pub(crate) fn unwritten(_query: &Tensor, _shape: &AttendedHeads) -> Result<Tensor> {
    bail!("this build has no kernels for GPUs")
}

pub(crate) fn attend(
    _query: &Tensor,
    _shape: &AttendedHeads,
    _caches: (&Tensor, &Tensor),
    _tables: &StepTables,
    _sinks: Option<&Tensor>,
    _out: &Tensor,
) -> Result<()> {
    bail!("this build has no kernels for GPUs")
}

pub(crate) fn attend_piece(
    _query: &Tensor,
    _shape: &AttendedHeads,
    _caches: (&Tensor, &Tensor),
    _sequence: (&StepTables, usize),
    _rows: (Range<usize>, usize),
    _sinks: Option<&Tensor>,
    _out: &Tensor,
) -> Result<bool> {
    bail!("this build has no kernels for GPUs")
}

pub(crate) fn soften(
    _scores: &Tensor,
    _rows: usize,
    _past: usize,
    _shape: &AttendedHeads,
    _sinks: Option<&Tensor>,
) -> Result<()> {
    bail!("this build has no kernels for GPUs")
}

pub(crate) fn products(_x: &Tensor, _weights: &[&Tensor], _beside: &Beside<'_>) -> Result<Option<Vec<Tensor>>> {
    Ok(None)
}

pub(crate) fn settle_blocks(_elements: usize, _device: &Device) -> Result<()> {
    bail!("this build has no kernels for GPUs")
}

pub(crate) fn block_products(
    _x: &Tensor,
    _blocks: &[&DeviceBlocks],
    _beside: &Beside<'_>,
) -> Result<Option<Vec<Tensor>>> {
    bail!("this build has no kernels for GPUs")
}

pub(crate) fn block_product(_x: &Tensor, _blocks: &DeviceBlocks) -> Result<Tensor> {
    bail!("this build has no kernels for GPUs")
}

pub(crate) fn block_rows(_blocks: &DeviceBlocks, _numbers: &Tensor, _dtype: DType) -> Result<Tensor> {
    bail!("this build has no kernels for GPUs")
}

pub(crate) fn add_norm(_x: &Tensor, _y: &Tensor, _weight: &Tensor, _eps: f32) -> Result<Option<(Tensor, Tensor)>> {
    Ok(None)
}

pub(crate) fn silu_gate(_gate: &Tensor, _up: &Tensor, _form: SiluForm) -> Result<Option<Tensor>> {
    Ok(None)
}
