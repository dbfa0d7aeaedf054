//! The accept loop: HTTP/1 on loopback, one task per connection, and a way to end without cutting answers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use super::routes::router;
use crate::state::WorkerState;

/// Longest wait for the head of a request. On loopback only a broken client needs longer.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause when the system has no file descriptor or memory for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The running accept loop.
pub(crate) struct HttpServer {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl HttpServer {
    /// Serves the worker's routes on a bound listener.
    pub(crate) fn start(listener: TcpListener, worker: Arc<WorkerState>) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop: Some(stop), task: tokio::spawn(serve(listener, worker, stopped)) }
    }

    /// Accepts no further connections and waits for running requests.
    pub(crate) async fn drain(&mut self) {
        drop(self.stop.take());
        if let Err(error) = (&mut self.task).await {
            warn!(%error, "the accept loop failed");
        }
    }
}

async fn serve(listener: TcpListener, worker: Arc<WorkerState>, mut stopped: oneshot::Receiver<()>) {
    let router = router(worker);
    let graceful = GracefulShutdown::new();
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match prepared(accepted) {
                Ok(stream) => stream,
                Err(error) => {
                    warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            _ = &mut stopped => break,
        };
        let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        let watched = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = watched.await {
                debug!(%error, "a connection ended early");
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Tokens are small writes that must not wait for one another.
fn prepared(accepted: io::Result<(TcpStream, std::net::SocketAddr)>) -> io::Result<TcpStream> {
    let (stream, _) = accepted?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
