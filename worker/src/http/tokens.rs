//! `POST /tokenize` and `/detokenize`: the model's vocabulary by itself.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use model_boss_engine::text::Specials;
use model_boss_protocol::ApiError;
use serde::Serialize;

use crate::state::WorkerState;
use crate::text::{AddSpecials, ChatQuestion, EncodeQuestion};

use super::body::reading;
use super::chat::conversation;
use super::error::{ErrorAnswer, text_error};
use super::fields::RequestFields;

/// The answer of `/tokenize`, with the names vLLM and llama-server use.
#[derive(Serialize)]
pub(super) struct Tokenized {
    tokens: Vec<u32>,
    count: usize,
    max_model_len: usize,
}

/// The answer of `/detokenize`, under both names in use.
#[derive(Serialize)]
pub(super) struct Detokenized {
    content: String,
    prompt: String,
}

/// The tokens of `content` or `prompt`, or of `messages` through the chat template.
pub(super) async fn tokenize(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Tokenized>, ErrorAnswer> {
    let asked = reading(&worker, body?, asked).await?;
    let serving = worker.serving()?;
    let context = serving.info.context_length;
    let (tokens, field) = match asked {
        TokenizeInput::Text { field, question } => {
            (serving.text.encode(question).await.map(|mut lists| lists.pop().unwrap_or_default()), field)
        }
        TokenizeInput::Conversation(question) => {
            (serving.text.chat(question).await.map(|chat| chat.tokens), "messages")
        }
    };
    let tokens = tokens.map_err(|error| text_error(error, field, context))?;
    Ok(Json(Tokenized { count: tokens.len(), tokens, max_model_len: context }))
}

/// The input to be tokenised.
enum TokenizeInput {
    Text { field: &'static str, question: EncodeQuestion },
    Conversation(ChatQuestion),
}

fn asked(worker: &WorkerState, body: &[u8]) -> Result<TokenizeInput, ErrorAnswer> {
    let serving = worker.serving()?;
    let fields = RequestFields::read(body, None)?;
    let failed = |error| text_error(error, "content", serving.info.context_length);
    match fields.first_of::<String>(&["content", "prompt"])? {
        Some((field, text)) => {
            let add = fields.first_of(&["add_special_tokens", "add_special"])?.is_none_or(|(_, add)| add);
            let specials = if add { AddSpecials::Yes } else { AddSpecials::No };
            let question = EncodeQuestion::new(vec![text], specials, None).map_err(failed)?;
            Ok(TokenizeInput::Text { field, question })
        }
        None if fields.get::<serde_json::Value>("messages")?.is_none() => {
            Err(ApiError::invalid("content", "'content' or 'messages' is needed").into())
        }
        None => {
            let conversation = conversation(&fields, worker, &serving.text.facts)?;
            // Counting is no answer, so the context is no limit.
            Ok(TokenizeInput::Conversation(ChatQuestion::new(conversation, usize::MAX).map_err(failed)?))
        }
    }
}

/// The text of `tokens`, special ones spelled out.
pub(super) async fn detokenize(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Detokenized>, ErrorAnswer> {
    let body = body?;
    let serving = worker.serving()?;
    let tokens: Vec<u32> = RequestFields::read(&body, None)?.require("tokens")?;
    let content = serving.text.vocabulary.text(&tokens, Specials::Spelled);
    Ok(Json(Detokenized { prompt: content.clone(), content }))
}
