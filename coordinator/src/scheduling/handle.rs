//! The handle through which the shell calls the scheduler. Each order needs a permission.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model_boss_core::{Event, Input, LoadOptions, Moment, Order, Scheduler, Submission};
use model_boss_protocol::{Category, DeviceId, KeepAlive, Priority, RequestId};
use model_boss_tasks::{CancelPermit, MachinePermit, ModelPermit, Permit};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::scheduling::{BackgroundRun, DriverInput, News, Ticket};

/// Submits inference requests and operators' orders, and reads views. Every order takes a permission. The handle is
/// cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Scheduling {
    news: News,
    ids: Arc<AtomicU64>,
    started: Instant,
}

/// A client's request, in the scheduler's terms.
#[derive(Debug)]
pub(crate) struct Wish {
    /// The client, and the models that it may use.
    pub(crate) permit: Permit,
    /// The category of model that the route needs.
    pub(crate) category: Category,
    /// The requested priority, if any.
    pub(crate) priority: Option<Priority>,
    /// The time from which the answer is useless.
    pub(crate) deadline: Option<Instant>,
    /// The requested time for the model to stay loaded after it.
    pub(crate) keep_alive: Option<KeepAlive>,
    /// The amount of work, where it is known beforehand.
    pub(crate) work: Option<u64>,
}

impl Scheduling {
    /// A handle whose scheduler time begins now.
    pub(crate) fn new(news: News) -> Self {
        Self { news, ids: Arc::new(AtomicU64::new(1)), started: Instant::now() }
    }

    /// The channel of reports.
    #[cfg(test)]
    pub(crate) fn news(&self) -> &News {
        &self.news
    }

    /// Submits a request to the queue.
    pub(crate) fn submit(&self, wish: Wish) -> Ticket {
        let id = self.next_id();
        let deadline = wish.deadline.map(|deadline| self.moment(deadline));
        let Wish { permit, category, priority, keep_alive, work, .. } = wish;
        let (client, ladder) = permit.into_parts();
        let run = BackgroundRun::current();
        let priority = run.as_ref().map_or(priority, |run| run.priority(priority));
        let submission = Submission { id, ladder, category, client, priority, deadline, keep_alive, work };
        self.ask(id, Order::Submit(submission).into()).of_run(run)
    }

    /// Orders a model to be loaded; the ticket resolves when it is.
    pub(crate) fn load(&self, permit: ModelPermit, options: LoadOptions) -> Ticket {
        let (by, model) = permit.into_parts();
        self.order(|request| Order::Load { request, by, model, options: Box::new(options) })
    }

    /// Orders one model to be unloaded.
    pub(crate) fn unload(&self, permit: ModelPermit) -> Ticket {
        let (by, model) = permit.into_parts();
        self.order(|request| Order::Unload { request, by, model: Some(model) })
    }

    /// Orders all models to be unloaded.
    pub(crate) fn unload_all(&self, permit: MachinePermit) -> Ticket {
        let by = permit.into_principal();
        self.order(|request| Order::Unload { request, by, model: None })
    }

    /// Orders a loaded model to be moved to another device.
    pub(crate) fn move_to(&self, permit: ModelPermit, device: DeviceId, evict: bool, priority: Priority) -> Ticket {
        let (by, model) = permit.into_parts();
        self.order(|request| Order::Move { request, by, model, device, evict, priority })
    }

    /// Marks the loaded copy of a model as stale.
    pub(crate) fn invalidate(&self, permit: ModelPermit) -> Ticket {
        let (_, model) = permit.into_parts();
        self.order(|request| Order::Invalidate { request, model })
    }

    /// Pins a model, or unpins it; `None` restores the manifest's choice.
    pub(crate) fn pin(&self, permit: ModelPermit, pinned: Option<bool>) -> Ticket {
        let (_, model) = permit.into_parts();
        self.order(|request| Order::Pin { request, model, pinned })
    }

    /// Orders a device to be emptied and closed.
    pub(crate) fn free_device(&self, _permit: MachinePermit, device: DeviceId) -> Ticket {
        self.order(|request| Order::FreeDevice { request, device })
    }

    /// Opens a device again.
    pub(crate) fn open_device(&self, _permit: MachinePermit, device: DeviceId) -> Ticket {
        self.order(|request| Order::OpenDevice { request, device })
    }

    /// Orders a waiting or running request to be cancelled.
    pub(crate) fn cancel_request(&self, permit: CancelPermit, target: RequestId) -> Ticket {
        let by = permit.into_principal();
        self.order(|request| Order::CancelRequest { request, by, target })
    }

    /// Sends an order with its ticket's number. The method is private, so that every order needs a permission: the
    /// public methods take one.
    fn order(&self, order: impl FnOnce(RequestId) -> Order) -> Ticket {
        let request = self.next_id();
        self.ask(request, order(request).into())
    }

    /// Begins the shutdown: new requests are refused, running ones finish, then every worker is stopped.
    pub(crate) fn drain(&self) {
        self.news.event(Event::Drain);
    }

    /// Ends every worker now, also a busy one.
    pub(crate) fn cut(&self) {
        self.news.send(DriverInput::Cut);
    }

    /// Reads the scheduler's state. `None` when the driver has ended.
    pub(crate) async fn view<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Scheduler, Moment) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, seen) = oneshot::channel();
        self.news.send(DriverInput::View(Box::new(move |scheduler, now| {
            // An error means that the caller disconnected.
            let _ = reply.send(look(scheduler, now));
        })));
        seen.await.ok()
    }

    fn ask(&self, request: RequestId, input: Input) -> Ticket {
        Ticket::ask(request, self.news.clone(), input)
    }

    fn next_id(&self) -> RequestId {
        RequestId(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// The instant at which the scheduler's time began.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// An instant in the scheduler's time.
    pub(crate) fn moment(&self, at: Instant) -> Moment {
        Moment::at(at.saturating_duration_since(self.started))
    }
}
