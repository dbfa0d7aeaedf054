//! Limits on a client's silence. They are short before its first request and within a request head, and long between
//! two requests. hyper has one timer for all three; the timer here notices whether a head has begun.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use model_boss_host::clocks::later;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};

/// The longest silence of a client, by its place in the connection.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// The time from the connection's beginning to the end of its first head, and from any head's first byte to its
    /// last.
    pub head: Duration,
    /// The time between two requests.
    pub idle: Duration,
}

impl Patience {
    /// Wraps `stream` for hyper, and arms `http` with a timer that observes the stream.
    pub fn watch<S>(self, stream: S, http: &http1::Builder) -> (TokioIo<Heard<S>>, http1::Builder) {
        let silence = Arc::new(Mutex::new(Silence::new(self)));
        let mut http = http.clone();
        // hyper needs some limit to arm the timer; [`HeadTimer`] decides how long it really is.
        http.timer(HeadTimer(Arc::clone(&silence))).header_read_timeout(self.idle);
        (TokioIo::new(Heard { stream, silence }), http)
    }
}

/// The silence of one connection.
struct Silence {
    patience: Patience,
    /// Whether no request has arrived yet.
    fresh: bool,
    /// The time at which hyper began to wait for a head.
    since: Instant,
    /// The time at which the current head began.
    begun: Option<Instant>,
    /// The timer, which is moved when it fires, not with each request.
    timer: Pin<Box<tokio::time::Sleep>>,
}

impl Silence {
    fn new(patience: Patience) -> Self {
        let now = Instant::now();
        let timer = Box::pin(sleep_until(later(now, patience.head)));
        Self { patience, fresh: true, since: now, begun: Some(now), timer }
    }

    fn wait_for_head(&mut self) {
        if !std::mem::take(&mut self.fresh) {
            self.since = Instant::now();
            self.begun = None;
        }
    }

    fn heard(&mut self) {
        self.begun.get_or_insert_with(Instant::now);
    }

    /// The future is ready when the silence has lasted too long.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let due = match self.begun {
            Some(begun) => later(begun, self.patience.head),
            None => later(self.since, self.patience.idle),
        };
        if due < self.timer.deadline() {
            self.timer.as_mut().reset(due);
        }
        loop {
            ready!(self.timer.as_mut().poll(cx));
            if due <= Instant::now() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(due);
        }
    }
}

fn with<T>(silence: &Mutex<Silence>, act: impl FnOnce(&mut Silence) -> T) -> T {
    act(&mut silence.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The timer that hyper uses. hyper only needs it to be woken when a head takes too long, from the moment of the call.
struct HeadTimer(Arc<Mutex<Silence>>);

impl Timer for HeadTimer {
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Sleep>> {
        with(&self.0, Silence::wait_for_head);
        Box::pin(HeadSleep(Arc::clone(&self.0)))
    }

    fn sleep_until(&self, _: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(Duration::ZERO)
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into()
    }
}

struct HeadSleep(Arc<Mutex<Silence>>);

impl Sleep for HeadSleep {}

impl Future for HeadSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        with(&self.0, |silence| silence.poll(cx))
    }
}

/// A connection whose incoming bytes are noticed.
pub struct Heard<S> {
    stream: S,
    silence: Arc<Mutex<Silence>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            with(&self.silence, Silence::heard);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Empty;
    use hyper::service::service_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    const PATIENCE: Patience = Patience { head: Duration::from_secs(10), idle: Duration::from_secs(75) };

    /// The client's end of a connection to a server that answers every request with an empty body.
    fn connect() -> DuplexStream {
        let (client, server) = duplex(4096);
        let (stream, http) = PATIENCE.watch(server, &http1::Builder::new());
        let answer = service_fn(async |_| Ok::<_, hyper::Error>(http::Response::new(Empty::<bytes::Bytes>::new())));
        tokio::spawn(http.serve_connection(stream, answer));
        client
    }

    async fn ask(client: &mut DuplexStream) {
        client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "the server closed the connection");
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"));
    }

    /// The time until the server closes, in seconds.
    async fn closed(client: &mut DuplexStream) -> u64 {
        let begun = Instant::now();
        _ = client.read_to_end(&mut Vec::new()).await;
        begun.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_asks_is_cut_like_one_that_stops_in_its_first_head() {
        assert_eq!(closed(&mut connect()).await, 10);
        let mut client = connect();
        tokio::time::advance(Duration::from_secs(4)).await;
        client.write_all(b"GET / HT").await.unwrap();
        assert_eq!(closed(&mut client).await, 6);
    }

    #[tokio::test(start_paused = true)]
    async fn between_two_requests_a_client_may_be_silent_for_longer() {
        let mut client = connect();
        for _ in 0..5 {
            ask(&mut client).await;
            tokio::time::sleep(Duration::from_secs(70)).await;
        }
        ask(&mut client).await;
        assert_eq!(closed(&mut client).await, 75);
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_head_has_no_more_time_than_the_first() {
        let mut client = connect();
        ask(&mut client).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        client.write_all(b"GET / HTTP/1.1\r\nhost: loc").await.unwrap();
        tokio::time::sleep(Duration::from_secs(6)).await;
        // A further byte does not begin a new head.
        client.write_all(b"a").await.unwrap();
        assert_eq!(closed(&mut client).await, 4);
    }
}
