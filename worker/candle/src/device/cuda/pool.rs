//! The driver's memory pool, from which candle allocates. By default it gives all free memory back to the system at
//! every wait for the GPU. A step waits once, so each step would pay for its memory anew. So the pool keeps what it
//! has, until [`trim`] is called when a sequence ends.
//!
//! All of this is about speed; where the driver has no pools, nothing is kept and nothing fails.

use std::ptr;

use candle_core::cuda_backend::cudarc::driver::result::DriverError;
use candle_core::cuda_backend::cudarc::driver::sys;
use candle_core::{CudaDevice, Device};

/// Bytes that steps may allocate and free without the driver.
const SPARE: u64 = 256 << 20;

/// From now on freed memory stays with the process.
pub(super) fn keep(device: &CudaDevice) {
    // An older GPU without pools; it allocates directly.
    let _ = set_release_threshold(device, u64::MAX);
}

/// Returns unused memory to the system, apart from a little for the next steps.
pub(crate) fn trim(device: &Device) {
    let Ok(cuda) = device.as_cuda_device() else { return };
    // Frees wait in the stream. If the stream is broken, the next step reports it.
    if device.synchronize().is_ok() {
        let _ = release(cuda);
    }
}

fn default_pool(device: &CudaDevice) -> Result<sys::CUmemoryPool, DriverError> {
    let mut pool = ptr::null_mut();
    // SAFETY: `pool` is a place for a handle; the device's number is of a context that lives.
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
    // SAFETY: as above; `used` is a place for a 64-bit number.
    #[allow(unsafe_code)]
    unsafe {
        sys::cuMemPoolGetAttribute(pool, attribute, ptr::from_mut(&mut used).cast()).result()?;
    }
    let keep = usize::try_from(used.saturating_add(SPARE)).unwrap_or(usize::MAX);
    // SAFETY: as above.
    #[allow(unsafe_code)]
    unsafe {
        sys::cuMemPoolTrimTo(pool, keep).result()
    }
}
