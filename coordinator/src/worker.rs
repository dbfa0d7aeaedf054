//! The handle of one worker: its connection for requests, and the orders to end it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use model_boss_dialects::EngineDialect;
use model_boss_http::upstream::Upstream;
use model_boss_protocol::{Backend, CpuShare, ModelId};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::adapters::WorkerAdapters;

/// The longest time between the end of a process's connections and the report of its end: guards end its descendants
/// first.
const DEATH_NEWS: Duration = Duration::from_secs(2);

/// One generation of a slot, as the other modules of the shell see it.
#[derive(Debug)]
pub(crate) struct Worker {
    /// The model that the worker serves.
    pub(crate) model: ModelId,
    /// The devices that it has memory on, with commas.
    pub(crate) devices: String,
    /// The backend of the model.
    pub(crate) backend: Backend,
    /// The form that requests must have, if the worker is an external engine.
    pub(crate) dialect: Option<EngineDialect>,
    /// The HTTP client, set right before `WorkerReady` is reported.
    pub(crate) upstream: OnceLock<Arc<Upstream>>,
    pub(crate) stop: CancellationToken,
    /// Set before `stop` if its prefixes may be parked before it ends: the model that is loaded in its place, if any.
    pub(crate) parks: OnceLock<Option<ModelId>>,
    /// The era of its model's prefixes when it started; those of a later one are not its own.
    pub(crate) era: u64,
    pub(crate) kill: CancellationToken,
    /// The reason, set before `kill`.
    pub(crate) kill_reason: OnceLock<&'static str>,
    /// The token is cancelled when a worker that has served has ended, or is being ended.
    pub(crate) ended: CancellationToken,
    /// The adapters that it was given.
    pub(crate) adapters: WorkerAdapters,
    /// The threads that the worker was last ordered to compute with.
    pub(crate) share: watch::Sender<Option<CpuShare>>,
}

impl Worker {
    /// The HTTP client of the worker, once it is ready.
    pub(crate) fn upstream(&self) -> Option<&Arc<Upstream>> {
        self.upstream.get()
    }

    /// The form that requests must have; `None` for candle workers and fake workers, which accept them unchanged.
    pub(crate) fn dialect(&self) -> Option<&EngineDialect> {
        self.dialect.as_ref()
    }

    /// The worker in words, with its program if that is an external engine.
    pub(crate) fn title(&self) -> String {
        match self.backend.is_foreign() {
            true => format!("the engine of model '{}' ({})", self.model, self.backend.as_str()),
            false => format!("the worker of model '{}'", self.model),
        }
    }

    /// Records that its process has ended, or is about to be ended, and returns the reason unchanged. The end of a
    /// worker that never served is not recorded.
    pub(crate) fn note_end<T>(&self, why: T) -> T {
        if self.upstream().is_some() {
            self.ended.cancel();
        }
        why
    }

    /// Whether the worker's process has ended, or is about to. Its connections close before the process ends, so the
    /// answer may take a moment.
    pub(crate) async fn has_ended(&self) -> bool {
        timeout(DEATH_NEWS, self.ended.cancelled()).await.is_ok()
    }

    pub(crate) fn kill(&self, why: &'static str) {
        // The first reason is the one that counts.
        let _ = self.kill_reason.set(why);
        self.kill.cancel();
    }

    /// Waits for the order to kill the worker, and returns the reason.
    pub(crate) async fn killed(&self) -> &'static str {
        self.kill.cancelled().await;
        self.kill_reason.get().copied().unwrap_or_default()
    }
}
