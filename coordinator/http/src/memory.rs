//! One budget for the memory that requests and answers hold while they are in flight. It covers arriving bodies, bodies
//! of queued requests, parsed documents and collected answers. The budget only counts bytes.
//!
//! No request waits for memory, so no two can wait for each other. A request that gets too little is refused at once
//! and releases what it held. Small requests are preferred without a queue. A holder may grow only while at least its
//! own size would be left free. This is the dynamic threshold of Choudhury and Hahne for shared buffers (1998). A few
//! large holders therefore always leave space for a small one, and one large holder may take half of an empty budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use model_boss_protocol::{ApiError, ByteCount, ErrorCode};

/// The `Retry-After` of a refusal: uploads end and answers are read within seconds.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The memory budget of all requests and answers in flight. Clones share the budget.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Counters>);

#[derive(Debug)]
struct Counters {
    limit: u64,
    used: AtomicU64,
    refused: AtomicU64,
}

/// Memory that was granted; dropping it releases the memory.
#[derive(Debug)]
pub struct HeldMemory {
    budget: MemoryBudget,
    bytes: u64,
}

/// Whether a request was accepted before it needs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The request is not accepted yet. It can be refused without a loss, so the threshold applies.
    AtDoor,
    /// The request was accepted: it may use all free memory.
    Accepted,
}

/// Why memory was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Other requests hold the memory at the moment.
    #[error("too much memory is in use by other requests")]
    Busy,
    /// The request needs more than any single one may hold.
    #[error("one request may hold {0} of memory at most, half of limits.request_memory")]
    Never(ByteCount),
}

/// The figures of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, schemars::JsonSchema)]
pub struct MemoryUse {
    /// The memory held now.
    pub used: ByteCount,
    /// The setting `limits.request_memory`.
    pub limit: ByteCount,
    /// The number of refusals since the start.
    pub refused: u64,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: ByteCount) -> Self {
        Self(Arc::new(Counters { limit: limit.0, used: AtomicU64::new(0), refused: AtomicU64::new(0) }))
    }

    /// A holder of no memory yet.
    pub fn holder(&self) -> HeldMemory {
        HeldMemory { budget: self.clone(), bytes: 0 }
    }

    /// The figures now.
    pub fn figures(&self) -> MemoryUse {
        MemoryUse {
            used: ByteCount(self.0.used.load(Ordering::Relaxed)),
            limit: ByteCount(self.0.limit),
            refused: self.0.refused.load(Ordering::Relaxed),
        }
    }
}

impl HeldMemory {
    /// The number of bytes held.
    #[cfg(test)]
    const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The most that one holder may have.
    pub fn most(&self) -> u64 {
        self.budget.0.limit / 2
    }

    /// Holds `bytes` more, or nothing more on an error.
    pub fn grow(&mut self, bytes: usize, admission: Admission) -> Result<(), MemoryError> {
        let counters = &*self.budget.0;
        let bytes = bytes as u64;
        let held = self.bytes.saturating_add(bytes);
        if held > self.most() {
            counters.refused.fetch_add(1, Ordering::Relaxed);
            return Err(MemoryError::Never(ByteCount(self.most())));
        }
        let left_to_others = match admission {
            Admission::AtDoor => held,
            Admission::Accepted => 0,
        };
        let granted = counters.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            let used = used.saturating_add(bytes);
            (used.saturating_add(left_to_others) <= counters.limit).then_some(used)
        });
        if granted.is_err() {
            counters.refused.fetch_add(1, Ordering::Relaxed);
            return Err(MemoryError::Busy);
        }
        self.bytes = held;
        Ok(())
    }

    /// Changes the held memory to `bytes`; more than now only if it can be had.
    pub fn resize(&mut self, bytes: usize, admission: Admission) -> Result<(), MemoryError> {
        self.shrink_to(bytes);
        let more = (bytes as u64).saturating_sub(self.bytes);
        if more > 0 { self.grow(usize::try_from(more).unwrap_or(usize::MAX), admission) } else { Ok(()) }
    }

    /// Releases the memory over `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let over = self.bytes.saturating_sub(bytes as u64);
        self.budget.0.used.fetch_sub(over, Ordering::Relaxed);
        self.bytes -= over;
    }

    /// `bytes` that hold this memory until the last reference to them is dropped.
    pub fn keep(mut self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        self.shrink_to(bytes.as_ref().len());
        Bytes::from_owner(HeldBytes { bytes, _memory: self })
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.budget.0.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct HeldBytes<T> {
    bytes: T,
    _memory: HeldMemory,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for HeldBytes<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl From<MemoryError> for ApiError {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Busy => Self::new(ErrorCode::Overloaded, format!("{error}; send again, or less at once"))
                .retry_after(RETRY_AFTER),
            MemoryError::Never(_) => Self::new(ErrorCode::RequestTooLarge, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: usize = 1_000;

    fn budget() -> MemoryBudget {
        MemoryBudget::new(ByteCount(LIMIT as u64))
    }

    fn used(budget: &MemoryBudget) -> u64 {
        budget.figures().used.0
    }

    #[test]
    fn what_is_dropped_is_given_back() {
        let budget = budget();
        let mut held = budget.holder();
        held.grow(300, Admission::AtDoor).unwrap();
        let kept = held.keep(vec![0; 100]);
        assert_eq!(used(&budget), 100);
        let slice = kept.slice(10..20);
        drop(kept);
        assert_eq!(used(&budget), 100, "a slice keeps the whole");
        drop(slice);
        assert_eq!(used(&budget), 0);
    }

    #[test]
    fn op_10_large_holders_leave_room_for_small_ones() {
        let budget = budget();
        let mut large: Vec<HeldMemory> = (0..9).map(|_| budget.holder()).collect();
        // All holders grow in turn, as uploads do, until each was refused.
        let mut grow = || large.iter_mut().filter_map(|held| held.grow(1, Admission::AtDoor).ok()).count();
        while grow() > 0 {}
        assert!(large.iter().all(|held| held.bytes() == 100), "{large:?}");
        let mut small = budget.holder();
        assert_eq!(small.grow(50, Admission::AtDoor), Ok(()));
        assert_eq!(small.grow(1, Admission::AtDoor), Err(MemoryError::Busy));
        assert_eq!(small.grow(50, Admission::Accepted), Ok(()));
        // One holder releases its memory, and the others continue to grow.
        large.pop();
        assert!(large[0].grow(1, Admission::Accepted).is_ok());
        assert_eq!(budget.figures().refused, 10);
    }

    #[test]
    fn what_can_never_be_held_is_said() {
        let mut held = budget().holder();
        assert_eq!(held.grow(LIMIT / 2 + 1, Admission::Accepted), Err(MemoryError::Never(ByteCount(500))));
        assert_eq!(held.grow(usize::MAX, Admission::AtDoor), Err(MemoryError::Never(ByteCount(500))));
        assert_eq!(ApiError::from(MemoryError::Busy).retry_after, Some(RETRY_AFTER));
    }

    proptest! {
        #[test]
        fn op_10_the_sum_of_what_is_held_is_what_is_used(steps in proptest::collection::vec((0..6_usize, 0..400_usize, 0..3), 0..200)) {
            let budget = budget();
            let mut holders: Vec<HeldMemory> = (0..6).map(|_| budget.holder()).collect();
            for (at, bytes, act) in steps {
                match act {
                    0 => _ = holders[at].grow(bytes, Admission::AtDoor),
                    1 => _ = holders[at].grow(bytes, Admission::Accepted),
                    _ => holders[at].shrink_to(bytes),
                }
                prop_assert_eq!(used(&budget), holders.iter().map(HeldMemory::bytes).sum::<u64>());
                prop_assert!(used(&budget) <= LIMIT as u64);
            }
            drop(holders);
            prop_assert_eq!(used(&budget), 0);
        }
    }
}
