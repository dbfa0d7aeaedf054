//! The one task that owns the scheduler: events in, effects out. It acts on every effect by telling somebody else (the
//! ledger's thread, the supervisor, a waiting request) and never waits for any of them. Decides nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use model_boss_core::{
    Effect, Event, ExitReport, Input, LoadOptions, Moment, Order, Outcome, RungChoice, Scheduler, Submission,
};
use model_boss_protocol::{
    ApiError, Category, DeviceId, ErrorCode, Generation, KeepAlive, Priority, RequestId, SlotId,
};
use model_boss_tasks::{MachinePermit, ModelPermit, Permit};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::catalog::LiveCatalog;
use crate::clocks::later;
use crate::footprints::Footprints;
use crate::leases::{DeviceTable, Leases};
use crate::metrics::Metrics;
use crate::supervisor::{SpawnOrder, Supervisor, Worker};

/// Messages handled before the clock is looked at again.
const BATCH: usize = 64;

/// Reports to the driver; what it carries cannot order anything. Never blocks; what may wait is bounded where it comes in (connections, workers).
#[derive(Clone, Debug)]
pub(crate) struct News(mpsc::UnboundedSender<Message>);

/// Asks for inference, for what operators order, and for views. Asks for nothing without a permission. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Scheduling {
    news: News,
    ids: Arc<AtomicU64>,
    started: Instant,
}

/// Says that something may have changed, to the one task that asked to hear it. Costs a flag while nobody asks.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    heard: AtomicBool,
    beat: Notify,
}

impl Pulse {
    /// Whether somebody wants to hear it.
    pub(crate) fn listen(&self, heard: bool) {
        self.heard.store(heard, Ordering::Release);
    }

    /// Waits until something may have changed since the last time.
    pub(crate) async fn beat(&self) {
        self.beat.notified().await;
    }

    fn changed(&self) {
        if self.heard.load(Ordering::Acquire) {
            self.beat.notify_one();
        }
    }
}

/// What a client wants, in the scheduler's words.
#[derive(Debug)]
pub(crate) struct Wish {
    /// Who asks, and where it may be served.
    pub(crate) permit: Permit,
    /// What the route needs the model to do.
    pub(crate) category: Category,
    /// How important it is, if it says so.
    pub(crate) priority: Option<Priority>,
    /// When its answer is worth nothing any more.
    pub(crate) deadline: Option<Instant>,
    /// How long the model should stay loaded after it.
    pub(crate) keep_alive: Option<KeepAlive>,
}

/// A place in the queue, then the right to use a worker. Dropped before its end, it tells the scheduler that the client
/// is gone.
#[derive(Debug)]
pub(crate) struct Ticket {
    hold: Hold,
    /// Comes to be owned with the ticket: one that nobody read goes with it.
    verdict: oneshot::Receiver<Verdict>,
}

/// The one owner of a request in the scheduler, from before it is submitted until its end is reported. Dropped earlier, it
/// reports that the client is gone, which ends the request at every stage: so it need not know whether its turn came.
#[derive(Debug)]
struct Hold {
    request: RequestId,
    news: News,
    ended: bool,
}

impl Hold {
    /// Reports what is answered with a verdict.
    fn ask(&self, input: Input) -> oneshot::Receiver<Verdict> {
        let (reply, verdict) = oneshot::channel();
        self.news.send(Message::Ask { request: self.request, reply, input });
        verdict
    }

    /// The scheduler ended the request itself.
    fn ended(&mut self) {
        self.ended = true;
    }

    /// Reports how the request ended.
    fn end(&mut self, outcome: Outcome, tokens: Option<u64>) {
        if !self.ended {
            self.ended = true;
            self.news.event(Event::Finished { request: self.request, outcome, tokens });
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.ended {
            self.news.event(Event::Cancel(self.request));
        }
    }
}

/// The right to send a request on now.
#[derive(Clone, Debug)]
pub(crate) struct Dispatched {
    /// Where to.
    pub(crate) place: Place,
    /// Which rung of its ladder that is, and why.
    pub(crate) rung: RungChoice,
    /// How long the request waited in the queue.
    pub(crate) queued: Duration,
    /// How much of that was a load.
    pub(crate) loading: Duration,
}

/// Where a request is sent.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// To a worker of ours.
    Worker {
        /// Which.
        worker: Arc<Worker>,
        /// How important the request is, after the limits of its client.
        priority: Priority,
    },
    /// To a provider elsewhere.
    Cloud {
        /// Which one.
        provider: String,
        /// Which of its models.
        model: String,
    },
}

impl Place {
    /// The name of what serves the request, for people and headers.
    pub(crate) fn served(&self) -> String {
        match self {
            Self::Worker { worker, .. } => worker.model.to_string(),
            Self::Cloud { provider, model } => format!("{provider}:{model}"),
        }
    }
}

#[derive(Debug)]
enum Verdict {
    Dispatched(Dispatched),
    Refused(ApiError),
    Done,
}

/// A look at the scheduler, with the time.
type Look = Box<dyn FnOnce(&Scheduler, Moment) + Send>;

enum Message {
    Event(Event),
    /// What ends in a verdict for its sender.
    Ask {
        request: RequestId,
        reply: oneshot::Sender<Verdict>,
        input: Input,
    },
    View(Look),
    LeaseLost {
        slot: SlotId,
        generation: Generation,
    },
    Cut,
}

impl News {
    /// The reporting end, and the end that [`Driver::run`] reads.
    pub(crate) fn channel() -> (Self, Inbox) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), Inbox(receiver))
    }

    /// Reports that something happened.
    pub(crate) fn event(&self, event: Event) {
        self.send(Message::Event(event));
    }

    /// Reports that the ledger no longer promises this slot its bytes.
    pub(crate) fn lease_lost(&self, slot: SlotId, generation: Generation) {
        self.send(Message::LeaseLost { slot, generation });
    }

    /// Asks for a look at the scheduler, without waiting for it.
    pub(crate) fn look(&self, look: impl FnOnce(&Scheduler) + Send + 'static) {
        self.send(Message::View(Box::new(|scheduler, _| look(scheduler))));
    }

    fn send(&self, message: Message) {
        // The driver ends last of all: without it nobody is left to tell.
        let _ = self.0.send(message);
    }
}

/// The driver's end of [`News`].
pub(crate) struct Inbox(mpsc::UnboundedReceiver<Message>);

#[cfg(test)]
impl Inbox {
    /// The next event that was reported and not read; other messages are passed over.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Message::Event(event) = self.0.try_recv().ok()? {
                return Some(event);
            }
        }
    }
}

impl Scheduling {
    /// A handle whose time begins now.
    pub(crate) fn new(news: News) -> Self {
        Self { news, ids: Arc::new(AtomicU64::new(1)), started: Instant::now() }
    }

    /// Where reports go.
    #[cfg(test)]
    pub(crate) fn news(&self) -> &News {
        &self.news
    }

    /// Puts a request into the queue.
    pub(crate) fn submit(&self, wish: Wish) -> Ticket {
        let id = self.next_id();
        let deadline = wish.deadline.map(|deadline| self.moment(deadline));
        let Wish { permit, category, priority, keep_alive, .. } = wish;
        let (client, ladder) = permit.into_parts();
        self.ask(id, Order::Submit(Submission { id, ladder, category, client, priority, deadline, keep_alive }).into())
    }

    /// Asks for a model to be loaded; the returned value answers when it is.
    pub(crate) fn load(&self, permit: ModelPermit, options: LoadOptions) -> Ticket {
        let (by, model) = permit.into_parts();
        self.order(|request| Order::Load { request, by, model, options: Box::new(options) })
    }

    /// Asks for one model to be unloaded.
    pub(crate) fn unload(&self, permit: ModelPermit) -> Ticket {
        let (by, model) = permit.into_parts();
        self.order(|request| Order::Unload { request, by, model: Some(model) })
    }

    /// Asks for all models to be unloaded.
    pub(crate) fn unload_all(&self, permit: MachinePermit) -> Ticket {
        let by = permit.into_principal();
        self.order(|request| Order::Unload { request, by, model: None })
    }

    /// Asks for a loaded model to be moved.
    pub(crate) fn move_to(&self, permit: ModelPermit, device: DeviceId, evict: bool, priority: Priority) -> Ticket {
        let (by, model) = permit.into_parts();
        self.order(|request| Order::Move { request, by, model, device, evict, priority })
    }

    /// Says that what is loaded of a model is stale.
    pub(crate) fn invalidate(&self, permit: ModelPermit) -> Ticket {
        let (_, model) = permit.into_parts();
        self.order(|request| Order::Invalidate { request, model })
    }

    /// Pins a model, or not; `None`: as its manifest says.
    pub(crate) fn pin(&self, permit: ModelPermit, pinned: Option<bool>) -> Ticket {
        let (_, model) = permit.into_parts();
        self.order(|request| Order::Pin { request, model, pinned })
    }

    /// Asks for a device to be emptied and closed.
    pub(crate) fn free_device(&self, _permit: MachinePermit, device: DeviceId) -> Ticket {
        self.order(|request| Order::FreeDevice { request, device })
    }

    /// Opens a device again.
    pub(crate) fn open_device(&self, _permit: MachinePermit, device: DeviceId) -> Ticket {
        self.order(|request| Order::OpenDevice { request, device })
    }

    /// An order carries the number of its ticket. Private: whoever orders something has a permission.
    fn order(&self, order: impl FnOnce(RequestId) -> Order) -> Ticket {
        let request = self.next_id();
        self.ask(request, order(request).into())
    }

    /// Begins the end: what is new is refused, what runs is finished, then every worker is stopped.
    pub(crate) fn drain(&self) {
        self.news.event(Event::Drain);
    }

    /// Ends every worker now, whatever it works on.
    pub(crate) fn cut(&self) {
        self.news.send(Message::Cut);
    }

    /// Looks at the scheduler's state. `None` when the driver has ended.
    pub(crate) async fn view<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Scheduler, Moment) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, seen) = oneshot::channel();
        self.news.send(Message::View(Box::new(move |scheduler, now| {
            // Whoever asked may be gone.
            let _ = reply.send(look(scheduler, now));
        })));
        seen.await.ok()
    }

    fn ask(&self, request: RequestId, input: Input) -> Ticket {
        let hold = Hold { request, news: self.news.clone(), ended: false };
        let verdict = hold.ask(input);
        Ticket { hold, verdict }
    }

    fn next_id(&self) -> RequestId {
        RequestId(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    fn moment(&self, at: Instant) -> Moment {
        Moment::at(at.saturating_duration_since(self.started))
    }
}

impl Ticket {
    /// The number of the request.
    pub(crate) fn request(&self) -> RequestId {
        self.hold.request
    }

    /// Waits until a worker is free for this request, or for the refusal.
    pub(crate) async fn dispatched(&mut self) -> Result<Dispatched, ApiError> {
        let dispatched = self.verdict().await?;
        dispatched.ok_or_else(|| ApiError::new(ErrorCode::Internal, "the scheduler answered another question"))
    }

    /// Waits until an operator's load or unload is done.
    pub(crate) async fn done(mut self) -> Result<(), ApiError> {
        self.verdict().await.map(|_| ())
    }

    /// The worker went away before any byte of its answer was sent on: back into the queue.
    pub(crate) fn lost(&mut self) {
        let request = self.hold.request;
        let lost = Event::Finished { request, outcome: Outcome::LostBeforeAnswer, tokens: None };
        self.verdict = self.hold.ask(lost.into());
    }

    /// What it was sent to cannot answer it, and nothing was sent on: to the next rung, or else the end with this error.
    pub(crate) fn rung_failed(&mut self, error: ApiError) {
        self.verdict = self.hold.ask(Event::RungFailed { request: self.hold.request, error }.into());
    }

    /// The request ended, after so many tokens of prompt and answer, if they were counted.
    pub(crate) fn finish(mut self, outcome: Outcome, tokens: Option<u64>) {
        self.hold.end(outcome, tokens);
    }

    /// The request ended with this error in place of an answer, if it did not end before.
    pub(crate) fn failed(mut self, error: &ApiError) {
        let in_time = error.code != ErrorCode::DeadlineExceeded;
        self.hold.end(if in_time { Outcome::Refused } else { Outcome::DeadlineExceeded }, None);
    }

    /// `None`: an order is done.
    async fn verdict(&mut self) -> Result<Option<Dispatched>, ApiError> {
        let verdict = (&mut self.verdict).await;
        match verdict {
            Ok(Verdict::Dispatched(dispatched)) => Ok(Some(dispatched)),
            Ok(Verdict::Done) => {
                self.hold.ended();
                Ok(None)
            }
            Ok(Verdict::Refused(error)) => {
                self.hold.ended();
                Err(error)
            }
            Err(_) => Err(ApiError::new(ErrorCode::Draining, "the coordinator is shutting down")),
        }
    }
}

/// The task that owns the scheduler.
pub(crate) struct Driver {
    /// All decisions.
    pub(crate) scheduler: Scheduler,
    /// When [`Moment::START`] was.
    pub(crate) scheduling: Scheduling,
    /// The models.
    pub(crate) catalog: Arc<LiveCatalog>,
    /// The processes.
    pub(crate) supervisor: Supervisor,
    /// The ledger.
    pub(crate) leases: Leases,
    /// The devices, for the UUIDs behind their names.
    pub(crate) devices: DeviceTable,
    /// Where learned sizes are kept.
    pub(crate) footprints: Footprints,
    /// What is counted.
    pub(crate) metrics: Arc<Metrics>,
    /// Set when everything is stopped after a drain.
    pub(crate) drained: CancellationToken,
    /// Says that something may have changed.
    pub(crate) pulse: Arc<Pulse>,
    /// Who waits for which verdict.
    pub(crate) waiting: Waiting,
}

/// What the driver remembers: requests in the queue, loads under way.
#[derive(Default)]
pub(crate) struct Waiting {
    replies: HashMap<RequestId, oneshot::Sender<Verdict>>,
    loads: HashMap<SlotId, Instant>,
    /// What followed from an effect at once and was not handled yet.
    events: VecDeque<Event>,
    /// The last decision that is in the counters.
    counted: u64,
}

impl Driver {
    /// Runs until nobody can report anything any more.
    pub(crate) async fn run(mut self, inbox: Inbox) {
        let Inbox(mut inbox) = inbox;
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let wake = self.scheduler.next_wake().map(|moment| later(self.scheduling.started, moment.since_start()));
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

    fn message(&mut self, message: Message) {
        match message {
            Message::Event(event) => self.handle(event.into()),
            Message::Ask { request, reply, input } => {
                self.waiting.replies.insert(request, reply);
                self.handle(input);
            }
            Message::View(look) => look(&self.scheduler, self.now()),
            Message::LeaseLost { slot, generation } => self.supervisor.kill(slot, generation, "its lease was lost"),
            Message::Cut => self.supervisor.kill_all("drain_grace is over"),
        }
    }

    /// One event or order, and everything that follows from it at once.
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

    /// What the shell itself remembers of an event.
    fn note(&mut self, event: &Event) {
        match event {
            Event::Finished { outcome: Outcome::LostBeforeAnswer, .. } => {}
            Event::Cancel(request) | Event::Finished { request, .. } => {
                self.waiting.replies.remove(request);
            }
            Event::WorkerReady { slot, generation, .. } => {
                if let (Some(began), Some(worker)) =
                    (self.waiting.loads.remove(slot), self.supervisor.worker(*slot, *generation))
                {
                    self.metrics.loaded(&worker.model, began.elapsed());
                }
            }
            Event::WorkerExited { slot, generation, .. } => {
                self.waiting.loads.remove(slot);
                self.supervisor.forget(*slot, *generation);
            }
            _ => {}
        }
    }

    /// Does what the scheduler wants; gives an event when the outcome is known at once.
    fn act(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::AcquireLease { slot, generation, model, parts, priority, yields } => {
                self.leases.acquire(slot, generation, model, parts, priority, yields);
            }
            Effect::AwaitLease { model, parts, priority, preempt } => {
                self.leases.wait_for(model, parts, priority, preempt);
            }
            Effect::ForgoLease { model } => self.leases.forgo(model),
            Effect::ReleaseLease { slot, generation } => self.leases.release(slot, generation),
            Effect::Spawn { slot, generation, model, parts, context, engine, residency } => {
                let Some(model) = self.catalog.current().get(&model).cloned() else {
                    let description = format!("could not be started: no manifest describes {model}");
                    let exit = ExitReport { reason: None, description, last_lines: Vec::new() };
                    return Some(Event::WorkerExited { slot, generation, exit });
                };
                let uuids: Vec<_> = parts.iter().filter_map(|(device, _)| self.devices.uuid_of(device)).collect();
                let (backend, visible_gpus) = (self.catalog.backend(&model), uuids.join(","));
                self.waiting.loads.insert(slot, Instant::now());
                self.supervisor.spawn(SpawnOrder {
                    slot,
                    generation,
                    model,
                    backend,
                    parts,
                    context,
                    residency,
                    visible_gpus,
                    engine,
                });
            }
            Effect::Stop { slot, generation } => self.supervisor.stop(slot, generation),
            Effect::Dispatch { request, slot, generation, priority, queued, loading, rung } => {
                let Some(worker) = self.supervisor.worker(slot, generation).cloned() else {
                    return Some(Event::Finished { request, outcome: Outcome::LostBeforeAnswer, tokens: None });
                };
                return self
                    .send_on(request, Dispatched { place: Place::Worker { worker, priority }, rung, queued, loading });
            }
            Effect::DispatchCloud { request, provider, model, queued, rung } => {
                let (place, loading) = (Place::Cloud { provider, model }, Duration::ZERO);
                return self.send_on(request, Dispatched { place, rung, queued, loading });
            }
            Effect::ForgetModel { model, named } => {
                let catalog = Arc::clone(&self.catalog);
                // The catalog may be looking at files, which nothing else has to wait for.
                tokio::task::spawn_blocking(move || catalog.forget(&model, named));
            }
            Effect::Learned(footprint) => self.footprints.learn(footprint),
            Effect::Done { request } => _ = self.reply(request, Verdict::Done),
            Effect::Refuse { request, error } => _ = self.reply(request, Verdict::Refused(error)),
            Effect::Drained => self.drained.cancel(),
        }
        None
    }

    /// Hands the turn over to the request's ticket. Without one nobody would ever end the request: its place is given back.
    fn send_on(&mut self, request: RequestId, dispatched: Dispatched) -> Option<Event> {
        let handed_over = self.reply(request, Verdict::Dispatched(dispatched));
        handed_over.is_none().then_some(Event::Cancel(request))
    }

    /// `None`: its ticket is gone.
    fn reply(&mut self, request: RequestId, verdict: Verdict) -> Option<()> {
        self.waiting.replies.remove(&request)?.send(verdict).ok()
    }

    fn now(&self) -> Moment {
        self.scheduling.moment(Instant::now())
    }
}

#[cfg(test)]
mod tests;
