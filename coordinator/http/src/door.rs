//! Checks and wrappers of every request, before the routes: Host and Origin, a request id, and a catch for handlers'
//! panics.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use hyper::service::Service;
use model_boss_protocol::ErrorCode;
use tower::Service as _;

use crate::error::{ErrorShape, error_response, panic_error};
use crate::headers::{ANTHROPICS_ID, REQUEST_ID, RequestId};
use crate::origin::{AllowedHosts, is_preflight};
use crate::peer::Peer;

/// The longest client-chosen id that is echoed, in bytes.
const MAX_REQUEST_ID: usize = 128;

/// The HTTP service of every connection.
#[derive(Clone)]
pub struct Door {
    allowed: Arc<AllowedHosts>,
    /// The prefix of ids for requests that bring none.
    id_prefix: Arc<str>,
    router: Router,
    next_id: Arc<AtomicU64>,
    /// The connection that this copy serves.
    peer: Option<Peer>,
}

impl Door {
    /// A service in front of these routes.
    pub fn new(allowed: AllowedHosts, id_prefix: &str, router: Router) -> Self {
        let next_id = Arc::new(AtomicU64::new(1));
        Self { allowed: Arc::new(allowed), id_prefix: id_prefix.into(), router, next_id, peer: None }
    }

    /// A copy of the service for one connection.
    pub fn of(self, peer: Peer) -> Self {
        Self { peer: Some(peer), ..self }
    }

    fn request_id(&self, offered: Option<&HeaderValue>) -> HeaderValue {
        let usable = |id: &&HeaderValue| {
            (1..=MAX_REQUEST_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        offered.filter(usable).cloned().unwrap_or_else(|| {
            let number = self.next_id.fetch_add(1, Ordering::Relaxed);
            let id = format!("{}-{number}", self.id_prefix);
            HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from(number))
        })
    }
}

impl<B> Service<Request<B>> for Door
where
    B: http_body::Body<Data = bytes::Bytes, Error: Into<axum::BoxError>> + Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, request: Request<B>) -> Self::Future {
        let (mut head, body) = request.into_parts();
        let id = self.request_id(head.headers.get(REQUEST_ID));
        head.uri = usual(&head.uri).unwrap_or(head.uri);
        let shape = ErrorShape::of(head.uri.path(), &head.headers);
        let checked = self.allowed.check(&head);
        let site = checked.as_ref().ok().cloned().flatten();
        let answer = match checked.map(|site| site?.preflight(&head)) {
            Ok(None) => {
                head.extensions.insert(RequestId(id.clone()));
                if let Some(peer) = &self.peer {
                    head.extensions.insert(peer.clone());
                }
                let mut router = self.router.clone();
                Ok(router.call(Request::from_parts(head, body)))
            }
            Ok(Some(headers)) => Err(preflight_response(headers)),
            // A browser does not send a request whose preflight has no site in its answer, whatever the status.
            Err(error) if error.code == ErrorCode::ForbiddenOrigin && is_preflight(&head) => {
                let mut refused = error_response(&error);
                *refused.status_mut() = StatusCode::OK;
                Err(refused)
            }
            Err(error) => Err(error_response(&error)),
        };
        Box::pin(async move {
            let mut response = match answer {
                Ok(answer) => caught(answer).await,
                Err(response) => response,
            };
            shape.put_on(&mut response);
            let headers = response.headers_mut();
            if shape == ErrorShape::Anthropic {
                // A provider's own id of the request stays.
                headers.entry(ANTHROPICS_ID).or_insert(id.clone());
            }
            headers.entry(REQUEST_ID).or_insert(id);
            if let Some(site) = site {
                site.allow(headers);
            }
            Ok(response)
        })
    }
}

fn preflight_response(headers: HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::OK;
    *response.headers_mut() = headers;
    response
}

/// The target in the form that routes have. Some clients join base URL and path differently: with extra slashes, or
/// with the base twice. Returns `None` where the target has that form already.
fn usual(target: &Uri) -> Option<Uri> {
    let path = target.path();
    let slashed = path.starts_with('/').then(|| with_single_slashes(path))?;
    let mut usual = slashed.as_str();
    while let Some(rest) = usual.strip_prefix("/api").filter(|rest| rest.starts_with("/api/")) {
        usual = rest;
    }
    let (base, mut rest) = match usual.strip_prefix("/api").filter(|rest| rest.starts_with("/v1/")) {
        Some(rest) => ("/api", rest),
        None => ("", usual),
    };
    while let Some(behind) = rest.strip_prefix("/v1").filter(|behind| behind.starts_with("/v1/")) {
        rest = behind;
    }
    while let Some(before) = rest.strip_suffix('/').filter(|before| !before.is_empty() || !base.is_empty()) {
        rest = before;
    }
    if path.strip_prefix(base) == Some(rest) {
        return None;
    }
    let query = target.query().map(|query| format!("?{query}")).unwrap_or_default();
    let mut parts = target.clone().into_parts();
    parts.path_and_query = Some(format!("{base}{rest}{query}").parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// Segments before an id or a name. An id is kept unchanged, because it may contain slashes.
const BEFORE_IDS: [&str; 5] = ["models", "tasks", "leases", "logs", "devices"];

/// The path with one slash before each segment, up to an id.
fn with_single_slashes(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    loop {
        let segment = rest.trim_start_matches('/');
        out.push('/');
        let end = segment.find('/').unwrap_or(segment.len());
        out.push_str(&segment[..end]);
        rest = &segment[end..];
        if rest.is_empty() || BEFORE_IDS.contains(&&segment[..end]) {
            return out + rest;
        }
    }
}

/// The answer, or the error that a client sees of a panic. The panic hook has logged the details.
async fn caught(answer: impl Future<Output = Result<Response, Infallible>>) -> Response {
    let mut answer = pin!(answer);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))) {
        Ok(Poll::Ready(Ok(response))) => Poll::Ready(response),
        Ok(Poll::Pending) => Poll::Pending,
        Err(_) => Poll::Ready(error_response(&panic_error())),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_and_a_path_are_joined_in_many_ways() {
        for (path, expected) in [
            ("/v1/models/", "/v1/models"),
            ("//v1/chat/completions", "/v1/chat/completions"),
            ("/v1/v1/messages", "/v1/messages"),
            ("/v1/v1/v1/models//?a=/b/", "/v1/models?a=/b/"),
            ("//", "/"),
            ("/v1//chat/completions", "/v1/chat/completions"),
            ("/v1/chat//completions/?a=1", "/v1/chat/completions?a=1"),
            ("/api//v1///health", "/api/v1/health"),
            ("/api/v1/v1/models", "/api/v1/models"),
            ("//api/api//api/tags", "/api/tags"),
            ("/v1//models/a//b", "/v1/models/a//b"),
            ("/v1//v1/messages//count_tokens//", "/v1/messages/count_tokens"),
            ("http://localhost:8210//api/tags/", "http://localhost:8210/api/tags"),
        ] {
            assert_eq!(usual(&path.parse().unwrap()).unwrap().to_string(), expected, "{path}");
        }
        for path in
            ["/", "/v1/models", "/v1/models/a//b", "/api/v1/models//a", "/v1/v10", "/api", "/v1/models?x=/", "*"]
        {
            assert_eq!(usual(&path.parse().unwrap()), None, "{path}");
        }
    }
}
