//! `POST /v1/completions`: text or tokens continued as they are, without a chat template.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderMap;
use axum::response::Response;
use model_boss_engine::Generate;
use model_boss_protocol::ApiError;

use crate::state::WorkerState;

use super::answer::ApiShape;
use super::body::reading;
use super::error::ErrorAnswer;
use super::fields::RequestFields;
use super::form::{Form, compiled, form};
use super::generate::answer;
use super::infill::Gap;
use super::native::told;
use super::options::{GenerateOptions, MOST_LOGPROBS, MaxTokens};
use super::plan::AnswerPlan;
use super::prompts::AskedPrompts;

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

/// A request without the tokens of its prompts.
struct CompletionDraft {
    prompts: AskedPrompts,
    options: GenerateOptions,
    logprobs: Option<usize>,
    echo: bool,
    form: Option<Form>,
}

/// From a body to work for the engine.
pub(super) async fn prepare(worker: &Arc<WorkerState>, body: Bytes) -> Result<AnswerPlan, ErrorAnswer> {
    let CompletionDraft { prompts, mut options, logprobs, echo, form } = reading(worker, body, draft).await?;
    let serving = worker.serving()?;
    options.look_up(serving).await?;
    options.grammar = compiled(serving, form, None).await?;
    let prompts = prompts.tokens(serving).await?;
    let texts: Vec<String> = prompts.iter().filter(|_| echo).map(|prompt| prompt.echo(serving)).collect();
    let mut works = Vec::with_capacity(prompts.len() * options.choices);
    for prompt in prompts {
        let prompt: Arc<[u32]> = prompt.tokens.into();
        works.extend((0..options.choices).map(|choice| Generate {
            prompt_logprobs: echo && logprobs.is_some(),
            ..options.work(Arc::clone(&prompt), choice, logprobs)
        }));
    }
    let verbose = told(worker, &works, &options);
    Ok(AnswerPlan {
        works,
        choices_per_prompt: options.choices,
        shape: ApiShape::Completion { echo: echo.then_some(texts) },
        stream: options.stream,
        usage: options.usage,
        short_ids: false,
        extras: options.extras,
        verbose,
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
    let logprobs = fields.whole(&["logprobs", "n_probs"], 0..=MOST_LOGPROBS)?.and_then(|top| usize::try_from(top).ok());
    let echo = fields.get::<bool>("echo")?.unwrap_or(false);
    let suffix = fields.get::<String>("suffix")?.filter(|suffix| !suffix.is_empty());
    let prompts = match suffix {
        None => AskedPrompts::read(serving, &fields)?,
        Some(_) if echo => return Err(ApiError::invalid("echo", "'echo' and 'suffix' do not go together").into()),
        // Only one text can have a gap behind it.
        Some(suffix) => {
            let prefix = fields.require("prompt")?;
            Gap { prefix, suffix, begun: String::new(), files: Vec::new() }.prompt(serving, "suffix")?
        }
    };
    prompts.fit(options.choices)?;
    Ok(CompletionDraft { prompts, options, logprobs, echo, form: form(&fields)? })
}
