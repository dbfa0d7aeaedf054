//! Device slots, which hold one block after another. They are allocated once; no memory is freed during streaming.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::driver::{CopyDriver, Queue};
use crate::residency::streamer::StreamFault;

/// The number of pieces of each class that a slot has memory for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotNeeds<C: Eq + Hash>(HashMap<C, usize>);

impl<C: Eq + Hash + Clone> SlotNeeds<C> {
    /// As many of each class as any of the blocks has. A block is given by the classes of its pieces.
    pub fn of<B: IntoIterator<Item = C>>(blocks: impl IntoIterator<Item = B>) -> Self {
        let mut most: HashMap<C, usize> = HashMap::new();
        for block in blocks {
            let mut counts: HashMap<C, usize> = HashMap::new();
            for class in block {
                *counts.entry(class).or_default() += 1;
            }
            for (class, count) in counts {
                let most = most.entry(class).or_default();
                *most = count.max(*most);
            }
        }
        Self(most)
    }

    /// Bytes of a slot, where `bytes` says what a piece of a class takes.
    pub fn bytes(&self, bytes: impl Fn(&C) -> u64) -> u64 {
        self.0.iter().map(|(class, count)| bytes(class).saturating_mul(*count as u64)).sum()
    }
}

/// Memory for one block.
pub struct DeviceSlot<D: CopyDriver> {
    memory: HashMap<D::Class, Vec<D::Memory>>,
    /// The event before the copy into the slot.
    pub(super) begun: D::Event,
    /// The event after that copy.
    pub(super) ready: D::Event,
    /// The event after the computation with the block.
    pub(super) free: D::Event,
}

impl<D: CopyDriver> DeviceSlot<D> {
    fn allocate(driver: &D, needs: &SlotNeeds<D::Class>) -> Result<Self, StreamFault> {
        let mut memory = HashMap::new();
        for (class, count) in &needs.0 {
            let pieces = (0..*count).map(|_| driver.allocate(class)).collect::<Result<Vec<_>, _>>()?;
            memory.insert(class.clone(), pieces);
        }
        let (begun, ready, free) = (driver.event(true)?, driver.event(true)?, driver.event(false)?);
        let slot = Self { memory, begun, ready, free };
        // Memory is there and zeroed when the compute queue has come so far, and the first copy is on the other one.
        driver.record(&slot.free, Queue::Compute)?;
        Ok(slot)
    }

    pub(super) fn memory(&self, class: &D::Class, at: usize) -> Option<&D::Memory> {
        self.memory.get(class)?.get(at)
    }
}

/// All slots, of which some are free.
pub(super) struct Slots<D: CopyDriver> {
    state: Mutex<SlotsState<D>>,
    given_back: Condvar,
}

struct SlotsState<D: CopyDriver> {
    /// Free slots; the one that has been free for longest is first, since the computation with it is most likely
    /// done.
    free: VecDeque<DeviceSlot<D>>,
    /// A fault that happened where no caller could receive it.
    fault: Option<StreamFault>,
}

impl<D: CopyDriver> Slots<D> {
    pub(super) fn allocate(
        driver: &Arc<D>,
        needs: &SlotNeeds<D::Class>,
        count: usize,
    ) -> Result<Arc<Self>, StreamFault> {
        let free = (0..count).map(|_| DeviceSlot::allocate(driver.as_ref(), needs)).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self { state: Mutex::new(SlotsState { free, fault: None }), given_back: Condvar::new() }))
    }

    /// A free slot. The schedule starts no more blocks than there are slots. If none is free, another thread is about
    /// to give one back.
    pub(super) fn take(&self) -> Result<DeviceSlot<D>, StreamFault> {
        let mut state = self.lock();
        loop {
            if let Some(fault) = state.fault.take() {
                return Err(fault);
            }
            if let Some(slot) = state.free.pop_front() {
                return Ok(slot);
            }
            state = self.given_back.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A free slot, if there is one now and no fault is to be reported.
    pub(super) fn take_now(&self) -> Option<DeviceSlot<D>> {
        let mut state = self.lock();
        if state.fault.is_some() { None } else { state.free.pop_front() }
    }

    pub(super) fn give_back(&self, slot: DeviceSlot<D>, fault: Option<StreamFault>) {
        let mut state = self.lock();
        state.free.push_back(slot);
        if fault.is_some() {
            state.fault = fault;
        }
        drop(state);
        self.given_back.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, SlotsState<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
