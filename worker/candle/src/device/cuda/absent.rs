//! The stub for NVIDIA GPUs in a build without CUDA. Of its functions, only [`open`] is ever called.

use candle_core::{Device, Error, Result, Tensor, bail};
use model_boss_engine::DecoderError;

use crate::device::scratch::{Repeat, StepMemory};

pub(crate) fn open(_index: u32) -> std::result::Result<Device, String> {
    Err("this build has no CUDA; docs/cuda.md says how to build it in".to_owned())
}

pub(crate) fn free_memory(_device: &Device) -> Option<u64> {
    None
}

pub(crate) fn has_bf16(_device: &Device) -> bool {
    false
}

pub(crate) fn trim(_device: &Device) {}

pub(crate) fn hand_on(x: &Tensor, to: &Device) -> Result<Tensor> {
    x.to_device(to)
}

pub(crate) fn upload(_bytes: &[u8], _to: &Tensor) -> Result<bool> {
    Ok(false)
}

pub(crate) fn upload_bytes(_bytes: &[u8], _to: &Tensor) -> Result<()> {
    bail!("this build has no CUDA")
}

pub(crate) fn with_numbers<R>(_x: &Tensor, _read: impl FnOnce(&[f32]) -> R) -> Result<R> {
    bail!("this build has no CUDA")
}

pub(crate) fn rehearse<T>(_device: &Device, _scratch: &mut StepMemory, _work: impl FnOnce() -> T) -> Result<T> {
    bail!("this build has no CUDA")
}

pub(crate) fn record(
    _device: &Device,
    _scratch: &mut StepMemory,
    _work: impl FnOnce() -> Result<()>,
) -> Result<Repeat> {
    bail!("this build has no CUDA")
}

pub(crate) fn trim_recordings(_device: &Device) {}

pub(crate) fn overwrite<T: Copy>(_to: &Tensor, _numbers: &[T]) -> Result<()> {
    bail!("this build has no CUDA")
}

pub(crate) fn failure(_error: &Error) -> Option<DecoderError> {
    None
}
