//! llama-server's reports inside a stream: the progress of a prompt, and times so far.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::tally::{TimingsObject, UsageTally};

/// The reports that a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AnswerExtras {
    /// Times in every event.
    pub(super) timings_per_token: bool,
    /// Events about the prompt while it is evaluated.
    pub(super) progress: bool,
    /// The prompt and all options beside the answer, as `__verbose`.
    pub(super) verbose: bool,
}

/// `prompt_progress`.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PromptReport {
    total: usize,
    cache: usize,
    processed: usize,
    time_ms: u64,
}

/// The progress of one answer.
#[derive(Clone, Debug, Default)]
pub(super) struct ChoiceProgress {
    prompt_tokens: usize,
    cached: usize,
    evaluated: usize,
    sampled: usize,
    began: Option<Instant>,
    answers: Option<Instant>,
}

impl ChoiceProgress {
    /// The progress of an answer to a prompt of so many tokens.
    pub(super) fn of(prompt_tokens: usize) -> Self {
        Self { prompt_tokens, ..Self::default() }
    }

    /// The number of the prompt's tokens.
    pub(super) const fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// More of the prompt is evaluated.
    pub(super) fn evaluating(&mut self, cached: usize, evaluated: usize) {
        (self.cached, self.evaluated) = (cached, evaluated);
        self.began.get_or_insert_with(Instant::now);
    }

    /// The prompt is evaluated.
    pub(super) fn started(&mut self, cached: usize) {
        let now = Instant::now();
        (self.cached, self.evaluated) = (cached, self.prompt_tokens);
        self.began.get_or_insert(now);
        self.answers.get_or_insert(now);
    }

    /// So many tokens are sampled.
    pub(super) const fn sampled(&mut self, sampled: usize) {
        self.sampled = sampled;
    }

    /// Whether the answer has begun.
    pub(super) const fn has_sampled(&self) -> bool {
        self.sampled > 0
    }

    /// The report on the prompt.
    pub(super) fn report(&self) -> PromptReport {
        let time_ms = u64::try_from(self.prompt_time().as_millis()).unwrap_or(u64::MAX);
        PromptReport { total: self.prompt_tokens, cache: self.cached, processed: self.evaluated, time_ms }
    }

    /// The times so far. Before any work all of them are zero.
    pub(super) fn timings(&self) -> TimingsObject {
        let predicted = self.answers.filter(|_| self.sampled > 0).map_or(Duration::ZERO, |since| since.elapsed());
        let prompt = if self.evaluated > self.cached { self.prompt_time() } else { Duration::ZERO };
        UsageTally::so_far((self.evaluated, self.cached, prompt), (self.sampled, predicted)).timings()
    }

    fn prompt_time(&self) -> Duration {
        let Some(began) = self.began else { return Duration::ZERO };
        self.answers.unwrap_or_else(Instant::now).duration_since(began)
    }
}
