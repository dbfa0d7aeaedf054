//! The answer to requests that meet an engine which has stopped.

use std::time::Duration;

use model_boss_protocol::{ApiError, ErrorCode};

/// The message of requests that arrive after the engine stopped.
pub(crate) const ENGINE_GONE: &str = "the engine has stopped; this worker is going away";

/// The process is gone by then.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// The error for a request without a byte of an answer when the engine stopped. The process ends in a moment. A
/// connection that closes without an answer is sent to another worker; an answer would be final.
pub(crate) async fn engine_gone() -> ApiError {
    tokio::time::sleep(ENDS_WITHIN).await;
    ApiError::new(ErrorCode::Internal, ENGINE_GONE)
}
