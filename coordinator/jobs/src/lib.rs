//! Durable jobs: requests that are accepted now and answered later, uploaded files, and batches of requests.
//!
//! The states of a job are pure: time is an argument ([`JobRecord::apply`]). Records are kept by a [`RecordStore`], in
//! the embedded store or in Redis; bodies and results are files ([`JobFolder`]). All calls of stores and files block.

mod batch;
mod digest;
mod files;
mod ids;
mod kind;
mod page;
mod record;
mod store;
mod table;
mod time;
mod upload;
mod webhook;

pub use batch::{
    BatchCounts, BatchLineError, BatchOrder, BatchRecord, BatchRules, BatchState, BatchUsage, InputLine, KeptLines,
    LineFault, LineOrder, LineOutcome, LinePlan, LineSpot, MAX_LINE_ERRORS, ValidatedInput, keep_whole_lines,
    output_line, read_line, scan_input,
};
pub use digest::BodyDigest;
pub use files::{DraftFile, JobFolder, KeptKind};
pub use ids::{JobId, drawn_name};
pub use kind::{JobKind, KINDS, kind_of_endpoint};
pub use page::{PageOfRecords, page_of};
pub use record::{
    JobError, JobEvent, JobOrder, JobOwner, JobRecord, JobRules, JobState, JobStep, KeptAnswer, SenderKind,
};
pub use store::{JobStoreError, RecordChange, RecordStore, RedbRecords, RedisRecords, SCHEMA};
pub use table::{JobCounts, JobTable, TableEntry, TableLimits};
pub use time::WallTime;
pub use upload::{FilePurpose, StoredUpload};
pub use webhook::{
    DeliveryState, HookPlace, HookTarget, HookUrlError, WebhookRules, WebhookSecret, WebhookState, delivery_pause,
    is_public, webhook_signature,
};
