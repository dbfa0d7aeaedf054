//! Buffers of expert pages. A page that leaves gives its buffer to the next of its size.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use model_boss_weights::store::HostBuffer;

/// Buffers that no page uses.
#[derive(Default)]
pub(super) struct PagePool {
    free: Mutex<Vec<HostBuffer>>,
}

impl PagePool {
    /// A buffer of `bytes`. Where none of that size is free, free ones of other sizes are dropped first, because the
    /// new one takes the memory of pages that have left.
    pub(super) fn take(pool: &Arc<Self>, bytes: usize) -> io::Result<PageBuffer> {
        let mut free = pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = match free.iter().position(|buffer| buffer.len() == bytes) {
            Some(at) => Some(free.swap_remove(at)),
            None => {
                let mut dropped = 0;
                while dropped < bytes
                    && let Some(buffer) = free.pop()
                {
                    dropped += buffer.len();
                }
                None
            }
        };
        drop(free);
        let buffer = buffer.map_or_else(|| HostBuffer::new(bytes), Ok)?;
        Ok(PageBuffer { buffer: Some(buffer), pool: Arc::clone(pool) })
    }
}

/// A buffer in use. Dropping it returns it to its pool.
pub(super) struct PageBuffer {
    buffer: Option<HostBuffer>,
    pool: Arc<PagePool>,
}

impl AsRef<[u8]> for PageBuffer {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl AsMut<[u8]> for PageBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(self.buffer.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_go_round_by_size_and_the_free_ones_make_room_for_others() {
        let pool = Arc::new(PagePool::default());
        let free = || pool.free.lock().unwrap().iter().map(HostBuffer::len).collect::<Vec<_>>();
        let (one, other) = (PagePool::take(&pool, 4_096).unwrap(), PagePool::take(&pool, 4_096).unwrap());
        let address = one.as_ref().as_ptr();
        drop(one);
        assert_eq!(PagePool::take(&pool, 4_096).unwrap().as_ref().as_ptr(), address);
        drop(other);
        assert_eq!(free(), [4_096, 4_096]);
        let large = PagePool::take(&pool, 8_192).unwrap();
        assert!(free().is_empty());
        drop(large);
        assert_eq!(free(), [8_192]);
    }
}
