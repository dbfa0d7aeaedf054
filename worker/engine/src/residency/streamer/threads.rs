//! The two threads of the executor and what they share with the step: one reads, one places, and neither waits for the
//! other.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::device::{BlockSource, StreamDevice, StreamFault};
use super::ring::{Loan, Ring};
use crate::residency::schedule::{Fetch, FetchArrival, FetchId, LayerBlockId, Schedule};

pub(super) struct SharedStream<D: StreamDevice> {
    pub(super) state: Mutex<StreamState<D>>,
    pub(super) changed: Condvar,
}

pub(super) struct StreamState<D: StreamDevice> {
    pub(super) schedule: Schedule,
    pub(super) read: HashMap<FetchId, (Loan, u64)>,
    pub(super) ready: HashMap<FetchId, Arc<D::Block>>,
    pub(super) times: HashMap<FetchId, FetchTimes>,
    pub(super) failure: Option<FetchFailure>,
    pub(super) closed: bool,
    /// Threads at work.
    pub(super) running: usize,
}

/// The reason that a block did not come, until it is reported; for good if it is fatal.
pub(super) struct FetchFailure {
    fault: StreamFault,
    /// Which; none if it is all of them.
    block: Option<LayerBlockId>,
}

impl FetchFailure {
    fn is_fatal(&self) -> bool {
        matches!(self.fault, StreamFault::Fatal(_))
    }
}

/// The times of reading and placing a fetch.
#[derive(Clone, Copy)]
pub(super) struct FetchTimes {
    pub(super) bytes: u64,
    pub(super) read: (Instant, Instant),
    pub(super) place: (Instant, Instant),
}

/// A thread at work; dropped when it ends.
pub(super) struct RunningThread<D: StreamDevice>(Arc<SharedStream<D>>);

impl<D: StreamDevice> RunningThread<D> {
    pub(super) fn of(shared: &Arc<SharedStream<D>>) -> Self {
        shared.lock().running += 1;
        Self(Arc::clone(shared))
    }
}

impl<D: StreamDevice> Drop for RunningThread<D> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running -= 1;
        if !state.closed {
            // No thread would ever bring the block that a step waits for.
            let fault = StreamFault::Fatal("what brings weights has failed; load the model again".to_owned());
            state.failure = Some(FetchFailure { fault, block: None });
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

impl<D: StreamDevice> SharedStream<D> {
    pub(super) fn lock(&self) -> MutexGuard<'_, StreamState<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for something to do; none when it is over.
    fn next<T>(&self, mut look: impl FnMut(&mut StreamState<D>) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The same without a wait: none if there is nothing to do now.
    fn now<T>(&self, mut look: impl FnMut(&mut StreamState<D>) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        if state.closed { None } else { look(&mut state) }
    }

    /// The loop of the reader thread. After a fault it pauses until the fault was reported.
    pub(super) fn read_blocks(&self, mut source: impl BlockSource, held: &[Option<u64>], ring: &Arc<Ring>) {
        while let Some(fetch) =
            self.next(|state| if state.failure.is_none() { state.schedule.next_read() } else { None })
        {
            let held = held.get(fetch.block.0).copied().flatten();
            let loan = if held.is_some() { Some(Ring::empty(ring)) } else { Ring::take(ring) };
            let Some(mut loan) = loan else { return };
            let begun = Instant::now();
            let (result, ended) = match held {
                Some(bytes) => (Ok(bytes), begun),
                None => (source.read(fetch.block, &mut loan), Instant::now()),
            };
            let mut state = self.lock();
            match result {
                Ok(bytes) => {
                    if state.schedule.was_read(fetch.id) == FetchArrival::Wanted {
                        state.read.insert(fetch.id, (loan, bytes));
                        let times = FetchTimes { bytes, read: (begun, ended), place: (ended, ended) };
                        state.times.insert(fetch.id, times);
                    }
                }
                Err(fault) => state.fail(fetch, fault),
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The placer's life.
    pub(super) fn place_blocks(&self, mut device: D) {
        let next = |state: &mut StreamState<D>| {
            let fetch = state.schedule.next_place()?;
            state.read.remove(&fetch.id).map(|(loan, _)| (fetch, loan))
        };
        let mut following = None;
        while let Some((fetch, loan)) = following.take().or_else(|| self.next(next)) {
            let begun = Instant::now();
            if loan.is_empty() && device.begin(fetch.block) {
                following = self.now(next);
                if let Some((fetch, loan)) = &following
                    && loan.is_empty()
                {
                    device.begin(fetch.block);
                }
            }
            let result = device.place(fetch.block, loan);
            let ended = Instant::now();
            // Waiting for a place is no part of placing: it does not show the speed of copies.
            let worked = device.worked().and_then(|worked| ended.checked_sub(worked));
            let begun = worked.map_or(begun, |at| at.max(begun));
            let mut state = self.lock();
            let mut unwanted = None;
            match result {
                Ok(block) => {
                    if state.schedule.was_placed(fetch.id) == FetchArrival::Wanted {
                        state.ready.insert(fetch.id, Arc::new(block));
                        if let Some(times) = state.times.get_mut(&fetch.id) {
                            times.place = (begun, ended);
                        }
                    } else {
                        unwanted = Some(block);
                        state.times.remove(&fetch.id);
                    }
                }
                Err(fault) => state.fail(fetch, fault),
            }
            drop(state);
            drop(unwanted);
            self.changed.notify_all();
        }
    }
}

impl<D: StreamDevice> StreamState<D> {
    fn fail(&mut self, fetch: Fetch, fault: StreamFault) {
        let wanted = self.schedule.holds(fetch.id);
        self.schedule.failed(fetch.id);
        self.times.remove(&fetch.id);
        let failure = FetchFailure { fault, block: Some(fetch.block) };
        if wanted || failure.is_fatal() {
            self.failure.get_or_insert(failure);
        }
    }

    /// Forgets a failure that was not reported, if it is not fatal; returns whether there was one.
    pub(super) fn forget_failure(&mut self) -> bool {
        self.failure.take_if(|failure| !failure.is_fatal()).is_some()
    }

    /// The reason why the block of a requested layer will not arrive.
    pub(super) fn why_not(&mut self, layer: usize) -> Option<StreamFault> {
        let failure = self.failure.as_ref()?;
        if failure.is_fatal() {
            // A fatal fault stays.
            return Some(failure.fault.clone());
        }
        if failure.block == self.schedule.block_of(layer) {
            return self.failure.take().map(|failure| failure.fault);
        }
        // The fault concerned another block, perhaps one of the next step. Reading continues with this block once no
        // fetch of it is in progress.
        if !self.schedule.is_coming(layer) {
            self.failure = None;
        }
        None
    }

    /// Removes blocks that are no longer needed.
    pub(super) fn sweep(&mut self) -> Vec<Dropped<D::Block>> {
        let Self { schedule, read, ready, times, .. } = self;
        times.retain(|id, _| schedule.holds(*id));
        let read = read.extract_if(|id, _| !schedule.holds(*id)).map(|(_, (loan, _))| Dropped::Read(loan));
        let mut dropped: Vec<_> = read.collect();
        dropped.extend(ready.extract_if(|id, _| !schedule.holds(*id)).map(|(_, block)| Dropped::Ready(block)));
        dropped
    }
}

/// A block that is no longer wanted. It is dropped outside of the lock, because that frees its memory.
#[allow(dead_code, reason = "held to be dropped")]
pub(super) enum Dropped<B> {
    Read(Loan),
    Ready(Arc<B>),
}
