//! Tests of keys and values. Their storage, sharing and effects are tested with real processes in `tests/it/config.rs`.

use model_boss_config::LogLevel;
use model_boss_core::{MaxLoaded, Settings};
use model_boss_protocol::{Category, KeepAlive};
use serde_json::json;

use super::*;
use crate::live::{Configured, Overrides};

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn refused(value: Value) -> (Option<String>, String) {
    match values::check(&object(value), &Map::new()).unwrap_err() {
        SettingsError::Invalid { key, message } => (Some(key), message),
        other => panic!("{other}"),
    }
}

#[test]
fn tr_4_every_key_takes_what_it_shows() {
    let configured = Configured {
        settings: Settings::default(),
        allow_cloud_fallback: true,
        model_idle: Some(KeepAlive::For(Duration::from_millis(1_500))),
        log_level: LogLevel::Info,
    };
    let shown: Map<String, Value> =
        KEYS.iter().map(|key| (key.name.to_owned(), (key.configured)(&configured))).collect();
    assert_eq!(
        Value::Object(shown.clone()),
        json!({
            "allowCloudFallback": true, "agingStepS": 30, "maxWaitS": 600, "modelIdleSecs": 1.5,
            "maxLoadedModels": "auto", "maxQueue": 4096, "logLevel": "info",
        })
    );
    let Reading { overrides, ignored } = Reading::of(&shown);
    assert_eq!(ignored, []);
    assert_eq!(overrides.aging_step, Some(Duration::from_secs(30)));
    assert_eq!(overrides.max_loaded, Some(MaxLoaded::Auto));
    assert_eq!(overrides.model_idle, Some(KeepAlive::For(Duration::from_millis(1_500))));
}

#[test]
fn tr_4_unknown_keys_and_wrong_types_are_named_all_at_once() {
    let (param, message) = refused(json!({ "allowCloudFallbak": false, "maxQueue": 0, "logLevel": "loud" }));
    assert_eq!(param.as_deref(), Some("allowCloudFallbak"));
    for part in ["did you mean 'allowCloudFallback'?", "'maxQueue' is 0", "'logLevel' is \"loud\"", "off, error, warn"]
    {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
    for wrong in [
        json!({ "allowCloudFallback": "yes" }),
        json!({ "agingStepS": 0 }),
        json!({ "agingStepS": "30s" }),
        json!({ "maxWaitS": -1 }),
        json!({ "maxLoadedModels": { "llm": 0 } }),
        json!({ "maxLoadedModels": 0 }),
        json!({ "maxQueue": 1.5 }),
        json!({ "aging_step": null }),
    ] {
        refused(wrong);
    }
    values::check(&object(json!({ "maxQueue": null, "modelIdleSecs": 0, "maxLoadedModels": 2 })), &Map::new()).unwrap();
    let two = Reading::of(&object(json!({ "maxLoadedModels": 2 }))).overrides.max_loaded.unwrap();
    assert_eq!((two.of(Category::Llm), two.of(Category::Tts)), (Some(2), Some(1)));
}

#[test]
fn a_stored_value_that_makes_no_sense_takes_no_other_with_it() {
    let stored = object(json!({ "cloudBudget": 5, "logLevel": "shout", "maxQueue": 7, "allowCloudFallback": false }));
    let Reading { overrides, ignored } = Reading::of(&stored);
    assert_eq!((overrides.max_queue, overrides.cloud_fallback), (Some(7), StoredGuard::Set(false)));
    assert_eq!(ignored.iter().map(|ignored| ignored.key.as_str()).collect::<Vec<_>>(), ["cloudBudget", "logLevel"]);
    // The key can be removed, but not set.
    values::check(&object(json!({ "cloudBudget": null })), &stored).unwrap();
    values::check(&object(json!({ "cloudBudget": 6 })), &stored).unwrap_err();
    values::check(&object(json!({ "cloudBudgets": null })), &stored).unwrap_err();
}

#[test]
fn a_guard_of_which_nothing_is_known_is_shut() {
    assert!(matches!(Overrides::default().cloud_fallback, StoredGuard::Unknown(_)));
    assert_eq!(Reading::of(&Map::new()).overrides.cloud_fallback, StoredGuard::Unset);
    for unclear in [json!("false"), json!(null), json!({ "until": 7 })] {
        let reading = Reading::of(&object(json!({ "allowCloudFallback": unclear })));
        assert!(matches!(reading.overrides.cloud_fallback, StoredGuard::Unknown(_)), "{unclear}");
        assert_eq!(reading.ignored.len(), 1);
    }
}

#[test]
fn fields_of_a_newer_version_stay_and_only_versions_of_one_line_are_compared() {
    let text = r#"{"version":7,"values":{"x":1},"line":"a","format":2}"#;
    let stored = Stored::read(text).unwrap();
    assert_eq!(serde_json::to_value(&stored).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    let next = stored.changed(&object(json!({ "maxQueue": 3, "x": null })));
    assert_eq!(
        serde_json::to_value(&next).unwrap(),
        json!({ "version": 8, "values": { "maxQueue": 3 }, "line": "a", "format": 2 })
    );
    assert!(next.is_newer_than(&stored) && !stored.is_newer_than(&next));
    let other = Stored { line: "b".to_owned(), ..stored.clone() };
    assert!(!next.is_newer_than(&other));
    assert_eq!(next.changed(&object(json!({ "maxQueue": 3 }))), next, "no change is no version");
    for nonsense in
        ["", "[]", "null", r#"{"version":"7","values":{}}"#, r#"{"version":7}"#, r#"{"version":7,"values":3}"#]
    {
        assert!(Stored::read(nonsense).is_err(), "{nonsense}");
    }
}
