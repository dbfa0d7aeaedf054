//! One request to another host, to addresses that were checked before: no redirects, no proxies, no second try, and no
//! name is looked up again.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HOST, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsConnector;

/// A request whose answer's body is not read.
pub struct OutboundPost {
    /// The addresses, which are tried in turn until one accepts a connection.
    pub addresses: Vec<SocketAddr>,
    /// The host, for TLS and the Host header.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
    /// The path with its query.
    pub path: String,
    /// The headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body.
    pub body: Bytes,
}

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum OutboundError {
    /// No address accepted a connection.
    #[error("no connection")]
    Connect(#[source] std::io::Error),
    /// The system's root certificates cannot be read.
    #[error("the system's certificates cannot be read, so nobody can be trusted")]
    Roots,
    /// The host is no name for a certificate.
    #[error("'{0}' is no name for a certificate")]
    Name(String),
    /// The connection could not be encrypted.
    #[error("the connection cannot be encrypted")]
    Tls(#[source] std::io::Error),
    /// The request cannot be written as HTTP.
    #[error("the request cannot be written")]
    Request(#[source] http::Error),
    /// The connection broke.
    #[error("no answer came")]
    Broken(#[source] hyper::Error),
}

/// Sends a request, and returns the status of its answer. The caller sets the limit of time.
pub async fn post_once(post: OutboundPost) -> Result<StatusCode, OutboundError> {
    let stream = TcpStream::connect(&*post.addresses).await.map_err(OutboundError::Connect)?;
    if !post.is_tls {
        return exchange(stream, post).await;
    }
    let connector = TlsConnector::from(trusting().await?);
    let name = ServerName::try_from(post.host.clone()).map_err(|_| OutboundError::Name(post.host.clone()))?;
    let stream = connector.connect(name, stream).await.map_err(OutboundError::Tls)?;
    exchange(stream, post).await
}

async fn trusting() -> Result<Arc<ClientConfig>, OutboundError> {
    // Reading the certificates opens hundreds of files.
    let read = spawn_blocking(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    });
    let roots = read.await.map_err(|_| OutboundError::Roots)?;
    if roots.is_empty() {
        return Err(OutboundError::Roots);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| OutboundError::Roots)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    post: OutboundPost,
) -> Result<StatusCode, OutboundError> {
    let OutboundPost { host, port, is_tls, path, headers, body, .. } = post;
    let shown = if host.contains(':') { format!("[{host}]") } else { host };
    let usual = if is_tls { 443 } else { 80 };
    let named = if port == usual { shown } else { format!("{shown}:{port}") };
    let mut request = Request::builder().method(Method::POST).uri(path).header(HOST, named);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(body)).map_err(OutboundError::Request)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(OutboundError::Broken)?;
    let answer = async move { sender.send_request(request).await };
    tokio::pin!(answer, connection);
    // The connection is driven until the head of the answer has come, and then closed.
    tokio::select! {
        answered = &mut answer => answered.map(|answered| answered.status()).map_err(OutboundError::Broken),
        ended = &mut connection => match ended {
            Err(error) => Err(OutboundError::Broken(error)),
            Ok(()) => (&mut answer).await.map(|answered| answered.status()).map_err(OutboundError::Broken),
        },
    }
}
