//! Work of a GPU that is recorded once and repeated by one launch: a CUDA graph. A step of a small model is some
//! hundred kernels of a few microseconds each, and launching them one by one takes longer than running them.
//!
//! The results of this project's kernels are in memory that a rehearsal made. Memory that the work allocates beside
//! them belongs to the recording, so the work frees all of it. What it reads and writes has to stay where it is.

use candle_core::cuda_backend::cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, result};
use candle_core::cuda_backend::{CudaDevice, CudaError};
use candle_core::{Device, Result, Tensor, bail};

use super::launch::address;
use crate::device::scratch::{self, Repeat, StepMemory};

/// A graph of a device that this process owns.
struct Recording(CudaGraph);

// SAFETY: the driver's handles may be used on any thread, and `&mut` of its owner keeps it to one at a time.
#[allow(unsafe_code)]
unsafe impl Send for Recording {}

impl Recording {
    fn play(&self) -> Result<()> {
        Ok(self.0.launch().map_err(CudaError::from)?)
    }
}

/// Does work as it will be recorded. Afterwards the shapes that candle's kernels take from the GPU's memory are there:
/// a recording cannot copy them from the host. The results of kernels are in `scratch`.
pub(crate) fn rehearse<T>(device: &Device, scratch: &mut StepMemory, work: impl FnOnce() -> T) -> Result<T> {
    let _cached = device.as_cuda_device()?.enable_cuda_graph_htod_cache();
    Ok(scratch::within(scratch, false, work))
}

/// Records work that was rehearsed, without doing it. After an error the device is as before.
pub(crate) fn record(device: &Device, scratch: &mut StepMemory, work: impl FnOnce() -> Result<()>) -> Result<Repeat> {
    let cuda = device.as_cuda_device()?;
    let stream = cuda.cuda_stream();
    let _cached = cuda.enable_cuda_graph_htod_cache();
    // Other threads copy files to the GPU meanwhile, which the stricter modes forbid.
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    stream.begin_capture(mode).map_err(CudaError::from)?;
    let worked = scratch::within(scratch, true, work);
    let ended = stream.end_capture(CUgraphInstantiate_flags(0));
    if worked.is_err() || ended.is_err() {
        // Frees within a recording that failed are errors too, which the next call would return.
        let _ = stream.context().check_err();
    }
    worked?;
    let Some(graph) = ended.map_err(CudaError::from)? else { bail!("the recording is empty") };
    let recording = Recording(graph);
    Ok(Box::new(move || recording.play()))
}

/// Returns memory of recordings that are gone to the system.
pub(crate) fn trim_recordings(device: &Device) {
    let Ok(cuda) = device.as_cuda_device() else { return };
    // SAFETY: the device exists. It only affects how much memory is kept.
    #[allow(unsafe_code)]
    let _ = unsafe { sys::cuDeviceGraphMemTrim(cuda.cuda_stream().context().cu_device()).result() };
}

/// Copies numbers over those of a tensor, behind all work before.
pub(crate) fn overwrite<T: Copy>(to: &Tensor, numbers: &[T]) -> Result<()> {
    if size_of_val(numbers) != to.elem_count() * to.dtype().size_in_bytes() {
        bail!("{} numbers for {} elements", numbers.len(), to.elem_count());
    }
    let cuda: &CudaDevice = to.device().as_cuda_device()?;
    let stream = cuda.cuda_stream();
    stream.context().bind_to_thread().map_err(CudaError::from)?;
    // SAFETY: the tensor has room for the numbers. From memory that is not page-locked the driver has read them when
    // the call returns.
    #[allow(unsafe_code)]
    unsafe { result::memcpy_htod_async(address(to)?, numbers, stream.cu_stream()) }.map_err(CudaError::from)?;
    Ok(())
}
