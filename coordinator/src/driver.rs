//! The one task that owns the scheduler: events in, effects out. It carries out every effect by a message to another
//! part (the ledger's thread, the supervisor, a waiting request) and never waits for an answer. The driver decides
//! nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use model_boss_catalog::LiveCatalog;
use model_boss_core::{Effect, Event, ExitReport, Input, Moment, Refusal, RequestOutcome, Scheduler, SlotKey};
use model_boss_host::clocks::later;
use model_boss_protocol::RequestId;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::footprints::FootprintSink;
use crate::leases::{DeviceTable, LeaseAsk, Leases};
use crate::metrics::Metrics;
use crate::scheduling::{Destination, Dispatched, DriverInput, Inbox, Pulse, Ruling, Scheduling};
use crate::supervisor::{SpawnOrder, Supervisor};

/// The messages handled before the clock is read again.
const BATCH: usize = 64;

/// The task that owns the scheduler.
pub(crate) struct Driver {
    /// The scheduler, which makes all decisions.
    pub(crate) scheduler: Scheduler,
    /// The handle of the scheduler, with the instant of [`Moment::START`].
    pub(crate) scheduling: Scheduling,
    /// The models of this machine.
    pub(crate) catalog: Arc<LiveCatalog>,
    /// The supervisor of the workers' processes.
    pub(crate) supervisor: Supervisor,
    /// The handle of the ledger's thread.
    pub(crate) leases: Leases,
    /// The devices, which translate names to UUIDs.
    pub(crate) devices: DeviceTable,
    /// The learned sizes.
    pub(crate) footprints: FootprintSink,
    pub(crate) metrics: Arc<Metrics>,
    /// The token is cancelled when all workers are stopped after a drain.
    pub(crate) drained: CancellationToken,
    /// Signals that the state may have changed.
    pub(crate) pulse: Arc<Pulse>,
    /// The senders of pending verdicts.
    pub(crate) waiting: DriverQueue,
}

/// The driver's own state: requests in the queue, loads in progress.
#[derive(Default)]
pub(crate) struct DriverQueue {
    replies: HashMap<RequestId, oneshot::Sender<Ruling>>,
    loads: HashMap<SlotKey, Instant>,
    /// The senders of orders to end dispatched requests.
    recalls: HashMap<RequestId, oneshot::Sender<Refusal>>,
    /// Events that followed from an effect at once and are not handled yet.
    events: VecDeque<Event>,
    /// The number of the last decision in the metrics.
    counted: u64,
}

impl Driver {
    /// Runs until every reporter is dropped.
    pub(crate) async fn run(mut self, inbox: Inbox) {
        let Inbox(mut inbox) = inbox;
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let wake = self.scheduler.next_wake().map(|moment| later(self.scheduling.started(), moment.since_start()));
            let tick = async {
                match wake {
                    Some(wake) => sleep_until(wake).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                count = inbox.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                    for message in batch.drain(..) {
                        self.message(message);
                    }
                }
                () = tick => self.handle(Event::Tick.into()),
            }
        }
    }

    fn message(&mut self, message: DriverInput) {
        match message {
            DriverInput::Event(event) => self.handle(event.into()),
            DriverInput::Ask { request, reply, input } => {
                self.waiting.replies.insert(request, reply);
                self.handle(input);
            }
            DriverInput::View(look) => look(&self.scheduler, self.now()),
            DriverInput::LeaseLost { slot } => self.supervisor.kill(slot, "its lease was lost"),
            DriverInput::Cut => self.supervisor.kill_all("drain_grace is over"),
        }
    }

    /// Handles one event or order, and everything that follows from it at once.
    fn handle(&mut self, input: Input) {
        let mut next = Some(input);
        while let Some(input) = next {
            if let Input::Event(event) = &input {
                self.note(event);
            }
            let now = self.now();
            for effect in self.scheduler.handle(now, input) {
                let follows = self.act(effect);
                self.waiting.events.extend(follows);
            }
            next = self.waiting.events.pop_front().map(Input::from);
        }
        self.count_decisions();
        self.pulse.changed();
    }

    fn count_decisions(&mut self) {
        let counted = self.waiting.counted;
        for decision in self.scheduler.decisions().rev().take_while(|decision| decision.seq > counted) {
            self.waiting.counted = self.waiting.counted.max(decision.seq);
            self.metrics.decided(decision.what, &decision.model);
        }
    }

    /// Records the shell's own part of an event.
    fn note(&mut self, event: &Event) {
        if let Event::Cancel(request) | Event::Finished { request, .. } | Event::RungFailed { request, .. } = event {
            self.waiting.recalls.remove(request);
        }
        match event {
            Event::Finished { outcome: RequestOutcome::LostBeforeAnswer, .. } => {}
            Event::Cancel(request) | Event::Finished { request, .. } => {
                self.waiting.replies.remove(request);
            }
            Event::WorkerReady { slot, .. } => {
                if let (Some(began), Some(worker)) = (self.waiting.loads.remove(slot), self.supervisor.worker(*slot)) {
                    self.metrics.loaded(&worker.model, began.elapsed());
                }
            }
            Event::WorkerExited { slot, .. } => {
                self.waiting.loads.remove(slot);
                self.supervisor.forget(*slot);
            }
            _ => {}
        }
    }

    /// Executes an effect; returns an event if its result is known at once.
    fn act(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::AcquireLease { slot, model, parts, priority, yields } => {
                self.leases.acquire(slot, LeaseAsk { model, parts, priority, preempt: false, yields });
            }
            Effect::AwaitLease { model, parts, priority, preempt } => {
                self.leases.wait(LeaseAsk { model, parts, priority, preempt, yields: true });
            }
            Effect::CancelLease { model } => self.leases.cancel(model),
            Effect::ReleaseLease { slot } => self.leases.release(slot),
            Effect::Spawn { slot, model, parts, context, engine, residency } => {
                let Some(model) = self.catalog.current().get(&model).cloned() else {
                    let description = format!("could not be started: no manifest describes {model}");
                    let exit = ExitReport { reason: None, description, last_lines: Vec::new() };
                    return Some(Event::WorkerExited { slot, exit });
                };
                let uuids: Vec<_> = parts.iter().filter_map(|(device, _)| self.devices.uuid_of(device)).collect();
                let (backend, visible_gpus) = (self.catalog.backend(&model), uuids.join(","));
                self.waiting.loads.insert(slot, Instant::now());
                self.supervisor.spawn(SpawnOrder {
                    slot,
                    model,
                    backend,
                    parts,
                    context,
                    residency,
                    visible_gpus,
                    engine,
                });
            }
            Effect::Stop { slot, parks, successor } => self.supervisor.stop(slot, parks, successor),
            Effect::ShareCores { slot, share } => self.supervisor.share_cores(slot, share),
            Effect::Dispatch { request, slot, priority, queued, loading, rung } => {
                let Some(worker) = self.supervisor.worker(slot).cloned() else {
                    return Some(Event::Finished { request, outcome: RequestOutcome::LostBeforeAnswer, tokens: None });
                };
                return self.send_on(
                    request,
                    Dispatched { place: Destination::Worker { worker, priority }, rung, queued, loading },
                );
            }
            Effect::DispatchCloud { request, provider, model, queued, rung } => {
                let (place, loading) = (Destination::Cloud { provider, model }, Duration::ZERO);
                return self.send_on(request, Dispatched { place, rung, queued, loading });
            }
            Effect::ForgetModel { model, named } => {
                let catalog = Arc::clone(&self.catalog);
                // Another thread may hold the catalog's lock while it reads files, and this task must not wait for
                // that.
                tokio::task::spawn_blocking(move || catalog.forget(&model, named));
            }
            Effect::Learned(footprint) => self.footprints.learn(footprint),
            Effect::Done { request } => _ = self.reply(request, Ruling::Done),
            Effect::Refuse { request, error } => _ = self.reply(request, Ruling::Refused(error)),
            Effect::Recall { request, error } => {
                // A request that is ending by itself needs no order.
                let _ = self.waiting.recalls.remove(&request).map(|recall| recall.send(error));
            }
            Effect::Drained => self.drained.cancel(),
        }
        None
    }

    /// Sends the dispatch to the request's ticket. If the ticket was dropped, the place is released, because no owner
    /// would ever end the request.
    fn send_on(&mut self, request: RequestId, dispatched: Dispatched) -> Option<Event> {
        let (order, recall) = oneshot::channel();
        let handed_over = self.reply(request, Ruling::Dispatched(dispatched, recall));
        if handed_over.is_some() {
            self.waiting.recalls.insert(request, order);
        }
        handed_over.is_none().then_some(Event::Cancel(request))
    }

    /// Sends a verdict; `None` if the ticket was dropped.
    fn reply(&mut self, request: RequestId, verdict: Ruling) -> Option<()> {
        self.waiting.replies.remove(&request)?.send(verdict).ok()
    }

    fn now(&self) -> Moment {
        self.scheduling.moment(Instant::now())
    }
}
