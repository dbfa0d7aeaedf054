//! The time of a step by its rows, and how many rows of drafts are worth theirs. Pure; knows seconds only.

/// The part of the last step in [`RowCost`].
const LAST_STEP: f64 = 0.1;
/// The part of a step's time that one row takes, before steps of several sizes were seen: a lone row is bound by the
/// memory, and each further one takes a quarter of its time.
const FIRST_SLOPE: f64 = 0.25;
/// The variance of rows that the first slope counts for.
const FIRST_VARIANCE: f64 = 0.05;

/// The time of a step by its rows, from those before: a part for the step, and a part for each row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowCost {
    means: Option<Means>,
}

#[derive(Clone, Copy, Debug)]
struct Means {
    rows: f64,
    seconds: f64,
    variance: f64,
    covariance: f64,
}

impl RowCost {
    /// Counts a step that evaluated no prompts.
    pub(crate) fn stepped(&mut self, rows: usize, seconds: f64) {
        let rows = rows as f64;
        let Some(means) = &mut self.means else {
            self.means = Some(Means { rows, seconds, variance: 0.0, covariance: 0.0 });
            return;
        };
        let (of_rows, of_seconds) = (rows - means.rows, seconds - means.seconds);
        means.rows += LAST_STEP * of_rows;
        means.seconds += LAST_STEP * of_seconds;
        means.variance = (1.0 - LAST_STEP) * (means.variance + LAST_STEP * of_rows * of_rows);
        means.covariance = (1.0 - LAST_STEP) * (means.covariance + LAST_STEP * of_rows * of_seconds);
    }

    /// The seconds of a step without rows, and of each row; none before the first step.
    pub(crate) fn parts(self) -> Option<(f64, f64)> {
        let means = self.means?;
        let expected = FIRST_SLOPE * means.seconds / (1.0 - FIRST_SLOPE + FIRST_SLOPE * means.rows);
        let slope = (means.covariance + expected * FIRST_VARIANCE) / (means.variance + FIRST_VARIANCE);
        let slope = slope.clamp(1e-3 * means.seconds / means.rows, means.seconds / means.rows);
        Some((means.seconds - slope * means.rows, slope))
    }

    /// How many tokens of each draft are evaluated, so that a second gives the most tokens. A draft has the chances
    /// that its tokens come, each with all before it. Beside them the step has `rows` rows, those of `sequences`
    /// sequences.
    pub(crate) fn shares(self, drafts: &[Vec<f64>], sequences: usize, rows: usize) -> Vec<usize> {
        let mut shares = vec![0; drafts.len()];
        let Some((step, row)) = self.parts() else { return shares };
        let mut next: Vec<(f64, usize)> = drafts
            .iter()
            .enumerate()
            .flat_map(|(index, chances)| chances.iter().map(move |chance| (*chance, index)))
            .collect();
        // The chance of a later token of the same draft is smaller.
        next.sort_by(|one, other| other.0.total_cmp(&one.0));
        let (mut tokens, mut seconds) = (sequences as f64, step + row * rows as f64);
        for (chance, index) in next {
            if chance * seconds <= row * tokens {
                break;
            }
            (tokens, seconds) = (tokens + chance, seconds + row);
            shares[index] += 1;
        }
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::super::draft::Draft;
    use super::*;

    /// The chances of drafts, by their lengths and the chance of each token.
    fn chances<const N: usize>(drafts: [(usize, f64); N]) -> Vec<Vec<f64>> {
        drafts.map(|(most, chance)| Draft::of_chance(vec![0; most], chance).chances).to_vec()
    }

    #[test]
    fn en_8_drafts_are_as_long_as_they_pay() {
        let cost = |step: f64, row: f64| {
            let mut cost = RowCost::default();
            for turn in 0..200 {
                let rows = 1 + turn % 5;
                cost.stepped(rows, step + row * rows as f64);
            }
            cost
        };
        assert_eq!(RowCost::default().shares(&chances([(15, 1.0)]), 1, 1), [0], "nothing is known yet");
        // Rows that cost next to nothing: a model that is streamed from a disk.
        assert_eq!(cost(1.0, 0.001).shares(&chances([(15, 0.8)]), 1, 1), [15]);
        // Rows that cost as much as steps: nothing is won by any draft.
        assert_eq!(cost(0.0, 1.0).shares(&chances([(15, 0.9), (15, 0.9)]), 2, 2), [0, 0]);
        let usual = cost(0.003, 0.001);
        let [sure] = usual.shares(&chances([(15, 0.95)]), 1, 1)[..] else { panic!() };
        let [doubtful] = usual.shares(&chances([(15, 0.4)]), 1, 1)[..] else { panic!() };
        assert!(sure > 5 && doubtful < 2, "{sure} {doubtful}");
        assert_eq!(usual.shares(&chances([(15, 0.2)]), 1, 1), [0], "what rarely comes is not tried");
        let of_eight = usual.shares(&chances([(15, 0.5); 8]), 8, 8);
        assert_eq!(of_eight, [0; 8], "a full batch has no rows to spare for doubtful ones");
        assert_eq!(usual.shares(&chances([(0, 0.9), (2, 0.9)]), 2, 2), [0, 2], "no longer than it is");
    }

    #[test]
    fn en_8_a_first_step_gives_an_estimate() {
        let mut cost = RowCost::default();
        cost.stepped(1, 0.004);
        let (step, row) = cost.parts().unwrap();
        assert!((step - 0.003).abs() < 1e-9 && (row - 0.001).abs() < 1e-9, "{step} {row}");
    }
}
