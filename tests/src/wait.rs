//! Waiting for events with an end to patience. Nothing here waits for time to pass.

use std::time::Duration;

/// How long a test waits for something that must happen before it fails. Generous: a loaded machine is no fault.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The value of `future`, or a panic that says what did not happen.
pub async fn within<T>(patience: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(patience, future).await {
        Ok(value) => value,
        Err(_) => panic!("did not happen within {patience:?}: {what}"),
    }
}

/// Looks until `look` finds something: for the state of other processes, which send no events (`/proc`, a port, a
/// counter behind HTTP).
pub async fn until<T>(patience: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let found = async {
        loop {
            ticks.tick().await;
            if let Some(found) = look().await {
                return found;
            }
        }
    };
    within(patience, what, found).await
}
