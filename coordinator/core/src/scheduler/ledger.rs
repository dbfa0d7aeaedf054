//! Behaviour while the ledger's store cannot be reached (fail static). Loaded models serve on, no model is loaded,
//! and none is evicted for memory. A request for a cold model is refused when its patience is over.

use std::time::Duration;

use super::state::{LEAST_WAIT, Life, Scheduler, Timer};
use crate::catalog::ModelIndex;
use crate::queue::{LoadState, Waiting};
use crate::refusal::{Refusal, RefusalReason};
use crate::{LedgerState, Moment, Verdict, WaitReason};

/// The pause before the next attempt to reach the store.
const TRY_AGAIN: Duration = Duration::from_secs(5);

impl Scheduler {
    pub(super) fn ledger_changed(&mut self, state: LedgerState) {
        let was_open = self.ledger.change(state, self.now, self.settings.ledger_patience);
        if self.is_ledger_open() {
            self.timers.clear(Timer::Patience);
            self.accounts_changed = true;
            self.memory_changed();
            return;
        }
        if was_open {
            // No load can begin now, so models that drain for one keep serving.
            let claimants: Vec<ModelIndex> = self.claims.keys().copied().collect();
            claimants.into_iter().for_each(|model| self.drop_claim(model));
            self.call_off_second_try();
        }
        self.watch_patience();
    }

    /// Whether memory can be leased now.
    pub(super) fn is_ledger_open(&self) -> bool {
        self.ledger.state == LedgerState::Open
    }

    /// The wait reason of a load while the ledger cannot be reached.
    pub(super) fn why_no_ledger(&self) -> Option<WaitReason> {
        match &self.ledger.state {
            LedgerState::Open => None,
            LedgerState::Recovering { left } => {
                Some(WaitReason::LedgerRecovering { retry_in: (self.ledger.since + *left).since(self.now) })
            }
            LedgerState::Away { detail } => Some(WaitReason::LedgerAway { detail: detail.clone() }),
        }
    }

    /// Starts the timer of patience: a request waits for a cold model.
    pub(super) fn begin_patience(&mut self) {
        self.timers.set_if_unset(Timer::Patience, self.now + self.settings.ledger_patience);
    }

    /// Sets the timer to the moment when the first waiting request runs out of patience.
    fn watch_patience(&mut self) {
        if self.is_ledger_open() || self.life != Life::Serving {
            return;
        }
        let cold = self.queue.all().filter(|waiting| self.is_cold(waiting.model));
        match cold.map(|waiting| self.patience_left(waiting.arrival.at)).min() {
            Some(left) => self.timers.set(Timer::Patience, self.now + left.max(LEAST_WAIT)),
            None => self.timers.clear(Timer::Patience),
        }
    }

    /// Refuses the requests that waited too long for an unreachable store.
    pub(super) fn end_patience(&mut self) {
        if self.is_ledger_open() {
            return;
        }
        let over = |waiting: &&Waiting| self.is_cold(waiting.model) && self.patience_left(waiting.arrival.at).is_zero();
        let mut over: Vec<_> = self.queue.all().filter(over).map(|waiting| (waiting.arrival, waiting.id)).collect();
        over.sort_unstable();
        for (_, request) in over {
            if let Some(Waiting { model, .. }) = self.take_waiting(request) {
                let error = self.no_ledger(model);
                let name = self.catalog[model].id();
                self.decisions.record(self.now, Verdict::Refuse, name, Some(request), vec![error.message.clone()]);
                self.refuse(request, error);
            }
        }
        self.watch_patience();
    }

    /// The remaining time that a request of this arrival waits for the ledger.
    fn patience_left(&self, arrival: Moment) -> Duration {
        self.settings.ledger_patience.saturating_sub(self.ledger.waited(arrival, self.now))
    }

    fn is_cold(&self, model: ModelIndex) -> bool {
        self.queue.residency(model) == LoadState::Absent
    }

    /// The error of a request that cannot wait for the ledger any longer.
    pub(super) fn no_ledger(&self, model: ModelIndex) -> Refusal {
        let name = self.catalog[model].id();
        let (code, why, again) = match &self.ledger.state {
            LedgerState::Away { detail } => (RefusalReason::LedgerAway, detail.as_str(), TRY_AGAIN),
            LedgerState::Recovering { left } => {
                let left = (self.ledger.since + *left).since(self.now);
                (RefusalReason::LedgerRecovering, "the lease store may have lost records", left)
            }
            LedgerState::Open => (RefusalReason::LedgerAway, "it is open again", Duration::ZERO),
        };
        let message = format!("model '{name}' cannot be loaded now, no memory can be leased: {why}");
        Refusal::new(code, message).retry_after(again)
    }
}
