//! `GET /api/v1/clients`: recent clients with their requests and usage, and every client's limits with their source
//! (RC-9, RC-24).

use std::collections::BTreeMap;

use axum::response::Response;
use model_boss_core::{ClientRule, ClientRules, ClientView};
use model_boss_http::body::json as answer;
use model_boss_protocol::{ApiError, ClientId};
use model_boss_tasks::{ClientProfile, EVERYBODY, TasksFile};
use serde_json::{Map, Value, json};

use super::view_bodies::{ClientObject, ClientSettings, ClientsAnswer, SettingView};
use crate::api::route::Call;

/// Every recent client, and every configured profile.
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let context = call.context;
    let views = context.scheduling.view(|scheduler, now| scheduler.clients(now)).await.unwrap_or_default();
    let (current, rules) = (context.tasks.current(), context.tasks.client_rules());
    let written = WrittenRules { file: current.names.file(), rules: &rules };
    let client = |client: ClientView| {
        let profile = client.id.client().map(|id| written.profile(id));
        ClientObject { client, profile }
    };
    let clients = views.into_iter().map(client).collect();
    let profiles = written.names().into_iter().map(|id| ClientSettings { profile: written.profile(&id), id });
    answer(&context.clock.dated(json!(ClientsAnswer { clients, profiles: profiles.collect() })))
}

/// The rules of clients: in `tasks.yaml`, and below them in the configuration.
struct WrittenRules<'a> {
    file: &'a TasksFile,
    /// The rules of file and configuration, merged as in the scheduler.
    rules: &'a ClientRules,
}

impl WrittenRules<'_> {
    /// Every recent client, and every client with an entry of its own.
    fn names(&self) -> Vec<ClientId> {
        let named = self.file.clients.keys().map(|name| ClientId::from(name.as_str()));
        let mut named: Vec<ClientId> =
            named.chain(self.rules.named.keys().cloned()).filter(|id| id.as_str() != EVERYBODY).collect();
        named.sort();
        named.dedup();
        named.insert(0, ClientId::from(EVERYBODY));
        named
    }

    /// The limits of a client, key by key, under the names of `tasks.yaml`.
    fn profile(&self, client: &ClientId) -> BTreeMap<String, SettingView> {
        let own = self.file.clients.get(client.as_str()).map(keys).unwrap_or_default();
        let everybody = self.file.clients.get(EVERYBODY).map(keys).unwrap_or_default();
        let names = self.file.profile(client);
        let rule = self.rules.of(client);
        let (limits, usual) = (limits(rule), limits(&ClientRule::default()));
        let permissions = [
            ("models", json!(names.models), json!({})),
            ("allowed_models", json!(names.allowed_models), Value::Null),
            ("cloud", json!(names.cloud.unwrap_or(true)), json!(true)),
            ("daily_spend_usd", json!(names.daily_spend_usd), Value::Null),
            ("daily_tokens", json!(names.daily_tokens), Value::Null),
        ];
        let all = limits.into_iter().zip(usual).map(|((name, value), (_, usual))| (name, value, usual));
        let setting = |(name, value, usual): (&str, Value, Value)| {
            let origin = if own.contains_key(name) {
                format!("tasks.yaml: clients.{client}")
            } else if everybody.get(name) == Some(&value) {
                format!("tasks.yaml: clients.{EVERYBODY}")
            } else if value != usual {
                "model-boss.toml: [clients]".to_owned()
            } else {
                "default".to_owned()
            };
            (name.to_owned(), SettingView { value, origin })
        };
        all.chain(permissions).map(setting).collect()
    }
}

/// The keys that a profile sets.
fn keys(profile: &ClientProfile) -> Map<String, Value> {
    match json!(profile) {
        Value::Object(keys) => keys,
        _ => Map::new(),
    }
}

/// A rule under the names of `tasks.yaml`.
fn limits(rule: &ClientRule) -> [(&'static str, Value); 6] {
    let ClientRule { max_priority, default_priority, max_concurrent, cooldown, rate_per_minute, max_queued } = rule;
    [
        ("default_priority", json!(default_priority)),
        ("max_priority", json!(max_priority)),
        ("max_concurrent", json!(max_concurrent)),
        ("cooldown_s", json!(cooldown.as_secs_f64())),
        ("rate_per_minute", json!(rate_per_minute)),
        ("max_queued", json!(max_queued)),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model_boss_tasks::Providers;

    use super::*;

    const FILE: &str = "clients:\n  default: {max_concurrent: 8, models: {a: b}}\n  phone:\n    cooldown_s: 0.5\n    \
                        cloud: false\n    models: {gpt: guide}\n    allowed_models: [guide]\n";

    fn told(client: &str) -> BTreeMap<String, SettingView> {
        let file = TasksFile::read(FILE, &Providers::new()).unwrap();
        let night = ClientRule { max_queued: Some(3), cooldown: Duration::from_secs(2), ..ClientRule::default() };
        let base = ClientRules { named: [("night".into(), night)].into(), ..ClientRules::default() };
        let rules = file.client_rules(&base);
        let written = WrittenRules { file: &file, rules: &rules };
        assert_eq!(written.names(), ["default".into(), "night".into(), "phone".into()]);
        written.profile(&client.into())
    }

    #[test]
    fn rc_24_every_key_is_told_with_who_says_so() {
        let setting = |value: Value, origin: &str| SettingView { value, origin: origin.to_owned() };
        let phone = told("phone");
        assert_eq!(phone["cooldown_s"], setting(json!(0.5), "tasks.yaml: clients.phone"));
        assert_eq!(phone["cloud"], setting(json!(false), "tasks.yaml: clients.phone"));
        assert_eq!(phone["models"], setting(json!({ "a": "b", "gpt": "guide" }), "tasks.yaml: clients.phone"));
        assert_eq!(phone["allowed_models"].value, json!(["guide"]));
        assert_eq!(phone["max_concurrent"], setting(json!(8), "tasks.yaml: clients.default"));
        assert_eq!(phone["max_priority"], setting(json!(2), "default"));
        assert_eq!(phone["daily_spend_usd"], setting(Value::Null, "default"));
        let stranger = told("stranger");
        assert_eq!(stranger["models"], setting(json!({ "a": "b" }), "tasks.yaml: clients.default"));
        let night = told("night");
        assert_eq!(night["cooldown_s"], setting(json!(2.0), "model-boss.toml: [clients]"));
        assert_eq!(night["max_queued"], setting(json!(3), "model-boss.toml: [clients]"));
        assert_eq!(night["cloud"], setting(json!(true), "default"));
    }
}
