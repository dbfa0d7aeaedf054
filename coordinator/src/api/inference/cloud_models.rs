//! Models of cloud providers that a caller may use: those with a short name in the configuration, and those that
//! `tasks.yaml` names (TR-1). A provider without a key cannot be used, so its models are not listed.

use std::collections::BTreeSet;

use model_boss_core::Target;
use model_boss_http::path::unknown_model;
use model_boss_protocol::{ApiError, ClientId};
use model_boss_tasks::NameQuestion;
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::context::Context;

/// A model of a provider, as OpenAI's clients read it.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct CloudModel {
    pub(super) id: String,
    object: &'static str,
    /// The time of the model's creation: 0, because it is unknown.
    created: u64,
    owned_by: String,
    kind: &'static str,
    /// The provider's own name of the model.
    pub(super) served_as: String,
    category: &'static str,
    /// Whether requests to the model leave the machines of this coordinator's owner.
    cloud: bool,
    #[serde(skip)]
    pub(super) provider: String,
}

/// Every provider's model that this client may use, by name.
pub(crate) fn permitted(context: &Context, client: &ClientId) -> Vec<CloudModel> {
    let current = context.tasks.current();
    let profile = current.names.profile(client);
    let on_ladders = current.names.file().tasks.values().flat_map(|task| &task.ladder);
    let written = on_ladders.chain(profile.models.values()).chain(profile.lists_of_models().flatten());
    let elsewhere = written.filter(|name| matches!(context.tasks.providers().target(name), Target::Cloud { .. }));
    // A pattern such as `claude:*` in a list of permissions is no name.
    let named = elsewhere.filter(|name| !name.ends_with('*')).cloned();
    let names: BTreeSet<String> = context.clouds.configured_models().into_iter().chain(named).collect();
    names.into_iter().filter_map(|name| find(context, client, &name).ok().flatten()).collect()
}

/// The provider's model with this name; `None` where the name means something else. The call fails where the client may
/// not use the model, or the provider lacks its key.
pub(crate) fn find(context: &Context, client: &ClientId, name: &str) -> Result<Option<CloudModel>, ApiError> {
    let here = context.catalog.current().find(name).is_some();
    let Target::Cloud { provider, model } = context.tasks.providers().target(name) else { return Ok(None) };
    if here {
        return Ok(None);
    }
    let question = NameQuestion { model: Some(name), task: None, client, no_fallback: false };
    let meant = context.tasks.resolve(&question, &context.catalog)?.ladder().first.target.clone();
    let target = Target::Cloud { provider: provider.clone(), model: model.clone() };
    // In `tasks.yaml`, a name may mean another model for some clients.
    if meant != target {
        return Ok(None);
    }
    let served_as = context.clouds.served_as(&provider, &model).ok_or_else(|| unknown_model(name))?;
    Ok(Some(CloudModel {
        id: name.to_owned(),
        object: "model",
        created: 0,
        owned_by: provider.clone(),
        kind: "cloud",
        served_as,
        category: "llm",
        cloud: context.tasks.providers().is_cloud(&target),
        provider,
    }))
}
