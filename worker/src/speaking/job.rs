//! A request to a model that speaks.

use std::collections::VecDeque;
use std::sync::Arc;

use model_boss_engine::{SpeakerMemory, TorchGenerator};
use model_boss_protocol::Priority;
use tokio::sync::mpsc;

use super::pieces::{PieceSender, SpokenUsage, TellEngine};

/// An order to the engine's thread.
pub(crate) enum SpeechOrder {
    /// A request.
    Speak(Box<SpeechJob>),
    /// Something has changed: there is room for samples again, or a client is gone.
    Look,
}

/// A way to wake the engine from the end that sends pieces on.
pub(crate) fn wake(orders: mpsc::Sender<SpeechOrder>) -> TellEngine {
    // An engine that has orders in its inbox is awake.
    Box::new(move || drop(orders.try_send(SpeechOrder::Look)))
}

/// A part of a request's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobPart {
    pub(crate) symbols: Vec<u32>,
    /// Samples of silence behind it.
    pub(crate) silence: usize,
}

/// A request, and what is left of it.
pub(crate) struct SpeechJob {
    pub(crate) parts: VecDeque<JobPart>,
    pub(crate) voice: usize,
    pub(crate) speed: f32,
    /// The description of how it shall sound; empty without a wish.
    pub(crate) instructions: Arc<[u32]>,
    /// The noise of all parts, one after the other.
    pub(crate) random: TorchGenerator,
    /// The model's state between parts.
    pub(crate) memory: SpeakerMemory,
    pub(crate) priority: Priority,
    pub(crate) reply: PieceSender,
    /// The cost so far.
    pub(crate) usage: SpokenUsage,
}
