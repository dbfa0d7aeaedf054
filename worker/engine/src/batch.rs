//! The batching plan: how many tokens each sequence brings to the next step. Pure; knows numbers only.
//!
//! Every decoding sequence brings its one token to every step, so a long prompt never stalls an answer that is being
//! written. The rest of the step's token budget goes to the prompts, shared max-min fairly. A short prompt gets all it
//! needs at once, and the long ones share the rest.

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
    // Smallest wish first: a prompt that wants less than an equal share leaves the difference to the others. Equal
    // wishes keep their order of arrival, and the odd token goes to the one that came first.
    prompts.sort_unstable();
    let mut sharers = prompts.len();
    for (wish, index) in prompts {
        let share = wish.min(left.div_ceil(sharers));
        shares[index] = share;
        left -= share;
        sharers -= 1;
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
    fn a_short_prompt_does_not_wait_behind_a_long_one() {
        assert_eq!(plan(&[prefill(1_000), prefill(7)], BUDGET), [93, 7]);
        assert_eq!(plan(&[prefill(1_000), SequenceStage::Decode, prefill(7)], BUDGET), [23, 1, 7]);
    }

    #[test]
    fn equal_prompts_share_and_the_first_gets_the_odd_token() {
        assert_eq!(plan(&[prefill(90), prefill(90), prefill(90)], BUDGET), [34, 33, 33]);
    }

    #[test]
    fn a_lone_prompt_takes_the_whole_step_but_respects_its_own_limit() {
        assert_eq!(plan(&[prefill(5_000)], BUDGET), [100]);
        assert_eq!(plan(&[SequenceStage::Prefill { remaining: 5_000, at_most: 8 }], BUDGET), [8]);
        assert!(plan(&[], BUDGET).is_empty());
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
        fn nobody_with_more_left_gets_less(wishes in proptest::collection::vec(1_usize..3_000, 1..20)) {
            let stages: Vec<_> = wishes.iter().copied().map(prefill).collect();
            let shares = plan(&stages, BUDGET);
            for (i, a) in wishes.iter().enumerate() {
                for (j, b) in wishes.iter().enumerate() {
                    if a > b {
                        prop_assert!(shares[i] + 1 >= shares[j]);
                    }
                }
            }
        }
    }
}
