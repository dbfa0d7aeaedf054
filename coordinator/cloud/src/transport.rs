//! HTTPS to providers: connections kept open, the system's root certificates, no redirects and no repetitions.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderMap, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use model_boss_config::{Provider, ProviderKind};
use model_boss_dialects::anthropic::VERSION;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::route::{Proxies, Route};

/// The longest wait for the beginning of an answer: thinking models take minutes.
const FIRST_BYTE: Duration = Duration::from_secs(600);
/// The time after which an idle connection is closed.
const IDLE: Duration = Duration::from_secs(90);
/// The most bytes of an error answer that are read.
const MAX_ERROR: usize = 64 * 1024;
const ERROR_LIMIT: Duration = Duration::from_secs(10);

/// The HTTP client, made on first use: a coordinator without providers needs no certificates.
pub(crate) struct Transport {
    proxies: Proxies,
    trusting: OnceCell<HttpClient>,
    /// A client for plain http, where certificates cannot be read.
    plain: OnceCell<HttpClient>,
}

type HttpClient = Client<HttpsConnector<Route>, Full<Bytes>>;

/// The headers that come with a request: marks for the provider's log and its traces, and those of its client.
#[derive(Clone, Copy)]
pub(super) struct RequestMarks<'a> {
    pub(super) id: &'a str,
    /// The headers of the trace context, if there is one.
    pub(super) trace: &'a HeaderMap,
    /// The headers of a client that speaks the provider's own API.
    pub(super) own: Option<&'a HeaderMap>,
}

/// The head of an answer, and the source of the rest.
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Incoming,
}

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// There are no trusted root certificates.
    #[error("the system's certificates cannot be read, so nobody can be trusted; SSL_CERT_FILE names others")]
    Roots(#[source] std::io::Error),
    /// The request cannot be written as HTTP.
    #[error("the request cannot be sent")]
    Request(#[source] http::Error),
    /// The key has characters that no header may hold.
    #[error("the provider's key holds characters that cannot be sent")]
    Key,
    /// The key would be sent unencrypted over the network.
    #[error("its key would cross the network readable; use https")]
    KeyInTheOpen,
    /// The connection failed or broke.
    #[error("no answer came")]
    Send(#[source] hyper_util::client::legacy::Error),
    /// No answer began within this time.
    #[error("no answer began within {0:?}")]
    Slow(Duration),
}

impl Transport {
    /// A transport with the proxies of the environment.
    pub(crate) fn new() -> Self {
        // Installing a second provider fails, and the first is the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { proxies: Proxies::of_environment(), trusting: OnceCell::new(), plain: OnceCell::new() }
    }

    /// The client for an address. Certificates that cannot be read are read again at the next request.
    async fn client(&self, address: &Uri) -> Result<&HttpClient, TransportError> {
        let trusting = self.trusting.get_or_try_init(|| async {
            let read = || ClientConfig::builder().with_native_roots();
            // Reading the certificates opens hundreds of files.
            let tls = spawn_blocking(read).await.unwrap_or_else(|_| Err(std::io::Error::other("the reader ended")));
            Ok(self.speaking(tls.map_err(TransportError::Roots)?.with_no_client_auth()))
        });
        match trusting.await {
            Err(_) if address.scheme_str() == Some("http") => {
                let nobody = ClientConfig::builder().with_root_certificates(RootCertStore::empty());
                Ok(self.plain.get_or_init(|| async { self.speaking(nobody.with_no_client_auth()) }).await)
            }
            trusting => trusting,
        }
    }

    fn speaking(&self, tls: ClientConfig) -> HttpClient {
        let tls = Arc::new(tls);
        let connector = HttpsConnector::from((Route::new(self.proxies.clone(), Arc::clone(&tls)), tls));
        Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            // A request that the provider has read may have been charged already.
            .retry_canceled_requests(false)
            .build(connector)
    }

    /// Sends one request, once.
    pub(super) async fn send(
        &self,
        provider: &Provider,
        path: &str,
        key: Option<&str>,
        body: Bytes,
        marks: RequestMarks<'_>,
    ) -> Result<Answered, TransportError> {
        if key.is_some() && provider.is_readable_on_the_way() {
            return Err(TransportError::KeyInTheOpen);
        }
        let mut request = Request::post(provider.url(path)).body(Full::new(body)).map_err(TransportError::Request)?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("model-boss/", env!("CARGO_PKG_VERSION"))));
        if let Ok(id) = HeaderValue::from_str(marks.id) {
            headers.insert("x-request-id", id);
        }
        headers.extend(marks.trace.clone());
        let (name, value) = match provider.kind() {
            ProviderKind::Anthropic => {
                headers.insert("anthropic-version", HeaderValue::from_static(VERSION));
                headers.extend(marks.own.cloned().unwrap_or_default());
                (HeaderName::from_static("x-api-key"), key.map(str::to_owned))
            }
            ProviderKind::OpenAi => (AUTHORIZATION, key.map(|key| format!("Bearer {key}"))),
        };
        if let Some(value) = value {
            let mut value = HeaderValue::from_str(&value).map_err(|_| TransportError::Key)?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        if let Some(word) = self.proxies.authorization(request.uri()) {
            request.headers_mut().insert(PROXY_AUTHORIZATION, word);
        }
        let client = self.client(request.uri()).await?;
        let sent = timeout(FIRST_BYTE, client.request(request)).await;
        let answer = sent.map_err(|_| TransportError::Slow(FIRST_BYTE))?.map_err(TransportError::Send)?;
        let (head, body) = answer.into_parts();
        Ok(Answered { status: head.status, headers: head.headers, body })
    }
}

/// The whole of a short answer; empty where it breaks off.
pub(super) async fn collect(body: Incoming) -> Bytes {
    let collected = timeout(ERROR_LIMIT, Limited::new(body, MAX_ERROR).collect()).await;
    collected.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes).unwrap_or_default()
}
