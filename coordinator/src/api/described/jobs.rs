//! Jobs, files and batches.

use model_boss_openapi::{Operation, Tag};
use model_boss_protocol::ErrorCode;
use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::parameters::{by_a_client, with_own_headers};
use crate::api::jobs::{BatchBody, DeletedFile, FileForm, FileObject, JobBody, ListedBatches, ListedFiles};
use crate::jobs::{BatchObject, JobObject, ListedJobs};

const SEE: &[&str] = &["jobs.md"];
const EVENTS: &str = "text/event-stream";

/// Errors of everything that is kept.
const OF_THE_STORE: &[ErrorCode] = &[ErrorCode::JobStoreUnavailable, ErrorCode::DiskFull, ErrorCode::Draining];

/// A time that the answer may wait.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct WaitSpan(
    #[schemars(regex(pattern = r"^[0-9]{1,2}s$"))]
    #[allow(dead_code, reason = "it only describes")]
    String,
);

/// The order of a page.
#[derive(JsonSchema)]
#[schemars(inline, rename_all = "lowercase")]
#[allow(dead_code, reason = "the type only describes")]
enum ListOrder {
    Asc,
    Desc,
}

/// The most batches of a page, as OpenAI's API limits them.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct BatchLimit(
    #[schemars(range(min = 1, max = 100))]
    #[allow(dead_code, reason = "it only describes")]
    u64,
);

/// The most jobs of a page.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct JobLimit(
    #[schemars(range(min = 1, max = 1000))]
    #[allow(dead_code, reason = "it only describes")]
    u64,
);

/// The most files of a page, as OpenAI's API limits them.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct FileLimit(
    #[schemars(range(min = 1, max = 10_000))]
    #[allow(dead_code, reason = "it only describes")]
    u64,
);

/// A name of an order.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct IdempotencyName(
    #[schemars(regex(pattern = "^[!-~]{1,255}$"))]
    #[allow(dead_code, reason = "it only describes")]
    String,
);

const WAIT: &str = "How long the answer waits for the job's end, such as `30s`.";

fn operation(id: &'static str, text: &'static str) -> Operation {
    by_a_client(Operation::new(Tag::Jobs, id, text)).see(SEE).errors(OF_THE_STORE)
}

fn of_job(id: &'static str, text: &'static str) -> Operation {
    operation(id, text).id_of::<String>("The name of a job.").errors(&[ErrorCode::JobNotFound])
}

fn of_file(id: &'static str, text: &'static str) -> Operation {
    operation(id, text).id_of::<String>("The name of a file.").errors(&[ErrorCode::FileNotFound])
}

fn of_batch(id: &'static str, text: &'static str) -> Operation {
    operation(id, text).id_of::<String>("The name of a batch.").errors(&[ErrorCode::BatchNotFound])
}

fn paged<L: JsonSchema>(operation: Operation) -> Operation {
    operation
        .query::<String>("after", "The last item of the page before.")
        .query::<L>("limit", "The most items of the page; 20 by default.")
}

fn listed<L: JsonSchema>(operation: Operation) -> Operation {
    paged::<L>(operation).query::<ListOrder>("order", "The order by age: `desc`, the newest first, or `asc`.")
}

/// `POST /api/v1/jobs`.
pub(crate) fn submit_job() -> Operation {
    let text = "a request to a model is accepted, kept, and answered later";
    with_own_headers(Operation::new(Tag::Jobs, "submit_job", text))
        .see(SEE)
        .body::<JobBody>()
        .header::<IdempotencyName>("idempotency-key", "A name of the order, which may then be sent twice.")
        .query::<WaitSpan>("wait", WAIT)
        .answers::<JobObject>(202, "it is accepted")
        .leads_to("/id", &["get_job", "get_job_result", "delete_job"])
        .answers::<JobObject>(200, "it has ended within the wait")
        .errors(OF_THE_STORE)
        .errors(&[
            ErrorCode::ModelNotFound,
            ErrorCode::CloudNotAllowed,
            ErrorCode::InvalidDevice,
            ErrorCode::WebhookNotAllowed,
            ErrorCode::IdempotencyMismatch,
            ErrorCode::QueueFull,
            ErrorCode::StorageFull,
            ErrorCode::UnsupportedMediaType,
        ])
}

/// `GET /api/v1/jobs`.
pub(crate) fn jobs() -> Operation {
    paged::<JobLimit>(operation("list_jobs", "the jobs of the sender, the newest first; an operator sees all"))
        .query::<String>("state", "States with commas: `queued`, `running`, `succeeded`, `failed`, `cancelled`.")
        .query::<String>("kind", "The kind of job, such as `chat`.")
        .answers::<ListedJobs>(200, "a page of jobs")
}

/// `GET /api/v1/jobs/ID`, `/api/v1/jobs/ID/result` and `/api/v1/jobs/ID/events`.
pub(crate) fn job() -> [Operation; 3] {
    let shown = of_job("get_job", "a job: its state, its place in the queue, and how far it has come")
        .query::<WaitSpan>("wait", WAIT)
        .answers::<JobObject>(200, "the job");
    let text = "the body of a job's answer, also in part (`Range`), or the error in its place";
    let result = of_job("get_job_result", text)
        .behind_id("/result")
        .query::<WaitSpan>("wait", WAIT)
        .passes::<Map<String, Value>>("the body, in the content type of the answer")
        .errors(&[ErrorCode::JobNotFinished, ErrorCode::RequestCancelled, ErrorCode::RangeNotSatisfiable])
        .errors(super::errors::OF_INFERENCE);
    let events = of_job("follow_job", "the changes of a job as events, each with the job, until its end")
        .behind_id("/events")
        .streams::<JobObject>(EVENTS);
    [shown, result, events]
}

/// `DELETE /api/v1/jobs/ID`.
pub(crate) fn delete_job() -> Operation {
    of_job("delete_job", "a job that waits or runs is cancelled; one that has ended is forgotten with its result")
        .answers::<JobObject>(200, "the job as it is, or was")
}

/// `POST /v1/files`.
pub(crate) fn upload_file() -> Operation {
    operation("upload_file", "a file is uploaded, as a form with `purpose` and `file`")
        .form::<FileForm>()
        .answers::<FileObject>(200, "the file")
        .leads_to("/id", &["get_file", "get_file_content", "delete_file"])
        .errors(&[ErrorCode::StorageFull, ErrorCode::UnsupportedMediaType])
}

/// `GET /v1/files`.
pub(crate) fn files() -> Operation {
    listed::<FileLimit>(operation("list_files", "the files of the sender"))
        .query::<String>("purpose", "The use of the files.")
        .answers::<ListedFiles>(200, "a page of files")
}

/// `GET /v1/files/ID` and `/v1/files/ID/content`.
pub(crate) fn file() -> [Operation; 2] {
    let shown = of_file("get_file", "a file's facts").answers::<FileObject>(200, "the file");
    let content = of_file("get_file_content", "a file's content, also in part (`Range`)")
        .behind_id("/content")
        .answers_as::<String>(200, "the content", "application/octet-stream")
        .answers_as::<String>(200, "the content", "application/jsonl")
        .errors(&[ErrorCode::RangeNotSatisfiable]);
    [shown, content]
}

/// `DELETE /v1/files/ID`.
pub(crate) fn delete_file() -> Operation {
    of_file("delete_file", "a file is removed, unless a batch needs it")
        .answers::<DeletedFile>(200, "it is removed")
        .errors(&[ErrorCode::FileInUse])
}

/// `POST /v1/batches`.
pub(crate) fn create_batch() -> Operation {
    operation("create_batch", "the lines of a file are answered as the least important requests")
        .body::<BatchBody>()
        .answers::<BatchObject>(200, "the batch, whose lines are checked next")
        .leads_to("/id", &["get_batch", "cancel_batch"])
        .errors(&[ErrorCode::FileNotFound, ErrorCode::QueueFull])
}

/// `GET /v1/batches`.
pub(crate) fn batches() -> Operation {
    listed::<BatchLimit>(operation("list_batches", "the batches of the sender"))
        .answers::<ListedBatches>(200, "a page of batches")
}

/// `GET /v1/batches/ID`.
pub(crate) fn batch() -> Operation {
    of_batch("get_batch", "a batch: its state and its numbers of lines").answers::<BatchObject>(200, "the batch")
}

/// `POST /v1/batches/ID/cancel`.
pub(crate) fn batch_orders() -> Operation {
    of_batch("cancel_batch", "a batch ends with what was answered")
        .behind_id("/cancel")
        .answers::<BatchObject>(200, "the batch")
        .status(409, ErrorCode::InvalidRequest)
}
