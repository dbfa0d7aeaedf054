//! The account of a draft model: what its steps have cost, and what its right tokens have saved. What it may lose is
//! bounded, whatever its guesses are worth. Pure.

/// The share of all time that a draft model may lose.
const SHARE: f64 = 0.015;
/// Steps of the first model that it may lose before it has saved anything.
const FIRST_STEPS: f64 = 4.0;
/// Steps that it may have saved at the most: what it saved long ago pays for nothing now.
const MOST_STEPS: f64 = 32.0;

/// The seconds that a draft model may still spend; none before a step of the first model was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DraftBalance(Option<f64>);

impl DraftBalance {
    /// Counts a step of the engine, which took so long; a step of one row takes `step` seconds.
    pub(crate) fn stepped(&mut self, took: f64, step: f64) {
        let before = self.0.unwrap_or(FIRST_STEPS * step);
        self.0 = Some((before + SHARE * took).min(MOST_STEPS * step));
    }

    /// Counts seconds that were spent on drafts.
    pub(crate) fn spent(&mut self, seconds: f64) {
        self.0 = self.0.map(|balance| balance - seconds);
    }

    /// Counts seconds that drafts have saved.
    pub(crate) fn saved(&mut self, seconds: f64) {
        self.0 = self.0.map(|balance| balance + seconds);
    }

    /// Whether so many seconds may be spent.
    pub(crate) fn allows(self, seconds: f64) -> bool {
        self.0.is_some_and(|balance| balance >= seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn en_8_a_draft_model_that_is_never_right_loses_a_bounded_share() {
        let (mut balance, mut spent, mut all) = (DraftBalance::default(), 0.0, 0.0);
        assert!(!balance.allows(0.0), "nothing is known before the first step");
        for _ in 0..10_000 {
            balance.stepped(0.03, 0.03);
            all += 0.03;
            if balance.allows(0.005) {
                balance.spent(0.005);
                spent += 0.005;
            }
        }
        assert!(spent <= SHARE * all + FIRST_STEPS * 0.03, "{spent} of {all}");
        assert!(spent > 0.9 * SHARE * all, "it is tried again: {spent} of {all}");
    }

    #[test]
    fn en_8_a_draft_model_that_saves_time_goes_on_and_its_credit_is_bounded() {
        let mut balance = DraftBalance::default();
        for _ in 0..1_000 {
            balance.stepped(0.03, 0.03);
            assert!(balance.allows(0.01));
            balance.spent(0.01);
            balance.saved(0.05);
        }
        let mut lost = 0.0;
        while balance.allows(0.01) {
            balance.spent(0.01);
            lost += 0.01;
        }
        assert!(lost < (MOST_STEPS + 3.0) * 0.03, "{lost}");
    }
}
