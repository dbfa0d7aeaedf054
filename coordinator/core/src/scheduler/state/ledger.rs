//! Whether memory can be leased now, and since when it could not.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{LedgerState, Moment};

/// The number of outages whose times are kept; older ones are merged into one.
pub(in crate::scheduler) const OUTAGES_KEPT: usize = 64;

/// The known state of the ledger.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct KnownLedger {
    pub(in crate::scheduler) state: LedgerState,
    /// The moment at which the state began.
    pub(in crate::scheduler) since: Moment,
    /// Earlier outages with too little time between them to load a model, oldest first. A short recovery of the store
    /// therefore does not restart the patience of waiting requests.
    pub(in crate::scheduler) outages: VecDeque<(Moment, Moment)>,
}

impl KnownLedger {
    /// Sets the new state; returns whether the ledger was open before.
    pub(in crate::scheduler) fn change(&mut self, state: LedgerState, now: Moment, patience: Duration) -> bool {
        let away = |state: &LedgerState| matches!(state, LedgerState::Away { .. });
        let since = match (away(&self.state), away(&state)) {
            // A change of the reason does not begin a new outage.
            (true, true) => self.since,
            (true, false) => {
                self.outages.push_back((self.since, now));
                now
            }
            (false, true) => {
                if self.outages.back().is_some_and(|(_, end)| now.since(*end) >= patience) {
                    self.outages.clear();
                }
                now
            }
            (false, false) => now,
        };
        if self.outages.len() > OUTAGES_KEPT
            && let (Some(oldest), Some(next)) = (self.outages.pop_front(), self.outages.front_mut())
        {
            next.0 = oldest.0;
        }
        let was_open = self.state == LedgerState::Open;
        (self.state, self.since) = (state, since);
        was_open
    }

    /// The time for which a request that arrived at `arrival` has waited for the ledger. It counts the outages, or
    /// the window after them, whose end is known.
    pub(in crate::scheduler) fn waited(&self, arrival: Moment, now: Moment) -> Duration {
        let current = (self.since, now);
        let within = |(begun, end): (Moment, Moment)| end.since(begun.max(arrival));
        match self.state {
            LedgerState::Open => Duration::ZERO,
            LedgerState::Recovering { .. } => within(current),
            LedgerState::Away { .. } => {
                self.outages.iter().copied().chain([current]).map(within).fold(Duration::ZERO, Duration::saturating_add)
            }
        }
    }
}
