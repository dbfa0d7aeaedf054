//! `/api/…`: Ollama's API, for tools that support no other. Queue, models and rules are those of all requests; only the
//! names of fields and routes differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use model_boss_catalog::Model;
use model_boss_core::{AdapterName, LoadOptions, Moment, SlotView, Target};
use model_boss_dialects::ollama::{
    AnswerShape, EmbedShape, OllamaFromChat, OllamaFromEmbeddings, OllamaRequest, context_wish, from_chat, from_embed,
    from_generate, ignored_options, keep_alive_of, model_name, num_ctx, timestamp,
};
use model_boss_dialects::{ContextWish, DialectError, Names, Reshape, Stamp};
use model_boss_host::clocks::unix_seconds;
use model_boss_http::body::{OpenBody, RequestBody, json};
use model_boss_http::path::unknown_model;
use model_boss_protocol::{ApiError, Backend, Category, ClientId, DeviceId, ErrorCode, KeepAlive, Modality, Priority};
use model_boss_tasks::ModelPermit;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::cloud_models::{self, CloudModel};
use super::models::look;
use super::ollama_context::{self, ContextRequest, about_the_context, with_context};
use super::reshape::reshaped;
use crate::api::admin::tasks;
use crate::api::blocking::blocking;
use crate::api::context::Context;
use crate::api::inference::openai::{InferenceRoute, infer_translated};
use crate::api::inference::understood_body::understand;
use crate::api::route::Call;
use crate::refusals::of_dialect;

/// The version of Ollama whose API this is, since its clients require a minimum.
const API_VERSION: &str = "0.13.0";
const LINES: &str = "application/x-ndjson";
/// The header that names options of a request without an effect.
const IGNORED_OPTIONS: HeaderName = HeaderName::from_static("x-ignored-options");
/// The most bytes of that header.
const MAX_IGNORED: usize = 512;

/// `GET /api/version`.
pub(crate) async fn version(_call: Call) -> Result<Response, ApiError> {
    json(&json!({ "version": API_VERSION, "model_boss": env!("CARGO_PKG_VERSION") }))
}

/// `POST /api/chat`.
pub(crate) async fn chat(call: Call) -> Result<Response, ApiError> {
    ask(call, AnswerShape::Chat, from_chat).await
}

/// `POST /api/generate`.
pub(crate) async fn generate(call: Call) -> Result<Response, ApiError> {
    ask(call, AnswerShape::Generate, from_generate).await
}

async fn ask(
    mut call: Call,
    shape: AnswerShape,
    read: fn(&Map<String, Value>) -> Result<OllamaRequest, DialectError>,
) -> Result<Response, ApiError> {
    let began = Instant::now();
    let context = Arc::clone(&call.context);
    let (stamp, ignored, wanted) = request(&mut call, read).await?;
    let (body, names, asked, more) = match wanted {
        OllamaWish::Residency(residency) => return only_residency(&context, shape, &stamp, *residency).await,
        OllamaWish::Answer(body, names, asked, more) => (body, names, asked, more),
    };
    let again = match more {
        Some(more) => ollama_context::make_room(&context, *more).await?,
        None => Duration::ZERO,
    };
    let loading = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&loading);
    let elapsed = Box::new(move || (began.elapsed(), Duration::from_millis(told.load(Ordering::Relaxed))));
    let mut answer = infer_translated(call, (body, &names), asked).await?;
    let reshape: Box<dyn Reshape> = Box::new(OllamaFromChat::new(shape, stamp, names, elapsed));
    let again = u64::try_from(again.as_millis()).unwrap_or(u64::MAX);
    loading.store(load_ms(&answer).saturating_add(again), Ordering::Relaxed);
    answer.headers_mut().extend(ignored.map(|names| (IGNORED_OPTIONS, names)));
    reshaped(&context, answer, reshape, LINES).await
}

/// The meaning of a request.
enum OllamaWish {
    /// The model is to be loaded or unloaded.
    Residency(Box<ResidencyRequest>),
    /// The body is answered as a request of OpenAI's API, by a model with this context.
    Answer(RequestBody, Names, InferenceRoute, Option<Box<ContextRequest>>),
}

/// A request only to load or to unload a model. The client's rules apply as to every other request.
struct ResidencyRequest {
    asked: OllamaRequest,
    /// The permission for the model; `None` for a provider's model, which is never loaded here.
    permit: Option<ModelPermit>,
    priority: Option<Priority>,
    keep_alive: Option<KeepAlive>,
    /// The context that the model should have.
    tokens: Option<u64>,
}

/// Translates a request, and its model's name to the coordinator's own.
async fn request(
    call: &mut Call,
    read: fn(&Map<String, Value>) -> Result<OllamaRequest, DialectError>,
) -> Result<(Stamp, Option<HeaderValue>, OllamaWish), ApiError> {
    let (context, head) = (Arc::clone(&call.context), call.head());
    let translate = move |mut body: OpenBody| {
        let mut given = body.object()?;
        let stamp = named(&mut given)?;
        let tokens = num_ctx(&given).map_err(of_dialect)?;
        let ignored = in_a_header(&ignored_options(&given));
        let context_wish = context_wish(&given).map_err(of_dialect)?;
        let (request, names, path) = match read(&given).map_err(of_dialect)? {
            OllamaRequest::Chat(request, names) => (request, names, "/v1/chat/completions"),
            OllamaRequest::Completion(request, names) => (request, names, "/v1/completions"),
            asked @ (OllamaRequest::Load | OllamaRequest::Unload) => {
                let keep_alive = keep_alive_of(&given).map_err(of_dialect)?;
                body.replace(Value::Object(given).to_string());
                let (peeked, resolved) = understand(&context, &body, &head)?;
                let priority = peeked.priority.or(resolved.priority);
                let permit = resolved.permit.into_model();
                let residency = ResidencyRequest { asked, permit, priority, keep_alive, tokens };
                return Ok((stamp, ignored, OllamaWish::Residency(Box::new(residency))));
            }
        };
        let mut more = None;
        if let Some(tokens) = tokens {
            let keep_alive = keep_alive_of(&given).map_err(of_dialect)?;
            body.replace(Value::Object(given).to_string());
            let (peeked, resolved) = understand(&context, &body, &head)?;
            let priority = peeked.priority.or(resolved.priority);
            let permit = resolved.permit.into_model();
            more = permit.map(|permit| Box::new(ContextRequest { permit, tokens, keep_alive, priority }));
        }
        body.replace(request.to_string());
        let route = InferenceRoute::at(path, Category::Llm).within(context_wish);
        Ok((stamp, ignored, OllamaWish::Answer(body.close(), names, route, more)))
    };
    call.body().await?.open(translate).await
}

/// The names of options without an effect, as a header.
fn in_a_header(names: &[&str]) -> Option<HeaderValue> {
    let mut text = names.iter().map(|name| name.escape_default().to_string()).collect::<Vec<String>>().join(", ");
    text.truncate(MAX_IGNORED);
    HeaderValue::from_str(&text).ok().filter(|text| !text.is_empty())
}

/// Replaces the model's name by the coordinator's. Answers repeat the requested name.
fn named(body: &mut Map<String, Value>) -> Result<Stamp, ApiError> {
    for field in ["model", "name"] {
        if body.get(field).is_some_and(|name| !name.is_null() && !name.is_string()) {
            return Err(ApiError::invalid(field, format!("'{field}' must be a text")));
        }
    }
    let asked = model_name(body).unwrap_or_default().to_owned();
    if !asked.is_empty() {
        body.insert("model".to_owned(), json!(asked));
    }
    let created = unix_seconds();
    Ok(Stamp { id: String::new(), model: asked, created })
}

fn load_ms(answer: &Response) -> u64 {
    answer.headers().get("x-load-ms").and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0)
}

async fn only_residency(
    context: &Context,
    shape: AnswerShape,
    stamp: &Stamp,
    wanted: ResidencyRequest,
) -> Result<Response, ApiError> {
    let ResidencyRequest { asked, permit, priority, keep_alive, tokens } = wanted;
    let unloads = asked == OllamaRequest::Unload;
    let done = async {
        let Some(permit) = permit else { return Ok(()) };
        let model = permit.model();
        let known = context.catalog.current().get(model).cloned();
        let known = known.ok_or_else(|| unknown_model(model.as_str()))?;
        if unloads {
            return match context.scheduling.unload(permit).done().await {
                // The model is unloaded already, as requested.
                Err(error) if error.code == ErrorCode::ModelNotLoaded => Ok(()),
                done => done,
            };
        }
        context.pulls.admit(&known)?;
        let options = LoadOptions { keep_alive, priority, ..LoadOptions::default() };
        let options = with_context(context, permit.model(), tokens, options).await;
        let grows = options.context;
        let done = context.scheduling.load(permit, options).done().await;
        done.map_err(|error| grows.map_or_else(|| error.clone(), |tokens| about_the_context(tokens, error.clone())))
    };
    done.await?;
    Ok(line(&OllamaFromChat::nothing_asked(shape, stamp, if unloads { "unload" } else { "load" })))
}

/// `POST /api/embed`.
pub(crate) async fn embed(call: Call) -> Result<Response, ApiError> {
    vectors(call, EmbedShape::Several).await
}

/// `POST /api/embeddings`.
pub(crate) async fn embeddings(call: Call) -> Result<Response, ApiError> {
    vectors(call, EmbedShape::One).await
}

async fn vectors(mut call: Call, shape: EmbedShape) -> Result<Response, ApiError> {
    let began = Instant::now();
    let context = Arc::clone(&call.context);
    let translate = move |mut body: OpenBody| {
        let mut given = body.object()?;
        let stamp = named(&mut given)?;
        let (request, names) = from_embed(&given, shape).map_err(of_dialect)?;
        // The older route has no `truncate`, and shortens always.
        let truncates = ContextWish { shortens: true, ..ContextWish::default() };
        let wish = if shape == EmbedShape::One { truncates } else { context_wish(&given).map_err(of_dialect)? };
        body.replace(request.to_string());
        Ok((
            stamp,
            body.close(),
            names,
            InferenceRoute::at("/v1/embeddings", Category::Embedding).or(Category::Vision).within(wish),
        ))
    };
    let (stamp, request, names, asked) = call.body().await?.open(translate).await?;
    let answer = infer_translated(call, (request, &names), asked).await?;
    let loading = Duration::from_millis(load_ms(&answer));
    let elapsed = Box::new(move || (began.elapsed(), loading));
    let reshape: Box<dyn Reshape> = Box::new(OllamaFromEmbeddings::new(shape, stamp.model, names, elapsed));
    reshaped(&context, answer, reshape, LINES).await
}

/// `GET /api/tags`: every name that a request may use, except aliases.
pub(crate) async fn tags(call: Call) -> Result<Response, ApiError> {
    let client = call.client()?;
    let context = call.context;
    let listed = blocking(move || {
        let catalog = context.catalog.current();
        let mut models: Vec<Value> = catalog.models().map(|model| listed(model)).collect();
        let of_model = |model: &Arc<Model>| {
            let (id, adapters) = (&model.description.id, context.catalog.adapters(&model.description.id));
            adapters.into_keys().map(|name| listed_adapter(model, &format!("{id}:{name}"))).collect::<Vec<Value>>()
        };
        models.extend(catalog.models().flat_map(of_model));
        let current = context.tasks.current();
        models.extend(current.names.file().tasks.keys().map(|task| listed_name(&format!("task:{task}"))));
        models.extend(cloud_models::permitted(&context, &client).iter().map(|cloud| listed_elsewhere(&context, cloud)));
        models.retain(|model| {
            model["name"].as_str().is_none_or(|name| context.tasks.may_use(&client, name, &context.catalog))
        });
        json(&json!({ "models": models }))
    });
    listed.await?
}

/// An entry for an adapter: that of its model, with the adapter's name.
fn listed_adapter(model: &Model, name: &str) -> Value {
    let mut entry = listed(model);
    (entry["name"], entry["model"]) = (json!(name), json!(name));
    entry["details"]["parent_model"] = json!(model.description.id);
    entry
}

/// An entry for a name without files on this machine.
fn listed_name(name: &str) -> Value {
    json!({
        "name": name, "model": name, "modified_at": timestamp(0), "size": 0, "digest": "0".repeat(64),
        "details": no_details(),
    })
}

fn listed_elsewhere(context: &Context, cloud: &CloudModel) -> Value {
    let mut entry = listed_name(&cloud.id);
    entry["remote_model"] = json!(cloud.served_as);
    entry["remote_host"] = json!(context.clouds.address(&cloud.provider));
    entry
}

fn no_details() -> Value {
    json!({
        "parent_model": "", "format": "", "family": "", "families": null, "parameter_size": "", "quantization_level": "",
    })
}

/// `GET /api/ps`: the loaded models.
pub(crate) async fn ps(call: Call) -> Result<Response, ApiError> {
    let context = call.context;
    let (views, slots) = look(&context).await;
    let loaded = blocking(move || {
        let catalog = context.catalog.current();
        let loaded = views.iter().filter_map(|view| {
            let slot = slots.iter().find(|slot| Some(slot.id) == view.slot && slot.ready_at.is_some())?;
            Some(running(&context, catalog.get(&view.id)?, slot))
        });
        json(&json!({ "models": loaded.collect::<Vec<Value>>() }))
    });
    loaded.await?
}

/// `POST /api/show`.
pub(crate) async fn show(mut call: Call) -> Result<Response, ApiError> {
    let body: Map<String, Value> = call.body().await?.parse().await?;
    let client = call.client()?;
    Ok(line(&about(&call.context, &client, body).await?))
}

/// The model, task or provider's model with this name, in Ollama's form.
pub(crate) async fn about(
    context: &Context,
    client: &ClientId,
    mut body: Map<String, Value>,
) -> Result<Value, ApiError> {
    let stamp = named(&mut body)?;
    let name = stamp.model.as_str();
    if name.is_empty() {
        return Err(ApiError::invalid("model", "'model' is missing"));
    }
    if let Some(cloud) = cloud_models::find(context, client, name)? {
        return Ok(shown_elsewhere(context, &cloud));
    }
    if let Some(task) = name.strip_prefix("task:") {
        return shown_task(context, task).await;
    }
    let of_adapter = || match context.catalog.adapter_named(name) {
        AdapterName::Known { model, .. } => context.catalog.current().get(&model).cloned(),
        AdapterName::Unknown { .. } | AdapterName::Other => None,
    };
    let model = context.catalog.current().find(name).cloned().or_else(of_adapter);
    let model = model.ok_or_else(|| unknown_model(name))?;
    let catalog = Arc::clone(&context.catalog);
    blocking(move || shown(&model, catalog.backend(&model))).await
}

/// A model's details; unknown ones are empty texts.
fn details(model: &Model) -> Value {
    let about = model.about();
    json!({
        "parent_model": "", "format": about.format, "family": about.family.as_deref().unwrap_or_default(),
        "families": about.family.as_ref().map(|family| [family]), "parameter_size": about.parameter_size(),
        "quantization_level": about.quantization.as_deref().unwrap_or_default(),
    })
}

fn listed(model: &Model) -> Value {
    let (name, on_disk) = (&model.description.id, model.about().bytes);
    json!({
        "name": name, "model": name, "modified_at": timestamp(model.created), "size": on_disk.0,
        "digest": digest(model), "details": details(model),
    })
}

/// A digest that changes with the model's files and manifest, as Ollama's does. Its command line shows the first twelve
/// digits.
fn digest(model: &Model) -> String {
    format!("{:016x}", model.description.revision).repeat(4)
}

fn running(context: &Context, model: &Model, slot: &SlotView) -> Value {
    let on = |gpu: bool| -> u64 {
        let parts = slot.parts.iter().filter(|(device, _)| (*device != DeviceId::Cpu) == gpu);
        parts.map(|(_, bytes)| bytes.0).sum()
    };
    let mut entry = listed(model);
    entry["size"] = json!(on(true) + on(false));
    entry["size_vram"] = json!(on(true));
    entry["context_length"] = json!(slot.context_length.unwrap_or(0));
    entry["expires_at"] = json!(expires(context, slot.unload_at));
    entry
}

/// The time of unloading. Ollama expresses "never" by a time far in the future.
fn expires(context: &Context, unload_at: Option<Moment>) -> String {
    unload_at.map_or_else(|| "2318-01-01T00:00:00Z".to_owned(), |at| timestamp(context.clock.seconds(at) as u64))
}

fn shown(model: &Model, backend: Backend) -> Value {
    let (manifest, about) = (&model.manifest, model.about());
    let parameters: Vec<String> = manifest.params.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let mut info = about.info.clone();
    let family = about.family.as_deref().unwrap_or_default();
    info.insert("general.architecture".to_owned(), json!(family));
    info.entry("general.basename").or_insert_with(|| json!(model.description.id));
    // The context that is served is preferred to the one that the model was trained for.
    if let Some(context) = manifest.context_length.or(about.context_length) {
        info.insert("general.context_length".to_owned(), json!(context));
        if !family.is_empty() {
            info.insert(format!("{family}.context_length"), json!(context));
        }
    }
    let template = manifest.chat_template.as_ref().or(about.template.as_ref());
    json!({
        "license": manifest.license.clone().unwrap_or_default(),
        "modelfile": format!("FROM {}\n", model.source.display()),
        "parameters": parameters.join("\n"), "template": template.cloned().unwrap_or_default(),
        "details": details(model), "model_info": info, "capabilities": capabilities(model, backend),
        "modified_at": timestamp(model.created),
    })
}

/// The capabilities in Ollama's terms. A chat model's template shows whether it supports tools and thinking. The candle
/// worker tells a model the format of calls where its template knows no tools.
fn capabilities(model: &Model, backend: Backend) -> Vec<&'static str> {
    let about = model.about();
    let mut can = capabilities_of(model.description.category);
    if can.contains(&"completion") {
        can.extend((about.knows_tools() || backend == Backend::Candle).then_some("tools"));
        can.extend(model.input_modalities(backend).contains(&Modality::Image).then_some("vision"));
        can.extend((about.knows_thinking() || model.manifest.thinking.is_some()).then_some("thinking"));
    }
    can
}

fn capabilities_of(category: Category) -> Vec<&'static str> {
    match category {
        Category::Embedding => vec!["embedding"],
        Category::Reranking => vec!["reranking"],
        Category::Vision => vec!["embedding", "vision"],
        Category::Transcription => vec!["transcription"],
        _ => vec!["completion"],
    }
}

fn shown_elsewhere(context: &Context, cloud: &CloudModel) -> Value {
    let mut shown = shown_name(&cloud.id);
    shown["capabilities"] = json!(capabilities_elsewhere(context, &cloud.provider));
    shown["remote_model"] = json!(cloud.served_as);
    shown["remote_host"] = json!(context.clouds.address(&cloud.provider));
    shown
}

/// The known capabilities of a provider's models: none beyond those that their API has and requests here may use.
fn capabilities_elsewhere(context: &Context, provider: &str) -> Vec<&'static str> {
    let mut can = capabilities_of(Category::Llm);
    can.extend(context.clouds.takes_tools(provider).then_some("tools"));
    can
}

/// A task has the capabilities of its category, and those that all of its models have.
async fn shown_task(context: &Context, name: &str) -> Result<Value, ApiError> {
    let task = tasks::object(context, &context.tasks.current().names, name)?;
    let mut shown = shown_name(&format!("task:{name}"));
    shown["modelfile"] = json!(format!("# {}\n", task.usable_names().join(" > ")));
    let mut can = capabilities_of(task.category(&context.catalog.current()));
    if can.contains(&"completion") {
        can.extend(capabilities_of_all(context, task.usable()).await?);
    }
    shown["capabilities"] = json!(can);
    Ok(shown)
}

/// The capabilities beyond answering chats that all of these models have.
async fn capabilities_of_all(context: &Context, targets: Vec<Target>) -> Result<Vec<&'static str>, ApiError> {
    let elsewhere = targets.iter().filter_map(|target| match target {
        Target::Cloud { provider, .. } => Some(capabilities_elsewhere(context, provider)),
        Target::Local(_) => None,
    });
    let elsewhere: Vec<Vec<&str>> = elsewhere.collect();
    let catalog = Arc::clone(&context.catalog);
    blocking(move || {
        let current = catalog.current();
        let here = targets.iter().filter_map(|target| match target {
            Target::Local(id) => Some(current.get(id).map_or_else(Vec::new, |m| capabilities(m, catalog.backend(m)))),
            Target::Cloud { .. } => None,
        });
        let of_each: Vec<Vec<&str>> = here.chain(elsewhere).collect();
        let have_all = |can: &&str| !of_each.is_empty() && of_each.iter().all(|known| known.contains(can));
        ["tools", "vision", "thinking"].into_iter().filter(have_all).collect()
    })
    .await
}

fn shown_name(name: &str) -> Value {
    json!({
        "license": "", "modelfile": "", "parameters": "", "template": "", "details": no_details(),
        "model_info": { "general.basename": name }, "capabilities": ["completion"], "modified_at": timestamp(0),
    })
}

fn line(value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
