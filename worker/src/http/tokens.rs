//! `POST /tokenize` and `/detokenize`: the model's vocabulary by itself.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use model_boss_engine::text::{Specials, Vocabulary};
use model_boss_protocol::ApiError;
use serde::Serialize;

use crate::state::WorkerState;
use crate::text::{AddSpecials, EncodeQuestion};

use super::body::reading;
use super::chat::conversation;
use super::error::{ErrorAnswer, text_error};
use super::fields::RequestFields;
use super::images::ChatAsked;
use super::message::ChatMessage;

/// The answer of `/tokenize`, with the names vLLM and llama-server use.
#[derive(Serialize)]
pub(super) struct Tokenized {
    tokens: Tokens,
    /// The text of each token, as vLLM gives it on request.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
    count: usize,
    max_model_len: usize,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Tokens {
    Ids(Vec<u32>),
    /// With their texts, as llama-server gives them on request.
    Pieces(Vec<TokenPiece>),
}

#[derive(Serialize)]
struct TokenPiece {
    id: u32,
    piece: PieceText,
}

/// The text of a token, or its bytes where they are no text.
#[derive(Serialize)]
#[serde(untagged)]
enum PieceText {
    Text(String),
    Bytes(Vec<u8>),
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
    let TokenizeDraft { input, form } = reading(&worker, body?, draft).await?;
    let serving = worker.serving()?;
    let context = serving.info.context_length;
    let (tokens, field) = match input {
        TokenizeInput::Text { field, question } => {
            (serving.text.encode(question).await.map(|mut lists| lists.pop().unwrap_or_default()), field)
        }
        TokenizeInput::Conversation(asked) => (Ok(asked.prompt(&worker).await?.tokens), "messages"),
    };
    let tokens = tokens.map_err(|error| text_error(error, field, context))?;
    Ok(Json(form.answer(tokens, context, &serving.text.vocabulary)))
}

/// A request for tokens.
struct TokenizeDraft {
    input: TokenizeInput,
    form: TokenForm,
}

/// The wanted form of tokens.
struct TokenForm {
    with_pieces: bool,
    with_texts: bool,
}

impl TokenForm {
    fn answer(&self, tokens: Vec<u32>, context: usize, vocabulary: &Vocabulary) -> Tokenized {
        let text = |token: &u32| String::from_utf8_lossy(vocabulary.bytes(*token)).into_owned();
        let piece = |id: u32| {
            let bytes = vocabulary.bytes(id);
            let text = std::str::from_utf8(bytes).map(|text| PieceText::Text(text.to_owned()));
            TokenPiece { id, piece: text.unwrap_or_else(|_| PieceText::Bytes(bytes.to_vec())) }
        };
        Tokenized {
            count: tokens.len(),
            token_strs: self.with_texts.then(|| tokens.iter().map(text).collect()),
            tokens: if self.with_pieces {
                Tokens::Pieces(tokens.into_iter().map(piece).collect())
            } else {
                Tokens::Ids(tokens)
            },
            max_model_len: context,
        }
    }
}

/// The input to be tokenised.
enum TokenizeInput {
    Text { field: &'static str, question: EncodeQuestion },
    Conversation(ChatAsked),
}

fn draft(worker: &WorkerState, body: &[u8]) -> Result<TokenizeDraft, ErrorAnswer> {
    let fields = RequestFields::read(body, None)?;
    let form = TokenForm {
        with_pieces: fields.get("with_pieces")?.unwrap_or(false),
        with_texts: fields.get("return_token_strs")?.unwrap_or(false),
    };
    Ok(TokenizeDraft { input: input(worker, &fields)?, form })
}

fn input(worker: &WorkerState, fields: &RequestFields<'_>) -> Result<TokenizeInput, ErrorAnswer> {
    let serving = worker.serving()?;
    let failed = |error| text_error(error, "content", serving.info.context_length);
    match fields.first_of::<String>(&["content", "prompt"])? {
        Some((field, text)) => {
            // A conversation beside the text is not read, but it has to be one.
            fields.get::<Vec<ChatMessage>>("messages")?;
            // llama-server, whose name of the text is `content`, adds none by default; vLLM does.
            let add = fields.first_of(&["add_special_tokens", "add_special"])?;
            let add = add.map_or(field == "prompt", |(_, add)| add);
            let specials = if add { AddSpecials::Yes } else { AddSpecials::No };
            let question = EncodeQuestion::new(vec![text], specials, None).map_err(failed)?;
            Ok(TokenizeInput::Text { field, question })
        }
        None if fields.get::<serde_json::Value>("messages")?.is_none() => {
            Err(ApiError::invalid("content", "'content' or 'messages' is needed").into())
        }
        None => {
            let input = conversation(fields, worker, &serving.text.facts)?;
            // Counting is no answer, so the context is no limit.
            Ok(TokenizeInput::Conversation(input.asked(usize::MAX)?))
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
    let vocabulary = &serving.text.vocabulary;
    if let Some(unknown) = tokens.iter().find(|token| **token as usize >= vocabulary.len()) {
        let message = format!("'tokens' has {unknown}, and the model has the tokens 0 to {}", vocabulary.len() - 1);
        return Err(ApiError::invalid("tokens", message).into());
    }
    let content = vocabulary.text(&tokens, Specials::Spelled);
    Ok(Json(Detokenized { prompt: content.clone(), content }))
}
