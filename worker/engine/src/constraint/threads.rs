//! The threads on which masks are computed, beside the thread of the engine.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Work of one mask.
type MaskJob = Box<dyn FnOnce() + Send>;

/// Work for which nothing waits. Each call does a small part and returns whether more is left.
type SpareJob = Box<dyn FnMut() -> bool + Send>;

/// More threads than this gain nothing: a mask takes far less time than a step of the decoder.
const MOST_THREADS: usize = 4;

/// A regular expression's depth is bounded by a request's nesting; this is enough for the deepest.
const STACK: usize = 16 << 20;

/// Threads that compute masks. They end when the last owner is gone.
#[derive(Debug)]
pub struct MaskThreads {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<MaskQueue>,
    arrived: Condvar,
    /// Woken when no work in advance is left.
    idle: Condvar,
    /// Counts masks that are ready.
    done: Mutex<u64>,
    ready: Condvar,
    times: Times,
}

#[derive(Default)]
struct MaskQueue {
    jobs: VecDeque<MaskJob>,
    spare: VecDeque<SpareJob>,
    /// One thread at most works in advance, so that the decoder keeps the others' cores.
    is_working_in_advance: bool,
    closed: bool,
}

#[derive(Default)]
struct Times {
    masks: AtomicU64,
    nanoseconds: AtomicU64,
    slowest: AtomicU64,
}

/// The time that masks took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaskTimes {
    /// Masks computed so far.
    pub masks: u64,
    /// The time of all of them.
    pub total: Duration,
    /// The time of the slowest one.
    pub slowest: Duration,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl MaskThreads {
    /// Starts the threads.
    pub fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let started = Self { shared };
        for number in 0..count() {
            let shared = Arc::clone(&started.shared);
            let name = format!("mask-{number}");
            thread::Builder::new().name(name).stack_size(STACK).spawn(move || work(&shared))?;
        }
        Ok(started)
    }

    /// Has one of the threads do some work. The engine is woken when it is done.
    pub(super) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        lock(&self.shared.queue).jobs.push_back(Box::new(job));
        self.shared.arrived.notify_one();
    }

    /// Has one of the threads do some work while no mask is waited for. The engine is not woken.
    pub(super) fn spawn_spare(&self, job: impl FnMut() -> bool + Send + 'static) {
        lock(&self.shared.queue).spare.push_back(Box::new(job));
        self.shared.arrived.notify_one();
    }

    /// Waits until nothing is left to be done in advance, but no longer than `limit`.
    pub fn wait_for_spare(&self, limit: Duration) {
        let queue = lock(&self.shared.queue);
        let is_busy = |queue: &mut MaskQueue| queue.is_working_in_advance || !queue.spare.is_empty();
        // Callers measure or test, and see for themselves what is done.
        let _ = self.shared.idle.wait_timeout_while(queue, limit, is_busy);
    }

    /// Keeps all threads from computing masks until what it returns is dropped.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> Vec<std::sync::mpsc::Sender<()>> {
        let held = (0..count()).map(|_| {
            let (guard, released) = std::sync::mpsc::channel();
            self.spawn(move || assert!(released.recv().is_err(), "nothing is sent"));
            guard
        });
        held.collect()
    }

    /// Notes the time of a mask.
    pub(super) fn took(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let times = &self.shared.times;
        times.masks.fetch_add(1, Ordering::Relaxed);
        times.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        times.slowest.fetch_max(nanoseconds, Ordering::Relaxed);
    }

    /// Wakes an engine that waits for a mask, in the middle of a job that computes several.
    pub(super) fn one_more(&self) {
        self.shared.one_more();
    }

    /// The time of masks so far.
    pub fn times(&self) -> MaskTimes {
        let times = &self.shared.times;
        MaskTimes {
            masks: times.masks.load(Ordering::Relaxed),
            total: Duration::from_nanos(times.nanoseconds.load(Ordering::Relaxed)),
            slowest: Duration::from_nanos(times.slowest.load(Ordering::Relaxed)),
        }
    }

    /// The number of masks and jobs done so far, to wait for the next with [`Self::wait_beyond`].
    pub fn done(&self) -> u64 {
        *lock(&self.shared.done)
    }

    /// Waits until more than `seen` of them are done, but no longer than `limit`.
    pub fn wait_beyond(&self, seen: u64, limit: Duration) {
        let done = lock(&self.shared.done);
        // The caller looks for itself which job is done; a wait that took its full time is no failure.
        let _ = self.shared.ready.wait_timeout_while(done, limit, |done| *done <= seen);
    }
}

impl Shared {
    fn one_more(&self) {
        *lock(&self.done) += 1;
        self.ready.notify_all();
    }
}

impl Drop for MaskThreads {
    fn drop(&mut self) {
        {
            let mut queue = lock(&self.shared.queue);
            queue.closed = true;
            queue.spare.clear();
        }
        self.shared.arrived.notify_all();
    }
}

/// The number of threads.
fn count() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST_THREADS)
}

fn work(shared: &Shared) {
    let mut queue = lock(&shared.queue);
    loop {
        let waited = shared.arrived.wait_while(queue, |queue| !queue.has_work() && !queue.closed);
        queue = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            job();
            shared.one_more();
            queue = lock(&shared.queue);
        } else if queue.closed {
            return;
        } else if let Some(mut job) = queue.spare.pop_front() {
            queue.is_working_in_advance = true;
            drop(queue);
            let has_more = job();
            queue = lock(&shared.queue);
            queue.is_working_in_advance = false;
            if has_more {
                queue.spare.push_back(job);
            } else if queue.spare.is_empty() {
                shared.idle.notify_all();
            }
        }
    }
}

impl MaskQueue {
    fn has_work(&self) -> bool {
        !self.jobs.is_empty() || !self.spare.is_empty() && !self.is_working_in_advance
    }
}

/// A panic of a job happens outside of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn en_6_work_in_advance_is_done_in_parts_and_wakes_no_engine() {
        let threads = MaskThreads::start().unwrap();
        let held = threads.hold();
        let (parts, masks) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&parts);
        threads.spawn_spare(move || counted.fetch_add(1, Ordering::SeqCst) < 4);
        for _ in 0..3 {
            let masks = Arc::clone(&masks);
            threads.spawn(move || {
                masks.fetch_add(1, Ordering::SeqCst);
            });
        }
        let (jobs, patience) = (held.len() as u64 + 3, Duration::from_secs(60));
        drop(held);
        threads.wait_beyond(jobs - 1, patience);
        threads.wait_for_spare(patience);
        assert_eq!((masks.load(Ordering::SeqCst), parts.load(Ordering::SeqCst)), (3, 5));
        assert_eq!(threads.done(), jobs, "the engine is woken for masks only");
    }
}
