//! The scheduler's limits and durations, with their defaults. The crate of the configuration reads their values.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use model_boss_protocol::{Category, ClientId, KeepAlive, Priority};
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Principal;

/// The scheduler's settings. In text, durations are written as people write them (`250ms`, `30s`, `10m`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The number of requests that may wait for one model (RC-10).
    pub max_queued_per_model: usize,
    /// The number of requests that may wait in all (RC-10).
    pub max_queued: usize,
    /// A waiting request becomes one step more important, and an idle slot one step less, per this time (RC-5, RC-18).
    /// Zero turns aging off.
    #[serde(with = "span_text")]
    pub aging_step: Duration,
    /// The shortest time that a used slot serves before an equally important request may evict it (RC-18).
    #[serde(with = "span_text")]
    pub min_hold: Duration,
    /// The wait after which a request may evict any slot, whatever its rank (RC-18); zero is never.
    #[serde(with = "span_text")]
    pub max_wait: Duration,
    /// The stay-warm times of categories whose default the operator changed (RC-8).
    pub stay_warm: BTreeMap<Category, KeepAlive>,
    /// `MODEL_BOSS_MODEL_IDLE_SECS`: the stay-warm time in place of all categories' defaults. Zero turns the idle
    /// sweep off (BC-3).
    #[serde(with = "span_text::optional")]
    pub model_idle: Option<Duration>,
    /// The longest time a request may keep a model loaded (RC-8).
    #[serde(with = "span_text")]
    pub max_keep_alive: Duration,
    /// Waiting requests are considered again at least this often (RC-6).
    #[serde(with = "span_text")]
    pub reevaluate_every: Duration,
    /// The time that a request for a cold model waits for an unreachable lease store.
    #[serde(with = "span_text")]
    pub ledger_patience: Duration,
    /// The time that requests wait for a device which its driver does not list any more.
    pub device_patience: Duration,
    /// The number of retries of a request whose worker died before any byte of its answer.
    pub max_retries: u32,
    /// The number of failed loads in a row after which a model's waiting requests are refused.
    pub max_load_attempts: u32,
    /// The backoff before a failed model is loaded again; doubles with each failure in a row.
    #[serde(with = "span_text")]
    pub back_off_first: Duration,
    /// The longest backoff.
    #[serde(with = "span_text")]
    pub back_off_limit: Duration,
    /// The time for which a slot that lost a request gets no other, unless its worker is known to have exited earlier.
    #[serde(with = "span_text")]
    pub lost_pause: Duration,
    /// Whether models that compute on the host at the same time share its cores by priority (FA-5).
    pub share_cores: bool,
    /// The number of models of each category that may be loaded at once (MM-1).
    pub max_loaded: MaxLoaded,
    /// The action after a load that failed for another reason than the model's files (MM-4).
    pub load_failure_policy: LoadFailurePolicy,
    /// The time after which other programs' use counts as lasting. A model waits for memory that they took within
    /// this time. Beside lasting use its layers are streamed. They are all made resident again when there was room
    /// for as long.
    #[serde(with = "span_text")]
    pub peak_patience: Duration,
    /// The number of remembered models that left the catalog. A manifest that disappears for a moment during an edit
    /// keeps its history.
    pub left_models_kept: usize,
    /// The number of models named by path that are kept; beyond it, the one unused for longest is forgotten.
    pub path_models_kept: usize,
    /// A model that a client named by its path is forgotten when it was unused for this long.
    #[serde(with = "span_text")]
    pub path_model_idle: Duration,
    /// The number of decisions kept for [`crate::Scheduler::decisions`].
    pub decisions_kept: usize,
    /// The rules of clients (RC-9, RC-24).
    pub clients: ClientRules,
    /// Prefixes of cloud providers whose models give embeddings too; every provider's models answer chats.
    pub embedding_providers: BTreeSet<String>,
    /// The service in tokens (or hundredths of a second where tokens are not counted) that costs a client one position.
    /// Among clients of equal importance, one with more service is behind the others by a position for each step
    /// (RC-4).
    pub service_step: u64,
}

/// The rules of clients: a default, and rules in its place for named clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientRules {
    /// The rule of clients without one of their own.
    pub default: ClientRule,
    /// Rules by the client's name.
    pub named: BTreeMap<ClientId, ClientRule>,
}

impl ClientRules {
    /// The rule for this principal. The operator's rule is fixed.
    pub fn of_principal(&self, principal: &Principal) -> ClientRule {
        match principal {
            Principal::Operator => ClientRule::of_the_operator(),
            Principal::Client(client) => self.of(client).clone(),
        }
    }

    /// The rule for this client.
    pub fn of(&self, client: &ClientId) -> &ClientRule {
        self.named.get(client).unwrap_or(&self.default)
    }
}

/// The limits of one client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientRule {
    /// The most important priority that the client's requests can have (RC-3).
    pub max_priority: Priority,
    /// The priority of requests that do not state one.
    pub default_priority: Priority,
    /// The number of the client's running requests; further ones wait.
    pub max_concurrent: Option<u32>,
    /// The shortest time between the end of one of its requests and the start of the next.
    #[serde(with = "span_text")]
    #[schemars(with = "String")]
    pub cooldown: Duration,
    /// The number of requests in a minute; further ones are refused.
    pub rate_per_minute: Option<u32>,
    /// The number of the client's waiting requests; further ones are refused.
    pub max_queued: Option<u32>,
}

impl ClientRule {
    /// The operator's rule: no limits, and interactive priority for its orders unless they state another (MM-3).
    fn of_the_operator() -> Self {
        Self { max_priority: Priority::HIGHEST, default_priority: Priority::INTERACTIVE, ..Self::default() }
    }
}

impl Default for ClientRule {
    fn default() -> Self {
        Self {
            max_priority: Priority::INTERACTIVE,
            default_priority: Priority::NORMAL,
            max_concurrent: None,
            cooldown: Duration::ZERO,
            rate_per_minute: None,
            max_queued: None,
        }
    }
}

/// The limit of loaded models by category (MM-1). In text `"auto"`, or a map such as `{ llm = 2 }`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MaxLoaded {
    /// The number of loaded models has no limit but memory.
    #[default]
    Auto,
    /// A number for each named category; one for the others.
    Per(BTreeMap<Category, usize>),
}

impl MaxLoaded {
    /// The limit of a category; `None` for no limit.
    pub fn of(&self, category: Category) -> Option<usize> {
        match self {
            Self::Auto => None,
            Self::Per(limits) => Some(limits.get(&category).copied().unwrap_or(1).max(1)),
        }
    }
}

impl Serialize for MaxLoaded {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Per(limits) => limits.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for MaxLoaded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "\"auto\" or a number of models by category such as { llm = 2, embedding = 1 }")]
        enum WrittenLimits {
            Word(String),
            Map(BTreeMap<Category, usize>),
        }
        match WrittenLimits::deserialize(deserializer)? {
            WrittenLimits::Word(word) if word == "auto" => Ok(Self::Auto),
            WrittenLimits::Word(word) => Err(D::Error::custom(format!(
                "'{word}' is no limit of loaded models; write \"auto\" or a number by category such as {{ llm = 2 }}"
            ))),
            WrittenLimits::Map(limits) => match limits.iter().find(|(_, limit)| **limit == 0) {
                Some((category, _)) => Err(D::Error::custom(format!(
                    "at most 0 models of category {category} would be none at all; write 1 or more"
                ))),
                None => Ok(Self::Per(limits)),
            },
        }
    }
}

/// The action after a failed load (MM-4). It does not apply to a model whose files or settings are at fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadFailurePolicy {
    /// Busy models are drained, all unpinned models are evicted, and the load is tried once more.
    #[default]
    EvictAllAndRetry,
    /// The load fails, and no model is evicted for another try.
    Fail,
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
            ledger_patience: Duration::from_secs(30),
            device_patience: Duration::from_secs(30),
            max_retries: 3,
            max_load_attempts: 3,
            back_off_first: Duration::from_secs(1),
            back_off_limit: Duration::from_secs(300),
            lost_pause: Duration::from_secs(1),
            share_cores: true,
            max_loaded: MaxLoaded::Auto,
            load_failure_policy: LoadFailurePolicy::EvictAllAndRetry,
            peak_patience: Duration::from_secs(30),
            left_models_kept: 256,
            path_models_kept: 256,
            path_model_idle: Duration::from_secs(24 * 3_600),
            decisions_kept: 1_000,
            clients: ClientRules::default(),
            embedding_providers: BTreeSet::new(),
            service_step: 1_000,
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

    #[test]
    fn mm_1_a_limit_is_auto_or_a_number_by_category_and_one_where_nothing_is_said() {
        let read = |text: &str| serde_json::from_str::<MaxLoaded>(text);
        assert_eq!(read(r#""auto""#).unwrap().of(Category::Llm), None);
        let limits = read(r#"{"llm": 3, "tts": 2}"#).unwrap();
        assert_eq!(limits.of(Category::Llm), Some(3));
        assert_eq!(limits.of(Category::Embedding), Some(1));
        assert_eq!(read(&serde_json::to_string(&limits).unwrap()).unwrap(), limits);
        assert!(read(r#"{"llm": 0}"#).unwrap_err().to_string().contains("category llm"));
        assert!(read(r#""none""#).unwrap_err().to_string().contains("'none'"));
    }
}
