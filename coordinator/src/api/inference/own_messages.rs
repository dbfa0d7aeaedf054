//! Requests of Anthropic's API in their own shape, for its providers (ADR 77).

use bytes::Bytes;
use http::HeaderMap;
use http::request::Parts;
use model_boss_cloud::{API_HEADERS, OwnMessages};
use model_boss_dialects::anthropic::{PassedChanges, needs_translation, passed_request, without_texts_of_documents};
use model_boss_http::body::OpenBody;
use model_boss_http::memory::Admission;
use model_boss_http::peek::{BodyChanges, Peeked, peek_with_links};
use model_boss_protocol::ApiError;
use serde_json::{Map, Value};

use super::meant::is_passed_to;
use super::understood_body::understood;
use crate::api::context::Context;

/// A request that providers of its API can get as it is.
pub(super) struct OwnRequest {
    pub(super) request: OwnMessages,
    /// Whether the first rung is a model of such a provider.
    pub(super) is_first: bool,
}

/// The request in its own shape; `None` where no model that may answer takes it so. `asked` is the parsed body.
pub(super) fn own_request(
    context: &Context,
    head: &Parts,
    (body, asked): (&OpenBody, &Map<String, Value>),
) -> Result<Option<OwnRequest>, ApiError> {
    let (peeked, link) = peek_own(head, (body, asked))?;
    let (peeked, resolved) = understood(context, peeked)?;
    let ladder = resolved.ladder();
    let is_first = is_passed_to(context, &ladder.first.target);
    let is_any = is_first || ladder.rest.iter().any(|rung| is_passed_to(context, &rung.target));
    if !is_any || needs_translation(asked) {
        return Ok(None);
    }
    let changes = PassedChanges {
        defaults: resolved.params(),
        thinking: peeked.thinking.or(resolved.thinking),
        is_default: peeked.thinking.is_none(),
    };
    let changed = passed_request(asked, changes).map(|changed| Bytes::from(changed.to_string()));
    let text = changed.as_ref().unwrap_or(body.bytes());
    let mut memory = context.memory.holder();
    memory.grow(text.len(), Admission::AtDoor)?;
    let text = peeked.forwarded(text, &BodyChanges { without_model: true, ..BodyChanges::default() })?;
    let model = asked.get("model").and_then(Value::as_str).unwrap_or_default().to_owned();
    let request = OwnMessages { body: memory.keep(text), model, headers: api_headers(&head.headers), link };
    Ok(Some(OwnRequest { request, is_first }))
}

/// Reads model-boss's fields of a request of Anthropic's API, and finds the place of its first link.
pub(super) fn peek_own(
    head: &Parts,
    (body, asked): (&OpenBody, &Map<String, Value>),
) -> Result<(Peeked, Option<String>), ApiError> {
    let (peeked, link) = peek_with_links(body.bytes(), head, body.limits())?;
    if link.is_none() {
        return Ok((peeked, link));
    }
    let rest = without_texts_of_documents(asked).to_string();
    Ok((peeked, peek_with_links(rest.as_bytes(), head, body.limits())?.1))
}

/// The headers that belong to Anthropic's API.
pub(super) fn api_headers(given: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in API_HEADERS {
        for value in given.get_all(name) {
            headers.append(name, value.clone());
        }
    }
    headers
}
