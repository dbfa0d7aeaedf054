//! Reading a request's body: how large it may be, and on which thread.

use std::sync::Arc;

use axum::body::Bytes;
use model_boss_protocol::{ApiError, ErrorCode};

use super::error::ErrorAnswer;
use crate::state::WorkerState;

/// A larger body is read on a thread of its own.
const SMALL_BODY: usize = 32 << 10;

/// Reads a body.
pub(super) async fn reading<T: Send + 'static>(
    worker: &Arc<WorkerState>,
    body: Bytes,
    read: fn(&WorkerState, &[u8]) -> Result<T, ErrorAnswer>,
) -> Result<T, ErrorAnswer> {
    if body.len() <= SMALL_BODY {
        return read(worker, &body);
    }
    let worker = Arc::clone(worker);
    let read = tokio::task::spawn_blocking(move || read(&worker, &body)).await;
    // A panic on a blocking thread has already been reported on stderr.
    read.unwrap_or_else(|_| Err(ErrorAnswer(ApiError::new(ErrorCode::Internal, "the worker failed on this request"))))
}
