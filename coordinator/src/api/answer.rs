//! From a place in the queue to the beginning of a worker's answer, through as many workers as it takes. Nothing has been
//! sent to the client yet, so a worker that dies here costs only time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, HeaderName, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use model_boss_core::RungChoice;
use model_boss_dialects::{Prepared, Stamp, engine_error};
use model_boss_protocol::{ApiError, ClientId, ErrorCode, headers};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use crate::cloud::{CloudAnswer, CloudRequest, Clouds};
use crate::driver::{Dispatched, Place, Ticket};
use crate::supervisor::Worker;
use crate::upstream::UpstreamError;

use super::account::Account;
use super::answer_body::AnswerBody;
use super::error::panic_error;
use super::inference::LARGE_BODY;

/// A non-streamed answer is collected before it is sent on, so that it can be asked for again; text is never this large.
const MAX_ANSWER: usize = 256 << 20;

/// What was not done of a wish about thinking.
pub(super) const THINKING: HeaderName = HeaderName::from_static("x-thinking");

/// A request as a worker gets it.
pub(super) struct Forward {
    /// The worker's path.
    pub(super) path: &'static str,
    /// Without the fields that are ours.
    pub(super) body: Bytes,
    /// The public id.
    pub(super) request_id: HeaderValue,
    /// When the client stops caring.
    pub(super) deadline: Option<Instant>,
    /// Whether the body names what serves it already.
    pub(super) model_in_body: ModelInBody,
    /// Where a rung elsewhere leads.
    pub(super) cloud: CloudAccess,
}

/// The providers, and what this client may spend there.
pub(super) struct CloudAccess {
    pub(super) clouds: Arc<Clouds>,
    pub(super) client: ClientId,
    /// US dollars in a day, if that is limited.
    pub(super) daily_limit: Option<f64>,
}

/// Whether a body has a `model`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelInBody {
    /// The one that serves it.
    Named,
    /// None: it is put in when it is known.
    Missing,
}

impl Forward {
    /// The body for whoever serves it under this name.
    pub(super) fn body_for(&self, model: &str) -> Bytes {
        if self.model_in_body == ModelInBody::Named {
            return self.body.clone();
        }
        let mut body = Vec::with_capacity(self.body.len() + model.len() + 16);
        body.extend_from_slice(b"{\"model\":");
        body.extend_from_slice(serde_json::Value::from(model).to_string().as_bytes());
        // Behind the brace there is another field, or the end.
        let rest = self.body.get(1..).unwrap_or(b"}");
        if rest != b"}" {
            body.push(b',');
        }
        body.extend_from_slice(rest);
        Bytes::from(body)
    }
}

/// The beginning of an answer, with everything that holds it open.
pub(super) struct Answer {
    pub(super) ticket: Ticket,
    /// What answers, and how it came to that.
    pub(super) served: Served,
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) content: Content,
    pub(super) account: Account,
    /// When the client stops caring.
    pub(super) deadline: Option<Instant>,
}

/// What answers a request, and how it came to that.
pub(super) struct Served {
    pub(super) model: String,
    pub(super) rung: RungChoice,
    pub(super) queued: Duration,
    pub(super) loading: Duration,
}

/// What there is of the answer's body.
pub(super) enum Content {
    /// All of it.
    Whole(Bytes),
    /// Its first bytes, and the connection the rest comes from.
    Stream { first: Bytes, rest: AnswerBody },
}

/// The worker went away, or talks nonsense, before the answer began.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("it has no address yet")]
    NotReady,
    #[error(transparent)]
    Refused(#[from] ApiError),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error("the connection broke in its answer")]
    Body(#[source] hyper::Error),
    #[error("its answer is larger than {MAX_ANSWER} bytes")]
    TooLarge,
}

impl Lost {
    /// Whether a fresh worker would answer the same.
    fn is_nonsense(&self) -> bool {
        match self {
            Self::NotReady | Self::Refused(_) => false,
            Self::Upstream(error) => error.is_nonsense(),
            Self::Body(error) => error.is_parse(),
            Self::TooLarge => true,
        }
    }
}

/// Waits for a worker and for the beginning of its answer. An error is the request's final answer.
pub(super) async fn obtain(mut ticket: Ticket, forward: Forward, mut account: Account) -> Result<Answer, ApiError> {
    let deadline = forward.deadline;
    let begun = begin(&mut ticket, &forward, &mut account);
    let begun = match deadline {
        // The scheduler knows the deadline while the request waits; this is for the time after.
        Some(deadline) => timeout_at(deadline, begun).await.unwrap_or_else(|_| Err(deadline_exceeded())),
        None => begun.await,
    };
    match begun {
        Ok(Begun { dispatched: Dispatched { place, rung, queued, loading }, status, headers, content }) => {
            let served = Served { model: place.served(), rung, queued, loading };
            Ok(Answer { ticket, served, status, headers, content, account, deadline })
        }
        Err(error) => {
            account.status(error.status());
            ticket.failed(&error);
            Err(error)
        }
    }
}

struct Begun {
    dispatched: Dispatched,
    status: StatusCode,
    headers: HeaderMap,
    content: Content,
}

async fn begin(ticket: &mut Ticket, forward: &Forward, account: &mut Account) -> Result<Begun, ApiError> {
    loop {
        let dispatched = ticket.dispatched().await?;
        account.dispatched(&dispatched);
        let worker = match &dispatched.place {
            Place::Worker(worker) => worker,
            Place::Cloud { provider, model } => match ask_cloud(forward, provider, model).await {
                Ok((status, headers, content)) => return Ok(Begun { dispatched, status, headers, content }),
                Err(error) if error.code == ErrorCode::InvalidRequest => return Err(error),
                Err(error) => {
                    ticket.rung_failed(error);
                    continue;
                }
            },
        };
        match exchange(worker, forward).await {
            Ok((status, headers, content)) => return Ok(Begun { dispatched, status, headers, content }),
            Err(Lost::Refused(error)) => return Err(error),
            Err(lost) if lost.is_nonsense() => {
                let message = format!("the worker of model '{}' cannot be understood: {lost}", worker.model);
                ticket.rung_failed(ApiError::new(ErrorCode::BackendError, message));
            }
            Err(lost) => {
                let model = &worker.model;
                tracing::info!(%model, request = %ticket.request(), "worker lost before its answer began: {lost}");
                ticket.lost();
            }
        }
    }
}

/// Asks a provider, once.
async fn ask_cloud(
    forward: &Forward,
    provider: &str,
    model: &str,
) -> Result<(StatusCode, HeaderMap, Content), ApiError> {
    let request = CloudRequest {
        provider,
        model,
        path: forward.path,
        body: &forward.body_for(model),
        id: &String::from_utf8_lossy(forward.request_id.as_bytes()),
        client: &forward.cloud.client,
        daily_limit: forward.cloud.daily_limit,
        now: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
    };
    let broken = |lost: Lost| ApiError::new(ErrorCode::BackendError, format!("provider '{provider}': {lost}"));
    let CloudAnswer { status, headers, body, mut reshape, is_stream } = forward.cloud.clouds.ask(&request).await?;
    if is_stream {
        let mut body = AnswerBody::of_cloud(body, Some(reshape));
        let first = next_data(&mut body).await.map_err(broken)?.unwrap_or_default();
        return Ok((status, headers, Content::Stream { first, rest: body }));
    }
    let body = whole(&mut AnswerBody::of_cloud(body, None)).await.map_err(broken)?;
    Ok((status, headers, Content::Whole(reshape.whole(status.as_u16(), &body))))
}

async fn exchange(worker: &Worker, forward: &Forward) -> Result<(StatusCode, HeaderMap, Content), Lost> {
    let upstream = worker.upstream().ok_or(Lost::NotReady)?;
    let Prepared { path, body, mut reshape, thinking } = prepare(worker, forward).await?;
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static(path);
    let outgoing = request.headers_mut();
    outgoing.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    outgoing.insert(HeaderName::from_static(headers::REQUEST_ID), forward.request_id.clone());

    let (mut head, body) = upstream.send(request).await?.into_parts();
    if let Some(words) = thinking {
        head.headers.insert(THINKING, HeaderValue::from_static(words));
    }
    let is_stream =
        head.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let is_foreign_error = worker.dialect().is_some() && !head.status.is_success();
    if reshape.is_some() || is_foreign_error {
        // Its body gets another length.
        head.headers.remove(CONTENT_LENGTH);
    }
    let content = if is_stream {
        let mut body = AnswerBody::new(body, reshape);
        match next_data(&mut body).await? {
            Some(first) => Content::Stream { first, rest: body },
            None => Content::Whole(Bytes::new()),
        }
    } else {
        let body = whole(&mut AnswerBody::new(body, None)).await?;
        Content::Whole(match &mut reshape {
            _ if is_foreign_error => engine_error(head.status.as_u16(), &body),
            Some(reshape) => reshape.whole(head.status.as_u16(), &body),
            None => body,
        })
    };
    Ok((head.status, head.headers, content))
}

/// The request as this worker takes it: as it is, or as an engine of others has to be asked.
async fn prepare(worker: &Worker, forward: &Forward) -> Result<Prepared, Lost> {
    let (path, body) = (forward.path, forward.body_for(worker.model.as_str()));
    let Some(dialect) = worker.dialect() else { return Ok(Prepared { path, body, reshape: None, thinking: None }) };
    let created = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let id = format!("chatcmpl-{}", String::from_utf8_lossy(forward.request_id.as_bytes()));
    let stamp = Stamp { id, model: worker.model.to_string(), created };
    if body.len() <= LARGE_BODY {
        return Ok(dialect.prepare(path, &body, stamp)?);
    }
    let dialect = dialect.clone();
    let prepared = spawn_blocking(move || dialect.prepare(path, &body, stamp)).await;
    Ok(prepared.map_err(|_| panic_error())??)
}

async fn next_data(body: &mut AnswerBody) -> Result<Option<Bytes>, Lost> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(Lost::Body)?.into_data()
            && !data.is_empty()
        {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

async fn whole(body: &mut AnswerBody) -> Result<Bytes, Lost> {
    let Some(first) = next_data(body).await? else { return Ok(Bytes::new()) };
    let Some(second) = next_data(body).await? else { return Ok(first) };
    let mut all = Vec::with_capacity(first.len() + second.len());
    all.extend_from_slice(&first);
    all.extend_from_slice(&second);
    while let Some(more) = next_data(body).await? {
        if all.len() + more.len() > MAX_ANSWER {
            return Err(Lost::TooLarge);
        }
        all.extend_from_slice(&more);
    }
    Ok(Bytes::from(all))
}

pub(super) fn deadline_exceeded() -> ApiError {
    ApiError::new(ErrorCode::DeadlineExceeded, "the request's time budget is over")
}
