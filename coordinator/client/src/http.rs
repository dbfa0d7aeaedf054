//! An HTTP client of a coordinator: one connection per request, JSON in, JSON or a stream of events out. Dropping a
//! stream closes its connection, which stops the generation.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, IF_MATCH};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use model_boss_config::secrets::without_secrets;
use model_boss_config::{Sources, environment};
use model_boss_host::owner::{OWNER_KEY, key_for};
use model_boss_protocol::ErrorBody;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

/// Why a coordinator gave no answer, or refused.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is not `http://HOST[:PORT]` or `https://HOST[:PORT]`.
    #[error(
        "'{0}' is not the address of a coordinator; write one such as http://127.0.0.1:8210 or https://box.lan:8210"
    )]
    BadUrl(String),
    /// No coordinator listens at the address.
    #[error("no coordinator answers at {0}; start one with `model-boss serve`, or with scripts/run in the repository")]
    NoCoordinator(String, #[source] io::Error),
    /// The server's certificate is not trusted, or TLS could not be agreed.
    #[error(
        "no TLS was agreed with {0}; SSL_CERT_FILE names a file of certificates to trust, such as the server's own one"
    )]
    Tls(String, #[source] io::Error),
    /// The connection broke.
    #[error("the connection to {0} broke")]
    Connection(String, #[source] hyper::Error),
    /// The request cannot be written, for instance because of an invalid key.
    #[error("the request cannot be made")]
    Request(#[from] http::Error),
    /// The coordinator's error.
    #[error("{}", .0.error.message)]
    Api(ErrorBody),
    /// The answer is not in the shape of model-boss's API.
    #[error("{url} answered {status} and no error that model-boss would send; is something else listening there?")]
    Stranger {
        /// The coordinator's address.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// The coordinator's answer is not the expected JSON.
    #[error("the coordinator's answer cannot be understood")]
    Json(#[source] serde_json::Error),
}

/// Codes of a coordinator that shuts down, or has not read its jobs yet.
const AWAY: [&str; 2] = ["draining", "job_store_unavailable"];

impl ClientError {
    /// Whether the coordinator went away or cannot answer for now, as while it restarts. Of one that was never there
    /// this is not known: `was_there` says of the last question whether it had an answer.
    pub fn may_pass(&self, was_there: bool) -> bool {
        match self {
            Self::Connection(..) => true,
            Self::NoCoordinator(..) => was_there,
            Self::Api(body) => body.error.code.as_deref().is_some_and(|code| AWAY.contains(&code)),
            _ => false,
        }
    }
}

/// A client of one coordinator.
#[derive(Clone)]
pub struct Client {
    url: String,
    authority: String,
    host: String,
    port: u16,
    key: Option<String>,
    /// The host's name for TLS; `None` for plain HTTP.
    tls: Option<ServerName<'static>>,
    /// The owner key, sent in place of a key.
    owner: Option<String>,
}

impl Client {
    /// A client of the coordinator at `http://HOST[:PORT]` or `https://HOST[:PORT]`.
    pub fn new(url: &str, key: Option<String>) -> Result<Self, ClientError> {
        let bad = || ClientError::BadUrl(without_secrets(url));
        let url = url.trim_end_matches('/');
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let (is_secret, usual) = match uri.scheme_str() {
            Some("http") => (false, 80),
            Some("https") => (true, 443),
            _ => return Err(bad()),
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(bad());
        }
        let authority = uri.authority().ok_or_else(bad)?.as_str().to_owned();
        if authority.contains('@') {
            // A key in the address is refused: it gives access to the coordinator, and addresses appear in messages.
            return Err(bad());
        }
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
        let tls = is_secret.then(|| ServerName::try_from(host.clone())).transpose().map_err(|_| bad())?;
        let port = uri.port_u16().unwrap_or(usual);
        Ok(Self { url: url.to_owned(), authority, host, port, key, tls, owner: None })
    }

    /// A client with the key of the environment. Without one it is the owner's, where this process runs as the user of
    /// the coordinator.
    pub fn of_environment(url: &str) -> Result<Self, ClientError> {
        let client = Self::new(url, std::env::var("MODEL_BOSS_API_KEY").ok())?;
        let owner = if client.key.is_none() { client.owner_key() } else { None };
        Ok(Self { owner, ..client })
    }

    /// The owner key, which proves to a coordinator of this machine that this process runs as its user. It is read from
    /// the state folder that a coordinator started from here would have.
    pub fn owner_key(&self) -> Option<String> {
        let sources = Sources { flags: Vec::new(), environment: environment(), file: None };
        let config = sources.load().ok()?.config;
        self.is_on_this_machine().then(|| key_for(&config.own_state_dir(), self.port())).flatten()
    }

    /// The address as it was written.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Whether the address is on loopback, where only a process of this machine can answer.
    pub fn is_on_this_machine(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// The JSON that `GET path` answers.
    pub async fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.json(Method::GET, path, None).await
    }

    /// The status and the JSON that any method answers, for routes where 2xx has more than one meaning.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value), ClientError> {
        self.ask_with(method, path, body, None).await
    }

    /// The JSON that `POST path` answers to a caller with the owner key.
    pub async fn post_as_owner(&self, path: &str, body: &Value, key: &str) -> Result<Value, ClientError> {
        let header = Some((HeaderName::from_static(OWNER_KEY), key));
        Ok(self.ask_with(Method::POST, path, Some(body), header).await?.1)
    }

    /// The port in the address.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Replaces the resource, with `PUT path`, regardless of its version; returns the JSON of the answer.
    pub async fn replace(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        Ok(self.ask_with(Method::PUT, path, Some(body), Some((IF_MATCH, "*"))).await?.1)
    }

    async fn ask_with(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        header: Option<(HeaderName, &str)>,
    ) -> Result<(StatusCode, Value), ClientError> {
        let answer = self.send(method, path, body, header).await?;
        let status = answer.status();
        let bytes = self.collect(answer).await?;
        Ok((status, serde_json::from_slice(&bytes).map_err(ClientError::Json)?))
    }

    /// The JSON that `POST path` answers.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.json(Method::POST, path, Some(body)).await
    }

    /// The JSON that `POST path` answers to a body of another content type.
    pub async fn post_bytes(&self, path: &str, content_type: &str, body: Bytes) -> Result<Value, ClientError> {
        let answer = self.raw_with(Method::POST, path, Some((content_type, body)), None).await?;
        let bytes = self.collect(self.succeeded(answer).await?).await?;
        serde_json::from_slice(&bytes).map_err(ClientError::Json)
    }

    /// The events that `POST path` streams.
    pub async fn stream(&self, path: &str, body: &Value) -> Result<Events, ClientError> {
        let body = self.send(Method::POST, path, Some(body), None).await?.into_body();
        Ok(Events { url: self.url.clone(), body, buffer: Vec::new() })
    }

    /// A client of any server of OpenAI's API, and the path in front of its routes: `http://127.0.0.1:8080/v1` has the
    /// routes `/v1/models` and `/v1/chat/completions`, and so has `http://127.0.0.1:8080`.
    pub fn of_server(url: &str, key: Option<String>) -> Result<(Self, String), ClientError> {
        let bad = || ClientError::BadUrl(without_secrets(url));
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let (scheme, authority) = uri.scheme_str().zip(uri.authority()).ok_or_else(bad)?;
        let path = uri.path().trim_end_matches('/');
        let prefix = path.strip_suffix("/v1").unwrap_or(path).to_owned();
        Ok((Self::new(&format!("{scheme}://{authority}"), key)?, prefix))
    }

    /// The events that `POST path` streams, or the status and the body of an answer that is none. The body may be that
    /// of any server.
    pub async fn stream_of_server(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<Result<Events, (StatusCode, String)>, ClientError> {
        let answer = self.raw(Method::POST, path, Some(body), None).await?;
        let status = answer.status();
        if !status.is_success() {
            let bytes = self.collect(answer).await?;
            return Ok(Err((status, String::from_utf8_lossy(&bytes).into_owned())));
        }
        Ok(Ok(Events { url: self.url.clone(), body: answer.into_body(), buffer: Vec::new() }))
    }

    /// The text that `GET path` answers, piece by piece.
    pub async fn read(&self, path: &str) -> Result<Pieces, ClientError> {
        let body = self.send(Method::GET, path, None, None).await?.into_body();
        Ok(Pieces { url: self.url.clone(), body })
    }

    /// The bytes that `POST path` answers, piece by piece.
    pub async fn read_answer(&self, path: &str, body: &Value) -> Result<Pieces, ClientError> {
        let body = self.send(Method::POST, path, Some(body), None).await?.into_body();
        Ok(Pieces { url: self.url.clone(), body })
    }

    async fn json(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, ClientError> {
        Ok(self.ask(method, path, body).await?.1)
    }

    /// Sends a request, and turns every status but 2xx into its error.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        header: Option<(HeaderName, &str)>,
    ) -> Result<Response<Incoming>, ClientError> {
        let answer = self.raw(method, path, body, header).await?;
        self.succeeded(answer).await
    }

    /// The answer, if its status is 2xx, or its error.
    async fn succeeded(&self, answer: Response<Incoming>) -> Result<Response<Incoming>, ClientError> {
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status().as_u16();
        let bytes = self.collect(answer).await?;
        let stranger = |_| ClientError::Stranger { url: self.url.clone(), status };
        Err(ClientError::Api(serde_json::from_slice(&bytes).map_err(stranger)?))
    }

    /// Sends a request, and returns the answer whatever its status.
    async fn raw(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        header: Option<(HeaderName, &str)>,
    ) -> Result<Response<Incoming>, ClientError> {
        let body = body.map(|body| ("application/json", Bytes::from(body.to_string())));
        self.raw_with(method, path, body, header).await
    }

    /// Sends a request with a body of any content type.
    async fn raw_with(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, Bytes)>,
        header: Option<(HeaderName, &str)>,
    ) -> Result<Response<Incoming>, ClientError> {
        let broke = |error| ClientError::Connection(self.url.clone(), error);
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|error| ClientError::NoCoordinator(self.url.clone(), error))?;
        // Without this option only latency suffers.
        let _ = stream.set_nodelay(true);
        let stream = match &self.tls {
            None => Either::Right(stream),
            Some(name) => Either::Left(self.agree(name.clone(), stream).await?),
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broke)?;
        // A failure of the connection reaches the reader of the body.
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(HOST, &self.authority);
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, format!("Bearer {key}"));
        }
        if let Some(owner) = self.owner.as_ref().filter(|_| header.as_ref().is_none_or(|(name, _)| name != OWNER_KEY)) {
            request = request.header(OWNER_KEY, owner);
        }
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        if let Some((content_type, _)) = &body {
            request = request.header(CONTENT_TYPE, *content_type);
        }
        let body = body.map(|(_, bytes)| bytes).unwrap_or_default();
        sender.send_request(request.body(Full::new(body))?).await.map_err(broke)
    }

    /// TLS with a server whose certificate the system trusts, or the file that `SSL_CERT_FILE` names.
    async fn agree(&self, name: ServerName<'static>, stream: TcpStream) -> Result<TlsStream<TcpStream>, ClientError> {
        let failed = |error| ClientError::Tls(self.url.clone(), error);
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = versions.map_err(io::Error::other).map_err(failed)?.with_root_certificates(roots);
        TlsConnector::from(Arc::new(config.with_no_client_auth())).connect(name, stream).await.map_err(failed)
    }

    async fn collect(&self, answer: Response<Incoming>) -> Result<Bytes, ClientError> {
        let collected = answer.into_body().collect().await;
        Ok(collected.map_err(|error| ClientError::Connection(self.url.clone(), error))?.to_bytes())
    }
}

/// An answer's body, piece by piece.
pub struct Pieces {
    url: String,
    body: Incoming,
}

impl Pieces {
    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| ClientError::Connection(self.url.clone(), error))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

/// A model's name in a path: `/` and `:` are kept, characters that end a path are escaped.
pub fn in_path(name: &str) -> String {
    const ENCODED: AsciiSet = NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'.')
        .remove(b'_')
        .remove(b'~')
        .remove(b'/')
        .remove(b':')
        .remove(b'@')
        .remove(b'+');
    utf8_percent_encode(name, &ENCODED).to_string()
}

/// One meaningful line of an event stream.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamLine {
    /// `: text`, a comment that keeps a silent connection alive.
    Comment(String),
    /// A line `data: text`.
    Data(String),
}

/// A stream of events.
pub struct Events {
    url: String,
    body: Incoming,
    buffer: Vec<u8>,
}

impl Events {
    /// The next event; `None` at the end. Cancelling this loses no event.
    pub async fn next(&mut self) -> Result<Option<StreamLine>, ClientError> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if let Some(event) = event(&String::from_utf8_lossy(&line)) {
                    return Ok(Some(event));
                }
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => self.buffer.extend(frame.data_ref().into_iter().flatten()),
                Some(Err(error)) => return Err(ClientError::Connection(self.url.clone(), error)),
            }
        }
    }
}

/// The event in a line. The coordinator's streams have one line per event and neither names nor ids.
fn event(line: &str) -> Option<StreamLine> {
    let line = line.trim_end();
    match line.split_once(':')? {
        ("", words) => Some(StreamLine::Comment(words.trim_start().to_owned())),
        ("data", text) => Some(StreamLine::Data(text.trim_start().to_owned())),
        _ => None,
    }
}

/// The error in an event, if there is one.
pub fn error_in(event: &Value) -> Option<ClientError> {
    event.get("error")?;
    let body: ErrorBody = serde_json::from_value(event.clone()).ok()?;
    Some(ClientError::Api(body))
}
