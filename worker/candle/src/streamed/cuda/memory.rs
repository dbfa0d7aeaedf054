//! Memory that layers are streamed through. Matrices compute from slots on the GPU, and the GPU copies from page-locked
//! memory of the host without the CPU.

use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream, DevicePtr, DriverError, sys};
use candle_core::{CudaDevice, DType, Device, Result, Storage, Tensor, bail};
use half::{bf16, f16};
use model_boss_engine::residency::StreamFault;
use model_boss_kernels::MatrixLayout;
use model_boss_protocol::ByteCount;
use model_boss_weights::gguf::TensorType;
use model_boss_weights::store::HostBuffer;

use std::sync::Arc;

use super::fault::fault;
use crate::device::blocks::{self, DeviceBlocks};
use crate::device::{self, NotPinned};
use crate::matrix::Matrix;
use crate::streamed::device_copy::MatrixMemory;

/// The alignment of memory on a GPU; kernels read in vectors.
const ALIGNMENT: u64 = 256;

/// Memory on the GPU for one matrix: a tensor of numbers, or of blocks. It was zeroed when it was
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
                if !blocks::stays(kind) {
                    bail!("no kernel for {kind}");
                }
                let blocks = DeviceBlocks::zeros(layout, device)?;
                let address = device_address::<u8>(&blocks.bytes, &cuda.cuda_stream())?;
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
    let address = device_address::<T>(&tensor, stream)?;
    Ok((Matrix::Tensor(tensor), address))
}

fn device_address<T: candle_core::cuda_backend::CudaDType>(
    tensor: &Tensor,
    stream: &CudaStream,
) -> Result<sys::CUdeviceptr> {
    let (storage, _layout) = tensor.storage_and_layout();
    let Storage::Cuda(cuda) = &*storage else { bail!("a tensor of another device") };
    let (address, _guard) = cuda.as_cuda_slice::<T>()?.device_ptr(stream);
    Ok(address)
}

/// Page-locked memory of the host: whole zeroed pages, at least `bytes`.
pub(super) fn pinned(context: &Arc<CudaContext>, bytes: usize) -> std::result::Result<HostBuffer, StreamFault> {
    device::pinned(context, bytes).map_err(|error| match error {
        NotPinned::Driver(error) => not_pinned(error, bytes),
        NotPinned::Buffer(what) => StreamFault::Step(what),
    })
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
