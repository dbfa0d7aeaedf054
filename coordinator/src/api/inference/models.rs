//! `GET /v1/models` and `/v1/models/{id}`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::response::Response;
use http::Uri;
use model_boss_catalog::{AdapterSource, Model};
use model_boss_core::{AdapterName, ModelStatus, ModelView, SizeRule, SlotView};
use model_boss_dialects::ollama::timestamp;
use model_boss_http::body::json;
use model_boss_http::error::ANTHROPIC_VERSION;
use model_boss_http::path::{parameter, percent_decode, unknown_model};
use model_boss_protocol::{
    ApiError, Backend, ByteCount, Category, ClientId, DeviceFlag, DeviceId, KeepAlive, KvCacheType, Modality, ModelId,
    SpeechVoice, Thinking,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::cloud_models::{self, CloudModel};
use crate::api::admin::tasks::{self, TaskObject};
use crate::api::blocking::blocking;
use crate::api::context::Context;
use crate::api::route::Call;

/// A model as OpenAI's clients read it, with further facts.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ModelObject<'a> {
    id: &'a ModelId,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    kind: &'static str,
    aliases: &'a [ModelId],
    status: ListedStatus<'a>,
    category: Category,
    input_modalities: Vec<Modality>,
    /// The device that the model runs on, or prefers.
    device: &'a DeviceId,
    /// All devices that hold a part of the model; empty before it is loaded (DM-4).
    devices: Vec<&'a DeviceId>,
    backend: &'static str,
    context_length: Option<u64>,
    /// The type of keys and values that was chosen.
    kv_cache_type: KvCacheType,
    size: ByteCount,
    size_rule: SizeRule,
    pinned: bool,
    /// Whether the model's files are on this machine; false for those of a hub that were not pulled (OP-6).
    downloaded: bool,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct ListedStatus<'a> {
    value: ModelStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a str>,
}

/// A model with its manifest's content, its descriptive fields (DM-10) and its path.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ModelDetails<'a> {
    #[serde(flatten)]
    object: ModelObject<'a>,
    /// The path of the manifest; of a model named by its path, that of the model.
    file: String,
    /// The path of the weights.
    source: String,
    labels: &'a [String],
    /// The kinds of devices that the model can use; empty where any will do (MM-5).
    device_flags: &'a [DeviceFlag],
    max_concurrent: u32,
    keep_alive: Option<KeepAlive>,
    thinking: Option<Thinking>,
    /// The voices of a model that speaks, the usual one first.
    voices: Vec<SpeechVoice>,
    /// The names of its adapters, as requests name them.
    adapters: Vec<String>,
    /// Defaults for the fields of requests.
    params: &'a BTreeMap<String, serde_json::Value>,
    version: Option<&'a str>,
    description: Option<&'a str>,
    author: Option<&'a str>,
    license: Option<&'a str>,
    tags: &'a [String],
    custom: &'a BTreeMap<String, serde_json::Value>,
}

/// Another name that a request may use: an alias of a model, or a task.
#[derive(Serialize, JsonSchema)]
pub(crate) struct NameObject<'a> {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    kind: &'static str,
    /// The model of an alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    alias_of: Option<&'a ModelId>,
    /// The model of an adapter, and the adapter's files.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<&'a ModelId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<String>,
    /// The models that may serve a task, the best first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ladder: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum ListedModel<'a> {
    Model(ModelObject<'a>),
    Name(NameObject<'a>),
    Cloud(CloudModel),
}

impl ListedModel<'_> {
    /// The name that a request may use.
    fn id(&self) -> &str {
        match self {
            Self::Model(model) => model.id.as_str(),
            Self::Name(name) => &name.id,
            Self::Cloud(cloud) => &cloud.id,
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct OpenAiModels<'a> {
    object: &'static str,
    data: Vec<ListedModel<'a>>,
}

/// `GET /v1/models`.
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let client = call.client()?;
    let limit = page_limit(call.request.uri())?;
    let context = Arc::clone(&call.context);
    let (views, slots) = look(&context).await;
    let anthropics = call.request.headers().contains_key(ANTHROPIC_VERSION);
    let target = call.request.uri().clone();
    blocking(move || {
        let data = ListedNames { context: &context, client: &client, views: &views, slots: &slots };
        data.answer(anthropics.then_some((&target, limit)))
    })
    .await?
}

/// All names that a client may use, and what they are made of.
struct ListedNames<'a> {
    context: &'a Context,
    client: &'a ClientId,
    views: &'a [ModelView],
    slots: &'a [SlotView],
}

impl ListedNames<'_> {
    /// The list in OpenAI's shape, or a page of it in Anthropic's. The first call reads models' files.
    fn answer(&self, page: Option<(&Uri, usize)>) -> Result<Response, ApiError> {
        let Self { context, client, views, slots } = self;
        let catalog = context.catalog.current();
        let models = views.iter().filter_map(|view| {
            let model = catalog.get(&view.id)?;
            Some(ListedModel::Model(object(view, slots, model, context.catalog.backend(model))))
        });
        let aliases = views.iter().filter_map(|view| Some((view, catalog.get(&view.id)?.created)));
        let aliases = aliases.flat_map(|(view, created)| {
            let named = move |alias: &'_ ModelId| name_object("alias", alias.to_string(), created);
            let entry = move |alias| NameObject { alias_of: Some(&view.id), ..named(alias) };
            view.aliases.iter().map(move |alias| ListedModel::Name(entry(alias)))
        });
        let adapters = views.iter().filter_map(|view| Some((view, catalog.get(&view.id)?.created)));
        let adapters = adapters.flat_map(|(view, created)| {
            let all = context.catalog.adapters(&view.id);
            all.into_iter()
                .map(move |(name, source)| ListedModel::Name(adapter_entry(&view.id, &name, &source, created)))
        });
        let tasks = tasks::objects(context);
        let tasks = tasks.iter().map(|task| ListedModel::Name(task_entry(task)));
        let clouds = cloud_models::permitted(context, client).into_iter().map(ListedModel::Cloud);
        let all = models.chain(aliases).chain(adapters).chain(tasks).chain(clouds);
        let data: Vec<ListedModel<'_>> =
            all.filter(|entry| context.tasks.may_use(client, entry.id(), &context.catalog)).collect();
        match page {
            Some((target, limit)) => {
                json(&AnthropicList::page(data.iter().map(ListedModel::anthropics).collect(), target, limit))
            }
            None => json(&OpenAiModels { object: "list", data }),
        }
    }
}

/// The most models of a page.
fn page_limit(target: &Uri) -> Result<usize, ApiError> {
    let Some(limit) = parameter(target, "limit") else { return Ok(usize::MAX) };
    let number = limit.parse().ok().filter(|limit| *limit > 0);
    number.ok_or_else(|| ApiError::invalid("limit", format!("'limit' must be a whole number from 1, not '{limit}'")))
}

/// A model as Anthropic's clients read it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AnthropicModel {
    #[serde(rename = "type")]
    kind: &'static str,
    id: String,
    display_name: String,
    created_at: String,
}

/// A page of models as Anthropic's clients read it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AnthropicList {
    data: Vec<AnthropicModel>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

impl AnthropicModel {
    fn new(id: &str, created: u64) -> Self {
        Self { kind: "model", id: id.to_owned(), display_name: id.to_owned(), created_at: timestamp(created) }
    }
}

impl AnthropicList {
    /// The page that a query selects by `after_id`, `before_id` and `limit`; without these, all models.
    fn page(mut data: Vec<AnthropicModel>, target: &Uri, limit: usize) -> Self {
        let asked = |name: &str| parameter(target, name);
        let place = |data: &[AnthropicModel], id: &str| data.iter().position(|model| model.id == id);
        if let Some(at) = asked("after_id").and_then(|id| place(&data, &id)) {
            data.drain(..=at);
        }
        let before = asked("before_id").and_then(|id| place(&data, &id));
        if let Some(at) = before {
            data.truncate(at);
        }
        let has_more = data.len() > limit;
        if before.is_some() {
            data.drain(..data.len().saturating_sub(limit));
        }
        data.truncate(limit);
        let id = |model: Option<&AnthropicModel>| model.map(|model| model.id.clone());
        Self { has_more, first_id: id(data.first()), last_id: id(data.last()), data }
    }
}

impl ListedModel<'_> {
    fn anthropics(&self) -> AnthropicModel {
        match self {
            Self::Model(model) => AnthropicModel::new(model.id.as_str(), model.created),
            Self::Name(name) => AnthropicModel::new(&name.id, name.created),
            Self::Cloud(model) => AnthropicModel::new(&model.id, 0),
        }
    }
}

/// Has a model remember the kinds of input that it takes. The first time that reads its files.
fn know_inputs(context: &Context, model: &Model) {
    model.input_modalities(context.catalog.backend(model));
}

fn name_object(kind: &'static str, id: String, created: u64) -> NameObject<'static> {
    let (owned_by, ladder) = ("model-boss", Vec::new());
    let (alias_of, parent, root, description) = (None, None, None, None);
    NameObject { id, object: "model", created, owned_by, kind, alias_of, parent, root, ladder, description }
}

/// An adapter as vLLM lists it: with its model and its path.
fn adapter_entry<'a>(model: &'a ModelId, name: &str, source: &AdapterSource, created: u64) -> NameObject<'a> {
    let entry = name_object("adapter", format!("{model}:{name}"), created);
    NameObject { parent: Some(model), root: Some(source.path.display().to_string()), ..entry }
}

fn task_entry(task: &TaskObject) -> NameObject<'static> {
    let name = name_object("task", format!("task:{}", task.name), 0);
    NameObject { ladder: task.usable_names(), description: task.description.clone(), ..name }
}

/// `GET /v1/models/{id}`; the id may contain `/` and `:`, raw or percent-encoded, and may be an alias.
pub(crate) async fn show(call: Call) -> Result<Response, ApiError> {
    let context = &call.context;
    let path = call.request.uri().path();
    let id = path.split_once("/models/").map_or("", |(_, id)| id);
    let id = percent_decode(id).ok_or_else(|| unknown_model(id))?;
    let entry = |entry: ListedModel<'_>| match call.request.headers().contains_key(ANTHROPIC_VERSION) {
        true => json(&entry.anthropics()),
        false => json(&entry),
    };
    if let Some(task) = id.strip_prefix("task:") {
        let current = context.tasks.current();
        return entry(ListedModel::Name(task_entry(&tasks::object(context, &current.names, task)?)));
    }
    if let Some(cloud) = cloud_models::find(context, &call.client()?, &id)? {
        return entry(ListedModel::Cloud(cloud));
    }
    let catalog = context.catalog.current();
    if catalog.find(&id).is_none()
        && let AdapterName::Known { model, adapter } = context.catalog.adapter_named(&id)
        && let Some(source) = context.catalog.adapters(&model).remove(&adapter)
    {
        let created = catalog.get(&model).map_or(0, |model| model.created);
        return entry(ListedModel::Name(adapter_entry(&model, &adapter, &source, created)));
    }
    let model = catalog.find(&id).ok_or_else(|| unknown_model(&id))?;
    let (reading, known) = (Arc::clone(context), Arc::clone(model));
    let voices = blocking(move || {
        know_inputs(&reading, &known);
        known.voices()
    })
    .await?;
    let (views, slots) = look(context).await;
    let view = views.iter().find(|view| view.id == model.description.id).ok_or_else(|| unknown_model(&id))?;
    let object = object(view, &slots, model, context.catalog.backend(model));
    if call.request.headers().contains_key(ANTHROPIC_VERSION) {
        return entry(ListedModel::Model(object));
    }
    let (manifest, adapters) = (&model.manifest, context.catalog.adapters(&model.description.id));
    json(&ModelDetails {
        object,
        file: model.file.display().to_string(),
        source: model.source.display().to_string(),
        labels: &manifest.labels,
        device_flags: manifest.device_flags(),
        max_concurrent: model.description.max_concurrent,
        keep_alive: manifest.keep_alive,
        thinking: manifest.thinking,
        voices,
        adapters: adapters.into_keys().map(|name| format!("{}:{name}", view.id)).collect(),
        params: &manifest.params,
        version: manifest.version.as_deref(),
        description: manifest.description.as_deref(),
        author: manifest.author.as_deref(),
        license: manifest.license.as_deref(),
        tags: &manifest.tags,
        custom: &manifest.custom,
    })
}

pub(crate) async fn look(context: &Context) -> (Vec<ModelView>, Vec<SlotView>) {
    context.scheduling.view(|scheduler, _| (scheduler.models(), scheduler.slots())).await.unwrap_or_default()
}

fn object<'a>(view: &'a ModelView, slots: &'a [SlotView], model: &'a Model, backend: Backend) -> ModelObject<'a> {
    let slot = slots.iter().find(|slot| Some(slot.id) == view.slot);
    let devices: Vec<&DeviceId> = slot.into_iter().flat_map(|slot| &slot.parts).map(|(device, _)| device).collect();
    ModelObject {
        id: &view.id,
        object: "model",
        created: model.created,
        owned_by: "model-boss",
        kind: "model",
        aliases: &view.aliases,
        status: ListedStatus { value: view.status, progress: view.progress, failure: view.failure.as_deref() },
        category: view.category,
        input_modalities: model.input_modalities(backend),
        device: devices.first().copied().unwrap_or(&view.device),
        devices,
        backend: backend.as_str(),
        context_length: view.context_length.or(model.manifest.context_length),
        kv_cache_type: slot.map_or(model.manifest.kv_cache_type.unwrap_or_default(), |slot| slot.kv_cache_type),
        size: view.size,
        size_rule: view.size_rule,
        pinned: view.pin,
        downloaded: !model.is_absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_paged_as_anthropics_clients_ask() {
        let page = |query: &str| {
            let models = ["a", "b", "c", "d/e"].map(|id| AnthropicModel::new(id, 0)).into();
            let target = format!("/v1/models?{query}").parse().unwrap();
            let page = AnthropicList::page(models, &target, page_limit(&target).unwrap());
            (page.data.iter().map(|model| model.id.clone()).collect::<Vec<_>>().join(" "), page.has_more)
        };
        for (query, ids, has_more) in [
            ("", "a b c d/e", false),
            ("limit=2", "a b", true),
            ("limit=2&after_id=b", "c d/e", false),
            ("after_id=d%2Fe", "", false),
            ("limit=1&before_id=c", "b", true),
            ("after_id=nobody", "a b c d/e", false),
        ] {
            assert_eq!(page(query), (ids.to_owned(), has_more), "{query}");
        }
    }
}
