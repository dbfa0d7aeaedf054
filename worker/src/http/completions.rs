//! `POST /v1/completions`: text or tokens continued as they are, without a chat template.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::Response;
use model_boss_engine::Generate;
use model_boss_protocol::ApiError;
use serde::Deserialize;

use crate::state::{Serving, Worker};

use super::answer::Shape;
use super::chat::{panicked, refuse_huge};
use super::error::{Failure, tokenizer_error};
use super::fields::Fields;
use super::generate::{Plan, answer};
use super::options::{MOST_LOGPROBS, Options};

/// Most answers in one request, over all its prompts.
const MOST_SEQUENCES: usize = 1_024;

/// Tokens of an answer where the request does not say, as in OpenAI's API.
const MAX_TOKENS: usize = 16;

/// Continues one or several prompts.
pub(super) async fn complete(
    State(worker): State<Arc<Worker>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Failure> {
    let body = body?;
    let prepared = {
        let worker = Arc::clone(&worker);
        tokio::task::spawn_blocking(move || prepare(&worker, &body)).await.map_err(|_| panicked())?
    };
    answer(&worker, worker.serving()?, prepared?).await
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, a list of texts, a list of token ids or a list of such lists")]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

/// From a body to work for the engine.
pub(super) fn prepare(worker: &Worker, body: &[u8]) -> Result<Plan, Failure> {
    let serving = worker.serving()?;
    let fields = Fields::read(body, Some(&worker.defaults))?;
    if fields.get::<serde_json::Value>("suffix")?.is_some_and(|suffix| suffix != "") {
        return Err(ApiError::invalid("suffix", "'suffix' is not supported; leave it out").into());
    }
    let mut options = Options::read(&fields, serving.info.vocab_size, 0)?;
    options.max_tokens = Some(options.max_tokens.unwrap_or(MAX_TOKENS));
    let logprobs = fields.whole(&["logprobs"], 0..=MOST_LOGPROBS)?.and_then(|top| usize::try_from(top).ok());
    let echo = fields.get::<bool>("echo")?.unwrap_or(false);
    let prompts = tokenised(serving, fields.require("prompt")?)?;
    if prompts.len() * options.choices > MOST_SEQUENCES {
        let message = format!("'prompt' and 'n' ask for more than {MOST_SEQUENCES} answers");
        return Err(ApiError::invalid("prompt", message).into());
    }
    let echoed = echo.then(|| prompts.iter().map(|prompt| prompt.text(serving)).collect::<Result<Vec<_>, _>>());
    let echoed = echoed.transpose()?;
    let mut works = Vec::with_capacity(prompts.len() * options.choices);
    for prompt in prompts {
        let prompt: Arc<[u32]> = prompt.tokens.into();
        works.extend((0..options.choices).map(|choice| Generate {
            prompt_logprobs: echo && logprobs.is_some(),
            ..options.work(Arc::clone(&prompt), choice, logprobs)
        }));
    }
    Ok(Plan {
        works,
        choices_per_prompt: options.choices,
        shape: Shape::Completion { echo: echoed },
        stream: options.stream,
        include_usage: options.include_usage,
    })
}

/// One prompt of a request.
struct Prompt {
    /// As it came; absent when tokens came.
    text: Option<String>,
    tokens: Vec<u32>,
}

impl Prompt {
    /// The text to repeat in front of the answer.
    fn text(&self, serving: &Serving) -> Result<String, ApiError> {
        match &self.text {
            Some(text) => Ok(text.clone()),
            None => serving.text.tokenizer.decode(&self.tokens).map_err(|error| tokenizer_error(&error, "prompt")),
        }
    }
}

fn tokenised(serving: &Serving, prompts: Prompts) -> Result<Vec<Prompt>, Failure> {
    let given = |tokens| Prompt { text: None, tokens };
    let texts = match prompts {
        Prompts::Text(text) => vec![text],
        Prompts::Texts(texts) if !texts.is_empty() => texts,
        Prompts::Tokens(tokens) if !tokens.is_empty() => return Ok(vec![given(tokens)]),
        Prompts::TokenLists(lists) if !lists.is_empty() => return Ok(lists.into_iter().map(given).collect()),
        Prompts::Texts(_) | Prompts::Tokens(_) | Prompts::TokenLists(_) => {
            return Err(ApiError::invalid("prompt", "'prompt' is empty").into());
        }
    };
    let tokenised = |text: String| {
        refuse_huge(serving, &text, "prompt")?;
        let tokens = serving.text.tokenizer.encode_prompt(&text);
        let tokens = tokens.map_err(|error| tokenizer_error(&error, "prompt"))?;
        Ok(Prompt { text: Some(text), tokens })
    };
    texts.into_iter().map(tokenised).collect()
}
