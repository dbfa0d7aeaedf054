//! Recent memory use of programs without a lease on a device, by which a short peak is distinguished from lasting
//! use.

use std::collections::VecDeque;
use std::time::Duration;

use model_boss_protocol::ByteCount;

use crate::Moment;

/// The use since each change, oldest first. Changes older than the longest requested window are dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForeignUse {
    changes: VecDeque<(Moment, ByteCount)>,
}

impl ForeignUse {
    /// Records a probe's figure. `None` is unknown, and makes earlier figures worthless. `window` is the longest window
    /// of later calls.
    pub(crate) fn saw(&mut self, now: Moment, bytes: Option<ByteCount>, window: Duration) {
        let Some(bytes) = bytes else { return self.changes.clear() };
        if self.changes.back().is_some_and(|&(_, last)| last == bytes) {
            return;
        }
        // A use that lasted for no time is dropped.
        while self.changes.back().is_some_and(|&(since, _)| since == now) {
            self.changes.pop_back();
        }
        // A use that began before the window counts if it lasted into the window, up to the next change.
        while self.changes.get(1).is_some_and(|&(until, _)| now.since(until) >= window) {
            self.changes.pop_front();
        }
        self.changes.push_back((now, bytes));
    }

    /// The use that lasted: the least at any moment of the window before `now`. It is `None` while the use is unknown.
    pub(crate) fn least(&self, now: Moment, window: Duration) -> Option<ByteCount> {
        self.within(now, window).min()
    }

    /// The greatest use at any moment of the window before `now`.
    pub(crate) fn most(&self, now: Moment, window: Duration) -> Option<ByteCount> {
        self.within(now, window).max()
    }

    fn within(&self, now: Moment, window: Duration) -> impl Iterator<Item = ByteCount> {
        let ends = self.changes.iter().skip(1).map(|&(until, _)| Some(until)).chain([None]);
        let reaches = move |end: Option<Moment>| end.is_none_or(|end| now.since(end) < window);
        self.changes.iter().zip(ends).filter(move |(_, end)| reaches(*end)).map(|(&(_, bytes), _)| bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::s;

    const WINDOW: Duration = Duration::from_secs(30);

    fn seen(changes: &[(u64, u64)]) -> ForeignUse {
        let mut seen = ForeignUse::default();
        for &(at, gib) in changes {
            seen.saw(s(at), Some(ByteCount::gib(gib)), WINDOW);
        }
        seen
    }

    #[test]
    fn a_peak_does_not_count_before_it_has_lasted() {
        let seen = seen(&[(0, 2), (100, 9)]);
        assert_eq!(seen.least(s(129), WINDOW), Some(ByteCount::gib(2)));
        assert_eq!(seen.least(s(130), WINDOW), Some(ByteCount::gib(9)));
        assert_eq!(seen.most(s(101), WINDOW), Some(ByteCount::gib(9)));
    }

    #[test]
    fn a_peak_that_went_away_counts_as_the_most_for_as_long() {
        let seen = seen(&[(0, 2), (100, 9), (110, 1)]);
        assert_eq!(seen.most(s(139), WINDOW), Some(ByteCount::gib(9)));
        assert_eq!(seen.most(s(140), WINDOW), Some(ByteCount::gib(1)));
        assert_eq!(seen.least(s(139), WINDOW), Some(ByteCount::gib(1)));
    }

    #[test]
    fn unknown_is_unknown_and_forgets() {
        let mut seen = seen(&[(0, 2)]);
        seen.saw(s(1), None, WINDOW);
        assert_eq!((seen.least(s(1), WINDOW), seen.most(s(1), WINDOW)), (None, None));
        seen.saw(s(2), Some(ByteCount::gib(5)), WINDOW);
        assert_eq!(seen.least(s(2), WINDOW), Some(ByteCount::gib(5)));
    }

    proptest! {
        /// Compares with a calculation over every second of the window.
        #[test]
        fn least_and_most_are_those_of_every_moment(steps in prop::collection::vec((1..20_u64, 0..9_u64), 1..60)) {
            let (mut now, mut each, mut seen) = (0, Vec::new(), ForeignUse::default());
            for (span, gib) in steps {
                seen.saw(s(now), Some(ByteCount::gib(gib)), WINDOW);
                each.extend((0..span).map(|_| ByteCount::gib(gib)));
                now += span;
                // The second in which the window begins is partly inside it.
                let last = each[each.len().saturating_sub(31)..].iter().copied();
                let at = s(now - 1);
                prop_assert_eq!(seen.least(at, WINDOW), last.clone().min());
                prop_assert_eq!(seen.most(at, WINDOW), last.max());
            }
            prop_assert!(seen.changes.len() <= 32);
        }
    }
}
