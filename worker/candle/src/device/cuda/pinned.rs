//! Page-locked memory of the host.

use std::slice;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError, PinnedHostSlice, sys};
use model_boss_weights::store::{HostBuffer, HostMemory, PAGE};

/// Why there is no page-locked memory.
#[derive(Debug)]
pub(crate) enum NotPinned {
    /// The driver gives none.
    Driver(DriverError),
    /// It is no memory for reads, in words.
    Buffer(String),
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
pub(crate) fn pinned(context: &Arc<CudaContext>, bytes: usize) -> Result<HostBuffer, NotPinned> {
    let bytes = bytes.max(1).next_multiple_of(PAGE);
    // The driver does not guarantee that memory begins at a page, and small allocations share pages. One page more is
    // allocated, so that a whole page can be found.
    let with_room = bytes.saturating_add(PAGE);
    // The memory is ordinary cached memory, so the CPU reads it at full speed. It is portable, so other GPUs copy from
    // it too. SAFETY: its contents are set below before any read.
    #[allow(unsafe_code)]
    let memory = unsafe { context.alloc_pinned_with_flags::<u8>(with_room, sys::CU_MEMHOSTALLOC_PORTABLE) };
    let mut memory = memory.map_err(NotPinned::Driver)?;
    let allocated = memory.as_mut_ptr().map_err(NotPinned::Driver)?;
    let start = allocated.map_addr(|address| address.next_multiple_of(PAGE));
    // SAFETY: less than a page is skipped, and the allocation has one page more than these bytes.
    #[allow(unsafe_code)]
    unsafe {
        start.write_bytes(0, bytes);
    }
    let buffer = HostBuffer::over(Box::new(Pinned { _memory: memory, start, bytes }));
    buffer.map_err(|error| NotPinned::Buffer(error.to_string()))
}
