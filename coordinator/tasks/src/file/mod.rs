//! The shape of `tasks.yaml`.

use std::collections::BTreeMap;
use std::time::Duration;

use model_boss_core::{ClientRule, ClientRules, DEFAULT_PATIENCE};
use model_boss_protocol::{Category, ClientId, KeepAlive, Priority, Thinking};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The name of the profile for everybody.
pub const EVERYBODY: &str = "default";

/// What names stand for, and what clients may ask for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "tasks.yaml of model-boss")]
pub struct TasksFile {
    /// By name: a request asks for `task:NAME`.
    pub tasks: BTreeMap<String, Task>,
    /// By name: `x_client_id`, or the header `X-Client-Id`. `default` is for everybody, and the base of the others.
    pub clients: BTreeMap<String, ClientProfile>,
    /// For every task that does not say otherwise.
    pub defaults: TaskDefaults,
}

/// A name for a ladder of models, and how its requests are treated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Task {
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Models, the best first: names or aliases of models of this machine, or `PROVIDER:MODEL`.
    #[schemars(length(min = 1))]
    pub ladder: Vec<String>,
    /// What its requests ask for, where no model of this machine in its ladder tells it: `llm` when nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<Category>,
    /// The priority of its requests that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// How long a request may take in all, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001, max = 604_800))]
    pub budget_s: Option<f64>,
    /// How long its model stays loaded after a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive_s: Option<KeepAlive>,
    /// Take the first model even when it is not loaded and another one is. Its failure still leads further.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin_primary: Option<bool>,
    /// How many seconds longer a request waits for a model than for the next one of the ladder; 10 when nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub patience_s: Option<f64>,
    /// Whether a request may be served by another model than the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
    /// Whether models that can think aloud do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
    /// Its requests never leave this machine, whatever the ladder or a client says.
    pub local_only: bool,
    /// Fields of requests that do not set them: `temperature`, `max_tokens`, …
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, Value>,
}

/// What holds for tasks that say nothing else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskDefaults {
    /// The priority of requests that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// How long a request may take in all, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.001, max = 604_800))]
    pub budget_s: Option<f64>,
    /// How long a model stays loaded after a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive_s: Option<KeepAlive>,
    /// Take the first model even when it is not loaded and another one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin_primary: Option<bool>,
    /// How many seconds longer a request waits for a model than for the next one of the ladder.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub patience_s: Option<f64>,
    /// Whether a request may be served by another model than the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback: Option<Fallback>,
}

/// Whether a request may be served by another model than the first of its ladder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fallback {
    /// By any of the ladder.
    #[default]
    Any,
    /// By the first or by none.
    None,
}

/// What a client may ask for, and what its names mean here (RC-24).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientProfile {
    /// The priority of its requests that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_priority: Option<Priority>,
    /// The most important priority it gets, whatever it asks for; 2 when nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_priority: Option<Priority>,
    /// What its names mean: the name it asks for, and the model or `task:NAME` that it gets. `"*"` is every other name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, String>,
    /// What it may ask for: models, `task:NAME`, or beginnings of them with `*` behind. Everything when nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_models: Option<Vec<String>>,
    /// Its requests that run at once; more wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_concurrent: Option<u32>,
    /// The least time between the end of one of its requests and the start of the next, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub cooldown_s: Option<f64>,
    /// Requests it may send in a minute; more are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub rate_per_minute: Option<u32>,
    /// Its requests that may wait; more are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_queued: Option<u32>,
    /// Whether its requests may leave this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud: Option<bool>,
    /// What its requests to clouds may cost in a day, in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub daily_spend_usd: Option<f64>,
}

impl TasksFile {
    /// The profile of a client: its own words over everybody's.
    pub fn profile(&self, client: &ClientId) -> ClientProfile {
        let everybody = self.clients.get(EVERYBODY);
        let own = self.clients.get(client.as_str()).filter(|_| client.as_str() != EVERYBODY);
        match (everybody, own) {
            (None, None) => ClientProfile::default(),
            (Some(profile), None) | (None, Some(profile)) => profile.clone(),
            (Some(base), Some(own)) => own.over(base),
        }
    }

    /// What clients may do, as the scheduler takes it: this file's word over `base`, which is what the configuration says.
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
        }
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
    /// The same with what the defaults say where it says nothing.
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

    /// How much longer its requests wait for a rung than for the next.
    pub(crate) fn patience(&self) -> Duration {
        self.patience_s.map_or(DEFAULT_PATIENCE, seconds)
    }
}

/// Checked before: neither negative nor endless.
pub(crate) fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or_default()
}

#[cfg(test)]
mod tests;
