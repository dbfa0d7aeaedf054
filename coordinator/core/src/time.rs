//! Time as a number. The core never asks a clock: every event arrives with the moment it happened.

use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment, as the time since the coordinator's own arbitrary start. Never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(Duration);

impl Moment {
    /// The start.
    pub const START: Self = Self(Duration::ZERO);

    /// The moment `since` the start.
    pub const fn at(since: Duration) -> Self {
        Self(since)
    }

    /// Time since the start.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// Time from `earlier` to this moment; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span))
    }
}
