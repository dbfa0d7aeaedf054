//! The threads that read expert pages, and the state that they share with the step. Demanded pages are read before
//! guessed ones, in the order of the files.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::table::{ExpertPage, PageTable};
use crate::residency::StreamFault;
use crate::residency::expert_report::ExpertTotals;

/// Reads pages, on several threads at the same time.
pub trait PageSource: Send + Sync + 'static {
    /// An expert's weights, ready to compute with. Dropping it frees its memory for the next page.
    type Page: Send + Sync + 'static;

    /// Reads a page and prepares it for computing.
    fn read(&self, page: ExpertPage) -> Result<PageRead<Self::Page>, StreamFault>;

    /// The place of a page in the files, so that reads go in their order.
    fn place(&self, page: ExpertPage) -> u64;
}

/// A page that was read.
#[derive(Debug)]
pub struct PageRead<P> {
    /// The page.
    pub page: P,
    /// Bytes that were read for it.
    pub bytes: u64,
    /// The part of the time that was spent on preparing the bytes.
    pub arranging: Duration,
}

/// The times of a page's read.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageTimes {
    pub(super) layer: usize,
    pub(super) bytes: u64,
    pub(super) begun: Instant,
    pub(super) read: Instant,
    pub(super) ended: Instant,
}

pub(super) struct SharedPages<S: PageSource> {
    pub(super) source: S,
    pub(super) state: Mutex<PagesState<S::Page>>,
    /// There may be pages to read.
    pub(super) wanted: Condvar,
    /// A page has arrived or failed, or a thread has ended.
    pub(super) changed: Condvar,
}

pub(super) struct PagesState<P> {
    pub(super) table: PageTable,
    /// The pages in memory, by their index in the table.
    pub(super) held: Vec<Option<Arc<P>>>,
    /// Pages that the step waits for and no thread has begun to read, by their place.
    pub(super) demanded: BTreeSet<(u64, ExpertPage)>,
    /// Pages that were guessed and no thread has begun to read.
    pub(super) guessed: VecDeque<ExpertPage>,
    /// The reasons why pinned pages did not arrive.
    pub(super) faults: HashMap<ExpertPage, StreamFault>,
    /// The reason why no page will arrive any more.
    pub(super) fatal: Option<StreamFault>,
    pub(super) totals: ExpertTotals,
    /// The reads that ended since they were last taken.
    pub(super) times: Vec<PageTimes>,
    pub(super) closed: bool,
    /// Threads at work.
    pub(super) running: usize,
}

impl<P> PagesState<P> {
    /// Drops the pages that left the table, which frees their memory.
    pub(super) fn drop_all(&mut self, evicted: &[ExpertPage]) {
        for page in evicted {
            let index = self.table.index(*page);
            self.held[index] = None;
        }
    }

    /// The next page to read.
    fn next(&mut self) -> Option<ExpertPage> {
        self.demanded.pop_first().map(|(_, page)| page).or_else(|| self.guessed.pop_front())
    }
}

impl<S: PageSource> SharedPages<S> {
    pub(super) fn lock(&self) -> MutexGuard<'_, PagesState<S::Page>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of a thread.
    pub(super) fn read_pages(&self) {
        loop {
            let mut state = self.lock();
            let page = loop {
                if state.closed {
                    return;
                }
                match state.next() {
                    Some(page) => break page,
                    None => state = self.wanted.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(state);
            let begun = Instant::now();
            let result = self.source.read(page);
            let ended = Instant::now();
            let mut state = self.lock();
            match result {
                Ok(PageRead { page: content, bytes, arranging }) => {
                    let index = state.table.index(page);
                    state.table.arrived(page);
                    state.held[index] = Some(Arc::new(content));
                    state.totals.reads += 1;
                    state.totals.bytes += bytes;
                    let read = ended.checked_sub(arranging).unwrap_or(ended).max(begun);
                    state.times.push(PageTimes { layer: page.layer, bytes, begun, read, ended });
                }
                Err(fault) => {
                    state.table.failed(page);
                    if matches!(fault, StreamFault::Fatal(_)) {
                        state.fatal.get_or_insert(fault);
                    } else if state.table.is_pinned(page) {
                        // A guess that failed fails no step; the page is read again when it is needed.
                        state.faults.insert(page, fault);
                    }
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }
}

/// A thread at work; dropped when it ends.
pub(super) struct RunningReader<S: PageSource>(Arc<SharedPages<S>>);

impl<S: PageSource> RunningReader<S> {
    pub(super) fn of(shared: &Arc<SharedPages<S>>) -> Self {
        shared.lock().running += 1;
        Self(Arc::clone(shared))
    }
}

impl<S: PageSource> Drop for RunningReader<S> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.running -= 1;
        if !state.closed {
            // The page that this thread was reading would never arrive.
            let what = "a thread that reads experts has failed; load the model again".to_owned();
            state.fatal.get_or_insert(StreamFault::Fatal(what));
        }
        drop(state);
        self.0.changed.notify_all();
    }
}
