//! Reports to the task that owns the scheduler, and the end that it reads.

use model_boss_core::{Event, Input, Moment, Scheduler};
use model_boss_protocol::{Generation, RequestId, SlotId};
use tokio::sync::{mpsc, oneshot};

use crate::scheduling::Verdict;

/// Reports to the driver; what it carries cannot order anything. Never blocks; what may wait is bounded where it comes in (connections, workers).
#[derive(Clone, Debug)]
pub(crate) struct News(mpsc::UnboundedSender<Message>);

/// A look at the scheduler, with the time.
pub(crate) type Look = Box<dyn FnOnce(&Scheduler, Moment) + Send>;

pub(crate) enum Message {
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
    /// The reporting end, and the end that the driver reads.
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

    pub(super) fn send(&self, message: Message) {
        // The driver ends last of all: without it nobody is left to tell.
        let _ = self.0.send(message);
    }
}

/// The driver's end of [`News`].
pub(crate) struct Inbox(pub(crate) mpsc::UnboundedReceiver<Message>);
