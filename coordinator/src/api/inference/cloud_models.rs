//! Models of providers elsewhere that a caller may use: those that the configuration gives short names to, and those
//! that `tasks.yaml` names (TR-1). A provider that has no key is asked by nobody, so none of its models is listed.

use std::collections::BTreeSet;

use model_boss_core::Target;
use model_boss_http::path::unknown_model;
use model_boss_protocol::{ApiError, ClientId};
use model_boss_tasks::Question;
use serde::Serialize;

use crate::api::context::Context;

/// One of them, as OpenAI's clients read it.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct CloudModel {
    pub(super) id: String,
    object: &'static str,
    /// Nobody says.
    created: u64,
    owned_by: String,
    kind: &'static str,
    /// The provider's own name of it.
    pub(super) served_as: String,
    category: &'static str,
    /// Whether what is sent there leaves this machine's owner.
    cloud: bool,
    #[serde(skip)]
    pub(super) provider: String,
}

/// Every one that this client may use, by name.
pub(crate) fn permitted(context: &Context, client: &ClientId) -> Vec<CloudModel> {
    let current = context.tasks.current();
    let profile = current.names.profile(client);
    let on_ladders = current.names.file().tasks.values().flat_map(|task| &task.ladder);
    let written = on_ladders.chain(profile.models.values()).chain(profile.allowed_models.iter().flatten());
    let elsewhere = written.filter(|name| matches!(context.tasks.providers().target(name), Target::Cloud { .. }));
    // `claude:*` on a list of what is allowed is no name.
    let named = elsewhere.filter(|name| !name.ends_with('*')).cloned();
    let names: BTreeSet<String> = context.clouds.configured_models().into_iter().chain(named).collect();
    names.into_iter().filter_map(|name| find(context, client, &name).ok().flatten()).collect()
}

/// The one of this name; nothing where the name means something else. An error where the client may not use it, or the
/// provider cannot be asked.
pub(crate) fn find(context: &Context, client: &ClientId, name: &str) -> Result<Option<CloudModel>, ApiError> {
    let here = context.catalog.current().find(name).is_some();
    let Target::Cloud { provider, model } = context.tasks.providers().target(name) else { return Ok(None) };
    if here {
        return Ok(None);
    }
    let question = Question { model: Some(name), task: None, client, no_fallback: false };
    let meant = context.tasks.resolve(&question, &context.catalog)?.ladder().first.target.clone();
    let target = Target::Cloud { provider: provider.clone(), model: model.clone() };
    // Some clients' names mean something else.
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
