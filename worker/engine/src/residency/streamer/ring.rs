//! Host buffers that go round: lent to a read, given back when its bytes are no longer needed.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use model_boss_weights::store::HostBuffer;

/// Buffers that are free.
pub(super) struct Ring {
    state: Mutex<RingState>,
    given_back: Condvar,
}

struct RingState {
    free: Vec<HostBuffer>,
    closed: bool,
}

impl Ring {
    pub(super) fn new(free: Vec<HostBuffer>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(RingState { free, closed: false }), given_back: Condvar::new() })
    }

    /// Waits for a free buffer; none when it is over.
    pub(super) fn take(ring: &Arc<Self>) -> Option<Loan> {
        let mut state = ring.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(buffer) = state.free.pop() {
                return Some(Loan { buffer: Some(buffer), ring: Arc::clone(ring) });
            }
            state = ring.given_back.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// No buffer at all: for a block that is in host memory already.
    pub(super) fn empty(ring: &Arc<Self>) -> Loan {
        Loan { buffer: None, ring: Arc::clone(ring) }
    }

    /// Ends every wait.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.given_back.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer in use. Dropping it gives it to the next read.
pub struct Loan {
    buffer: Option<HostBuffer>,
    ring: Arc<Ring>,
}

impl Loan {
    /// No buffer, of no ring.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Ring::empty(&Ring::new(Vec::new()))
    }
}

impl std::ops::Deref for Loan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buffer.as_deref().unwrap_or_default()
    }
}

impl std::ops::DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            let mut state = self.ring.lock();
            if !state.closed {
                state.free.push(buffer);
            }
            drop(state);
            self.ring.given_back.notify_one();
        }
    }
}
