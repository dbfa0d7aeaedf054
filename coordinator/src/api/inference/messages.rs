//! `POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API, for every model that answers chats.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::request::Parts;
use http_body_util::{BodyExt, Collected, Limited};
use model_boss_cloud::{CountRequest, Counted};
use model_boss_core::{RequestOutcome, Target};
use model_boss_dialects::anthropic::{MessagesFromChat, from_messages_request};
use model_boss_dialects::{Names, Reshape, Stamp};
use model_boss_host::clocks::{in_a, unix_seconds};
use model_boss_http::body::{OpenBody, RequestBody, json};
use model_boss_http::peek::{is_own_field, refused_link};
use model_boss_protocol::{ApiError, Category, ErrorCode};
use serde_json::{Map, Value, json};
use tokio::time::timeout_at;

use super::account::Account;
use super::endings::deadline_exceeded;
use super::own_messages::{api_headers, own_request, peek_own};
use super::reshape::reshaped;
use crate::api::context::Context;
use crate::api::inference::openai::{InferenceRoute, OwnShape, infer_messages, infer_translated};
use crate::api::inference::understood_body::understood;
use crate::api::route::Call;
use crate::refusals::{in_client_names, of_cloud, of_dialect};
use crate::scheduling::Wish;

/// The most bytes of an answer to a count.
const MAX_COUNTED: usize = 64 << 10;

/// `POST /v1/messages`. Providers of this API get the request as it is; for all other models it is translated.
pub(crate) async fn messages(mut call: Call) -> Result<Response, ApiError> {
    let (context, head) = (Arc::clone(&call.context), call.head());
    let translate = move |mut body: OpenBody| {
        let asked = body.object()?;
        let own = own_request(&context, &head, (&body, &asked))?;
        let translated = from_messages_request(&asked);
        let is_only = translated.is_err();
        let (chat, names) = match translated {
            Ok(translated) => translated,
            Err(_) if own.as_ref().is_some_and(|own| own.is_first) => (for_the_queue(&asked), Names::default()),
            Err(error) => return Err(of_dialect(error)),
        };
        let own = own.map(|own| OwnShape { request: own.request, is_only });
        body.replace(chat.to_string());
        Ok((model_of(&asked), body.close(), names, own))
    };
    let (model, chat, names, own) = call.body().await?.open(translate).await?;
    let (context, stamp) = (Arc::clone(&call.context), stamp(&call, model));
    let answer = infer_messages(call, (chat, &names), own).await?;
    let reshape: Box<dyn Reshape> = Box::new(MessagesFromChat::new(stamp, names));
    reshaped(&context, answer, reshape, "text/event-stream").await
}

/// The fields of a request that the queue reads, for one that has no translation and goes to a provider of its API
/// alone.
fn for_the_queue(asked: &Map<String, Value>) -> Value {
    let read = |name: &str| ["model", "stream", "keep_alive"].contains(&name) || name.starts_with("x_");
    asked.iter().filter(|(name, _)| read(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// `POST /v1/messages/count_tokens`. A provider counts the tokens for its own models. A model of this machine gets a
/// request for one token, and reports the length of the prompt by its template and vocabulary.
pub(crate) async fn count_tokens(mut call: Call) -> Result<Response, ApiError> {
    let body = call.body().await?;
    counted_somewhere(call, body).await
}

/// The counter of a prompt's tokens.
enum Counting {
    /// A provider, which takes the request unchanged. The body holds its memory.
    Elsewhere(Box<Elsewhere>, Map<String, Value>, RequestBody),
    /// A model of this machine, which gets this chat.
    Here(RequestBody, Names),
}

async fn counted_somewhere(call: Call, body: RequestBody) -> Result<Response, ApiError> {
    let (context, head) = (Arc::clone(&call.context), call.head());
    let look = move |mut body: OpenBody| {
        let mut asked = body.object()?;
        if let Some(elsewhere) = elsewhere(&context, &head, (&body, &asked))? {
            asked.retain(|name, _| !is_own_field(name));
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
            let counted = counted_elsewhere(&context, &id, *elsewhere, (asked, held.size())).await?;
            let mut answer = Response::new(Body::from(counted.body));
            *answer.headers_mut() = counted.headers;
            answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Ok(answer)
        }
        Counting::Here(chat, names) => json(&json!({ "input_tokens": counted(call, chat, &names).await? })),
    }
}

/// A prompt that a provider counts.
struct Elsewhere {
    wish: Wish,
    provider: String,
    model: String,
    /// The client's headers that belong to the API.
    headers: HeaderMap,
}

/// The provider and its model, if the first permitted rung is one.
fn elsewhere(
    context: &Context,
    head: &Parts,
    request: (&OpenBody, &Map<String, Value>),
) -> Result<Option<Elsewhere>, ApiError> {
    let (peeked, link) = peek_own(head, request)?;
    let (peeked, resolved) = understood(context, peeked)?;
    let target = &resolved.ladder().first.target;
    if let Some(place) = link.filter(|_| !context.tasks.providers().is_cloud(target)) {
        return Err(refused_link(place));
    }
    let Target::Cloud { provider, model } = target.clone() else { return Ok(None) };
    let wish = Wish {
        // A model of another rung would count differently.
        permit: resolved.permit.first_only(),
        category: Category::Llm,
        priority: peeked.priority.or(resolved.priority),
        deadline: peeked.budget.or(resolved.budget).map(in_a),
        keep_alive: None,
        work: None,
    };
    Ok(Some(Elsewhere { wish, provider, model, headers: api_headers(&head.headers) }))
}

/// Lets a provider count. The provider does not charge for it, but it is a request: the client's limits apply, and it
/// appears in the metrics.
async fn counted_elsewhere(
    context: &Context,
    id: &HeaderValue,
    elsewhere: Elsewhere,
    (body, size): (Map<String, Value>, usize),
) -> Result<Counted, ApiError> {
    let Elsewhere { wish, provider, model, headers } = elsewhere;
    let deadline = wish.deadline;
    let mut account = Account::open(&context.metrics, None);
    let mut ticket = context.scheduling.submit(wish);
    let asked = async {
        account.dispatched(&ticket.dispatched().await?);
        let id = String::from_utf8_lossy(id.as_bytes());
        let (provider, model, now) = (provider.as_str(), model.as_str(), unix_seconds());
        let question = CountRequest { provider, model, body, size, id: &id, now, headers: &headers };
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
