//! Durations as people write them (`5m`, `1h30m`, `250ms`), and Ollama's `keep_alive` meaning of them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseSpanError {
    /// The text is not a duration.
    #[error("'{0}' is not a duration; write it with a unit, such as 250ms, 30s, 5m or 1h30m")]
    Malformed(String),
    /// The duration exceeds [`LONGEST_SPAN`].
    #[error("'{0}' is too long; the longest duration is 36500d")]
    TooLong(String),
    /// The duration is negative.
    #[error("'{0}' is negative; a duration is zero or longer")]
    Negative(String),
}

/// The longest duration that is accepted anywhere: a hundred years. Every clock can add it to its present time
/// without overflow.
pub const LONGEST_SPAN: Duration = Duration::from_secs(36_500 * 86_400);

/// Reads a duration with units `ms`, `s`, `m`, `h`, `d`, one after another (`1h30m`). A bare number is an error because
/// it has no unit.
pub fn parse_span(text: &str) -> Result<Duration, ParseSpanError> {
    let bad = || ParseSpanError::Malformed(text.to_owned());
    let too_long = || ParseSpanError::TooLong(text.to_owned());
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(bad());
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).ok_or_else(bad)?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_end);
        let seconds = match unit.trim() {
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return Err(bad()),
        };
        let value: f64 = number.parse().map_err(|_| bad())?;
        let part = Duration::try_from_secs_f64(value * seconds).map_err(|_| too_long())?;
        total = total.saturating_add(part);
        rest = next;
    }
    if total > LONGEST_SPAN { Err(too_long()) } else { Ok(total) }
}

/// A number of seconds as a duration. Negative numbers and those beyond [`LONGEST_SPAN`] are errors.
pub fn span_of_secs(seconds: f64) -> Result<Duration, ParseSpanError> {
    if seconds > LONGEST_SPAN.as_secs_f64() {
        return Err(ParseSpanError::TooLong(format!("{seconds}s")));
    }
    if seconds < 0.0 {
        return Err(ParseSpanError::Negative(format!("{seconds}s")));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| ParseSpanError::Malformed(format!("{seconds}s")))
}

/// The time that a model stays loaded after its last use (RC-8). A JSON number is seconds, a text has a unit. A
/// negative time is for ever, and zero unloads right after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// Unload this long after the last use ended.
    For(Duration),
    /// Never unload for idleness.
    Forever,
}

impl KeepAlive {
    /// The shorter of this time and `limit`.
    #[must_use]
    pub fn at_most(self, limit: Duration) -> Self {
        match self {
            Self::For(span) => Self::For(span.min(limit)),
            Self::Forever => Self::For(limit),
        }
    }
}

impl FromStr for KeepAlive {
    type Err = ParseSpanError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.trim();
        match trimmed.strip_prefix('-') {
            Some("1") => Ok(Self::Forever),
            Some(magnitude) => match parse_span(magnitude) {
                Ok(_) | Err(ParseSpanError::TooLong(_)) => Ok(Self::Forever),
                Err(ParseSpanError::Malformed(_) | ParseSpanError::Negative(_)) => {
                    Err(ParseSpanError::Malformed(text.to_owned()))
                }
            },
            None if trimmed == "0" => Ok(Self::For(Duration::ZERO)),
            None => parse_span(trimmed).map(Self::For),
        }
    }
}

impl fmt::Display for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forever => f.write_str("-1"),
            Self::For(span) if span.subsec_millis() != 0 => write!(f, "{}ms", span.as_millis()),
            Self::For(span) => write!(f, "{}s", span.as_secs()),
        }
    }
}

impl Serialize for KeepAlive {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeepAlive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "seconds as a number, or a duration such as \"5m\"")]
        enum WrittenSpan {
            Seconds(f64),
            Text(String),
        }
        match WrittenSpan::deserialize(deserializer)? {
            WrittenSpan::Seconds(s) if s < 0.0 => Ok(Self::Forever),
            WrittenSpan::Seconds(s) => span_of_secs(s).map(Self::For).map_err(serde::de::Error::custom),
            WrittenSpan::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_units() {
        assert_eq!(parse_span("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(parse_span("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_span("1.5s"), Ok(Duration::from_millis(1_500)));
        for bad in ["", "5", "m", "5 minutes", "-3s", "99999999999999999999h"] {
            assert!(parse_span(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_span_beyond_a_hundred_years_is_refused_with_the_bound() {
        for long in ["2600000000000000h", "36501d", "99999999999999999999h", "36500d1ms", "18000d19000d"] {
            let error = parse_span(long).unwrap_err();
            assert_eq!(error, ParseSpanError::TooLong(long.to_owned()));
            assert!(error.to_string().contains("36500d"), "{error}");
        }
        assert_eq!(parse_span("36500d"), Ok(LONGEST_SPAN));
        for seconds in [1e300, f64::INFINITY, 36_500.0 * 86_400.0 + 1.0] {
            assert!(matches!(span_of_secs(seconds), Err(ParseSpanError::TooLong(_))), "{seconds}");
            assert!(serde_json::from_str::<KeepAlive>(&seconds.to_string()).is_err(), "{seconds}");
        }
        assert!(matches!(span_of_secs(-1.0), Err(ParseSpanError::Negative(_))));
        assert!(matches!(span_of_secs(f64::NAN), Err(ParseSpanError::Malformed(_))));
        assert_eq!("-99999999999999h".parse(), Ok(KeepAlive::Forever));
    }

    #[test]
    fn rc_8_keep_alive_has_ollamas_meaning() {
        let read = |json: &str| serde_json::from_str::<KeepAlive>(json);
        assert_eq!(read("300").unwrap(), KeepAlive::For(Duration::from_secs(300)));
        assert_eq!(read("\"10m\"").unwrap(), KeepAlive::For(Duration::from_secs(600)));
        assert_eq!(read("-1").unwrap(), KeepAlive::Forever);
        assert_eq!(read("\"-5m\"").unwrap(), KeepAlive::Forever);
        assert_eq!(read("0").unwrap(), KeepAlive::For(Duration::ZERO));
        assert!(read("\"3600\"").is_err());
        let forever = KeepAlive::Forever.at_most(Duration::from_secs(86_400));
        assert_eq!(forever, KeepAlive::For(Duration::from_secs(86_400)));
    }

    #[test]
    fn keep_alive_round_trips() {
        for value in [KeepAlive::Forever, KeepAlive::For(Duration::from_millis(1_250)), KeepAlive::For(Duration::ZERO)]
        {
            let json = serde_json::to_string(&value).unwrap();
            assert_eq!(serde_json::from_str::<KeepAlive>(&json).unwrap(), value);
        }
    }
}
