//! Clocks: tokio's monotonic clock, which tests may pause, and the time of day. Only this module adds spans to
//! instants.

use std::time::{Duration, SystemTime};

use model_boss_protocol::LONGEST_SPAN;
use tokio::time::Instant;

/// The moment `span` after `start`; at most [`LONGEST_SPAN`] after it.
pub fn later(start: Instant, span: Duration) -> Instant {
    start.checked_add(span.min(LONGEST_SPAN)).unwrap_or(start)
}

/// The moment `span` from now.
pub fn in_a(span: Duration) -> Instant {
    later(Instant::now(), span)
}

/// Whole seconds since 1970, as APIs write time.
pub fn unix_seconds() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

/// Seconds since 1970 with their fraction.
pub fn unix_time() -> f64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_span_is_too_long_for_the_clock() {
        let now = Instant::now();
        for span in [Duration::ZERO, Duration::from_millis(1), LONGEST_SPAN, Duration::MAX] {
            assert_eq!(in_a(span).duration_since(now), span.min(LONGEST_SPAN));
        }
        assert!(tokio::time::timeout_at(in_a(Duration::MAX), std::future::ready(())).await.is_ok());
    }
}
