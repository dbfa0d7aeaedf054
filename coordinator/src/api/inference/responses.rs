//! `/v1/responses`: OpenAI's Responses API, for every model that answers chats.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use model_boss_dialects::responses::{
    ItemList, ItemOrder, ItemPage, OnResponse, PREVIOUS, ResponsesFromChat, ResponsesRequest, from_responses_request,
    previous_response,
};
use model_boss_dialects::{Reshape, Stamp};
use model_boss_host::clocks::unix_seconds;
use model_boss_http::body::{OpenBody, RequestBody, json};
use model_boss_http::path::{parameter, percent_decode};
use model_boss_http::peek::{ANONYMOUS, peek};
use model_boss_protocol::{ApiError, Category, ClientId, ErrorCode};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::llama::{TokenCount, tokens_of_chat};
use super::openai::{InferenceRoute, infer_translated};
use super::reshape::reshaped;
use crate::api::context::Context;
use crate::api::route::Call;
use crate::refusals::of_responses;
use crate::responses::StoredResponse;

const CHAT: &str = "/v1/chat/completions";

/// The most items of a page.
const MAX_PAGE: usize = 100;

/// `POST /v1/responses`.
pub(crate) async fn create(mut call: Call) -> Result<Response, ApiError> {
    let (context, head) = (Arc::clone(&call.context), call.head());
    let id = new_id()?;
    let (looking, bare) = (Arc::clone(&context), id.clone());
    let translate = move |mut body: OpenBody| {
        let client = peek(body.bytes(), &head, body.limits())?.client.unwrap_or_else(|| ClientId::from(ANONYMOUS));
        let asked = body.object()?;
        let previous = previous_response(&asked).map_err(of_responses)?.map(str::to_owned);
        let earlier = match &previous {
            Some(previous) => items_before(&looking, &client, previous, &mut body)?,
            None => Vec::new(),
        };
        let request = from_responses_request(&asked, &earlier, &bare).map_err(of_responses)?;
        let model = asked.get("model").and_then(Value::as_str).unwrap_or_default().to_owned();
        body.replace(request.chat.to_string());
        Ok((Continued { client, previous, model }, request, body.close()))
    };
    let (continued, request, body) = call.body().await?.open(translate).await?;
    answer(call, (continued, request, body), &id).await
}

/// The client of a request, and its conversation.
struct Continued {
    client: ClientId,
    previous: Option<String>,
    model: String,
}

async fn answer(
    call: Call,
    (continued, request, body): (Continued, ResponsesRequest, RequestBody),
    id: &str,
) -> Result<Response, ApiError> {
    let context = Arc::clone(&call.context);
    let ResponsesRequest { names, items, store, context: wish, echoed, .. } = request;
    let asked = InferenceRoute::at(CHAT, Category::Llm).within(wish);
    let answer = infer_translated(call, (body, &names), asked).await?;
    let Continued { client, previous, model } = continued;
    let stamp = Stamp { id: format!("resp_{id}"), model, created: unix_seconds() };
    let on_end = store.then(|| keeping(Arc::clone(&context), client, previous, items));
    let reshape: Box<dyn Reshape> = Box::new(ResponsesFromChat::new(stamp, names, echoed, on_end));
    reshaped(&context, answer, reshape, "text/event-stream").await
}

/// Keeps a response when it has ended.
fn keeping(context: Arc<Context>, client: ClientId, previous: Option<String>, items: Vec<Value>) -> OnResponse {
    Box::new(move |response| {
        let id = response["id"].as_str().unwrap_or_default();
        let input = Bytes::from(Value::Array(items).to_string());
        let stored = StoredResponse { response: Bytes::from(response.to_string()), input, previous };
        context.responses.keep(&client, id, stored, Instant::now());
    })
}

/// The items of the conversation that a request continues. They take memory of its body's.
fn items_before(
    context: &Context,
    client: &ClientId,
    previous: &str,
    body: &mut OpenBody,
) -> Result<Vec<Value>, ApiError> {
    let stored = context.responses.conversation(client, previous, Instant::now());
    let stored = stored.map_err(|missing| {
        let why = if missing == previous { String::new() } else { format!(", which '{previous}' continues") };
        not_kept(ErrorCode::InvalidRequest, &missing, &why).with_param(PREVIOUS)
    })?;
    let mut items = Vec::new();
    for StoredResponse { response, input, .. } in stored {
        items.extend(list(body.beside(&input)?));
        items.extend(list(body.beside(&response)?["output"].take()));
    }
    Ok(items)
}

fn list(value: Value) -> Vec<Value> {
    if let Value::Array(items) = value { items } else { Vec::new() }
}

/// A name for a response that no other client guesses.
fn new_id() -> Result<String, ApiError> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits)
        .map_err(|error| ApiError::new(ErrorCode::Internal, format!("the system gives no random numbers: {error}")))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bits)))
}

/// The error for a response that is not kept. `why` says why it is asked for, where the client did not name it.
fn not_kept(code: ErrorCode, id: &str, why: &str) -> ApiError {
    let message = format!(
        "there is no response '{id}'{why}: it was not stored ('store': false), it is another client's, or it was forgotten \
         (limits.responses, limits.response_idle); send the whole conversation as 'input'"
    );
    ApiError::new(code, message)
}

/// `GET /v1/responses/ID` and `/v1/responses/ID/input_items`.
pub(crate) async fn show(call: Call) -> Result<Response, ApiError> {
    let named = NamedResponse::of(&call)?;
    match named.verb.as_str() {
        "" => whole(&call, &named),
        "input_items" => {
            let page = page(&call)?;
            let items = serde_json::from_slice(&named.stored(&call)?.input).unwrap_or_default();
            json(&ItemList::page(items, &page).0)
        }
        _ => Err(named.no_such_route()),
    }
}

fn whole(call: &Call, named: &NamedResponse) -> Result<Response, ApiError> {
    if parameter(call.request.uri(), "stream").as_deref() == Some("true") {
        let message = "a response that has ended is not streamed again; leave 'stream' out";
        return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("stream"));
    }
    let mut response = Response::new(Body::from(named.stored(call)?.response));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// `DELETE /v1/responses/ID`.
pub(crate) async fn delete(call: Call) -> Result<Response, ApiError> {
    let named = NamedResponse::of(&call)?;
    if !named.verb.is_empty() {
        return Err(named.no_such_route());
    }
    let NamedResponse { client, id, .. } = named;
    if !call.context.responses.remove(&client, &id, Instant::now()) {
        return Err(not_kept(ErrorCode::NotFound, &id, ""));
    }
    json(&json!({ "id": id, "object": "response", "deleted": true }))
}

/// `POST /v1/responses/input_tokens`: the length of the prompt that a response would have.
pub(crate) async fn input_tokens(mut call: Call) -> Result<Response, ApiError> {
    let (context, head) = (Arc::clone(&call.context), call.head());
    let translate = move |mut body: OpenBody| {
        let client = peek(body.bytes(), &head, body.limits())?.client.unwrap_or_else(|| ClientId::from(ANONYMOUS));
        let asked = body.object()?;
        let previous = previous_response(&asked).map_err(of_responses)?.map(str::to_owned);
        let earlier = match &previous {
            Some(previous) => items_before(&context, &client, previous, &mut body)?,
            None => Vec::new(),
        };
        let request = from_responses_request(&asked, &earlier, "counted").map_err(of_responses)?;
        body.replace(request.chat.to_string());
        Ok((request.names, body.close()))
    };
    let (names, body) = call.body().await?.open(translate).await?;
    let count = tokens_of_chat(call, body, &names).await?;
    json(&TokenCount::of(count))
}

/// `POST /v1/responses/ID/cancel`.
pub(crate) async fn order(call: Call) -> Result<Response, ApiError> {
    let named = NamedResponse::of(&call)?;
    if named.verb != "cancel" {
        return Err(named.no_such_route());
    }
    named.stored(&call)?;
    let message = "only an answer in the background is cancelled this way, and there are none here; close the stream";
    Err(ApiError::new(ErrorCode::UnsupportedByModel, message))
}

fn page(call: &Call) -> Result<ItemPage, ApiError> {
    let target = call.request.uri();
    let mut page = ItemPage::default();
    match parameter(target, "order").as_deref() {
        None | Some("desc") => {}
        Some("asc") => page.order = ItemOrder::Ascending,
        Some(_) => return Err(ApiError::invalid("order", "'order' must be asc or desc")),
    }
    if let Some(limit) = parameter(target, "limit") {
        let number = limit.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
        page.limit =
            number.ok_or_else(|| ApiError::invalid("limit", format!("'limit' must be from 1 to {MAX_PAGE}")))?;
    }
    page.after = parameter(target, "after").map(|after| after.into_owned());
    Ok(page)
}

/// A response in a path, and the client.
struct NamedResponse {
    client: ClientId,
    id: String,
    /// The last part of the path, behind the id; empty if there is none.
    verb: String,
}

impl NamedResponse {
    fn of(call: &Call) -> Result<Self, ApiError> {
        let client = call.client()?;
        let (_, rest) = call.request.uri().path().split_once("/responses/").unwrap_or_default();
        let (id, verb) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self { client, id: percent_decode(id).unwrap_or_default(), verb: verb.to_owned() })
    }

    fn stored(&self, call: &Call) -> Result<StoredResponse, ApiError> {
        let stored = call.context.responses.get(&self.client, &self.id, Instant::now());
        stored.ok_or_else(|| not_kept(ErrorCode::NotFound, &self.id, ""))
    }

    fn no_such_route(&self) -> ApiError {
        ApiError::new(ErrorCode::NotFound, format!("a response has no '{}'", self.verb))
    }
}
