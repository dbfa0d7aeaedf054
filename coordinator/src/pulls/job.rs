//! One pull: its progress, its result, and the callers that wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use model_boss_hub::{HubName, PullProgress};
use model_boss_protocol::{ApiError, ByteCount, ErrorSource};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// One pull.
pub(crate) struct PullJob {
    /// The number of the pull in this run of the process.
    pub(super) id: u64,
    pub(super) name: HubName,
    /// The model whose manifest names the files, where one was asked for.
    pub(super) model: Option<String>,
    pub(super) began: SystemTime,
    pub(super) progress: watch::Receiver<PullProgress>,
    /// The result; `None` while the pull runs.
    pub(super) end: watch::Receiver<Option<Result<PullResult, ApiError>>>,
    pub(super) cancel: CancellationToken,
    /// The manifest's name that a caller wished for, and whether one wants a manifest at all.
    pub(super) wants_manifest: AtomicBool,
    /// Whether the pull goes on without callers.
    pub(super) is_kept: AtomicBool,
    watchers: AtomicUsize,
}

/// The files of a pull that succeeded.
#[derive(Clone, Debug)]
pub(crate) struct PullResult {
    /// The name of the model with these files, if a manifest has it.
    pub(crate) model: Option<String>,
    pub(crate) path: String,
    pub(crate) commit: String,
    pub(crate) bytes: ByteCount,
    pub(crate) downloaded: ByteCount,
    pub(crate) linked: ByteCount,
}

/// A caller that waits for a pull. When the last one is gone, the pull ends, unless it is kept.
pub(crate) struct PullWatch(Arc<PullJob>);

impl PullWatch {
    pub(crate) fn new(job: &Arc<PullJob>) -> Self {
        job.watchers.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(job))
    }

    /// The pull.
    pub(crate) fn job(&self) -> &Arc<PullJob> {
        &self.0
    }
}

impl Drop for PullWatch {
    fn drop(&mut self) {
        let last = self.0.watchers.fetch_sub(1, Ordering::AcqRel) == 1;
        if last && !self.0.is_kept.load(Ordering::Acquire) {
            self.0.cancel.cancel();
        }
    }
}

impl PullJob {
    pub(super) fn new(
        id: u64,
        (name, model): (HubName, Option<String>),
        progress: watch::Receiver<PullProgress>,
        end: watch::Receiver<Option<Result<PullResult, ApiError>>>,
        cancel: CancellationToken,
    ) -> Self {
        Self {
            id,
            name,
            model,
            began: SystemTime::now(),
            progress,
            end,
            cancel,
            wants_manifest: AtomicBool::new(false),
            is_kept: AtomicBool::new(false),
            watchers: AtomicUsize::new(0),
        }
    }

    /// The number of the pull.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// A reader of the progress.
    pub(crate) fn progress(&self) -> watch::Receiver<PullProgress> {
        self.progress.clone()
    }

    /// A reader of the result.
    pub(crate) fn end(&self) -> watch::Receiver<Option<Result<PullResult, ApiError>>> {
        self.end.clone()
    }

    /// Whether the pull runs, and was not told to end.
    pub(super) fn is_running(&self) -> bool {
        self.end.borrow().is_none() && !self.cancel.is_cancelled()
    }

    /// Waits for the result.
    pub(crate) async fn done(&self) -> Result<PullResult, ApiError> {
        let mut end = self.end.clone();
        let lost = || ApiError::new(model_boss_protocol::ErrorCode::Internal, "the pull ended without a result");
        let done = end.wait_for(Option::is_some).await;
        done.map_err(|_| lost()).and_then(|done| done.clone().unwrap_or_else(|| Err(lost())))
    }

    /// The pull as lists and streams show it.
    pub(crate) fn view(&self) -> Value {
        let progress = self.progress.borrow().clone();
        let end = self.end.borrow().clone();
        let began = self.began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut view = json!({
            "id": self.id,
            "source": self.name.to_string(),
            "model_name": self.model,
            "status": progress.stage.as_str(),
            "file": progress.file,
            "digest": progress.digest,
            "file_total": progress.file_total,
            "file_completed": progress.file_completed,
            "total": progress.total,
            "completed": progress.completed,
            "percent": progress.percent(),
            "bytes_per_second": progress.rate as u64,
            "trouble": progress.trouble,
            "began": began.as_secs_f64(),
        });
        match end {
            None => {}
            Some(Ok(result)) => {
                view["status"] = "pulled".into();
                view["model_name"] = json!(result.model);
                view["path"] = result.path.into();
                view["commit"] = result.commit.into();
                view["total"] = result.bytes.0.into();
                view["completed"] = result.bytes.0.into();
                view["percent"] = 100.into();
                view["downloaded"] = result.downloaded.0.into();
                view["linked"] = result.linked.0.into();
            }
            Some(Err(error)) => {
                view["status"] = "failed".into();
                view["error"] = json!(error.body(ErrorSource::Coordinator).error);
            }
        }
        view
    }
}
