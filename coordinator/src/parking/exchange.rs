//! The two requests about parked prefixes to a worker.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use model_boss_http::upstream::{Outgoing, Upstream, UpstreamError};
use model_boss_protocol::{ParkedOutcome, headers};

/// The route of a worker.
const PATH: &str = "/parked";
/// The most bytes of an answer that has no prefixes.
const MAX_ANSWER: usize = 64 << 10;
/// Bytes beyond the bound that a worker may not send: it knows the bound.
const SLACK: u64 = 4 << 10;

/// The exchange with a worker failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    /// The worker was lost.
    #[error("the worker was lost")]
    Lost(#[source] UpstreamError),
    /// The connection broke off.
    #[error("the connection broke off")]
    Broken,
    /// It sent more than it may.
    #[error("the worker sent more than {0} bytes")]
    TooMuch(u64),
    /// It answered with an error.
    #[error("the worker answered with status {0}")]
    Status(StatusCode),
}

/// Asks a worker for its hottest prefixes. `None` from a worker that has none to give.
pub(super) async fn fetch(
    upstream: &Arc<Upstream>,
    most: u64,
    time: Duration,
) -> Result<Option<Vec<u8>>, ExchangeError> {
    let mut request = Request::new(Outgoing::default());
    *request.uri_mut() = http::Uri::from_static(PATH);
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    for (name, number) in [(headers::PARKED_BYTES, most), (headers::PARKED_MS, ms)] {
        request.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from(number));
    }
    let response = upstream.send(request).await.map_err(ExchangeError::Lost)?;
    match response.status() {
        StatusCode::OK => {}
        status if status.is_client_error() => return Ok(None),
        status => return Err(ExchangeError::Status(status)),
    }
    let (mut body, mut content) = (response.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        let data = frame.map_err(|_| ExchangeError::Broken)?.into_data().unwrap_or_default();
        content.extend_from_slice(&data);
        if content.len() as u64 > most.saturating_add(SLACK) {
            return Err(ExchangeError::TooMuch(most));
        }
    }
    Ok(Some(content))
}

/// Gives prefixes to a worker.
pub(super) async fn give(upstream: &Arc<Upstream>, content: Bytes) -> Result<ParkedOutcome, ExchangeError> {
    let mut request = Request::new(Outgoing::new(content, Bytes::new()));
    *request.method_mut() = Method::PUT;
    *request.uri_mut() = http::Uri::from_static(PATH);
    let response = upstream.send(request).await.map_err(ExchangeError::Lost)?;
    if !response.status().is_success() {
        return Err(ExchangeError::Status(response.status()));
    }
    let answer = Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(|_| ExchangeError::Broken)?;
    serde_json::from_slice(&answer.to_bytes()).map_err(|_| ExchangeError::Broken)
}
