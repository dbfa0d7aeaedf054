//! Every limit and duration the scheduler uses, with its default. Knows nothing of where the values come from.

use std::collections::BTreeMap;
use std::time::Duration;

use model_boss_protocol::{Category, KeepAlive};
use serde::{Deserialize, Serialize};

/// The scheduler's settings. In text, durations are written as people write them (`250ms`, `30s`, `10m`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Requests that may wait for one model (RC-10).
    pub max_queued_per_model: usize,
    /// Requests that may wait in all (RC-10).
    pub max_queued: usize,
    /// A waiting request becomes one step more important, and an idle slot one step less, per this time (RC-5, RC-18).
    /// Zero turns aging off.
    #[serde(with = "span_text")]
    pub aging_step: Duration,
    /// The least time a slot serves before an equally important request may take it while it is used (RC-18).
    #[serde(with = "span_text")]
    pub min_hold: Duration,
    /// A request that waited this long may take any slot, whatever its rank (RC-18); zero is never.
    #[serde(with = "span_text")]
    pub max_wait: Duration,
    /// How long an unneeded model stays after its last use, where the operator changed a category's default (RC-8).
    pub stay_warm: BTreeMap<Category, KeepAlive>,
    /// `MODEL_BOSS_MODEL_IDLE_SECS`: in place of every category's default; zero turns the idle sweep off (BC-3).
    #[serde(with = "span_text::optional")]
    pub model_idle: Option<Duration>,
    /// The longest time a request may keep a model loaded (RC-8).
    #[serde(with = "span_text")]
    pub max_keep_alive: Duration,
    /// Waiting requests are looked at again at least this often (RC-6).
    #[serde(with = "span_text")]
    pub reevaluate_every: Duration,
    /// How often a request whose worker died before any byte of its answer is tried again.
    pub max_retries: u32,
    /// Failed loads of a model in a row after which those who wait for it are told.
    pub max_load_attempts: u32,
    /// The wait before a failed model is loaded again; doubles with each failure in a row.
    #[serde(with = "span_text")]
    pub back_off_first: Duration,
    /// The longest such wait.
    #[serde(with = "span_text")]
    pub back_off_limit: Duration,
    /// A slot that lost a request gets no further one for this time, or until its worker is known to be gone.
    #[serde(with = "span_text")]
    pub lost_pause: Duration,
    /// Decisions kept for [`crate::Scheduler::decisions`].
    pub decisions_kept: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_queued_per_model: 512,
            max_queued: 4_096,
            aging_step: Duration::from_secs(30),
            min_hold: Duration::from_secs(10),
            max_wait: Duration::from_secs(600),
            stay_warm: BTreeMap::new(),
            model_idle: None,
            max_keep_alive: Duration::from_secs(24 * 3_600),
            reevaluate_every: Duration::from_secs(5),
            max_retries: 3,
            max_load_attempts: 3,
            back_off_first: Duration::from_secs(1),
            back_off_limit: Duration::from_secs(300),
            lost_pause: Duration::from_secs(1),
            decisions_kept: 1_000,
        }
    }
}

/// Durations as text with a unit, at millisecond resolution.
mod span_text {
    use std::time::Duration;

    use model_boss_protocol::{KeepAlive, parse_span};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        KeepAlive::For(*span).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        parse_span(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }

    pub(super) mod optional {
        use super::{Deserialize, Deserializer, Duration, KeepAlive, Serialize, Serializer, parse_span};

        pub(crate) fn serialize<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
            span.map(KeepAlive::For).serialize(serializer)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
            let text = Option::<String>::deserialize(deserializer)?;
            text.map(|text| parse_span(&text).map_err(serde::de::Error::custom)).transpose()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_round_trip_and_name_a_wrong_key() {
        let settings = Settings { model_idle: Some(Duration::from_millis(1_500)), ..Settings::default() };
        let text = serde_json::to_string(&settings).unwrap();
        assert!(text.contains(r#""aging_step":"30s""#), "{text}");
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
        assert_eq!(serde_json::from_str::<Settings>("{}").unwrap(), Settings::default());
        assert!(serde_json::from_str::<Settings>(r#"{"ageing_step":"1s"}"#).is_err());
        assert!(serde_json::from_str::<Settings>(r#"{"aging_step":"30"}"#).is_err());
    }
}
