//! From a place in the queue to the beginning of a worker's answer, with retries on other workers. The client has
//! received no byte yet, so a worker that dies here costs only time.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, HeaderName, Method, Request, StatusCode, Uri};
use http_body_util::BodyExt;
use model_boss_cloud::{CloudAnswer, CloudRequest};
use model_boss_dialects::{
    AnswerKind, EDITS, MESSAGES, PICTURES, Prepared, Reshape, SPEECH, Stamp, check_answer, engine_error,
};
use model_boss_host::clocks::unix_seconds;
use model_boss_http::gathered::Gathered;
use model_boss_http::json;
use model_boss_http::memory::{Admission, HeldMemory, MemoryError};
use model_boss_http::offload::offload;
use model_boss_http::upstream::Outgoing;
use model_boss_protocol::{ApiError, ClientId, ErrorBody, ErrorCode, ErrorSource, Priority, headers};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::select;
use tokio::time::{Instant, timeout_at};

use super::account::Account;
use super::answer_body::{AnswerBody, AnswerSource};
use super::answer_form::AnswerForm;
use super::endings::deadline_exceeded;
use super::fitting::Fitting;
use super::forward::Forward;
use super::lost::Lost;
use super::reshape::reshape_whole;
use super::served::Served;
use super::traced::{LOST, placed, turn};
use crate::adapters::GiveError;
use crate::refusals::{of_cloud, of_dialect};
use crate::scheduling::{Destination, Dispatched, Ticket};
use crate::worker::Worker;

/// The most bytes that an external engine's manifest adds to a request: a few fields.
const MAX_ADDED: usize = 16 << 10;
/// The most bytes of an error.
const MAX_ERROR: usize = 64 << 10;
/// The most bytes of a stream before its first event, beside the event.
const MAX_BEFORE: usize = 2 << 20;

/// The beginning of an answer, with everything that keeps it open.
pub(crate) struct Answer {
    pub(super) ticket: Ticket,
    /// The place that answers, and how it was chosen.
    pub(super) served: Served,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// The part of a wish about thinking that the model cannot follow, in words.
    pub(super) thinking: Option<&'static str>,
    pub(super) content: Content,
    pub(super) account: Account,
    /// The client's deadline.
    pub(super) deadline: Option<Instant>,
    /// The worker or provider that the answer comes from.
    pub(super) place: Destination,
    /// Whether the answer has the shape of the client's API already.
    pub(super) is_own: bool,
}

/// The answer's body, as far as it has arrived.
pub(crate) enum Content {
    /// The whole body.
    Whole(Bytes),
    /// The first events, and the connection for the rest.
    Stream { first: Bytes, rest: AnswerBody },
    /// The media type of sound, its first bytes, and the connection for the rest.
    Sound { kind: HeaderValue, first: Bytes, rest: AnswerBody },
}

/// Waits for a worker and for the beginning of its answer. An error is the request's final answer.
pub(crate) async fn obtain(mut ticket: Ticket, forward: Forward, mut account: Account) -> Result<Answer, ApiError> {
    let deadline = forward.deadline;
    let begun = begin(&mut ticket, &forward, &mut account);
    let begun = match deadline {
        // The scheduler enforces the deadline while the request is queued; this enforces it afterwards.
        Some(deadline) => timeout_at(deadline, begun).await.unwrap_or_else(|_| Err(deadline_exceeded())),
        None => begun.await,
    };
    match begun {
        Ok((Dispatched { place, rung, queued, loading }, reply)) => {
            let UpstreamReply { status, headers, thinking, content, is_own } = reply;
            let served =
                Served { model: forward.adapters.served(place.served(), rung.position), rung, queued, loading };
            Ok(Answer { ticket, served, status, headers, thinking, content, account, deadline, place, is_own })
        }
        Err(error) => {
            account.failed(&error);
            ticket.failed(&error);
            Err(error)
        }
    }
}

/// The reply of a worker or a cloud provider, as far as it has arrived.
struct UpstreamReply {
    status: StatusCode,
    /// The headers that the client may see.
    headers: HeaderMap,
    thinking: Option<&'static str>,
    content: Content,
    is_own: bool,
}

async fn begin(
    ticket: &mut Ticket,
    forward: &Forward,
    account: &mut Account,
) -> Result<(Dispatched, UpstreamReply), ApiError> {
    // The worker that closed the connection last. A worker that is alive gets no third attempt, since its next answer
    // would end in the same way.
    let mut broke_off: Option<Arc<Worker>> = None;
    loop {
        let dispatched = turn(ticket, &forward.trace).await?;
        account.dispatched(&dispatched);
        placed(forward, &dispatched);
        let (worker, priority) = match &dispatched.place {
            Destination::Worker { worker, priority } => (worker, *priority),
            Destination::Cloud { provider, model } => {
                let asked = select! {
                    biased;
                    error = ticket.recalled() => return Err(error),
                    reply = fitted_cloud(forward, provider, model) => reply,
                };
                match asked {
                    Ok(reply) => return Ok((dispatched, reply)),
                    Err(error) if error.code == ErrorCode::InvalidRequest => return Err(error),
                    Err(error) => {
                        forward.trace.call_failed(error.code.as_str());
                        ticket.rung_failed(error);
                        continue;
                    }
                }
            }
        };
        // The end of an exchange closes its connection, which stops the generation.
        let exchanged = select! {
            biased;
            error = ticket.recalled() => return Err(error),
            reply = fitted_exchange(worker, (priority, dispatched.rung.position), forward) => reply,
        };
        let lost = match exchanged {
            Ok(reply) => return Ok((dispatched, reply)),
            Err(Lost::Refused(error)) => return Err(error),
            Err(lost) => lost,
        };
        forward.trace.call_failed(LOST);
        match lost {
            lost if lost.is_nonsense() => {
                let message = format!("{} cannot be understood: {lost}", worker.title());
                ticket.rung_failed(ApiError::new(ErrorCode::BackendError, message));
            }
            lost if lost.is_broken_off() && broke_off.as_ref().is_some_and(|last| Arc::ptr_eq(last, worker)) => {
                let message = format!("{} runs and broke off its answer twice: {lost}", worker.title());
                ticket.rung_failed(ApiError::new(ErrorCode::BackendError, message));
            }
            lost => {
                let model = &worker.model;
                tracing::info!(%model, request = %ticket.request(), "worker lost before its answer began: {lost}");
                broke_off = lost.is_broken_off().then(|| Arc::clone(worker));
                ticket.lost();
            }
        }
    }
}

/// Sends the request to a provider, again where its prompt is too long and may be shortened.
async fn fitted_cloud(forward: &Forward, provider: &str, model: &str) -> Result<UpstreamReply, ApiError> {
    let mut fitting = Fitting::new(forward);
    loop {
        match ask_cloud(fitting.request(), provider, model).await {
            Err(error) if fitting.shorten_after(&error).await? => {}
            answered => return answered,
        }
    }
}

/// Sends the request to a worker, again where its prompt is too long and may be shortened.
async fn fitted_exchange(worker: &Worker, at: (Priority, usize), forward: &Forward) -> Result<UpstreamReply, Lost> {
    let mut fitting = Fitting::new(forward);
    loop {
        let reply = exchange(worker, at, fitting.request()).await?;
        let refusal = match &reply.content {
            Content::Whole(body) if reply.status.is_client_error() => body,
            _ => return Ok(reply),
        };
        if !fitting.shorten_after_answer(refusal).await.map_err(Lost::Refused)? {
            return Ok(reply);
        }
    }
}

/// Sends the request to a provider, once.
async fn ask_cloud(forward: &Forward, provider: &str, model: &str) -> Result<UpstreamReply, ApiError> {
    let act = match forward.path {
        SPEECH => Some("speak"),
        PICTURES | EDITS => Some("paint"),
        _ => None,
    };
    if let Some(act) = act {
        let message = format!("provider '{provider}' is not asked to {act}; ask a model of this machine");
        return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("model"));
    }
    let mut trace = HeaderMap::new();
    forward.trace.inject(&mut trace);
    let request = CloudRequest {
        provider,
        model,
        path: forward.path,
        body: &forward.body,
        is_translated: forward.is_translated,
        id: &String::from_utf8_lossy(forward.request_id.as_bytes()),
        trace: &trace,
        client: &forward.cloud.client,
        daily_limit: forward.cloud.daily_limit,
        now: unix_seconds(),
        memory: &forward.memory,
        limits: forward.limits,
        own: forward.own.as_deref(),
    };
    let broken = |lost: Lost| ApiError::new(ErrorCode::BackendError, format!("provider '{provider}': {lost}"));
    let answer = forward.cloud.clouds.ask(&request).await.map_err(of_cloud)?;
    let CloudAnswer { status, mut headers, thinking, body, reshape, path } = answer;
    let answer = AnswerHead { status, from: AnswerSource::Cloud(body), reshape: Some(reshape), path };
    let content = read_answer(answer, &headers, forward).await.map_err(broken)?;
    headers.remove(CONTENT_TYPE);
    Ok(UpstreamReply { status, headers, thinking, content, is_own: path == MESSAGES })
}

/// Tokens at the beginning that stay when a context is full, in Ollama's API.
const OLLAMAS_KEEP: i64 = 4;

async fn exchange(worker: &Worker, at: (Priority, usize), forward: &Forward) -> Result<UpstreamReply, Lost> {
    let ((priority, position), upstream) = (at, worker.upstream().ok_or(Lost::NotReady)?);
    forward.adapters.give((worker, upstream), position).await.map_err(|error| match error {
        GiveError::Refused(error) => Lost::Refused(error),
        GiveError::Lost(error) => Lost::Upstream(error),
    })?;
    let EngineRequest { path, body, reshape, thinking } = prepare(worker, position, forward).await?;
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static(path);
    let outgoing = request.headers_mut();
    // Room for those of below, the trace's, the token's and the body's length.
    outgoing.reserve(10);
    forward.trace.inject(outgoing);
    outgoing.insert(CONTENT_TYPE, forward.content_type());
    outgoing.insert(HeaderName::from_static(headers::REQUEST_ID), forward.request_id.clone());
    outgoing.insert(HeaderName::from_static(headers::PRIORITY), HeaderValue::from(u16::from(priority.number())));
    if worker.dialect().is_none() {
        outgoing.insert(HeaderName::from_static(headers::CALLER), caller(&forward.cloud.client));
        if forward.wish.shifts {
            let keep = HeaderValue::from(forward.wish.keep.unwrap_or(OLLAMAS_KEEP));
            outgoing.insert(HeaderName::from_static(headers::CONTEXT_SHIFT), keep);
        }
    }
    if let Some(deadline) = forward.deadline {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let left = HeaderValue::from(u64::try_from(left).unwrap_or(u64::MAX));
        outgoing.insert(HeaderName::from_static(headers::DEADLINE_MS), left);
    }

    let (head, body) = upstream.send(request).await?.into_parts();
    // Only these headers of a worker's answer are passed on.
    let mut told = HeaderMap::new();
    let from = AnswerSource::Worker(body);
    if head.status.is_client_error() || head.status.is_server_error() {
        if let Some(wait) = head.headers.get(RETRY_AFTER) {
            told.insert(RETRY_AFTER, wait.clone());
        }
        let (status, body) = read_error(head.status, from, worker.dialect().is_some()).await?;
        return Ok(UpstreamReply { status, headers: told, thinking, content: Content::Whole(body), is_own: false });
    }
    let answer = AnswerHead { status: head.status, from, reshape, path: forward.path };
    let content = read_answer(answer, &head.headers, forward).await?;
    if let Some(kind) = head.headers.get(CONTENT_TYPE).filter(|kind| is_plain_text(forward.path, kind)) {
        told.insert(CONTENT_TYPE, kind.clone());
    }
    Ok(UpstreamReply { status: head.status, headers: told, thinking, content, is_own: false })
}

/// The client as a header, percent-encoded, since names may have any characters.
fn caller(client: &ClientId) -> HeaderValue {
    let name: Cow<'_, str> = utf8_percent_encode(client.as_str(), NON_ALPHANUMERIC).into();
    HeaderValue::try_from(&*name).unwrap_or(HeaderValue::from_static(""))
}

/// An answer whose head has arrived.
struct AnswerHead {
    status: StatusCode,
    from: AnswerSource,
    reshape: Option<Box<dyn Reshape>>,
    path: &'static str,
}

/// The body of a successful answer. It is invalid if the request required another kind (a stream, or a whole answer).
async fn read_answer(backend: AnswerHead, headers: &HeaderMap, forward: &Forward) -> Result<Content, Lost> {
    let AnswerHead { status, from, reshape, path } = backend;
    if status != StatusCode::OK {
        return Err(Lost::Nonsense(format!("it answered with status {}", status.as_u16())));
    }
    let is_text =
        forward.form == AnswerForm::Whole && headers.get(CONTENT_TYPE).is_some_and(|kind| is_plain_text(path, kind));
    let given = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let expected = forward.form.content_type(given);
    let is_expected = given.get(..expected.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(expected.as_bytes()));
    if !is_expected && !is_text {
        let given = String::from_utf8_lossy(given);
        return Err(Lost::Nonsense(format!("its answer is of the type '{given}', not {expected}")));
    }
    let memory = forward.memory.holder();
    match forward.form {
        AnswerForm::Events => {
            let mut rest = AnswerBody::stream(from, AnswerKind::of(path), reshape, memory);
            let most = AnswerKind::of(path).longest_event().saturating_add(MAX_BEFORE);
            return Ok(Content::Stream { first: beginning(&mut rest, most).await?, rest });
        }
        AnswerForm::Sound => {
            let kind = headers.get(CONTENT_TYPE).cloned().unwrap_or(HeaderValue::from_static("audio/wav"));
            let mut rest = AnswerBody::whole(from);
            let first = next_data(&mut rest).await?;
            let first = first.ok_or_else(|| Lost::Nonsense("its sound is empty".to_owned()))?;
            return Ok(Content::Sound { kind, first, rest });
        }
        AnswerForm::Whole => {}
    }
    let mut body = whole(&mut AnswerBody::whole(from), memory).await?;
    if let Some(reshape) = reshape {
        body = reshape_whole(reshape, status, body, forward.memory.holder(), forward.limits).await?;
    }
    if is_text {
        return Ok(Content::Whole(body));
    }
    let (kind, checked) = (AnswerKind::of(path), body.clone());
    offload(body.len(), move || check_answer(kind, &checked).map_err(Lost::from)).await?;
    Ok(Content::Whole(body))
}

/// Whether an answer is a transcript as text or subtitles.
fn is_plain_text(path: &str, kind: &HeaderValue) -> bool {
    AnswerKind::of(path) == AnswerKind::Transcript && kind.as_bytes().starts_with(b"text/")
}

/// The first bytes of a stream, up to the first event that is a piece of an answer. Until then the stream may still
/// turn out to be an error.
async fn beginning(body: &mut AnswerBody, most: usize) -> Result<Bytes, Lost> {
    let empty = || Lost::Nonsense("its stream is empty".to_owned());
    let first = next_data(body).await?.ok_or_else(empty)?;
    if body.has_begun() {
        return Ok(first);
    }
    let mut all = first.to_vec();
    while !body.has_begun() {
        let more = next_data(body).await?.ok_or_else(empty)?;
        if all.len() + more.len() > most {
            return Err(Lost::Nonsense("its stream does not begin".to_owned()));
        }
        all.extend_from_slice(&more);
    }
    Ok(all.into())
}

/// A worker's error with its status. An error of a candle worker or a fake worker has the coordinator's shape already.
async fn read_error(status: StatusCode, from: AnswerSource, is_foreign: bool) -> Result<(StatusCode, Bytes), Lost> {
    let (mut body, mut all) = (AnswerBody::whole(from), Vec::new());
    while let Some(more) = next_data(&mut body).await? {
        all.extend_from_slice(&more);
        if all.len() > MAX_ERROR {
            return Err(Lost::Nonsense(format!("it answered with status {} and no end", status.as_u16())));
        }
    }
    if !is_foreign && serde_json::from_slice::<ErrorBody>(&all).is_ok() {
        return Ok((status, Bytes::from(all)));
    }
    let error = of_dialect(engine_error(status.as_u16(), &all));
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_GATEWAY);
    Ok((status, Bytes::from(error.body(ErrorSource::Worker).to_json())))
}

/// A request as it is sent to one worker.
struct EngineRequest {
    path: &'static str,
    body: Outgoing,
    /// The translation of the request's answer.
    reshape: Option<Box<dyn Reshape>>,
    thinking: Option<&'static str>,
}

/// The request for this worker: unchanged, or translated for an external engine.
async fn prepare(worker: &Worker, position: usize, forward: &Forward) -> Result<EngineRequest, Lost> {
    let path = forward.path;
    let Some(dialect) = worker.dialect().filter(|_| forward.parts.is_none()) else {
        let body = forward.body_for(&forward.adapters.served(worker.model.to_string(), position));
        return Ok(EngineRequest { path, body, reshape: None, thinking: None });
    };
    let created = unix_seconds();
    let id = format!("chatcmpl-{}", String::from_utf8_lossy(forward.request_id.as_bytes()));
    let stamp = Stamp { id, model: worker.model.to_string(), created };
    let (dialect, body) = (dialect.clone(), forward.body.clone());
    let (mut memory, limits) = (forward.memory.holder(), forward.limits);
    let prepared = offload(body.len(), move || {
        if dialect.takes_apart(path) {
            json::make_room(&body, limits, &mut memory, Admission::Accepted)?;
        } else {
            // The parsed fields need memory, and the rewritten body needs it again.
            memory.grow(2 * body.len() + MAX_ADDED, Admission::Accepted)?;
        }
        let mut prepared = dialect.prepare(path, &body, stamp).map_err(of_dialect)?;
        prepared.body = memory.keep(prepared.body);
        Ok(prepared)
    });
    let Prepared { path, body, reshape, thinking } = prepared.await.map_err(Lost::Refused)?;
    Ok(EngineRequest { path, body: Outgoing::new(body, Bytes::new()), reshape, thinking })
}

async fn next_data(body: &mut AnswerBody) -> Result<Option<Bytes>, Lost> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data()
            && !data.is_empty()
        {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// The whole of an answer, which holds memory for the bytes that have arrived.
async fn whole(body: &mut AnswerBody, mut memory: HeldMemory) -> Result<Bytes, Lost> {
    let mut gathered = Gathered::new(memory.most());
    while let Some(more) = next_data(body).await? {
        memory.grow(more.len(), Admission::Accepted).map_err(|error| match error {
            MemoryError::Busy => Lost::Refused(error.into()),
            MemoryError::Never(_) => Lost::Nonsense(format!("its answer is too large: {error}")),
        })?;
        gathered.add(more);
    }
    Ok(memory.keep(gathered.whole()))
}
