//! An HTTP client that can abandon requests: one connection for each, closed at once when its value is dropped.

use std::fmt;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::wait::{PATIENCE, within};

/// A client of one address.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    address: SocketAddr,
}

impl Client {
    /// A client of `address`.
    pub const fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// The address of the server.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends `GET`.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path, Bytes::new())).await
    }

    /// Sends `POST` with a JSON body.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::POST, path, body.to_string())).await
    }

    /// Sends `POST` for a streamed answer. Returns when the answer's head has arrived.
    pub async fn stream(&self, path: &str, body: &Value) -> Streamed {
        self.follow(self.request(Method::POST, path, body.to_string())).await
    }

    /// Sends a request for a streamed answer. Returns when the answer's head has arrived.
    pub async fn follow(&self, request: Request<Full<Bytes>>) -> Streamed {
        let (answer, connection) = self.open(request).await;
        let (parts, body) = answer.into_parts();
        let (status, headers) = (parts.status, parts.headers);
        Streamed { status, headers, body, unread: BytesMut::new(), _connection: connection }
    }

    /// A request, which may be changed and sent with [`Self::send`].
    pub fn request(&self, method: Method, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body.into()));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("a test's path is a path");
        let host = self.address.to_string().parse().expect("an address is a header value");
        request.headers_mut().insert(header::HOST, host);
        if request.method() != Method::GET {
            request.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
        }
        request
    }

    /// Sends a request and returns the whole answer.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let (answer, _connection) = self.open(request).await;
        let (parts, body) = answer.into_parts();
        let body = within(PATIENCE, "an answer's body", body.collect()).await;
        let body = body.expect("the answer's body comes whole").to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// Sends these bytes unchanged, and returns all bytes until the server closes the connection.
    pub async fn raw(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).await.expect("the coordinator accepts");
        // A server may close the connection before it has read everything.
        _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let read = within(PATIENCE, "an end of a raw answer", stream.read_to_end(&mut answer)).await;
        // For the message of a test that wanted an answer.
        if let (Err(error), true) = (&read, answer.is_empty()) {
            answer = format!("no answer: {error}").into_bytes();
        }
        answer
    }

    /// Whether a server listens at the address.
    pub async fn listens(&self) -> bool {
        TcpStream::connect(self.address).await.is_ok()
    }

    async fn open(&self, request: Request<Full<Bytes>>) -> (Response<Incoming>, Connection) {
        let stream = TcpStream::connect(self.address).await.expect("the coordinator accepts");
        stream.set_nodelay(true).unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = Connection(tokio::spawn(async move { _ = connection.await }));
        let what = format!("an answer to {} {}", request.method(), request.uri());
        let answer = within(PATIENCE, &what, sender.send_request(request)).await;
        (answer.unwrap_or_else(|error| panic!("{what}: {error:?}")), connection)
    }
}

/// A TCP connection that closes when dropped.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A complete answer to a request.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status of the answer.
    pub status: StatusCode,
    /// The headers of the answer.
    pub headers: HeaderMap,
    /// The body of the answer.
    pub body: Bytes,
}

impl Answer {
    /// The body parsed as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }

    /// The text of a chat or plain completion, which must have succeeded.
    pub fn text(&self) -> String {
        assert_eq!(self.status, StatusCode::OK, "{self:?}");
        let json = self.json();
        let choice = &json["choices"][0];
        let text = choice["message"]["content"].as_str().or(choice["text"].as_str());
        text.unwrap_or_else(|| panic!("no text: {self:?}")).to_owned()
    }

    /// The `error.code` of an answer that must have OpenAI's error shape.
    pub fn error_code(&self) -> String {
        let json = self.json();
        let error = &json["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{self:?}");
        assert!(error["type"].is_string() && error.get("param").is_some(), "{self:?}");
        assert!(matches!(json["source"].as_str(), Some("coordinator" | "worker" | "cloud")), "{self:?}");
        error["code"].as_str().unwrap_or_else(|| panic!("no code: {self:?}")).to_owned()
    }

    /// The `error.message` of an answer with an error.
    pub fn error_message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_else(|| panic!("no message: {self:?}")).to_owned()
    }

    /// A header as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("a readable header"))
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, String::from_utf8_lossy(&self.body))
    }
}

/// One event of a streamed answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A comment, which only keeps the connection alive.
    Comment(String),
    /// A chunk of the stream, as JSON.
    Data(Value),
    /// An event with a name, as in `/api/v1/events`.
    Named {
        /// The event's number, from its field `id`.
        id: u64,
        /// The event's name.
        kind: String,
        /// The event's data.
        data: Value,
    },
    /// The final event `[DONE]`.
    Done,
}

/// A streamed answer. Dropping it closes the connection.
pub struct Streamed {
    /// The status in the stream's head.
    pub status: StatusCode,
    /// The headers of the stream.
    pub headers: HeaderMap,
    body: Incoming,
    unread: BytesMut,
    _connection: Connection,
}

impl Streamed {
    /// The next event; `None` when the answer ended properly in HTTP.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|pair| pair == b"\n\n") {
                let event = self.unread.split_to(end + 2);
                let text = std::str::from_utf8(&event).expect("events are UTF-8").trim_end();
                if let Some(comment) = text.strip_prefix(':') {
                    return Some(Event::Comment(comment.trim().to_owned()));
                }
                if let Some(named) = named(text) {
                    return Some(named);
                }
                let data = text.strip_prefix("data: ").unwrap_or_else(|| panic!("neither data nor comment: {text:?}"));
                return Some(match data {
                    "[DONE]" => Event::Done,
                    json => Event::Data(serde_json::from_str(json).unwrap_or_else(|e| panic!("{e} in {json:?}"))),
                });
            }
            let frame = within(PATIENCE, "another piece of a streamed answer", self.body.frame()).await;
            match frame {
                Some(frame) => {
                    let frame = frame.expect("the stream goes on or ends properly");
                    self.unread.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()));
                }
                None => {
                    assert!(self.unread.is_empty(), "the stream ended inside an event: {:?}", self.unread);
                    return None;
                }
            }
        }
    }

    /// The next chunk, without comments; panics at the end of the stream.
    pub async fn chunk(&mut self) -> Value {
        loop {
            match self.next().await {
                Some(Event::Data(chunk)) => return chunk,
                Some(Event::Comment(_)) => {}
                end @ (Some(Event::Done | Event::Named { .. }) | None) => panic!("a chunk was expected, not {end:?}"),
            }
        }
    }

    /// The text of the next chunk that has any.
    pub async fn token(&mut self) -> String {
        loop {
            let chunk = self.chunk().await;
            let text = text_of(&chunk);
            if !text.is_empty() {
                return text.to_owned();
            }
        }
    }

    /// Every event until the end.
    pub async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// The next bytes of an answer that is no stream of events; none at its proper end.
    pub async fn piece(&mut self) -> Option<Bytes> {
        while let Some(frame) = within(PATIENCE, "another piece of an answer", self.body.frame()).await {
            if let Ok(data) = frame.expect("the answer goes on or ends properly").into_data() {
                return Some(data);
            }
        }
        None
    }

    /// The bytes until the connection breaks. Panics if the answer ends properly.
    pub async fn until_broken(mut self) -> Bytes {
        let mut bytes = BytesMut::new();
        loop {
            match within(PATIENCE, "the end of an answer that is cut", self.body.frame()).await {
                Some(Ok(frame)) => bytes.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new())),
                Some(Err(_)) => return bytes.freeze(),
                None => panic!("the answer ended properly after {} bytes", bytes.len()),
            }
        }
    }

    /// The whole body as text, for an answer that turns out not to be a stream.
    pub async fn into_answer(self) -> Answer {
        let body = within(PATIENCE, "an answer's body", self.body.collect()).await.expect("a whole body").to_bytes();
        let mut bytes = self.unread;
        bytes.extend_from_slice(&body);
        Answer { status: self.status, headers: self.headers, body: bytes.freeze() }
    }
}

/// Parses an event with a name.
fn named(text: &str) -> Option<Event> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let (id, kind, data) = (field("id")?.parse().ok()?, field("event")?.to_owned(), field("data")?);
    let data = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error} in {data:?}"));
    Some(Event::Named { id, kind, data })
}

/// The text that a chunk of a chat or plain completion adds.
fn text_of(chunk: &Value) -> &str {
    let choice = &chunk["choices"][0];
    choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default()
}

/// The text of a list of events.
pub fn text_of_events(events: &[Event]) -> String {
    events.iter().map(|event| if let Event::Data(chunk) = event { text_of(chunk) } else { "" }).collect()
}
