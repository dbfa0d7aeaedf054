//! From a device's name to candle's device, and what may be asked of any device. GPUs of a kind stand in a folder of
//! their own each.

use candle_core::{DType, Device, Error, Result, Tensor};
use model_boss_engine::DecoderError;
use model_boss_protocol::{DeviceId, GPU_CONTEXT};
use model_boss_weights::gguf::TensorType;

use crate::load::LoadError;
use crate::reader::Target;
use crate::{cuda, memory};

/// Opens a device of this machine.
pub(crate) fn open(device: &DeviceId) -> std::result::Result<Device, LoadError> {
    let refused = |why: String| LoadError::DeviceLost { device: device.clone(), why };
    match device {
        DeviceId::Cpu => Ok(Device::Cpu),
        DeviceId::Cuda(index) => cuda::open(*index).map_err(refused),
        DeviceId::Metal(_) => Err(refused("this build has no Metal".to_owned())),
        DeviceId::Npu => Err(refused("this build has no driver for neural processing units".to_owned())),
        DeviceId::Auto => Err(refused("the device has to be chosen before a model is loaded".to_owned())),
        DeviceId::Custom(_) => Err(refused("this build has no driver of that name".to_owned())),
    }
}

/// The type a model computes in, and so that of its weights on the device.
///
/// On a GPU a model of halves stays one: it reads half the bytes per token and has the faster products. Sums inside of
/// norms and products are f32 there, softmax is computed in f32, and logits leave as f32. A model whose matrices differ in
/// type computes in f32, and so does every model on the CPU, where matrices may stay as they are stored
/// ([`crate::reader`]). Beside quantised blocks a GPU computes in bf16: its rounding is below theirs, and its range that of f32.
fn compute_type(device: &Device, matrices: &[TensorType]) -> DType {
    let is_float = |kind: &TensorType| matches!(kind, TensorType::F32 | TensorType::F16 | TensorType::BF16);
    let all = |wanted| matrices.iter().all(|kind| *kind == wanted);
    let quantised = matrices.iter().any(|kind| !is_float(kind));
    if device.is_cpu() || matrices.is_empty() {
        DType::F32
    } else if all(TensorType::F16) {
        DType::F16
    } else if (quantised || all(TensorType::BF16)) && cuda::has_bf16(device) {
        DType::BF16
    } else {
        DType::F32
    }
}

/// What a model's weights, keys and values become on a device.
///
/// On the CPU keys and values are kept in f16, unless the whole model is stored in f32 and so somebody wants no rounding.
/// On other devices they have the type that the model computes in.
pub(crate) fn target(device: Device, matrices: &[TensorType]) -> Target {
    let dtype = compute_type(&device, matrices);
    let narrow = matrices.iter().any(|kind| *kind != TensorType::F32);
    let cached = if device.is_cpu() && narrow { DType::F16 } else { dtype };
    Target { device, dtype, cached }
}

/// Bytes of the device's memory that are to be had; `None` where nobody says.
pub(crate) fn free_memory(device: &Device) -> Option<u64> {
    if device.is_cpu() { memory::available() } else { cuda::free_memory(device) }
}

/// Bytes that a process takes on a device beside what it allocates there.
pub(crate) fn context_bytes(device: &Device) -> u64 {
    if device.is_cpu() { 0 } else { GPU_CONTEXT.0 }
}

/// Gives the memory of things that were dropped back to the system, where a device keeps it.
pub(crate) fn trim(device: &Device) {
    if device.is_cuda() {
        cuda::trim(device);
    }
}

/// A tensor on another device, in order with what both compute; a free clone where it is there already.
pub(crate) fn hand_on(x: &Tensor, to: &Device) -> Result<Tensor> {
    if x.device().is_cuda() && to.is_cuda() { cuda::hand_on(x, to) } else { x.to_device(to) }
}

/// What candle's error means for the engine.
pub(crate) fn failure(error: &Error) -> DecoderError {
    match error {
        // What keys and values are kept in is mapped; nothing else in a step asks the system for anything.
        Error::Io(error) if error.kind() == std::io::ErrorKind::OutOfMemory => {
            DecoderError::OutOfMemory(error.to_string())
        }
        error => cuda::failure(error).unwrap_or_else(|| DecoderError::Step(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_computes_in_f32_whatever_is_stored() {
        for stored in [TensorType::F32, TensorType::F16, TensorType::BF16, TensorType::Q4_K] {
            assert_eq!(compute_type(&Device::Cpu, &[stored, stored]), DType::F32);
        }
    }

    #[test]
    fn en_2_keys_and_values_are_rounded_where_weights_are() {
        let cached = |stored: &[TensorType]| target(Device::Cpu, stored).cached;
        assert_eq!(cached(&[TensorType::F32, TensorType::F32]), DType::F32);
        assert_eq!(cached(&[TensorType::F32, TensorType::Q4_K]), DType::F16);
        assert_eq!(cached(&[TensorType::BF16]), DType::F16);
    }

    #[test]
    fn an_error_without_a_device_is_a_failed_step() {
        assert!(matches!(failure(&Error::Msg("shapes differ".into())), DecoderError::Step(_)));
        let full = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        assert!(matches!(failure(&full.into()), DecoderError::OutOfMemory(_)));
    }
}
