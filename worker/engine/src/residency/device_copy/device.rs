//! A [`StreamDevice`] over a [`CopyDriver`]: the choice of a slot for each block, and the order of copies and
//! computations.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use model_boss_weights::store::HostBuffer;

use super::driver::{CopyDriver, Queue};
use super::slots::{DeviceSlot, SlotNeeds, Slots};
use crate::residency::schedule::LayerBlockId;
use crate::residency::streamer::{Capabilities, Loan, StreamDevice, StreamFault};

/// One piece of a block.
#[derive(Clone, Debug)]
pub struct CopyPiece<C> {
    /// Its type and shape.
    pub class: C,
    /// The range of the piece in the block's bytes in host memory.
    pub at: Range<usize>,
}

/// A check of a block's bytes when they are read for the first time. Its error names the fault.
pub type BlockCheck = Box<dyn Fn(LayerBlockId, &[u8]) -> Result<(), String> + Send>;

/// A [`StreamDevice`] over a [`CopyDriver`].
pub struct CopyDevice<D: CopyDriver> {
    driver: Arc<D>,
    /// By block.
    blocks: Vec<Vec<CopyPiece<D::Class>>>,
    slots: Arc<Slots<D>>,
    /// Blocks whose bytes are in host memory for good.
    pub(super) held: HashMap<LayerBlockId, HostBuffer>,
    pub(super) check: BlockCheck,
    /// By block: whether its bytes were looked at. Files do not change while they are read, so once is enough.
    checked: Vec<bool>,
    /// Held blocks whose copies were asked for and that are not placed yet, in their order.
    ahead: VecDeque<(LayerBlockId, BlockCopy<D>)>,
    /// The duration of the last copy.
    copied: Option<Duration>,
}

impl<D: CopyDriver> CopyDevice<D> {
    /// Allocates `slots` slots. `held` blocks are copied from there; all others are read for each coming.
    pub fn new(
        driver: Arc<D>,
        blocks: Vec<Vec<CopyPiece<D::Class>>>,
        slots: usize,
        held: HashMap<LayerBlockId, HostBuffer>,
        check: BlockCheck,
    ) -> Result<Self, StreamFault> {
        let needs = SlotNeeds::of(blocks.iter().map(|pieces| pieces.iter().map(|piece| piece.class.clone())));
        let slots = Slots::allocate(&driver, &needs, slots)?;
        let checked = vec![false; blocks.len()];
        Ok(Self { driver, blocks, slots, held, check, checked, ahead: VecDeque::new(), copied: None })
    }
}

impl<D: CopyDriver> CopyDevice<D> {
    /// Looks at a block's bytes when they come for the first time.
    fn look(&mut self, block: LayerBlockId, from: &[u8]) -> Result<(), StreamFault> {
        let Some(checked) = self.checked.get_mut(block.0) else {
            return Err(StreamFault::Step(format!("no block {}", block.0)));
        };
        if !*checked {
            let bytes = self.held.get(&block).map_or(from, |held| held);
            (self.check)(block, bytes).map_err(StreamFault::Step)?;
            *checked = true;
        }
        Ok(())
    }

    /// Asks for all copies of a block, behind what was computed with its slot. `from` has to stay until they are done,
    /// and after a fault none of them is under way.
    fn ask(&self, block: LayerBlockId, slot: DeviceSlot<D>, from: &[u8]) -> Result<BlockCopy<D>, StreamFault> {
        let pieces = self.blocks.get(block.0).map(Vec::as_slice).unwrap_or_default();
        let bytes = self.held.get(&block).map_or(from, |held| held);
        // From here on the slot is returned when this value is dropped, on every path.
        let copied = BlockCopy::new(slot, pieces, Arc::clone(&self.slots), Arc::clone(&self.driver))?;
        let queue = || {
            self.driver.wait(Queue::Copy, &copied.slot().free)?;
            self.driver.record(&copied.slot().begun, Queue::Copy)?;
            for (piece, memory) in pieces.iter().zip(copied.pieces()) {
                let short = || StreamFault::Step(format!("a block has {} bytes, fewer than its pieces", bytes.len()));
                self.driver.copy(bytes.get(piece.at.clone()).ok_or_else(short)?, memory)?;
            }
            Ok(())
        };
        let queued = queue();
        self.driver.record(&copied.slot().ready, Queue::Copy)?;
        if let Err(fault) = queued {
            self.driver.finish(&copied.slot().ready)?;
            return Err(fault);
        }
        Ok(copied)
    }
}

impl<D: CopyDriver> StreamDevice for CopyDevice<D> {
    type Block = BlockCopy<D>;

    fn capabilities(&self) -> Capabilities {
        self.driver.capabilities()
    }

    fn host_buffer(&mut self, bytes: usize) -> Result<HostBuffer, StreamFault> {
        self.driver.host_buffer(bytes)
    }

    fn holds(&self, block: LayerBlockId) -> Option<u64> {
        self.held.contains_key(&block).then(|| {
            let pieces = self.blocks.get(block.0).map(Vec::as_slice).unwrap_or_default();
            pieces.iter().map(|piece| piece.at.len() as u64).sum()
        })
    }

    fn begin(&mut self, block: LayerBlockId) -> bool {
        if self.ahead.iter().any(|(begun, _)| *begun == block) {
            return true;
        }
        // A fault is reported when the block is placed.
        if !self.held.contains_key(&block) || self.look(block, &[]).is_err() {
            return false;
        }
        let asked = self.slots.take_now().and_then(|slot| self.ask(block, slot, &[]).ok());
        let under_way = asked.is_some();
        self.ahead.extend(asked.map(|copied| (block, copied)));
        under_way
    }

    fn place(&mut self, block: LayerBlockId, from: Loan) -> Result<BlockCopy<D>, StreamFault> {
        let begun = self.ahead.iter().position(|(begun, _)| *begun == block).and_then(|at| self.ahead.remove(at));
        let copied = match begun {
            Some((_, copied)) => copied,
            None => {
                self.look(block, &from)?;
                self.ask(block, self.slots.take()?, &from)?
            }
        };
        // The buffer is reused for the next read when this returns, so no copy may read from it then.
        self.driver.finish(&copied.slot().ready)?;
        // By the device's clock: until the slot was free the copy waited for what computed with it.
        let seconds = self.driver.seconds(&copied.slot().begun, &copied.slot().ready)?;
        self.copied = Duration::try_from_secs_f64(seconds).ok();
        Ok(copied)
    }

    fn worked(&self) -> Option<Duration> {
        self.copied
    }
}

impl<D: CopyDriver> Drop for CopyDevice<D> {
    fn drop(&mut self) {
        for (_, copied) in self.ahead.drain(..) {
            // Copies read from memory that is freed behind this.
            let _ = self.driver.finish(&copied.slot().ready);
        }
    }
}

/// A block in a slot. Dropping it lets the slot go to the next block, behind everything that was computed with it.
pub struct BlockCopy<D: CopyDriver> {
    /// None only while it is dropped.
    slot: Option<DeviceSlot<D>>,
    /// The slot's memory for each piece.
    places: Vec<(D::Class, usize)>,
    slots: Arc<Slots<D>>,
    driver: Arc<D>,
}

impl<D: CopyDriver> BlockCopy<D> {
    fn new(
        slot: DeviceSlot<D>,
        pieces: &[CopyPiece<D::Class>],
        slots: Arc<Slots<D>>,
        driver: Arc<D>,
    ) -> Result<Self, StreamFault> {
        let mut used: HashMap<&D::Class, usize> = HashMap::new();
        let mut places = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let count = used.entry(&piece.class).or_default();
            places.push((piece.class.clone(), *count));
            *count += 1;
        }
        let missing = places.iter().any(|(class, at)| slot.memory(class, *at).is_none());
        let copied = Self { slot: Some(slot), places, slots, driver };
        if missing { Err(StreamFault::Step("a block does not fit into a slot".to_owned())) } else { Ok(copied) }
    }

    /// Begins the use of the block. Has to be called before any computation with it.
    pub fn begin_use(&self) -> Result<(), StreamFault> {
        self.driver.wait(Queue::Compute, &self.slot().ready)
    }

    /// The pieces, in the order of the block.
    pub fn pieces(&self) -> impl Iterator<Item = &D::Memory> {
        self.places.iter().filter_map(|(class, at)| self.slot().memory(class, *at))
    }

    #[allow(clippy::expect_used, reason = "taken in drop only")]
    pub(super) fn slot(&self) -> &DeviceSlot<D> {
        self.slot.as_ref().expect("a block in a slot")
    }
}

impl<D: CopyDriver> Drop for BlockCopy<D> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            // Copies already in the queue end before the slot is filled anew: that queue keeps its order.
            let recorded = self.driver.record(&slot.free, Queue::Compute);
            self.slots.give_back(slot, recorded.err());
        }
    }
}
