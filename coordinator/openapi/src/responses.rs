//! The answers and errors of an operation, by status.

use std::collections::BTreeMap;

use model_boss_protocol::{ErrorBody, ErrorCode};
use serde_json::{Map, Value, json};

use crate::operation::{DescribedAnswer, ErrorDialect, ID, MakeSchema, Operation};
use crate::route::RouteAccess;
use crate::schemas::{SchemaSide, Schemas};
use crate::shapes::{AnthropicErrorBody, OllamaErrorBody};

/// The status of a request whose headers are too long. Its code is that of a body that is too large.
const HEADERS_TOO_LARGE: u16 = 431;

/// Server-sent events.
const EVENTS: &str = "text/event-stream";

const REQUEST_ID: &str = "x-request-id";
const RETRY_AFTER: &str = "Retry-After";

/// Every answer of an operation, by its status.
pub(crate) fn responses(
    operation: &Operation,
    access: &RouteAccess,
    dialect: ErrorDialect,
    schemas: &mut Schemas,
) -> Map<String, Value> {
    let mut responses = BTreeMap::new();
    for answer in &operation.answers {
        responses.insert(answer.status, answered(answer, schemas));
    }
    for (status, codes) in by_status(operation, access) {
        let refusal = refused(&codes, dialect, schemas);
        match responses.get_mut(&status) {
            // A probe of health has answers of its own with a status that errors have too.
            Some(own) => join(own, refusal),
            None => _ = responses.insert(status, refusal),
        }
    }
    responses.into_iter().map(|(status, response)| (status.to_string(), response)).collect()
}

fn answered(answer: &DescribedAnswer, schemas: &mut Schemas) -> Value {
    let mut content = Map::new();
    for part in &answer.contents {
        let side = if part.is_foreign { SchemaSide::Request } else { SchemaSide::Answer };
        let schema = schemas.of(side, part.schema);
        let described = match (part.is_stream, part.media) {
            (false, _) => json!({ "schema": schema }),
            (true, EVENTS) => json!({ "schema": event(&schema) }),
            // OpenAPI 3.1 has no field for the lines of a stream.
            (true, _) => json!({ "schema": { "type": "string" }, "x-item-schema": schema }),
        };
        content.insert(part.media.to_owned(), described);
    }
    let mut headers = Map::new();
    headers.insert(REQUEST_ID.to_owned(), header(REQUEST_ID));
    for (name, text) in answer.headers {
        headers.insert((*name).to_owned(), json!({ "description": text, "schema": { "type": "string" } }));
    }
    let mut described = json!({ "description": answer.text, "headers": headers, "content": content });
    if !answer.links.is_empty() {
        let link = |id: &&str| {
            let at = format!("$response.body#{}", answer.id_at);
            ((*id).to_owned(), json!({ "operationId": id, "parameters": { ID: at } }))
        };
        described["links"] = Value::Object(answer.links.iter().map(link).collect());
    }
    described
}

/// The headers that many answers have, by name.
pub(crate) fn shared_headers() -> Value {
    json!({
        REQUEST_ID: {
            "description": "The caller's own id of the request, or a new one.",
            "required": true,
            "schema": { "type": "string" },
        },
        RETRY_AFTER: {
            "description": "The seconds after which to send the request again.",
            "schema": { "type": "integer", "minimum": 1 },
        },
    })
}

/// A reference to a header of [`shared_headers`].
fn header(name: &str) -> Value {
    json!({ "$ref": format!("#/components/headers/{name}") })
}

/// A server-sent event, in the form that OpenAPI 3.2 has for them. The data of a stream's last event may be `[DONE]`.
fn event(data: &Value) -> Value {
    json!({
        "type": "object",
        "properties": {
            "event": { "type": "string" },
            "id": { "type": "string" },
            "data": { "type": "string", "contentMediaType": "application/json", "contentSchema": data },
        },
        "required": ["data"],
    })
}

/// The errors of an operation: its own, and those that its access and its body bring.
fn by_status(operation: &Operation, access: &RouteAccess) -> BTreeMap<u16, Vec<ErrorCode>> {
    let mut codes = vec![(ErrorCode::ForbiddenOrigin, None), (ErrorCode::Internal, None)];
    codes.push((ErrorCode::RequestTooLarge, Some(HEADERS_TOO_LARGE)));
    if let RouteAccess::Scopes { json_only, .. } = access {
        codes.extend(
            [ErrorCode::InvalidApiKey, ErrorCode::InsufficientScope, ErrorCode::InvalidRequest]
                .map(|code| (code, None)),
        );
        if *json_only {
            codes.push((ErrorCode::UnsupportedMediaType, None));
        }
    }
    let takes_body = operation.body.is_some();
    if takes_body {
        let of_bodies = [ErrorCode::RequestTooLarge, ErrorCode::UnsupportedMediaType, ErrorCode::Overloaded];
        codes.extend(of_bodies.map(|code| (code, None)));
    }
    if takes_body || !operation.parameters.is_empty() {
        codes.push((ErrorCode::InvalidRequest, None));
    }
    codes.extend(operation.errors.iter().map(|code| (*code, None)));
    codes.extend(operation.statuses.iter().map(|(status, code)| (*code, Some(*status))));
    let mut by_status: BTreeMap<u16, Vec<ErrorCode>> = BTreeMap::new();
    for (code, status) in codes {
        let known = by_status.entry(status.unwrap_or_else(|| code.status())).or_default();
        if !known.contains(&code) {
            known.push(code);
        }
    }
    by_status
}

fn refused(codes: &[ErrorCode], dialect: ErrorDialect, schemas: &mut Schemas) -> Value {
    let mut of = |schema: MakeSchema| schemas.of(SchemaSide::Answer, schema);
    let schema = match dialect {
        ErrorDialect::OpenAi => of(|schemas| schemas.subschema_for::<ErrorBody>()),
        ErrorDialect::Anthropic => of(|schemas| schemas.subschema_for::<AnthropicErrorBody>()),
        ErrorDialect::Ollama => of(|schemas| schemas.subschema_for::<OllamaErrorBody>()),
        ErrorDialect::Either => {
            let (ours, anthropics): (MakeSchema, MakeSchema) = (
                |schemas| schemas.subschema_for::<ErrorBody>(),
                |schemas| schemas.subschema_for::<AnthropicErrorBody>(),
            );
            json!({ "anyOf": [of(ours), of(anthropics)] })
        }
    };
    let words: Vec<&str> = codes.iter().map(|code| code.as_str()).collect();
    let mut headers = Map::new();
    headers.insert(REQUEST_ID.to_owned(), header(REQUEST_ID));
    if codes.iter().any(|code| matches!(code.status(), 429 | 503)) {
        headers.insert(RETRY_AFTER.to_owned(), header(RETRY_AFTER));
    }
    json!({
        "description": format!("Refused: {}.", words.join(", ")),
        "headers": headers,
        "content": { "application/json": { "schema": schema } },
        "x-codes": words,
    })
}

/// Adds the errors with an answer's status to it.
fn join(own: &mut Value, refusal: Value) {
    let ours = own["content"]["application/json"]["schema"].take();
    let theirs = refusal["content"]["application/json"]["schema"].clone();
    own["content"]["application/json"]["schema"] =
        if ours.is_null() { theirs } else { json!({ "anyOf": [ours, theirs] }) };
    let text = own["description"].as_str().unwrap_or_default();
    own["description"] = format!("{text} {}", refusal["description"].as_str().unwrap_or_default()).into();
    if let Some(again) = refusal["headers"].get(RETRY_AFTER) {
        own["headers"][RETRY_AFTER] = again.clone();
    }
    own["x-codes"] = refusal["x-codes"].clone();
}
