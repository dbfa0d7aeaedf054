//! The handle through which the shell asks the scheduler. Each order needs a permission.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model_boss_core::{Event, Input, LoadOptions, Moment, Order, Scheduler, Submission};
use model_boss_protocol::{Category, DeviceId, KeepAlive, Priority, RequestId};
use model_boss_tasks::{MachinePermit, ModelPermit, Permit};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::scheduling::{Message, News, Ticket};

/// Asks for inference, for what operators order, and for views. Asks for nothing without a permission. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Scheduling {
    news: News,
    ids: Arc<AtomicU64>,
    started: Instant,
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
        Ticket::ask(request, self.news.clone(), input)
    }

    fn next_id(&self) -> RequestId {
        RequestId(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// When its time began.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// The scheduler's moment of this instant.
    pub(crate) fn moment(&self, at: Instant) -> Moment {
        Moment::at(at.saturating_duration_since(self.started))
    }
}
