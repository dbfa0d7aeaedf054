//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API, for every model that answers chats.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use http::header::HeaderValue;
use http::request::Parts;
use http_body_util::{BodyExt, Collected, Limited};
use model_boss_cloud::CountRequest;
use model_boss_core::{RequestOutcome, Target};
use model_boss_dialects::anthropic::{MessagesFromChat, from_messages_request};
use model_boss_dialects::{Names, Reshape, Stamp};
use model_boss_host::clocks::{in_a, unix_seconds};
use model_boss_http::body::{OpenBody, RequestBody, json};
use model_boss_protocol::{ApiError, Category, ErrorCode};
use serde_json::{Map, Value, json};
use tokio::time::timeout_at;

use super::account::Account;
use super::endings::deadline_exceeded;
use super::reshape::reshaped;
use crate::api::context::Context;
use crate::api::inference::openai::{InferenceRoute, infer_translated, understand};
use crate::api::route::Call;
use crate::refusals::{in_client_names, of_cloud, of_dialect};
use crate::scheduling::Wish;

/// The most bytes of an answer to a count.
const MAX_COUNTED: usize = 64 << 10;

/// `POST /v1/messages`.
pub(crate) async fn messages(mut call: Call) -> Result<Response, ApiError> {
    let translate = |mut body: OpenBody| {
        let asked = body.object()?;
        let (chat, names) = from_messages_request(&asked).map_err(of_dialect)?;
        body.replace(chat.to_string());
        Ok((model_of(&asked), body.close(), names))
    };
    let (model, chat, names) = call.body().await?.open(translate).await?;
    let (context, stamp) = (Arc::clone(&call.context), stamp(&call, model));
    let answer =
        infer_translated(call, (chat, &names), InferenceRoute::at("/v1/chat/completions", Category::Llm)).await?;
    let reshape: Box<dyn Reshape> = Box::new(MessagesFromChat::new(stamp, names));
    reshaped(&context, answer, reshape, "text/event-stream").await
}

/// `POST /v1/messages/count_tokens`. A provider counts the tokens for its own models. A model of this machine gets a
/// request for one token, and reports the length of the prompt by its template and vocabulary.
pub(crate) async fn count_tokens(mut call: Call) -> Result<Response, ApiError> {
    let body = call.body().await?;
    json(&json!({ "input_tokens": counted_somewhere(call, body).await? }))
}

/// The counter of a prompt's tokens.
enum Counting {
    /// A provider, which takes the request unchanged. The body holds its memory.
    Elsewhere(Box<Elsewhere>, Map<String, Value>, RequestBody),
    /// A model of this machine, which gets this chat.
    Here(RequestBody, Names),
}

async fn counted_somewhere(call: Call, body: RequestBody) -> Result<u64, ApiError> {
    let (context, head) = (Arc::clone(&call.context), call.head());
    let look = move |mut body: OpenBody| {
        let mut asked = body.object()?;
        if let Some(elsewhere) = elsewhere(&context, &head, &body)? {
            return Ok(Counting::Elsewhere(Box::new(elsewhere), asked, body.close()));
        }
        asked.insert("max_tokens".to_owned(), json!(1));
        asked.remove("stream");
        let (chat, names) = from_messages_request(&asked).map_err(of_dialect)?;
        body.replace(chat.to_string());
        Ok(Counting::Here(body.close(), names))
    };
    match body.open(look).await? {
        Counting::Elsewhere(elsewhere, asked, held) => {
            let (context, id) = (Arc::clone(&call.context), call.request_id());
            counted_elsewhere(&context, &id, *elsewhere, (asked, held.size())).await
        }
        Counting::Here(chat, names) => counted(call, chat, &names).await,
    }
}

/// A prompt that a provider counts.
struct Elsewhere {
    wish: Wish,
    provider: String,
    model: String,
}

/// The provider and its model, if the first permitted rung is one.
fn elsewhere(context: &Context, head: &Parts, body: &OpenBody) -> Result<Option<Elsewhere>, ApiError> {
    let (peeked, resolved) = understand(context, body, head)?;
    let Target::Cloud { provider, model } = resolved.ladder().first.target.clone() else { return Ok(None) };
    let wish = Wish {
        // A model of another rung would count differently.
        permit: resolved.permit.first_only(),
        category: Category::Llm,
        priority: peeked.priority.or(resolved.priority),
        deadline: peeked.budget.or(resolved.budget).map(in_a),
        keep_alive: None,
    };
    Ok(Some(Elsewhere { wish, provider, model }))
}

/// Lets a provider count. The provider does not charge for it, but it is a request: the client's limits apply, and it
/// appears in the metrics.
async fn counted_elsewhere(
    context: &Context,
    id: &HeaderValue,
    elsewhere: Elsewhere,
    (body, size): (Map<String, Value>, usize),
) -> Result<u64, ApiError> {
    let Elsewhere { wish, provider, model } = elsewhere;
    let deadline = wish.deadline;
    let mut account = Account::open(&context.metrics, None);
    let mut ticket = context.scheduling.submit(wish);
    let asked = async {
        account.dispatched(&ticket.dispatched().await?);
        let id = String::from_utf8_lossy(id.as_bytes());
        let question = CountRequest { provider: &provider, model: &model, body, size, id: &id, now: unix_seconds() };
        context.clouds.count_tokens(question).await.map_err(of_cloud)
    };
    let counted = match deadline {
        Some(deadline) => timeout_at(deadline, asked).await.unwrap_or_else(|_| Err(deadline_exceeded())),
        None => asked.await,
    };
    match &counted {
        Ok(_) => {
            account.status(StatusCode::OK.as_u16());
            ticket.finish(RequestOutcome::Answered, None);
        }
        Err(error) => {
            account.status(error.status());
            ticket.failed(error);
        }
    }
    counted
}

/// The number of tokens in a chat's prompt, counted by a model of this machine.
async fn counted(call: Call, chat: RequestBody, names: &Names) -> Result<u64, ApiError> {
    let answer =
        infer_translated(call, (chat, names), InferenceRoute::at("/v1/chat/completions", Category::Llm)).await?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, MAX_COUNTED).collect().await.map(Collected::to_bytes).unwrap_or_default();
    let said: Value = serde_json::from_slice(&body).unwrap_or_default();
    if !head.status.is_success() {
        let message = said["error"]["message"].as_str().unwrap_or("the model could not be asked").to_owned();
        let code = if head.status.is_client_error() { ErrorCode::InvalidRequest } else { ErrorCode::BackendError };
        let mut error = ApiError::new(code, message).with_status(head.status.as_u16());
        error.param = said["error"]["param"].as_str().map(str::to_owned);
        return Err(in_client_names(names, error));
    }
    said["usage"]["prompt_tokens"]
        .as_u64()
        .ok_or_else(|| ApiError::new(ErrorCode::BackendError, "the model did not say how many tokens it read"))
}

fn model_of(body: &Map<String, Value>) -> String {
    body.get("model").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn stamp(call: &Call, model: String) -> Stamp {
    let id = call.request_id();
    let created = unix_seconds();
    Stamp { id: format!("msg_{}", String::from_utf8_lossy(id.as_bytes())), model, created }
}
