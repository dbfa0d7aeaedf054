//! How long a step will take, from what each layer takes by itself. Knows durations in seconds, no clock.
//!
//! The parts of a step form a chain with three links, read, place, compute, each of which does one thing at a time and in
//! order; a read begins when the read before it has ended and a slot is free. That is a recurrence; it is run until it
//! repeats.

use super::schedule::BlockId;

/// What a step is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCost {
    /// By layer, in order.
    pub layers: Vec<LayerCost>,
    /// By block.
    pub blocks: Vec<BlockCost>,
    /// Seconds of a step that no layer accounts for: embedding, head, sampling.
    pub ends: f64,
}

/// What a layer costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerCost {
    /// Seconds.
    pub compute: f64,
    /// Its block; none if it is resident.
    pub block: Option<BlockId>,
}

/// What it costs to bring a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockCost {
    /// Seconds from storage into host memory.
    pub read: f64,
    /// Seconds from there to where it computes.
    pub place: f64,
}

/// Steps after which the recurrence has found its rhythm.
const SETTLED: usize = 6;

/// Seconds of a step among many, with so many slots.
pub fn step_seconds(cost: &StepCost, slots: usize) -> f64 {
    let blocks = cost.blocks.len();
    if blocks == 0 || slots == 0 {
        return cost.ends + cost.layers.iter().map(|layer| layer.compute).sum::<f64>();
    }
    let last: Vec<usize> = (0..blocks)
        .map(|block| cost.layers.iter().rposition(|layer| layer.block == Some(BlockId(block))).unwrap_or(0))
        .collect();
    let (mut freed, mut now, mut began) = (Vec::with_capacity(SETTLED * blocks), 0.0_f64, 0.0_f64);
    let (mut read, mut placed) = (0.0_f64, 0.0_f64);
    for step in 0..SETTLED {
        began = now;
        for (index, layer) in cost.layers.iter().enumerate() {
            if let Some(BlockId(block)) = layer.block {
                let fetch = step * blocks + block;
                let first_of_block = cost.layers[..index].iter().all(|before| before.block != layer.block);
                if first_of_block {
                    let free = fetch.checked_sub(slots).and_then(|before| freed.get(before)).copied().unwrap_or(0.0);
                    read = read.max(free) + cost.blocks[block].read;
                    placed = placed.max(read) + cost.blocks[block].place;
                    now = now.max(placed);
                }
                now += layer.compute;
                if last[block] == index {
                    freed.push(now);
                }
            } else {
                now += layer.compute;
            }
        }
        now += cost.ends;
    }
    now - began
}

/// Share of the longer of two chains, copying and computing, in the time that both took together: 1 if the shorter one
/// was hidden completely.
pub fn overlap(copy: f64, compute: f64, wall: f64) -> f64 {
    if wall > 0.0 { (copy.max(compute) / wall).min(1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(compute: f64, read: f64, place: f64, streamed: usize) -> StepCost {
        let layer = |block| LayerCost { compute, block: Some(BlockId(block)) };
        StepCost {
            layers: (0..streamed).map(layer).collect(),
            blocks: vec![BlockCost { read, place }; streamed],
            ends: 0.0,
        }
    }

    #[test]
    fn the_slowest_link_sets_the_pace() {
        for (compute, read, place, slots, expected) in [
            (1.0, 3.0, 0.0, 2, 30.0),
            (3.0, 1.0, 0.0, 2, 30.0),
            (1.0, 1.0, 3.0, 3, 30.0),
            // With one slot everything waits for everything.
            (1.0, 2.0, 1.0, 1, 40.0),
        ] {
            let got = step_seconds(&cost(compute, read, place, 10), slots);
            assert!((got - expected).abs() < 1e-9, "{compute} {read} {place} {slots}: {got}");
        }
    }

    #[test]
    fn resident_layers_only_compute() {
        let layers = vec![LayerCost { compute: 2.0, block: None }; 5];
        assert_eq!(step_seconds(&StepCost { layers, blocks: Vec::new(), ends: 1.0 }, 2), 11.0);
    }

    #[test]
    fn overlap_is_the_hidden_share() {
        assert_eq!(overlap(10.0, 5.0, 10.0), 1.0);
        assert_eq!(overlap(10.0, 10.0, 20.0), 0.5);
        assert_eq!(overlap(0.0, 0.0, 0.0), 1.0);
    }
}
