//! An order for a job: as an object with the request's body in it, or as the request's own body with the rest in the
//! query.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Uri};
use model_boss_http::json::read_object;
use model_boss_http::path::{parameter, parameters};
use model_boss_http::peek::OWN_HEADERS;
use model_boss_jobs::{BodyDigest, DraftFile, HookTarget, HookUrlError, JobId, JobOrder, KINDS, KeptKind, WallTime};
use model_boss_protocol::{ApiError, ByteCount, ErrorCode, Priority, parse_span, span_of_secs};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::task::spawn_blocking;

use super::form_order::{ArrivingForm, FormPieces, check_form};
use crate::api::inference::ahead::check_ahead;
use crate::api::route::Call;
use crate::jobs::{Jobs, now, owner_of};

/// The name of the header by which an order may be sent twice.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// The longest such name.
const LONGEST_KEY: usize = 255;
/// The longest deadline.
const LONGEST_DEADLINE: Duration = Duration::from_secs(30 * 86_400);
/// The bytes that are written at once.
const PIECE: usize = 256 << 10;
/// Headers of other APIs that their routes read.
const OF_OTHERS: [&str; 2] = ["anthropic-version", "anthropic-beta"];

/// An order for a job.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobBody {
    /// The kind of request: `chat`, `embeddings`, `images`, `speech`…
    kind: Option<String>,
    /// The route that answers it, in place of `kind`.
    endpoint: Option<String>,
    /// The body of the request.
    #[schemars(with = "Map<String, Value>")]
    body: Box<RawValue>,
    /// The priority in the queue.
    priority: Option<Priority>,
    /// The time from now after which the answer is useless: seconds, or a text such as `2h`.
    deadline: Option<DeadlineWish>,
    /// The URL of the webhook that gets the end.
    webhook: Option<WebhookWish>,
}

/// A time from now.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a number of seconds, or a text such as \"2h\"")]
enum DeadlineWish {
    /// A number of seconds.
    Seconds(f64),
    /// A text with a unit.
    Text(String),
}

/// A webhook that gets the end.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a URL, or an object with \"url\"")]
enum WebhookWish {
    /// The URL.
    Url(String),
    /// An object with the URL.
    Object {
        /// The URL.
        url: String,
    },
}

/// The fields of an order beside the body.
#[derive(Default)]
struct OrderFields {
    kind: Option<String>,
    endpoint: Option<String>,
    priority: Option<Priority>,
    deadline: Option<DeadlineWish>,
    webhook: Option<WebhookWish>,
}

/// Reads an order, writes its body to a file, and accepts it.
pub(super) async fn accept(call: &mut Call) -> Result<JobId, ApiError> {
    let jobs = Arc::clone(&call.context.jobs);
    jobs.ready()?;
    let id = JobId::draw(now())
        .map_err(|error| ApiError::new(ErrorCode::Internal, format!("the system gives no random numbers: {error}")))?;
    let target = call.request.uri();
    let is_in_query = parameters(target).any(|(name, _)| name == "endpoint" || name == "kind");
    let (fields, content_type, body, model) = match is_in_query {
        true => {
            let fields = fields_of(target)?;
            let content_type = content_type(call.request.headers())?;
            let endpoint = endpoint(call, &fields)?;
            let (body, model) = match content_type.starts_with("application/json") {
                true => {
                    let body = call.body().await?.into_bytes();
                    let model = check_body(call, &endpoint, &body).await?;
                    (written(&jobs, &id, body).await?, model)
                }
                false => match ArrivingForm::of(&content_type)? {
                    None => (streamed(call, &jobs, &id, None).await?, None),
                    Some((pieces, form)) => {
                        let (body, form) = tokio::join!(streamed(call, &jobs, &id, Some(pieces)), form.without_files());
                        // Of a body that broke off the form does not know why.
                        let ((draft, _), (form, digest)) = (body?, form?);
                        let model = check_form(call, &endpoint, form).await?;
                        ((draft, digest), model)
                    }
                },
            };
            (fields, content_type, body, model)
        }
        false => {
            require_json(call.request.headers())?;
            let read = call.body().await?.open(|body| read_order(body.bytes())).await?;
            let JobBody { kind, endpoint: path, body, priority, deadline, webhook } = read;
            let fields = OrderFields { kind, endpoint: path, priority, deadline, webhook };
            let endpoint = endpoint(call, &fields)?;
            let text: Box<str> = body.into();
            let body = bytes::Bytes::from(text.into_string());
            let model = check_body(call, &endpoint, &body).await?;
            (fields, "application/json".to_owned(), written(&jobs, &id, body).await?, model)
        }
    };
    let endpoint = endpoint(call, &fields)?;
    let OrderFields { priority, deadline, webhook, .. } = fields;
    let (draft, digest) = body;
    let client = call.client()?;
    let order = JobOrder {
        id,
        owner: owner_of(&call.identity, client.as_str()),
        endpoint,
        content_type,
        body_bytes: draft.bytes(),
        body_digest: digest.finish(),
        model,
        headers: own_headers(call.request.headers()),
        priority,
        deadline: deadline.map(|wish| deadline_of(&wish)).transpose()?,
        idempotency_key: idempotency_key(call.request.headers())?,
        webhook: webhook.map(|wish| admitted(&jobs, &wish)).transpose()?,
    };
    jobs.accept(order, draft).await
}

fn read_order(bytes: &bytes::Bytes) -> Result<JobBody, ApiError> {
    let read: JobBody = read_object(bytes, "the order")?;
    if !read.body.get().starts_with('{') {
        return Err(ApiError::invalid("body", "'body' must be an object, as the route takes it"));
    }
    Ok(read)
}

/// The fields of an order in a query.
fn fields_of(target: &Uri) -> Result<OrderFields, ApiError> {
    let text = |name: &str| parameter(target, name).map(|value| value.into_owned());
    let priority = text("priority").map(|text| text.parse()).transpose();
    Ok(OrderFields {
        kind: text("kind"),
        endpoint: text("endpoint"),
        priority: priority.map_err(|error: model_boss_protocol::ParsePriorityError| {
            ApiError::invalid("priority", format!("'priority': {error}"))
        })?,
        deadline: text("deadline").map(|text| match text.parse() {
            Ok(seconds) => DeadlineWish::Seconds(seconds),
            Err(_) => DeadlineWish::Text(text),
        }),
        webhook: text("webhook").map(WebhookWish::Url),
    })
}

/// The route that answers an order.
fn endpoint(call: &Call, fields: &OrderFields) -> Result<String, ApiError> {
    let path = match (&fields.kind, &fields.endpoint) {
        (Some(_), Some(_)) => return Err(ApiError::invalid("endpoint", "give 'kind' or 'endpoint', not both")),
        (None, None) => {
            let message = "give 'kind', such as \"chat\", or 'endpoint', such as \"/v1/chat/completions\"";
            return Err(ApiError::invalid("kind", message));
        }
        (Some(kind), None) => {
            let known = KINDS.iter().find(|known| known.name == kind);
            known.map(|known| known.endpoint.to_owned()).ok_or_else(|| {
                let names: Vec<&str> = KINDS.iter().map(|known| known.name).collect();
                ApiError::invalid("kind", format!("'kind' must be one of {}", names.join(", ")))
            })?
        }
        // Every form of a path leads to the same route.
        (None, Some(path)) => path.strip_prefix("/api/v1/").map_or_else(|| path.clone(), |rest| format!("/v1/{rest}")),
    };
    let described = call.description.get();
    if described.is_some_and(|api| api.takes_jobs(&path)) {
        return Ok(path);
    }
    let field = if fields.kind.is_some() { "kind" } else { "endpoint" };
    let paths = described.map(|api| api.job_paths().join(", ")).unwrap_or_default();
    let shown: String = path.chars().take(100).collect();
    Err(ApiError::invalid(field, format!("there is no route '{shown}' for jobs here; there are {paths}")))
}

/// Refuses at once what the route would refuse later by the names in the body. Returns the model that is asked.
fn check_body(
    call: &Call,
    endpoint: &str,
    body: &bytes::Bytes,
) -> impl Future<Output = Result<Option<String>, ApiError>> + Send + use<> {
    let (context, head, body, path) = (Arc::clone(&call.context), call.head(), body.clone(), endpoint.to_owned());
    model_boss_http::offload::offload(body.len(), move || check_ahead(&context, &path, &body, &head))
}

async fn written(jobs: &Arc<Jobs>, id: &JobId, body: bytes::Bytes) -> Result<(DraftFile, BodyDigest), ApiError> {
    let mut draft = jobs.draft(KeptKind::Body, id.to_string()).await?;
    let work = move || {
        let mut digest = BodyDigest::default();
        digest.add(&body);
        draft.write(&body).map(|()| (draft, digest))
    };
    done(spawn_blocking(work).await)
}

/// Writes a body to its file while it arrives, and passes its pieces on to the reader of a form, as long as that
/// reads.
async fn streamed(
    call: &mut Call,
    jobs: &Arc<Jobs>,
    id: &JobId,
    mut form: Option<FormPieces>,
) -> Result<(DraftFile, BodyDigest), ApiError> {
    let mut room = jobs.arrival();
    let mut pieces = call.pieces(jobs.file_size())?;
    let mut draft = jobs.draft(KeptKind::Body, id.to_string()).await?;
    let (mut digest, mut gathered) = (BodyDigest::default(), Vec::new());
    loop {
        let piece = pieces.next().await?;
        if let Some(piece) = &piece {
            room.grow(piece.len() as u64)?;
            digest.add(piece);
            gathered.extend_from_slice(piece);
            if let Some(reader) = &form
                && reader.send(piece.clone()).await.is_err()
            {
                form = None;
            }
        }
        if gathered.len() >= PIECE || (piece.is_none() && !gathered.is_empty()) {
            let full = std::mem::take(&mut gathered);
            draft = done(spawn_blocking(move || draft.write(&full).map(|()| draft)).await)?;
        }
        if piece.is_none() {
            return Ok((draft, digest));
        }
    }
}

pub(super) fn done<T>(result: Result<std::io::Result<T>, tokio::task::JoinError>) -> Result<T, ApiError> {
    match result {
        Ok(done) => done.map_err(|error| crate::refusals::of_job_disk(&error)),
        Err(_) => Err(model_boss_http::error::panic_error()),
    }
}

fn content_type(headers: &HeaderMap) -> Result<String, ApiError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).map(str::to_owned);
    kind.ok_or_else(|| ApiError::new(ErrorCode::UnsupportedMediaType, "the body's Content-Type is missing"))
}

fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    let message =
        "an order is JSON with 'kind' and 'body'; another body is sent as it is, with ?endpoint=/v1/… in the query";
    Err(ApiError::new(ErrorCode::UnsupportedMediaType, message))
}

/// The headers of an order that set fields of the request.
fn own_headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let is_kept = |name: &&str| OWN_HEADERS.contains(name) || OF_OTHERS.contains(name);
    let kept = headers.iter().filter(|(name, _)| is_kept(&name.as_str()));
    kept.filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))).collect()
}

fn deadline_of(wish: &DeadlineWish) -> Result<WallTime, ApiError> {
    let span = match wish {
        DeadlineWish::Seconds(seconds) => span_of_secs(*seconds),
        DeadlineWish::Text(text) => parse_span(text),
    };
    let span = span.map_err(|error| ApiError::invalid("deadline", format!("'deadline': {error}")))?;
    if span.is_zero() || span > LONGEST_DEADLINE {
        return Err(ApiError::invalid("deadline", "'deadline' must be more than 0 s and at most 30d from now"));
    }
    Ok(now().after(span))
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let text = value.to_str().ok().map(str::trim).filter(|text| !text.is_empty() && text.len() <= LONGEST_KEY);
    let wrong = || {
        let message = format!("'Idempotency-Key' must have 1 to {LONGEST_KEY} printable characters");
        ApiError::invalid("Idempotency-Key", message)
    };
    text.map(|text| Some(text.to_owned())).ok_or_else(wrong)
}

fn admitted(jobs: &Jobs, wish: &WebhookWish) -> Result<HookTarget, ApiError> {
    let (WebhookWish::Url(url) | WebhookWish::Object { url }) = wish;
    jobs.admit_webhook(url).map_err(|error| match error {
        HookUrlError::Malformed(_) => ApiError::invalid("webhook", error.to_string()),
        HookUrlError::Off | HookUrlError::Host(_) | HookUrlError::Plain(_) => {
            ApiError::new(ErrorCode::WebhookNotAllowed, error.to_string()).with_param("webhook")
        }
    })
}

/// The size of the largest file.
pub(super) fn file_size(jobs: &Jobs) -> ByteCount {
    jobs.file_size()
}
