//! The threads on which masks are computed, beside the thread of the engine.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Work of one mask.
type MaskJob = Box<dyn FnOnce() + Send>;

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
    /// Counts masks that are ready.
    done: Mutex<u64>,
    ready: Condvar,
    times: Times,
}

#[derive(Default)]
struct MaskQueue {
    jobs: VecDeque<MaskJob>,
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

    /// The time of masks so far.
    pub fn times(&self) -> MaskTimes {
        let times = &self.shared.times;
        MaskTimes {
            masks: times.masks.load(Ordering::Relaxed),
            total: Duration::from_nanos(times.nanoseconds.load(Ordering::Relaxed)),
            slowest: Duration::from_nanos(times.slowest.load(Ordering::Relaxed)),
        }
    }

    /// The number of jobs done so far, to wait for the next with [`Self::wait_beyond`].
    pub fn done(&self) -> u64 {
        *lock(&self.shared.done)
    }

    /// Waits until more than `seen` jobs are done, but no longer than `limit`.
    pub fn wait_beyond(&self, seen: u64, limit: Duration) {
        let done = lock(&self.shared.done);
        // The caller looks for itself which job is done; a wait that took its full time is no failure.
        let _ = self.shared.ready.wait_timeout_while(done, limit, |done| *done <= seen);
    }
}

impl Drop for MaskThreads {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.arrived.notify_all();
    }
}

/// The number of threads.
fn count() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST_THREADS)
}

fn work(shared: &Shared) {
    loop {
        let job = {
            let queue = lock(&shared.queue);
            let waited = shared.arrived.wait_while(queue, |queue| queue.jobs.is_empty() && !queue.closed);
            let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
            match queue.jobs.pop_front() {
                Some(job) => job,
                None => return,
            }
        };
        job();
        *lock(&shared.done) += 1;
        shared.ready.notify_all();
    }
}

/// A panic of a job happens outside of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
