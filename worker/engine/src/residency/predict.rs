//! The predicted duration of a step, from the durations of each layer by itself, in seconds. The functions read no
//! clock.
//!
//! A step is a chain of three parts: read, place, compute. Each part handles one block at a time, in order. A read
//! begins when the read before it has ended and a slot is free. That is a recurrence, which is run until it repeats.

use super::schedule::LayerBlockId;

/// The costs of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepCost {
    /// By layer, in order.
    pub layers: Vec<LayerCost>,
    /// By block.
    pub blocks: Vec<BlockCost>,
    /// Seconds of a step that no layer accounts for: embedding, head, sampling.
    pub ends: f64,
    /// Seconds since the step before ended, in which blocks come and nothing computes.
    pub gap: f64,
}

/// The cost of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerCost {
    /// Seconds.
    pub compute: f64,
    /// Its block; none if it is resident.
    pub block: Option<LayerBlockId>,
}

/// The cost of reading and placing a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockCost {
    /// Seconds from storage into host memory.
    pub read: f64,
    /// Seconds from there to where it computes.
    pub place: f64,
}

/// Steps after which the recurrence has found its rhythm.
const SETTLED: usize = 6;

/// Mean seconds of a step among many like it, with a number of slots. Single steps may be long or short in turn, over
/// as many steps as there are slots.
pub fn step_seconds(cost: &StepCost, slots: usize) -> f64 {
    let turn = slots.max(1);
    let seconds = steps_seconds(std::iter::repeat_n(cost, SETTLED + turn), slots);
    seconds.iter().rev().take(turn).sum::<f64>() / turn as f64
}

/// Seconds of each of some steps, one after the other, of the same blocks.
pub fn steps_seconds<'a>(steps: impl IntoIterator<Item = &'a StepCost>, slots: usize) -> Vec<f64> {
    let (mut freed, mut now) = (Vec::new(), 0.0_f64);
    let (mut read, mut placed, mut fetch) = (0.0_f64, 0.0_f64, 0_usize);
    let mut seconds = Vec::new();
    for cost in steps {
        now += cost.gap;
        let began = now;
        let mut block_before = None;
        for (index, layer) in cost.layers.iter().enumerate() {
            let Some(block) = layer.block.filter(|_| slots > 0) else {
                now += layer.compute;
                continue;
            };
            if block_before != Some(block) {
                block_before = Some(block);
                let free = fetch.checked_sub(slots).and_then(|before| freed.get(before)).copied().unwrap_or(0.0);
                let of_block = cost.blocks.get(block.0).copied().unwrap_or_default();
                read = read.max(free) + of_block.read;
                placed = placed.max(read) + of_block.place;
                now = now.max(placed);
                fetch += 1;
            }
            now += layer.compute;
            if cost.layers[index + 1..].iter().find_map(|next| next.block) != Some(block) {
                freed.push(now);
            }
        }
        now += cost.ends;
        seconds.push(now - began);
    }
    seconds
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
        let layer = |block| LayerCost { compute, block: Some(LayerBlockId(block)) };
        StepCost {
            layers: (0..streamed).map(layer).collect(),
            blocks: vec![BlockCost { read, place }; streamed],
            ..StepCost::default()
        }
    }

    #[test]
    fn the_slowest_link_sets_the_pace() {
        for (compute, read, place, slots, expected) in [
            (1.0, 3.0, 0.0, 2, 30.0),
            (3.0, 1.0, 0.0, 2, 30.0),
            (1.0, 1.0, 3.0, 3, 30.0),
            // With one slot no work overlaps.
            (1.0, 2.0, 1.0, 1, 40.0),
        ] {
            let got = step_seconds(&cost(compute, read, place, 10), slots);
            assert!((got - expected).abs() < 1e-9, "{compute} {read} {place} {slots}: {got}");
        }
    }

    #[test]
    fn resident_layers_only_compute() {
        let layers = vec![LayerCost { compute: 2.0, block: None }; 5];
        assert_eq!(step_seconds(&StepCost { layers, ends: 1.0, ..StepCost::default() }, 2), 11.0);
    }

    #[test]
    fn steps_that_take_turns_count_by_their_mean() {
        // One block in two slots: each coming waits for the one before the last.
        let layers = [true, false, false, false, false, true, false, false];
        let layer = |streams: &bool| LayerCost { compute: 0.25, block: streams.then_some(LayerBlockId(0)) };
        let blocks = vec![BlockCost { read: 3.0, place: 2.5 }];
        let cost = StepCost { layers: layers.iter().map(layer).collect(), blocks, ..StepCost::default() };
        assert_eq!(step_seconds(&cost, 2), (6.0 * 0.25 + 3.0 + 2.5) / 2.0);
    }

    #[test]
    fn a_pause_fills_the_slots() {
        let one = cost(1.0, 3.0, 0.0, 4);
        let pause = StepCost { gap: 100.0, ..one.clone() };
        // Two blocks are there, the third waits for its read of 3, which began when the first was done with.
        let seconds = steps_seconds([&one, &one, &pause], 2);
        assert_eq!(seconds[1], 12.0);
        assert_eq!(seconds[2], 8.0);
    }

    #[test]
    fn overlap_is_the_hidden_share() {
        assert_eq!(overlap(10.0, 5.0, 10.0), 1.0);
        assert_eq!(overlap(10.0, 10.0, 20.0), 0.5);
        assert_eq!(overlap(0.0, 0.0, 0.0), 1.0);
    }
}
