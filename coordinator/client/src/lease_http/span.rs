//! A duration as seconds or as a text with its unit.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// Writes milliseconds, such as `"1500ms"`.
pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{}ms", span.as_millis()))
}

/// Reads seconds, or a text such as `"60s"`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "seconds as a number, or a duration such as \"60s\"")]
    enum WrittenLeaseSpan {
        Seconds(f64),
        Text(String),
    }
    match WrittenLeaseSpan::deserialize(deserializer)? {
        WrittenLeaseSpan::Seconds(seconds) => model_boss_protocol::span_of_secs(seconds).map_err(D::Error::custom),
        WrittenLeaseSpan::Text(text) => model_boss_protocol::parse_span(&text).map_err(D::Error::custom),
    }
}

/// Whole milliseconds.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
