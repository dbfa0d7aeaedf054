//! Time as a number. The core reads no clock: every event arrives with the moment it happened.

use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment, as the time since an arbitrary start of the coordinator's clock. It never decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    /// Nanoseconds since the start. The last moment is 584 years after it, and sums of spans saturate there.
    nanos: u64,
}

impl Moment {
    /// The start of the coordinator's clock.
    pub const START: Self = Self { nanos: 0 };

    /// The moment `since` the start.
    pub const fn at(since: Duration) -> Self {
        Self { nanos: nanos(since) }
    }

    /// Time since the start of the coordinator's clock.
    pub const fn since_start(self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// Time from `earlier` to this moment; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

/// The nanoseconds of a span, saturated at the largest number.
pub(crate) const fn nanos(span: Duration) -> u64 {
    let nanos = span.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self { nanos: self.nanos.saturating_add(nanos(span)) }
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self { nanos: self.nanos.saturating_sub(nanos(span)) }
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.since_start().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Duration::deserialize(deserializer).map(Self::at)
    }
}

/// The number of whole steps of `step` in `span`; zero when `step` is zero.
pub(crate) fn steps(span: Duration, step: Duration) -> u64 {
    nanos(span).checked_div(nanos(step)).unwrap_or(0)
}

pub(crate) fn as_millis<S: serde::Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

#[expect(clippy::ref_option, reason = "serde passes a reference")]
pub(crate) fn optional_millis<S: serde::Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match span {
        Some(span) => as_millis(span, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_span_goes_beyond_the_last_moment_and_text_is_that_of_a_span() {
        let last = Moment::at(Duration::MAX);
        assert_eq!(last + Duration::MAX, last);
        assert_eq!(Moment::START - Duration::MAX, Moment::START);
        assert_eq!(Moment::START.since(last), Duration::ZERO);
        let moment = Moment::at(Duration::new(7, 5));
        let text = serde_json::to_string(&moment).unwrap();
        assert_eq!(text, serde_json::to_string(&Duration::new(7, 5)).unwrap());
        assert_eq!(serde_json::from_str::<Moment>(&text).unwrap(), moment);
    }
}
