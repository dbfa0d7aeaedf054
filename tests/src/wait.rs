//! Waiting for events, with a time limit. No function here waits for time to pass.

use std::time::Duration;

/// The longest wait for an event that must happen before a test fails. It is long, because a loaded machine is no
/// fault.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the value of `future`, or panics after `patience` with the name of the missing event.
pub async fn within<T>(patience: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(patience, future).await {
        Ok(value) => value,
        Err(_) => panic!("did not happen within {patience:?}: {what}"),
    }
}

/// Polls `look` until it returns a value. It is used for the state of other processes, which send no events (`/proc`, a
/// port, a counter behind HTTP).
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
