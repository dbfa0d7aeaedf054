//! The handle of all jobs: orders are accepted, shown, cancelled and deleted here.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use axum::Router;
use model_boss_config::JobSettings;
use model_boss_host::state_folder::StateFolder;
use model_boss_jobs::{
    DraftFile, HookTarget, HookUrlError, JobEvent, JobFolder, JobId, JobOrder, JobRecord, JobRules, JobState, JobStep,
    JobStoreError, KeptKind, RecordStore, TableEntry, TableLimits, WebhookRules, WebhookSecret,
};
use model_boss_protocol::{ApiError, ByteCount, ErrorCode};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::book::{FileFigures, JOB, JobBook, JobFigures, delete, put_job};
use super::inner::may_see;
use super::journal::JobJournal;
use super::wall::now;
use crate::keys::{LiveKeys, RequestSender};
use crate::refusals::of_job_disk;
use crate::scheduling::Scheduling;

/// The pause before a record that could not be kept is written again.
const KEEP_AGAIN: Duration = Duration::from_millis(500);
/// The longest time that a request waits for the store.
const OPENS_IN: Duration = Duration::from_secs(5);
/// The time after which a client may ask again while the store cannot be used.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// A listener to changes: the kind of object, and its present view.
pub(crate) type ChangeListener = Box<dyn Fn(&'static str, Value) + Send + Sync>;

/// Opens the store of records of the folder with this name. The error says why it cannot be.
pub(crate) type StoreOpener = Box<dyn Fn(&str) -> Result<Box<dyn RecordStore>, String> + Send>;

/// The parts that jobs are made of.
pub(crate) struct JobsSetup {
    pub(crate) settings: JobSettings,
    pub(crate) state: StateFolder,
    /// Opens the store of records of the folder with this name.
    pub(crate) open_store: StoreOpener,
    pub(crate) keys: Arc<LiveKeys>,
    pub(crate) scheduling: Scheduling,
    pub(crate) on_change: ChangeListener,
    pub(crate) draining: CancellationToken,
}

/// Whether the store can be used.
#[derive(Clone, Debug)]
pub(super) enum StoreGate {
    /// It is being opened.
    Opening(String),
    /// It can be used.
    Open,
    /// It cannot be used until somebody acts.
    Shut(String),
}

/// All jobs, files and batches.
pub(crate) struct Jobs {
    pub(super) settings: JobSettings,
    pub(super) state: StateFolder,
    pub(super) folder: JobFolder,
    pub(super) journal: JobJournal,
    pub(super) book: Mutex<JobBook>,
    /// The number of changes so far, for those who wait for one.
    pub(super) revision: watch::Sender<u64>,
    /// Tells the runner that there may be something to take up.
    pub(super) wake: Notify,
    /// Tells the task of batches the same.
    pub(super) wake_batches: Notify,
    pub(super) gate: watch::Sender<StoreGate>,
    pub(super) router: OnceLock<Router>,
    pub(super) keys: Arc<LiveKeys>,
    pub(super) scheduling: Scheduling,
    pub(super) on_change: ChangeListener,
    pub(super) draining: CancellationToken,
    pub(super) webhooks: WebhookRules,
    pub(super) secret: OnceLock<WebhookSecret>,
    /// Held while an order with an idempotency key is accepted.
    pub(super) accepting: tokio::sync::Mutex<()>,
    /// Held while records end, so that each job has one end.
    pub(super) ending: tokio::sync::Mutex<HashSet<JobId>>,
}

impl Jobs {
    /// The handle. Jobs are accepted once [`Self::serve`] has opened the store.
    pub(crate) fn new(setup: JobsSetup) -> io::Result<Arc<Self>> {
        let JobsSetup { settings, state, open_store, keys, scheduling, on_change, draining } = setup;
        let folder = JobFolder::at(&state.file("jobs"));
        let opened = folder.clone();
        // A disk that is full at the start takes the folder later.
        let open = move || {
            let name = opened.create().and_then(|()| opened.name());
            name.and_then(|name| open_store(&name).map_err(io::Error::other)).map_err(|source| JobStoreError::Io {
                act: "set up the folder",
                path: opened.beside(""),
                source,
            })
        };
        let webhooks = WebhookRules {
            hosts: settings.webhook_hosts.clone(),
            private_hosts: settings.webhook_private_hosts.clone(),
        };
        Ok(Arc::new(Self {
            settings,
            state,
            folder,
            journal: JobJournal::start(Box::new(open))?,
            book: Mutex::default(),
            revision: watch::Sender::new(0),
            wake: Notify::new(),
            wake_batches: Notify::new(),
            gate: watch::Sender::new(StoreGate::Opening("the jobs are being read".to_owned())),
            router: OnceLock::new(),
            keys,
            scheduling,
            on_change,
            draining,
            webhooks,
            secret: OnceLock::new(),
            accepting: tokio::sync::Mutex::default(),
            ending: tokio::sync::Mutex::default(),
        }))
    }

    pub(super) fn book(&self) -> MutexGuard<'_, JobBook> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn limits(&self) -> TableLimits {
        TableLimits { most: self.settings.open, in_flight: self.settings.in_flight, keep: self.settings.keep }
    }

    pub(super) fn rules(&self) -> JobRules {
        JobRules { max_crashes: u32::try_from(self.settings.crashes).unwrap_or(u32::MAX) }
    }

    /// The file of the secret that signs webhooks.
    pub(super) fn secret_file(&self) -> PathBuf {
        self.settings.webhook_secret_file.clone().unwrap_or_else(|| self.folder.beside("webhook-secret"))
    }

    /// Waits a moment for the store, which is read at the start.
    pub(crate) async fn opened(&self) {
        let mut gate = self.gate.subscribe();
        let open = gate.wait_for(|gate| !matches!(gate, StoreGate::Opening(_)));
        // A store that takes longer is reported by what follows.
        let _ = timeout(OPENS_IN, open).await;
    }

    /// Checks that the store can be used.
    pub(crate) fn ready(&self) -> Result<(), ApiError> {
        if self.draining.is_cancelled() {
            return Err(ApiError::new(ErrorCode::Draining, "the coordinator is shutting down").retry_after(ASK_AGAIN));
        }
        match &*self.gate.borrow() {
            StoreGate::Open => Ok(()),
            StoreGate::Opening(why) => {
                let message = format!("jobs cannot be used yet: {why}");
                Err(ApiError::new(ErrorCode::JobStoreUnavailable, message).retry_after(ASK_AGAIN))
            }
            StoreGate::Shut(why) => Err(ApiError::new(ErrorCode::JobStoreUnavailable, why.clone())),
        }
    }

    /// Why jobs cannot be used, if they cannot.
    pub(crate) fn trouble(&self) -> Option<String> {
        match &*self.gate.borrow() {
            StoreGate::Open => None,
            StoreGate::Opening(why) | StoreGate::Shut(why) => Some(why.clone()),
        }
    }

    /// The numbers for metrics.
    pub(crate) fn figures(&self) -> (JobFigures, FileFigures) {
        let book = self.book();
        (book.figures(), FileFigures { used: book.bytes(), limit: self.settings.storage.0 })
    }

    /// The size of the largest file.
    pub(crate) const fn file_size(&self) -> ByteCount {
        self.settings.file_size
    }

    /// Checks the URL of a webhook.
    pub(crate) fn admit_webhook(&self, url: &str) -> Result<HookTarget, HookUrlError> {
        self.webhooks.admit(url)
    }

    /// Checks that there is room for so many bytes more.
    pub(super) fn check_room(&self, book: &JobBook, bytes: u64) -> Result<(), ApiError> {
        let (used, most) = (book.bytes(), self.settings.storage.0);
        if used.saturating_add(bytes) <= most {
            return Ok(());
        }
        let message = format!(
            "bodies, results and files take {used} of {most} bytes (jobs.storage), and {bytes} more do not fit; delete jobs \
             or files, or wait until results expire"
        );
        Err(ApiError::new(ErrorCode::StorageFull, message))
    }

    /// Begins the file of a body.
    pub(crate) async fn draft(self: &Arc<Self>, kind: KeptKind, name: String) -> Result<DraftFile, ApiError> {
        let folder = self.folder.clone();
        on_disk(move || folder.draft(kind, &name)).await
    }

    /// Accepts an order whose body is in the draft. When this returns, the job survives the end of the process. An
    /// order with a known idempotency key gives the job of the first one.
    pub(crate) async fn accept(self: &Arc<Self>, order: JobOrder, body: DraftFile) -> Result<JobId, ApiError> {
        self.ready()?;
        // Two orders with one key are accepted one after the other.
        let _accepting = match order.idempotency_key {
            Some(_) => Some(self.accepting.lock().await),
            None => None,
        };
        {
            let book = self.book();
            if let Some(key) = &order.idempotency_key
                && let Some(known) = book.table.by_key(&order.owner.client, key)
            {
                return same_order(&known.record, &order).map(|()| known.record.id.clone());
            }
            if book.table.open() >= self.settings.open {
                let message = format!(
                    "{} jobs wait or run, and there may be no more (jobs.open); wait until some have ended",
                    book.table.open()
                );
                return Err(ApiError::new(ErrorCode::QueueFull, message).retry_after(ASK_AGAIN));
            }
            self.check_room(&book, order.body_bytes)?;
        }
        on_disk(move || body.finish()).await?;
        let record = JobRecord::accepted(order, now());
        let id = record.id.clone();
        let kept = self.journal.commit(vec![put_job(&record)], vec![delete(JOB, id.as_str())]).await;
        if let Err(error) = kept {
            self.remove_file(KeptKind::Body, id.as_str().to_owned());
            return Err(error);
        }
        self.book().table.insert(record);
        self.changed(&id);
        self.wake.notify_one();
        Ok(id)
    }

    /// A job that this sender may see.
    pub(crate) fn get(&self, sender: &RequestSender, id: &JobId) -> Result<TableEntry, ApiError> {
        self.ready()?;
        let found = self.book().table.get(id).filter(|entry| may_see(sender, &entry.record.owner)).cloned();
        found.ok_or_else(|| no_job(id))
    }

    /// Cancels a job that waits or runs; one that has ended is forgotten, with its result.
    pub(crate) async fn delete(self: &Arc<Self>, sender: &RequestSender, id: &JobId) -> Result<TableEntry, ApiError> {
        let entry = self.get(sender, id)?;
        if entry.record.has_ended() {
            self.forget(id).await?;
            return Ok(entry);
        }
        self.settle(id, JobEvent::Cancelled).await;
        self.get(sender, id)
    }

    /// Waits until a job's view changes beyond this revision, or the time is over.
    pub(crate) async fn changed_since(&self, id: &JobId, revision: u64, until: tokio::time::Instant) {
        let mut changes = self.revision.subscribe();
        let moved = || self.book().table.get(id).is_none_or(|entry| entry.revision > revision);
        let wait = async { while !moved() && changes.changed().await.is_ok() {} };
        tokio::select! {
            _ = timeout_at(until, wait) => {}
            () = self.draining.cancelled() => {}
        }
    }

    /// Applies an event, and keeps the record before anybody sees it. While the store fails, the write is repeated: an
    /// answer that has come is not lost.
    pub(super) async fn settle(self: &Arc<Self>, id: &JobId, event: JobEvent) {
        {
            let mut ending = self.ending.lock().await;
            if !ending.insert(id.clone()) {
                return;
            }
        }
        self.settle_alone(id, event).await;
        self.ending.lock().await.remove(id);
    }

    async fn settle_alone(self: &Arc<Self>, id: &JobId, event: JobEvent) {
        let Some(before) = self.book().table.get(id).map(|entry| entry.record.clone()) else { return };
        let mut record = before.clone();
        let step = record.apply(now(), event, self.rules());
        let is_kept = match step {
            JobStep::Nothing => return,
            JobStep::Ended => true,
            JobStep::Again { is_kept, .. } => is_kept,
        };
        while is_kept && let Err(error) = self.journal.commit(vec![put_job(&record)], vec![put_job(&before)]).await {
            self.state.trouble(&self.folder.beside("records"), error.message);
            tokio::select! {
                () = sleep(KEEP_AGAIN) => {}
                // The job is run again at the next start.
                () = self.draining.cancelled() => return,
            }
        }
        self.state.well(&self.folder.beside("records"));
        {
            let mut book = self.book();
            let ended = match record.state {
                JobState::Succeeded => Some(&mut book.ended.succeeded),
                JobState::Failed => Some(&mut book.ended.failed),
                JobState::Cancelled => Some(&mut book.ended.cancelled),
                JobState::Queued => None,
            };
            if let Some(ended) = ended {
                *ended = ended.saturating_add(1);
            }
            let has_ended = record.has_ended();
            book.table.update(record);
            match step {
                JobStep::Again { at, .. } => book.table.rest(id, at),
                JobStep::Ended | JobStep::Nothing => {}
            }
            if has_ended && let Some(run) = book.runs.remove(id) {
                run.cancel.cancel();
            }
        }
        self.changed(id);
        self.wake.notify_one();
    }

    /// Removes a job that has ended, its body and its result.
    pub(super) async fn forget(self: &Arc<Self>, id: &JobId) -> Result<(), ApiError> {
        let Some(record) = self.book().table.get(id).map(|entry| entry.record.clone()) else { return Ok(()) };
        self.journal.commit(vec![delete(JOB, id.as_str())], vec![put_job(&record)]).await?;
        self.book().table.remove(id);
        self.remove_file(KeptKind::Body, id.as_str().to_owned());
        self.remove_file(KeptKind::Result, id.as_str().to_owned());
        self.revision.send_modify(|revision| *revision = revision.wrapping_add(1));
        (self.on_change)("job", serde_json::json!({ "id": id, "gone": true }));
        Ok(())
    }

    /// Removes a file soon. One that stays is removed at the next start.
    pub(super) fn remove_file(&self, kind: KeptKind, name: String) {
        let folder = self.folder.clone();
        drop(spawn_blocking(move || folder.remove(kind, &name)));
    }

    /// Tells everybody of a change of a job.
    pub(super) fn changed(&self, id: &JobId) {
        let view = {
            let mut book = self.book();
            book.table.touch(id);
            book.table.get(id).map(|entry| super::view::JobObject::of(entry, book.runs.get(id), None))
        };
        self.revision.send_modify(|revision| *revision = revision.wrapping_add(1));
        if let Some(view) = view {
            (self.on_change)("job", serde_json::json!(view));
        }
    }
}

/// The error for a job that the sender may not see.
pub(crate) fn no_job(id: &JobId) -> ApiError {
    let shown: String = id.as_str().chars().take(80).collect();
    let message =
        format!("there is no job '{shown}', or it was kept long enough (jobs.keep); GET /api/v1/jobs lists them");
    ApiError::new(ErrorCode::JobNotFound, message)
}

fn same_order(known: &JobRecord, order: &JobOrder) -> Result<(), ApiError> {
    if known.body_digest == order.body_digest
        && (&known.endpoint, known.priority) == (&order.endpoint, order.priority)
        && known.webhook.as_ref().map(|hook| &hook.target) == order.webhook.as_ref()
    {
        return Ok(());
    }
    let message = format!("this Idempotency-Key was used for {}, whose order is another one; use a new key", known.id);
    Err(ApiError::new(ErrorCode::IdempotencyMismatch, message).with_param("Idempotency-Key"))
}

/// Does work with files on a thread of its own.
pub(super) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, ApiError> {
    match spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| of_job_disk(&error)),
        Err(_) => Err(model_boss_http::error::panic_error()),
    }
}
