//! `POST /v1/completions`: text or tokens continued as they are, without a chat template.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderMap;
use axum::response::Response;
use model_boss_engine::Generate;
use model_boss_engine::text::Specials;
use model_boss_protocol::ApiError;
use serde::Deserialize;

use crate::state::{Serving, WorkerState};
use crate::text::{AddSpecials, EncodeQuestion, TextFailure};

use super::answer::ApiShape;
use super::body::reading;
use super::error::{ErrorAnswer, text_error};
use super::fields::RequestFields;
use super::form::{Form, compiled, form};
use super::generate::answer;
use super::options::{GenerateOptions, MOST_LOGPROBS, MaxTokens};
use super::plan::AnswerPlan;

/// Most answers in one request, over all its prompts.
const MOST_SEQUENCES: usize = 1_024;

/// Tokens of an answer where the request does not say, as in OpenAI's API.
const MAX_TOKENS: usize = 16;

/// Continues one or several prompts.
pub(super) async fn complete(
    State(worker): State<Arc<WorkerState>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ErrorAnswer> {
    let plan = prepare(&worker, body?).await?.with_headers(&headers)?;
    answer(&worker, worker.serving()?, plan).await
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, a list of texts, a list of token ids or a list of such lists")]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

/// A request without the tokens of its prompts.
struct CompletionDraft {
    prompts: CompletionPrompt,
    options: GenerateOptions,
    logprobs: Option<usize>,
    echo: bool,
    form: Option<Form>,
}

/// Prompts, as they came.
enum CompletionPrompt {
    Texts { echoed: Vec<String>, question: EncodeQuestion },
    Tokens(Vec<Vec<u32>>),
}

/// From a body to work for the engine.
pub(super) async fn prepare(worker: &Arc<WorkerState>, body: Bytes) -> Result<AnswerPlan, ErrorAnswer> {
    let CompletionDraft { prompts, mut options, logprobs, echo, form } = reading(worker, body, draft).await?;
    let serving = worker.serving()?;
    options.grammar = compiled(serving, form, None).await?;
    let (prompts, texts) = match prompts {
        CompletionPrompt::Tokens(prompts) => {
            let text = |tokens: &Vec<u32>| serving.text.vocabulary.text(tokens, Specials::Hidden);
            let texts = if echo { prompts.iter().map(text).collect() } else { Vec::new() };
            (prompts, texts)
        }
        CompletionPrompt::Texts { echoed, question } => {
            let prompts = serving.text.encode(question).await;
            (prompts.map_err(|error| text_error(error, "prompt", serving.info.context_length))?, echoed)
        }
    };
    let mut works = Vec::with_capacity(prompts.len() * options.choices);
    for prompt in prompts {
        let prompt: Arc<[u32]> = prompt.into();
        works.extend((0..options.choices).map(|choice| Generate {
            prompt_logprobs: echo && logprobs.is_some(),
            ..options.work(Arc::clone(&prompt), choice, logprobs)
        }));
    }
    Ok(AnswerPlan {
        works,
        choices_per_prompt: options.choices,
        shape: ApiShape::Completion { echo: echo.then_some(texts) },
        stream: options.stream,
        usage: options.usage,
        short_ids: false,
    })
}

fn draft(worker: &WorkerState, body: &[u8]) -> Result<CompletionDraft, ErrorAnswer> {
    let serving = worker.serving()?;
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let mut options = GenerateOptions::read(&fields, serving.info.vocab_size, 0)?;
    options.adapter = serving.adapters.asked(&worker.spec.model, fields.model().as_deref())?;
    if options.max_tokens == MaxTokens::Unsaid {
        options.max_tokens = MaxTokens::Some(MAX_TOKENS);
    }
    let logprobs = fields.whole(&["logprobs"], 0..=MOST_LOGPROBS)?.and_then(|top| usize::try_from(top).ok());
    let echo = fields.get::<bool>("echo")?.unwrap_or(false);
    let (count, prompts) = asked(serving, fields.require("prompt")?, echo)?;
    if count * options.choices > MOST_SEQUENCES {
        let message = format!("'prompt' and 'n' ask for more than {MOST_SEQUENCES} answers");
        return Err(ApiError::invalid("prompt", message).into());
    }
    Ok(CompletionDraft { prompts, options, logprobs, echo, form: form(&fields)? })
}

/// The prompts of a request, and how many they are.
fn asked(serving: &Serving, prompts: Prompts, echo: bool) -> Result<(usize, CompletionPrompt), ErrorAnswer> {
    let texts = match prompts {
        Prompts::Text(text) => vec![text],
        Prompts::Texts(texts) if !texts.is_empty() => texts,
        Prompts::Tokens(tokens) if !tokens.is_empty() => return Ok((1, CompletionPrompt::Tokens(vec![tokens]))),
        Prompts::TokenLists(lists) if !lists.is_empty() => return Ok((lists.len(), CompletionPrompt::Tokens(lists))),
        Prompts::Texts(_) | Prompts::Tokens(_) | Prompts::TokenLists(_) => {
            return Err(ApiError::invalid("prompt", "'prompt' is empty").into());
        }
    };
    let context = serving.info.context_length;
    let failed = |error| text_error(error, "prompt", context);
    // Tokenising takes time and memory in proportion to the text; one that cannot fit is refused before.
    let tokens = texts.iter().map(|text| serving.text.vocabulary.at_least(text)).max().unwrap_or(0);
    if tokens > context {
        return Err(failed(TextFailure::TooLong { tokens }).into());
    }
    let (count, echoed) = (texts.len(), if echo { texts.clone() } else { Vec::new() });
    let question = EncodeQuestion::new(texts, AddSpecials::Yes, Some(context)).map_err(failed)?;
    Ok((count, CompletionPrompt::Texts { echoed, question }))
}
