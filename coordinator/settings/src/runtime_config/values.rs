//! The keys, their valid values, and the settings that they override.

use std::collections::BTreeMap;
use std::time::Duration;

use model_boss_config::LogLevel;
use model_boss_core::MaxLoaded;
use model_boss_protocol::{Category, KeepAlive};
use serde_json::{Map, Value, json};

use crate::error::SettingsError;
use crate::live::{Configured, Overrides, StoredGuard};

/// The longest span that can be set: a year.
const MAX_SECONDS: f64 = 365.0 * 86_400.0;

/// A key of the runtime configuration.
pub(super) struct ConfigKey {
    /// The key's name in the API.
    pub(super) name: &'static str,
    /// The path of the setting that the key overrides.
    pub(super) setting: &'static str,
    /// The value of the overridden setting, in the key's form.
    pub(super) configured: fn(&Configured) -> Value,
    /// Whether the key is a guard, which forbids something. An invalid value keeps a guard shut.
    pub(super) is_guard: bool,
    /// The JSON schema of valid values.
    pub(super) schema: fn() -> Value,
    read: fn(&Value, &mut Overrides) -> Result<(), &'static str>,
}

/// Stored values as settings.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) overrides: Overrides,
    /// Stored values that are not used.
    pub(super) ignored: Vec<Ignored>,
}

/// A stored value that this version does not use. It stays in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ignored {
    pub(super) key: String,
    pub(super) why: String,
}

/// The most characters of a stored value in a message.
const SHOWN: usize = 200;
/// Why the guard is shut where its stored value is invalid.
const GUARD_UNCLEAR: &str = "allowCloudFallback is not known, so it is off: its stored value makes no sense";

/// All keys, in TR-4's order.
pub(super) const KEYS: [ConfigKey; 7] = [
    ConfigKey {
        name: "allowCloudFallback",
        setting: "allow_cloud_fallback",
        configured: |configured| json!(configured.allow_cloud_fallback),
        is_guard: true,
        schema: || json!({ "type": "boolean" }),
        read: |value, to| {
            let set = value.as_bool().map(StoredGuard::Set);
            to.cloud_fallback = set.unwrap_or(StoredGuard::Unknown(GUARD_UNCLEAR));
            set.map(drop).ok_or("true or false")
        },
    },
    ConfigKey {
        name: "agingStepS",
        setting: "aging_step",
        configured: |configured| seconds(configured.settings.aging_step),
        is_guard: false,
        schema: || json!({ "type": "number", "exclusiveMinimum": 0, "maximum": MAX_SECONDS }),
        read: |value, to| put(&mut to.aging_step, span(value).filter(|span| !span.is_zero()), "seconds, more than 0"),
    },
    ConfigKey {
        name: "maxWaitS",
        setting: "max_wait",
        configured: |configured| seconds(configured.settings.max_wait),
        is_guard: false,
        schema: || json!({ "type": "number", "minimum": 0, "maximum": MAX_SECONDS }),
        read: |value, to| put(&mut to.max_wait, span(value), "seconds; 0 is never"),
    },
    ConfigKey {
        name: "modelIdleSecs",
        setting: "model_idle_secs",
        configured: |configured| match configured.model_idle {
            None => Value::Null,
            Some(KeepAlive::Forever) => json!(0),
            Some(KeepAlive::For(span)) => seconds(span),
        },
        is_guard: false,
        schema: || json!({ "type": "number", "minimum": 0, "maximum": MAX_SECONDS }),
        read: |value, to| {
            let stays = |span: Duration| if span.is_zero() { KeepAlive::Forever } else { KeepAlive::For(span) };
            put(&mut to.model_idle, span(value).map(stays), "seconds; 0 is for ever")
        },
    },
    ConfigKey {
        name: "maxLoadedModels",
        setting: "max_loaded_models",
        configured: |configured| json!(configured.settings.max_loaded),
        is_guard: false,
        schema: loaded_schema,
        read: |value, to| {
            put(
                &mut to.max_loaded,
                max_loaded(value),
                "\"auto\", a number, or numbers by category such as {\"llm\": 2}",
            )
        },
    },
    ConfigKey {
        name: "maxQueue",
        setting: "limits.queue_total",
        configured: |configured| json!(configured.settings.max_queued),
        is_guard: false,
        schema: || json!({ "type": "integer", "minimum": 1 }),
        read: |value, to| {
            let number = value.as_u64().filter(|n| *n > 0).and_then(|n| usize::try_from(n).ok());
            put(&mut to.max_queue, number, "a whole number of at least 1")
        },
    },
    ConfigKey {
        name: "logLevel",
        setting: "log.level",
        configured: |configured| json!(configured.log_level.as_str()),
        is_guard: false,
        schema: || json!({ "type": "string", "enum": LogLevel::names() }),
        read: |value, to| {
            let level = value.as_str().and_then(LogLevel::named);
            put(&mut to.log_level, level, "one of off, error, warn, info, debug, trace")
        },
    },
];

/// The schema of limits on loaded models.
fn loaded_schema() -> Value {
    let number = json!({ "type": "integer", "minimum": 1 });
    let categories: Map<String, Value> =
        Category::ALL.iter().map(|category| (category.to_string(), number.clone())).collect();
    json!({
        "anyOf": [
            { "type": "string", "const": "auto" },
            number,
            { "type": "object", "properties": categories, "additionalProperties": false },
        ],
    })
}

/// The JSON schema of each key's valid values, by the key's name.
pub fn key_schemas() -> Map<String, Value> {
    KEYS.iter().map(|key| (key.name.to_owned(), (key.schema)())).collect()
}

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

/// Parses limits on loaded models. A number is that many chat models and one of each other kind, as in
/// `--max-loaded-models` (MM-1).
fn max_loaded(value: &Value) -> Option<MaxLoaded> {
    match value.as_u64() {
        Some(0) => None,
        Some(number) => Some(MaxLoaded::Per(BTreeMap::from([(Category::Llm, usize::try_from(number).ok()?)]))),
        None => serde_json::from_value(value.clone()).ok(),
    }
}

/// Checks a change: all keys exist, and their values are valid. The value `null` is valid for every key. It also
/// removes a key that only a newer version knows, if it is `stored`. The error names every invalid key.
pub(super) fn check(changes: &Map<String, Value>, stored: &Map<String, Value>) -> Result<(), SettingsError> {
    let mut overrides = Overrides::nothing_stored();
    let wrong = |(name, value): (&String, &Value)| {
        let removes = value.is_null() && (is_key(name) || stored.contains_key(name));
        if removes { None } else { Some((name.clone(), read_one(name, value, &mut overrides).err()?)) }
    };
    let wrong: Vec<(String, String)> = changes.iter().filter_map(wrong).collect();
    let Some((first, _)) = wrong.first() else { return Ok(()) };
    let messages: Vec<&str> = wrong.iter().map(|(_, message)| message.as_str()).collect();
    Err(SettingsError::Invalid { key: first.clone(), message: messages.join("; ") })
}

fn is_key(name: &str) -> bool {
    KEYS.iter().any(|key| key.name == name)
}

impl Reading {
    /// Parses each stored value separately, so that an invalid one does not affect the others.
    pub(super) fn of(values: &Map<String, Value>) -> Self {
        let mut overrides = Overrides::nothing_stored();
        let ignored = |(key, value): (&String, &Value)| {
            let why = read_one(key, value, &mut overrides).err()?;
            Some(Ignored { key: key.clone(), why: format!("{why}; it is kept and not used") })
        };
        let ignored = values.iter().filter_map(ignored).collect();
        Self { overrides, ignored }
    }
}

/// Parses one value into the settings. The error names the key and says what would be valid.
fn read_one(name: &str, value: &Value, overrides: &mut Overrides) -> Result<(), String> {
    let shown = |text: &str| -> String { text.escape_debug().take(SHOWN).collect() };
    let Some(key) = KEYS.iter().find(|key| key.name == name) else {
        let likeness =
            |key: &ConfigKey| (strsim::jaro_winkler(&key.name.to_lowercase(), &name.to_lowercase()), key.name);
        let nearest = KEYS.iter().map(likeness).max_by(|a, b| a.0.total_cmp(&b.0));
        let hint = match nearest.filter(|(likeness, _)| *likeness > 0.8) {
            Some((_, near)) => format!("did you mean '{near}'?"),
            None => format!("there are {}", KEYS.map(|key| key.name).join(", ")),
        };
        return Err(format!("'{}' is no key of the runtime configuration; {hint}", shown(name)));
    };
    (key.read)(value, overrides).map_err(|wanted| {
        let value: String = value.to_string().chars().take(SHOWN).collect();
        format!("'{name}' is {value}; it must be {wanted}")
    })
}
