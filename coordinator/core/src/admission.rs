//! Admission by time: whether a request that needs a cold start can be answered before its deadline (RC-13). The module
//! is pure arithmetic on measured history.

use std::collections::VecDeque;
use std::time::Duration;

/// The number of answers remembered for each model.
const ANSWERS: usize = 64;

/// The number of loads remembered for each model.
const LOADS: usize = 8;

/// The fewest answers from which a time is estimated.
const ENOUGH_ANSWERS: usize = 5;

/// The durations of recent loads and answers of one model.
#[derive(Debug, Default)]
pub(crate) struct History {
    loads: VecDeque<Duration>,
    answers: VecDeque<Duration>,
    /// The mean time of an answer; newer ones weigh more.
    mean_answer: Duration,
}

/// The expected times of a cold start and an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Estimate {
    pub(crate) load: Duration,
    /// The 95th percentile; `None` with too few samples.
    pub(crate) answer: Option<Duration>,
}

impl Estimate {
    /// The sum, where an unknown answer time counts as zero: no request is refused for an unmeasured time.
    pub(crate) fn total(&self) -> Duration {
        self.load.saturating_add(self.answer.unwrap_or_default())
    }
}

impl History {
    pub(crate) fn loaded_in(&mut self, took: Duration) {
        remember(&mut self.loads, LOADS, took);
    }

    pub(crate) fn answered_in(&mut self, took: Duration) {
        remember(&mut self.answers, ANSWERS, took);
        self.mean_answer =
            if self.mean_answer.is_zero() { took } else { self.mean_answer.saturating_mul(7).saturating_add(took) / 8 };
    }

    /// Zero until an answer was measured.
    pub(crate) fn mean_answer(&self) -> Duration {
        self.mean_answer
    }

    /// The median of the last loads; `None` before the first.
    pub(crate) fn expected_load(&self) -> Option<Duration> {
        quantile(&self.loads, 50)
    }

    /// The 95th percentile of the last answers; `None` before there are enough.
    pub(crate) fn expected_answer(&self) -> Option<Duration> {
        if self.answers.len() < ENOUGH_ANSWERS { None } else { quantile(&self.answers, 95) }
    }

    /// The estimate for a request whose model has been loading for `loading_for`, or is not loaded at all. `None`: no
    /// load was ever measured.
    pub(crate) fn cold_start(&self, loading_for: Option<Duration>) -> Option<Estimate> {
        let load = self.expected_load()?.saturating_sub(loading_for.unwrap_or_default());
        Some(Estimate { load, answer: self.expected_answer() })
    }
}

fn remember(ring: &mut VecDeque<Duration>, most: usize, took: Duration) {
    if ring.len() == most {
        ring.pop_front();
    }
    ring.push_back(took);
}

/// The nearest-rank quantile.
fn quantile(samples: &VecDeque<Duration>, percent: usize) -> Option<Duration> {
    let mut sorted: Vec<Duration> = samples.iter().copied().collect();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn rc_13_the_median_load_and_the_slow_answers_count() {
        let mut history = History::default();
        assert_eq!(history.cold_start(None), None);
        for n in [30, 2, 3] {
            history.loaded_in(seconds(n));
        }
        assert_eq!(history.expected_load(), Some(seconds(3)));
        for n in 1..=100 {
            history.answered_in(seconds(n));
        }
        // The last 64 waits are 37 to 100, and the 61st of the 64 is 97.
        assert_eq!(history.expected_answer(), Some(seconds(97)));
        let estimate = history.cold_start(Some(seconds(2))).unwrap();
        assert_eq!(estimate.load, seconds(1));
        assert_eq!(estimate.total(), seconds(98));
    }

    #[test]
    fn rc_13_few_answers_say_nothing() {
        let mut history = History::default();
        history.loaded_in(seconds(3));
        for _ in 0..ENOUGH_ANSWERS - 1 {
            history.answered_in(seconds(1_000));
        }
        assert_eq!(history.cold_start(None).unwrap().total(), seconds(3));
        history.answered_in(seconds(1_000));
        assert_eq!(history.cold_start(None).unwrap().total(), seconds(1_003));
        assert_eq!(history.cold_start(Some(seconds(9))).unwrap().load, Duration::ZERO);
    }
}
