//! A simulated driver. Its two queues run as late and as unevenly as real ones may, and notice errors that real ones
//! would not report.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use model_boss_weights::store::HostBuffer;

use super::super::streamer::{Capabilities, StreamFault};
use super::{CopyDriver, Queue};

/// An order of events that a broken caller would leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Copies do not wait for what computes.
    pub(super) free: bool,
    /// Computing does not wait for copies, and no other part does.
    pub(super) ready: bool,
    /// The caller does not wait for a copy before its host memory is used again.
    pub(super) finish: bool,
}

/// A class is a number of bytes.
pub(super) struct SimulatedDriver {
    state: Arc<Mutex<SimulatedQueues>>,
    left_out: LeftOut,
}

pub(super) struct Memory {
    id: usize,
    state: Arc<Mutex<SimulatedQueues>>,
}

pub(super) struct SimulatedEvent(usize);

#[derive(Default)]
struct SimulatedQueues {
    queues: [VecDeque<QueuedOp>; 2],
    memories: BTreeMap<usize, Vec<u8>>,
    /// By event: how often it was recorded, how often that was reached, and when last.
    events: Vec<(u64, u64, f64)>,
    /// Host memory that copies which are not done read from.
    reading: Vec<Range<usize>>,
    next_memory: usize,
    random: u64,
    now: f64,
    wrong: Vec<String>,
}

enum QueuedOp {
    Allocate { memory: usize, bytes: usize },
    Free { memory: usize },
    Copy { from: Range<usize>, bytes: Vec<u8>, to: usize },
    Use { memory: usize, expected: u8 },
    Record { event: usize, turn: u64 },
    Wait { event: usize, turn: u64 },
}

impl SimulatedDriver {
    pub(super) fn new(seed: u64, left_out: LeftOut) -> Arc<Self> {
        let state = SimulatedQueues { random: seed.wrapping_mul(2).wrapping_add(1), ..SimulatedQueues::default() };
        Arc::new(Self { state: Arc::new(Mutex::new(state)), left_out })
    }

    /// Asks the compute queue to compute with a piece, which has to be full of one byte then.
    pub(super) fn compute(&self, memory: &Memory, expected: u8) {
        self.ask(Queue::Compute, QueuedOp::Use { memory: memory.id, expected });
    }

    /// The host writes to memory, so no copy may read from it.
    pub(super) fn host_writes(&self, into: &[u8]) {
        let mut state = self.lock();
        let range = addresses(into);
        if state.reading.iter().any(|reading| reading.start < range.end && range.start < reading.end) {
            state.wrong.push("host memory was filled while a copy read it".to_owned());
        }
    }

    /// Completes all queued operations. Returns the violations found, and the number of pieces of memory.
    pub(super) fn end(&self) -> (Vec<String>, usize) {
        let mut state = self.lock();
        while state.advance(0) || state.advance(1) {}
        if state.queues.iter().any(|queue| !queue.is_empty()) {
            state.wrong.push("queues wait for each other".to_owned());
        }
        (state.wrong.clone(), state.memories.len())
    }

    fn ask(&self, queue: Queue, op: QueuedOp) {
        let mut state = self.lock();
        state.queues[queue as usize].push_back(op);
        // A random part of the work submitted before is done meanwhile, mostly none.
        for _ in 0..state.draw() % 3 {
            let queue = (state.draw() % 2) as usize;
            state.advance(queue);
        }
    }

    fn lock(&self) -> MutexGuard<'_, SimulatedQueues> {
        self.state.lock().unwrap()
    }
}

impl SimulatedQueues {
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Does the next thing of a queue, if it may happen.
    fn advance(&mut self, queue: usize) -> bool {
        if let Some(QueuedOp::Wait { event, turn }) = self.queues[queue].front()
            && self.events[*event].1 < *turn
        {
            return false;
        }
        let Some(op) = self.queues[queue].pop_front() else { return false };
        self.now += 1.0;
        match op {
            // Zeroed.
            QueuedOp::Allocate { memory, bytes } => drop(self.memories.insert(memory, vec![0; bytes])),
            QueuedOp::Free { memory } => drop(self.memories.remove(&memory)),
            QueuedOp::Copy { from, bytes, to } => {
                if let Some(at) = self.reading.iter().position(|reading| *reading == from) {
                    self.reading.swap_remove(at);
                }
                match self.memories.get_mut(&to) {
                    Some(memory) => memory.copy_from_slice(&bytes),
                    None => self.wrong.push("a copy into memory that is not there".to_owned()),
                }
            }
            QueuedOp::Use { memory, expected } => match self.memories.get(&memory) {
                Some(bytes) if bytes.iter().all(|byte| *byte == expected) => {}
                Some(bytes) => self.wrong.push(format!("computed with {} in place of {expected}", bytes[0])),
                None => self.wrong.push("computed with memory that is not there".to_owned()),
            },
            QueuedOp::Record { event, turn } => {
                let now = self.now;
                let event = &mut self.events[event];
                (event.1, event.2) = (event.1.max(turn), now);
            }
            QueuedOp::Wait { .. } => {}
        }
        true
    }

    fn reach(&mut self, event: usize) -> Result<(), StreamFault> {
        let turn = self.events[event].0;
        while self.events[event].1 < turn {
            // As little as possible: the queues may be as late as they like.
            if !self.advance(Queue::Copy as usize) && !self.advance(Queue::Compute as usize) {
                return Err(StreamFault::Fatal("what is waited for never happens".to_owned()));
            }
        }
        Ok(())
    }
}

fn addresses(bytes: &[u8]) -> Range<usize> {
    let start = bytes.as_ptr().addr();
    start..start + bytes.len()
}

impl CopyDriver for SimulatedDriver {
    type Class = usize;
    type Memory = Memory;
    type Event = SimulatedEvent;

    fn capabilities(&self) -> Capabilities {
        Capabilities { pinned_host: true, ..Capabilities::default() }
    }

    fn host_buffer(&self, bytes: usize) -> Result<HostBuffer, StreamFault> {
        HostBuffer::new(bytes).map_err(|error| StreamFault::Step(error.to_string()))
    }

    fn allocate(&self, class: &usize) -> Result<Memory, StreamFault> {
        let id = {
            let mut state = self.lock();
            state.next_memory += 1;
            state.next_memory
        };
        self.ask(Queue::Compute, QueuedOp::Allocate { memory: id, bytes: *class });
        Ok(Memory { id, state: Arc::clone(&self.state) })
    }

    fn event(&self, _timed: bool) -> Result<SimulatedEvent, StreamFault> {
        let mut state = self.lock();
        state.events.push((0, 0, 0.0));
        Ok(SimulatedEvent(state.events.len() - 1))
    }

    fn copy(&self, from: &[u8], to: &Memory) -> Result<(), StreamFault> {
        let range = addresses(from);
        self.lock().reading.push(range.clone());
        self.ask(Queue::Copy, QueuedOp::Copy { from: range, bytes: from.to_vec(), to: to.id });
        Ok(())
    }

    fn record(&self, event: &SimulatedEvent, queue: Queue) -> Result<(), StreamFault> {
        let turn = {
            let mut state = self.lock();
            state.events[event.0].0 += 1;
            state.events[event.0].0
        };
        self.ask(queue, QueuedOp::Record { event: event.0, turn });
        Ok(())
    }

    fn wait(&self, queue: Queue, event: &SimulatedEvent) -> Result<(), StreamFault> {
        let left_out = if queue == Queue::Copy { self.left_out.free } else { self.left_out.ready };
        if !left_out {
            let turn = self.lock().events[event.0].0;
            self.ask(queue, QueuedOp::Wait { event: event.0, turn });
        }
        Ok(())
    }

    fn finish(&self, event: &SimulatedEvent) -> Result<(), StreamFault> {
        if self.left_out.finish || self.left_out.ready { Ok(()) } else { self.lock().reach(event.0) }
    }

    fn seconds(&self, from: &SimulatedEvent, to: &SimulatedEvent) -> Result<f64, StreamFault> {
        self.finish(from)?;
        self.finish(to)?;
        let state = self.lock();
        Ok(state.events[to.0].2 - state.events[from.0].2)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.state.lock().unwrap().queues[Queue::Compute as usize].push_back(QueuedOp::Free { memory: self.id });
    }
}
