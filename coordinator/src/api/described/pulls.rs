//! Downloads of models.

use model_boss_openapi::{Operation, Tag};
use model_boss_protocol::ErrorCode;

use super::parameters::by_a_client;
use crate::api::pulls::{PullBody, PullsAnswer};
use crate::pulls::PullObject;

const SEE: &[&str] = &["downloads.md"];

/// Errors of a hub and of the disk.
pub(super) const OF_PULLS: &[ErrorCode] = &[
    ErrorCode::ModelNotFound,
    ErrorCode::HubAccessDenied,
    ErrorCode::HubOffline,
    ErrorCode::HubUnavailable,
    ErrorCode::PullCancelled,
    ErrorCode::DiskFull,
    ErrorCode::Draining,
];

/// `GET /api/v1/pull`.
pub(crate) fn pulls() -> Operation {
    let text = "the downloads that run, and the last ones that ended";
    Operation::new(Tag::Views, "list_pulls", text).see(SEE).answers::<PullsAnswer>(200, "the state")
}

/// `POST /api/v1/pull`.
pub(crate) fn start_pull() -> Operation {
    let text = "a model's files are downloaded; answered once they are there";
    by_a_client(Operation::new(Tag::Orders, "start_pull", text))
        .see(SEE)
        .body::<PullBody>()
        .answers::<PullObject>(200, "the files are there")
        .answers::<PullObject>(202, "it has begun")
        .streams::<PullObject>("text/event-stream")
        .errors(OF_PULLS)
}

/// `DELETE /api/v1/pull/ID`.
pub(crate) fn cancel_pull() -> Operation {
    let text = "a download ends; what came of it is kept, and the next one goes on from there";
    by_a_client(Operation::new(Tag::Orders, "cancel_pull", text))
        .see(SEE)
        .id_of::<String>("The number of the pull.")
        .answers::<PullObject>(200, "it has ended")
        .errors(&[ErrorCode::PullNotFound])
}
