//! What every request passes first: Host and Origin, a request id, and a net under the handlers' panics.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use axum::Router;
use axum::response::Response;
use http::{HeaderName, HeaderValue, Request};
use http_body::Body;
use hyper::service::Service;
use tower::Service as _;

use super::Context;
use super::error::{error_response, panic_error};
use super::peer::Peer;

/// The header with the public id of a request: after the door every request has one, and so has every answer.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A client's own id is echoed up to this length.
const MAX_REQUEST_ID: usize = 128;

/// The service behind every connection.
#[derive(Clone)]
pub(crate) struct Door {
    context: Arc<Context>,
    router: Router,
    next_id: Arc<AtomicU64>,
    /// The connection that it stands at.
    peer: Option<Peer>,
}

impl Door {
    /// The door to these routes.
    pub(crate) fn new(context: Arc<Context>, router: Router) -> Self {
        Self { context, router, next_id: Arc::new(AtomicU64::new(1)), peer: None }
    }

    /// The same door at one connection.
    pub(super) fn of(self, peer: Peer) -> Self {
        Self { peer: Some(peer), ..self }
    }

    fn request_id(&self, offered: Option<&HeaderValue>) -> HeaderValue {
        let usable = |id: &&HeaderValue| {
            (1..=MAX_REQUEST_ID).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
        };
        offered.filter(usable).cloned().unwrap_or_else(|| {
            let number = self.next_id.fetch_add(1, Ordering::Relaxed);
            let id = format!("{}-{number}", self.context.id_prefix);
            HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from(number))
        })
    }
}

impl<B> Service<Request<B>> for Door
where
    B: Body<Data = bytes::Bytes, Error: Into<axum::BoxError>> + Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<B>) -> Self::Future {
        let id = self.request_id(request.headers().get(REQUEST_ID));
        let answer = match self.context.hosts.check(request.uri(), request.headers()) {
            Ok(()) => {
                request.headers_mut().insert(REQUEST_ID, id.clone());
                if let Some(peer) = &self.peer {
                    request.extensions_mut().insert(peer.clone());
                }
                let mut router = self.router.clone();
                Ok(router.call(request))
            }
            Err(error) => Err(error_response(&error)),
        };
        Box::pin(async move {
            let mut response = match answer {
                Ok(answer) => caught(answer).await,
                Err(refused) => refused,
            };
            response.headers_mut().entry(REQUEST_ID).or_insert(id);
            Ok(response)
        })
    }
}

/// The answer, or what a client sees of a panic; the panic hook has written the rest to the log.
async fn caught(answer: impl Future<Output = Result<Response, Infallible>>) -> Response {
    let mut answer = pin!(answer);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))) {
        Ok(Poll::Ready(Ok(response))) => Poll::Ready(response),
        Ok(Poll::Pending) => Poll::Pending,
        Err(_) => Poll::Ready(error_response(&panic_error())),
    })
    .await
}
