//! The handle of one worker: where requests go, and the orders to end it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use model_boss_dialects::EngineDialect;
use model_boss_http::upstream::Upstream;
use model_boss_protocol::{Backend, Generation, ModelId};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// From the end of a process's connections to the news of its end, at most: guards end its descendants first.
const DEATH_NEWS: Duration = Duration::from_secs(2);

/// One filling of a slot, as the rest of the shell sees it.
#[derive(Debug)]
pub(crate) struct Worker {
    /// What it serves.
    pub(crate) model: ModelId,
    /// Which filling of the slot it is.
    pub(crate) generation: Generation,
    /// What runs it.
    pub(crate) backend: Backend,
    /// What requests must be for it, when it is an engine of others.
    pub(crate) dialect: Option<EngineDialect>,
    /// Set right before `WorkerReady` is reported.
    pub(crate) upstream: OnceLock<Arc<Upstream>>,
    pub(crate) stop: CancellationToken,
    pub(crate) kill: CancellationToken,
    /// Set before `kill`.
    pub(crate) kill_reason: OnceLock<&'static str>,
    /// It served, and its process is gone or is being ended.
    pub(crate) ended: CancellationToken,
}

impl Worker {
    /// Its HTTP door, once it is ready.
    pub(crate) fn upstream(&self) -> Option<&Arc<Upstream>> {
        self.upstream.get()
    }

    /// What requests must be for it; `None` for our own workers, which take them as they are.
    pub(crate) fn dialect(&self) -> Option<&EngineDialect> {
        self.dialect.as_ref()
    }

    /// It in words, with the program that runs it where that is not ours.
    pub(crate) fn title(&self) -> String {
        match self.backend.is_foreign() {
            true => format!("the engine of model '{}' ({})", self.model, self.backend.as_str()),
            false => format!("the worker of model '{}'", self.model),
        }
    }

    /// Takes note that a process of it has ended, or is about to be ended, and passes on why. One that never served is not
    /// asked for its end.
    pub(crate) fn note_end<T>(&self, why: T) -> T {
        if self.upstream().is_some() {
            self.ended.cancel();
        }
        why
    }

    /// Whether its process is gone, or on the way out. A death shows on its connections first, so the answer may take a moment.
    pub(crate) async fn has_ended(&self) -> bool {
        timeout(DEATH_NEWS, self.ended.cancelled()).await.is_ok()
    }

    pub(crate) fn kill(&self, why: &'static str) {
        // The first reason is the one that counts.
        let _ = self.kill_reason.set(why);
        self.kill.cancel();
    }

    /// Waits for the order to kill it, and gives the reason.
    pub(crate) async fn killed(&self) -> &'static str {
        self.kill.cancelled().await;
        self.kill_reason.get().copied().unwrap_or_default()
    }
}
