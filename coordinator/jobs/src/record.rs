//! A job and its states. Only an accepted job and its end are kept: whether it runs at present is known to the process
//! that runs it, so a job whose process died waits again without a write.

use std::collections::BTreeMap;
use std::time::Duration;

use model_boss_protocol::Priority;
use serde::{Deserialize, Serialize};

use crate::ids::JobId;
use crate::time::WallTime;
use crate::webhook::{HookTarget, WebhookState};

/// The first pause before a job is tried again; it doubles with each try.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, unless the answer names another.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The longest pause that an answer may name: a day, as limits of a day do.
const LONGEST_NAMED: Duration = Duration::from_secs(86_400);

/// The sender of a job, by which it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SenderKind {
    /// Any program of this machine, while no keys are in use.
    Anyone,
    /// The user who runs the coordinator.
    Owner,
    /// The holder of a key without a name.
    Unnamed,
    /// A client, by its key.
    Client,
}

/// The owner of a job, a file or a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOwner {
    /// The kind of sender.
    pub kind: SenderKind,
    /// The client that it is, or that it named.
    pub client: String,
    /// The name of the key, where it is a client's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl JobOwner {
    /// Whether the client with this key may see what belongs to the owner.
    pub fn is_seen_by(&self, key: &str) -> bool {
        self.key.as_deref() == Some(key) || (self.kind == SenderKind::Client && self.client == key)
    }
}

/// The state of a job as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// The job waits or runs.
    Queued,
    /// There is a result.
    Succeeded,
    /// There is an error in place of a result.
    Failed,
    /// The job was cancelled before it had a result.
    Cancelled,
}

/// A wish for a job, checked and with its body stored.
#[derive(Clone, Debug, PartialEq)]
pub struct JobOrder {
    /// The name.
    pub id: JobId,
    /// The sender.
    pub owner: JobOwner,
    /// The path of the route that answers it.
    pub endpoint: String,
    /// The content type of its body.
    pub content_type: String,
    /// The bytes of its body.
    pub body_bytes: u64,
    /// The digest of its body, so that a repeated order is told from another one.
    pub body_digest: String,
    /// The model that is asked first, as far as the body tells.
    pub model: Option<String>,
    /// Headers that set model-boss's own fields of a request.
    pub headers: BTreeMap<String, String>,
    /// The priority, where the order has one.
    pub priority: Option<Priority>,
    /// The time from which the answer is useless.
    pub deadline: Option<WallTime>,
    /// The name that the client gave the order, so that it may be sent twice.
    pub idempotency_key: Option<String>,
    /// The webhook that gets the end.
    pub webhook: Option<HookTarget>,
}

/// The facts about an answer whose body is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The content type.
    pub content_type: String,
    /// The bytes of the body.
    pub bytes: u64,
    /// The model that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// An error in place of a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobError {
    /// The HTTP status that the request would have had.
    pub status: u16,
    /// The code, for programs.
    pub code: String,
    /// The fault and its remedy.
    pub message: String,
    /// The field of the request, where the fault is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
}

/// A job as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The name.
    pub id: JobId,
    /// The sender.
    pub owner: JobOwner,
    /// The path of the route that answers it.
    pub endpoint: String,
    /// The content type of its body.
    pub content_type: String,
    /// The bytes of its body.
    pub body_bytes: u64,
    /// The digest of its body.
    pub body_digest: String,
    /// The model that is asked first, as far as the body tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Headers that set model-boss's own fields of a request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The priority, where the order has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// The time from which the answer is useless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<WallTime>,
    /// The client's own name of the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// The webhook, and how far its delivery came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookState>,
    /// The time at which the job was accepted.
    pub created: WallTime,
    /// The state.
    pub state: JobState,
    /// The times that a worker died under this job.
    #[serde(default)]
    pub crashes: u32,
    /// The time of the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<WallTime>,
    /// The result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<KeptAnswer>,
    /// The error in place of a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
}

/// The limits by which a job's next state is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobRules {
    /// The times that a worker may die under one job.
    pub max_crashes: u32,
}

/// An event of a job that waits or runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEvent {
    /// The answer is a success, and its body is kept.
    Answered(KeptAnswer),
    /// The answer is an error. `again` is the time after which a repetition makes sense, where the answer names it;
    /// `tries` is the number of tries so far.
    Refused {
        /// The error.
        error: JobError,
        /// The time that the answer names in `Retry-After`.
        again: Option<Duration>,
        /// The tries before this one.
        tries: u32,
    },
    /// The sender may send no requests any more.
    Disowned(JobError),
    /// The sender cancelled the job.
    Cancelled,
    /// Time has passed.
    Tick,
}

/// The consequence of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobStep {
    /// The job is as it was.
    Nothing,
    /// The job has ended.
    Ended,
    /// The job waits, and is not tried before this time. `is_kept`: the record has changed.
    Again {
        /// The earliest time of the next try.
        at: WallTime,
        /// Whether the record has changed.
        is_kept: bool,
    },
}

impl JobRecord {
    /// A job that was just accepted.
    pub fn accepted(order: JobOrder, now: WallTime) -> Self {
        let JobOrder {
            id,
            owner,
            endpoint,
            content_type,
            body_bytes,
            body_digest,
            model,
            headers,
            priority,
            deadline,
            idempotency_key,
            webhook,
        } = order;
        Self {
            id,
            owner,
            endpoint,
            content_type,
            body_bytes,
            body_digest,
            model,
            headers,
            priority,
            deadline,
            idempotency_key,
            webhook: webhook.map(WebhookState::waiting),
            created: now,
            state: JobState::Queued,
            crashes: 0,
            ended: None,
            answer: None,
            error: None,
        }
    }

    /// Whether the job has ended.
    pub const fn has_ended(&self) -> bool {
        !matches!(self.state, JobState::Queued)
    }

    /// The priority by which jobs are taken up.
    pub fn rank(&self) -> Priority {
        self.priority.unwrap_or_default()
    }

    /// The bytes on disk that belong to the job.
    pub fn bytes(&self) -> u64 {
        self.body_bytes.saturating_add(self.answer.as_ref().map_or(0, |answer| answer.bytes))
    }

    /// Applies an event. An ended job takes none: there is exactly one result.
    pub fn apply(&mut self, now: WallTime, event: JobEvent, rules: JobRules) -> JobStep {
        if self.has_ended() {
            return JobStep::Nothing;
        }
        let is_late = self.deadline.is_some_and(|deadline| deadline <= now);
        match event {
            JobEvent::Answered(answer) => {
                self.answer = Some(answer);
                self.end(JobState::Succeeded, now)
            }
            JobEvent::Cancelled => self.end(JobState::Cancelled, now),
            JobEvent::Disowned(error) => self.fail(error, now),
            JobEvent::Tick if is_late => self.fail(late(), now),
            JobEvent::Tick => JobStep::Nothing,
            JobEvent::Refused { .. } if is_late => self.fail(late(), now),
            JobEvent::Refused { error, again, tries } => match fate(&error) {
                RefusalFate::Final => self.fail(error, now),
                RefusalFate::Crash => {
                    self.crashes = self.crashes.saturating_add(1);
                    if self.crashes > rules.max_crashes {
                        return self.fail(error, now);
                    }
                    JobStep::Again { at: now.after(pause(again, self.crashes)), is_kept: true }
                }
                RefusalFate::Wait => JobStep::Again { at: now.after(pause(again, tries)), is_kept: false },
            },
        }
    }

    fn fail(&mut self, error: JobError, now: WallTime) -> JobStep {
        self.error = Some(error);
        self.end(JobState::Failed, now)
    }

    fn end(&mut self, state: JobState, now: WallTime) -> JobStep {
        self.state = state;
        self.ended = Some(now);
        if let Some(webhook) = &mut self.webhook {
            webhook.begin(now);
        }
        JobStep::Ended
    }
}

/// The meaning of an error for a job that can wait.
enum RefusalFate {
    /// The same request would fail again.
    Final,
    /// A worker died, perhaps by this request.
    Crash,
    /// There is no room now, or a limit is reached.
    Wait,
}

fn fate(error: &JobError) -> RefusalFate {
    match (error.status, error.code.as_str()) {
        (502, "worker_crashed" | "backend_error") => RefusalFate::Crash,
        (429 | 503, _) => RefusalFate::Wait,
        // The disk that takes the result is full; the request's own 507s mean that a model never fits.
        (507, "disk_full") => RefusalFate::Wait,
        _ => RefusalFate::Final,
    }
}

fn pause(named: Option<Duration>, tries: u32) -> Duration {
    match named {
        Some(named) => named.clamp(FIRST_PAUSE, LONGEST_NAMED),
        None => FIRST_PAUSE.saturating_mul(1 << tries.min(10)).min(LONGEST_PAUSE),
    }
}

fn late() -> JobError {
    let message = "the job's deadline has passed; submit it again with a later one";
    JobError { status: 504, code: "deadline_exceeded".to_owned(), message: message.to_owned(), param: None }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const RULES: JobRules = JobRules { max_crashes: 2 };
    const NOW: WallTime = WallTime(1_000_000);

    pub(crate) fn order(number: u64, client: &str) -> JobOrder {
        JobOrder {
            id: JobId::named(&format!("job-{number:04}")),
            owner: JobOwner { kind: SenderKind::Client, client: client.to_owned(), key: Some(client.to_owned()) },
            endpoint: "/v1/chat/completions".to_owned(),
            content_type: "application/json".to_owned(),
            body_bytes: 10,
            body_digest: "d".to_owned(),
            model: None,
            headers: BTreeMap::new(),
            priority: None,
            deadline: None,
            idempotency_key: None,
            webhook: None,
        }
    }

    fn error(status: u16, code: &str) -> JobError {
        JobError { status, code: code.to_owned(), message: "?".to_owned(), param: None }
    }

    fn refused(status: u16, code: &str, again: Option<u64>, tries: u32) -> JobEvent {
        JobEvent::Refused { error: error(status, code), again: again.map(Duration::from_secs), tries }
    }

    fn answer() -> KeptAnswer {
        KeptAnswer { status: 200, content_type: "application/json".to_owned(), bytes: 5, model: None }
    }

    #[test]
    fn rc_26_a_job_has_one_end_and_what_comes_later_changes_nothing() {
        let ends = [
            (JobEvent::Answered(answer()), JobState::Succeeded),
            (JobEvent::Cancelled, JobState::Cancelled),
            (JobEvent::Disowned(error(401, "invalid_api_key")), JobState::Failed),
            (refused(400, "invalid_request", None, 0), JobState::Failed),
            (refused(507, "model_never_fits", None, 0), JobState::Failed),
        ];
        for (first, state) in ends.clone() {
            let mut job = JobRecord::accepted(order(1, "a"), NOW);
            assert_eq!(job.apply(NOW, first, RULES), JobStep::Ended);
            assert_eq!((job.state, job.ended), (state, Some(NOW)));
            let kept = job.clone();
            for (later, _) in ends.clone() {
                assert_eq!(job.apply(NOW, later, RULES), JobStep::Nothing);
                assert_eq!(job, kept);
            }
        }
    }

    #[test]
    fn rc_26_what_may_pass_is_waited_for_and_a_job_that_kills_workers_ends() {
        let mut job = JobRecord::accepted(order(1, "a"), NOW);
        let before = job.clone();
        let again = |seconds| JobStep::Again { at: NOW.after(Duration::from_secs(seconds)), is_kept: false };
        assert_eq!(job.apply(NOW, refused(429, "queue_full", Some(7), 3), RULES), again(7));
        assert_eq!(job.apply(NOW, refused(503, "no_capacity", None, 0), RULES), again(1));
        assert_eq!(job.apply(NOW, refused(503, "no_capacity", None, 3), RULES), again(8));
        assert_eq!(job.apply(NOW, refused(503, "no_capacity", None, 60), RULES), again(60));
        assert_eq!(job.apply(NOW, refused(429, "client_limit", Some(9_000_000), 0), RULES), again(86_400));
        assert_eq!(job.apply(NOW, refused(507, "disk_full", None, 0), RULES), again(1));
        assert_eq!(job, before, "waiting changes no record");
        for _ in 0..2 {
            let step = job.apply(NOW, refused(502, "worker_crashed", None, 0), RULES);
            assert!(matches!(step, JobStep::Again { is_kept: true, .. }), "{step:?}");
        }
        assert_eq!(job.apply(NOW, refused(502, "worker_crashed", None, 0), RULES), JobStep::Ended);
        assert_eq!((job.state, job.crashes), (JobState::Failed, 3));
    }

    #[test]
    fn rc_26_a_deadline_ends_a_job_that_waits_and_not_one_that_has_an_answer() {
        let late = |event| {
            let mut job = JobRecord::accepted(order(1, "a"), NOW);
            job.deadline = Some(NOW.after(Duration::from_secs(5)));
            assert_eq!(job.apply(NOW, JobEvent::Tick, RULES), JobStep::Nothing);
            job.apply(NOW.after(Duration::from_secs(5)), event, RULES);
            (job.state, job.error.map(|error| error.code))
        };
        let over = (JobState::Failed, Some("deadline_exceeded".to_owned()));
        assert_eq!(late(JobEvent::Tick), over);
        assert_eq!(late(refused(503, "no_capacity", None, 0)), over);
        assert_eq!(late(JobEvent::Answered(answer())), (JobState::Succeeded, None));
    }
}
