//! llama-server's own shape of an answer.

use std::collections::BTreeMap;

use model_boss_engine::sampling::TokenLogprob;
use model_boss_engine::{FinishReason, Finished};
use serde_json::{Value, json};

use super::tally::TimingsObject;

/// The facts of a request that its answers repeat.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NativeAnswer {
    pub(super) model: String,
    pub(super) context: usize,
    pub(super) settings: Value,
    /// The text of each prompt, special tokens spelled out.
    pub(super) prompts: Vec<String>,
    pub(super) with_tokens: bool,
    pub(super) with_probs: bool,
    /// Whether the answer is a list.
    pub(super) is_list: bool,
    /// The slot that the client named.
    pub(super) slot: i64,
}

/// The text of an answer, and its tokens.
#[derive(Default)]
pub(super) struct NativeText {
    pub(super) content: String,
    pub(super) tokens: Vec<TokenLogprob>,
    /// Whether the text so far has a line break.
    pub(super) has_new_line: bool,
}

impl NativeText {
    /// A whole text.
    pub(super) fn of(content: String, tokens: Vec<TokenLogprob>) -> Self {
        Self { has_new_line: content.contains('\n'), content, tokens }
    }
}

impl NativeAnswer {
    /// A whole answer, or the last event of a stream, whose text was sent before.
    pub(super) fn last(
        &self,
        (prompt, index): (usize, usize),
        text: NativeText,
        end: &Finished,
        timings: &TimingsObject,
    ) -> Value {
        let ids: Vec<u32> = text.tokens.iter().filter(|_| self.with_tokens).map(|token| token.id).collect();
        let (stop_type, word) = match (end.reason, &end.stop) {
            (FinishReason::Stop, Some(word)) => ("word", word.as_str()),
            (FinishReason::Stop, None) => ("eos", ""),
            (FinishReason::Length, _) => ("limit", ""),
        };
        let evaluated = end.usage.prompt_tokens + end.usage.completion_tokens;
        let mut answer = json!({
            "index": index,
            "content": text.content,
            "tokens": ids,
            "id_slot": self.slot,
            "stop": true,
            "model": self.model,
            "tokens_predicted": end.usage.completion_tokens,
            "tokens_evaluated": end.usage.prompt_tokens,
            "generation_settings": self.settings,
            "prompt": self.prompts.get(prompt),
            "has_new_line": text.has_new_line,
            // The context ended the answer, or older tokens were forgotten for it.
            "truncated": evaluated > self.context || end.reason == FinishReason::Length && evaluated == self.context,
            "stop_type": stop_type,
            "stopping_word": word,
            "tokens_cached": evaluated,
        });
        if self.with_probs && !text.tokens.is_empty() {
            answer["completion_probabilities"] = probabilities(text.tokens);
        }
        // The coordinator reads the counts of an answer at its end.
        answer["timings"] = json!(timings);
        answer
    }

    /// An event with one more piece of the text.
    pub(super) fn piece(&self, index: usize, text: NativeText, prompt_tokens: usize, sampled: usize) -> Value {
        let ids: Vec<u32> = text.tokens.iter().map(|token| token.id).collect();
        let mut event = json!({
            "index": index,
            "content": text.content,
            "tokens": ids,
            "stop": false,
            "id_slot": self.slot,
            "tokens_predicted": sampled,
            "tokens_evaluated": prompt_tokens,
        });
        if self.with_probs {
            event["completion_probabilities"] = probabilities(text.tokens);
        }
        event
    }
}

/// `completion_probabilities`.
fn probabilities(tokens: Vec<TokenLogprob>) -> Value {
    let spelled = |id: u32, text: String, bytes: Vec<u8>, logprob: Option<f32>| {
        BTreeMap::from([
            ("id", json!(id)),
            ("token", json!(text)),
            ("bytes", json!(bytes)),
            ("logprob", json!(logprob.unwrap_or_default())),
        ])
    };
    let tokens = tokens.into_iter().map(|token| {
        let top = token.top.into_iter().map(|top| spelled(top.id, top.text, top.bytes, Some(top.logprob)));
        let top: Vec<_> = top.collect();
        let mut object = spelled(token.id, token.text, token.bytes, token.logprob);
        object.insert("top_logprobs", json!(top));
        object
    });
    json!(tokens.collect::<Vec<_>>())
}
