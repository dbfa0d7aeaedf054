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
    answers: VecDeque<MeasuredAnswer>,
    /// The mean time of an answer; newer ones weigh more.
    mean_answer: Duration,
}

/// The time of an answer, and the amount of its work where that was known.
#[derive(Clone, Copy, Debug)]
struct MeasuredAnswer {
    took: Duration,
    work: Option<u64>,
}

impl MeasuredAnswer {
    /// The time of one unit of work, in seconds.
    fn rate(&self) -> Option<f64> {
        self.work.filter(|work| *work > 0).map(|work| self.took.as_secs_f64() / work as f64)
    }
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

    pub(crate) fn answered_in(&mut self, took: Duration, work: Option<u64>) {
        remember(&mut self.answers, ANSWERS, MeasuredAnswer { took, work });
        self.mean_answer =
            if self.mean_answer.is_zero() { took } else { self.mean_answer.saturating_mul(7).saturating_add(took) / 8 };
    }

    /// Zero until an answer was measured.
    pub(crate) fn mean_answer(&self) -> Duration {
        self.mean_answer
    }

    /// The median of the last loads; `None` before the first.
    pub(crate) fn expected_load(&self) -> Option<Duration> {
        quantile(self.loads.iter().copied(), 50)
    }

    /// The 95th percentile of the last answers; `None` before there are enough. Of a request whose work is known it is
    /// that of the times of one unit, where enough of them were measured.
    pub(crate) fn expected_answer(&self, work: Option<u64>) -> Option<Duration> {
        if let Some(work) = work {
            let mut rates: Vec<f64> = self.answers.iter().filter_map(MeasuredAnswer::rate).collect();
            if rates.len() >= ENOUGH_ANSWERS {
                rates.sort_unstable_by(f64::total_cmp);
                let rate = rates.get(rank(rates.len(), 95))?;
                return Duration::try_from_secs_f64(rate * work as f64).ok();
            }
        }
        if self.answers.len() < ENOUGH_ANSWERS {
            None
        } else {
            quantile(self.answers.iter().map(|answer| answer.took), 95)
        }
    }

    /// The estimate for a request of this work whose model has been loading for `loading_for`, or is not loaded at all.
    /// `None`: no load was ever measured.
    pub(crate) fn cold_start(&self, loading_for: Option<Duration>, work: Option<u64>) -> Option<Estimate> {
        let load = self.expected_load()?.saturating_sub(loading_for.unwrap_or_default());
        Some(Estimate { load, answer: self.expected_answer(work) })
    }
}

fn remember<T>(ring: &mut VecDeque<T>, most: usize, one: T) {
    if ring.len() == most {
        ring.pop_front();
    }
    ring.push_back(one);
}

/// The nearest-rank quantile.
fn quantile(samples: impl Iterator<Item = Duration>, percent: usize) -> Option<Duration> {
    let mut sorted: Vec<Duration> = samples.collect();
    sorted.sort_unstable();
    sorted.get(rank(sorted.len(), percent)).copied()
}

/// The place of a quantile among so many sorted samples.
fn rank(count: usize, percent: usize) -> usize {
    (count * percent).div_ceil(100).max(1) - 1
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
        assert_eq!(history.cold_start(None, None), None);
        for n in [30, 2, 3] {
            history.loaded_in(seconds(n));
        }
        assert_eq!(history.expected_load(), Some(seconds(3)));
        for n in 1..=100 {
            history.answered_in(seconds(n), None);
        }
        // The last 64 waits are 37 to 100, and the 61st of the 64 is 97.
        assert_eq!(history.expected_answer(None), Some(seconds(97)));
        let estimate = history.cold_start(Some(seconds(2)), None).unwrap();
        assert_eq!(estimate.load, seconds(1));
        assert_eq!(estimate.total(), seconds(98));
    }

    #[test]
    fn rc_13_few_answers_say_nothing() {
        let mut history = History::default();
        history.loaded_in(seconds(3));
        for _ in 0..ENOUGH_ANSWERS - 1 {
            history.answered_in(seconds(1_000), None);
        }
        assert_eq!(history.cold_start(None, None).unwrap().total(), seconds(3));
        history.answered_in(seconds(1_000), None);
        assert_eq!(history.cold_start(None, None).unwrap().total(), seconds(1_003));
        assert_eq!(history.cold_start(Some(seconds(9)), None).unwrap().load, Duration::ZERO);
    }

    #[test]
    fn rc_13_an_answer_of_known_work_is_expected_by_the_time_of_its_units() {
        let mut history = History::default();
        for _ in 0..ENOUGH_ANSWERS - 1 {
            history.answered_in(seconds(10), Some(1_000));
        }
        assert_eq!(history.expected_answer(Some(4_000)), None);
        history.answered_in(seconds(4), None);
        assert_eq!(history.expected_answer(Some(4_000)), Some(seconds(10)), "too few with known work");
        history.answered_in(seconds(40), Some(2_000));
        // The slow one counts: 20 ms a unit.
        assert_eq!(history.expected_answer(Some(4_000)), Some(seconds(80)));
        assert_eq!(history.expected_answer(None), Some(seconds(40)));
        assert_eq!(history.expected_answer(Some(u64::MAX)).map(|time| time.as_secs() > 1 << 50), Some(true));
        history.answered_in(seconds(1), Some(0));
        assert_eq!(history.expected_answer(Some(1)), Some(Duration::from_millis(20)));
    }
}
