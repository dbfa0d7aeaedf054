//! Host memory that weights are read into: whole pages, so that a disk can write into it without a copy in between.

use std::fmt;

use memmap2::{Advice, MmapMut};

/// The bytes of a page. Direct I/O is rounded to pages, which are a multiple of every usual disk's block.
pub const PAGE: usize = 4096;

/// Memory of whole pages, returned to its source on drop.
#[derive(Debug)]
pub struct HostBuffer(Box<dyn HostMemory>);

/// Host memory of any origin: a device's driver may have its own.
pub trait HostMemory: Send + Sync + fmt::Debug {
    /// All bytes of the memory, always at the same address.
    fn bytes(&self) -> &[u8];

    /// All bytes of the memory, for writing.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl HostMemory for MmapMut {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl HostBuffer {
    /// At least `bytes`, zeroed, at least one page.
    ///
    /// # Errors
    /// When the system has no memory to give.
    pub fn new(bytes: usize) -> std::io::Result<Self> {
        let map = MmapMut::map_anon(bytes.max(1).next_multiple_of(PAGE))?;
        // Large pages spare the kernel work in each direct read; without them it only takes a little longer.
        #[cfg(target_os = "linux")]
        let _ = map.advise(Advice::HugePage);
        Ok(Self(Box::new(map)))
    }

    /// A buffer over memory with another owner.
    ///
    /// # Errors
    /// The memory is not whole pages, so that disks could not write into it.
    pub fn over(memory: Box<dyn HostMemory>) -> std::io::Result<Self> {
        let bytes = memory.bytes();
        if bytes.is_empty() || !bytes.len().is_multiple_of(PAGE) || !bytes.as_ptr().addr().is_multiple_of(PAGE) {
            let what = format!("{} bytes at {:p} are no whole pages", bytes.len(), bytes.as_ptr());
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, what));
        }
        Ok(Self(memory))
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        self.0.bytes().len()
    }

    /// Always false: a buffer has at least a page.
    pub fn is_empty(&self) -> bool {
        self.0.bytes().is_empty()
    }
}

impl std::ops::Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl AsRef<[u8]> for HostBuffer {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl std::ops::DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

/// Requests large pages for memory that was not touched yet. Without support for them, the call has no effect.
pub fn prefer_large_pages(memory: &mut [u8]) {
    #[cfg(target_os = "linux")]
    {
        use nix::libc::{MADV_HUGEPAGE, madvise};
        // Advice applies to whole pages only.
        let askew = memory.as_ptr().align_offset(PAGE).min(memory.len());
        let pages = &mut memory[askew..];
        let len = pages.len() / PAGE * PAGE;
        #[allow(unsafe_code)]
        // SAFETY: the range is inside of memory that is borrowed exclusively, and the advice does not change its
        // content.
        unsafe {
            madvise(pages.as_mut_ptr().cast(), len, MADV_HUGEPAGE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Part(MmapMut, std::ops::Range<usize>);

    impl HostMemory for Part {
        fn bytes(&self) -> &[u8] {
            &self.0[self.1.clone()]
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0[self.1.clone()]
        }
    }

    #[test]
    fn memory_of_others_has_to_be_whole_pages() {
        let over = |range| HostBuffer::over(Box::new(Part(MmapMut::map_anon(3 * PAGE).unwrap(), range)));
        let mut buffer = over(PAGE..3 * PAGE).unwrap();
        buffer[PAGE] = 7;
        assert_eq!((buffer.len(), buffer[PAGE]), (2 * PAGE, 7));
        for range in [1..PAGE + 1, 0..PAGE + 1, 0..0] {
            assert!(over(range).unwrap_err().to_string().contains("whole pages"));
        }
    }
}
