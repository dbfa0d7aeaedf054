//! What a process is told when it starts, and how it shows that it is ready: our own workers by their start line and its
//! secrets, engines of others by their guard's start line and by what listens on their port.

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

use super::sockets::{Listener, listener};

/// A health answer is a few hundred bytes.
const MAX_HEALTH: usize = 64 * 1024;

/// The two kinds of processes.
pub(super) enum Contract {
    /// Our worker, or the stand-in.
    Own(Box<WorkerSpec>),
    /// Somebody else's program, behind its guard.
    Foreign(Box<ForeignEngine>),
}

/// What a health check told.
pub(super) struct Sign {
    /// Whether it serves.
    pub(super) ready: bool,
    /// Share of the load that is done, if it says.
    pub(super) progress: f32,
    /// The context it serves, if it says.
    pub(super) context_length: Option<u64>,
    /// What it has done.
    pub(super) engine: EngineStats,
    /// All of it, from our own.
    pub(super) health: Option<WorkerHealth>,
}

impl Contract {
    /// The line that starts it, newline included.
    pub(super) fn start_line(&self) -> Result<String, serde_json::Error> {
        match self {
            Self::Own(spec) => spec.to_line(),
            Self::Foreign(engine) => Ok(serde_json::to_string(&engine.launch)? + "\n"),
        }
    }

    /// What asks it to end.
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

    /// How long its load may take, if somebody says.
    pub(super) fn load_timeout(&self) -> Option<Duration> {
        match self {
            Self::Own(_) => None,
            Self::Foreign(engine) => engine.load_timeout,
        }
    }

    /// One health check. `None` when nobody answers, or somebody who is not this spawn. `root` is the process we started.
    /// With `patience`, one of our own that is loading may answer so much later, if it is ready by then.
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
                if found == Listener::NotOurs {
                    return None;
                }
                let ready = engine.health.read(status.as_u16(), &body) == Seen::Ready;
                if ready && found == Listener::OursInTheOpen {
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
