//! Moments of the system's clocks. Adding a long span to one overflows and panics, so additions are made only here;
//! clippy's `arithmetic_side_effects` enforces that.

use std::time::{Duration, Instant, SystemTime};

use crate::LONGEST_SPAN;

/// A moment of a clock to which any span may be added.
pub trait Later: Sized {
    /// The moment `span` after this one; at most [`LONGEST_SPAN`] after it.
    #[must_use]
    fn later(self, span: Duration) -> Self;
}

impl Later for Instant {
    fn later(self, span: Duration) -> Self {
        self.checked_add(span.min(LONGEST_SPAN)).unwrap_or(self)
    }
}

impl Later for SystemTime {
    fn later(self, span: Duration) -> Self {
        self.checked_add(span.min(LONGEST_SPAN)).unwrap_or(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_span_is_too_long_for_a_clock() {
        let (instant, time) = (Instant::now(), SystemTime::now());
        let spans = [Duration::ZERO, Duration::from_millis(1), LONGEST_SPAN, Duration::MAX];
        for span in spans {
            let expected = span.min(LONGEST_SPAN);
            assert_eq!(instant.later(span).duration_since(instant), expected);
            assert_eq!(time.later(span).duration_since(time).unwrap(), expected);
            assert!(instant.later(span).later(span) >= instant);
        }
    }
}
