//! The look-ahead of a running model. The last steps, as they were measured, are simulated with every look-ahead that
//! the slots allow. The fastest one is chosen. Decides; knows measured durations, no clock.
//!
//! A slot either looks ahead or holds a block that then need not come. Looking further ahead evens out reads that take
//! now longer, now shorter, and pauses in which nothing computes. Holding a block saves its read in every step. Which
//! is worth more is seen in the measured durations alone, not in their means. A change moves nothing and costs one read
//! at most, so it may be tried. It is taken back when steps got no faster, and then the next one waits longer.

use std::collections::VecDeque;

use serde::Serialize;

use super::plan::StreamPlan;
use super::predict::{BlockCost, LayerCost, StepCost, steps_seconds};
use super::schedule::LayerBlockId;
use super::timeline::StepTimeline;

/// Steps that are looked at together.
const RECENT: usize = 8;
/// A gain has to be more than this share of a step.
const GAIN: f64 = 0.03;
/// Looks in a row, at different steps, that have to agree.
const AGREE: usize = 2;
/// A change is taken back unless steps take at most this share of what they took before.
const PAYS: f64 = 0.99;
/// The number of checks without a trial after a change was reverted. It doubles each time, until a change has paid.
const REST: usize = 4;
/// The longest rest, in looks.
const LONGEST_REST: usize = 256;

/// The look-ahead was changed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Measured steps between two checks.
    pub step: u64,
    /// Blocks that were fetched ahead.
    pub from: usize,
    /// Blocks that are from now on.
    pub to: usize,
    /// The reason for the change.
    pub reason: Reason,
    /// Seconds of a step before, measured.
    pub before_seconds: f64,
    /// Seconds of a step that are expected.
    pub expected_seconds: f64,
}

/// The reason for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The last steps would have been faster.
    Faster,
    /// The last change had no benefit and was reverted.
    TakenBack,
}

/// Watches steps and chooses.
#[derive(Clone, Debug)]
pub struct Adapter {
    plan: StreamPlan,
    /// By layer.
    layer_bytes: Vec<u64>,
    look_ahead: usize,
    /// Whether the operator leaves a choice.
    free: bool,
    recent: VecDeque<Measured>,
    steps: u64,
    /// The look-ahead that the last checks chose, and how many agreed.
    agreed: (usize, usize),
    /// A change whose effect is not known yet: the look-ahead before it, and seconds of a step then.
    trial: Option<(usize, f64)>,
    /// Looks until the next change may be tried, and how many it will be the next time.
    rest: (usize, usize),
    expected: Option<f64>,
}

/// A step: seconds of each block, none for one that stayed, and of each layer.
#[derive(Clone, Debug)]
struct Measured {
    blocks: Vec<Option<BlockCost>>,
    layers: Vec<f64>,
    ends: f64,
    gap: f64,
    wall: f64,
}

impl Adapter {
    /// The adaptation of a plan over layers of these bytes. The look-ahead stays fixed where slots keep no blocks and
    /// it is at most one.
    pub fn new(plan: &StreamPlan, layer_bytes: &[u64], wish: Option<usize>) -> Self {
        Self {
            look_ahead: plan.look_ahead,
            free: wish.is_none() && plan.slots > 2,
            plan: plan.clone(),
            layer_bytes: layer_bytes.to_vec(),
            recent: VecDeque::new(),
            steps: 0,
            agreed: (plan.look_ahead, 0),
            trial: None,
            rest: (0, REST),
            expected: plan.step_seconds,
        }
    }

    /// The blocks that stay for now.
    pub fn kept(&self) -> Vec<LayerBlockId> {
        self.plan.kept(self.look_ahead)
    }

    /// Seconds that a step like the last ones takes, by what was measured; as it was planned before there was anything.
    pub fn expected_seconds(&self) -> Option<f64> {
        self.expected
    }

    /// Takes the measurement of a completed step; returns the change if the look-ahead is different from now on.
    pub fn observe(&mut self, step: &StepTimeline) -> Option<Change> {
        self.steps += 1;
        self.recent.push_back(self.measured(step));
        if self.recent.len() < RECENT {
            return None;
        }
        let change = self.look();
        // Each look is at steps of its own: two that agree are two observations.
        self.recent.clear();
        change
    }

    fn look(&mut self) -> Option<Change> {
        let before = self.median_wall();
        self.expected = self.simulated_seconds(self.look_ahead);
        if !self.free {
            return None;
        }
        if let Some((from, seconds)) = self.trial.take() {
            if before > seconds * PAYS {
                let (_, next) = self.rest;
                self.rest = (next, (2 * next).min(LONGEST_REST));
                return Some(self.change(from, Reason::TakenBack, before, seconds));
            }
            self.rest.1 = REST;
        }
        if self.rest.0 > 0 {
            self.rest.0 -= 1;
            return None;
        }
        let now = self.expected?;
        let best = (1..self.plan.slots)
            .filter_map(|look_ahead| Some((look_ahead, self.simulated_seconds(look_ahead)?)))
            .min_by(|(_, one), (_, other)| one.total_cmp(other));
        let (best, seconds) =
            best.filter(|(_, seconds)| *seconds < now * (1.0 - GAIN)).unwrap_or((self.look_ahead, now));
        self.agreed = if self.agreed.0 == best { (best, self.agreed.1 + 1) } else { (best, 1) };
        if best == self.look_ahead || self.agreed.1 < AGREE {
            return None;
        }
        self.trial = Some((self.look_ahead, before));
        Some(self.change(best, Reason::Faster, before, seconds))
    }

    fn change(&mut self, to: usize, reason: Reason, before_seconds: f64, expected_seconds: f64) -> Change {
        let from = std::mem::replace(&mut self.look_ahead, to);
        self.agreed = (to, 0);
        self.expected = Some(expected_seconds);
        Change { step: self.steps, from, to, reason, before_seconds, expected_seconds }
    }

    /// Mean seconds of the last steps with another look-ahead.
    fn simulated_seconds(&self, look_ahead: usize) -> Option<f64> {
        let kept = self.plan.kept(look_ahead);
        let steps: Vec<StepCost> = self.recent.iter().map(|step| self.cost(step, &kept)).collect();
        // Run in twice: how the first steps found the slots is not known.
        let seconds = steps_seconds(steps.iter().chain(&steps), look_ahead + 1);
        let settled = seconds.get(steps.len()..).filter(|settled| !settled.is_empty())?;
        Some(settled.iter().sum::<f64>() / settled.len() as f64)
    }

    /// The cost of a step if these blocks had stayed. A block that was not read counts as others of its size.
    fn cost(&self, step: &Measured, kept: &[LayerBlockId]) -> StepCost {
        let comes: Vec<usize> =
            (0..self.plan.blocks.len()).filter(|block| !kept.contains(&LayerBlockId(*block))).collect();
        // A block that was not read takes the times of the step's other blocks, one after the other. A disk that wavers
        // does so for all of them.
        let mut others = step.blocks.iter().enumerate().filter_map(|(block, cost)| Some((block, (*cost)?))).cycle();
        let mut stands_for = |block: usize| {
            let Some((other, cost)) = others.next() else { return BlockCost::default() };
            let share = self.bytes(block) as f64 / self.bytes(other).max(1) as f64;
            BlockCost { read: cost.read * share, place: cost.place * share }
        };
        let blocks = comes.iter().map(|&block| {
            let measured = step.blocks.get(block).copied().flatten();
            measured.unwrap_or_else(|| stands_for(block))
        });
        let blocks = blocks.collect();
        let block_of =
            |layer: usize| comes.iter().position(|block| self.plan.blocks[*block].contains(&layer)).map(LayerBlockId);
        let layers = step
            .layers
            .iter()
            .enumerate()
            .map(|(layer, compute)| LayerCost { compute: *compute, block: block_of(layer) });
        StepCost { blocks, layers: layers.collect(), ends: step.ends, gap: step.gap }
    }

    fn bytes(&self, block: usize) -> u64 {
        let layers = self.plan.blocks.get(block).into_iter().flatten();
        layers.filter_map(|layer| self.layer_bytes.get(*layer)).sum()
    }

    fn measured(&self, step: &StepTimeline) -> Measured {
        let mut blocks = vec![None; self.plan.blocks.len()];
        for copy in &step.copies {
            if let Some(block) = self.plan.blocks.iter().position(|layers| *layers == copy.layers) {
                blocks[block] = Some(BlockCost { read: copy.read.seconds(), place: copy.place.seconds() });
            }
        }
        let mut layers = vec![0.0; self.layer_bytes.len()];
        for layer in &step.layers {
            if let Some(seconds) = layers.get_mut(layer.layer) {
                *seconds = layer.compute.seconds();
            }
        }
        Measured { blocks, layers, ends: step.ends(), gap: step.gap, wall: step.wall }
    }

    fn median_wall(&self) -> f64 {
        let mut walls: Vec<f64> = self.recent.iter().map(|step| step.wall).collect();
        walls.sort_by(f64::total_cmp);
        walls.get(walls.len() / 2).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests;
