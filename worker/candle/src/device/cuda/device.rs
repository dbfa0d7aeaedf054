//! Opening a GPU, its free memory, its bf16 support, and copies between GPUs.

use std::panic::catch_unwind;
use std::sync::Arc;

use candle_core::cuda_backend::CudaError;
use candle_core::cuda_backend::cudarc::driver::sys::CUresult;
use candle_core::{Device, Error, Result, Tensor};

use super::failure::{driver_result, in_cuda};
use super::pool;

/// Opens the GPU with this index among those that this process sees. The coordinator sets `CUDA_VISIBLE_DEVICES` to
/// give a worker its GPU by UUID. An error states what is missing, for the operator.
pub(crate) fn open(index: u32) -> std::result::Result<Device, String> {
    // The bindings panic if a library has another version than the one they were generated for.
    match catch_unwind(|| start(index)) {
        Ok(Ok(device)) => Ok(device),
        Ok(Err(error)) => Err(why(&error)),
        Err(_) => Err("the CUDA libraries do not fit this build".to_owned()),
    }
}

/// Bytes that allocations can still get; `None` if the driver does not report them.
pub(crate) fn free_memory(device: &Device) -> Option<u64> {
    let (free, _total) = device.as_cuda_device().ok()?.cuda_stream().context().mem_get_info().ok()?;
    u64::try_from(free).ok()
}

/// Whether the GPU computes in bf16. GPUs below compute capability 8.0 have no kernels for it.
pub(crate) fn has_bf16(device: &Device) -> bool {
    let capability = device.as_cuda_device().map(|cuda| cuda.cuda_stream().context().compute_capability());
    matches!(capability, Ok(Ok((major, _minor))) if major >= 8)
}

/// Copies a tensor to another GPU. Later work on that GPU's stream waits for the copy.
///
/// The copy runs on the target's stream. Uses of tensors are not tracked, so both orders are enforced here. The copy
/// waits until the tensor is computed, which candle ensures only between different GPUs. The source's stream waits for
/// the copy, because freed memory is reused by its next tensor at once.
pub(crate) fn hand_on(x: &Tensor, to: &Device) -> Result<Tensor> {
    let (from, onto) = (x.device().as_cuda_device()?.cuda_stream(), to.as_cuda_device()?.cuda_stream());
    if Arc::ptr_eq(&from, &onto) {
        return Ok(x.clone());
    }
    // The tensor is made contiguous first: the copy of a view would include all bytes that it views.
    let x = x.force_contiguous()?;
    onto.join(&from).map_err(CudaError::from)?;
    let moved = x.to_device(to)?;
    from.join(&onto).map_err(CudaError::from)?;
    Ok(moved)
}

fn start(index: u32) -> Result<Device> {
    // The device gets a new stream. The default stream differs for each thread, and such streams are not ordered.
    let device = Device::new_cuda_with_stream(index as usize)?;
    let cuda = device.as_cuda_device()?;
    // SAFETY: tracking orders the uses of one tensor on several streams. This process computes on this one stream only.
    #[allow(unsafe_code)]
    unsafe {
        cuda.disable_event_tracking();
    }
    pool::keep(cuda);
    // The first kernel shows whether this build has code for this GPU. Reading the model could take minutes.
    Tensor::new(&[1f32], &device)?.affine(2.0, 0.0)?.to_vec1::<f32>()?;
    Ok(device)
}

fn why(error: &Error) -> String {
    match in_cuda(error) {
        Some(CudaError::Cublas(_)) => {
            "cuBLAS cannot be started; libcublas.so and libcublasLt.so of CUDA 12 or 13 must be on the library path"
                .into()
        }
        Some(CudaError::Curand(_)) => "cuRAND cannot be started; libcurand.so.10 must be on the library path".into(),
        Some(cuda) => match driver_result(cuda) {
            Some(CUresult::CUDA_ERROR_NO_DEVICE) => {
                "there is no NVIDIA driver, or no GPU that this process may see".to_owned()
            }
            Some(CUresult::CUDA_ERROR_INVALID_DEVICE) => {
                "no GPU of that number is there, or CUDA_VISIBLE_DEVICES hides it".to_owned()
            }
            Some(CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION) => {
                "the NVIDIA driver is too old for this build; update the driver".to_owned()
            }
            Some(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU | CUresult::CUDA_ERROR_INVALID_PTX) => {
                "this build has no code for this GPU; build it for the GPU's architecture (docs/cuda.md)".to_owned()
            }
            Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => "its memory is full; not even a context fits".to_owned(),
            Some(result) => format!("the driver answers {result:?}"),
            None => cuda.to_string(),
        },
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_is_not_there_is_an_error_not_a_panic() {
        let error = open(4_000).unwrap_err();
        assert!(error.contains("no NVIDIA driver") || error.contains("no GPU of that number"), "{error}");
    }
}
