//! Bugs that a protocol of this kind can have, each put in by a wrapper around the real rules, the store or a client.
//! The rules themselves contain no switch for bugs.

use std::time::Duration;

use model_boss_lease::{
    LeaseId, LeaseState, Ledger, Op, Outcome, Process, StoreTime, Token, after_loss, apply, read_from,
};
use model_boss_protocol::{ByteCount, Priority};

use super::store::Loaded;
use super::{NAMESPACE, SECOND, terms};

/// A seeded bug, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Bug {
    None,
    ClientClock,
    SwapWithAnOldClock,
    CounterForEtag,
    RenewRecreates,
    ExpiryFrees,
    RevocationFrees,
    OneDevicePerCall,
    NoIdempotency,
    ReleaseWithoutToken,
    NoWindow,
    FlushUnnoticed,
    NoGate,
    DeadWhateverItsStart,
    DeadFromElsewhere,
    ChildrenAreForeign,
    LimboNotCounted,
    NominationsIgnored,
    NominationCycle,
    WaitersStay,
    UnknownIsZero,
    FenceRestarts,
    TwoLedgers,
    OldSamplesCount,
    OveruseNotCounted,
    FrozenClock,
}

impl Bug {
    /// Applies an operation to the ledger that a holder read: the rules, with this bug in or around them.
    pub(super) fn decide(self, loaded: &Loaded, marker: bool, skew: i64, op: &Op) -> (Ledger, Outcome) {
        let mut ledger = self.read(loaded, marker);
        let (now, op) = self.before(&mut ledger, loaded.at, skew, op.clone());
        let hidden = self.hide(&mut ledger, &op);
        let outcome = apply(&mut ledger, now, op);
        for (id, lease) in hidden.leases {
            ledger.leases.insert(id, lease);
        }
        for (id, waiter) in hidden.waiters {
            ledger.waiters.insert(id, waiter);
        }
        let outcome = self.after(&mut ledger, outcome);
        (ledger, outcome)
    }

    fn read(self, loaded: &Loaded, marker: bool) -> Ledger {
        let mut ledger = match &loaded.document {
            Some(ledger) => ledger.clone(),
            None => {
                let mut ledger = Ledger::new("boot", Token(0), terms());
                if marker && !matches!(self, Self::FlushUnnoticed | Self::NoWindow) {
                    after_loss(&mut ledger, loaded.at);
                }
                ledger
            }
        };
        read_from(&mut ledger, loaded.at, &loaded.run.to_string());
        if self == Self::NoWindow {
            ledger.recovering_until = None;
        }
        ledger
    }

    /// Changes the operation or its time.
    fn before(self, ledger: &mut Ledger, at: StoreTime, skew: i64, mut op: Op) -> (StoreTime, Op) {
        let mut now = at;
        match (self, &mut op) {
            (Self::ClientClock, _) => now = StoreTime(at.0.saturating_add_signed(skew * SECOND.cast_signed())),
            (Self::FrozenClock, _) => now = at.max(ledger.last_time),
            (Self::RenewRecreates, Op::Reassert(record)) if record.pids.is_empty() => {
                record.pids = vec![record.owner.process.clone()];
                ledger.recovering_until = Some(at.after(Duration::from_secs(1)));
            }
            (Self::ReleaseWithoutToken, Op::Release { lease, token, .. }) => {
                *token = ledger.leases.get(lease).map_or(*token, |lease| lease.token);
            }
            (Self::DeadWhateverItsStart, Op::ConfirmDead { lease, gone, .. }) => {
                let living: Vec<Process> =
                    ledger.leases.get(lease).map(|l| l.family().cloned().collect()).unwrap_or_default();
                let same: Vec<_> = living.into_iter().filter(|p| gone.iter().any(|dead| dead.pid == p.pid)).collect();
                gone.extend(same);
            }
            (Self::DeadFromElsewhere, Op::ConfirmDead { seen_from, .. }) => *seen_from = vec![NAMESPACE.to_owned()],
            (Self::ChildrenAreForeign, Op::Observe { processes, .. }) => {
                processes.iter_mut().for_each(|usage| usage.lineage.truncate(1));
            }
            (Self::UnknownIsZero, Op::Observe { used, .. }) => *used = Some(used.unwrap_or_default()),
            (Self::OldSamplesCount, Op::Observe { sampled_at, .. }) => *sampled_at = at,
            (Self::WaitersStay, _) => {
                ledger.waiters.values_mut().for_each(|waiter| waiter.deadline = at.after(Duration::from_secs(60)));
            }
            _ => {}
        }
        (now, op)
    }

    /// Hides the entries that a buggy acquire overlooks; they are put back afterwards.
    fn hide(self, ledger: &mut Ledger, op: &Op) -> Hidden {
        let mut hidden = Hidden::default();
        let Op::Acquire(request) = op else { return hidden };
        let leases: Vec<_> = ledger.leases.iter().map(|(id, lease)| (id.clone(), lease.clone())).collect();
        for (id, lease) in leases {
            let elsewhere = lease.owner.process.pid % 2 != request.owner.process.pid % 2;
            let unseen = match self {
                Self::LimboNotCounted => lease.state == LeaseState::Limbo,
                Self::TwoLedgers => elsewhere,
                _ => false,
            };
            if unseen {
                ledger.leases.remove(&id);
                hidden.leases.push((id, lease));
            }
        }
        let waiters: Vec<_> = ledger.waiters.iter().map(|(id, waiter)| (id.clone(), waiter.clone())).collect();
        for (id, waiter) in waiters.into_iter().filter(|(id, _)| *id != request.request_id) {
            match self {
                Self::NominationsIgnored => drop(ledger.waiters.remove(&id)),
                // For each waiter, all others count as earlier.
                Self::NominationCycle => {
                    let first = ledger.waiters.get_mut(&id);
                    first.into_iter().for_each(|waiter| waiter.priority = Priority::HIGHEST);
                }
                _ => continue,
            }
            hidden.waiters.push((id, waiter));
        }
        hidden
    }

    /// Changes the outcome of an operation, if the bug is about that.
    fn after(self, ledger: &mut Ledger, mut outcome: Outcome) -> Outcome {
        match (self, &mut outcome) {
            (Self::ExpiryFrees, _) => ledger.leases.retain(|_, lease| lease.state != LeaseState::Limbo),
            (Self::RevocationFrees, _) => {
                let revoked = ledger.leases.values_mut().filter(|lease| lease.state == LeaseState::Revoking);
                for part in revoked.flat_map(|lease| &mut lease.parts) {
                    (part.bytes, part.measured) = (ByteCount::ZERO, None);
                }
            }
            (Self::OveruseNotCounted, _) => {
                for part in ledger.leases.values_mut().flat_map(|lease| &mut lease.parts) {
                    part.measured = None;
                }
            }
            (Self::FenceRestarts, Outcome::Granted(grant)) => {
                if let Some(mut lease) = ledger.leases.remove(&grant.lease) {
                    let number = u64::try_from(ledger.leases.len() + ledger.done.len()).unwrap_or(0) + 1;
                    lease.token = Token(number);
                    (grant.lease, grant.token) = (LeaseId::from(format!("lease-{number}").as_str()), Token(number));
                    ledger.fence = Token(number);
                    ledger.leases.insert(grant.lease.clone(), lease);
                }
            }
            _ => {}
        }
        outcome
    }
}

#[derive(Default)]
struct Hidden {
    leases: Vec<(LeaseId, model_boss_lease::Lease)>,
    waiters: Vec<(String, model_boss_lease::Waiter)>,
}
