//! How many sequences get drafts of a second model, and how long these are, so that a second gives the most tokens.
//! Pure.

use super::row_cost::RowCost;

/// Steps over which a draft model's reading of earlier tokens is spread: it is read once, for many drafts.
const READ_FOR: f64 = 32.0;
/// The least that a plan has to win, as a share: estimates are never quite right.
const WORTH: f64 = 1.02;

/// A sequence that could have a draft.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DraftChance {
    /// The most tokens of its draft.
    pub(crate) most: usize,
    /// The chance that the draft model's next token is right.
    pub(crate) chance: f64,
    /// Tokens that the draft model reads before it writes.
    pub(crate) behind: usize,
}

/// The step of the first model that drafts would be evaluated in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepAhead {
    /// Its rows without them.
    pub(crate) rows: usize,
    /// The sequences that get a token by it.
    pub(crate) sequences: usize,
    /// The time of its steps.
    pub(crate) cost: RowCost,
}

/// The time of a draft model's work, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftCost {
    /// A step without rows, and each of its rows.
    pub(crate) step: (f64, f64),
    /// A token that it reads.
    pub(crate) read: f64,
}

/// A plan: the sequences that get drafts, by their places among those asked for, and the tokens of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DraftPlan {
    pub(crate) chosen: Vec<(usize, usize)>,
    /// The seconds that it costs: the draft model's steps and the rows in the first model's step.
    pub(crate) seconds: f64,
}

/// Plans drafts; an empty plan where they win nothing.
pub(crate) fn plan_drafts(all: &[DraftChance], ahead: StepAhead, draft: DraftCost) -> DraftPlan {
    let Some((step, row)) = ahead.cost.parts() else { return DraftPlan::default() };
    let mut order: Vec<usize> = (0..all.len()).filter(|at| all[*at].most > 0).collect();
    // Those whose drafts are likeliest first: a further one is worth less than those before it.
    order.sort_by(|one, other| all[*other].chance.total_cmp(&all[*one].chance));
    let alone = step + row * ahead.rows as f64;
    let longest = all.iter().map(|wish| wish.most).max().unwrap_or_default();
    let (mut best, mut plan) = (WORTH * ahead.sequences as f64 / alone, DraftPlan::default());
    for count in 1..=order.len() {
        let chosen = &order[..count];
        let behind: usize = chosen.iter().map(|at| all[*at].behind).sum();
        let reading = behind as f64 * draft.read / READ_FOR;
        let (mut tokens, mut rows, mut rounds) = (ahead.sequences as f64, 0_usize, 0.0);
        for round in 1..=longest {
            let writing: Vec<usize> = chosen.iter().copied().filter(|at| all[*at].most >= round).collect();
            tokens += writing.iter().map(|at| all[*at].chance.powi(round as i32)).sum::<f64>();
            rows += writing.len();
            rounds += draft.step.0 + draft.step.1 * writing.len() as f64;
            let seconds = rounds + row * rows as f64;
            let rate = tokens / (alone + reading + seconds);
            if rate > best {
                best = rate;
                let chosen = chosen.iter().map(|at| (*at, round.min(all[*at].most))).collect();
                plan = DraftPlan { chosen, seconds: seconds + behind as f64 * draft.read };
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(step: f64, row: f64, sequences: usize) -> StepAhead {
        let mut cost = RowCost::default();
        for turn in 0..200 {
            let rows = 1 + turn % 5;
            cost.stepped(rows, step + row * rows as f64);
        }
        StepAhead { rows: sequences, sequences, cost }
    }

    const SMALL: DraftCost = DraftCost { step: (0.003, 0.0005), read: 0.0005 };

    fn wish(chance: f64) -> DraftChance {
        DraftChance { most: 15, chance, behind: 1 }
    }

    #[test]
    fn en_8_a_draft_model_writes_as_much_as_pays() {
        let tokens = |chance, draft| {
            plan_drafts(&[wish(chance)], ahead(0.03, 0.002, 1), draft).chosen.first().map_or(0, |(_, tokens)| *tokens)
        };
        let (sure, doubtful) = (tokens(0.9, SMALL), tokens(0.5, SMALL));
        assert!(sure > 6 && (1..4).contains(&doubtful), "{sure} {doubtful}");
        assert_eq!(tokens(0.05, SMALL), 0, "guesses that are wrong are not bought");
        let slow = DraftCost { step: (0.02, 0.005), read: 0.01 };
        assert_eq!(tokens(0.5, slow), 0, "neither are those of a model that is as slow as the first");
        assert_eq!(plan_drafts(&[], ahead(0.03, 0.002, 1), SMALL), DraftPlan::default());
        assert_eq!(plan_drafts(&[DraftChance { most: 0, ..wish(0.9) }], ahead(0.03, 0.002, 1), SMALL).chosen, []);
        let unknown = StepAhead { rows: 1, sequences: 1, cost: RowCost::default() };
        assert_eq!(plan_drafts(&[wish(0.9)], unknown, SMALL), DraftPlan::default());
    }

    #[test]
    fn en_8_of_several_sequences_the_likely_ones_get_drafts() {
        let all = [wish(0.1), wish(0.9), DraftChance { most: 2, ..wish(0.8) }];
        let plan = plan_drafts(&all, ahead(0.03, 0.001, 3), SMALL);
        let chosen: Vec<usize> = plan.chosen.iter().map(|(at, _)| *at).collect();
        assert_eq!(chosen, [1, 2]);
        assert_eq!(plan.chosen[1].1, 2, "no longer than there is room");
        // A full batch whose rows cost much has none to spare.
        assert_eq!(plan_drafts(&[wish(0.6); 16], ahead(0.01, 0.01, 16), SMALL), DraftPlan::default());
    }
}
