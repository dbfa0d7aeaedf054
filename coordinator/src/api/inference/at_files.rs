//! Reading models' files for an answer.

use model_boss_http::error::panic_error;
use model_boss_protocol::ApiError;
use tokio::task::spawn_blocking;

/// Reads models' headers on a blocking thread. They are read when a client first needs their content.
pub(super) async fn looking_at_files<T: Send + 'static>(
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    spawn_blocking(look).await.map_err(|_| panic_error())
}
