//! The channel of reports to the task that owns the scheduler.

use model_boss_core::{Event, Input, Moment, Scheduler, SlotKey};
use model_boss_protocol::RequestId;
use tokio::sync::{mpsc, oneshot};

use crate::scheduling::Ruling;

/// The sender of reports to the driver, which cannot send an order. Sending never blocks. The number of pending reports
/// is limited by the limits on connections and workers.
#[derive(Clone, Debug)]
pub(crate) struct News(mpsc::UnboundedSender<DriverInput>);

/// A function that reads the scheduler, with the current time.
pub(crate) type SchedulerLook = Box<dyn FnOnce(&Scheduler, Moment) + Send>;

pub(crate) enum DriverInput {
    Event(Event),
    /// A request or order whose sender gets a verdict.
    Ask {
        request: RequestId,
        reply: oneshot::Sender<Ruling>,
        input: Input,
    },
    View(SchedulerLook),
    LeaseLost {
        slot: SlotKey,
    },
    Cut,
}

impl News {
    /// The two ends of the channel: reports are sent on the first, and the driver reads the second.
    pub(crate) fn channel() -> (Self, Inbox) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), Inbox(receiver))
    }

    /// Reports an event.
    pub(crate) fn event(&self, event: Event) {
        self.send(DriverInput::Event(event));
    }

    /// Reports that the lease of this slot's generation is lost.
    pub(crate) fn lease_lost(&self, slot: SlotKey) {
        self.send(DriverInput::LeaseLost { slot });
    }

    /// Queues a function that reads the scheduler, without waiting for it.
    pub(crate) fn look(&self, look: impl FnOnce(&Scheduler) + Send + 'static) {
        self.send(DriverInput::View(Box::new(|scheduler, _| look(scheduler))));
    }

    pub(super) fn send(&self, message: DriverInput) {
        // The driver ends last of all: without it the report has no receiver.
        let _ = self.0.send(message);
    }
}

/// The driver's end of [`News`].
pub(crate) struct Inbox(pub(crate) mpsc::UnboundedReceiver<DriverInput>);
