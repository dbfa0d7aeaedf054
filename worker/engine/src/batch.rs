//! The batching plan: how many tokens each sequence brings to the next step. Pure; knows numbers only.
//!
//! Every decoding sequence brings its one token to every step, so a long prompt never stalls an answer that is being
//! written. The rest of the step's token budget goes to the prompts. Those with the fewest tokens left come first and
//! get all they need, because an answer begins with the last token of its prompt: eight equal prompts that share each
//! step would all wait for the last step. Each of the others gets a part of the step, so that none stands still. A
//! decoder that reads prompts fast gets larger pieces, for as long as others can wait.

/// The limits of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepBudget {
    /// Prompt tokens in a step in which nothing is decoded.
    pub prefill_alone: usize,
    /// Prompt tokens in a step that also decodes: small, because decoding waits for the whole step.
    pub prefill_beside_decode: usize,
}

impl Default for StepBudget {
    fn default() -> Self {
        Self { prefill_alone: 512, prefill_beside_decode: 128 }
    }
}

impl StepBudget {
    /// The budget for a decoder that takes so many seconds for a token of a prompt, and computes at most `rows` tokens
    /// at once. It is never smaller than this one.
    pub fn paced(self, seconds: Option<f64>, rows: usize) -> Self {
        let Some(seconds) = seconds else { return self };
        let within = |limit: f64| (limit / seconds.max(f64::MIN_POSITIVE)) as usize;
        let grown = |least: usize, limit| within(limit).clamp(least, rows.max(least));
        Self {
            prefill_alone: grown(self.prefill_alone, SECONDS_ALONE),
            prefill_beside_decode: grown(self.prefill_beside_decode, SECONDS_BESIDE_DECODE),
        }
    }
}

/// Seconds of a step in which nothing is decoded: as long waits who comes next.
const SECONDS_ALONE: f64 = 0.1;
/// Seconds of a step that also decodes: as long an answer that is being read pauses.
const SECONDS_BESIDE_DECODE: f64 = 0.01;

/// The share of the last step in [`Pace`].
const LAST_STEP: f64 = 0.3;
/// Prompt tokens that a step is measured with. With fewer, other work is a large part of it.
const MEASURED: usize = 64;

/// How fast a decoder reads prompts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace(Option<f64>);

impl Pace {
    /// Counts a step with so many prompt tokens.
    pub fn stepped(&mut self, prompt_tokens: usize, seconds: f64) {
        if prompt_tokens >= MEASURED {
            let now = seconds / prompt_tokens as f64;
            self.0 = Some(self.0.map_or(now, |before| before + LAST_STEP * (now - before)));
        }
    }

    /// Seconds for a token; none before the first step that tells.
    pub fn seconds(self) -> Option<f64> {
        self.0
    }
}

/// The stage of a sequence of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceStage {
    /// Part of the prompt is still to be evaluated.
    Prefill {
        /// Prompt tokens left, at least one.
        remaining: usize,
        /// Most tokens this sequence may bring to one step, whatever the budget.
        at_most: usize,
    },
    /// One sampled token is to be evaluated.
    Decode,
    /// The tokens that may come next are not known yet.
    Waiting,
}

/// The sequences of bulk work take part in one of so many steps while more important ones compute: they stand still for
/// a moment, and never for good.
const BULK_EVERY: u64 = 16;

/// Has the sequences of bulk work sit a step out in which more important ones compute. `is_bulk` tells them by their
/// place, and `step` is the number of the step.
pub fn give_way(stages: &mut [SequenceStage], is_bulk: impl Fn(usize) -> bool, step: u64) {
    let computes = |(at, stage): (usize, &SequenceStage)| !is_bulk(at) && *stage != SequenceStage::Waiting;
    if step.is_multiple_of(BULK_EVERY) || !stages.iter().enumerate().any(computes) {
        return;
    }
    for (at, stage) in stages.iter_mut().enumerate() {
        if is_bulk(at) {
            *stage = SequenceStage::Waiting;
        }
    }
}

/// Every prompt gets this fraction of an equal share of a step, one fourth, however many shorter ones there are.
const LEAST_SHARE: usize = 4;

/// Tokens each sequence brings to the next step, in the order of `stages`. Zero means that it sits this step out.
///
/// O(n log n) in the number of sequences.
pub fn plan(stages: &[SequenceStage], budget: StepBudget) -> Vec<usize> {
    let decoding = stages.iter().any(|stage| matches!(stage, SequenceStage::Decode));
    let mut left = if decoding { budget.prefill_beside_decode } else { budget.prefill_alone }.max(1);
    let mut shares: Vec<usize> =
        stages.iter().map(|stage| usize::from(matches!(stage, SequenceStage::Decode))).collect();
    let mut prompts: Vec<(usize, usize)> = stages
        .iter()
        .enumerate()
        .filter_map(|(index, stage)| match *stage {
            SequenceStage::Prefill { remaining, at_most } => Some((remaining.min(at_most.max(1)), index)),
            SequenceStage::Decode | SequenceStage::Waiting => None,
        })
        .collect();
    // Smallest wish first. Equal wishes keep their order of arrival.
    prompts.sort_unstable();
    let least = (left / (LEAST_SHARE * prompts.len().max(1))).max(1);
    let mut kept: usize = prompts.iter().map(|(wish, _)| least.min(*wish)).sum();
    for (wish, index) in prompts {
        kept -= least.min(wish);
        // With fewer tokens than prompts there is nothing to keep for all of them.
        let share = wish.min(left.saturating_sub(kept).max(least.min(left)));
        shares[index] = share;
        left -= share;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BUDGET: StepBudget = StepBudget { prefill_alone: 100, prefill_beside_decode: 30 };

    fn prefill(remaining: usize) -> SequenceStage {
        SequenceStage::Prefill { remaining, at_most: usize::MAX }
    }

    #[test]
    fn rc_26_bulk_sequences_sit_out_while_important_ones_compute_and_go_on_now_and_then() {
        use SequenceStage::{Decode, Waiting};
        let after = |stages: &[SequenceStage], bulk: &[usize], step| {
            let mut stages = stages.to_vec();
            give_way(&mut stages, |at| bulk.contains(&at), step);
            stages
        };
        assert_eq!(after(&[Decode, Decode, prefill(7)], &[0, 2], 1), [Waiting, Decode, Waiting]);
        assert_eq!(after(&[Decode, Decode, prefill(7)], &[0, 2], BULK_EVERY), [Decode, Decode, prefill(7)]);
        // An important sequence that waits for its mask holds no other up.
        assert_eq!(after(&[Decode, Waiting], &[0], 1), [Decode, Waiting]);
        assert_eq!(after(&[Decode, prefill(1)], &[0, 1], 1), [Decode, prefill(1)]);
    }

    #[test]
    fn a_short_prompt_does_not_wait_behind_a_long_one() {
        assert_eq!(plan(&[prefill(1_000), prefill(7)], BUDGET), [93, 7]);
        assert_eq!(plan(&[prefill(1_000), SequenceStage::Decode, prefill(7)], BUDGET), [23, 1, 7]);
    }

    #[test]
    fn what_can_end_ends_and_the_others_go_on() {
        assert_eq!(plan(&[prefill(30); 5], BUDGET), [30, 30, 30, 5, 5], "not twenty each, and no answer begun");
        assert_eq!(plan(&[prefill(90), prefill(90), prefill(90)], BUDGET), [84, 8, 8], "the first is first");
        assert_eq!(plan(&[prefill(900), prefill(40), prefill(50)], BUDGET), [10, 40, 50]);
    }

    #[test]
    fn a_lone_prompt_takes_the_whole_step_but_respects_its_own_limit() {
        assert_eq!(plan(&[prefill(5_000)], BUDGET), [100]);
        assert_eq!(plan(&[SequenceStage::Prefill { remaining: 5_000, at_most: 8 }], BUDGET), [8]);
        assert!(plan(&[], BUDGET).is_empty());
    }

    #[test]
    fn fast_decoders_read_larger_pieces() {
        assert_eq!(BUDGET.paced(None, 4_000), BUDGET);
        assert_eq!(BUDGET.paced(Some(1.0), 4_000), BUDGET, "slow ones the same");
        let fast = StepBudget { prefill_alone: 1_000, prefill_beside_decode: 100 };
        assert_eq!(BUDGET.paced(Some(1e-4), 4_000), fast);
        assert_eq!(BUDGET.paced(Some(0.0), 700), StepBudget { prefill_alone: 700, prefill_beside_decode: 700 });
        assert_eq!(BUDGET.paced(Some(1e-4), 0), StepBudget { prefill_alone: 100, prefill_beside_decode: 30 });
    }

    #[test]
    fn a_pace_follows_the_last_steps_with_enough_tokens() {
        let mut pace = Pace::default();
        pace.stepped(1, 5.0);
        assert_eq!(pace.seconds(), None);
        pace.stepped(100, 1.0);
        assert_eq!(pace.seconds(), Some(0.01));
        for _ in 0..40 {
            pace.stepped(200, 0.2);
        }
        assert!((pace.seconds().unwrap() - 0.001).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn decoding_never_waits_and_prompts_stay_in_budget(
            wishes in proptest::collection::vec(proptest::option::of(1_usize..3_000), 0..40),
            alone in 1_usize..600, beside in 1_usize..300,
        ) {
            let budget = StepBudget { prefill_alone: alone, prefill_beside_decode: beside };
            let stages: Vec<_> = wishes.iter().map(|wish| wish.map_or(SequenceStage::Decode, prefill)).collect();
            let shares = plan(&stages, budget);
            prop_assert_eq!(shares.len(), stages.len());
            let limit = if stages.contains(&SequenceStage::Decode) { beside } else { alone };
            let mut given = 0;
            for (share, wish) in shares.iter().zip(&wishes) {
                match wish {
                    None => prop_assert_eq!(*share, 1),
                    Some(wish) => {
                        prop_assert!(share <= wish);
                        given += share;
                    }
                }
            }
            let wanted: usize = wishes.iter().flatten().sum();
            // Work-conserving: the budget is used up unless every prompt is satisfied.
            prop_assert_eq!(given, wanted.min(limit));
        }

        #[test]
        fn who_has_less_left_ends_first_and_nobody_stands_still(
            wishes in proptest::collection::vec(1_usize..300, 1..25),
        ) {
            let stages: Vec<_> = wishes.iter().copied().map(prefill).collect();
            let shares = plan(&stages, BUDGET);
            let least = BUDGET.prefill_alone / (LEAST_SHARE * wishes.len());
            for (i, a) in wishes.iter().enumerate() {
                prop_assert!(shares[i] >= least.min(*a));
                for (j, b) in wishes.iter().enumerate() {
                    if a > b && shares[i] > least.max(1) {
                        prop_assert_eq!(shares[j], *b, "a shorter prompt gets all before a longer one gets more");
                    }
                }
            }
        }
    }
}
