//! Timers by name, with the moment when each is due. Their meaning belongs to the scheduler.

use std::collections::BTreeSet;
use std::hash::Hash;

use crate::Moment;
use crate::by_number::ByNumber;

/// A set of timers with at most one moment each; setting a timer again moves it. All operations are logarithmic.
/// Clearing a timer that is not set is the cheapest, since most events do that a few times.
#[derive(Debug)]
pub(crate) struct Timers<T> {
    due: BTreeSet<(Moment, T)>,
    /// Moments by timer, never iterated.
    set: ByNumber<T, Moment>,
}

impl<T: Copy + Ord + Hash> Timers<T> {
    pub(crate) fn new() -> Self {
        Self { due: BTreeSet::new(), set: ByNumber::default() }
    }

    pub(crate) fn set(&mut self, timer: T, at: Moment) {
        match self.set.insert(timer, at) {
            Some(before) if before == at => return,
            Some(before) => drop(self.due.remove(&(before, timer))),
            None => {}
        }
        self.due.insert((at, timer));
    }

    /// Like [`Self::set`], unless the timer is due earlier already.
    pub(crate) fn set_if_earlier(&mut self, timer: T, at: Moment) {
        if self.set.get(&timer).is_none_or(|before| at < *before) {
            self.set(timer, at);
        }
    }

    /// Like [`Self::set`], unless the timer is already set.
    pub(crate) fn set_if_unset(&mut self, timer: T, at: Moment) {
        if !self.set.contains_key(&timer) {
            self.set(timer, at);
        }
    }

    pub(crate) fn clear(&mut self, timer: T) {
        if let Some(before) = self.set.remove(&timer) {
            self.due.remove(&(before, timer));
        }
    }

    /// Removes and returns the earliest timer that is due at `now`.
    pub(crate) fn pop_due(&mut self, now: Moment) -> Option<T> {
        let &(at, timer) = self.due.first()?;
        if at > now {
            return None;
        }
        self.clear(timer);
        Some(timer)
    }

    pub(crate) fn next(&self) -> Option<Moment> {
        self.due.first().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_timer_set_again_moves() {
        let at = |s| Moment::at(Duration::from_secs(s));
        let mut timers = Timers::new();
        timers.set('a', at(5));
        timers.set('b', at(3));
        timers.set('a', at(1));
        timers.set_if_unset('b', at(9));
        timers.set_if_earlier('b', at(4));
        assert_eq!(timers.next(), Some(at(1)));
        assert_eq!(timers.pop_due(at(2)), Some('a'));
        assert_eq!(timers.pop_due(at(2)), None);
        timers.clear('b');
        assert_eq!(timers.next(), None);
    }
}
