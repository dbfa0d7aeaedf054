//! Opening candle's devices by name, and the properties that any device has. Each kind of GPU has a folder of its own.

pub(crate) mod blocks;
mod cuda;
pub(crate) mod fault;
mod host_memory;
pub(crate) mod rows;
pub(crate) mod scratch;

use candle_core::{DType, Device, Error, Result, Storage, Tensor, bail};
use model_boss_engine::DecoderError;
use model_boss_protocol::{DeviceId, GPU_CONTEXT};

use crate::device::fault::StepFault;
use crate::error::LoadError;

#[cfg(feature = "cuda")]
pub(crate) use cuda::failure as failure_of_gpu;
#[cfg(feature = "cuda")]
pub(crate) use cuda::{NotPinned, pinned};
pub(crate) use cuda::{kernels, overwrite, record, rehearse, trim_recordings, upload_bytes};

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

/// Bytes of the device's memory that are free; `None` where that is unknown.
pub(crate) fn free_memory(device: &Device) -> Option<u64> {
    if device.is_cpu() { host_memory::available() } else { cuda::free_memory(device) }
}

/// Whether a device computes in bf16.
pub(crate) fn has_bf16(device: &Device) -> bool {
    cuda::has_bf16(device)
}

/// Bytes that a process uses on a device beyond its allocations.
pub(crate) fn context_bytes(device: &Device) -> u64 {
    if device.is_cpu() { 0 } else { GPU_CONTEXT.0 }
}

/// Returns the memory of dropped values to the system, on devices that would keep it.
pub(crate) fn trim(device: &Device) {
    if device.is_cuda() {
        cuda::trim(device);
    }
}

/// Copies a tensor to another device, in order with the work of both. A tensor that is on that device is cloned without
/// a copy.
pub(crate) fn hand_on(x: &Tensor, to: &Device) -> Result<Tensor> {
    if x.device().is_cuda() && to.is_cuda() { cuda::hand_on(x, to) } else { x.to_device(to) }
}

/// Reads a tensor of f32 on any device, when it is computed.
pub(crate) fn with_numbers<R>(x: &Tensor, read: impl FnOnce(&[f32]) -> R) -> Result<R> {
    if x.device().is_cuda() {
        return cuda::with_numbers(x, read);
    }
    let x = x.to_device(&Device::Cpu)?.contiguous()?;
    let (storage, layout) = x.storage_and_layout();
    let (Storage::Cpu(storage), Some((first, end))) = (&*storage, layout.contiguous_offsets()) else {
        bail!("numbers did not come to the host")
    };
    Ok(read(&storage.as_slice::<f32>()?[first..end]))
}

/// A tensor of the elements that these bytes are, on any device.
pub(crate) fn upload(bytes: &[u8], dtype: DType, shape: &[usize], device: &Device) -> Result<Tensor> {
    if !device.is_cuda() {
        return Tensor::from_raw_buffer(bytes, dtype, shape, device);
    }
    // SAFETY: numbers of any bits are numbers, and all of them are written before they are read.
    #[allow(unsafe_code)]
    let tensor = unsafe { Tensor::empty(shape, dtype, device)? };
    cuda::upload(bytes, &tensor)?;
    Ok(tensor)
}

/// The class of a candle error for the engine.
pub(crate) fn failure(error: &Error) -> DecoderError {
    match error {
        // Memory of keys and values is mapped. No other part of a step maps memory, so the error is about them.
        Error::Io(error) if error.kind() == std::io::ErrorKind::OutOfMemory => {
            DecoderError::OutOfMemory(error.to_string())
        }
        Error::WithBacktrace { inner, .. } => failure(inner),
        Error::WrappedContext { wrapped, .. } if let Some(fault) = wrapped.downcast_ref::<StepFault>() => {
            fault.of_step()
        }
        error => cuda::failure(error).unwrap_or_else(|| DecoderError::Step(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_a_device_is_a_failed_step() {
        assert!(matches!(failure(&Error::Msg("shapes differ".into())), DecoderError::Step(_)));
        let full = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        assert!(matches!(failure(&full.into()), DecoderError::OutOfMemory(_)));
    }
}
