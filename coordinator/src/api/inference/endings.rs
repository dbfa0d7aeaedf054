//! Errors of answers that end too early.

use model_boss_protocol::{ApiError, ErrorCode};

use crate::scheduling::Destination;

/// The error of an answer that broke off after some of it was sent on.
pub(crate) async fn broken_in_the_middle(place: Destination) -> ApiError {
    let (code, message) = match place {
        Destination::Cloud { provider, .. } => (
            ErrorCode::BackendError,
            format!("the connection to provider '{provider}' broke in the middle of its answer"),
        ),
        Destination::Worker { worker, .. } if worker.has_ended().await => (
            ErrorCode::WorkerCrashed,
            format!("{} went away in the middle of its answer; send the request again", worker.title()),
        ),
        Destination::Worker { worker, .. } => (
            ErrorCode::BackendError,
            format!("{} runs and closed the connection in the middle of its answer", worker.title()),
        ),
    };
    ApiError::new(code, message)
}

pub(crate) fn deadline_exceeded() -> ApiError {
    ApiError::new(ErrorCode::DeadlineExceeded, "the request's time budget is over")
}
