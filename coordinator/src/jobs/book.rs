//! Everything that is known of jobs, files and batches, in memory. Records are in the store before they are here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use model_boss_jobs::{
    BatchCounts, BatchRecord, BatchState, JobCounts, JobId, JobRecord, JobTable, RecordChange, StoredUpload,
};
use model_boss_protocol::RequestId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::answer_file::AnswerMeter;
use crate::scheduling::RunStage;
use crate::worker::Worker;

/// The beginning of the names of records, by kind.
pub(super) const JOB: &str = "job/";
pub(super) const UPLOAD: &str = "file/";
pub(super) const BATCH: &str = "batch/";

/// All records, and what runs.
#[derive(Default)]
pub(super) struct JobBook {
    pub(super) table: JobTable,
    /// The requests of jobs that were taken up.
    pub(super) runs: HashMap<JobId, JobRun>,
    pub(super) uploads: BTreeMap<String, StoredUpload>,
    pub(super) batches: BTreeMap<String, BatchRecord>,
    /// The batches whose lines are being checked or answered.
    pub(super) batch_runs: HashMap<String, BatchRun>,
    /// Bytes that uploads and jobs in arrival have taken, and that no record counts yet.
    pub(super) arriving: u64,
    /// Jobs that have ended since the start, by state.
    pub(super) ended: JobCounts,
}

/// The request of a job.
#[derive(Clone)]
pub(super) struct JobRun {
    pub(super) cancel: CancellationToken,
    pub(super) stages: watch::Receiver<RunStage>,
    pub(super) meter: Arc<AnswerMeter>,
}

/// A batch that is worked on.
#[derive(Clone)]
pub(super) struct BatchRun {
    pub(super) cancel: CancellationToken,
    pub(super) counts: watch::Receiver<BatchCounts>,
}

/// The numbers of jobs, for metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JobFigures {
    /// Jobs that are kept, by state.
    pub(crate) kept: JobCounts,
    /// Jobs that a worker works on.
    pub(crate) running: usize,
    /// Jobs that have ended since the start.
    pub(crate) ended: JobCounts,
    /// Batches that have not ended.
    pub(crate) batches: usize,
    /// Lines of those batches that are not answered.
    pub(crate) lines_open: usize,
}

/// The disk that jobs and files take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FileFigures {
    /// The bytes in use.
    pub(crate) used: u64,
    /// The most bytes.
    pub(crate) limit: u64,
}

impl JobBook {
    /// The bytes of all bodies, results and files.
    pub(super) fn bytes(&self) -> u64 {
        let uploads = self.uploads.values().map(|upload| upload.bytes).fold(0, u64::saturating_add);
        self.table.bytes().saturating_add(uploads).saturating_add(self.arriving)
    }

    /// The number of a job's request in the scheduler's queue.
    pub(super) fn request_of(&self, id: &JobId) -> Option<RequestId> {
        match &*self.runs.get(id)?.stages.borrow() {
            RunStage::Reading => None,
            RunStage::Queued(request) | RunStage::Answering { request, .. } => Some(*request),
        }
    }

    /// The worker that answers a job's request.
    pub(super) fn worker_of(&self, id: &JobId) -> Option<Arc<Worker>> {
        match &*self.runs.get(id)?.stages.borrow() {
            RunStage::Answering { worker, .. } => worker.clone(),
            RunStage::Reading | RunStage::Queued(_) => None,
        }
    }

    /// The numbers for metrics.
    pub(super) fn figures(&self) -> JobFigures {
        let works = |run: &&JobRun| matches!(&*run.stages.borrow(), RunStage::Answering { .. });
        let open = |counts: BatchCounts| counts.total.saturating_sub(counts.completed).saturating_sub(counts.failed);
        JobFigures {
            kept: self.table.counts(),
            running: self.runs.values().filter(works).count(),
            ended: self.ended,
            batches: self.batches.values().filter(|batch| !batch.state.is_final()).count(),
            lines_open: self.batch_runs.values().map(|run| open(*run.counts.borrow())).sum(),
        }
    }

    /// The batch that still needs a file.
    pub(super) fn batch_that_needs(&self, file: &str) -> Option<&BatchRecord> {
        self.batches.values().find(|batch| batch.input_file == file && !batch.state.is_final())
    }

    /// The next batch to be worked on: the oldest of those that wait.
    pub(super) fn next_batch(&self) -> Option<String> {
        let waits = |batch: &&BatchRecord| !batch.state.is_final() && !self.batch_runs.contains_key(&batch.id);
        self.batches.values().find(waits).map(|batch| batch.id.clone())
    }
}

/// A record as the store has it.
pub(super) fn put_job(record: &JobRecord) -> RecordChange {
    put(JOB, record.id.as_str(), record)
}

/// A file's record as the store has it.
pub(super) fn put_upload(record: &StoredUpload) -> RecordChange {
    put(UPLOAD, &record.id, record)
}

/// A batch as the store has it.
pub(super) fn put_batch(record: &BatchRecord) -> RecordChange {
    put(BATCH, &record.id, record)
}

/// The removal of a record.
pub(super) fn delete(kind: &str, name: &str) -> RecordChange {
    RecordChange::Delete { name: format!("{kind}{name}") }
}

fn put(kind: &str, name: &str, record: &impl serde::Serialize) -> RecordChange {
    // Records are made of texts and numbers, which can always be written.
    let text = serde_json::to_string(record).unwrap_or_default();
    RecordChange::Put { name: format!("{kind}{name}"), text }
}

/// Whether lines of a batch are to be answered.
pub(super) const fn has_work(state: BatchState) -> bool {
    matches!(state, BatchState::Validating | BatchState::InProgress)
}
