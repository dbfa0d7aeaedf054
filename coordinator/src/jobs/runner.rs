//! The task that takes jobs up, and the tasks that answer one each by the coordinator's own routes.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use model_boss_jobs::{JobError, JobEvent, JobId, JobRecord, KeptKind};
use model_boss_protocol::ApiError;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::answer_file::{AnswerMeter, JobAnswer, keep_answer};
use super::book::JobRun;
use super::desk::{Jobs, on_disk};
use super::file_body::FileBody;
use super::inner::{InnerRequest, send};
use super::wall::now;
use crate::scheduling::{BackgroundRun, RunStage};

/// The longest time between two looks at the jobs that rest and at deadlines.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// The longest deadline that a request may state.
const LONGEST_BUDGET: Duration = Duration::from_secs(6 * 86_400);
/// The name of the header with a request's deadline.
const BUDGET: &str = "x-budget-s";
/// The names of headers with a request's priority and its client.
const PRIORITY: &str = "x-priority";
const CLIENT: &str = "x-client-id";

impl Jobs {
    /// Takes jobs up until the coordinator drains. Then those that run are let go, and wait for the next start.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            let due = {
                let at = now();
                let late = self.book().table.late(at);
                for id in late {
                    self.settle(&id, JobEvent::Tick).await;
                }
                loop {
                    let mut book = self.book();
                    let Some(id) = book.table.take_next(at, self.limits()) else { break };
                    let (run, job) = begin();
                    book.runs.insert(id.clone(), job.clone());
                    drop(book);
                    tokio::spawn(Arc::clone(&self).answer(id, run, job));
                }
                self.book().table.next_due().map_or(LOOK_EVERY, |due| due.since(at).min(LOOK_EVERY))
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep(due) => {}
                () = self.draining.cancelled() => break,
            }
        }
        for run in self.book().runs.values() {
            run.cancel.cancel();
        }
    }

    /// Answers one job, and settles what comes of it.
    async fn answer(self: Arc<Self>, id: JobId, run: Arc<BackgroundRun>, job: JobRun) {
        let Some((record, tries)) = self.book().table.get(&id).map(|entry| (entry.record.clone(), entry.tries)) else {
            return;
        };
        let following = tokio::spawn(Arc::clone(&self).follow(id.clone(), job.clone()));
        let answered = tokio::select! {
            biased;
            () = job.cancel.cancelled() => None,
            event = run.scope(Box::pin(self.ask(&record, tries, &job))) => Some(event),
        };
        following.abort();
        if let Some(event) = answered {
            self.settle(&id, event).await;
        }
        self.book().runs.remove(&id);
        self.wake.notify_one();
    }

    /// Sends the job's request, and writes its answer to the result's file.
    async fn ask(&self, record: &JobRecord, tries: u32, job: &JobRun) -> JobEvent {
        let refused = |error: ApiError| JobEvent::Refused {
            again: error.retry_after,
            error: of_api(error),
            tries: tries.saturating_sub(1),
        };
        let sender = match self.keys.sender_of(&record.owner) {
            Ok(sender) => sender,
            Err(error) => {
                return JobEvent::Disowned(of_api(error));
            }
        };
        let (folder, name) = (self.folder.clone(), record.id.as_str().to_owned());
        let opened = on_disk(move || {
            let file = folder.read(KeptKind::Body, &name)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        });
        let body = match opened.await {
            Ok((file, bytes)) if bytes == record.body_bytes => Body::new(FileBody::new(file, 0, bytes)),
            Ok((_, bytes)) => {
                let message = format!("the job's body has {bytes} bytes on disk and should have {}", record.body_bytes);
                return refused(ApiError::new(model_boss_protocol::ErrorCode::Internal, message));
            }
            Err(error) => return refused(error),
        };
        let inner = InnerRequest {
            id: record.id.to_string(),
            endpoint: record.endpoint.clone(),
            content_type: record.content_type.clone(),
            headers: headers_of(record),
            body,
            sender,
        };
        let Some(router) = self.router.get().cloned() else { return JobEvent::Tick };
        let response = match send(router, inner).await {
            Ok(response) => response,
            Err(error) => return refused(error),
        };
        match keep_answer(&self.folder, record.id.as_str(), response, &job.meter).await {
            JobAnswer::Kept(answer) => JobEvent::Answered(answer),
            JobAnswer::Error { error, again } => JobEvent::Refused { error, again, tries: tries.saturating_sub(1) },
            JobAnswer::Disk(error) => refused(crate::refusals::of_job_disk(&error)),
        }
    }

    /// Tells of the stages of a job's request.
    async fn follow(self: Arc<Self>, id: JobId, job: JobRun) {
        let mut stages = job.stages;
        while stages.changed().await.is_ok() {
            let is_told = matches!(&*stages.borrow_and_update(), RunStage::Queued(_) | RunStage::Answering { .. });
            if is_told {
                self.changed(&id);
            }
        }
    }
}

fn of_api(error: ApiError) -> JobError {
    let (status, code) = (error.status(), error.code.as_str().to_owned());
    JobError { status, code, message: error.message, param: error.param }
}

fn begin() -> (Arc<BackgroundRun>, JobRun) {
    let run = BackgroundRun::new(None);
    let job =
        JobRun { cancel: CancellationToken::new(), stages: run.stages(), meter: Arc::new(AnswerMeter::default()) };
    (run, job)
}

/// The headers of a job's request: those of the order, and what it says in fields of its own.
fn headers_of(record: &JobRecord) -> Vec<(String, String)> {
    let mut headers = record.headers.clone();
    if let Some(priority) = record.priority {
        headers.insert(PRIORITY.to_owned(), priority.to_string());
    }
    if let Some(deadline) = record.deadline {
        let left = deadline.since(now()).clamp(Duration::from_millis(1), LONGEST_BUDGET);
        headers.insert(BUDGET.to_owned(), format!("{:.3}", left.as_secs_f64()));
    }
    headers.entry(CLIENT.to_owned()).or_insert_with(|| record.owner.client.clone());
    headers.into_iter().filter(|(name, value)| name != CLIENT || value != model_boss_http::peek::ANONYMOUS).collect()
}
