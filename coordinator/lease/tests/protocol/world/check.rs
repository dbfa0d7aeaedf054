//! The invariants, checked from outside: none of this uses the rules' own arithmetic.

use std::collections::BTreeMap;

use model_boss_lease::{Evidence, Lease, LeaseState, Ledger, Op, Outcome, Waiter, Want};

use super::client::Prepared;
use super::physics::FOREIGN;
use super::{CAPACITY, SECOND, World, device, terms};

/// An invariant that was broken, with the details.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Violation {
    pub(crate) invariant: &'static str,
    pub(crate) detail: String,
}

impl World {
    pub(super) fn break_with(&mut self, invariant: &'static str, detail: String) {
        self.violation.get_or_insert(Violation { invariant, detail });
    }

    /// I1 by the devices themselves: promised and used bytes never exceed the memory.
    pub(super) fn check_memory(&mut self) {
        for (number, foreign) in FOREIGN.into_iter().enumerate() {
            let taken: u64 = self.physics.workers.iter().map(|worker| worker.taken[number]).sum();
            if taken + foreign > CAPACITY {
                self.break_with("I1", format!("device {number} holds {taken} beside {foreign} foreign"));
            }
        }
    }

    pub(super) fn check_transition(&mut self, before: Option<&Ledger>, prepared: &Prepared) {
        let Prepared { op, ledger: after, outcome, .. } = prepared;
        let empty = BTreeMap::new();
        let leases = before.map_or(&empty, |before| &before.leases);
        for (id, lease) in leases.iter().filter(|(id, _)| !after.leases.contains_key(*id)) {
            // If the store lost an attachment, the promise is dropped once all processes in its record are gone. The
            // holder reports the lease again. If the lease was released while a worker was alive, the driver shows the
            // rest as foreign.
            let forgotten = |process| self.store.lost_something && !lease.owns(process);
            let living = |worker: &super::physics::Worker| worker.alive && worker.lease == *id;
            if self.physics.workers.iter().any(|worker| living(worker) && !forgotten(&worker.process)) {
                self.break_with("I6", format!("{id} left with {op:?} and its worker lives"));
            }
            let ended = matches!(op, Op::Release { evidence: Evidence::Gone, lease, .. } | Op::ConfirmDead { lease, .. } if lease == id);
            if !ended && !lease.pids.is_empty() {
                self.break_with("I6", format!("{id} left with {op:?}"));
            }
        }
        for (id, lease) in &after.leases {
            if self.physics.workers.iter().any(|worker| worker.alive && worker.lease == *id)
                && leases.get(id).is_some_and(|old| shrunk(old, lease))
                && !matches!(op, Op::Resize { .. } | Op::Observe { .. })
            {
                self.break_with("I6", format!("{id} counts for less after {op:?}"));
            }
        }
        let labels: Vec<&str> = after.leases.values().map(|lease| &*lease.owner.label).collect();
        if labels.iter().any(|label| labels.iter().filter(|other| *other == label).count() > 1) {
            self.break_with("I3", format!("a request has two leases: {labels:?}"));
        }
        if let Op::Release { lease, token, .. } = op
            && leases.get(lease).is_some_and(|held| held.token != *token)
            && *outcome != Outcome::Lost
        {
            self.break_with("I5", format!("a stale token did something to {lease}: {outcome:?}"));
        }
        if before.is_some_and(|before| after.fence < before.fence) {
            self.break_with("I2", format!("the fence fell to {:?}", after.fence));
        }
        let new: Vec<_> = after.leases.iter().filter(|(id, _)| !leases.contains_key(*id)).collect();
        for (id, lease) in new {
            match (op, outcome) {
                (Op::Acquire(request), Outcome::Granted(_)) => {
                    self.check_grant(before, after, lease, &request.want);
                }
                (Op::Reassert(_), Outcome::Reasserted { .. }) => {}
                _ => self.break_with("I6", format!("{id} came with {op:?} and {outcome:?}")),
            }
        }
        if let (Op::Resize { .. }, Outcome::Resized) = (op, outcome) {
            for (id, lease) in &after.leases {
                // A use beyond the lease's promise is included in the sample.
                let grew = |d: usize| {
                    let old = leases.get(id).map_or(0, |lease| promised_or_used(lease, d));
                    promised_or_used(lease, d).saturating_sub(old)
                };
                for number in 0..2 {
                    self.check_room(number, grew(number), "a growth");
                }
            }
        }
        self.check_victims(before, op, after);
    }

    fn check_grant(&mut self, before: Option<&Ledger>, after: &Ledger, lease: &Lease, want: &Want) {
        // The order of tokens across a loss of data is that of the clock, which must not have been set back as well.
        let rests_on_clock = self.store.was_set_back && self.store.lost_something;
        if lease.token <= self.last_token && !rests_on_clock {
            self.break_with("I2", format!("token {:?} came after {:?}", lease.token, self.last_token));
        }
        self.last_token = self.last_token.max(lease.token);
        let whole = self.clients.iter().any(|client| client.wants(&lease.owner.label, &lease.promised()));
        if !whole || Want::Parts(lease.promised()) != *want {
            self.break_with("I4", format!("only {:?} of a request was granted", lease.promised()));
        }
        for number in 0..2 {
            self.check_room(number, promised(lease, number), "a grant");
        }
        if let Some(before) = before {
            self.check_order(before, after, lease);
        }
    }

    /// Checks that the newest observation allowed a grant (I1). It must be recent and newer than the last change.
    fn check_room(&mut self, number: usize, more: u64, what: &str) {
        if more == 0 {
            return;
        }
        let Some(sample) = &self.physics.newest[number] else {
            return self.break_with("I1", format!("{what} on device {number} that was not observed"));
        };
        let age = self.store.clock.since(sample.at);
        match sample.used {
            None => self.break_with("I1", format!("{what} on device {number} of which nothing is known")),
            Some(used) if used + more > CAPACITY => {
                self.break_with("I1", format!("{what} of {more} on device {number}, where {used} are in use"));
            }
            Some(_) if age > terms().stale.saturating_add(std::time::Duration::from_micros(SECOND)) => {
                self.break_with("I1", format!("{what} on device {number}, last seen {age:?} ago"));
            }
            Some(_) => {}
        }
    }

    /// I7: an earlier request of the same importance finds as much room as before.
    fn check_order(&mut self, before: &Ledger, after: &Ledger, lease: &Lease) {
        let arrived = before.waiters.get(&lease.request_id).map(|waiter| waiter.arrived);
        // A holder decides the order of its own requests itself.
        let earlier: Vec<&Waiter> = before
            .waiters
            .iter()
            .filter(|(_, waiter)| waiter.owner.process != lease.owner.process)
            .filter(|(id, waiter)| **id != lease.request_id && waiter.deadline > self.store.clock)
            .filter(|(_, waiter)| {
                waiter.priority < lease.priority
                    || (waiter.priority == lease.priority && arrived.is_none_or(|arrived| waiter.arrived < arrived))
            })
            .map(|(_, waiter)| waiter)
            .collect();
        for number in 0..2 {
            let more = promised(lease, number);
            let wanted: u64 = earlier.iter().map(|waiter| wanted(waiter, number)).sum();
            if more > 0 && wanted > 0 && wanted + counted(after, number) > CAPACITY {
                self.break_with("I7", format!("{} passed an earlier request on device {number}", lease.request_id));
            }
        }
    }

    /// I8: each newly revoked lease may be revoked, and is needed.
    fn check_victims(&mut self, before: Option<&Ledger>, op: &Op, after: &Ledger) {
        let Op::Acquire(asker) = op else { return };
        let Want::Parts(parts) = &asker.want else { return };
        let yields = |lease: &Lease| lease.state == LeaseState::Revoking && !lease.in_default;
        let newly: Vec<_> = after
            .leases
            .iter()
            .filter(|(id, lease)| {
                let old = before.and_then(|before| before.leases.get(*id));
                yields(lease) && old.is_some_and(|old| old.state != LeaseState::Revoking)
            })
            .collect();
        for (id, victim) in &newly {
            if !victim.yielding.preemptible || victim.priority <= asker.priority {
                self.break_with("I8", format!("{id} was asked and must not be"));
            }
            let first = |waiter: &&Waiter| waiter.priority < asker.priority;
            let needed = parts.iter().any(|(key, bytes)| {
                let number = usize::from(*key == device(1));
                let coming: u64 = after
                    .leases
                    .iter()
                    .filter(|(other, lease)| other != id && yields(lease))
                    .map(|(_, lease)| lease.charged(key).0)
                    .sum();
                let ahead: u64 = after.waiters.values().filter(first).map(|waiter| wanted(waiter, number)).sum();
                counted(after, number).saturating_sub(coming) + ahead + bytes.0 > CAPACITY
            });
            // Earlier waiters of equal importance are not considered here.
            let equals = after.waiters.values().filter(|waiter| waiter.priority == asker.priority).count();
            if !needed && equals <= 1 {
                self.break_with("I8", format!("{id} was asked and is not needed"));
            }
        }
    }

    pub(super) fn note(&mut self, outcome: &Outcome, recovering: bool) {
        let reached = &mut self.reached;
        reached.recovering |= recovering;
        match outcome {
            Outcome::Granted(_) => reached.granted = true,
            Outcome::Attached => reached.attached = true,
            Outcome::Revoking { .. } => reached.revoked = true,
            Outcome::InLimbo => reached.limbo = true,
            Outcome::Reasserted { .. } => reached.reasserted = true,
            Outcome::Lost => reached.lost = true,
            Outcome::Released => reached.released = true,
            Outcome::NotShown => reached.shown_dead = true,
            Outcome::Wait(_) => reached.waited = true,
            Outcome::Resized => reached.resized = true,
            _ => {}
        }
    }
}

fn promised(lease: &Lease, number: usize) -> u64 {
    lease.parts.iter().filter(|part| part.device == device(number)).map(|part| part.bytes.0).sum()
}

fn promised_or_used(lease: &Lease, number: usize) -> u64 {
    let parts = lease.parts.iter().filter(|part| part.device == device(number));
    parts.map(|part| part.bytes.0.max(part.measured.map_or(0, |bytes| bytes.0))).sum()
}

fn shrunk(old: &Lease, new: &Lease) -> bool {
    (0..2).any(|number| promised(new, number) < promised(old, number))
}

fn wanted(waiter: &Waiter, number: usize) -> u64 {
    match &waiter.want {
        Want::Parts(parts) => parts.iter().filter(|(key, _)| *key == device(number)).map(|(_, bytes)| bytes.0).sum(),
        _ => 0,
    }
}

/// The bytes of a device that leases and others use, by the ledger.
fn counted(ledger: &Ledger, number: usize) -> u64 {
    let key = device(number);
    let foreign = ledger.devices.get(&key).and_then(|device| device.foreign).map_or(0, |bytes| bytes.0);
    let leased: u64 = ledger
        .leases
        .values()
        .flat_map(|lease| lease.parts.iter().filter(|part| part.device == key))
        .map(|part| part.bytes.0.max(part.measured.map_or(0, |bytes| bytes.0)))
        .sum();
    foreign + leased
}
