//! A small world around the rules: clients with workers, devices with memory, a store with a clock, and all kinds of
//! faults between them. The world has the true state; the ledger gets only the reports of a correct holder.
//!
//! Random histories and the model checker use this same world, and every step is checked against the invariants.

mod bug;
mod check;
mod client;
mod physics;
mod quiesce;
mod store;

use model_boss_lease::{DeviceKey, Evidence, LeaseDurations, LeaseId, Op, Process, StoreTime, Token};
use model_boss_protocol::ByteCount;

pub(crate) use bug::Bug;
pub(crate) use check::Violation;
use client::{Client, Prepared};
use physics::Physics;
use store::{Register, Swapped};

/// The pid namespace of all processes.
const NAMESPACE: &str = "pid:[1]";
/// The capacity of each device.
const CAPACITY: u64 = 10;
const SECOND: u64 = 1_000_000;

/// The state of the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    bug: Bug,
    store: Register,
    clients: Vec<Client>,
    physics: Physics,
    /// The true time, independent of the store's clock.
    now: StoreTime,
    /// Whether this host has the marker file, which shows that a ledger was begun since the boot.
    marker: bool,
    /// The largest token ever granted.
    last_token: Token,
    /// The number of events that may still happen; a model checker needs an end.
    budget: Budget,
    /// The broken invariant, if any.
    violation: Option<Violation>,
    /// The states that were reached, so that a check that tests too little is noticed.
    reached: Reached,
}

/// The numbers of events that may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) ticks: u8,
    pub(crate) asks: u8,
    pub(crate) pauses: u8,
    pub(crate) crashes: u8,
    pub(crate) losses: u8,
    pub(crate) jumps: u8,
    pub(crate) oddities: u8,
}

/// Marks of states that were reached at least once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Reached {
    pub(crate) granted: bool,
    pub(crate) attached: bool,
    pub(crate) revoked: bool,
    pub(crate) limbo: bool,
    pub(crate) recovering: bool,
    pub(crate) reasserted: bool,
    pub(crate) lost: bool,
    pub(crate) released: bool,
    pub(crate) shown_dead: bool,
    pub(crate) waited: bool,
    pub(crate) resized: bool,
    pub(crate) conflict: bool,
    pub(crate) stale: bool,
}

impl Reached {
    /// The marks by name.
    pub(crate) fn marks(&self) -> [(&'static str, bool); 13] {
        [
            ("granted", self.granted),
            ("attached", self.attached),
            ("revoked", self.revoked),
            ("limbo", self.limbo),
            ("recovering", self.recovering),
            ("reasserted", self.reasserted),
            ("lost", self.lost),
            ("released", self.released),
            ("shown dead", self.shown_dead),
            ("waited", self.waited),
            ("resized", self.resized),
            ("conflict", self.conflict),
            ("stale", self.stale),
        ]
    }
}

/// An action in the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// The clock advances by one of several steps.
    Tick(u8),
    /// A device is observed, and the observation is recorded at once.
    Observe(usize),
    /// A device is observed and the observation recorded later, or the driver reports no figures.
    Sample(usize),
    Deliver,
    Blind(usize),
    /// A client makes its next request.
    Ask(usize),
    Cancel(usize),
    Attach(usize),
    Renew(usize),
    Resize(usize, Way),
    /// A client ends its worker, whose memory may remain in the driver for a while.
    Stop(usize),
    Release(usize),
    /// A client reads the ledger and decides. It writes later, and may miss the answer.
    Pause(usize, Step),
    Resume(usize, Reply),
    /// A client dies, with its worker or without.
    Crash(usize, Fate),
    /// A worker dies by itself, the driver frees its memory, or a worker takes the rest of its promise or more.
    Die(usize),
    Drain(usize),
    Fill(usize),
    Overuse(usize),
    /// A caller looks for a lease's processes, and reports the result truly or falsely.
    ConfirmDead(usize),
    ConfirmFromElsewhere(usize),
    Forge(usize),
    /// The store loses data or changes its clock.
    LoseWrites(usize),
    Flush,
    ClockBack,
    ClockForward,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Ask,
    Attach,
    Renew,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Heard,
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    Together,
    Survives,
}

impl World {
    /// A world of two devices, with foreign use on the first, and this many clients.
    pub(crate) fn new(clients: usize, budget: Budget, bug: Bug) -> Self {
        let mut world = Self {
            bug,
            store: Register::new(bug),
            clients: (0..clients).map(Client::new).collect(),
            physics: Physics::default(),
            now: start_time(),
            marker: false,
            last_token: Token(0),
            budget,
            violation: None,
            reached: Reached::default(),
        };
        world.declare();
        world
    }

    pub(crate) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    pub(crate) fn reached(&self) -> &Reached {
        &self.reached
    }

    /// All actions that can happen next. Actions listed more than once are more frequent in random histories.
    pub(crate) fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        let budget = &self.budget;
        if budget.ticks > 0 {
            actions.extend([Action::Tick(1), Action::Tick(1), Action::Tick(3)]);
        }
        for device in 0..2 {
            actions.extend([Action::Observe(device); 3]);
            if budget.oddities > 0 {
                actions.extend([Action::Sample(device), Action::Blind(device)]);
            }
        }
        if self.physics.sample.is_some() {
            actions.push(Action::Deliver);
        }
        for (number, client) in self.clients.iter().enumerate() {
            self.client_actions(number, client, &mut actions);
        }
        for worker in 0..self.physics.workers.len() {
            self.worker_actions(worker, &mut actions);
        }
        for lease in 0..self.leases().len() {
            actions.extend([Action::ConfirmDead(lease), Action::ConfirmFromElsewhere(lease)]);
            if budget.oddities > 0 {
                actions.push(Action::Forge(lease));
            }
        }
        if budget.losses > 0 {
            actions.push(Action::Flush);
            actions.extend((0..self.store.depth()).map(Action::LoseWrites));
        }
        if budget.jumps > 0 {
            actions.extend([Action::ClockBack, Action::ClockForward]);
        }
        actions
    }

    fn client_actions(&self, number: usize, client: &Client, actions: &mut Vec<Action>) {
        let budget = &self.budget;
        if client.paused.is_some() {
            actions.extend([Action::Resume(number, Reply::Heard), Action::Resume(number, Reply::Lost)]);
            return;
        }
        if client.held.is_none() && (client.asking || budget.asks > 0) {
            actions.extend([Action::Ask(number); 4]);
        }
        if client.asking && budget.oddities > 0 {
            actions.push(Action::Cancel(number));
        }
        if client.held.is_some() {
            actions.extend([Action::Renew(number), Action::Renew(number), Action::Release(number)]);
            if self.is_recovering() {
                actions.extend([Action::Renew(number); 6]);
            }
            if !self.physics.is_through(number) {
                actions.extend([Action::Attach(number); 3]);
            } else {
                actions.extend([Action::Stop(number); 2]);
            }
            if budget.oddities > 0 {
                actions.extend([Action::Resize(number, Way::Up), Action::Resize(number, Way::Down)]);
            }
        }
        if budget.pauses > 0 {
            let steps = [Step::Ask, Step::Attach, Step::Renew];
            actions.extend(steps.map(|step| Action::Pause(number, step)));
        }
        if budget.crashes > 0 {
            actions.extend([Action::Crash(number, Fate::Together), Action::Crash(number, Fate::Survives)]);
        }
    }

    fn worker_actions(&self, number: usize, actions: &mut Vec<Action>) {
        let worker = &self.physics.workers[number];
        if !worker.alive {
            actions.extend([Action::Drain(number); 2]);
        } else {
            // One case is not covered, by intent: a holder is cut off for longer than the recovery window, and the
            // store loses its record. Bytes that the holder did not use yet may then be granted to others.
            let silent = self.now.since(self.clients[worker.client].contact);
            if worker.taken != worker.promised && silent < terms().recovery() {
                actions.extend([Action::Fill(number); 2]);
            }
            if self.budget.crashes > 0 {
                actions.push(Action::Die(number));
            }
            if self.budget.oddities > 0 && worker.extra == 0 {
                actions.push(Action::Overuse(number));
            }
        }
    }

    /// Takes one step, and keeps the invariant that it breaks.
    pub(crate) fn step(&mut self, action: Action) {
        match action {
            Action::Tick(seconds) => {
                self.budget.ticks -= 1;
                self.pass(u64::from(seconds));
            }
            Action::Observe(device) => self.observe(device),
            Action::Sample(device) => {
                self.budget.oddities -= 1;
                self.physics.sample = Some(self.physics.look(device, self.store.clock));
            }
            Action::Deliver => {
                if let Some(sample) = self.physics.sample.take() {
                    self.write_down(sample);
                }
            }
            Action::Blind(device) => {
                self.budget.oddities -= 1;
                let mut sample = self.physics.look(device, self.store.clock);
                (sample.used, sample.processes) = (None, Vec::new());
                self.write_down(sample);
            }
            Action::Ask(client) => self.ask(client),
            Action::Cancel(client) => {
                self.budget.oddities -= 1;
                self.cancel(client);
            }
            Action::Attach(client) => self.attach(client),
            Action::Renew(client) => self.renew(client),
            Action::Resize(client, way) => {
                self.budget.oddities -= 1;
                self.resize(client, way);
            }
            Action::Stop(client) => self.physics.stop(client),
            Action::Release(client) => self.release(client),
            Action::Pause(client, step) => {
                self.budget.pauses -= 1;
                self.pause(client, step);
            }
            Action::Resume(client, reply) => self.resume(client, reply),
            Action::Crash(client, fate) => {
                self.budget.crashes -= 1;
                self.crash(client, fate);
            }
            Action::Die(worker) => {
                self.budget.crashes -= 1;
                self.physics.workers[worker].alive = false;
            }
            Action::Drain(worker) => drop(self.physics.workers.remove(worker)),
            Action::Fill(worker) => {
                let worker = &mut self.physics.workers[worker];
                worker.taken = [0, 1].map(|d| worker.taken[d].max(worker.promised[d]));
            }
            Action::Overuse(worker) => {
                self.budget.oddities -= 1;
                self.physics.workers[worker].extra = 2;
            }
            Action::ConfirmDead(lease) => self.confirm_dead(lease),
            Action::ConfirmFromElsewhere(lease) => self.confirm_from_elsewhere(lease),
            Action::Forge(lease) => {
                self.budget.oddities -= 1;
                self.forge(lease);
            }
            Action::LoseWrites(version) => {
                self.budget.losses -= 1;
                self.store.lose(version);
            }
            Action::Flush => {
                self.budget.losses -= 1;
                self.store.flush();
            }
            Action::ClockBack => {
                self.budget.jumps -= 1;
                self.store.set_back();
                self.physics.sample = None;
            }
            Action::ClockForward => {
                self.budget.jumps -= 1;
                self.store.clock.0 += 100 * SECOND;
            }
        }
        self.check_memory();
    }

    /// Whether a holder that reads now finds the window open, or no ledger.
    fn is_recovering(&self) -> bool {
        self.store.document.as_ref().is_none_or(|ledger| ledger.recovering().is_some())
    }

    fn pass(&mut self, seconds: u64) {
        self.store.clock.0 += seconds * SECOND;
        self.now.0 += seconds * SECOND;
    }

    fn leases(&self) -> Vec<LeaseId> {
        self.store.document.as_ref().map(|ledger| ledger.leases.keys().cloned().collect()).unwrap_or_default()
    }

    /// Reads, decides, writes and gets the answer, without another action in between.
    fn transact(&mut self, client: Option<usize>, op: Op) {
        let prepared = self.prepare(client, op);
        self.commit(client, prepared, Reply::Heard);
    }

    /// Reads the ledger as a holder does and runs the rules on it.
    fn prepare(&mut self, client: Option<usize>, op: Op) -> Prepared {
        if matches!(op, Op::Acquire(_)) {
            self.marker = true;
        }
        let loaded = self.store.load();
        let skew = client.map_or(0, |number| self.clients[number].clock_skew());
        let (ledger, outcome) = self.bug.decide(&loaded, self.marker, skew, &op);
        Prepared { loaded, op, ledger, outcome }
    }

    fn commit(&mut self, client: Option<usize>, prepared: Prepared, reply: Reply) {
        let before = self.store.document.clone();
        match self.store.swap(&prepared.loaded, &prepared.ledger) {
            Swapped::Done => {
                self.check_transition(before.as_ref(), &prepared);
                self.note(&prepared.outcome, prepared.ledger.recovering().is_some());
                if let (Some(client), Reply::Heard) = (client, reply) {
                    self.hear(client, &prepared.op, prepared.outcome);
                }
            }
            // A client tries again with the document that it then reads.
            Swapped::Conflict => self.reached.conflict = true,
            Swapped::Stale => self.reached.stale = true,
        }
    }

    fn confirm_dead(&mut self, lease: usize) {
        let Some(id) = self.leases().get(lease).cloned() else { return };
        let seen_from = vec![NAMESPACE.to_owned()];
        self.transact(None, Op::ConfirmDead { lease: id, gone: self.gone(), seen_from });
    }

    /// Confirms deaths from another pid namespace, in which none of these processes exists.
    fn confirm_from_elsewhere(&mut self, lease: usize) {
        let Some(id) = self.leases().get(lease).cloned() else { return };
        let gone = self
            .store
            .document
            .as_ref()
            .and_then(|ledger| ledger.leases.get(&id))
            .map(|lease| lease.family().chain([&lease.owner.process]).cloned().collect());
        let seen_from = vec!["pid:[2]".to_owned()];
        self.transact(None, Op::ConfirmDead { lease: id, gone: gone.unwrap_or_default(), seen_from });
    }

    /// Releases with the token of an earlier lease.
    fn forge(&mut self, lease: usize) {
        let leases = self.store.document.as_ref().map(|ledger| &ledger.leases);
        let Some((id, found)) = leases.and_then(|leases| leases.iter().nth(lease)) else { return };
        let op = Op::Release { lease: id.clone(), token: Token(found.token.0 - 1), evidence: Evidence::Gone };
        self.transact(None, op);
    }

    /// All processes that have ended.
    fn gone(&self) -> Vec<Process> {
        let clients = self.clients.iter().flat_map(Client::former_owners);
        clients.chain(self.physics.former_processes(self.clients.len())).collect()
    }
}

pub(crate) fn device(number: usize) -> DeviceKey {
    DeviceKey::gpu(format!("GPU-{number}"))
}

fn terms() -> LeaseDurations {
    let mut terms = LeaseDurations::default();
    terms.lease = std::time::Duration::from_secs(4);
    terms.heartbeat = std::time::Duration::from_secs(1);
    terms.stale = std::time::Duration::from_secs(3);
    terms
}

fn start_time() -> StoreTime {
    StoreTime(10_000 * SECOND)
}

fn bytes(n: u64) -> ByteCount {
    ByteCount(n)
}
