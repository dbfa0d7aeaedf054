//! What is known of an answer before its first token, and the events that it is made of.

use model_boss_engine::{Event, Generate};
use tokio::sync::mpsc::UnboundedReceiver;

use super::answer::Shape;
use super::options::UsageIn;

/// Everything known about an answer before the first token.
pub(super) struct Plan {
    /// One sequence per choice: all choices of the first prompt, then all of the second, …
    pub(super) works: Vec<Generate>,
    /// How many choices each prompt gets.
    pub(super) choices_per_prompt: usize,
    pub(super) shape: Shape,
    pub(super) stream: bool,
    pub(super) usage: UsageIn,
}

/// Events of all choices, each with its index. Dropping it cancels whatever still runs.
///
/// The channel has no bound: a sequence sends at most `max_tokens` small events, and a client that reads slowly must not
/// stop the whole batch.
pub(super) type Events = UnboundedReceiver<(usize, Event)>;
