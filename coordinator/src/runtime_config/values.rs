//! The keys, what their values may be, and what they stand for in the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use model_boss_core::MaxLoaded;
use model_boss_protocol::{ApiError, Category, ErrorCode, KeepAlive};
use serde_json::{Map, Value, json};

use crate::config::LogLevel;
use crate::settings::{Configured, Overrides};

/// The longest span that can be set: a year.
const MAX_SECONDS: f64 = 365.0 * 86_400.0;

/// A key of the runtime configuration.
pub(super) struct Key {
    /// As clients write it.
    pub(super) name: &'static str,
    /// The setting of the configuration that it stands over.
    pub(super) setting: &'static str,
    /// That setting's value, in the key's form.
    pub(super) configured: fn(&Configured) -> Value,
    read: fn(&Value, &mut Overrides) -> Result<(), &'static str>,
}

/// All of them, in TR-4's order.
pub(super) const KEYS: [Key; 7] = [
    Key {
        name: "allowCloudFallback",
        setting: "allow_cloud_fallback",
        configured: |configured| json!(configured.allow_cloud_fallback),
        read: |value, to| put(&mut to.allow_cloud_fallback, value.as_bool(), "true or false"),
    },
    Key {
        name: "agingStepS",
        setting: "aging_step",
        configured: |configured| seconds(configured.settings.aging_step),
        read: |value, to| put(&mut to.aging_step, span(value).filter(|span| !span.is_zero()), "seconds, more than 0"),
    },
    Key {
        name: "maxWaitS",
        setting: "max_wait",
        configured: |configured| seconds(configured.settings.max_wait),
        read: |value, to| put(&mut to.max_wait, span(value), "seconds; 0 is never"),
    },
    Key {
        name: "modelIdleSecs",
        setting: "model_idle_secs",
        configured: |configured| match configured.model_idle {
            None => Value::Null,
            Some(KeepAlive::Forever) => json!(0),
            Some(KeepAlive::For(span)) => seconds(span),
        },
        read: |value, to| {
            let stays = |span: Duration| if span.is_zero() { KeepAlive::Forever } else { KeepAlive::For(span) };
            put(&mut to.model_idle, span(value).map(stays), "seconds; 0 is for ever")
        },
    },
    Key {
        name: "maxLoadedModels",
        setting: "max_loaded_models",
        configured: |configured| json!(configured.settings.max_loaded),
        read: |value, to| {
            put(
                &mut to.max_loaded,
                max_loaded(value),
                "\"auto\", a number, or numbers by category such as {\"llm\": 2}",
            )
        },
    },
    Key {
        name: "maxQueue",
        setting: "limits.queue_total",
        configured: |configured| json!(configured.settings.max_queued),
        read: |value, to| {
            let number = value.as_u64().filter(|n| *n > 0).and_then(|n| usize::try_from(n).ok());
            put(&mut to.max_queue, number, "a whole number of at least 1")
        },
    },
    Key {
        name: "logLevel",
        setting: "log.level",
        configured: |configured| json!(configured.log_level.as_str()),
        read: |value, to| {
            let level = value.as_str().and_then(LogLevel::named);
            put(&mut to.log_level, level, "one of off, error, warn, info, debug, trace")
        },
    },
];

fn put<T>(place: &mut Option<T>, value: Option<T>, wanted: &'static str) -> Result<(), &'static str> {
    match value {
        None => Err(wanted),
        value => {
            *place = value;
            Ok(())
        }
    }
}

fn seconds(span: Duration) -> Value {
    match u64::try_from(span.as_millis()) {
        Ok(millis) if millis % 1_000 == 0 => json!(millis / 1_000),
        _ => json!(span.as_secs_f64()),
    }
}

fn span(value: &Value) -> Option<Duration> {
    let seconds = value.as_f64().filter(|seconds| (0.0..=MAX_SECONDS).contains(seconds))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// A number is that many chat models, and one of each other kind, as `--max-loaded-models` has it (MM-1).
fn max_loaded(value: &Value) -> Option<MaxLoaded> {
    match value.as_u64() {
        Some(0) => None,
        Some(number) => Some(MaxLoaded::Per(BTreeMap::from([(Category::Llm, usize::try_from(number).ok()?)]))),
        None => serde_json::from_value(value.clone()).ok(),
    }
}

/// Whether a change makes sense: all keys exist, and their values suit them. `null` always does.
pub(super) fn check(changes: &Map<String, Value>) -> Result<(), ApiError> {
    let given: Map<String, Value> = changes
        .iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .filter(|(key, value)| !value.is_null() || !is_key(key))
        .collect();
    overrides(&given).map(|_| ())
}

fn is_key(name: &str) -> bool {
    KEYS.iter().any(|key| key.name == name)
}

/// The values as the settings take them. The error names every key that is wrong; its `param` is the first.
pub(super) fn overrides(values: &Map<String, Value>) -> Result<Overrides, ApiError> {
    let mut overrides = Overrides::default();
    let mut wrong: Vec<(&str, String)> = Vec::new();
    for (name, value) in values {
        match KEYS.iter().find(|key| key.name == name) {
            Some(key) => {
                if let Err(wanted) = (key.read)(value, &mut overrides) {
                    wrong.push((name, format!("'{name}' is {value}; it must be {wanted}")));
                }
            }
            None => {
                let likeness =
                    |key: &Key| (strsim::jaro_winkler(&key.name.to_lowercase(), &name.to_lowercase()), key.name);
                let nearest = KEYS.iter().map(likeness).max_by(|a, b| a.0.total_cmp(&b.0));
                let hint = match nearest.filter(|(likeness, _)| *likeness > 0.8) {
                    Some((_, near)) => format!("did you mean '{near}'?"),
                    None => format!("there are {}", KEYS.map(|key| key.name).join(", ")),
                };
                wrong.push((name, format!("'{name}' is no key of the runtime configuration; {hint}")));
            }
        }
    }
    let Some((first, _)) = wrong.first() else { return Ok(overrides) };
    let messages: Vec<&str> = wrong.iter().map(|(_, message)| message.as_str()).collect();
    Err(ApiError::new(ErrorCode::InvalidRequest, messages.join("; ")).with_param(*first))
}
