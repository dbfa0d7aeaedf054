//! Moves work on large texts off the thread that serves sockets, since every stream waits for that thread.

use std::sync::{Arc, OnceLock};

use model_boss_protocol::{ApiError, ErrorCode};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Work on fewer bytes takes less time than a change of threads.
const LARGE: usize = 64 << 10;

/// Work on a large text panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the coordinator made a mistake; its log says more")]
pub struct WorkPanicked;

impl From<WorkPanicked> for ApiError {
    fn from(error: WorkPanicked) -> Self {
        Self::new(ErrorCode::Internal, error.to_string())
    }
}

/// Does `work` on `bytes` bytes: here, or on another thread when they are many. At most half the processors work on
/// large texts at once, so that some are left for sockets.
pub async fn offload<T: Send + 'static, E: From<WorkPanicked> + Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    static PLACES: OnceLock<Arc<Semaphore>> = OnceLock::new();

    if bytes <= LARGE {
        return work();
    }
    let places = PLACES.get_or_init(|| {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Arc::new(Semaphore::new((processors / 2).max(1)))
    });
    // The semaphore is never closed. The permit moves into the work, which continues when its request ends.
    let place = Arc::clone(places).acquire_owned().await;
    let done = spawn_blocking(move || {
        let done = work();
        drop(place);
        done
    });
    done.await.unwrap_or_else(|_| Err(WorkPanicked.into()))
}
