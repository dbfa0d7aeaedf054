//! Percentiles and spreads.

use serde::Serialize;

/// The middle of some measurements with the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct RateSpread {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl RateSpread {
    /// The spread of the finite numbers; `None` without any.
    pub(crate) fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let sorted = sorted(numbers);
        Some(Self { median: middle(&sorted)?, lowest: *sorted.first()?, highest: *sorted.last()? })
    }
}

/// The number that `share` of all are not above (nearest rank): of three numbers, the largest is at 0.95.
pub(crate) fn percentile(numbers: impl IntoIterator<Item = f64>, share: f64) -> Option<f64> {
    let sorted = sorted(numbers);
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank.min(sorted.len()).checked_sub(1)?).copied()
}

/// The median: of an even number of numbers, the middle between the two in the middle.
pub(crate) fn median(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    middle(&sorted(numbers))
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    Some(if sorted.len().is_multiple_of(2) { (sorted.get(half.checked_sub(1)?)? + upper) / 2.0 } else { upper })
}

fn sorted(numbers: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = numbers.into_iter().filter(|number| number.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_1_percentiles_are_numbers_that_were_measured() {
        let numbers = || (1..=100).map(f64::from);
        assert_eq!((percentile(numbers(), 0.5), percentile(numbers(), 0.95)), (Some(50.0), Some(95.0)));
        assert_eq!(percentile([3.0, 1.0, 2.0], 0.95), Some(3.0));
        assert_eq!((percentile([7.0], 0.5), percentile([], 0.5)), (Some(7.0), None));
    }

    #[test]
    fn op_1_a_spread_has_middle_and_ends() {
        assert_eq!(RateSpread::of([4.0, 1.0, 3.0, 2.0]), Some(RateSpread { median: 2.5, lowest: 1.0, highest: 4.0 }));
        assert_eq!(
            RateSpread::of([f64::NAN, 5.0, f64::INFINITY]),
            Some(RateSpread { median: 5.0, lowest: 5.0, highest: 5.0 })
        );
        assert_eq!(RateSpread::of([]), None);
        assert_eq!(median([5.0, 1.0, 3.0]), Some(3.0));
    }
}
