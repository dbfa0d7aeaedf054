//! A histogram of times with a fixed size, from which percentiles are read.

use std::time::Duration;

/// The ratio of a class's bounds. A percentile is the middle of its class, and is wrong by 5 % at most.
const RATIO: f64 = 1.1;
/// The lower bound of the second class; all shorter times are in the first.
const SHORTEST: f64 = 1e-4;
/// The number of classes. The last holds all times from about 17 minutes on.
const CLASSES: usize = 170;

/// The counts of times by class.
#[derive(Clone, Debug)]
pub(super) struct Latencies {
    counts: Box<[u32; CLASSES]>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counts: Box::new([0; CLASSES]) }
    }
}

impl Latencies {
    pub(super) fn add(&mut self, time: Duration) {
        let class = ((time.as_secs_f64().max(SHORTEST) / SHORTEST).ln() / RATIO.ln()).floor();
        // A float is cast to the nearest integer in range.
        let count = &mut self.counts[(class as usize).min(CLASSES - 1)];
        *count = count.saturating_add(1);
    }

    /// The time in seconds below which this share of the times is; `None` without times.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        let all: u64 = self.counts.iter().map(|&count| u64::from(count)).sum();
        let rank = ((all as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        let class = self.counts.iter().position(|&count| {
            below += u64::from(count);
            below >= rank
        })?;
        let exponent = i32::try_from(class).ok()?;
        Some(SHORTEST * RATIO.powi(exponent) * RATIO.sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_2_percentiles_are_right_within_5_percent() {
        let mut times = Latencies::default();
        assert_eq!(times.quantile(0.5), None);
        for millis in 1..=1_000 {
            times.add(Duration::from_millis(millis));
        }
        for (share, expected) in [(0.5, 0.5), (0.95, 0.95), (0.01, 0.01), (1.0, 1.0)] {
            let got = times.quantile(share).unwrap();
            assert!((got / expected - 1.0).abs() < 0.06, "{share}: {got}");
        }
    }

    #[test]
    fn op_2_times_out_of_range_are_in_the_first_and_the_last_class() {
        let mut times = Latencies::default();
        times.add(Duration::ZERO);
        assert!(times.quantile(0.5).unwrap() < 2e-4);
        let mut times = Latencies::default();
        times.add(Duration::MAX);
        assert!(times.quantile(0.5).unwrap() > 900.0);
    }
}
