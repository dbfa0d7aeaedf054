//! Downloads of models from a hub, each a job of the coordinator: two callers that want the same model share one.

mod job;
mod registry;

pub(crate) use job::{PullJob, PullObject, PullResult, PullWatch};
pub(crate) use registry::{PullOrder, Pulls};
