//! A job as the API shows it.

use std::sync::atomic::Ordering;

use model_boss_core::{Moment, Scheduler, WaitReason};
use model_boss_jobs::{JobState, TableEntry, WebhookState, kind_of_endpoint};
use model_boss_protocol::{Priority, RequestId, WorkProgress, WorkUnit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::book::JobRun;
use crate::scheduling::RunStage;

/// The state of a job as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobStatus {
    /// It waits.
    Queued,
    /// A model works on it.
    Running,
    /// There is a result.
    Succeeded,
    /// There is an error.
    Failed,
    /// It was cancelled.
    Cancelled,
}

/// A job.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct JobObject {
    /// The name, for later requests.
    id: String,
    /// Always `job`.
    object: &'static str,
    /// The kind of request, or its route.
    kind: String,
    /// The route that answers it.
    endpoint: String,
    state: JobStatus,
    /// The client that submitted it.
    client: String,
    /// Its priority, where the order has one.
    priority: Option<Priority>,
    /// The time of its acceptance, in seconds since 1970.
    created: f64,
    /// The time of its end.
    ended: Option<f64>,
    /// The time from which its answer is useless.
    deadline: Option<f64>,
    /// The time until which it is kept.
    expires: Option<f64>,
    /// The requests for it since the coordinator started.
    tries: u32,
    /// The place of a job that waits.
    queue: Option<JobPlace>,
    /// How far a job that runs has come.
    progress: Option<JobProgress>,
    /// The result of a job that succeeded.
    result: Option<JobResult>,
    /// The error of a job that failed.
    error: Option<JobFault>,
    webhook: Option<JobHook>,
}

/// The place of a job that waits.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct JobPlace {
    /// The jobs that are taken up before it; absent once its request is in the queue.
    jobs_before: Option<usize>,
    /// Its place in the queue of requests, from 1.
    position: Option<usize>,
    /// The reason, as `GET /api/v1/queue` has it, or `jobs` or `retry`.
    reason: &'static str,
    /// The reason for people.
    message: String,
    /// The time before which it is not tried again.
    tried_again: Option<f64>,
}

/// How far a job has come.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct JobProgress {
    /// The model that answers.
    model: Option<String>,
    /// The tokens of the answer so far, where it has any. In a stream these are its pieces, mostly one for each token.
    tokens: u64,
    /// The bytes of the answer that have come. An answer that is not streamed comes at its end.
    bytes: u64,
    /// The work that is done, in its unit; `null` for a stream, and where the engine does not tell.
    done: Option<u64>,
    /// The whole work, where it is known before the end.
    total: Option<u64>,
    /// `tokens`, `items` (texts, images or documents), `seconds` of sound, or `steps` of a picture.
    unit: Option<&'static str>,
    /// The latest text of the answer, at most 200 characters.
    preview: Option<String>,
}

/// The result of a job.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct JobResult {
    /// The HTTP status.
    status: u16,
    content_type: String,
    bytes: u64,
    /// The model that answered.
    model: Option<String>,
    /// The path of the body.
    url: String,
}

/// The error of a job.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct JobFault {
    /// The HTTP status that the request would have had.
    status: u16,
    code: String,
    message: String,
    /// The field of the request, where the fault is one's.
    param: Option<String>,
}

/// A webhook and its delivery.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct JobHook {
    url: String,
    /// `waiting`, `pending`, `delivered` or `failed`.
    state: String,
    tries: u32,
    /// Why the last try failed.
    problem: Option<String>,
}

/// A page of jobs.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ListedJobs {
    /// Always `list`.
    pub(crate) object: &'static str,
    pub(crate) data: Vec<JobObject>,
    pub(crate) first_id: Option<String>,
    pub(crate) last_id: Option<String>,
    pub(crate) has_more: bool,
}

impl JobObject {
    /// The view of a job. `before` is the number of jobs that are taken up before it.
    pub(super) fn of(entry: &TableEntry, run: Option<&JobRun>, before: Option<usize>) -> Self {
        let record = &entry.record;
        let stage = run.map(|run| run.stages.borrow().clone());
        let state = match (record.state, &stage) {
            (JobState::Queued, Some(RunStage::Answering { .. })) => JobStatus::Running,
            (JobState::Queued, _) => JobStatus::Queued,
            (JobState::Succeeded, _) => JobStatus::Succeeded,
            (JobState::Failed, _) => JobStatus::Failed,
            (JobState::Cancelled, _) => JobStatus::Cancelled,
        };
        let progress = run.filter(|_| state == JobStatus::Running).map(|run| JobProgress {
            model: match &stage {
                Some(RunStage::Answering { model, .. }) => Some(model.clone()),
                _ => None,
            },
            tokens: run.meter.events.load(Ordering::Relaxed),
            bytes: run.meter.bytes.load(Ordering::Relaxed),
            done: None,
            total: None,
            unit: None,
            preview: run.meter.preview(),
        });
        Self {
            id: record.id.to_string(),
            object: "job",
            kind: kind_of_endpoint(&record.endpoint).to_owned(),
            endpoint: record.endpoint.clone(),
            state,
            client: record.owner.client.clone(),
            priority: record.priority,
            created: record.created.seconds(),
            ended: record.ended.map(|at| at.seconds()),
            deadline: record.deadline.map(|at| at.seconds()),
            expires: None,
            tries: entry.tries,
            queue: (state == JobStatus::Queued).then(|| place(entry, stage.as_ref(), before)),
            progress,
            result: record.answer.as_ref().map(|answer| JobResult {
                status: answer.status,
                content_type: answer.content_type.clone(),
                bytes: answer.bytes,
                model: answer.model.clone(),
                url: format!("/api/v1/jobs/{}/result", record.id),
            }),
            error: record.error.as_ref().map(|error| JobFault {
                status: error.status,
                code: error.code.clone(),
                message: error.message.clone(),
                param: error.param.clone(),
            }),
            webhook: record.webhook.as_ref().map(hook),
        }
    }

    /// The same view with the time until which it is kept.
    pub(crate) fn kept_for(mut self, keep: std::time::Duration) -> Self {
        self.expires = self.ended.map(|ended| ended + keep.as_secs_f64());
        self
    }

    /// The same view with the reason for which its request waits in the scheduler's queue.
    pub(crate) fn waiting(mut self, why: Option<QueueReason>) -> Self {
        if let (Some(queue), Some(why)) = (&mut self.queue, why) {
            (queue.reason, queue.message, queue.position) = (why.word, why.message, why.position);
        }
        self
    }

    /// The same view with the progress that its worker tells.
    pub(crate) fn worked(mut self, worked: Option<WorkProgress>) -> Self {
        if let (Some(progress), Some(WorkProgress { unit, done, total, text })) = (&mut self.progress, worked) {
            (progress.done, progress.total, progress.unit) = (Some(done), total, Some(word(unit)));
            if unit == WorkUnit::Tokens {
                progress.tokens = done;
            }
            progress.preview = progress.preview.take().or(Some(text).filter(|text| !text.is_empty()));
        }
        self
    }

    /// The name.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The state.
    pub(crate) const fn state(&self) -> JobStatus {
        self.state
    }

    /// Whether the job has ended.
    pub(crate) const fn has_ended(&self) -> bool {
        matches!(self.state, JobStatus::Succeeded | JobStatus::Failed | JobStatus::Cancelled)
    }
}

fn place(entry: &TableEntry, stage: Option<&RunStage>, before: Option<usize>) -> JobPlace {
    let (reason, message) = match (stage, entry.rests_until) {
        (Some(_), _) => ("queued", "its request is in the queue".to_owned()),
        (None, Some(_)) => ("retry", "its last request was refused for now, and is repeated".to_owned()),
        (None, None) => ("jobs", "other jobs are taken up before it".to_owned()),
    };
    let jobs_before = if stage.is_none() { before } else { None };
    let tried_again = entry.rests_until.map(|at| at.seconds());
    JobPlace { jobs_before, position: None, reason, message, tried_again }
}

const fn word(unit: WorkUnit) -> &'static str {
    match unit {
        WorkUnit::Tokens => "tokens",
        WorkUnit::Items => "items",
        WorkUnit::Seconds => "seconds",
        WorkUnit::Steps => "steps",
    }
}

fn hook(hook: &WebhookState) -> JobHook {
    let state = serde_json::to_value(hook.state).ok().and_then(|state| state.as_str().map(str::to_owned));
    JobHook {
        url: hook.target.url.clone(),
        state: state.unwrap_or_default(),
        tries: hook.tries,
        problem: hook.problem.clone(),
    }
}

/// The reason for which a request waits in the scheduler's queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueReason {
    word: &'static str,
    message: String,
    position: Option<usize>,
}

impl QueueReason {
    /// The reason for which this request waits now; `None` when it does not.
    pub(super) fn of(scheduler: &Scheduler, now: Moment, request: RequestId) -> Option<Self> {
        let why: WaitReason = scheduler.why(request)?;
        let place = scheduler.queue(now, 0..MOST_PLACES).into_iter().find(|queued| queued.id == request);
        Some(Self { word: why.word(), message: why.to_string(), position: place.map(|queued| queued.position) })
    }
}

/// The places of the queue among which a job's is looked for.
const MOST_PLACES: usize = 200;
