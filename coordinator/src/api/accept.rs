//! Accepts connections and serves HTTP/1.1 on each, with the limits that keep one client from being everybody's problem.
//! (axum's own server does not arm the timer for request heads.)

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::door::Door;
use super::patience::Patience;
use super::peer::Peer;

/// Connections open at once. One more waits in the kernel's backlog.
const MAX_CONNECTIONS: usize = 8_192;
/// When the system has no descriptor left, the next try comes after this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that are still open after the last answer get this long to close.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// How large and how slow a request head may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerLimits {
    /// How long a client may be silent.
    pub(crate) patience: Patience,
    /// The size of a head in bytes.
    pub(crate) header_size: usize,
}

/// A listening socket with the door behind it.
pub(crate) struct Server {
    listener: TcpListener,
    door: Door,
    http: http1::Builder,
    patience: Patience,
}

impl Server {
    /// A server on `listener`.
    pub(crate) fn new(listener: TcpListener, door: Door, limits: ServerLimits) -> Self {
        let mut http = http1::Builder::new();
        http.max_header_size(limits.header_size);
        Self { listener, door, http, patience: limits.patience }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`, then lets answers under way end.
    pub(crate) async fn run(self, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        let graceful = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let accepted = async {
                // Closed by nobody.
                let place = Arc::clone(&places).acquire_owned().await;
                (self.listener.accept().await, place)
            };
            let (accepted, place) = tokio::select! {
                biased;
                () = &mut stop => break,
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((stream, client)) => {
                    let connection = self.connection(stream, client, &graceful);
                    tokio::spawn(async move {
                        connection.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.listener);
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
        let (stream, http) = self.patience.watch(stream, &self.http);
        let connection = graceful.watch(http.serve_connection(stream, door));
        async move {
            if let Err(error) = connection.await {
                // Clients that go away are no news.
                tracing::debug!(%error, "connection ended");
            }
        }
    }
}
