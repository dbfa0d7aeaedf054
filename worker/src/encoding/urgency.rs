//! The priority of a request, on its way from the header to the engine.

use axum::http::HeaderMap;
use model_boss_protocol::{Priority, headers};
use tokio::task_local;

task_local! {
    static ASKED: Priority;
}

/// The priority that a request's headers name.
pub(crate) fn priority_in(headers: &HeaderMap) -> Priority {
    let named = headers.get(headers::PRIORITY).and_then(|value| value.to_str().ok()?.parse().ok());
    named.unwrap_or_default()
}

/// Answers a request whose work has this priority.
pub(crate) async fn with_priority<T>(priority: Priority, answer: impl Future<Output = T>) -> T {
    ASKED.scope(priority, answer).await
}

/// The priority of the request that is being answered.
pub(crate) fn asked_priority() -> Priority {
    ASKED.try_with(|priority| *priority).unwrap_or_default()
}
