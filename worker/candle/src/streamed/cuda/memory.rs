//! Memory that layers are streamed through. Matrices compute from slots on the GPU, and the GPU copies from page-locked
//! memory of the host without the CPU.

use std::slice;

use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaStream, DevicePtr, DriverError, PinnedHostSlice, sys,
};
use candle_core::quantized::QStorage;
use candle_core::quantized::cuda::QCudaStorage;
use candle_core::{CudaDevice, DType, Device, Result, Storage, Tensor, bail};
use half::{bf16, f16};
use model_boss_engine::residency::StreamFault;
use model_boss_kernels::MatrixLayout;
use model_boss_protocol::ByteCount;
use model_boss_weights::gguf::TensorType;
use model_boss_weights::store::{HostBuffer, HostMemory, PAGE};

use std::sync::Arc;

use super::fault::fault;
use crate::matrix::Matrix;
use crate::matrix::blocks::{self, DeviceBlocks};
use crate::streamed::device_copy::MatrixMemory;

/// The alignment of memory on a GPU; kernels read in vectors.
const ALIGNMENT: u64 = 256;

/// Memory on the GPU for one matrix: a tensor of candle's, or one of its quantised ones. It was zeroed when it was
/// allocated, and only the matrix's own bytes are written. Bytes that kernels read after the last row stay zero.
pub(crate) struct SlotMemory {
    matrix: Matrix,
    /// The address of the matrix's first byte, constant as long as the matrix exists.
    pub(super) address: sys::CUdeviceptr,
    /// The bytes of the matrix, without the padding after it.
    pub(super) bytes: usize,
}

impl SlotMemory {
    pub(super) fn allocate(layout: MatrixLayout, device: &Device, cuda: &CudaDevice) -> Result<Self> {
        let [outs, depth] = layout.shape;
        let bytes = layout.kind.bytes_of((outs * depth) as u64).and_then(|bytes| usize::try_from(bytes).ok());
        let Some(bytes) = bytes else { bail!("a matrix of {outs} x {depth} {} has no size", layout.kind) };
        let (matrix, address) = match layout.kind {
            TensorType::F32 => dense::<f32>(layout.shape, DType::F32, device, &cuda.cuda_stream())?,
            TensorType::F16 => dense::<f16>(layout.shape, DType::F16, device, &cuda.cuda_stream())?,
            TensorType::BF16 => dense::<bf16>(layout.shape, DType::BF16, device, &cuda.cuda_stream())?,
            kind => {
                let Some(kind) = blocks::kind(kind) else { bail!("no kernel for {kind}") };
                let blocks =
                    DeviceBlocks::over(QStorage::Cuda(QCudaStorage::zeros(cuda, outs * depth, kind)?), layout)?;
                let address = blocks.tensor().device_ptr()?.addr() as sys::CUdeviceptr;
                (Matrix::Blocks(blocks), address)
            }
        };
        if !address.is_multiple_of(ALIGNMENT) {
            bail!("the driver gave memory at {address:#x}, which is not aligned to {ALIGNMENT} bytes");
        }
        Ok(Self { matrix, address, bytes })
    }
}

impl MatrixMemory for SlotMemory {
    fn matrix(&self) -> Matrix {
        self.matrix.clone()
    }
}

fn dense<T: candle_core::cuda_backend::CudaDType>(
    [outs, depth]: [usize; 2],
    dtype: DType,
    device: &Device,
    stream: &CudaStream,
) -> Result<(Matrix, sys::CUdeviceptr)> {
    let tensor = Tensor::zeros((outs, depth), dtype, device)?;
    let address = {
        let (storage, _layout) = tensor.storage_and_layout();
        let Storage::Cuda(cuda) = &*storage else { bail!("a tensor of another device") };
        let slice = cuda.as_cuda_slice::<T>()?;
        let (address, _guard) = slice.device_ptr(stream);
        address
    };
    Ok((Matrix::Tensor(tensor), address))
}

/// Page-locked host memory: the GPU copies from it while it computes, and disks write into it directly.
#[derive(Debug)]
struct Pinned {
    /// The owner of the memory. Its own accessor would call the driver each time, so `start` is used.
    _memory: PinnedHostSlice<u8>,
    /// The first whole page of the memory.
    start: *mut u8,
    bytes: usize,
}

// SAFETY: only this value refers to the memory, and its owner may be dropped on any thread.
#[allow(unsafe_code)]
unsafe impl Send for Pinned {}
// SAFETY: shared references only read.
#[allow(unsafe_code)]
unsafe impl Sync for Pinned {}

impl HostMemory for Pinned {
    #[allow(unsafe_code)]
    fn bytes(&self) -> &[u8] {
        // SAFETY: `bytes` from `start` are inside of memory that exists as long as `_memory`, and they were zeroed.
        unsafe { slice::from_raw_parts(self.start, self.bytes) }
    }

    #[allow(unsafe_code)]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `bytes` from `start` are inside of memory that exists as long as `_memory`, and this is the only
        // reference. The GPU reads it only while the copy's caller keeps it borrowed or waits for the copy's end.
        unsafe { slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

/// Allocates whole zeroed pages, at least `bytes`.
pub(super) fn pinned(context: &Arc<CudaContext>, bytes: usize) -> std::result::Result<HostBuffer, StreamFault> {
    let bytes = bytes.max(1).next_multiple_of(PAGE);
    // The driver does not guarantee that memory begins at a page, and small allocations share pages. One page more is
    // allocated, so that a whole page can be found.
    let with_room = bytes.saturating_add(PAGE);
    // The memory is ordinary cached memory, so the CPU reads it at full speed. It is portable, so other GPUs copy from
    // it too. SAFETY: its contents are set below before any read.
    #[allow(unsafe_code)]
    let memory = unsafe { context.alloc_pinned_with_flags::<u8>(with_room, sys::CU_MEMHOSTALLOC_PORTABLE) };
    let mut memory = memory.map_err(|error| not_pinned(error, bytes))?;
    let allocated = memory.as_mut_ptr().map_err(fault)?;
    let start = allocated.map_addr(|address| address.next_multiple_of(PAGE));
    // SAFETY: less than a page is skipped, and the allocation has one page more than these bytes.
    #[allow(unsafe_code)]
    unsafe {
        start.write_bytes(0, bytes);
    }
    let buffer = HostBuffer::over(Box::new(Pinned { _memory: memory, start, bytes }));
    buffer.map_err(|error| StreamFault::Step(error.to_string()))
}

/// The fault for a host without free memory, which the driver's error does not name.
fn not_pinned(error: DriverError, bytes: usize) -> StreamFault {
    match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            StreamFault::Step(format!("the host has no {} of page-locked memory", ByteCount(bytes as u64)))
        }
        _ => fault(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_host_is_told_from_a_full_gpu_and_from_a_broken_one() {
        let of = |result| not_pinned(DriverError(result), 3 << 20);
        let full = of(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert!(matches!(full, StreamFault::Step(what) if what.contains("host") && what.contains("3.00 MiB")));
        assert!(matches!(of(sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS), StreamFault::Fatal(_)));
    }
}
