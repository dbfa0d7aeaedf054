//! The classes of CUDA errors for the worker: no memory for this request, a failed step, or the end of the process.

use candle_core::Error;
use candle_core::cuda_backend::CudaError;
use candle_core::cuda_backend::cudarc::cublas::sys::cublasStatus_t;
use candle_core::cuda_backend::cudarc::driver::sys::CUresult;
use model_boss_engine::DecoderError;

/// The class of an error; `None` if it is not CUDA's.
///
/// After an error of a kernel (illegal address, failed launch, uncorrectable memory) every later call on the context
/// fails. Only a new process gets a new context. So the process ends on all driver errors but those known to leave it
/// intact.
pub(crate) fn failure(error: &Error) -> Option<DecoderError> {
    let cuda = in_cuda(error)?;
    Some(match cuda {
        CudaError::Cublas(error) => match error.0 {
            cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED => {
                DecoderError::OutOfMemory("cuBLAS found no GPU memory to work in".to_owned())
            }
            cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE | cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => {
                DecoderError::Step(format!("cuBLAS answers {:?}", error.0))
            }
            fatal => DecoderError::Fatal(format!("cuBLAS answers {fatal:?}")),
        },
        cuda => match driver_result(cuda) {
            Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                DecoderError::OutOfMemory("the GPU's memory is full".to_owned())
            }
            Some(
                result @ (CUresult::CUDA_ERROR_INVALID_VALUE
                | CUresult::CUDA_ERROR_NOT_SUPPORTED
                | CUresult::CUDA_ERROR_NOT_FOUND
                | CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES),
            ) => DecoderError::Step(format!("the driver answers {result:?}")),
            Some(fatal) => DecoderError::Fatal(format!("the driver answers {fatal:?}")),
            None => DecoderError::Step(cuda.to_string()),
        },
    })
}

/// The error of CUDA inside an error of candle.
pub(super) fn in_cuda(error: &Error) -> Option<&CudaError> {
    match error {
        Error::Cuda(source) => source.downcast_ref(),
        Error::WithBacktrace { inner, .. } | Error::Context { inner, .. } | Error::WithPath { inner, .. } => {
            in_cuda(inner)
        }
        _ => None,
    }
}

/// The driver's result code, if the driver returned the error.
pub(super) fn driver_result(error: &CudaError) -> Option<CUresult> {
    match error {
        CudaError::Cuda(driver) | CudaError::Load { cuda: driver, .. } => Some(driver.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use candle_core::cuda_backend::cudarc::cublas::result::CublasError;
    use candle_core::cuda_backend::cudarc::driver::DriverError;

    use super::*;

    fn of_driver(result: CUresult) -> Option<DecoderError> {
        failure(&Error::from(CudaError::Cuda(DriverError(result))).context("in the third layer"))
    }

    #[test]
    fn a_broken_context_ends_the_process() {
        for result in [
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
            CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
            CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            CUresult::CUDA_ERROR_UNKNOWN,
        ] {
            assert!(matches!(of_driver(result), Some(DecoderError::Fatal(_))), "{result:?}");
        }
        let of_cublas = |status| failure(&CudaError::Cublas(CublasError(status)).into());
        let failed = of_cublas(cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED);
        assert!(matches!(failed, Some(DecoderError::Fatal(_))));
        let full = of_cublas(cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED);
        assert!(matches!(full, Some(DecoderError::OutOfMemory(_))));
    }

    #[test]
    fn a_full_memory_and_a_wrong_call_do_not() {
        assert!(matches!(of_driver(CUresult::CUDA_ERROR_OUT_OF_MEMORY), Some(DecoderError::OutOfMemory(_))));
        assert!(matches!(of_driver(CUresult::CUDA_ERROR_INVALID_VALUE), Some(DecoderError::Step(_))));
        assert!(failure(&Error::Msg("a shape does not fit".into())).is_none());
    }
}
