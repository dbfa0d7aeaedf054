//! Times that survive a restart of the machine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WallTime(pub u64);

impl WallTime {
    /// The time `span` after this one.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The time from `earlier` until this one; zero if it is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Seconds since 1970 with their fraction, as APIs of this project write time.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1_000.0
    }

    /// Whole seconds since 1970, as OpenAI's API writes time.
    pub const fn whole_seconds(self) -> u64 {
        self.0 / 1_000
    }
}
