//! The layers that stay on a device and those that are streamed, and through how many slots. Where neither works, a
//! refusal with the numbers. Knows bytes and rates, no files and no devices.

use model_boss_protocol::{ByteCount, ResidencyMode};

use super::predict::{self, BlockCost, LayerCost, StepCost};
use super::schedule::LayerBlockId;

/// The bytes of a block without measurements: enough that the fixed cost of a transfer does not count.
const SMALLEST_BLOCK: u64 = 32 << 20;
/// The most layers of a block.
const LARGEST_BLOCK: usize = 4;
/// The look-ahead without measurements.
const USUAL_WINDOW: usize = 2;
/// Looking further ahead than this never helped.
const LARGEST_WINDOW: usize = 4;
/// A plan has to be faster by this share to be worth more memory for its window.
const WORTH_IT: f64 = 0.995;
/// The factor on a step's streamed bytes that is accepted for slots which can change between looking ahead and
/// keeping blocks.
const FREEDOM: f64 = 1.02;

/// Memory that a model needs on one device, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeeds {
    /// The streamable weights of each layer.
    pub layers: Vec<u64>,
    /// Weights that always stay: embedding, head, norms, biases.
    pub ends: u64,
    /// Keys and values of all sequences at their full length.
    pub kv: u64,
    /// A step's own values.
    pub workspace: u64,
}

/// The permitted ways of residency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidencyOptions {
    /// Whether layers are streamed.
    pub mode: ResidencyMode,
    /// Blocks fetched ahead of the one in use.
    pub window: Option<usize>,
    /// Layers of a block.
    pub block: Option<usize>,
}

/// The measured rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes per second from storage into host memory.
    pub read: f64,
    /// Bytes per second from there to where layers compute; infinite where nothing has to be done.
    pub place: f64,
    /// Seconds that a read takes however small it is.
    pub latency: f64,
    /// Bytes of weights per second that a step computes with.
    pub compute: f64,
}

/// The decision for one device.
#[derive(Clone, Debug, PartialEq)]
pub enum ResidencyPlan {
    /// All layers stay on the device.
    Resident,
    /// Some layers are streamed.
    Stream(StreamPlan),
}

/// The blocks and slots of streamed layers.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamPlan {
    /// The layers of each block, in the order they compute. All other layers stay.
    pub blocks: Vec<Vec<usize>>,
    /// Blocks on the device at the same time: the one in use, those fetched ahead, and those that stay for now.
    pub slots: usize,
    /// Blocks fetched ahead of the one in use, as it was chosen at first.
    pub look_ahead: usize,
    /// Bytes of a slot: those of the largest block.
    pub slot_bytes: u64,
    /// Bytes of all layers that stay outside of the slots.
    pub resident_bytes: u64,
    /// Bytes that are streamed in each step, at that look-ahead.
    pub streamed_bytes: u64,
    /// Seconds that a step of one token will take, if rates are known.
    pub step_seconds: Option<f64>,
}

impl StreamPlan {
    /// Whether a layer is streamed.
    pub fn streams(&self, layer: usize) -> bool {
        self.blocks.iter().flatten().any(|streamed| *streamed == layer)
    }

    /// The blocks that stay in slots at a look-ahead. They are spread evenly among the others, so that reading
    /// continues while they compute.
    pub fn kept(&self, look_ahead: usize) -> Vec<LayerBlockId> {
        let (blocks, keep) = (self.blocks.len(), self.slots.saturating_sub(look_ahead + 1));
        let stays = |block: &usize| (block + 1) * keep / blocks > block * keep / blocks;
        (0..blocks).filter(stays).map(LayerBlockId).collect()
    }

    /// Bytes of layers on the device at any time.
    pub fn layer_bytes(&self) -> u64 {
        self.resident_bytes + self.slots as u64 * self.slot_bytes
    }
}

/// The model does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanRefusal {
    /// The model does not fit resident, and streaming is not permitted.
    #[error(
        "all weights take {weights}, keys and values {kv}, a step {workspace}: together {needs}, and there are {budget}; \
         `residency = \"auto\"` streams what does not fit"
    )]
    NotResident {
        /// All weights.
        weights: ByteCount,
        /// Keys and values.
        kv: ByteCount,
        /// A step's own values.
        workspace: ByteCount,
        /// All of them.
        needs: ByteCount,
        /// The bytes that may be used.
        budget: ByteCount,
    },
    /// Not even one block at a time.
    #[error(
        "even streamed it needs {needs}, and there are {budget}: {ends} for embedding and head, {window} for {slots} blocks \
         of layers, {kv} for keys and values, {workspace} for a step; a shorter context, fewer sequences at once or a \
         smaller window need less"
    )]
    NotStreamed {
        /// All parts.
        needs: ByteCount,
        /// The bytes that may be used.
        budget: ByteCount,
        /// Weights that always stay.
        ends: ByteCount,
        /// The slots.
        window: ByteCount,
        /// The number of slots.
        slots: usize,
        /// Keys and values.
        kv: ByteCount,
        /// A step's own values.
        workspace: ByteCount,
    },
}

/// Plans for one device with `budget` bytes.
pub fn plan(
    needs: &MemoryNeeds,
    budget: u64,
    wish: &ResidencyOptions,
    rates: Option<&Rates>,
) -> Result<ResidencyPlan, PlanRefusal> {
    let layers: u64 = needs.layers.iter().sum();
    // Sizes from a file may be any number.
    let always = needs.ends.saturating_add(needs.kv).saturating_add(needs.workspace);
    let all = always.saturating_add(layers);
    match wish.mode {
        ResidencyMode::Auto if all <= budget => return Ok(ResidencyPlan::Resident),
        ResidencyMode::Resident if all <= budget => return Ok(ResidencyPlan::Resident),
        ResidencyMode::Resident => {
            return Err(PlanRefusal::NotResident {
                weights: ByteCount(needs.ends.saturating_add(layers)),
                kv: ByteCount(needs.kv),
                workspace: ByteCount(needs.workspace),
                needs: ByteCount(all),
                budget: ByteCount(budget),
            });
        }
        ResidencyMode::Auto | ResidencyMode::Stream => {}
    }
    let windows = match (wish.window, rates) {
        (Some(window), _) => window.max(1)..=window.max(1),
        (None, Some(_)) => 1..=LARGEST_WINDOW,
        (None, None) => 1..=USUAL_WINDOW,
    };
    let room = budget.saturating_sub(always);
    let mut best: Option<StreamPlan> = None;
    for window in windows {
        for size in sizes(needs, wish, rates) {
            let Some(plan) = changeable(needs, room, window, size, wish, rates) else { continue };
            let better = match (best.as_ref(), rates) {
                (None, _) => true,
                (Some(best), Some(_)) => plan.step_seconds < best.step_seconds.map(|seconds| seconds * WORTH_IT),
                // Unmeasured: the usual window if it fits.
                (Some(_), None) => true,
            };
            if better {
                best = Some(plan);
            }
        }
    }
    best.map(ResidencyPlan::Stream).ok_or_else(|| {
        let sizes = sizes(needs, wish, rates);
        let smallest = sizes.map(|size| largest(needs, 0..needs.layers.len(), size)).min().unwrap_or(0);
        let slots = wish.window.map_or(2, |window| window.max(1) + 1);
        let window = smallest.saturating_mul(slots as u64);
        PlanRefusal::NotStreamed {
            needs: ByteCount(always.saturating_add(window)),
            budget: ByteCount(budget),
            ends: ByteCount(needs.ends),
            window: ByteCount(window),
            slots,
            kv: ByteCount(needs.kv),
            workspace: ByteCount(needs.workspace),
        }
    })
}

/// Layers per block to choose from, the usual first. Smaller blocks leave more room for resident layers. The fixed cost
/// of each read speaks against them, and is known only where it was measured.
fn sizes(needs: &MemoryNeeds, wish: &ResidencyOptions, rates: Option<&Rates>) -> impl Iterator<Item = usize> {
    let usual = wish.block.map_or_else(|| usual_size(needs), |block| block.clamp(1, needs.layers.len().max(1)));
    let others = if rates.is_some() && wish.block.is_none() { 1..LARGEST_BLOCK + 1 } else { 0..0 };
    [usual].into_iter().chain(others.filter(move |size| *size != usual))
}

fn usual_size(needs: &MemoryNeeds) -> usize {
    let mean = needs.layers.iter().sum::<u64>() / (needs.layers.len().max(1) as u64);
    SMALLEST_BLOCK.div_ceil(mean.max(1)).clamp(1, LARGEST_BLOCK as u64) as usize
}

/// Bytes of the largest block, with `size` of these layers each.
fn largest(needs: &MemoryNeeds, layers: impl IntoIterator<Item = usize>, size: usize) -> u64 {
    let bytes: Vec<u64> = layers.into_iter().filter_map(|layer| needs.layers.get(layer)).copied().collect();
    bytes.chunks(size.max(1)).map(|block| block.iter().sum()).max().unwrap_or(0)
}

/// With slots that can hold blocks as well as look ahead, where nothing forbids it and hardly more comes in a step for
/// it.
fn changeable(
    needs: &MemoryNeeds,
    room: u64,
    window: usize,
    size: usize,
    wish: &ResidencyOptions,
    rates: Option<&Rates>,
) -> Option<StreamPlan> {
    let fixed = with(needs, room, window + 1, window, size, wish.mode, rates)?;
    let everything = wish.mode == ResidencyMode::Stream && room >= needs.layers.iter().sum();
    if wish.window.is_some() || rates.is_none() || everything {
        return Some(fixed);
    }
    let most = (fixed.streamed_bytes as f64 * FREEDOM) as u64;
    let freer = (window + 2..=LARGEST_WINDOW + 1)
        .rev()
        .filter_map(|slots| with(needs, room, slots, window, size, wish.mode, rates))
        .find(|plan| plan.streamed_bytes <= most);
    Some(freer.unwrap_or(fixed))
}

/// As many layers stay as fit beside the slots. They are spread evenly among the others, so that reading continues
/// while they compute.
fn with(
    needs: &MemoryNeeds,
    room: u64,
    slots: usize,
    window: usize,
    size: usize,
    mode: ResidencyMode,
    rates: Option<&Rates>,
) -> Option<StreamPlan> {
    let layers = needs.layers.len();
    let fewest = usize::from(mode != ResidencyMode::Stream);
    for streamed in fewest.max(1)..=layers {
        // Forced streaming streams everything: it is for measurements and for those who want the memory.
        let streamed =
            if mode == ResidencyMode::Stream && room >= needs.layers.iter().sum() { layers } else { streamed };
        let comes = |layer: usize| (layer + 1) * streamed / layers > layer * streamed / layers;
        let coming: Vec<usize> = (0..layers).filter(|layer| comes(*layer)).collect();
        let slot_bytes = largest(needs, coming.iter().copied(), size);
        let blocks: Vec<Vec<usize>> = coming.chunks(size).map(<[usize]>::to_vec).collect();
        let coming_bytes: u64 = coming.iter().map(|layer| needs.layers[*layer]).sum();
        let resident_bytes = needs.layers.iter().sum::<u64>() - coming_bytes;
        let slots = slots.min(blocks.len().max(1));
        if resident_bytes.saturating_add(slot_bytes.saturating_mul(slots as u64)) > room {
            continue;
        }
        let look_ahead = window.min(slots.saturating_sub(1));
        let (streamed_bytes, step_seconds) = (coming_bytes, None);
        let mut plan =
            StreamPlan { blocks, slots, look_ahead, slot_bytes, resident_bytes, streamed_bytes, step_seconds };
        for LayerBlockId(kept) in plan.kept(look_ahead) {
            plan.streamed_bytes -= plan.blocks[kept].iter().map(|layer| needs.layers[*layer]).sum::<u64>();
        }
        plan.step_seconds = rates.map(|rates| predict::step_seconds(&cost(needs, &plan, rates), look_ahead + 1));
        return Some(plan);
    }
    None
}

/// The cost of a plan's step at some rates, at the look-ahead that was planned.
pub fn cost(needs: &MemoryNeeds, plan: &StreamPlan, rates: &Rates) -> StepCost {
    let kept = plan.kept(plan.look_ahead);
    let comes: Vec<&Vec<usize>> = (0..plan.blocks.len())
        .filter(|block| !kept.contains(&LayerBlockId(*block)))
        .map(|block| &plan.blocks[block])
        .collect();
    let block_of = |layer: usize| comes.iter().position(|block| block.contains(&layer)).map(LayerBlockId);
    let layers = needs
        .layers
        .iter()
        .enumerate()
        .map(|(layer, bytes)| LayerCost { compute: *bytes as f64 / rates.compute, block: block_of(layer) });
    let blocks = comes.iter().map(|block| {
        let bytes = block.iter().map(|layer| needs.layers[*layer]).sum::<u64>() as f64;
        BlockCost { read: rates.latency + bytes / rates.read, place: bytes / rates.place }
    });
    let ends = needs.ends as f64 / rates.compute;
    StepCost { layers: layers.collect(), blocks: blocks.collect(), ends, gap: 0.0 }
}

#[cfg(test)]
mod tests;
