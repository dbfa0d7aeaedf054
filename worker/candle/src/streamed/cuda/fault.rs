//! The classes of CUDA's errors for a load and for a step with streamed layers.

use candle_core::Error;
use candle_core::cuda_backend::CudaError;
use candle_core::cuda_backend::cudarc::driver::DriverError;
use model_boss_engine::DecoderError;
use model_boss_engine::residency::StreamFault;

use crate::device::failure_of_gpu;

/// The fault for a driver error. After most errors the GPU cannot be used in this process any more.
pub(super) fn fault(error: DriverError) -> StreamFault {
    of_candle(&Error::from(CudaError::Cuda(error)))
}

pub(super) fn of_candle(error: &Error) -> StreamFault {
    match failure_of_gpu(error) {
        Some(DecoderError::Fatal(what)) => StreamFault::Fatal(what),
        Some(other) => StreamFault::Step(other.to_string()),
        None => StreamFault::Step(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::cuda_backend::cudarc::driver::sys;

    use super::*;

    #[test]
    fn a_broken_context_ends_streaming_and_a_full_memory_does_not() {
        let of = |result| fault(DriverError(result));
        assert!(matches!(of(sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS), StreamFault::Fatal(_)));
        assert!(matches!(of(sys::CUresult::CUDA_ERROR_LAUNCH_FAILED), StreamFault::Fatal(_)));
        assert!(
            matches!(of(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY), StreamFault::Step(what) if what.contains("memory"))
        );
    }
}
