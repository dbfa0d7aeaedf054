//! The driver's memory pool, from which candle allocates. By default it returns all free memory to the system at every
//! synchronisation with the GPU. A step synchronises once, so each step would allocate its memory anew. Therefore the
//! pool keeps its memory until [`trim`] is called when a sequence ends.
//!
//! The pool only affects speed: without pools in the driver, allocations work without it.

use std::ptr;

use candle_core::cuda_backend::cudarc::driver::result::DriverError;
use candle_core::cuda_backend::cudarc::driver::sys;
use candle_core::{CudaDevice, Device};

/// Bytes that steps may allocate and free without the driver.
const SPARE: u64 = 256 << 20;

/// Makes the pool keep freed memory from now on.
pub(super) fn keep(device: &CudaDevice) {
    // An error means that an older GPU has no pools; it allocates directly.
    let _ = set_release_threshold(device, u64::MAX);
}

/// Returns unused memory to the system, apart from a little for the next steps.
pub(crate) fn trim(device: &Device) {
    let Ok(cuda) = device.as_cuda_device() else { return };
    // Frees are queued in the stream and must be executed first. If the stream is broken, the next step reports it.
    if device.synchronize().is_ok() {
        let _ = release(cuda);
    }
}

fn default_pool(device: &CudaDevice) -> Result<sys::CUmemoryPool, DriverError> {
    let mut pool = ptr::null_mut();
    // SAFETY: `pool` has room for a handle, and the device's context exists as long as the device.
    #[allow(unsafe_code)]
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&mut pool, device.cuda_stream().context().cu_device()).result()?;
    }
    Ok(pool)
}

fn set_release_threshold(device: &CudaDevice, mut bytes: u64) -> Result<(), DriverError> {
    let pool = default_pool(device)?;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool is the device's own and is never destroyed; this attribute's value is a 64-bit number.
    #[allow(unsafe_code)]
    unsafe {
        sys::cuMemPoolSetAttribute(pool, attribute, ptr::from_mut(&mut bytes).cast()).result()
    }
}

fn release(device: &CudaDevice) -> Result<(), DriverError> {
    let pool = default_pool(device)?;
    let mut used = 0u64;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    // SAFETY: the pool is the device's own and is never destroyed; `used` has room for a 64-bit number.
    #[allow(unsafe_code)]
    unsafe {
        sys::cuMemPoolGetAttribute(pool, attribute, ptr::from_mut(&mut used).cast()).result()?;
    }
    let keep = usize::try_from(used.saturating_add(SPARE)).unwrap_or(usize::MAX);
    // SAFETY: the pool is the device's own and is never destroyed.
    #[allow(unsafe_code)]
    unsafe {
        sys::cuMemPoolTrimTo(pool, keep).result()
    }
}
