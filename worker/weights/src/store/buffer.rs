//! Host memory that weights are read into: whole pages, so that a disk can write into it without a copy in between.

use memmap2::{Advice, MmapMut};

/// Bytes of a page, and what direct I/O rounds to: a multiple of every disk's block in use.
pub const PAGE: usize = 4096;

/// Zeroed memory of whole pages, given back to the system when dropped.
#[derive(Debug)]
pub struct HostBuffer(MmapMut);

impl HostBuffer {
    /// At least so many bytes, at least one page.
    ///
    /// # Errors
    /// When the system has no memory to give.
    pub fn new(bytes: usize) -> std::io::Result<Self> {
        let map = MmapMut::map_anon(bytes.max(1).next_multiple_of(PAGE))?;
        // Large pages spare the kernel work in each direct read; without them it only takes a little longer.
        #[cfg(target_os = "linux")]
        let _ = map.advise(Advice::HugePage);
        Ok(Self(map))
    }

    /// Bytes there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never: there is always a page.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::ops::Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for HostBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::ops::DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
