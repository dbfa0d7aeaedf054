//! A simulated shell for tests: virtual clock, ledger, workers, clients. It carries out the scheduler's effects and
//! reports back as the real shell does. After every step it checks the invariants.

mod outside;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::time::Duration;

use model_boss_protocol::{
    ApiError, ByteCount, Category, CpuShare, DeviceId, ErrorCode, KeepAlive, ModelId, OtherLease, OtherRequest,
    Priority, RequestId, ResidencyMode, SlotId, WorkerCores, WorkerExit,
};

use crate::phase::{ReadyPhase, StopPhase};
use crate::refusal::Refusal;
use crate::testing::device;
use crate::{
    Effect, Event, ExitReport, Footprint, Input, Ladder, LeaveCause, LedgerState, LoadOptions, ModelDescription,
    Moment, Order, Principal, RequestOutcome, Scheduler, Settings, SlotKey, SlotState, SlotView, Submission, Verdict,
};

/// A seeded random number generator (splitmix64).
#[derive(Clone, Debug)]
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True with a probability of `in_a_thousand` / 1,000.
    pub(super) fn chance(&mut self, in_a_thousand: u64) -> bool {
        self.below(1_000) < in_a_thousand
    }
}

/// Durations and faults of the simulated workers, ledger and clients. Chances are per thousand.
#[derive(Clone, Debug)]
pub(super) struct Behaviour {
    pub(super) load: (Duration, Duration),
    pub(super) answer: (Duration, Duration),
    pub(super) exit: (Duration, Duration),
    pub(super) refuse_lease: u64,
    pub(super) fail_load: u64,
    pub(super) crash: u64,
    /// The chance that a cloud provider does not answer a request.
    pub(super) provider_fails: u64,
    /// The chance that a client disconnects at the dispatch of its request: the effect is issued, but not yet carried
    /// out.
    pub(super) gives_up: u64,
    /// The chance that a load fails because another process has its port.
    pub(super) port_clash: u64,
    /// The range of a worker's real memory use, per thousand of its share; `None`: it is not measured.
    pub(super) footprint: Option<(u64, u64)>,
    /// Models whose file is bad.
    pub(super) bad: BTreeSet<ModelId>,
    /// The cores of every worker that computes on the host.
    pub(super) cores: WorkerCores,
}

impl Default for Behaviour {
    /// Fixed durations without failures: loads take 3 s, answers 2 s, exits are immediate.
    fn default() -> Self {
        let same = |span| (span, span);
        let four = NonZero::new(4).unwrap();
        Self {
            load: same(Duration::from_secs(3)),
            answer: same(Duration::from_secs(2)),
            exit: same(Duration::ZERO),
            refuse_lease: 0,
            fail_load: 0,
            crash: 0,
            provider_fails: 0,
            gives_up: 0,
            port_clash: 0,
            footprint: None,
            bad: BTreeSet::new(),
            cores: WorkerCores { threads: four, cores: four },
        }
    }
}

/// The state of a request, or how it ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fate {
    Waiting,
    Running(SlotKey),
    /// The request was dispatched to this cloud provider.
    Elsewhere(String),
    Answered,
    /// The operator's order was carried out.
    Done,
    /// The client disconnected.
    Gone,
    /// The answer was cut off in its middle.
    Cut,
    Refused(Refusal),
}

impl Fate {
    /// Whether the request's client still waits for it.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Waiting | Self::Running(..) | Self::Elsewhere(_))
    }
}

#[derive(Debug)]
struct Worker {
    model: ModelId,
    ready: bool,
    alive: bool,
    running: BTreeSet<RequestId>,
    /// The share of the cores that the worker was told last.
    share: Option<CpuShare>,
}

/// An event that is scheduled to happen.
#[derive(Clone, Debug)]
enum Coming {
    Event(Event),
    WorkerDies(SlotKey, Option<WorkerExit>),
    Answer(SlotKey, RequestId),
    /// Another holder releases a revoked lease, or ignores the revocation.
    MakesWay(String, bool),
    /// Another holder repeats its request for memory.
    AsksAgain(String),
    AnswerFromElsewhere(RequestId),
    /// The client disconnects.
    Leaves(RequestId),
    /// The shell removes a model from its catalog, unless it was named again since.
    Forget(ModelId, u64),
}

pub(super) struct World {
    pub(super) core: Scheduler,
    pub(super) now: Moment,
    pub(super) behaviour: Behaviour,
    pub(super) rng: Rng,
    pub(super) fates: BTreeMap<RequestId, Fate>,
    pub(super) log: Vec<(Moment, Effect)>,
    pub(super) drained: bool,
    settings: Settings,
    /// The token counts that answers report.
    pub(super) tokens: Option<u64>,
    agenda: BTreeMap<(Moment, u64), Coming>,
    leases: BTreeMap<SlotKey, (Vec<(DeviceId, ByteCount)>, Lease)>,
    workers: BTreeMap<SlotKey, Worker>,
    /// The places of the scheduler's models in the ledger's queue.
    pub(super) places: BTreeMap<ModelId, LedgerPlace>,
    /// The leases of other holders, and the requests of those that wait.
    pub(super) outside: Vec<OtherLease>,
    pub(super) waiting_outside: Vec<OtherRequest>,
    next_lease: u64,
    ledger_open: bool,
    models: Vec<ModelDescription>,
    answered_at: BTreeMap<RequestId, Moment>,
    next_request: u64,
    next_coming: u64,
    decisions_seen: u64,
    /// Footprints that the scheduler learned.
    pub(super) learned: Vec<Footprint>,
    /// The number of decisions by kind.
    pub(super) verdict_counts: BTreeMap<Verdict, u64>,
}

/// The place of one of the scheduler's models in the ledger's queue.
#[derive(Clone, Debug)]
pub(super) struct LedgerPlace {
    pub(super) parts: Vec<(DeviceId, ByteCount)>,
    pub(super) priority: Priority,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lease {
    Asked,
    Granted,
    Releasing,
}

impl World {
    pub(super) fn new(settings: Settings, behaviour: Behaviour, seed: u64) -> Self {
        Self {
            core: Scheduler::new(settings.clone(), Moment::START),
            settings,
            now: Moment::START,
            behaviour,
            rng: Rng(seed),
            fates: BTreeMap::new(),
            log: Vec::new(),
            drained: false,
            tokens: None,
            agenda: BTreeMap::new(),
            leases: BTreeMap::new(),
            workers: BTreeMap::new(),
            places: BTreeMap::new(),
            outside: Vec::new(),
            waiting_outside: Vec::new(),
            next_lease: 0,
            ledger_open: true,
            models: Vec::new(),
            answered_at: BTreeMap::new(),
            next_request: 1,
            next_coming: 0,
            decisions_seen: 0,
            learned: Vec::new(),
            verdict_counts: BTreeMap::new(),
        }
    }

    /// A world of one GPU of this size and these models, without failures.
    pub(super) fn calm(gib: u64, models: Vec<ModelDescription>) -> Self {
        let mut settings = Settings::default();
        settings.clients.default.max_priority = Priority::HIGHEST;
        let mut world = Self::new(settings, Behaviour::default(), 1);
        world.tell(Event::DeviceObserved(device("cuda:0", gib)));
        world.catalog(models);
        world
    }

    pub(super) fn catalog(&mut self, models: Vec<ModelDescription>) {
        self.models.clone_from(&models);
        self.tell(Event::Catalog(models));
    }

    pub(super) fn models(&self) -> &[ModelDescription] {
        &self.models
    }

    /// Submits a request of `client` with this priority and defaults otherwise.
    pub(super) fn submit(&mut self, model: &str, priority: u8) -> RequestId {
        self.submit_with(model, priority, |_| {})
    }

    pub(super) fn submit_with(&mut self, model: &str, priority: u8, change: impl FnOnce(&mut Submission)) -> RequestId {
        let id = self.number();
        let mut submission = Submission {
            id,
            ladder: Ladder::from(model),
            category: self.models.iter().find(|m| m.id.as_str() == model).map_or(Category::Llm, |m| m.category),
            client: "c".into(),
            priority: Some(Priority::new(priority).unwrap()),
            deadline: None,
            keep_alive: None,
            work: None,
        };
        change(&mut submission);
        self.fates.insert(id, Fate::Waiting);
        self.tell(Order::Submit(submission));
        id
    }

    pub(super) fn keep_for(span: Duration) -> impl FnOnce(&mut Submission) {
        move |submission| submission.keep_alive = Some(KeepAlive::For(span))
    }

    pub(super) fn load(&mut self, model: &str) -> RequestId {
        self.load_with(model, LoadOptions::default())
    }

    pub(super) fn load_with(&mut self, model: &str, options: LoadOptions) -> RequestId {
        self.operate(|request| Order::Load {
            request,
            by: Principal::Operator,
            model: model.into(),
            options: Box::new(options),
        })
    }

    pub(super) fn unload(&mut self, model: Option<&str>) -> RequestId {
        self.operate(|request| Order::Unload { request, by: Principal::Operator, model: model.map(Into::into) })
    }

    /// Orders a request to be cancelled, as the operator or as a client.
    pub(super) fn cancel_by(&mut self, by: Principal, target: RequestId) -> RequestId {
        self.operate(|request| Order::CancelRequest { request, by, target })
    }

    pub(super) fn move_to(&mut self, model: &str, device: &str, evict: bool, priority: u8) -> RequestId {
        let (device, priority) = (device.parse().unwrap(), Priority::new(priority).unwrap());
        self.operate(|request| Order::Move {
            request,
            by: Principal::Operator,
            model: model.into(),
            device,
            evict,
            priority,
        })
    }

    /// Gives an operator's order; returns the id of its caller.
    pub(super) fn operate(&mut self, order: impl FnOnce(RequestId) -> Order) -> RequestId {
        let request = self.number();
        self.fates.insert(request, Fate::Waiting);
        self.tell(order(request));
        request
    }

    /// Disconnects a client at any moment. The scheduler receives only `Cancel`, because the reporter of the request
    /// ends with the client.
    pub(super) fn cancel(&mut self, request: RequestId) {
        self.leaves(request);
        self.tell(Event::Cancel(request));
    }

    /// Expires a request by the clock of its connection, which may be ahead of the scheduler's.
    pub(super) fn time_is_over(&mut self, request: RequestId) {
        self.leaves(request);
        self.tell(Event::Finished { request, outcome: RequestOutcome::DeadlineExceeded, tokens: None });
    }

    fn leaves(&mut self, request: RequestId) {
        let Some(fate) = self.fates.get_mut(&request).filter(|fate| fate.is_open()) else { return };
        let before = std::mem::replace(fate, Fate::Gone);
        if let Fate::Running(slot) = before
            && let Some(worker) = self.workers.get_mut(&slot)
        {
            worker.running.remove(&request);
        }
    }

    /// Kills the worker of this model now.
    pub(super) fn kill(&mut self, model: &str) {
        let alive = self.workers.iter().find(|(_, worker)| worker.alive && worker.model.as_str() == model);
        let slot = alive.map(|(slot, _)| *slot).expect("a live worker of the model");
        self.worker_dies(slot, None);
    }

    /// Ends the worker of this model by itself, for this reason.
    pub(super) fn exit(&mut self, model: &str, reason: Option<WorkerExit>) {
        assert!(self.exit_if_loading(model, reason), "no worker of {model} loads");
    }

    /// Ends a loading worker of this model by itself, for this reason; returns whether there was one.
    pub(super) fn exit_if_loading(&mut self, model: &str, reason: Option<WorkerExit>) -> bool {
        let mut workers = self.workers.iter();
        let Some((&slot, _)) = workers.find(|(_, w)| w.alive && !w.ready && w.model.as_str() == model) else {
            return false;
        };
        self.worker_dies(slot, reason);
        self.run_for(Duration::from_millis(50));
        true
    }

    /// Processes all events up to `moment`.
    pub(super) fn run_until(&mut self, moment: Moment) {
        while let Some(at) = self.next_moment().filter(|at| *at <= moment) {
            self.step(at);
        }
        self.now = self.now.max(moment);
    }

    pub(super) fn run_for(&mut self, span: Duration) {
        self.run_until(self.now + span);
    }

    /// Runs until only the passing of time is left, or panics after a simulated day.
    pub(super) fn run_to_the_end(&mut self) {
        let end = self.now + Duration::from_secs(86_400);
        while !self.drained {
            let Some(at) = self.next_moment().filter(|at| *at < end) else {
                let (queue, slots) = (self.core.queue(self.now, 0..usize::MAX), self.core.slots());
                panic!("the world does not come to its end within a day: waiting {queue:#?}, slots {slots:#?}");
            };
            self.step(at);
        }
        assert!(self.places.is_empty(), "places left in the ledger's queue: {:?}", self.places);
        assert!(self.leases.is_empty(), "leases left: {:?}", self.leases);
        assert!(self.workers.values().all(|worker| !worker.alive), "workers left: {:?}", self.workers);
        assert_eq!(self.core.queued() + self.core.running(), 0, "requests left");
        assert!(self.core.slots().is_empty(), "slots left");
        for (request, fate) in &self.fates {
            assert!(!fate.is_open(), "request {request} never got its final answer: {fate:?}");
        }
    }

    pub(super) fn fate(&self, request: RequestId) -> &Fate {
        &self.fates[&request]
    }

    pub(super) fn answered_at(&self, request: RequestId) -> Option<Moment> {
        self.answered_at.get(&request).copied()
    }

    pub(super) fn refusal(&self, request: RequestId) -> &Refusal {
        match self.fate(request) {
            Fate::Refused(error) => error,
            other => panic!("request {request} was not refused: {other:?}"),
        }
    }

    /// Requests in the order of their dispatch.
    pub(super) fn dispatched(&self) -> Vec<RequestId> {
        let dispatched = self.log.iter().filter_map(|(_, effect)| match effect {
            Effect::Dispatch { request, .. } => Some(*request),
            _ => None,
        });
        dispatched.collect()
    }

    pub(super) fn loads(&self) -> usize {
        self.log.iter().filter(|(_, effect)| matches!(effect, Effect::Spawn { .. })).count()
    }

    /// Verdicts with their models, oldest first.
    pub(super) fn verdicts(&self) -> Vec<(Verdict, String)> {
        self.core.decisions().map(|d| (d.what, d.model.to_string())).collect()
    }

    pub(super) fn state_of(&self, model: &str) -> Option<SlotState> {
        self.core.slots().into_iter().find(|slot| slot.model.as_str() == model).map(|slot| slot.state)
    }

    pub(super) fn tell(&mut self, input: impl Into<Input>) {
        let input = input.into();
        match &input {
            Input::Event(Event::Ledger(state)) => self.ledger_open = *state == LedgerState::Open,
            Input::Event(Event::Settings(settings)) => self.settings.clone_from(settings),
            _ => {}
        }
        let effects = self.core.handle(self.now, input);
        for effect in effects {
            self.log.push((self.now, effect.clone()));
            self.act(effect);
        }
        self.check();
    }

    fn number(&mut self) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        id
    }

    fn next_moment(&self) -> Option<Moment> {
        let agenda = self.agenda.first_key_value().map(|((at, _), _)| *at);
        [agenda, self.core.next_wake()].into_iter().flatten().min().map(|at| at.max(self.now))
    }

    fn step(&mut self, at: Moment) {
        self.now = at;
        match self.agenda.first_entry().filter(|entry| entry.key().0 <= at) {
            Some(entry) => {
                let coming = entry.remove();
                self.happen(coming);
            }
            None => {
                self.tell(Event::Tick);
                assert!(self.core.next_wake().is_none_or(|wake| wake > at), "a tick that changes nothing comes again");
            }
        }
    }

    fn happen(&mut self, coming: Coming) {
        match coming {
            Coming::Event(event) => self.report(event),
            Coming::WorkerDies(slot, reason) => self.worker_dies(slot, reason),
            Coming::MakesWay(lease, in_time) => self.makes_way(&lease, in_time),
            Coming::AsksAgain(label) => self.asks_again(&label),
            Coming::Leaves(request) => self.cancel(request),
            Coming::Forget(model, named) => {
                let models = self.models.clone();
                // A model that was named again stays.
                let kept = models.into_iter().filter(|known| known.id != model || known.named != Some(named)).collect();
                self.catalog(kept);
            }
            Coming::AnswerFromElsewhere(request) => {
                if !matches!(self.fates.get(&request), Some(Fate::Elsewhere(_))) {
                    return;
                }
                if self.rng.chance(self.behaviour.provider_fails) {
                    self.fates.insert(request, Fate::Waiting);
                    let wait = self.span((Duration::ZERO, Duration::from_secs(60)));
                    let error = ApiError::new(ErrorCode::BackendError, "the provider is busy").retry_after(wait);
                    let error = Refusal::of_rung(error, true);
                    return self.tell(Event::RungFailed { request, error });
                }
                self.fates.insert(request, Fate::Answered);
                self.answered_at.insert(request, self.now);
                self.tell(Event::Finished { request, outcome: RequestOutcome::Answered, tokens: self.tokens });
            }
            Coming::Answer(slot, request) => {
                let Some(worker) = self.workers.get_mut(&slot) else { return };
                if !worker.alive || !worker.running.remove(&request) {
                    return;
                }
                self.fates.insert(request, Fate::Answered);
                self.answered_at.insert(request, self.now);
                self.tell(Event::Finished { request, outcome: RequestOutcome::Answered, tokens: self.tokens });
            }
        }
    }

    /// Reports an event to the scheduler if the real shell would still see it of this worker or ledger.
    fn report(&mut self, event: Event) {
        match &event {
            Event::WorkerReady { slot, .. } => match self.workers.get_mut(slot) {
                Some(worker) if worker.alive => {
                    worker.ready = true;
                    self.measure(*slot);
                }
                _ => return,
            },
            Event::WorkerStarted { slot, .. } | Event::WorkerProgress { slot, .. }
                if !self.workers.get(slot).is_some_and(|worker| worker.alive) =>
            {
                return;
            }
            Event::LeaseGranted { slot } => {
                self.leases.get_mut(slot).expect("a lease that was asked for").1 = Lease::Granted;
                if let Some(slot) = self.core.slots().into_iter().find(|found| found.id == slot.id) {
                    self.places.remove(&slot.model);
                }
            }
            Event::LeaseRefused { slot, .. } => {
                self.leases.remove(slot);
            }
            // The reporter of the request ended with its client.
            Event::Finished { request, .. } if self.fates.get(request) == Some(&Fate::Gone) => return,
            Event::Finished { request, outcome, .. } => {
                let again = *outcome == RequestOutcome::LostBeforeAnswer;
                self.fates.insert(*request, if again { Fate::Waiting } else { Fate::Cut });
            }
            Event::LeaseReleased { slot } => {
                let released = self.leases.remove(slot);
                assert!(matches!(released, Some((_, Lease::Releasing))), "released without order");
            }
            _ => {}
        }
        self.tell(event);
    }

    /// Reports the probe's figures for a worker that became ready.
    fn measure(&mut self, slot: SlotKey) {
        let Some((low, high)) = self.behaviour.footprint else { return };
        let Some((parts, _)) = self.leases.get(&slot) else { return };
        let share = self.rng.between(low, high);
        let parts = parts.iter().map(|(device, bytes)| (device.clone(), ByteCount(bytes.0 / 1_000 * share))).collect();
        self.after(Duration::from_millis(20), Coming::Event(Event::Measured { slot, parts }));
    }

    fn after(&mut self, span: Duration, coming: Coming) {
        self.next_coming += 1;
        self.agenda.insert((self.now + span, self.next_coming), coming);
    }

    fn span(&mut self, (low, high): (Duration, Duration)) -> Duration {
        let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap();
        Duration::from_millis(self.rng.between(millis(low), millis(high)))
    }

    fn worker_dies(&mut self, slot: SlotKey, reason: Option<WorkerExit>) {
        let Some(worker) = self.workers.get_mut(&slot).filter(|worker| worker.alive) else { return };
        worker.alive = false;
        let running = std::mem::take(&mut worker.running);
        let exit = ExitReport {
            reason,
            description: reason.map_or("killed by signal 9".into(), |r| format!("exit code {}", r.code())),
            last_lines: vec!["the worker's last words".into()],
        };
        // The worker's exit and each lost request are reported in any order.
        let delay = Duration::from_millis(self.rng.below(40));
        self.after(delay, Coming::Event(Event::WorkerExited { slot, exit }));
        for request in running {
            let before = self.rng.chance(700);
            let outcome = if before { RequestOutcome::LostBeforeAnswer } else { RequestOutcome::LostMidAnswer };
            let delay = Duration::from_millis(self.rng.below(40));
            self.after(delay, Coming::Event(Event::Finished { request, outcome, tokens: None }));
        }
    }

    fn act(&mut self, effect: Effect) {
        let millis = Duration::from_millis;
        match effect {
            Effect::AcquireLease { slot, parts, model, priority, .. } => {
                self.check_promise(&parts);
                self.check_limits(slot.id, &model, &parts);
                self.places.insert(model, LedgerPlace { parts: parts.clone(), priority });
                let fits = self.fits_ledger(&parts);
                assert!(self.ledger_open, "the ledger is asked for {parts:?} while it cannot be");
                // The ledger grants no lease that it has no room for.
                let parts = if fits { parts } else { Vec::new() };
                let asked = self.leases.insert(slot, (parts, Lease::Asked));
                assert!(asked.is_none(), "a second lease for {slot:?}");
                let refused = self.rng.chance(self.behaviour.refuse_lease) || !fits;
                let event = if refused {
                    let retry_after = millis(self.rng.below(2_000));
                    Event::LeaseRefused { slot, reason: "no".into(), retry_after }
                } else {
                    Event::LeaseGranted { slot }
                };
                self.after(millis(1), Coming::Event(event));
            }
            Effect::AwaitLease { model, parts, priority, preempt } => self.await_lease(model, parts, priority, preempt),
            Effect::CancelLease { model } => {
                assert!(self.places.remove(&model).is_some(), "{model} leaves a queue in which it does not stand");
            }
            Effect::Spawn { slot, model, parts, residency, .. } => {
                self.check_layers(&model, &parts, residency.mode);
                self.spawn(slot, model);
            }
            Effect::Stop { slot, .. } => {
                let worker = self.workers.get(&slot).expect("a worker to stop");
                let parts = self.leases.get(&slot).map(|(parts, _)| parts.as_slice()).unwrap_or_default();
                let lost = self.core.devices().iter().any(|d| d.lost && parts.iter().any(|(part, _)| *part == d.id));
                assert!(worker.running.is_empty() || lost, "{} was stopped while it worked", worker.model);
                let exit = self.span(self.behaviour.exit);
                self.after(exit, Coming::WorkerDies(slot, Some(WorkerExit::Clean)));
            }
            Effect::ReleaseLease { slot } => {
                let alive = self.workers.get(&slot).is_some_and(|worker| worker.alive);
                assert!(!alive, "the lease of a live worker was released");
                let lease = self.leases.get_mut(&slot).expect("a lease to release");
                assert_eq!(lease.1, Lease::Granted);
                lease.1 = Lease::Releasing;
                self.workers.remove(&slot);
                let delay = millis(self.rng.below(100));
                self.after(delay, Coming::Event(Event::LeaseReleased { slot }));
            }
            Effect::ShareCores { slot, share } => {
                let worker = self.workers.get_mut(&slot).expect("a worker to compute");
                assert!(worker.ready, "a share for a worker whose cores are not known");
                assert_ne!(worker.share.replace(share), Some(share), "the same share again");
            }
            Effect::Dispatch { request, slot, queued, loading, .. } => {
                assert!(loading <= queued);
                self.dispatch(request, slot);
                self.may_give_up(request);
            }
            Effect::DispatchCloud { request, provider, .. } => {
                let before = self.fates.insert(request, Fate::Elsewhere(provider));
                assert_eq!(before, Some(Fate::Waiting), "request {request} was sent away although it does not wait");
                let answer = self.span(self.behaviour.answer);
                self.after(answer, Coming::AnswerFromElsewhere(request));
                self.may_give_up(request);
            }
            Effect::ForgetModel { model, named } => {
                let known = self.core.model(model.as_str());
                assert!(known.is_none(), "a model that is to be forgotten serves on: {known:?}");
                let delay = millis(self.rng.below(500));
                self.after(delay, Coming::Forget(model, named));
            }
            Effect::Learned(footprint) => self.learned.push(footprint),
            Effect::Done { request } => self.end(request, Fate::Done),
            Effect::Refuse { request, error } => self.end(request, Fate::Refused(error)),
            Effect::Recall { request, error } => {
                self.workers.values_mut().for_each(|worker| _ = worker.running.remove(&request));
                self.fates.insert(request, Fate::Waiting);
                self.end(request, Fate::Refused(error));
                self.tell(Event::Finished { request, outcome: RequestOutcome::Cancelled, tokens: None });
            }
            Effect::Drained => {
                assert!(!self.drained, "drained twice");
                self.drained = true;
            }
        }
    }

    fn end(&mut self, request: RequestId, fate: Fate) {
        let before = self.fates.insert(request, fate);
        assert_eq!(before, Some(Fate::Waiting), "request {request} got a second final answer");
        assert!(self.core.why(request).is_none(), "request {request} waits after its end");
    }

    fn spawn(&mut self, slot: SlotKey, model: ModelId) {
        assert_eq!(self.leases.get(&slot).map(|(_, lease)| *lease), Some(Lease::Granted), "a worker without lease");
        let load = self.span(self.behaviour.load);
        let bad = self.behaviour.bad.contains(&model);
        let worker = Worker { model, ready: false, alive: true, running: BTreeSet::new(), share: None };
        assert!(self.workers.insert(slot, worker).is_none(), "two workers in one generation");
        let news = |event| Coming::Event(event);
        self.after(load / 10, news(Event::WorkerStarted { slot, pid: 1, port: 8300 }));
        if !bad && self.rng.chance(self.behaviour.port_clash) {
            self.after(load / 9, Coming::WorkerDies(slot, Some(WorkerExit::PortInUse)));
        } else if bad || self.rng.chance(self.behaviour.fail_load) {
            let oom = self.rng.chance(300);
            let reason = if bad { Some(WorkerExit::BadModel) } else { oom.then_some(WorkerExit::OutOfMemory) };
            let at = load.mul_f64(self.rng.below(100) as f64 / 100.0);
            self.after(at, Coming::WorkerDies(slot, reason));
        } else {
            self.after(load / 2, news(Event::WorkerProgress { slot, progress: 0.5 }));
            let computes_here = self.leases.get(&slot).is_some_and(|(parts, _)| parts[0].0 == DeviceId::Cpu);
            let cores = computes_here.then_some(self.behaviour.cores);
            self.after(load, news(Event::WorkerReady { slot, context_length: Some(512), cores }));
        }
    }

    fn dispatch(&mut self, request: RequestId, slot: SlotKey) {
        let before = self.fates.insert(request, Fate::Running(slot));
        assert_eq!(before, Some(Fate::Waiting), "request {request} was dispatched although it does not wait");
        // The exit of a dead worker may not be reported to the scheduler yet.
        let Some(worker) = self.workers.get_mut(&slot) else { panic!("dispatch to no worker") };
        assert!(worker.ready, "dispatch to a worker that is not ready");
        if !worker.alive {
            let lost = Event::Finished { request, outcome: RequestOutcome::LostBeforeAnswer, tokens: None };
            self.after(Duration::from_millis(1), Coming::Event(lost));
            return;
        }
        worker.running.insert(request);
        let limit = self.models.iter().find(|m| m.id == worker.model).map(|m| {
            // Bulk work takes no place of the others.
            m.max_concurrent as usize * if m.bulk_waits { 2 } else { 1 }
        });
        assert!(limit.is_none_or(|limit| worker.running.len() <= limit), "more requests than the model takes");
        let answer = self.span(self.behaviour.answer);
        if self.rng.chance(self.behaviour.crash) {
            self.after(answer / 2, Coming::WorkerDies(slot, None));
        }
        self.after(answer, Coming::Answer(slot, request));
    }

    fn may_give_up(&mut self, request: RequestId) {
        if self.behaviour.gives_up > 0 && self.rng.chance(self.behaviour.gives_up) {
            let reads_nothing = Duration::from_millis(self.rng.below(3));
            self.after(reads_nothing, Coming::Leaves(request));
        }
    }

    /// Checks the invariants, after every step.
    fn check(&mut self) {
        self.check_owners();
        self.check_shares();
        let slots = self.core.slots();
        let devices = self.core.devices();
        let mut serving = BTreeSet::new();
        let mut moving = BTreeSet::new();
        let mut loading = BTreeSet::new();
        for slot in &slots {
            let replaced = slot.state == SlotState::Ready(ReadyPhase::Draining)
                && matches!(slot.leaving, Some(LeaveCause::Moved | LeaveCause::Reload));
            if slot.moving {
                assert!(
                    matches!(slot.state, SlotState::Loading(_)),
                    "a second copy of {} in {:?}",
                    slot.model,
                    slot.state
                );
                assert!(moving.insert(&slot.model), "a third copy of {}", slot.model);
            } else if matches!(slot.state, SlotState::Loading(_) | SlotState::Ready(_)) && !replaced {
                assert!(serving.insert(&slot.model), "two slots serve {}", slot.model);
            }
            for (device, _) in &slot.parts {
                let turn = matches!(slot.state, SlotState::Loading(_));
                assert!(!turn || loading.insert(device), "two loads at once on {device}");
            }
        }
        assert!(moving.is_subset(&serving), "a second copy without a first: {moving:?}");
        for (model, claim) in &self.core.claims {
            let asks = self.core.queue.get(claim.asker).is_some() || self.core.is_moving_for(claim.asker);
            assert!(asks, "room is made for {model:?} and nobody asks for it");
        }
        for device in &devices {
            let held: ByteCount =
                slots.iter().flat_map(|s| &s.parts).filter(|(d, _)| *d == device.id).map(|p| p.1).sum();
            assert_eq!(device.charged, held, "the account of {} is wrong", device.id);
            let leased: ByteCount =
                self.leases.values().flat_map(|(parts, _)| parts).filter(|(d, _)| *d == device.id).map(|p| p.1).sum();
            assert!(leased <= device.charged, "{} holds leases that are not in its account", device.id);
            // Other programs may take promised memory, and workers may use more than their share. The scheduler's own
            // promises never exceed the device.
            let ceiling = device.capacity.unwrap_or_default() - device.reserve;
            let others: ByteCount = self.outside.iter().map(|lease| lease.on(&device.id)).sum();
            assert!(leased + others <= ceiling, "{} is promised beyond its capacity", device.id);
        }
        self.check_decisions();
    }

    /// Checks that each request of the scheduler has a client that can end it, and that each occupied place has a
    /// request.
    /// Checks the shares of the host's cores (FA-5): a model with requests in flight has one, which its worker knows,
    /// and one that is alone has all cores.
    fn check_shares(&self) {
        let slots = self.core.slots();
        let computing: Vec<&SlotView> = slots.iter().filter(|slot| slot.cores.is_some() && slot.running > 0).collect();
        for slot in &slots {
            assert_eq!(slot.cpu_share.is_some(), slot.cores.is_some() && slot.running > 0, "{slot:?}");
            let key = SlotKey { id: slot.id, generation: slot.generation };
            if let (Some(share), Some(cores), Some(worker)) = (slot.cpu_share, slot.cores, self.workers.get(&key)) {
                let whole = CpuShare::whole(cores);
                assert_eq!(worker.share.unwrap_or(whole), share, "{} was told another share", slot.model);
                assert!(computing.len() > 1 || share == whole, "{} is alone and has {share:?}", slot.model);
            }
        }
        let usual = computing.iter().filter_map(|slot| slot.cpu_share).filter(|share| share.nice == 0);
        let threads = usual.map(|share| share.threads.get());
        let several: u32 = threads.filter(|threads| *threads > 1).sum();
        let cores = computing.iter().filter_map(|slot| Some(slot.cores?.cores.get())).max().unwrap_or(0);
        let bound = self.settings.share_cores && computing.len() > 1;
        assert!(!bound || several <= cores, "models wait for each other's threads: {computing:?}");
    }

    fn check_owners(&self) {
        let gone = |request: &&RequestId| !self.fates.get(request).is_some_and(Fate::is_open);
        let lost = self.core.running.keys().find(gone);
        assert_eq!(lost, None, "a request runs for nobody: {:?}", lost.map(|request| self.fates.get(request)));
        for slot in self.core.pool.in_use() {
            for (_, request) in &slot.running {
                let place = self.core.running.get(request).and_then(|run| run.place);
                assert_eq!(place, Some(slot.key()), "request {request} takes a place and does not run");
            }
        }
        let counted: usize = self.core.clients.iter().map(|(_, client)| client.running as usize).sum();
        assert_eq!(counted, self.core.running.len(), "the clients' counts of running requests are wrong");
    }

    /// Checks that a load begins only where it fits beside all known memory in use.
    fn check_promise(&self, parts: &[(DeviceId, ByteCount)]) {
        for device in self.core.devices().iter().filter(|device| parts.iter().any(|(d, _)| *d == device.id)) {
            let most = device.capacity.and_then(|c| Some(c - device.reserve - device.foreign? - device.leased));
            let most = most.expect("a load only where the memory is known");
            assert!(device.charged <= most, "{} is promised what others use", device.id);
            let computing = parts.iter().filter(|(d, _)| parts.len() == 1 || *d != DeviceId::Cpu).count();
            let split = computing > 1 && device.id != DeviceId::Cpu;
            let margin = if split { ByteCount::mib(512) } else { ByteCount::ZERO };
            assert!(device.charged + margin <= most, "a part of a split eats its margin on {}", device.id);
        }
    }

    /// Checks the rules of streamed layers (RS-11). A model streams only where it may, with no less than it needs. To
    /// GPUs it streams from the host, which has the buffers. A model with all layers on GPUs takes no part of the
    /// host.
    fn check_layers(&self, model: &ModelId, parts: &[(DeviceId, ByteCount)], mode: ResidencyMode) {
        let gpus: ByteCount = parts.iter().filter(|(device, _)| *device != DeviceId::Cpu).map(|part| part.1).sum();
        let host: ByteCount = parts.iter().filter(|(device, _)| *device == DeviceId::Cpu).map(|part| part.1).sum();
        let mixed = gpus > ByteCount::ZERO && host > ByteCount::ZERO;
        assert_eq!(parts.last().map(|(device, _)| device) == Some(&DeviceId::Cpu), host > ByteCount::ZERO, "{parts:?}");
        let Some(streaming) = self.models.iter().find(|m| m.id == *model).and_then(|m| m.size.streamed) else {
            // The name may have belonged to another model when the load began.
            return assert!(mode != ResidencyMode::Stream || self.models.iter().all(|m| m.id != *model) || !mixed);
        };
        let computing = if gpus > ByteCount::ZERO { gpus } else { host };
        match mode {
            // Workers refuse all other devices.
            ResidencyMode::Stream if parts.iter().any(|(d, _)| *d != DeviceId::Cpu && !crate::layers::is_gpu(d)) => {}
            ResidencyMode::Stream => {
                assert!(computing >= streaming.least, "{model} streams through {computing}: {parts:?}");
                assert!(gpus == ByteCount::ZERO || host >= streaming.ring, "{model} has no ring: {parts:?}");
            }
            _ => assert!(!mixed, "{model} stays, and holds {parts:?}"),
        }
    }

    /// Checks that a load begins only on open devices, within the limit of its category, and alone where it needs to
    /// be.
    fn check_limits(&self, loading: SlotId, model: &ModelId, parts: &[(DeviceId, ByteCount)]) {
        let slots = self.core.slots();
        let devices = self.core.devices();
        let device = |name: &DeviceId| devices.iter().find(|device| device.id == *name);
        for (name, _) in parts {
            let open = device(name).is_some_and(|device| !device.closed && !device.lost);
            assert!(open, "a load of {model} on {name}, which is closed or gone");
        }
        let about = |model: &ModelId| self.models.iter().find(|m| m.id == *model);
        let Some(description) = about(model) else { return };
        let living = |slot: &&SlotView| !matches!(slot.state, SlotState::Stopping(StopPhase::Releasing));
        if let Some(limit) = self.settings.max_loaded.of(description.category) {
            let of_it = slots.iter().filter(living).filter(|slot| slot.category == description.category);
            let models: BTreeSet<&ModelId> = of_it.map(|slot| &slot.model).collect();
            assert!(models.len() <= limit, "{models:?} are loaded where {limit} may be");
        }
        let alone = |model: &ModelId, parts: &[(DeviceId, ByteCount)]| -> BTreeSet<DeviceId> {
            let flagged = about(model).map(|m| m.exclusive_devices.clone()).unwrap_or_default();
            let exclusive = parts.iter().filter(|(name, _)| device(name).is_some_and(|device| device.exclusive));
            flagged.into_iter().chain(exclusive.map(|(name, _)| name.clone())).collect()
        };
        let mine = alone(model, parts);
        for other in slots.iter().filter(|slot| slot.id != loading) {
            let theirs = alone(&other.model, &other.parts);
            let uses =
                |parts: &[(DeviceId, ByteCount)], of: &BTreeSet<DeviceId>| parts.iter().any(|(d, _)| of.contains(d));
            let clash = !mine.is_disjoint(&theirs) || uses(&other.parts, &mine) || uses(parts, &theirs);
            assert!(
                !clash || other.revision != about(&other.model).map_or(0, |m| m.revision),
                "{model} beside {other:?}"
            );
        }
    }

    /// Checks that no pinned model is evicted for another, and that each decision has a reason.
    fn check_decisions(&mut self) {
        let before = self.decisions_seen;
        for decision in self.core.decisions().rev().take_while(|decision| decision.seq > before) {
            self.decisions_seen = self.decisions_seen.max(decision.seq);
            *self.verdict_counts.entry(decision.what).or_default() += 1;
            assert!(!decision.reasons.is_empty(), "a decision without a reason: {decision:?}");
            if matches!(decision.what, Verdict::Evict | Verdict::Drain) {
                let pinned = self.core.model(decision.model.as_str()).is_some_and(|model| model.pin);
                assert!(!pinned, "the pinned {} was evicted", decision.model);
            }
        }
    }
}
