//! Keep-alive HTTP connections to one worker. They have the worker's address and token, and no relation to queues or
//! models.
//!
//! A connection is either in the pool or owned by exactly one exchange. Dropping an exchange closes its connection,
//! which makes the worker stop a generation when the client disconnects. The exchange's own task drives the connection:
//! a separate task would cost two more wake-ups for each request and each frame of a stream.

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST, HeaderValue};
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use model_boss_host::descriptors::Idle;
use model_boss_protocol::SpawnToken;
use tokio::net::TcpStream;

/// The most connections kept for reuse. More than a worker's usual concurrency costs only memory.
const MAX_IDLE: usize = 128;

/// The HTTP client of one worker.
#[derive(Debug)]
pub struct Upstream {
    address: SocketAddr,
    host: HeaderValue,
    authorization: HeaderValue,
    idle: Mutex<Vec<(PooledConnection, Idle)>>,
}

/// One connection: the sender of its requests, and the future that must be polled to move bytes.
struct PooledConnection {
    sender: SendRequest<Outgoing>,
    connection: Pin<Box<Connection<TokioIo<TcpStream>, Outgoing>>>,
    closed: bool,
}

/// The body of a request in parts, sent one after the other. Text can thus be prepended without copying the body.
#[derive(Clone, Debug, Default)]
pub struct Outgoing {
    first: Bytes,
    rest: Bytes,
    /// Further parts, the next one last.
    behind: Vec<Bytes>,
}

impl Outgoing {
    /// A body of `first`, followed by `rest`.
    pub const fn new(first: Bytes, rest: Bytes) -> Self {
        Self { first, rest, behind: Vec::new() }
    }

    /// A body of these parts.
    pub fn of_parts(mut parts: Vec<Bytes>) -> Self {
        parts.retain(|part| !part.is_empty());
        parts.reverse();
        Self { first: Bytes::new(), rest: Bytes::new(), behind: parts }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        let all = [&mut this.first, &mut this.rest];
        let bytes = all.into_iter().find(|bytes| !bytes.is_empty()).map(std::mem::take);
        Poll::Ready(bytes.or_else(|| this.behind.pop()).map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.rest.is_empty() && self.behind.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let behind: usize = self.behind.iter().map(Bytes::len).sum();
        SizeHint::with_exact((self.first.len() + self.rest.len() + behind) as u64)
    }
}

/// The reason why the worker gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The connection could not be opened.
    #[error("cannot connect to the worker at {address}")]
    Connect {
        /// The address of the worker.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The connection broke before the head of an answer arrived.
    #[error("it closed the connection before the head of its answer was whole")]
    Exchange(#[source] hyper::Error),
    /// The token is no valid header value, which cannot happen with hexadecimal tokens.
    #[error("the worker's token cannot be sent in a header")]
    Token(#[source] http::header::InvalidHeaderValue),
}

impl UpstreamError {
    /// Whether the other side answered, but not in HTTP: another attempt would end in the same way.
    pub fn is_nonsense(&self) -> bool {
        matches!(self, Self::Exchange(error) if error.is_parse())
    }

    /// Whether the other side took the request and closed the connection instead of answering.
    pub fn is_broken_off(&self) -> bool {
        matches!(self, Self::Exchange(_))
    }
}

impl Upstream {
    /// A client of the worker on `port` of the loopback interface, which accepts `token`.
    pub fn new(port: u16, token: &SpawnToken) -> Result<Self, UpstreamError> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut authorization =
            HeaderValue::from_str(&format!("Bearer {}", token.reveal())).map_err(UpstreamError::Token)?;
        authorization.set_sensitive(true);
        let host = HeaderValue::from_str(&address.to_string()).map_err(UpstreamError::Token)?;
        Ok(Self { address, host, authorization, idle: Mutex::new(Vec::new()) })
    }

    /// Sends `request` (path only; host and authorization are added) and waits for the head of the answer.
    pub async fn send(
        self: &Arc<Self>,
        mut request: Request<Outgoing>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        request.headers_mut().insert(HOST, self.host.clone());
        request.headers_mut().insert(AUTHORIZATION, self.authorization.clone());
        if let Some(mut line) = self.idle_line().await {
            match line.exchange(request).await {
                Ok(response) => return Ok(self.answer(response, line)),
                // The worker closed the idle connection before the request was written: a new connection is safe.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(UpstreamError::Exchange(error.into_error())),
                },
            }
        }
        let mut line = self.connect().await?;
        match line.exchange(request).await {
            Ok(response) => Ok(self.answer(response, line)),
            Err(error) => Err(UpstreamError::Exchange(error.into_error())),
        }
    }

    fn answer(self: &Arc<Self>, response: Response<Incoming>, line: PooledConnection) -> Response<UpstreamBody> {
        response.map(|incoming| {
            let mut body = UpstreamBody { incoming, open: Some((Arc::clone(self), line)) };
            body.give_back_if_ended();
            body
        })
    }

    async fn connect(&self) -> Result<PooledConnection, UpstreamError> {
        let connect = |source| UpstreamError::Connect { address: self.address, source };
        let stream = TcpStream::connect(self.address).await.map_err(connect)?;
        stream.set_nodelay(true).map_err(connect)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(UpstreamError::Exchange)?;
        Ok(PooledConnection { sender, connection: Box::pin(connection), closed: false })
    }

    async fn idle_line(&self) -> Option<PooledConnection> {
        loop {
            let (mut line, _) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            if poll_fn(|cx| line.poll_ready(cx)).await {
                return Some(line);
            }
        }
    }

    fn keep(&self, line: PooledConnection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE
            && let Some(place) = Idle::take()
        {
            idle.push((line, place));
        }
    }
}

impl PooledConnection {
    /// Sends a request and waits for the head of its answer.
    async fn exchange(
        &mut self,
        request: Request<Outgoing>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Outgoing>>> {
        let mut answer = pin!(self.sender.try_send_request(request));
        poll_fn(|cx| {
            drive(&mut self.connection, &mut self.closed, cx);
            answer.as_mut().poll(cx)
        })
        .await
    }

    /// Whether the connection can take another request; `false` when the worker has closed it meanwhile.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        drive(&mut self.connection, &mut self.closed, cx);
        if self.closed {
            return Poll::Ready(false);
        }
        self.sender.poll_ready(cx).map(|ready| ready.is_ok())
    }
}

/// Moves bytes both ways. Errors show in the exchange.
fn drive(connection: &mut Pin<Box<impl Future>>, closed: &mut bool, cx: &mut Context<'_>) {
    *closed = *closed || connection.as_mut().poll(cx).is_ready();
}

impl fmt::Debug for PooledConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("closed", &self.closed).finish_non_exhaustive()
    }
}

/// The body of a worker's answer. Read to its end, it returns its connection to the pool; dropped earlier, it closes
/// the connection.
pub struct UpstreamBody {
    incoming: Incoming,
    open: Option<(Arc<Upstream>, PooledConnection)>,
}

impl UpstreamBody {
    fn give_back_if_ended(&mut self) {
        if self.incoming.is_end_stream() {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if let Some((upstream, line)) = self.open.take()
            && !line.closed
        {
            upstream.keep(line);
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some((_, line)) = &mut self.open {
            drive(&mut line.connection, &mut line.closed, cx);
        }
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.give_back_if_ended(),
            Some(Err(_)) => self.open = None,
            None => self.give_back(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

    async fn worker() -> (TcpListener, Arc<Upstream>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, Arc::new(Upstream::new(port, &SpawnToken::from_bits(7)).unwrap()))
    }

    fn request() -> Request<Outgoing> {
        Request::post("/v1/completions")
            .body(Outgoing::new(Bytes::from_static(b"{"), Bytes::from_static(b"}")))
            .unwrap()
    }

    /// Reads one request and returns its head.
    async fn read_request(stream: &mut TcpStream) -> String {
        let mut text = Vec::new();
        while !text.ends_with(b"{}") {
            assert_ne!(stream.read_buf(&mut text).await.unwrap(), 0, "the connection ended early");
        }
        String::from_utf8(text).unwrap()
    }

    async fn text(response: Response<UpstreamBody>) -> Bytes {
        response.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn dm_4_a_connection_serves_one_request_after_another_with_the_token() {
        let (listener, upstream) = worker().await;
        let worker = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            for _ in 0..3 {
                let head = read_request(&mut stream).await;
                assert!(head.contains(&format!("Bearer {}", SpawnToken::from_bits(7).reveal())), "{head}");
                stream.write_all(ANSWER).await.unwrap();
            }
        };
        let client = async {
            for _ in 0..3 {
                assert_eq!(text(upstream.send(request()).await.unwrap()).await, "ok");
            }
        };
        tokio::join!(worker, client);
    }

    #[tokio::test]
    async fn rc_11_a_dropped_answer_closes_its_connection() {
        let (listener, upstream) = worker().await;
        let client = async {
            let response = upstream.send(request()).await.unwrap();
            drop(response);
        };
        let worker = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n").await.unwrap();
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "the connection is closed");
        };
        tokio::join!(client, worker);
    }

    #[tokio::test]
    async fn an_idle_connection_that_the_worker_closed_is_replaced() {
        let (listener, upstream) = worker().await;
        let worker = async {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.unwrap();
                read_request(&mut stream).await;
                stream.write_all(ANSWER).await.unwrap();
            }
        };
        let client = async {
            for _ in 0..2 {
                assert_eq!(text(upstream.send(request()).await.unwrap()).await, "ok");
            }
        };
        tokio::join!(worker, client);
    }

    #[tokio::test]
    async fn what_is_not_http_is_told_from_what_is_no_answer() {
        let (listener, upstream) = worker().await;
        let worker = async {
            for bytes in [&b"SSH-2.0-hello\r\n\r\n"[..], b"", b"HTTP/1.1 200 OK\r\ncontent-le"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                read_request(&mut stream).await;
                stream.write_all(bytes).await.unwrap();
            }
        };
        let client = async {
            for nonsense in [true, false, false] {
                let error = upstream.send(request()).await.err().unwrap();
                assert_eq!(error.is_nonsense(), nonsense, "{error:?}");
            }
        };
        tokio::join!(worker, client);
        drop(listener);
        assert!(matches!(upstream.send(request()).await, Err(UpstreamError::Connect { .. })));
    }
}
