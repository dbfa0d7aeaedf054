//! The schedule: the order in which blocks of layers are read, placed on the device, used and dropped. It decides;
//! the caller acts and reports back. It works with numbers of layers, without bytes or time.
//!
//! A *block* is some layers that are streamed together. Blocks are read in the order in which layers compute. After
//! the last block the first is read again: while the last layers of a step compute, the first of the next step are
//! read. A block takes one of `slots` places from the beginning of its read until its last layer has computed. The
//! device therefore never holds more than `slots` blocks. Places that are not needed to look ahead can hold blocks
//! that stay ([`Schedule::keep`]). Which blocks these are may change at any time, without a copy.

use std::collections::VecDeque;

/// A block, by its place in the order of computing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerBlockId(pub usize);

/// The id of one fetch of a block; the next fetch of the same block has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(u64);

/// A block that is being fetched, or has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The id of this fetch.
    pub id: FetchId,
    /// The fetched block.
    pub block: LayerBlockId,
}

/// The state of a layer that is about to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerNeed {
    /// No wait: the layer stays on the device.
    Resident,
    /// No wait: the layer's block is on the device.
    Ready(Fetch),
    /// The layer's block has not arrived yet.
    Wait,
}

/// Whether what was just done is still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchArrival {
    /// The block is still needed.
    Wanted,
    /// The step that it was for ended early: drop it.
    Unwanted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FetchStage {
    Reading,
    Read,
    Placing,
    Ready,
}

/// The state of all fetches.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// By layer: its block, or none if it is resident.
    block_of: Vec<Option<LayerBlockId>>,
    /// By block: the layer behind which it is dropped.
    last_layer: Vec<usize>,
    slots: usize,
    /// Needed blocks in the order of computing; the first is the one in use.
    wanted: VecDeque<(Fetch, FetchStage)>,
    /// Still being read or placed, and no longer wanted. They hold their places until they arrive.
    unwanted: Vec<Fetch>,
    /// By block: whether it stays once it is there.
    keep: Vec<bool>,
    /// Blocks that stay. They hold their places.
    kept: Vec<Fetch>,
    next_block: LayerBlockId,
    next_id: u64,
}

impl Schedule {
    /// `blocks` are the layers of each block, ascending, each layer in at most one; all others are resident. There are
    /// `slots` places; with none nothing can be fetched.
    pub fn new(layers: usize, blocks: &[Vec<usize>], slots: usize) -> Self {
        let mut block_of = vec![None; layers];
        for (block, of_block) in blocks.iter().enumerate() {
            for layer in of_block {
                if let Some(of_layer) = block_of.get_mut(*layer) {
                    *of_layer = Some(LayerBlockId(block));
                }
            }
        }
        let keep = vec![false; blocks.len()];
        let last_layer = blocks.iter().map(|layers| layers.iter().copied().max().unwrap_or(0)).collect();
        Self {
            block_of,
            last_layer,
            slots,
            wanted: VecDeque::new(),
            unwanted: Vec::new(),
            keep,
            kept: Vec::new(),
            next_block: LayerBlockId(0),
            next_id: 0,
        }
    }

    /// The number of blocks.
    pub fn blocks(&self) -> usize {
        self.last_layer.len()
    }

    /// Places that are taken.
    pub fn held(&self) -> usize {
        self.wanted.len() + self.unwanted.len() + self.kept.len()
    }

    /// Chooses the blocks that stay from their next use on; those that stayed until now are dropped behind it. One
    /// place is always left to streamed ones.
    pub fn keep(&mut self, blocks: &[LayerBlockId]) {
        self.keep = (0..self.blocks()).map(|block| blocks.contains(&LayerBlockId(block))).collect();
    }

    /// The next block to read, if there is a place for it. The caller reads it.
    pub fn next_read(&mut self) -> Option<Fetch> {
        if self.blocks() == 0 || self.held() >= self.slots {
            return None;
        }
        let blocks = self.blocks();
        let stays = |block: &LayerBlockId| self.kept.iter().any(|kept| kept.block == *block);
        let mut ahead = (0..blocks).map(|ahead| LayerBlockId((self.next_block.0 + ahead) % blocks));
        let block = ahead.find(|block| !stays(block))?;
        let fetch = Fetch { id: FetchId(self.next_id), block };
        self.next_id += 1;
        self.next_block = LayerBlockId((block.0 + 1) % blocks);
        self.wanted.push_back((fetch, FetchStage::Reading));
        Some(fetch)
    }

    /// Its bytes are in host memory.
    pub fn was_read(&mut self, fetch: FetchId) -> FetchArrival {
        self.arrived(fetch, FetchStage::Reading, FetchStage::Read)
    }

    /// The next block to place on the device. The caller places it. Blocks are placed in the order they were read.
    pub fn next_place(&mut self) -> Option<Fetch> {
        let (fetch, stage) = self.wanted.iter_mut().find(|(_, stage)| *stage < FetchStage::Placing)?;
        if *stage != FetchStage::Read {
            return None;
        }
        *stage = FetchStage::Placing;
        Some(*fetch)
    }

    /// Reports that a block was placed, so that it can be computed with.
    pub fn was_placed(&mut self, fetch: FetchId) -> FetchArrival {
        self.arrived(fetch, FetchStage::Placing, FetchStage::Ready)
    }

    /// Reports that a block could not be read or placed. Its place is free, and it is fetched again when it is
    /// needed.
    pub fn failed(&mut self, fetch: FetchId) {
        self.unwanted.retain(|unwanted| unwanted.id != fetch);
        if let Some(at) = self.wanted.iter().position(|(wanted, _)| wanted.id == fetch) {
            // Later blocks would now arrive before it, so all of them are fetched again.
            let behind = self.wanted.split_off(at);
            self.next_block = behind.front().map_or(self.next_block, |(failed, _)| failed.block);
            self.unwanted.extend(behind.into_iter().skip(1).filter(|(_, stage)| is_under_way(*stage)).map(|(f, _)| f));
        }
    }

    /// The state of a layer that is about to compute. Asking for a layer out of order, as after a step that ended
    /// early, drops blocks that would be there too soon; see [`Schedule::holds`].
    pub fn need(&mut self, layer: usize) -> LayerNeed {
        let Some(block) = self.block_of(layer) else { return LayerNeed::Resident };
        if let Some(kept) = self.kept.iter().find(|kept| kept.block == block) {
            return LayerNeed::Ready(*kept);
        }
        while let Some((fetch, stage)) = self.wanted.front().copied() {
            if fetch.block == block {
                return if stage == FetchStage::Ready { LayerNeed::Ready(fetch) } else { LayerNeed::Wait };
            }
            self.wanted.pop_front();
            if is_under_way(stage) {
                self.unwanted.push(fetch);
            }
        }
        self.next_block = block;
        LayerNeed::Wait
    }

    /// Whether a fetch of the layer's block is in progress.
    pub fn is_coming(&self, layer: usize) -> bool {
        let block = self.block_of(layer);
        self.wanted.front().is_some_and(|(fetch, _)| Some(fetch.block) == block)
    }

    /// A layer's block; none if it is resident.
    pub fn block_of(&self, layer: usize) -> Option<LayerBlockId> {
        self.block_of.get(layer).copied().flatten()
    }

    /// Whether a fetch is still wanted. A fetch that is not held may be dropped at once.
    pub fn holds(&self, fetch: FetchId) -> bool {
        self.wanted.iter().map(|(wanted, _)| wanted).chain(&self.kept).any(|held| held.id == fetch)
    }

    /// Reports that a layer has computed. Returns the fetch whose last layer this was and which is dropped now,
    /// unless the block stays.
    pub fn computed(&mut self, layer: usize) -> Option<Fetch> {
        let block = self.block_of(layer)?;
        if self.last_layer.get(block.0) != Some(&layer) {
            return None;
        }
        let keep = self.keep.get(block.0).copied().unwrap_or(false);
        if let Some(at) = self.kept.iter().position(|kept| kept.block == block) {
            return (!keep).then(|| self.kept.remove(at));
        }
        let (fetch, stage) = self.wanted.front().copied()?;
        if fetch.block != block || stage != FetchStage::Ready {
            return None;
        }
        self.wanted.pop_front();
        // With few blocks it may be fetched again already: then that fetch is used next.
        let comes_again = self.wanted.iter().any(|(wanted, _)| wanted.block == block);
        if keep && !comes_again && self.kept.len() + 1 < self.slots {
            self.kept.push(fetch);
            return None;
        }
        Some(fetch)
    }

    fn arrived(&mut self, fetch: FetchId, from: FetchStage, to: FetchStage) -> FetchArrival {
        if let Some((_, stage)) = self.wanted.iter_mut().find(|(wanted, stage)| wanted.id == fetch && *stage == from) {
            *stage = to;
            return FetchArrival::Wanted;
        }
        self.unwanted.retain(|unwanted| unwanted.id != fetch);
        FetchArrival::Unwanted
    }
}

/// Whether a thread works on the fetch, so that its memory cannot be freed.
fn is_under_way(stage: FetchStage) -> bool {
    matches!(stage, FetchStage::Reading | FetchStage::Placing)
}

#[cfg(test)]
mod tests;
