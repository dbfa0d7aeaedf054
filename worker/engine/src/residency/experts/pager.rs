//! The executor of expert pages for a step: demands pages, computes with those that are there while others are read,
//! and reports the times. The content of pages is not known here.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::plan::LayerPages;
use super::table::{ChosenExpert, ExpertPage, PageDemand, PageEviction, PageTable};
use super::threads::{PageSource, PageTimes, PagesState, RunningReader, SharedPages};
use crate::residency::{Compute, Copy, ExpertTotals, Monitor, StepTimeline, StreamError, StreamFault, TimeSpan};

/// The interval at which a waiting step checks whether it was cancelled.
const LOOK_UP: Duration = Duration::from_millis(20);
/// The time for which the end waits for reads in progress. A read that never ends keeps its thread until the process
/// ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pages of a model's experts, within a budget. Dropping it ends its threads.
pub struct ExpertPager<S: PageSource> {
    shared: Arc<SharedPages<S>>,
    threads: Vec<JoinHandle<()>>,
    step: Mutex<StepTimes>,
    monitor: Arc<Monitor>,
}

/// The times of the step in progress.
struct StepTimes {
    epoch: Instant,
    ended: Option<Instant>,
    gap: f64,
    layers: Vec<Compute>,
    /// Seconds that the layer in progress has waited for pages.
    stall: f64,
}

/// The pages that a layer has demanded; [`ExpertPager::serve`] computes with them. Every page but those in `later` is
/// pinned until then.
#[must_use]
#[derive(Debug, Default)]
pub struct Asked {
    here: VecDeque<ExpertPage>,
    coming: BTreeSet<ExpertPage>,
    /// Pages for which there was no room yet, in the order in which they are read.
    later: VecDeque<ExpertPage>,
}

/// The reason why a layer could not compute with its experts.
#[derive(Debug)]
pub enum PageServeError<E> {
    /// A page did not arrive.
    Fault(StreamFault),
    /// The computation failed.
    Compute(E),
}

impl<S: PageSource> ExpertPager<S> {
    /// Starts threads that read at the same time. `layers` are all layers of the model, and `budget` has the bytes that
    /// pages may take.
    pub fn start(
        source: S,
        layers: &[LayerPages],
        budget: u64,
        readers: usize,
        monitor: Arc<Monitor>,
    ) -> Result<Self, StreamError> {
        let table = PageTable::new(layers, budget, PageEviction::default());
        let state = PagesState {
            held: (0..table.pages()).map(|_| None).collect(),
            table,
            demanded: BTreeSet::new(),
            guessed: VecDeque::new(),
            faults: HashMap::new(),
            fatal: None,
            totals: ExpertTotals::default(),
            times: Vec::new(),
            closed: false,
            running: 0,
        };
        let (state, wanted, changed) = (Mutex::new(state), Condvar::new(), Condvar::new());
        let epoch = Instant::now();
        let step = StepTimes { epoch, ended: None, gap: 0.0, layers: Vec::new(), stall: 0.0 };
        let shared = Arc::new(SharedPages { source, state, wanted, changed });
        let mut pager = Self { shared, threads: Vec::new(), step: Mutex::new(step), monitor };
        for reader in 0..readers.max(1) {
            let (shared, running) = (Arc::clone(&pager.shared), RunningReader::of(&pager.shared));
            let body = move || {
                let _running = running;
                shared.read_pages();
            };
            let thread = thread::Builder::new().name(format!("experts-{reader}")).spawn(body);
            pager.threads.push(thread.map_err(StreamError::Thread)?);
        }
        Ok(pager)
    }

    /// Demands the pages of a layer's choice, and returns without waiting for them.
    pub fn ask(&self, layer: usize, chosen: &[ChosenExpert]) -> Asked {
        let mut asked = Asked::default();
        let mut state = self.shared.lock();
        let pages = || chosen.iter().map(|chosen| ExpertPage { layer, expert: chosen.expert });
        let foreseen = pages().filter(|page| state.table.was_foreseen(*page)).collect::<BTreeSet<_>>();
        state.table.choose(layer, chosen);
        // Guesses that were wrong and not begun yet would only keep the disk from what is needed.
        let wrong = |page: &ExpertPage| page.layer == layer && !chosen.iter().any(|right| right.expert == page.expert);
        let (dropped, kept) = std::mem::take(&mut state.guessed).into_iter().partition::<VecDeque<_>, _>(wrong);
        state.guessed = kept;
        dropped.into_iter().for_each(|page| state.table.failed(page));
        // Pages in memory are pinned first, so that none of them leaves for another page of the same layer.
        let (held, mut away): (Vec<_>, Vec<_>) = pages().partition(|page| state.table.is_held(*page));
        let mut none = Vec::new();
        for page in held {
            state.totals.uses += 1;
            if state.table.demand(page, &mut none) == PageDemand::Here {
                state.totals.hits += 1;
                state.totals.foreseen += u64::from(foreseen.contains(&page));
                asked.here.push_back(page);
            } else {
                state.totals.late += 1;
                if let Some(at) = state.guessed.iter().position(|guessed| *guessed == page) {
                    state.guessed.remove(at);
                    state.demanded.insert((self.shared.source.place(page), page));
                }
                asked.coming.insert(page);
            }
        }
        state.totals.uses += away.len() as u64;
        away.sort_by_key(|page| self.shared.source.place(*page));
        asked.later = away.into();
        self.demand_later(&mut state, &mut asked);
        asked
    }

    /// Reads pages ahead that a layer will probably choose, as far as guesses have been right and there is room.
    pub fn expect(&self, layer: usize, guess: &[usize]) {
        let mut state = self.shared.lock();
        let mut evicted = Vec::new();
        let reads = state.table.expect(layer, guess, &mut evicted);
        state.drop_all(&evicted);
        state.totals.reads_ahead += reads.len() as u64;
        let more = !reads.is_empty();
        state.guessed.extend(reads);
        drop(state);
        if more {
            self.shared.wanted.notify_all();
        }
    }

    /// Computes with the pages that were demanded, in the order in which they arrive.
    ///
    /// # Errors
    /// When a page cannot be read or a computation fails, or with [`StreamFault::Interrupted`] soon after `stop` says
    /// that the step was cancelled.
    pub fn serve<E>(
        &self,
        mut asked: Asked,
        stop: &dyn Fn() -> bool,
        mut compute: impl FnMut(usize, &S::Page) -> Result<(), E>,
    ) -> Result<(), PageServeError<E>> {
        let result = self.compute_all(&mut asked, stop, &mut compute);
        if result.is_err() {
            self.give_up(asked);
        }
        result
    }

    fn compute_all<E>(
        &self,
        asked: &mut Asked,
        stop: &dyn Fn() -> bool,
        compute: &mut impl FnMut(usize, &S::Page) -> Result<(), E>,
    ) -> Result<(), PageServeError<E>> {
        let mut state = self.shared.lock();
        loop {
            if let Some(page) = asked.here.front().copied() {
                let index = state.table.index(page);
                let content = state.held[index].clone();
                drop(state);
                let lost = || StreamFault::Step(format!("expert {} of layer {} is lost", page.expert, page.layer));
                let content = content.ok_or_else(|| PageServeError::Fault(lost()))?;
                if stop() {
                    return Err(PageServeError::Fault(StreamFault::Interrupted));
                }
                compute(page.expert, &content).map_err(PageServeError::Compute)?;
                drop(content);
                asked.here.pop_front();
                state = self.shared.lock();
                state.table.release(page);
            }
            self.demand_later(&mut state, asked);
            if let Some(fault) = &state.fatal {
                return Err(PageServeError::Fault(fault.clone()));
            }
            let fault = asked.coming.iter().find_map(|page| state.faults.get(page));
            if let Some(fault) = fault {
                return Err(PageServeError::Fault(fault.clone()));
            }
            let arrived = |page: &ExpertPage| state.held[state.table.index(*page)].is_some();
            let here: Vec<ExpertPage> = asked.coming.iter().copied().filter(arrived).collect();
            asked.coming.retain(|page| !here.contains(page));
            asked.here.extend(here);
            if !asked.here.is_empty() {
                continue;
            }
            if asked.coming.is_empty() && asked.later.is_empty() {
                return Ok(());
            }
            if stop() {
                return Err(PageServeError::Fault(StreamFault::Interrupted));
            }
            let begun = Instant::now();
            state = self.shared.changed.wait_timeout(state, LOOK_UP).unwrap_or_else(PoisonError::into_inner).0;
            self.times().stall += begun.elapsed().as_secs_f64();
        }
    }

    /// Demands pages for which there was no room, as far as there is now.
    fn demand_later(&self, state: &mut PagesState<S::Page>, asked: &mut Asked) {
        let mut evicted = Vec::new();
        let mut more = false;
        while let Some(page) = asked.later.front().copied() {
            match state.table.demand(page, &mut evicted) {
                PageDemand::Full => break,
                PageDemand::Read => {
                    state.demanded.insert((self.shared.source.place(page), page));
                    more = true;
                }
                PageDemand::Here | PageDemand::Coming => {}
            }
            asked.coming.insert(page);
            asked.later.pop_front();
        }
        state.drop_all(&evicted);
        if more {
            self.shared.wanted.notify_all();
        }
    }

    /// Releases the pages of a layer that computes no further. Pages that no thread has begun to read are not read.
    fn give_up(&self, asked: Asked) {
        let mut state = self.shared.lock();
        for page in asked.here.into_iter().chain(asked.coming) {
            state.table.release(page);
            state.faults.remove(&page);
            if state.demanded.remove(&(self.shared.source.place(page), page)) {
                state.table.failed(page);
            }
        }
    }

    /// A step begins.
    pub fn begin_step(&self) {
        let mut times = self.times();
        times.epoch = Instant::now();
        times.gap = times.ended.map_or(0.0, |ended| times.epoch.duration_since(ended).as_secs_f64());
        times.layers.clear();
        times.stall = 0.0;
    }

    /// A layer has computed since `begun`.
    pub fn layer_ends(&self, layer: usize, begun: Instant) {
        let mut times = self.times();
        let start = begun.saturating_duration_since(times.epoch).as_secs_f64();
        let end = times.epoch.elapsed().as_secs_f64();
        // Layers compute and wait in turns. The report has the waits together, before the computation.
        let waited = (start + std::mem::take(&mut times.stall)).min(end);
        let (stall, compute) = (TimeSpan { start, end: waited }, TimeSpan { start: waited, end });
        times.layers.push(Compute { layer, stall, compute });
    }

    /// A step has ended well.
    pub fn end_step(&self) {
        let mut state = self.shared.lock();
        let (reads, totals) = (std::mem::take(&mut state.times), state.totals);
        drop(state);
        let mut times = self.times();
        let now = Instant::now();
        times.ended = Some(now);
        let (wall, layers) = (now.duration_since(times.epoch).as_secs_f64(), std::mem::take(&mut times.layers));
        let step = StepTimeline { copies: copies(reads, times.epoch), layers, wall, gap: times.gap };
        drop(times);
        self.monitor.served(step, totals);
    }

    fn times(&self) -> MutexGuard<'_, StepTimes> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reads as a timeline. Several go on at the same time, and the time in which any of them does counts once.
fn copies(mut reads: Vec<PageTimes>, epoch: Instant) -> Vec<Copy> {
    let seconds = |at: Instant| match at.checked_duration_since(epoch) {
        Some(after) => after.as_secs_f64(),
        None => -epoch.duration_since(at).as_secs_f64(),
    };
    reads.sort_by_key(|read| read.begun);
    let mut last = f64::NEG_INFINITY;
    let copy = |read: PageTimes| {
        let end = seconds(read.read).max(last);
        let start = seconds(read.begun).max(last);
        last = end;
        let place = TimeSpan { start: seconds(read.read), end: seconds(read.ended) };
        Copy { layers: vec![read.layer], bytes: read.bytes, read: TimeSpan { start, end }, place }
    };
    reads.into_iter().map(copy).collect()
}

impl<S: PageSource> Drop for ExpertPager<S> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        self.shared.wanted.notify_all();
        let working = |state: &mut PagesState<S::Page>| state.running > 0;
        let waited = self.shared.changed.wait_timeout_while(state, PATIENCE, working);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let all_ended = state.running == 0;
        drop(state);
        for thread in self.threads.drain(..).filter(|_| all_ended) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}
