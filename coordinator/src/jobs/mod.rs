//! Jobs, files and batches: they are accepted, kept, answered by the coordinator's own routes, and forgotten.
//!
//! The rules are in `model-boss-jobs`. Here they meet the disk, the store, the clock and the router.

mod answer_file;
mod batch_line;
mod batch_orders;
mod batch_run;
mod batch_view;
mod book;
mod desk;
mod file_body;
mod gathered;
mod hooks;
mod inner;
mod journal;
mod open;
mod progress;
mod runner;
mod shown;
mod upkeep;
mod uploads;
mod view;
mod wall;

pub(crate) use batch_orders::BatchWish;
pub(crate) use batch_view::BatchObject;
pub(crate) use desk::{Jobs, JobsSetup, no_job};
pub(crate) use file_body::FileBody;
pub(crate) use inner::{JobSender, owner_of};
pub(crate) use shown::JobFilter;
pub(crate) use uploads::{ArrivalRoom, UploadWish};
pub(crate) use view::{JobObject, JobStatus, ListedJobs};
pub(crate) use wall::now;
