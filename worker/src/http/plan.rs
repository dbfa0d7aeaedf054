//! The plan of an answer before its first token, and the events that it is made of.

use axum::http::HeaderMap;
use model_boss_engine::{Generate, SequenceEvent};
use model_boss_protocol::headers;
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

impl AnswerPlan {
    /// Keys and values of the prompts are shared with other requests of the same caller alone. Callers without a name,
    /// of a worker that is run by hand, are one.
    pub(super) fn of_caller(mut self, headers: &HeaderMap) -> Self {
        let caller = headers.get(headers::CALLER).and_then(|caller| caller.to_str().ok()).unwrap_or_default();
        for work in &mut self.works {
            work.cache = work.cache.take().map(|salt| salt.of_caller(caller));
        }
        self
    }
}

/// Events of all choices, each with its index. Dropping it cancels all running choices.
///
/// The channel has no bound: a sequence sends at most `max_tokens` small events, and a client that reads slowly must
/// not stop the whole batch.
pub(super) type ChoiceEvents = UnboundedReceiver<(usize, SequenceEvent)>;
