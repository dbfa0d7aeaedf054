//! The end of a history: no more faults happen and all clients cooperate. Then every possible grant must happen (I9,
//! I10).

use model_boss_lease::{LeaseId, Mode, Op, Outcome, Owner, OwnerKind, Request, Want, Yielding};
use model_boss_protocol::{ByteCount, Priority};

use super::physics::{FOREIGN, worker_process};
use super::{CAPACITY, Reply, World, bytes, device};

/// The number of rounds, of a second each. It is far more than lease time, window and graces of all clients together.
const ROUNDS: u64 = 120;

impl World {
    /// Lets all activity end, and checks that it does.
    pub(crate) fn quiesce(&mut self) {
        for client in 0..self.clients.len() {
            self.resume(client, Reply::Heard);
        }
        self.check_feasible();
        for round in 0..ROUNDS {
            self.pass(1);
            self.physics.workers.retain(|worker| worker.alive);
            self.observe(0);
            self.observe(1);
            for lease in (0..self.leases().len()).rev() {
                self.confirm_dead(lease);
            }
            for client in 0..self.clients.len() {
                self.cooperate(client, round);
            }
            self.check_memory();
        }
        for client in &self.clients {
            if client.asking {
                let detail = format!("{client:?} is never granted: {:?}", self.store.document);
                return self.break_with("I10", detail);
            }
        }
        if let Some(id) = self.leases().first() {
            self.break_with("I9", format!("{id} never ends"));
        }
    }

    fn cooperate(&mut self, number: usize, round: u64) {
        let client = &self.clients[number];
        if client.held.is_none() {
            self.physics.stop(number);
        }
        match &client.held {
            None if client.asking => self.ask(number),
            None => {}
            Some(_) if !self.physics.is_through(number) => self.attach(number),
            Some(held) if held.revoked || round % 4 == 3 => {
                self.physics.stop(number);
                self.physics.workers.retain(|worker| worker.alive);
                self.release(number);
            }
            Some(_) => self.renew(number),
        }
    }

    /// Checks that bytes neither promised nor used can be leased.
    fn check_feasible(&mut self) {
        self.physics.workers.retain(|worker| worker.alive);
        self.pass(1);
        self.observe(0);
        self.observe(1);
        let Some(ledger) = self.store.document.clone() else { return };
        // A worker whose attachment the store lost is foreign beside its own lease until its holder reports it again.
        let owned = |id, process| ledger.leases.get(id).is_some_and(|lease| lease.owns(process));
        let counted = self.physics.workers.iter().all(|worker| owned(&worker.lease, &worker.process));
        if ledger.recovering().is_some() || !ledger.waiters.is_empty() || !counted {
            return;
        }
        for (number, foreign) in FOREIGN.into_iter().enumerate() {
            let held = ledger.leases.iter().map(|(id, lease)| {
                let promised: ByteCount =
                    lease.promised().iter().filter(|(d, _)| *d == device(number)).map(|(_, b)| *b).sum();
                let used =
                    self.physics.workers.iter().filter(|worker| worker.lease == *id).map(|w| w.uses(number)).sum();
                promised.0.max(used)
            });
            let free = CAPACITY.saturating_sub(foreign + held.sum::<u64>());
            let settled = ledger.devices.get(&device(number)).is_some_and(|d| d.unsettled_since.is_none());
            if free == 0 || !settled {
                continue;
            }
            let (request_id, process) = (format!("feasible-{number}"), worker_process(9, 1));
            let request = Request {
                request_id: request_id.clone(),
                lease: LeaseId::from(format!("lease-{request_id}")),
                owner: Owner::new(process, request_id, OwnerKind::Job),
                priority: Priority::LOWEST,
                yielding: Yielding::default(),
                want: Want::Parts(vec![(device(number), bytes(free))]),
                mode: Mode::Try,
            };
            let outcome = self.prepare(None, Op::Acquire(request)).outcome;
            if !matches!(outcome, Outcome::Granted(_)) {
                self.break_with("I10", format!("{free} are free on device {number}: {outcome:?}"));
            }
        }
    }
}
