//! HTTP to the collector: kept-open connections, the system's root certificates.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError};
use rustls::{ClientConfig, RootCertStore};

/// The most bytes of an answer that are read: it is empty, or an error.
const MAX_ANSWER: usize = 64 << 10;

/// The client of the collector, and the reason of its last failure.
#[derive(Clone)]
pub(crate) struct CollectorClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    fault: Arc<Mutex<Option<String>>>,
}

impl CollectorClient {
    /// A client; `is_tls` says whether certificates are needed.
    pub(crate) fn new(is_tls: bool) -> Self {
        // Installing a second provider fails, and the first is the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let nobody = || ClientConfig::builder().with_root_certificates(RootCertStore::empty());
        let trusting = if is_tls { ClientConfig::builder().with_native_roots().ok() } else { None };
        let tls = trusting.unwrap_or_else(nobody).with_no_client_auth();
        let mut plain = HttpConnector::new();
        plain.enforce_http(false);
        let client = Client::builder(TokioExecutor::new()).build(HttpsConnector::from((plain, tls)));
        Self { client, fault: Arc::default() }
    }

    /// The reason of the last failure, which the exporter's own error does not name.
    pub(crate) fn take_fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.client.request(request.map(Full::new)).await?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
        if !head.status.is_success() {
            self.note(format!("it answered with status {}", head.status.as_u16()));
        }
        Ok(Response::from_parts(head, body))
    }

    fn note(&self, fault: String) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.send(request).await.inspect_err(|error| {
            let mut words = error.to_string();
            let mut cause = error.source();
            while let Some(deeper) = cause {
                words = format!("{words}: {deeper}");
                cause = deeper.source();
            }
            self.note(words);
        })
    }
}

impl fmt::Debug for CollectorClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectorClient").finish_non_exhaustive()
    }
}
