//! Routes of jobs, and of files and batches in OpenAI's shapes.

pub(super) mod batches;
mod content;
mod events;
pub(super) mod files;
mod form_order;
mod order;
mod page;
mod path;
pub(super) mod routes;

pub(super) use batches::{BatchBody, ListedBatches};
pub(super) use files::{DeletedFile, FileForm, FileObject, ListedFiles};
pub(super) use order::JobBody;
