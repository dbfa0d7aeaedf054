//! The behaviour of a careful holder, one step at a time.

use std::time::Duration;

use model_boss_lease::{
    Accounting, DeviceKey, Evidence, LeaseId, Ledger, Mode, Op, Outcome, Owner, OwnerKind, Process, Record, Renewal,
    Request, StoreTime, Token, Want, Yielding,
};
use model_boss_protocol::{ByteCount, Priority};

use super::store::Loaded;
use super::{Bug, CAPACITY, Fate, NAMESPACE, Reply, Step, Way, World, bytes, device, start_time};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client {
    number: usize,
    /// The number of the client's restarts.
    incarnation: u64,
    /// The number of the client's requests.
    requests: u64,
    /// Whether the client has a request without a final answer.
    pub(super) asking: bool,
    pub(super) held: Option<Held>,
    /// The worker that waits at the gate.
    gate: Option<Process>,
    /// The last time the client learned that its leases count in full.
    pub(super) contact: StoreTime,
    /// A decision of a client that read, decided, and was paused before it wrote.
    pub(super) paused: Option<Box<Prepared>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) lease: LeaseId,
    token: Token,
    promised: [u64; 2],
    /// Whether the client's lease was revoked.
    pub(super) revoked: bool,
}

/// A decision that is not written yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prepared {
    pub(super) loaded: Loaded,
    pub(super) op: Op,
    pub(super) ledger: Ledger,
    pub(super) outcome: Outcome,
}

impl std::hash::Hash for Prepared {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // The other fields follow from `loaded` and `op`.
        (&self.loaded, &self.op).hash(state);
    }
}

impl Client {
    pub(super) fn new(number: usize) -> Self {
        let contact = start_time();
        Self { number, incarnation: 1, requests: 0, asking: false, held: None, gate: None, contact, paused: None }
    }

    fn process(&self, incarnation: u64) -> Process {
        let pid = 1 + u32::try_from(self.number).unwrap_or(0);
        Process { pid, start_time: incarnation, pid_ns: NAMESPACE.to_owned() }
    }

    pub(super) fn former_owners(&self) -> impl Iterator<Item = Process> + '_ {
        (1..self.incarnation).map(|incarnation| self.process(incarnation))
    }

    /// The seconds by which the client's own clock is wrong.
    pub(super) fn clock_skew(&self) -> i64 {
        if self.number.is_multiple_of(2) { -30 } else { 30 }
    }

    fn request_id(&self) -> String {
        format!("{}-{}-{}", self.number, self.incarnation, self.requests)
    }

    /// Whether the client requested these parts under this label, or has no request any more.
    pub(super) fn wants(&self, label: &str, parts: &[(DeviceKey, ByteCount)]) -> bool {
        let request = self.request();
        *request.owner.label == *label && request.want == Want::Parts(parts.to_vec())
    }

    /// The present request of this client; each is different.
    fn request(&self) -> Request {
        let turn = self.requests + u64::try_from(self.number).unwrap_or(0);
        let (priority, sizes, mode) = match turn % 5 {
            0 => (5, [5, 5], Mode::Wait),
            1 => (7, [4, 0], Mode::Wait),
            2 => (2, [4, 6], Mode::Preempt),
            3 => (7, [0, 7], Mode::Try),
            _ => (3, [8, 0], Mode::Preempt),
        };
        let (grace, reload) = (Duration::from_secs(2), Duration::from_secs(turn % 3));
        let yielding = Yielding { preemptible: turn % 2 == 1, grace, min_hold: Duration::ZERO, reload };
        let (request_id, kind) = (self.request_id(), OwnerKind::Job);
        let lease = LeaseId::from(format!("lease-{request_id}"));
        let owner = Owner::new(self.process(self.incarnation), request_id.clone(), kind);
        let parts = (0..2).filter(|d| sizes[*d] > 0).map(|d| (device(d), bytes(sizes[d]))).collect();
        let priority = Priority::new(priority).unwrap_or_default();
        Request { request_id, lease, owner, priority, yielding, want: Want::Parts(parts), mode }
    }
}

fn per_device(parts: &[(DeviceKey, ByteCount)]) -> [u64; 2] {
    [0, 1].map(|d| parts.iter().filter(|(key, _)| *key == device(d)).map(|(_, bytes)| bytes.0).sum())
}

impl World {
    pub(super) fn declare(&mut self) {
        for number in 0..2 {
            let (key, accounting, by) = (device(number), Accounting::PerProcess, OwnerKind::Coordinator);
            let (name, capacity, reserve) = (key.to_string(), bytes(CAPACITY), ByteCount::ZERO);
            self.transact(None, Op::Declare { device: key, name, capacity, reserve, accounting, by });
        }
    }

    pub(super) fn ask(&mut self, client: usize) {
        let op = self.ask_op(client);
        if self.bug == Bug::OneDevicePerCall {
            self.ask_in_two_calls(client, op);
        } else {
            self.transact(Some(client), op);
        }
    }

    fn ask_op(&mut self, number: usize) -> Op {
        let client = &mut self.clients[number];
        if !client.asking {
            self.budget.asks = self.budget.asks.saturating_sub(1);
            client.asking = true;
            client.requests += 1;
        }
        let mut request = client.request();
        if self.bug == Bug::NoIdempotency {
            request.request_id = format!("{}-{}", request.request_id, self.store.clock.0);
        }
        Op::Acquire(request)
    }

    fn ask_in_two_calls(&mut self, client: usize, op: Op) {
        let Op::Acquire(request) = op else { return };
        let Want::Parts(parts) = &request.want else { return };
        for part in parts.clone() {
            let request_id = format!("{}-{}", request.request_id, part.0);
            let lease = LeaseId::from(format!("lease-{request_id}"));
            let request = Request { request_id, lease, want: Want::Parts(vec![part]), ..request.clone() };
            self.transact(Some(client), Op::Acquire(request));
        }
    }

    pub(super) fn cancel(&mut self, number: usize) {
        let client = &mut self.clients[number];
        client.asking = false;
        let (request_id, owner) = (client.request_id(), client.process(client.incarnation));
        self.transact(Some(number), Op::Cancel { request_id, owner });
    }

    pub(super) fn attach(&mut self, client: usize) {
        if let Some(op) = self.attach_op(client) {
            self.transact(Some(client), op);
        }
    }

    fn attach_op(&mut self, number: usize) -> Option<Op> {
        let held = self.clients[number].held.clone()?;
        // The next worker on the same lease starts only when the driver shows the memory as free.
        if self.physics.workers.iter().any(|worker| worker.client == number) {
            return None;
        }
        let waiting = self.clients[number].gate.take().unwrap_or_else(|| self.physics.start(number));
        self.clients[number].gate = Some(waiting.clone());
        if self.bug == Bug::NoGate {
            self.go_through(number, &held);
        }
        let boot_id = "boot".to_owned();
        Some(Op::Attach { lease: held.lease, token: held.token, process: waiting, boot_id })
    }

    /// The worker passes the gate and takes half of its memory at once.
    fn go_through(&mut self, client: usize, held: &Held) {
        let Some(process) = self.clients[client].gate.take() else { return };
        self.physics.workers.push(super::physics::Worker {
            client,
            lease: held.lease.clone(),
            process,
            promised: held.promised,
            taken: held.promised.map(|promised| promised / 2),
            extra: 0,
            alive: true,
        });
    }

    pub(super) fn renew(&mut self, client: usize) {
        if let Some(op) = self.renew_op(client) {
            self.transact(Some(client), op);
        }
    }

    /// The operation to renew: while the window is open a holder reports its leases again.
    fn renew_op(&self, client: usize) -> Option<Op> {
        let held = self.clients[client].held.as_ref()?;
        match self.record(client) {
            Some(record) if self.is_recovering() => Some(Op::Reassert(record)),
            None if self.bug == Bug::RenewRecreates => Some(Op::Reassert(self.record_of(client, Vec::new())?)),
            _ => Some(Op::Renew { leases: vec![Renewal::plain(held.lease.clone(), held.token)] }),
        }
    }

    fn record(&self, number: usize) -> Option<Record> {
        let held = self.clients[number].held.as_ref()?;
        let worker = self.physics.worker_of(number).filter(|worker| worker.lease == held.lease)?;
        self.record_of(number, vec![worker.process.clone()])
    }

    fn record_of(&self, number: usize, pids: Vec<Process>) -> Option<Record> {
        let client = &self.clients[number];
        let held = client.held.as_ref()?;
        let Request { request_id, owner, priority, yielding, .. } = client.request();
        let parts = (0..2).filter(|d| held.promised[*d] > 0).map(|d| (device(d), bytes(held.promised[d]))).collect();
        let (lease, token) = (held.lease.clone(), Some(held.token));
        Some(Record { lease, token, request_id, owner, priority, yielding, parts, pids, boot_id: "boot".to_owned() })
    }

    pub(super) fn resize(&mut self, client: usize, way: Way) {
        let Some(held) = self.clients[client].held.clone() else { return };
        let size = |promised: u64| match way {
            Way::Up => promised + 2,
            Way::Down => (promised / 2).max(1),
        };
        // A lease that shrinks frees its memory first.
        if way == Way::Down {
            for worker in self.physics.workers.iter_mut().filter(|worker| worker.lease == held.lease) {
                worker.taken = [0, 1].map(|d| worker.taken[d].min(size(held.promised[d])));
            }
        }
        let parts =
            (0..2).filter(|d| held.promised[*d] > 0).map(|d| (device(d), bytes(size(held.promised[d])))).collect();
        self.transact(Some(client), Op::Resize { lease: held.lease, token: held.token, parts });
    }

    pub(super) fn release(&mut self, client: usize) {
        let Some(held) = self.clients[client].held.clone() else { return };
        let left = self.physics.workers.iter().any(|worker| worker.lease == held.lease);
        let evidence = if left { Evidence::None } else { Evidence::Gone };
        self.transact(Some(client), Op::Release { lease: held.lease, token: held.token, evidence });
    }

    pub(super) fn pause(&mut self, client: usize, step: Step) {
        let held = self.clients[client].held.is_some();
        let op = match step {
            Step::Ask if !held && (self.clients[client].asking || self.budget.asks > 0) => Some(self.ask_op(client)),
            Step::Ask => None,
            Step::Attach => self.attach_op(client),
            Step::Renew => self.renew_op(client),
        };
        if let Some(op) = op {
            let prepared = self.prepare(Some(client), op);
            self.clients[client].paused = Some(Box::new(prepared));
        }
    }

    pub(super) fn resume(&mut self, client: usize, reply: Reply) {
        if let Some(prepared) = self.clients[client].paused.take() {
            self.commit(Some(client), *prepared, reply);
        }
    }

    pub(super) fn crash(&mut self, number: usize, fate: Fate) {
        if fate == Fate::Together {
            self.physics.stop(number);
        }
        let client = &mut self.clients[number];
        let (incarnation, requests) = (client.incarnation + 1, client.requests);
        *client = Client { incarnation, requests, ..Client::new(number) };
    }

    /// Makes the client act on an answer.
    pub(super) fn hear(&mut self, number: usize, op: &Op, outcome: Outcome) {
        let now = self.now;
        let client = &mut self.clients[number];
        let counted =
            matches!(outcome, Outcome::Granted(_) | Outcome::Attached | Outcome::Resized | Outcome::Reasserted { .. });
        if counted {
            client.contact = now;
        }
        match (op, outcome) {
            (Op::Acquire(_), Outcome::Granted(grant)) => {
                let promised = per_device(&grant.parts);
                client.asking = false;
                client.held = Some(Held { lease: grant.lease, token: grant.token, promised, revoked: false });
            }
            (Op::Acquire(_), Outcome::Refused(_) | Outcome::NeverFits(_)) => client.asking = false,
            (Op::Attach { .. }, Outcome::Attached) => {
                if let Some(held) = client.held.clone() {
                    self.go_through(number, &held);
                }
            }
            (Op::Renew { .. }, Outcome::Renewed { lost, revoked }) => {
                if let Some(held) = &mut client.held {
                    held.revoked = !revoked.is_empty();
                }
                if lost.is_empty() {
                    self.still_whole(number);
                } else {
                    self.lost(number);
                }
            }
            (Op::Resize { .. }, Outcome::Resized) => {
                let Op::Resize { parts, lease, .. } = op else { return };
                let sizes = per_device(parts);
                if let Some(held) = &mut client.held {
                    held.promised = sizes;
                }
                for worker in self.physics.workers.iter_mut().filter(|worker| worker.lease == *lease && worker.alive) {
                    worker.promised = sizes;
                }
            }
            (Op::Release { .. }, Outcome::Released | Outcome::InLimbo | Outcome::Lost) => client.held = None,
            (Op::Reassert(record), Outcome::Reasserted { parts }) => {
                let promised = per_device(&parts);
                if let Some(held) = &mut client.held {
                    held.promised = promised;
                }
                let own = |worker: &&mut super::physics::Worker| worker.lease == record.lease;
                for worker in self.physics.workers.iter_mut().filter(own) {
                    worker.promised = promised;
                }
            }
            (Op::Reassert(_), Outcome::Lost) | (Op::Attach { .. } | Op::Resize { .. }, Outcome::Lost) => {
                self.drop_all(number);
            }
            _ => {}
        }
    }

    /// Checks a lease against the ledger. The store may have restored a version in which the lease was smaller: then
    /// its holder reports it again.
    fn still_whole(&mut self, number: usize) {
        let Some(held) = self.clients[number].held.clone() else { return };
        let ledger = self.store.document.as_ref();
        let counted =
            ledger.and_then(|ledger| ledger.leases.get(&held.lease)).map(|lease| per_device(&lease.promised()));
        if counted == Some(held.promised) {
            self.clients[number].contact = self.now;
        } else if let Some(record) = self.record(number) {
            self.transact(Some(number), Op::Reassert(record));
        }
    }

    /// Handles a lost lease. A lease whose worker holds memory is reported again once; all others end.
    fn lost(&mut self, client: usize) {
        match self.record(client) {
            Some(record) => self.transact(Some(client), Op::Reassert(record)),
            None => self.drop_all(client),
        }
    }

    fn drop_all(&mut self, client: usize) {
        self.physics.stop(client);
        self.clients[client].held = None;
        self.clients[client].gate = None;
    }
}
