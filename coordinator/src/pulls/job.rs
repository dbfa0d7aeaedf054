//! One pull: its progress, its result, and the callers that wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use model_boss_hub::{HubName, PullProgress};
use model_boss_protocol::{ApiError, ByteCount, ErrorObject, ErrorSource};
use schemars::JsonSchema;
use serde::Serialize;
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
    pub(crate) fn view(&self) -> PullObject {
        let progress = self.progress.borrow().clone();
        let began = self.began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let object = PullObject {
            id: self.id,
            source: self.name.to_string(),
            model_name: self.model.clone(),
            status: progress.stage.as_str(),
            percent: progress.percent(),
            file: progress.file,
            digest: progress.digest,
            file_total: progress.file_total,
            file_completed: progress.file_completed,
            total: progress.total,
            completed: progress.completed,
            bytes_per_second: progress.rate as u64,
            trouble: progress.trouble,
            began: began.as_secs_f64(),
            pulled: None,
            error: None,
        };
        match self.end.borrow().clone() {
            None => object,
            Some(Ok(result)) => PullObject {
                status: "pulled",
                model_name: result.model,
                total: result.bytes.0,
                completed: result.bytes.0,
                percent: 100,
                pulled: Some(PulledFiles {
                    path: result.path,
                    commit: result.commit,
                    downloaded: result.downloaded.0,
                    linked: result.linked.0,
                }),
                ..object
            },
            Some(Err(error)) => {
                PullObject { status: "failed", error: Some(error.body(ErrorSource::Coordinator).error), ..object }
            }
        }
    }
}

/// A pull, in bytes and in seconds since 1970.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PullObject {
    id: u64,
    /// The name of the files at the hub.
    source: String,
    /// The model with these files, if a manifest has them.
    model_name: Option<String>,
    /// The stage of the pull, `pulled` or `failed`.
    status: &'static str,
    /// The file that is fetched now.
    file: String,
    /// The checksum of that file, in hexadecimal.
    digest: String,
    file_total: u64,
    file_completed: u64,
    /// Bytes of all files.
    total: u64,
    completed: u64,
    percent: u64,
    bytes_per_second: u64,
    /// The reason why a connection is tried again.
    trouble: Option<String>,
    began: f64,
    #[serde(flatten)]
    pulled: Option<PulledFiles>,
    /// The reason why the pull failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorObject>,
}

/// The files of a pull that succeeded.
#[derive(Serialize, JsonSchema)]
struct PulledFiles {
    path: String,
    /// The commit of the repository.
    commit: String,
    /// Bytes that came over the network.
    downloaded: u64,
    /// Bytes that other programs had on this disk.
    linked: u64,
}
