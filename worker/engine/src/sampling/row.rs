//! The passes over a whole row of logits: which are the largest, and what all of them weigh. Knows no parameters of a
//! request.
//!
//! A vocabulary has more than a hundred thousand tokens, and each token of each sequence looks at all of them while the
//! decoder waits. So these are plain loops that become vector instructions, and what has to look closer does so in a
//! few blocks only.

use std::cmp::Ordering;

use pulp::{Arch, NullaryFnOnce};

use model_boss_kernels::exp;

/// Logits of a block.
const BLOCK: usize = 64;

/// Running results side by side.
const LANES: usize = 16;

/// Below this, e^x counts as 0. It is what [`exp`] goes down to.
const LEAST_EXPONENT: f32 = -87.0;

/// A row of logits.
pub(super) struct LogitRow<'a> {
    logits: &'a [f32],
    /// The largest of each block, not-a-numbers passed over; −∞ where there is none.
    largest: Vec<f32>,
}

/// The weight of a logit in the draw: `e^((logit − highest) · inverse)`, so the most likely token has 1. Logits that
/// are NaN or below `least` have weight zero.
#[derive(Clone, Copy)]
pub(super) struct Weigh {
    highest: f32,
    inverse: f32,
    least: f32,
}

impl<'a> LogitRow<'a> {
    pub(super) fn new(logits: &'a [f32]) -> Self {
        let mut largest = vec![f32::NEG_INFINITY; logits.len().div_ceil(BLOCK)];
        Arch::new().dispatch(Largest { logits, largest: &mut largest });
        Self { logits, largest }
    }

    /// Tokens.
    pub(super) fn len(&self) -> usize {
        self.logits.len()
    }

    /// Index and value of the largest entry, the lowest index among equals; `None` where all are −∞ or no numbers.
    pub(super) fn best(&self) -> Option<(u32, f32)> {
        let above = |highest: f32, largest: &f32| if *largest > highest { *largest } else { highest };
        let highest = self.largest.iter().fold(f32::NEG_INFINITY, above);
        if highest == f32::NEG_INFINITY {
            return None;
        }
        let block = self.largest.iter().position(|largest| *largest == highest)?;
        let logits = self.logits.get(block * BLOCK..)?;
        let token = block * BLOCK + logits.iter().position(|logit| *logit == highest)?;
        Some((u32::try_from(token).ok()?, highest))
    }

    /// Fills `out` with `(logit, token)` of the `count` largest, the largest first and equals in ascending token order;
    /// with all where there are fewer. Not-a-numbers are passed over.
    pub(super) fn most_likely(&self, count: usize, out: &mut Vec<(f32, u32)>) {
        out.clear();
        if count == 0 {
            return;
        }
        // In `count` blocks the largest logit is at least `least`, so smaller ones are not among the `count` largest.
        let least = if count < self.largest.len() {
            let mut largest = self.largest.clone();
            *largest.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1
        } else {
            f32::NEG_INFINITY
        };
        for ((token, logits), largest) in (0_u32..).step_by(BLOCK).zip(self.logits.chunks(BLOCK)).zip(&self.largest) {
            if *largest >= least {
                out.extend(logits.iter().zip(token..).filter(|(logit, _)| **logit >= least).map(|(&l, t)| (l, t)));
            }
        }
        if count < out.len() {
            out.select_nth_unstable_by(count - 1, largest_first);
            out.truncate(count);
        }
        out.sort_unstable_by(largest_first);
    }

    /// The sum of all weights in each block.
    pub(super) fn weights(&self, weigh: Weigh) -> Vec<f32> {
        let mut sums = vec![0.0; self.largest.len()];
        Arch::new().dispatch(Sums { logits: self.logits, weigh, sums: &mut sums });
        sums
    }

    /// The token at which the running sum of weights passes `at` times their total; `None` where nothing weighs
    /// anything.
    pub(super) fn draw(&self, weigh: Weigh, at: f64) -> Option<u32> {
        let sums = self.weights(weigh);
        let target = at * sums.iter().copied().map(f64::from).sum::<f64>();
        let (mut chosen, mut before, mut sum) = (None, 0.0, 0.0);
        for (block, weight) in sums.into_iter().enumerate().filter(|(_, weight)| *weight > 0.0) {
            // The last that weighs anything, should rounding have put the target behind it.
            (chosen, before) = (Some(block), sum);
            sum += f64::from(weight);
            if sum > target {
                break;
            }
        }
        let first = chosen? * BLOCK;
        let logits = self.logits.get(first..)?;
        let logits = &logits[..logits.len().min(BLOCK)];
        let mut weights = [0.0; BLOCK];
        Arch::new().dispatch(Weights { logits, weigh, weights: &mut weights });
        let token = u32::try_from(first).ok()?;
        passing((token..).zip(weights).map(|(token, weight)| (weight, token)), target - before)
    }
}

impl Weigh {
    /// Relative to `highest`, the largest logit.
    pub(super) fn new(highest: f32, temperature: f32) -> Self {
        let inverse = (1.0 / f64::from(temperature)) as f32;
        // For the smallest temperatures the inverse is infinite, and its product with the 0 of the most likely token
        // is NaN.
        Self { highest, inverse: inverse.min(f32::MAX), least: 0.0 }
    }

    /// The same weights, but zero below `least`.
    pub(super) fn at_least(self, least: f32) -> Self {
        Self { least, ..self }
    }

    #[inline(always)]
    pub(super) fn of(self, logit: f32) -> f32 {
        let exponent = (logit - self.highest) * self.inverse;
        let weight = exp(exponent);
        // Not-a-numbers fail the comparison.
        if (exponent > LEAST_EXPONENT) & (weight >= self.least) { weight } else { 0.0 }
    }
}

/// The first token of `(weight, token)` at which the running sum passes `target`; the last that weighs anything if none
/// does.
pub(super) fn passing(weighed: impl IntoIterator<Item = (f32, u32)>, target: f64) -> Option<u32> {
    let (mut sum, mut last) = (0.0, None);
    for (weight, token) in weighed.into_iter().filter(|(weight, _)| *weight > 0.0) {
        sum += f64::from(weight);
        last = Some(token);
        if sum > target {
            break;
        }
    }
    last
}

/// Equals in ascending token order, so that ties never depend on the sort.
fn largest_first(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

struct Largest<'a> {
    logits: &'a [f32],
    largest: &'a mut [f32],
}

impl NullaryFnOnce for Largest<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let above = |largest: f32, logit: f32| if logit > largest { logit } else { largest };
        for (logits, largest) in self.logits.chunks(BLOCK).zip(self.largest) {
            let (whole, rest) = logits.as_chunks::<LANES>();
            let mut lanes = [f32::NEG_INFINITY; LANES];
            for logits in whole {
                for (lane, logit) in lanes.iter_mut().zip(logits) {
                    *lane = above(*lane, *logit);
                }
            }
            *largest = lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, above);
        }
    }
}

struct Sums<'a> {
    logits: &'a [f32],
    weigh: Weigh,
    sums: &'a mut [f32],
}

impl NullaryFnOnce for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (logits, sum) in self.logits.chunks(BLOCK).zip(self.sums) {
            let (whole, rest) = logits.as_chunks::<LANES>();
            let mut lanes = [0.0; LANES];
            for logits in whole {
                for (lane, logit) in lanes.iter_mut().zip(logits) {
                    *lane += self.weigh.of(*logit);
                }
            }
            *sum = lanes.into_iter().sum::<f32>() + rest.iter().map(|logit| self.weigh.of(*logit)).sum::<f32>();
        }
    }
}

struct Weights<'a> {
    logits: &'a [f32],
    weigh: Weigh,
    weights: &'a mut [f32; BLOCK],
}

impl NullaryFnOnce for Weights<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for (weight, logit) in self.weights.iter_mut().zip(self.logits) {
            *weight = self.weigh.of(*logit);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A row as models give them, and now and then what they should not give.
    fn rows() -> impl Strategy<Value = Vec<f32>> {
        let logit = prop_oneof![
            20 => -30.0_f32..30.0,
            4 => (-3_i8..3).prop_map(f32::from),
            1 => Just(f32::NAN),
            1 => Just(f32::NEG_INFINITY),
        ];
        proptest::collection::vec(logit, 1..700)
    }

    proptest! {
        #[test]
        fn the_most_likely_are_those_of_a_full_sort(logits in rows(), count in 0_usize..750) {
            let mut sorted: Vec<(f32, u32)> =
                logits.iter().copied().zip(0_u32..).filter(|(logit, _)| !logit.is_nan()).collect();
            sorted.sort_by(largest_first);
            let row = LogitRow::new(&logits);
            let best = sorted.first().filter(|(logit, _)| *logit > f32::NEG_INFINITY).map(|(logit, token)| (*token, *logit));
            prop_assert_eq!(row.best(), best);
            sorted.truncate(count);
            let mut found = Vec::new();
            row.most_likely(count, &mut found);
            prop_assert_eq!(found, sorted);
        }

        #[test]
        fn a_draw_is_that_of_the_running_sum(logits in rows(), temperature in 0.05_f32..2.0, at in 0.0_f64..1.0, least in 0.0_f32..1.0) {
            let row = LogitRow::new(&logits);
            let Some((best, highest)) = row.best() else { return Ok(()) };
            let exact = |logit: f32| {
                let weight = (f64::from(logit - highest) / f64::from(temperature)).exp();
                if weight >= f64::from(least) { weight } else { 0.0 }
            };
            let weigh = Weigh::new(highest, temperature).at_least(least);
            prop_assert_eq!(weigh.of(logits[best as usize]), 1.0);
            let drawn = row.draw(weigh, at).unwrap() as usize;
            let sum = |logits: &[f32]| logits.iter().copied().map(exact).filter(|weight| *weight > 0.0).sum::<f64>();
            let (total, before) = (sum(&logits), sum(&logits[..drawn]));
            // Weights are f32 and may stand on either side of the least.
            let slack = total * 1e-5 + if least > 0.0 { f64::from(least) * 2.0 } else { 0.0 };
            prop_assert!(before <= at * total + slack && before + exact(logits[drawn]) >= at * total - slack);
        }
    }

    #[test]
    fn the_smallest_temperature_leaves_the_most_likely() {
        let logits = [0.0, 3.0, 2.999];
        let weigh = Weigh::new(3.0, f32::from_bits(1));
        assert_eq!(logits.map(|logit| weigh.of(logit)), [0.0, 1.0, 0.0]);
        assert_eq!(LogitRow::new(&logits).draw(weigh, 0.999), Some(1));
        assert_eq!(weigh.of(f32::NAN), 0.0);
        assert_eq!(Weigh::new(3.0, 2.0).of(f32::NEG_INFINITY), 0.0);
    }
}
