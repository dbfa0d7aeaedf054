//! A request to a model that speaks.

use std::collections::VecDeque;

use model_boss_engine::TorchGenerator;
use model_boss_protocol::Priority;

use super::pieces::{PieceSender, SpokenUsage};

/// An order to the engine's thread.
pub(crate) enum SpeechOrder {
    /// A request.
    Speak(Box<SpeechJob>),
    /// Something has changed: there is room for samples again, or a client is gone.
    Look,
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
    /// The noise of all parts, one after the other.
    pub(crate) random: TorchGenerator,
    pub(crate) priority: Priority,
    pub(crate) reply: PieceSender,
    /// What was spoken so far.
    pub(crate) usage: SpokenUsage,
}
