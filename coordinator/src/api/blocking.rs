//! Work for an answer that takes long: reading models' files, and building answers whose size has no small bound. All
//! connections share one thread, which such work would hold up.

use model_boss_http::error::panic_error;
use model_boss_protocol::ApiError;
use tokio::task::spawn_blocking;

/// Does the work on a thread of its own.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    spawn_blocking(work).await.map_err(|_| panic_error())
}
