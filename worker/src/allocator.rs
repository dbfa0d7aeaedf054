//! The allocator's settings.

/// Bytes of a buffer up to which freed memory is used again. The GNU C library takes no more.
#[cfg(target_env = "gnu")]
const MOST_KEPT: i32 = 32 << 20;

/// Free bytes at the end of the heap from which on they go back to the system.
#[cfg(target_env = "gnu")]
const MOST_FREE: i32 = 256 << 20;

/// Keeps the memory of freed buffers for the next layer and the next step. By itself the GNU C library gives large
/// buffers back to the system, which clears their pages anew: a seventh of the time in which a prompt is read.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub(crate) fn keep_freed_buffers() {
    // SAFETY: the two options take numbers, and no other thread runs yet. One that is refused changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MOST_KEPT);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MOST_FREE);
    }
}

/// Other allocators are left as they are.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn keep_freed_buffers() {}
