//! Log-probabilities in the two forms OpenAI's API has: a list of objects for chats, parallel lists for completions.

use std::collections::BTreeMap;

use model_boss_engine::sampling::TokenLogprob;
use serde::Serialize;

/// `choices[].logprobs`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Logprobs {
    Chat { content: Vec<ChatToken>, refusal: Option<()> },
    Completion(CompletionLogprobs),
}

#[derive(Debug, Serialize)]
pub(super) struct ChatToken {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    top_logprobs: Vec<ChatAlternative>,
}

#[derive(Debug, Serialize)]
pub(super) struct ChatAlternative {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// One entry per token in each list.
#[derive(Debug, Default, Serialize)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    text_offset: Vec<usize>,
}

impl Logprobs {
    pub(super) fn chat(tokens: Vec<TokenLogprob>) -> Self {
        let content = tokens
            .into_iter()
            .map(|token| ChatToken {
                token: token.text,
                logprob: token.logprob.unwrap_or_default(),
                bytes: token.bytes,
                top_logprobs: token
                    .top
                    .into_iter()
                    .map(|top| ChatAlternative { token: top.text, logprob: top.logprob, bytes: top.bytes })
                    .collect(),
            })
            .collect();
        Self::Chat { content, refusal: None }
    }

    /// `offset` is where the first token begins in the text, in characters; it is moved behind the last.
    pub(super) fn completion(tokens: Vec<TokenLogprob>, offset: &mut usize) -> Self {
        let mut lists = CompletionLogprobs::default();
        for token in tokens {
            // OpenAI lists the chosen token among the alternatives even when it is not one of the most likely.
            let chosen = token.logprob.map(|logprob| (token.text.clone(), logprob));
            let alternatives: BTreeMap<_, _> =
                token.top.into_iter().map(|top| (top.text, top.logprob)).chain(chosen).collect();
            lists.text_offset.push(*offset);
            *offset += token.text.chars().count();
            lists.tokens.push(token.text);
            lists.token_logprobs.push(token.logprob);
            lists.top_logprobs.push((!alternatives.is_empty()).then_some(alternatives));
        }
        Self::Completion(lists)
    }
}
