//! HTTPS to providers: connections kept open, roots of the system, nothing followed and nothing repeated.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use model_boss_dialects::anthropic::VERSION;
use tokio::time::timeout;

use super::provider::{Provider, ProviderKind};

/// A provider that does not begin to answer within this has failed: thinking models take minutes.
const FIRST_BYTE: Duration = Duration::from_secs(600);
/// A connection nobody uses is closed after this.
const IDLE: Duration = Duration::from_secs(90);
/// An error answer is short.
const MAX_ERROR: usize = 64 * 1024;

/// The client.
pub(super) struct Transport {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// The head of an answer, and where the rest comes from.
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Incoming,
}

/// TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransportError {
    /// No roots that could be trusted.
    #[error("the system's certificates cannot be read, so no provider can be trusted")]
    Roots(#[source] std::io::Error),
    /// The request cannot be put into HTTP.
    #[error("the request cannot be sent")]
    Request(#[source] http::Error),
    /// A key with characters that no header holds.
    #[error("the provider's key holds characters that cannot be sent")]
    Key,
    /// No connection, or it broke.
    #[error("no answer came")]
    Send(#[source] hyper_util::client::legacy::Error),
    /// Nothing for long.
    #[error("no answer began within {0:?}")]
    Slow(Duration),
}

impl Transport {
    pub(super) fn new() -> Result<Self, TransportError> {
        // A second one is refused, and the first does the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let connector = HttpsConnectorBuilder::new().with_native_roots().map_err(TransportError::Roots)?;
        let connector = connector.https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            // What a provider has read may have cost something already.
            .retry_canceled_requests(false)
            .build(connector);
        Ok(Self { client })
    }

    /// Sends one request, once.
    pub(super) async fn send(
        &self,
        provider: &Provider,
        path: &str,
        key: Option<&str>,
        body: String,
        id: &str,
    ) -> Result<Answered, TransportError> {
        let mut request = Request::post(provider.url(path)).body(Full::from(body)).map_err(TransportError::Request)?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("model-boss/", env!("CARGO_PKG_VERSION"))));
        if let Ok(id) = HeaderValue::from_str(id) {
            headers.insert("x-request-id", id);
        }
        let (name, value) = match provider.kind() {
            ProviderKind::Anthropic => {
                headers.insert("anthropic-version", HeaderValue::from_static(VERSION));
                (HeaderName::from_static("x-api-key"), key.map(str::to_owned))
            }
            ProviderKind::OpenAi => (AUTHORIZATION, key.map(|key| format!("Bearer {key}"))),
        };
        if let Some(value) = value {
            let mut value = HeaderValue::from_str(&value).map_err(|_| TransportError::Key)?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let sent = timeout(FIRST_BYTE, self.client.request(request)).await;
        let answer = sent.map_err(|_| TransportError::Slow(FIRST_BYTE))?.map_err(TransportError::Send)?;
        let (head, body) = answer.into_parts();
        Ok(Answered { status: head.status, headers: head.headers, body })
    }
}

/// All of a short answer.
pub(super) async fn collect(body: Incoming) -> Bytes {
    Limited::new(body, MAX_ERROR).collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default()
}
