//! Keys and values. How they are stored, shared and obeyed is shown with real processes in `tests/it/config.rs`.

use serde_json::json;

use super::*;
use model_boss_core::{MaxLoaded, Settings};
use model_boss_protocol::{Category, KeepAlive};

use crate::config::LogLevel;
use crate::settings::Configured;

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn refused(value: Value) -> (Option<String>, String) {
    let error = values::check(&object(value)).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidRequest);
    (error.param, error.message)
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
    let overrides = values::overrides(&shown).unwrap();
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
    values::check(&object(json!({ "maxQueue": null, "modelIdleSecs": 0, "maxLoadedModels": 2 }))).unwrap();
    let two = values::overrides(&object(json!({ "maxLoadedModels": 2 }))).unwrap().max_loaded.unwrap();
    assert_eq!((two.of(Category::Llm), two.of(Category::Tts)), (Some(2), Some(1)));
}
