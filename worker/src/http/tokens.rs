//! `POST /tokenize` and `/detokenize`: the model's vocabulary by itself.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use model_boss_protocol::ApiError;
use serde::Serialize;

use crate::state::Worker;

use super::chat::{conversation, panicked, tokens};
use super::error::{Failure, tokenizer_error};
use super::fields::Fields;
use super::options::Options;

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
    State(worker): State<Arc<Worker>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Tokenized>, Failure> {
    let body = body?;
    tokio::task::spawn_blocking(move || tokenized(&worker, &body)).await.map_err(|_| panicked())?.map(Json)
}

fn tokenized(worker: &Worker, body: &[u8]) -> Result<Tokenized, Failure> {
    let serving = worker.serving()?;
    let fields = Fields::read(body, None)?;
    let tokens = match fields.first_of::<String>(&["content", "prompt"])? {
        Some((field, text)) => {
            let tokenizer = &serving.text.tokenizer;
            let add_special = fields.first_of(&["add_special_tokens", "add_special"])?.is_none_or(|(_, add)| add);
            let tokens = if add_special { tokenizer.encode_prompt(&text) } else { tokenizer.encode_rendered(&text) };
            tokens.map_err(|error| tokenizer_error(&error, field))?
        }
        None if fields.get::<serde_json::Value>("messages")?.is_none() => {
            return Err(ApiError::invalid("content", "'content' or 'messages' is needed").into());
        }
        None => {
            let conversation = conversation(&fields, worker, &serving.text)?;
            let mut options = Options::read(&Fields::of_defaults(&worker.defaults), serving.info.vocab_size, 0)?;
            tokens(serving, conversation, &mut options)?
        }
    };
    Ok(Tokenized { count: tokens.len(), tokens, max_model_len: serving.info.context_length })
}

/// The text of `tokens`, special ones spelled out.
pub(super) async fn detokenize(
    State(worker): State<Arc<Worker>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Detokenized>, Failure> {
    let body = body?;
    let serving = worker.serving()?;
    let tokens: Vec<u32> = Fields::read(&body, None)?.require("tokens")?;
    let content = serving.text.tokenizer.decode_with_special(&tokens);
    let content = content.map_err(|error| tokenizer_error(&error, "tokens"))?;
    Ok(Json(Detokenized { prompt: content.clone(), content }))
}
