//! The plan of an answer before its first token, and the events that it is made of.

use axum::http::HeaderMap;
use model_boss_engine::{ContextShift, Generate, SequenceEvent};
use model_boss_protocol::{ApiError, headers};
use tokio::sync::mpsc::UnboundedReceiver;

use super::answer::ApiShape;
use super::native_answer::NativeAnswer;
use super::options::UsageIn;
use super::progress::AnswerExtras;

/// The properties of an answer that are known before its first token.
pub(super) struct AnswerPlan {
    /// One sequence per choice: all choices of the first prompt, then all of the second, …
    pub(super) works: Vec<Generate>,
    /// The number of choices for each prompt.
    pub(super) choices_per_prompt: usize,
    pub(super) shape: ApiShape,
    pub(super) stream: bool,
    pub(super) usage: UsageIn,
    /// Whether identifiers of calls have nine letters and digits.
    pub(super) short_ids: bool,
    /// The reports inside the answer.
    pub(super) extras: AnswerExtras,
    /// The description of the request, where `__verbose` is wanted.
    pub(super) verbose: Option<NativeAnswer>,
}

impl AnswerPlan {
    /// The plan with the coordinator's wishes in the headers.
    pub(super) fn with_headers(self, headers: &HeaderMap) -> Result<Self, ApiError> {
        Ok(self.of_caller(headers).shifting(context_shift(headers)?))
    }

    /// Answers go on when the context is full.
    fn shifting(mut self, shift: Option<ContextShift>) -> Self {
        for work in &mut self.works {
            work.shift = shift;
        }
        self
    }

    /// Keys and values of the prompts are shared with other requests of the same caller alone. Callers without a name,
    /// of a worker that is run by hand, are one.
    fn of_caller(mut self, headers: &HeaderMap) -> Self {
        let caller = headers.get(headers::CALLER).and_then(|caller| caller.to_str().ok()).unwrap_or_default();
        for work in &mut self.works {
            work.cache = work.cache.take().map(|salt| salt.of_caller(caller));
        }
        self
    }
}

fn context_shift(headers: &HeaderMap) -> Result<Option<ContextShift>, ApiError> {
    let Some(keep) = headers.get(headers::CONTEXT_SHIFT) else { return Ok(None) };
    let keep: Option<i64> = keep.to_str().ok().and_then(|keep| keep.parse().ok());
    let keep = keep.ok_or_else(|| {
        let message = format!("the header '{}' must be a whole number of tokens", headers::CONTEXT_SHIFT);
        ApiError::invalid(headers::CONTEXT_SHIFT, message)
    })?;
    Ok(Some(ContextShift { keep: usize::try_from(keep).unwrap_or(usize::MAX) }))
}

/// Events of all choices, each with its index. Dropping it cancels all running choices.
///
/// The channel has no bound: a sequence sends at most `max_tokens` small events, and a client that reads slowly must
/// not stop the whole batch.
pub(super) type ChoiceEvents = UnboundedReceiver<(usize, SequenceEvent)>;
