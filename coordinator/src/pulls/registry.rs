//! All pulls, and the rule about models that were not downloaded.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model_boss_catalog::{LiveCatalog, Model, write_manifest};
use model_boss_hub::{Hub, HubError, HubName, PullProgress, Pulled};
use model_boss_protocol::{ApiError, Backend, ErrorCode};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::job::{PullJob, PullResult};
use crate::refusals::of_hub;

/// The number of ended pulls that lists show.
const ENDED: usize = 32;
/// The time for which a failed pull of an absent model is not repeated by the next request.
const FAILED_FOR: Duration = Duration::from_secs(30);
/// The bounds of `Retry-After` while a model is pulled.
const SHORTEST_WAIT: u64 = 2;
const LONGEST_WAIT: u64 = 60;

/// The pulls of this coordinator.
pub(crate) struct Pulls {
    hub: Hub,
    /// The folder for manifests of pulled models.
    manifests: PathBuf,
    catalog: Arc<LiveCatalog>,
    /// Whether loads and requests start pulls.
    auto: bool,
    draining: CancellationToken,
    jobs: Mutex<PullJobs>,
}

#[derive(Default)]
struct PullJobs {
    last: u64,
    /// The pulls, the oldest first.
    all: VecDeque<Arc<PullJob>>,
}

/// The wish for a pull.
pub(crate) struct PullOrder {
    pub(crate) name: HubName,
    /// The model whose manifest names the files.
    pub(crate) model: Option<String>,
    /// Whether a manifest is written for files that none names.
    pub(crate) wants_manifest: bool,
    /// Whether the pull goes on without its caller.
    pub(crate) is_kept: bool,
}

impl Pulls {
    /// Pulls from this hub into the folder of manifests.
    pub(crate) fn new(
        hub: Hub,
        manifests: PathBuf,
        catalog: Arc<LiveCatalog>,
        auto: bool,
        draining: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self { hub, manifests, catalog, auto, draining, jobs: Mutex::default() })
    }

    /// Whether loads and requests start pulls.
    pub(crate) fn is_auto(&self) -> bool {
        self.auto
    }

    /// Every pull that runs, and the last ones that ended.
    pub(crate) fn all(&self) -> Vec<Arc<PullJob>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).all.iter().cloned().collect()
    }

    /// Starts a pull, or joins the one of the same name that runs.
    pub(crate) fn start(self: &Arc<Self>, order: PullOrder) -> Result<Arc<PullJob>, ApiError> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let job = match jobs.all.iter().find(|job| job.name == order.name && job.is_running()) {
            Some(job) => Arc::clone(job),
            None => {
                jobs.last = jobs.last.saturating_add(1);
                let job = self.run(jobs.last, order.name, order.model)?;
                jobs.all.push_back(Arc::clone(&job));
                while jobs.all.len() > ENDED {
                    let Some(oldest) = jobs.all.iter().position(|job| !job.is_running()) else { break };
                    jobs.all.remove(oldest);
                }
                job
            }
        };
        job.wants_manifest.fetch_or(order.wants_manifest, Ordering::AcqRel);
        job.is_kept.fetch_or(order.is_kept, Ordering::AcqRel);
        Ok(job)
    }

    fn run(self: &Arc<Self>, id: u64, name: HubName, model: Option<String>) -> Result<Arc<PullJob>, ApiError> {
        let running = self.hub.start(name.clone()).map_err(of_hub)?;
        let (sender, end) = watch::channel(None);
        let cancel = running.cancel();
        let job = Arc::new(PullJob::new(id, (name, model), running.progress(), end, cancel.clone()));
        tracing::info!(source = %job.name, "pull");
        let (pulls, ended) = (Arc::clone(self), Arc::clone(&job));
        tokio::spawn(async move {
            let done = running.done();
            tokio::pin!(done);
            let pulled = tokio::select! {
                pulled = &mut done => pulled,
                () = pulls.draining.cancelled() => {
                    cancel.cancel();
                    done.await
                }
            };
            let result = pulls.finished(&ended, pulled).await;
            match &result {
                Ok(result) => tracing::info!(source = %ended.name, bytes = %result.downloaded, "pulled"),
                Err(error) => tracing::warn!(source = %ended.name, "pull failed: {error}"),
            }
            // The job itself keeps a reader.
            let _ = sender.send(Some(result));
        });
        Ok(job)
    }

    /// Writes the manifest that a caller wants, and has the catalog read the files.
    async fn finished(
        self: &Arc<Self>,
        job: &Arc<PullJob>,
        pulled: Result<Pulled, HubError>,
    ) -> Result<PullResult, ApiError> {
        let pulled = pulled.map_err(of_hub)?;
        let (pulls, job) = (Arc::clone(self), Arc::clone(job));
        let finish = move || {
            let mut model = job.model.clone();
            if model.is_none() && job.wants_manifest.load(Ordering::Acquire) {
                let written = write_manifest(&pulls.manifests, &job.name, None, &pulled.source)
                    .map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))?;
                model = Some(written.name);
            }
            pulls.catalog.read_now();
            let Pulled { commit, path, bytes, downloaded, linked, .. } = pulled;
            Ok(PullResult { model, path: path.display().to_string(), commit, bytes, downloaded, linked })
        };
        let lost = |_| ApiError::new(ErrorCode::Internal, "the manifest could not be written");
        spawn_blocking(finish).await.map_err(lost)?
    }

    /// Ends a pull. What came is kept for the next one.
    pub(crate) fn cancel(&self, id: u64) -> Option<Arc<PullJob>> {
        let job = self.all().into_iter().find(|job| job.id == id)?;
        job.cancel.cancel();
        Some(job)
    }

    /// Checks that a model can be loaded: its files are there, or the fake worker needs none. Otherwise its pull is
    /// started if `auto_pull` says so, and the error says what to do.
    pub(crate) fn admit(self: &Arc<Self>, model: &Model) -> Result<(), ApiError> {
        if !model.is_absent || self.catalog.backend(model) == Backend::Fake {
            return Ok(());
        }
        let Some(name) = model.hub_name() else { return Ok(()) };
        let id = model.description.id.as_str();
        let known = self.all().into_iter().rev().find(|job| job.name == name);
        let job = match known {
            Some(job) if job.is_running() => job,
            Some(job) if self.auto && job.began.elapsed().is_ok_and(|passed| passed < FAILED_FOR) => {
                // The files may have gone since a pull that succeeded.
                match job.end.borrow().clone() {
                    Some(Err(error)) => return Err(error.with_param("model")),
                    _ => self.start_for(model, name)?,
                }
            }
            _ if self.auto => self.start_for(model, name)?,
            _ => {
                let message = format!(
                    "the files of model '{id}' were not downloaded ({name}); `model-boss pull {id}` fetches them, or set \
                     auto_pull = true"
                );
                return Err(ApiError::new(ErrorCode::ModelNotDownloaded, message).with_param("model"));
            }
        };
        let progress = job.progress.borrow().clone();
        let message = format!("model '{id}' is being downloaded: {} %", progress.percent());
        Err(ApiError::new(ErrorCode::ModelPulling, message).with_param("model").retry_after(wait(&progress)))
    }

    fn start_for(self: &Arc<Self>, model: &Model, name: HubName) -> Result<Arc<PullJob>, ApiError> {
        let model = Some(model.description.id.to_string());
        self.start(PullOrder { name, model, wants_manifest: false, is_kept: true })
    }
}

/// The time until the rest of the bytes may have come.
fn wait(progress: &PullProgress) -> Duration {
    let left = progress.total.saturating_sub(progress.completed) as f64;
    let seconds = if progress.rate > 0.0 { (left / progress.rate).ceil() } else { 0.0 };
    Duration::from_secs((seconds as u64).clamp(SHORTEST_WAIT, LONGEST_WAIT))
}
