//! The executor for a step: begins, takes layers, returns them, ends. Its threads do the work.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use model_boss_weights::store::HostBuffer;

use super::device::{BlockSource, StreamDevice, StreamFault};
use super::monitor::Monitor;
use super::ring::Ring;
use super::threads::{FetchTimes, RunningThread, SharedStream, StreamState};
use crate::residency::adapt::Adapter;
use crate::residency::schedule::{LayerBlockId, LayerNeed, Schedule};
use crate::residency::timeline::{Compute, Copy, StepTimeline, TimeSpan};

/// The interval at which a waiting step checks whether it was cancelled.
const LOOK_UP: Duration = Duration::from_millis(20);

/// The time for which the end waits for a read in progress. A read that never ends, as from a server that is gone,
/// keeps its thread and its buffer until the process ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// Streaming could not begin.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// No buffers.
    #[error("no memory to stream layers through: {0:?}")]
    Buffers(StreamFault),
    /// No threads.
    #[error("no thread to stream layers with")]
    Thread(#[source] io::Error),
}

/// Streamed layers of one device. Dropping it ends its threads, as soon as they have finished their current work.
pub struct Streamer<D: StreamDevice> {
    pub(super) shared: Arc<SharedStream<D>>,
    ring: Arc<Ring>,
    threads: Vec<JoinHandle<()>>,
    blocks: Vec<Vec<usize>>,
    epoch: Instant,
    pub(super) step: StepTimeline,
    ended: Option<Instant>,
    monitor: Arc<Monitor>,
    adapter: Option<Adapter>,
    pub(super) patience: Duration,
}

impl<D: StreamDevice> Streamer<D> {
    /// Begins to read. `blocks` are the layers of each block, ascending; `buffer` is the size of the largest.
    /// `buffers` is the number of buffers to read into. It equals the number of slots where blocks stay in their
    /// buffer, and is smaller where they are copied to a device.
    pub fn start(
        layers: usize,
        blocks: Vec<Vec<usize>>,
        slots: usize,
        (buffers, buffer): (usize, usize),
        source: impl BlockSource,
        mut device: D,
        monitor: Arc<Monitor>,
    ) -> Result<Self, StreamError> {
        let buffers: Result<Vec<HostBuffer>, StreamFault> =
            (0..buffers.max(1)).map(|_| device.host_buffer(buffer)).collect();
        let ring = Ring::new(buffers.map_err(StreamError::Buffers)?);
        let held: Vec<Option<u64>> = (0..blocks.len()).map(|block| device.holds(LayerBlockId(block))).collect();
        let state = StreamState {
            schedule: Schedule::new(layers, &blocks, slots),
            read: HashMap::new(),
            ready: HashMap::new(),
            times: HashMap::new(),
            failure: None,
            closed: false,
            running: 0,
        };
        let shared = Arc::new(SharedStream { state: Mutex::new(state), changed: Condvar::new() });
        let mut streamer = Self {
            shared: Arc::clone(&shared),
            ring: Arc::clone(&ring),
            threads: Vec::new(),
            blocks,
            epoch: Instant::now(),
            step: StepTimeline::default(),
            ended: None,
            monitor,
            adapter: None,
            patience: PATIENCE,
        };
        let reader = {
            let shared = Arc::clone(&shared);
            move || shared.read_blocks(source, &held, &ring)
        };
        let placer = {
            let shared = Arc::clone(&shared);
            move || shared.place_blocks(device)
        };
        for (name, body) in
            [("weights-read", Box::new(reader) as Box<dyn FnOnce() + Send>), ("weights-place", Box::new(placer))]
        {
            let running = RunningThread::of(&shared);
            let body = move || {
                // Dropped behind everything that the thread has.
                let _running = running;
                body();
            };
            let thread = thread::Builder::new().name(name.to_owned()).spawn(body).map_err(StreamError::Thread)?;
            streamer.threads.push(thread);
        }
        Ok(streamer)
    }

    /// Lets measured steps choose how far to look ahead. Without this, all slots look ahead.
    pub fn adapting(mut self, adapter: Adapter) -> Self {
        self.shared.lock().schedule.keep(&adapter.kept());
        self.adapter = Some(adapter);
        self
    }

    /// Notes that a step begins.
    pub fn begin_step(&mut self) {
        // A read ahead may have failed long ago: what this step needs of it is read again.
        if self.shared.lock().forget_failure() {
            self.shared.changed.notify_all();
        }
        self.epoch = Instant::now();
        let gap = self.ended.map_or(0.0, |ended| self.epoch.duration_since(ended).as_secs_f64());
        self.step = StepTimeline { gap, ..StepTimeline::default() };
    }

    /// Waits for a layer's block; none for a layer that is resident. The block must be dropped before
    /// [`Streamer::computed`] is called.
    ///
    /// # Errors When the block cannot be had, or with [`StreamFault::Interrupted`] soon after `stop` says that the step
    /// was cancelled.
    pub fn take(&mut self, layer: usize, stop: &dyn Fn() -> bool) -> Result<Option<Arc<D::Block>>, StreamFault> {
        let asked = Instant::now();
        let mut state = self.shared.lock();
        let fetch = loop {
            let need = state.schedule.need(layer);
            // Even if the block has arrived: one that came too early holds a slot that the next block waits for.
            let dropped = state.sweep();
            if !dropped.is_empty() {
                // Dropping the blocks frees their memory, for which the lock is not needed.
                drop(state);
                drop(dropped);
                self.shared.changed.notify_all();
                state = self.shared.lock();
                continue;
            }
            match need {
                LayerNeed::Resident => break None,
                LayerNeed::Ready(fetch) => break Some(fetch),
                LayerNeed::Wait => {}
            }
            if let Some(fault) = state.why_not(layer) {
                self.shared.changed.notify_all();
                return Err(fault);
            }
            self.shared.changed.notify_all();
            if stop() {
                return Err(StreamFault::Interrupted);
            }
            state = self.shared.changed.wait_timeout(state, LOOK_UP).unwrap_or_else(PoisonError::into_inner).0;
        };
        let block = match fetch {
            None => None,
            Some(fetch) => match state.ready.get(&fetch.id) {
                Some(block) => Some(Arc::clone(block)),
                None => return Err(StreamFault::Step(format!("the weights of layer {layer} are lost"))),
            },
        };
        let times = fetch.and_then(|fetch| state.times.remove(&fetch.id).map(|times| (fetch.block, times)));
        drop(state);
        if let Some((block, times)) = times {
            self.note_copy(block, &times);
        }
        let stall = self.span(asked, Instant::now());
        self.step.layers.push(Compute { layer, stall, compute: TimeSpan { start: stall.end, end: stall.end } });
        Ok(block)
    }

    /// Notes that a layer has computed, and lets its block go if it was the last of it.
    pub fn computed(&mut self, layer: usize) {
        let now = self.seconds(Instant::now());
        if let Some(of_layer) = self.step.layers.last_mut() {
            of_layer.compute.end = now;
        }
        let mut state = self.shared.lock();
        let block = state.schedule.computed(layer).and_then(|fetch| state.ready.remove(&fetch.id));
        if block.is_some() {
            self.shared.changed.notify_all();
        }
        drop(state);
        drop(block);
    }

    /// Reports when layers really computed, in seconds since the step began, on an asynchronous device. A layer's
    /// wait is then the time between the previous layer and itself.
    pub fn computed_at(&mut self, spans: &[(usize, TimeSpan)]) {
        let mut before = None;
        for of_layer in &mut self.step.layers {
            if let Some((_, compute)) = spans.iter().find(|(layer, _)| *layer == of_layer.layer) {
                // Before the first there may have been another device's layers: it waited as long as it was waited for.
                let began = before.unwrap_or((compute.start - of_layer.stall.seconds()).max(0.0));
                of_layer.stall = TimeSpan { start: began, end: compute.start };
                of_layer.compute = *compute;
                before = Some(compute.end);
            }
        }
    }

    /// Notes that a step has ended well.
    pub fn end_step(&mut self) {
        let now = Instant::now();
        self.ended = Some(now);
        self.step.wall = self.seconds(now);
        if let Some(adapter) = &mut self.adapter {
            let change = adapter.observe(&self.step);
            if change.is_some() {
                self.shared.lock().schedule.keep(&adapter.kept());
                self.shared.changed.notify_all();
            }
            self.monitor.adapted_to(adapter.expected_seconds(), change);
        }
        self.monitor.stepped(std::mem::take(&mut self.step));
    }

    fn note_copy(&mut self, block: LayerBlockId, times: &FetchTimes) {
        let copy = Copy {
            layers: self.blocks.get(block.0).cloned().unwrap_or_default(),
            bytes: times.bytes,
            read: self.span(times.read.0, times.read.1),
            place: self.span(times.place.0, times.place.1),
        };
        self.step.copies.push(copy);
    }

    fn span(&self, start: Instant, end: Instant) -> TimeSpan {
        TimeSpan { start: self.seconds(start), end: self.seconds(end) }
    }

    /// Since the step began; negative before it.
    fn seconds(&self, at: Instant) -> f64 {
        match at.checked_duration_since(self.epoch) {
            Some(after) => after.as_secs_f64(),
            None => -self.epoch.duration_since(at).as_secs_f64(),
        }
    }
}

impl<D: StreamDevice> Drop for Streamer<D> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        self.ring.close();
        self.shared.changed.notify_all();
        // These blocks hold places that a thread may wait for.
        let held = (std::mem::take(&mut state.read), std::mem::take(&mut state.ready));
        drop(state);
        drop(held);
        let state = self.shared.lock();
        let working = |state: &mut StreamState<D>| state.running > 0;
        let waited = self.shared.changed.wait_timeout_while(state, self.patience, working);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let all_ended = state.running == 0;
        drop(state);
        for thread in self.threads.drain(..).filter(|_| all_ended) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}
