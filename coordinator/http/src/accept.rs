//! Accepts connections and serves HTTP/1.1 on each, with limits that keep one client from starving the others. (axum's
//! own server does not arm the timer for request heads.)

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::server::graceful::GracefulShutdown;
use model_boss_protocol::{ApiError, ErrorCode, ErrorSource};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::either::Either;

use crate::bare_errors::BareErrors;
use crate::door::Door;
use crate::patience::Patience;
use crate::peer::Peer;
use crate::tls::ServerTls;

/// The time a refused client gets for each step while other clients wait for a refusal.
const REFUSAL_STEP: Duration = Duration::from_millis(50);
/// The longest time a refused client gets to send its request, which is not parsed. Many clients take an answer before
/// their request for a broken connection.
const REFUSAL_HEAD: Duration = Duration::from_secs(1);
/// The time a refused client gets to read the answer.
const REFUSAL_LINGER: Duration = Duration::from_millis(100);
/// The `Retry-After` of a refusal.
const COME_AGAIN: Duration = Duration::from_secs(1);
/// The pause before the next accept when the system has no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The longest time that open connections get to close after the last answer.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Limits on the size and speed of request heads, and on the number of connections.
#[derive(Clone, Copy, Debug)]
pub struct ServerLimits {
    /// The longest silence of a client.
    pub patience: Patience,
    /// The longest request head, in bytes.
    pub header_size: usize,
    /// The number of connections served at once.
    pub connections: usize,
    /// The number of connections refused at once; one more waits in the kernel's backlog.
    pub refusals: usize,
}

/// Listening sockets and the service of their connections.
pub struct Server {
    listeners: Vec<TcpListener>,
    door: Door,
    http: http1::Builder,
    header_size: usize,
    patience: Patience,
    places: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    tls: Option<ServerTls>,
}

/// Whether a connection is served or refused.
enum ConnectionPlace {
    Served(OwnedSemaphorePermit),
    Refused(OwnedSemaphorePermit),
}

impl Server {
    /// A server on `listeners`, which share its limits.
    pub fn new(listeners: Vec<TcpListener>, door: Door, limits: ServerLimits) -> Self {
        let mut http = http1::Builder::new();
        http.max_header_size(limits.header_size);
        let [places, refusals] = [limits.connections, limits.refusals].map(|number| Arc::new(Semaphore::new(number)));
        let (header_size, patience) = (limits.header_size, limits.patience);
        Self { listeners, door, http, header_size, patience, places, refusals, tls: None }
    }

    /// The same server, with HTTPS.
    #[must_use]
    pub fn with_tls(self, tls: Option<ServerTls>) -> Self {
        Self { tls, ..self }
    }

    /// Serves until `stop`, then lets running answers end.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let graceful = GracefulShutdown::new();
        let (refusals, refusal) = (Arc::clone(&self.refusals), Arc::new(refusal()));
        for turn in 0_usize.. {
            let accepted = async {
                // A client that cannot be served gets at least a refusal.
                let refusal = Arc::clone(&refusals).acquire_owned().await.ok()?;
                let accepted = accept(&self.listeners, turn).await;
                let place = match Arc::clone(&self.places).try_acquire_owned() {
                    Ok(place) => ConnectionPlace::Served(place),
                    Err(_) => ConnectionPlace::Refused(refusal),
                };
                Some((accepted, place))
            };
            let accepted = tokio::select! {
                biased;
                () = &mut stop => break,
                accepted = accepted => accepted,
            };
            // The semaphores are never closed.
            let Some((accepted, place)) = accepted else { break };
            match (accepted, place) {
                (Ok((stream, client)), ConnectionPlace::Served(place)) => {
                    let connection = self.connection(stream, client, &graceful);
                    tokio::spawn(async move {
                        connection.await;
                        drop(place);
                    });
                }
                (Ok((stream, _)), ConnectionPlace::Refused(place)) => {
                    let (answer, places) = (Arc::clone(&refusal), Arc::clone(&refusals));
                    tokio::spawn(async move {
                        // The loop above holds a place for the next connection.
                        refuse(stream, &answer, || places.available_permits() == 0).await;
                        drop(place);
                    });
                }
                (Err(error), _) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.listeners);
        if tokio::time::timeout(CLOSE_LIMIT, graceful.shutdown()).await.is_err() {
            tracing::info!("connections that did not close in time were cut");
        }
    }

    fn connection(
        &self,
        stream: TcpStream,
        client: SocketAddr,
        graceful: &GracefulShutdown,
    ) -> impl Future<Output = ()> + use<> {
        let door = match stream.local_addr() {
            Ok(server) => self.door.clone().of(Peer::new(client, server)),
            Err(_) => self.door.clone(),
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection does not take TCP_NODELAY");
        }
        let (tls, patience, header_size, http) = (self.tls.clone(), self.patience, self.header_size, self.http.clone());
        let watcher = graceful.watcher();
        async move {
            let stream = match tls {
                None => Either::Right(stream),
                Some(tls) => match tls.agree(stream, client.ip().is_loopback(), patience.head).await {
                    Some(stream) => stream,
                    None => return,
                },
            };
            let (stream, http) = patience.watch(BareErrors::on(stream, header_size), &http);
            let connection = watcher.watch(http.serve_connection(stream, door));
            if let Err(error) = connection.await {
                // A client that closes its connection is not worth a warning.
                tracing::debug!(%error, "connection ended");
            }
        }
    }
}

/// Accepts the next connection of any listener.
async fn accept(listeners: &[TcpListener], turn: usize) -> io::Result<(TcpStream, SocketAddr)> {
    // The listeners are polled in rotating order, so that a busy one does not starve the others.
    let (last, first) = listeners.split_at(turn % listeners.len().max(1));
    poll_fn(|cx| {
        let mut accepted = first.iter().chain(last).map(|listener| listener.poll_accept(cx));
        accepted.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

/// The complete answer to a refused client, built in advance.
fn refusal() -> String {
    let message = "every connection that this coordinator can serve is in use: come again in a moment, close idle \
                   connections, or raise its limit of file descriptors (ulimit -n)";
    let error = ApiError::new(ErrorCode::Overloaded, message);
    let body = error.body(ErrorSource::Coordinator).to_json();
    format!(
        "HTTP/1.1 {} Service Unavailable\r\ncontent-type: application/json\r\nretry-after: {}\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        error.status(),
        COME_AGAIN.as_secs(),
        body.len()
    )
}

/// Sends the refusal and closes, soon while other clients wait for theirs (`hurried`).
async fn refuse(mut stream: TcpStream, answer: &str, hurried: impl Fn() -> bool) {
    let mut scrap = [0; 4_096];
    let started = Instant::now();
    // The client is answered even when it sends nothing, or disconnects.
    while timeout(REFUSAL_STEP, stream.read(&mut scrap)).await.is_err() {
        if hurried() || started.elapsed() >= REFUSAL_HEAD {
            break;
        }
    }
    let _ = timeout(REFUSAL_STEP, stream.write_all(answer.as_bytes())).await;
    let _ = timeout(REFUSAL_STEP, stream.shutdown()).await;
    // Closing a socket with unread bytes resets the connection, and the client loses the answer.
    let read = async { while matches!(stream.read(&mut scrap).await, Ok(1..)) {} };
    let _ = timeout(REFUSAL_LINGER, read).await;
}
