//! Tokens and times of answers, as OpenAI's `usage` and llama.cpp's `timings` tell them.

use std::time::Duration;

use model_boss_engine::Finished;
use serde::Serialize;

/// OpenAI's `usage`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct UsageObject {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionTokensDetails>,
}

impl UsageObject {
    /// The usage of an answer that is not complete: the prompt's tokens and those of them that were cached.
    pub(super) fn so_far((prompt_tokens, cached_tokens): (usize, usize), completion_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
            completion_tokens_details: None,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

/// Details of answers with thinking.
#[derive(Clone, Debug, Serialize)]
struct CompletionTokensDetails {
    reasoning_tokens: usize,
}

/// llama.cpp's `timings`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TimingsObject {
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
    /// Tokens that were evaluated in advance, and those of them that came.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_n: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_n_accepted: Option<usize>,
}

/// Sums over the choices of one request. A prompt counts once however many answers it got.
#[derive(Clone, Debug, Default)]
pub(super) struct UsageTally {
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    thought_tokens: usize,
    drafted_tokens: usize,
    accepted_tokens: usize,
    prompt: Duration,
    predicted: Duration,
}

impl UsageTally {
    /// The sums of one answer that is not complete: tokens of the prompt that are evaluated, those of them that were
    /// cached, and the time for it; then tokens of the answer and their time.
    pub(super) fn so_far(
        (prompt_tokens, cached_tokens, prompt): (usize, usize, Duration),
        (completion_tokens, predicted): (usize, Duration),
    ) -> Self {
        Self { prompt_tokens, cached_tokens, prompt, completion_tokens, predicted, ..Self::default() }
    }

    /// Adds one finished choice; `counts_prompt` on the first of each prompt.
    pub(super) fn add(&mut self, finished: &Finished, counts_prompt: bool) {
        if counts_prompt {
            self.prompt_tokens += finished.usage.prompt_tokens;
            self.cached_tokens += finished.usage.cached_tokens;
        }
        self.completion_tokens += finished.usage.completion_tokens;
        self.thought_tokens += finished.usage.thought_tokens;
        self.drafted_tokens += finished.usage.drafted_tokens;
        self.accepted_tokens += finished.usage.accepted_tokens;
        // Choices run side by side: the longest is what the client waited for.
        self.prompt = self.prompt.max(finished.timings.prompt);
        self.predicted = self.predicted.max(finished.timings.predicted);
    }

    pub(super) fn usage(&self) -> UsageObject {
        UsageObject {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            total_tokens: self.prompt_tokens + self.completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: self.cached_tokens },
            completion_tokens_details: (self.thought_tokens > 0)
                .then_some(CompletionTokensDetails { reasoning_tokens: self.thought_tokens }),
        }
    }

    pub(super) fn timings(&self) -> TimingsObject {
        let prompt_n = self.prompt_tokens.saturating_sub(self.cached_tokens);
        let predicted_n = self.completion_tokens;
        let has_drafts = self.drafted_tokens > 0;
        TimingsObject {
            cache_n: self.cached_tokens,
            prompt_n,
            prompt_ms: milliseconds(self.prompt),
            prompt_per_token_ms: ratio(milliseconds(self.prompt), prompt_n as f64),
            prompt_per_second: ratio(prompt_n as f64, self.prompt.as_secs_f64()),
            predicted_n,
            predicted_ms: milliseconds(self.predicted),
            predicted_per_token_ms: ratio(milliseconds(self.predicted), predicted_n as f64),
            predicted_per_second: ratio(predicted_n as f64, self.predicted.as_secs_f64()),
            draft_n: has_drafts.then_some(self.drafted_tokens),
            draft_n_accepted: has_drafts.then_some(self.accepted_tokens),
        }
    }
}

/// In microsecond steps, which is the resolution of the clock.
fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

/// JSON has no infinities.
fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
