//! The handle of one worker: where requests go, and the orders to end it.

use std::sync::{Arc, OnceLock};

use model_boss_dialects::EngineDialect;
use model_boss_protocol::{Generation, ModelId};
use tokio_util::sync::CancellationToken;

use crate::upstream::Upstream;

/// One filling of a slot, as the rest of the shell sees it.
#[derive(Debug)]
pub(crate) struct Worker {
    /// What it serves.
    pub(crate) model: ModelId,
    /// Which filling of the slot it is.
    pub(crate) generation: Generation,
    /// What requests must be for it, when it is an engine of others.
    pub(crate) dialect: Option<EngineDialect>,
    /// Set right before `WorkerReady` is reported.
    pub(crate) upstream: OnceLock<Arc<Upstream>>,
    pub(crate) stop: CancellationToken,
    pub(crate) kill: CancellationToken,
    /// Set before `kill`.
    pub(crate) kill_reason: OnceLock<&'static str>,
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
