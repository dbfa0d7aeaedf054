//! The shape of `tasks.yaml`.

use std::collections::BTreeMap;
use std::time::Duration;

use model_boss_core::{ClientRule, ClientRules, DEFAULT_PATIENCE};
use model_boss_protocol::{Category, ClientId, KeepAlive, Priority, Thinking};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name of the profile that applies to everyone.
pub const EVERYBODY: &str = "default";

/// The tasks, which name ladders of models, and the clients with their limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "tasks.yaml of model-boss")]
pub struct TasksFile {
    /// Tasks by name: a request asks for `task:NAME`.
    pub tasks: BTreeMap<String, Task>,
    /// Clients by name: `x_client_id`, or the header `X-Client-Id`. `default` applies to everyone, and is the base of
    /// the others.
    pub clients: BTreeMap<String, ClientProfile>,
    /// Values for all tasks that do not set their own.
    pub defaults: TaskDefaults,
}

/// Defines a struct with the terms of a task's requests between its other fields. Serde cannot refuse unknown fields
/// beside flattened ones, so tasks and their defaults share these by name.
macro_rules! with_terms {
    ($(#[$attribute:meta])* $name:ident { $($before:tt)* } { $($after:tt)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($before)*
            /// The priority of requests that do not state one.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub priority: Option<Priority>,
            /// The longest time of a request in all, in seconds.
            #[serde(skip_serializing_if = "Option::is_none")]
            #[schemars(range(min = 0.001, max = 604_800))]
            pub budget_s: Option<f64>,
            /// The time for which the task's model stays loaded after a request.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub keep_alive_s: Option<KeepAlive>,
            /// Whether the first model is used even when it is not loaded and another one is. If it fails, the next one
            /// is still used.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub pin_primary: Option<bool>,
            /// The number of seconds by which a request waits longer for a model than for the next one of the ladder.
            /// The default is 10.
            #[serde(skip_serializing_if = "Option::is_none")]
            #[schemars(range(min = 0, max = 604_800))]
            pub patience_s: Option<f64>,
            /// Whether a request may be served by another model than the first.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub fallback: Option<Fallback>,
            $($after)*
        }
    };
}

with_terms! {
    /// A name for a ladder of models, and the treatment of its requests.
    Task {
        /// A human-readable description.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub description: Option<String>,
        /// Models, the best first: names or aliases of models of this machine, or `PROVIDER:MODEL`.
        #[schemars(length(min = 1))]
        pub ladder: Vec<String>,
        /// The category of the task's requests. By default it is that of the first model of this machine in the ladder,
        /// or `llm` without one.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub category: Option<Category>,
    } {
        /// Whether models that can reason before their answers do so.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub thinking: Option<Thinking>,
        /// Whether the task's requests always stay on this machine, whatever the ladder or a client states.
        pub local_only: bool,
        /// Values for fields that requests do not set: `temperature`, `max_tokens`, …
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub params: BTreeMap<String, Value>,
    }
}

with_terms! {
    /// Values for tasks that do not set their own.
    TaskDefaults {} {}
}

/// Whether a request may be served by another model than the first of its ladder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fallback {
    /// Any model of the ladder may serve the request.
    #[default]
    Any,
    /// Only the first model may serve the request.
    None,
}

/// The limits of a client, and the meaning of the names it uses (RC-24).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientProfile {
    /// The priority of requests that do not state one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_priority: Option<Priority>,
    /// The most important priority that the client's requests can have, whatever they state. The default is 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_priority: Option<Priority>,
    /// The names that the client uses, each with the model or `task:NAME` that it means. `"*"` stands for all other
    /// names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, String>,
    /// The models and `task:NAME`s that it may ask for. A name that ends in `*` permits all that begin with it. The
    /// default is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_models: Option<Vec<String>>,
    /// The largest number of the client's running requests; further ones wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrent: Option<u32>,
    /// The shortest time between the end of one request and the start of the client's next, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub cooldown_s: Option<f64>,
    /// The largest number of requests in a minute; further ones are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub rate_per_minute: Option<u32>,
    /// The largest number of the client's waiting requests; further ones are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_queued: Option<u32>,
    /// Whether the client's requests may leave this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud: Option<bool>,
    /// The limit of the client's spending at cloud providers in a day, in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub daily_spend_usd: Option<f64>,
    /// The most tokens of the client's prompts and answers in a day; further requests are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daily_tokens: Option<u64>,
    /// The list of the client's key, which permits no more than `allowed_models` does.
    #[serde(skip)]
    pub(crate) key_models: Option<Vec<String>>,
}

/// The limits of a client's key. They hold beside those of its profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyRule {
    /// The models and `task:NAME`s that the key permits, in the form of `allowed_models`.
    pub allowed_models: Option<Vec<String>>,
    /// The most tokens in a day.
    pub daily_tokens: Option<u64>,
    /// The most dollars at cloud providers in a day.
    pub daily_spend_usd: Option<f64>,
}

impl TasksFile {
    /// The profile of a client: its own values, completed with those for everyone.
    pub fn profile(&self, client: &ClientId) -> ClientProfile {
        let everybody = self.clients.get(EVERYBODY);
        let own = self.clients.get(client.as_str()).filter(|_| client.as_str() != EVERYBODY);
        match (everybody, own) {
            (None, None) => ClientProfile::default(),
            (Some(profile), None) | (None, Some(profile)) => profile.clone(),
            (Some(base), Some(own)) => own.over(base),
        }
    }

    /// The rules of clients for the scheduler: those of this file, completed with `base`, the rules of the
    /// configuration.
    pub fn client_rules(&self, base: &ClientRules) -> ClientRules {
        let everybody = self.clients.get(EVERYBODY);
        let default = everybody.map_or_else(|| base.default.clone(), |profile| profile.rule(&base.default));
        let mut named: BTreeMap<ClientId, ClientRule> = base.named.clone();
        for (name, profile) in self.clients.iter().filter(|(name, _)| *name != EVERYBODY) {
            let id = ClientId::from(name.as_str());
            let under = base.named.get(&id).unwrap_or(&default);
            named.insert(id, profile.rule(under));
        }
        ClientRules { default, named }
    }
}

impl ClientProfile {
    fn over(&self, base: &Self) -> Self {
        let mut models = base.models.clone();
        models.extend(self.models.clone());
        Self {
            default_priority: self.default_priority.or(base.default_priority),
            max_priority: self.max_priority.or(base.max_priority),
            models,
            allowed_models: self.allowed_models.clone().or_else(|| base.allowed_models.clone()),
            max_concurrent: self.max_concurrent.or(base.max_concurrent),
            cooldown_s: self.cooldown_s.or(base.cooldown_s),
            rate_per_minute: self.rate_per_minute.or(base.rate_per_minute),
            max_queued: self.max_queued.or(base.max_queued),
            cloud: self.cloud.or(base.cloud),
            daily_spend_usd: self.daily_spend_usd.or(base.daily_spend_usd),
            daily_tokens: self.daily_tokens.or(base.daily_tokens),
            key_models: None,
        }
    }

    /// This profile within the limits of the client's key.
    #[must_use]
    pub fn within(&self, key: &KeyRule) -> Self {
        let least = |own: Option<f64>, key: Option<f64>| own.into_iter().chain(key).reduce(f64::min);
        Self {
            key_models: key.allowed_models.clone(),
            daily_tokens: self.daily_tokens.into_iter().chain(key.daily_tokens).min(),
            daily_spend_usd: least(self.daily_spend_usd, key.daily_spend_usd),
            ..self.clone()
        }
    }

    /// The lists that each permit some models: the profile's, and the key's.
    pub fn lists_of_models(&self) -> impl Iterator<Item = &Vec<String>> {
        self.allowed_models.iter().chain(&self.key_models)
    }

    fn rule(&self, base: &ClientRule) -> ClientRule {
        ClientRule {
            max_priority: self.max_priority.unwrap_or(base.max_priority),
            default_priority: self.default_priority.unwrap_or(base.default_priority),
            max_concurrent: self.max_concurrent.or(base.max_concurrent),
            cooldown: self.cooldown_s.map_or(base.cooldown, seconds),
            rate_per_minute: self.rate_per_minute.or(base.rate_per_minute),
            max_queued: self.max_queued.or(base.max_queued),
        }
    }
}

impl Task {
    /// This task, with the defaults for values that it does not set.
    pub fn with(&self, defaults: &TaskDefaults) -> Self {
        Self {
            priority: self.priority.or(defaults.priority),
            budget_s: self.budget_s.or(defaults.budget_s),
            keep_alive_s: self.keep_alive_s.or(defaults.keep_alive_s),
            pin_primary: self.pin_primary.or(defaults.pin_primary),
            patience_s: self.patience_s.or(defaults.patience_s),
            fallback: self.fallback.or(defaults.fallback),
            ..self.clone()
        }
    }

    /// The time by which the task's requests wait longer for a rung than for the next one.
    pub(crate) fn patience(&self) -> Duration {
        self.patience_s.map_or(DEFAULT_PATIENCE, seconds)
    }
}

/// A number of seconds as a duration. It was checked before: neither negative nor too large.
pub(crate) fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or_default()
}

#[cfg(test)]
mod tests;
