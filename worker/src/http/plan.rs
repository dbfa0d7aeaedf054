//! The plan of an answer before its first token, and the events that it is made of.

use model_boss_engine::{Generate, SequenceEvent};
use tokio::sync::mpsc::UnboundedReceiver;

use super::answer::ApiShape;
use super::options::UsageIn;

/// The properties of an answer that are known before its first token.
pub(super) struct AnswerPlan {
    /// One sequence per choice: all choices of the first prompt, then all of the second, …
    pub(super) works: Vec<Generate>,
    /// The number of choices for each prompt.
    pub(super) choices_per_prompt: usize,
    pub(super) shape: ApiShape,
    pub(super) stream: bool,
    pub(super) usage: UsageIn,
}

/// Events of all choices, each with its index. Dropping it cancels all running choices.
///
/// The channel has no bound: a sequence sends at most `max_tokens` small events, and a client that reads slowly must
/// not stop the whole batch.
pub(super) type ChoiceEvents = UnboundedReceiver<(usize, SequenceEvent)>;
