//! What programs without a lease used of a device in the last while, so that a short peak is told from what stays.

use std::collections::VecDeque;
use std::time::Duration;

use model_boss_protocol::ByteCount;

use crate::Moment;

/// The use since each change, oldest first. What lies further back than anybody looks is forgotten.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForeignUse {
    changes: VecDeque<(Moment, ByteCount)>,
}

impl ForeignUse {
    /// A probe saw so much; `None` is unknown, and what was before says nothing any more. `window` is how far back anybody
    /// will look.
    pub(crate) fn saw(&mut self, now: Moment, bytes: Option<ByteCount>, window: Duration) {
        let Some(bytes) = bytes else { return self.changes.clear() };
        if self.changes.back().is_some_and(|&(_, last)| last == bytes) {
            return;
        }
        // What was for no time at all was not.
        while self.changes.back().is_some_and(|&(since, _)| since == now) {
            self.changes.pop_back();
        }
        // What began before the window may reach into it: up to the next change.
        while self.changes.get(1).is_some_and(|&(until, _)| now.since(until) >= window) {
            self.changes.pop_front();
        }
        self.changes.push_back((now, bytes));
    }

    /// The least of any moment of the window before `now`: what others have used for so long. `None` while unknown.
    pub(crate) fn least(&self, now: Moment, window: Duration) -> Option<ByteCount> {
        self.within(now, window).min()
    }

    /// The most of any moment of the window.
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
        /// Against every second of the window, one by one.
        #[test]
        fn least_and_most_are_those_of_every_moment(steps in prop::collection::vec((1..20_u64, 0..9_u64), 1..60)) {
            let (mut now, mut each, mut seen) = (0, Vec::new(), ForeignUse::default());
            for (span, gib) in steps {
                seen.saw(s(now), Some(ByteCount::gib(gib)), WINDOW);
                each.extend((0..span).map(|_| ByteCount::gib(gib)));
                now += span;
                // Of the second in which the window begins, a part lies in it.
                let last = each[each.len().saturating_sub(31)..].iter().copied();
                let at = s(now - 1);
                prop_assert_eq!(seen.least(at, WINDOW), last.clone().min());
                prop_assert_eq!(seen.most(at, WINDOW), last.max());
            }
            prop_assert!(seen.changes.len() <= 32);
        }
    }
}
