//! The start and the readiness of a process. Candle workers and fake workers get a start line with secrets, and prove
//! their identity in health answers. External engines get their guard's start line, and are recognised by the process
//! that listens on their port.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use model_boss_catalog::ForeignEngine;
use model_boss_engines::Seen;
use model_boss_http::upstream::{Outgoing, Upstream};
use model_boss_protocol::{EngineStats, HealthQuestion, StopSignal, WorkerHealth, WorkerSpec};
use nix::sys::signal::Signal;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::sockets::{PortOwner, listener};

/// The longest health answer in bytes: real ones have a few hundred.
const MAX_HEALTH: usize = 64 * 1024;

/// The two kinds of processes.
pub(super) enum Contract {
    /// A candle worker or a fake worker.
    Own(Box<WorkerSpec>),
    /// An external engine with its guard.
    Foreign(Box<ForeignEngine>),
}

/// The result of a health check.
pub(super) struct Sign {
    /// Whether the process serves.
    pub(super) ready: bool,
    /// The finished share of the load, if the process reports one.
    pub(super) progress: f32,
    /// The context that the worker serves in tokens, if it reports one.
    pub(super) context_length: Option<u64>,
    /// The counters of the engine.
    pub(super) engine: EngineStats,
    /// The whole health answer of a candle worker or a fake worker.
    pub(super) health: Option<WorkerHealth>,
}

impl Contract {
    /// The start line, newline included.
    pub(super) fn start_line(&self) -> Result<String, serde_json::Error> {
        match self {
            Self::Own(spec) => spec.to_line(),
            Self::Foreign(engine) => Ok(serde_json::to_string(&engine.launch)? + "\n"),
        }
    }

    /// The signal that ends the worker in order.
    pub(super) fn stop_signal(&self) -> Signal {
        match self {
            Self::Own(_) => Signal::SIGTERM,
            Self::Foreign(engine) => match engine.stop {
                StopSignal::Terminate => Signal::SIGTERM,
                StopSignal::Interrupt => Signal::SIGINT,
                StopSignal::Quit => Signal::SIGQUIT,
            },
        }
    }

    /// The longest time of the engine's load, if its template states one.
    pub(super) fn load_timeout(&self) -> Option<Duration> {
        match self {
            Self::Own(_) => None,
            Self::Foreign(engine) => engine.load_timeout,
        }
    }

    /// One health check. `None` when no process answers, or one that is not this spawn. `root` is the process that was
    /// started. With `patience`, a loading candle worker may delay its answer that long, until it is ready.
    pub(super) async fn health(
        &self,
        root: u32,
        port: u16,
        upstream: &Arc<Upstream>,
        (limit, patience): (Duration, Option<Duration>),
    ) -> Option<Sign> {
        timeout(limit, self.ask(root, port, upstream, patience)).await.ok().flatten()
    }

    async fn ask(&self, root: u32, port: u16, upstream: &Arc<Upstream>, patience: Option<Duration>) -> Option<Sign> {
        let path: Cow<'_, str> = match (self, patience) {
            (Self::Own(_), Some(wait)) => HealthQuestion { wait }.path().into(),
            (Self::Own(_), None) => "/health".into(),
            (Self::Foreign(engine), _) => engine.health_path.as_str().into(),
        };
        let request = Request::get(&*path).body(Outgoing::default()).ok()?;
        let response = upstream.send(request).await.ok()?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_HEALTH).collect().await.ok()?.to_bytes();
        match self {
            Self::Own(spec) => {
                let health: WorkerHealth = serde_json::from_slice(&body).ok()?;
                let ours = spec.proof.matches(health.proof.reveal()) && health.generation == spec.generation;
                ours.then(|| Sign {
                    ready: status == StatusCode::OK,
                    progress: health.progress,
                    context_length: health.context_length,
                    engine: health.engine,
                    health: Some(health),
                })
            }
            Self::Foreign(engine) => {
                let found = spawn_blocking(move || listener(root, port)).await.ok()?;
                if found == PortOwner::NotOurs {
                    return None;
                }
                let ready = engine.health.read(status.as_u16(), &body) == Seen::Ready;
                if ready && found == PortOwner::OursInTheOpen {
                    tracing::warn!(
                        port,
                        "this engine listens where other machines can reach it; tell it to listen on {{host}}"
                    );
                }
                let context_length = engine.context;
                Some(Sign { ready, progress: 0.0, context_length, engine: EngineStats::default(), health: None })
            }
        }
    }
}
