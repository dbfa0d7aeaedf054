//! `/api/…`: Ollama's API, for tools that speak nothing else. The same queue, models and rules as everything else; only the
//! words differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::{BodyExt, Collected, Limited};
use model_boss_core::{LoadOptions, Moment, SlotView};
use model_boss_dialects::ollama::{
    AnswerShape, Asked, EmbedShape, OllamaFromChat, chat as chat_request, embed as embed_request, embeddings_answer,
    error_text, generate as generate_request, keep_alive_of, timestamp,
};
use model_boss_dialects::{Reshape, Stamp};
use model_boss_protocol::{ApiError, Category, DeviceId, ErrorCode, ErrorSource};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::Context;
use super::body::{self, json};
use super::error::error_response;
use super::inference::infer_body;
use super::models::{look, unknown_model};
use super::reshape::reshaped;
use super::route::Call;
use crate::catalog::Model;

/// The version of Ollama whose API this is: its clients ask for a least one.
const API_VERSION: &str = "0.12.6";
/// The tag that Ollama's clients add to a name without one.
const LATEST: &str = ":latest";
const LINES: &str = "application/x-ndjson";
/// Vectors of one request are never this large.
const MAX_VECTORS: usize = 256 << 20;

/// `GET /api/version`.
pub(super) async fn version(_call: Call) -> Result<Response, ApiError> {
    json(&json!({ "version": API_VERSION, "model_boss": env!("CARGO_PKG_VERSION") }))
}

/// `POST /api/chat`.
pub(super) async fn chat(call: Call) -> Result<Response, ApiError> {
    ask(call, AnswerShape::Chat, chat_request).await
}

/// `POST /api/generate`.
pub(super) async fn generate(call: Call) -> Result<Response, ApiError> {
    ask(call, AnswerShape::Generate, generate_request).await
}

async fn ask(
    mut call: Call,
    shape: AnswerShape,
    read: fn(&Map<String, Value>) -> Result<Asked, ApiError>,
) -> Result<Response, ApiError> {
    let began = Instant::now();
    let (stamp, body, asked) = match request(&mut call, read).await {
        Ok(asked) => asked,
        Err(error) => return Ok(in_their_shape(&error)),
    };
    let (body, path) = match asked {
        Asked::Load | Asked::Unload => return Ok(only_residency(&call.context, shape, &stamp, &body, &asked).await),
        Asked::Chat(body, _) => (body, "/v1/chat/completions"),
        Asked::Completion(body, _) => (body, "/v1/completions"),
    };
    let loading = Arc::new(AtomicU64::new(0));
    let told = Arc::clone(&loading);
    let elapsed = Box::new(move || (began.elapsed(), Duration::from_millis(told.load(Ordering::Relaxed))));
    let reshape: Box<dyn Reshape> = Box::new(OllamaFromChat::new(shape, stamp, elapsed));
    let answer = infer_body(call, Bytes::from(body.to_string()), path, Category::Llm).await;
    if let Ok(answer) = &answer {
        loading.store(load_ms(answer), Ordering::Relaxed);
    }
    Ok(reshaped(answer, reshape, LINES).await)
}

/// The request with the model's name as we know it.
async fn request(
    call: &mut Call,
    read: fn(&Map<String, Value>) -> Result<Asked, ApiError>,
) -> Result<(Stamp, Map<String, Value>, Asked), ApiError> {
    let mut body: Map<String, Value> = body::parse(&call.body().await?)?;
    let stamp = named(&call.context, &mut body);
    let asked = read(&body)?;
    Ok((stamp, body, asked))
}

/// Ollama's clients add `:latest` to names without a tag. Answers repeat the name that was asked for.
fn named(context: &Context, body: &mut Map<String, Value>) -> Stamp {
    let asked = body.get("model").or_else(|| body.get("name")).and_then(Value::as_str).unwrap_or_default().to_owned();
    let known = |name: &str| context.catalog.current().find(name).is_some();
    let name = match asked.strip_suffix(LATEST) {
        Some(short) if !known(&asked) => short.to_owned(),
        _ => asked.clone(),
    };
    if !name.is_empty() {
        body.insert("model".to_owned(), json!(name));
    }
    let created = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    Stamp { id: String::new(), model: asked, created }
}

fn load_ms(answer: &Response) -> u64 {
    answer.headers().get("x-load-ms").and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0)
}

/// Nothing is asked of the model but to be there, or not.
async fn only_residency(
    context: &Context,
    shape: AnswerShape,
    stamp: &Stamp,
    body: &Map<String, Value>,
    asked: &Asked,
) -> Response {
    let name = body.get("model").and_then(Value::as_str).unwrap_or_default();
    let done = async {
        let catalog = context.catalog.current();
        let model = catalog.find(name).ok_or_else(|| unknown_model(name))?.description.id.clone();
        if *asked == Asked::Unload {
            return match context.scheduling.unload(Some(model)).done().await {
                // It is gone already, which is what was asked for.
                Err(error) if error.code == ErrorCode::ModelNotLoaded => Ok("unload"),
                Err(error) => Err(error),
                Ok(()) => Ok("unload"),
            };
        }
        let options = LoadOptions { keep_alive: keep_alive_of(body)?, ..LoadOptions::default() };
        context.scheduling.load(model, options).done().await.map(|()| "load")
    };
    match done.await {
        Ok(reason) => line(&OllamaFromChat::nothing_asked(shape, stamp, reason)),
        Err(error) => in_their_shape(&error),
    }
}

/// `POST /api/embed`.
pub(super) async fn embed(call: Call) -> Result<Response, ApiError> {
    vectors(call, EmbedShape::Several).await
}

/// `POST /api/embeddings`.
pub(super) async fn embeddings(call: Call) -> Result<Response, ApiError> {
    vectors(call, EmbedShape::One).await
}

async fn vectors(mut call: Call, shape: EmbedShape) -> Result<Response, ApiError> {
    let began = Instant::now();
    let asked = async {
        let mut body: Map<String, Value> = body::parse(&call.body().await?)?;
        let stamp = named(&call.context, &mut body);
        Ok::<_, ApiError>((stamp, embed_request(&body, shape)?))
    };
    let (stamp, request) = match asked.await {
        Ok(asked) => asked,
        Err(error) => return Ok(in_their_shape(&error)),
    };
    let answer = infer_body(call, Bytes::from(request.to_string()), "/v1/embeddings", Category::Embedding).await;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return Ok(in_their_shape(&error)),
    };
    let loading = Duration::from_millis(load_ms(&answer));
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, MAX_VECTORS).collect().await.map(Collected::to_bytes).unwrap_or_default();
    let said: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut response = if head.status.is_success() {
        line(&embeddings_answer(shape, &stamp.model, &said, began.elapsed(), loading))
    } else {
        line(&json!({ "error": error_text(&said) }))
    };
    *response.status_mut() = head.status;
    Ok(response)
}

/// `GET /api/tags`: every model there is.
pub(super) async fn tags(call: Call) -> Result<Response, ApiError> {
    let catalog = call.context.catalog.current();
    let models: Vec<Value> = catalog.models().map(|model| listed(model)).collect();
    json(&json!({ "models": models }))
}

/// `GET /api/ps`: what is loaded.
pub(super) async fn ps(call: Call) -> Result<Response, ApiError> {
    let context = &call.context;
    let (views, slots) = look(context).await;
    let catalog = context.catalog.current();
    let loaded = views.iter().filter_map(|view| {
        let slot = slots.iter().find(|slot| Some(slot.id) == view.slot && slot.ready_at.is_some())?;
        Some(running(context, catalog.get(&view.id)?, slot))
    });
    let models: Vec<Value> = loaded.collect();
    json(&json!({ "models": models }))
}

/// `POST /api/show`.
pub(super) async fn show(mut call: Call) -> Result<Response, ApiError> {
    let asked = async {
        let mut body: Map<String, Value> = body::parse(&call.body().await?)?;
        let stamp = named(&call.context, &mut body);
        let name = body.get("model").and_then(Value::as_str).unwrap_or_default();
        let catalog = call.context.catalog.current();
        let model = catalog.find(name).ok_or_else(|| {
            if stamp.model.is_empty() { ApiError::invalid("model", "'model' is missing") } else { unknown_model(name) }
        })?;
        Ok::<_, ApiError>(shown(model))
    };
    Ok(asked.await.map_or_else(|error| in_their_shape(&error), |shown| line(&shown)))
}

fn details(model: &Model) -> Value {
    let is_gguf = model.has_gguf();
    // What is not known of a model is empty there.
    json!({
        "parent_model": "", "format": if is_gguf { "gguf" } else { "safetensors" }, "family": "", "families": null,
        "parameter_size": "", "quantization_level": "",
    })
}

fn listed(model: &Model) -> Value {
    let name = &model.description.id;
    json!({
        "name": name, "model": name, "modified_at": timestamp(model.created), "size": model.description.size.bytes.0,
        "digest": digest(model), "details": details(model),
    })
}

/// Changes with the model's files and manifest, as Ollama's does.
fn digest(model: &Model) -> String {
    format!("{:064x}", model.description.revision)
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

/// Ollama says for ever by a moment far away.
fn expires(context: &Context, unload_at: Option<Moment>) -> String {
    unload_at.map_or_else(|| "2318-01-01T00:00:00Z".to_owned(), |at| timestamp(context.clock.seconds(at) as u64))
}

fn shown(model: &Model) -> Value {
    let manifest = &model.manifest;
    let capabilities: &[&str] = match model.description.category {
        Category::Embedding => &["embedding"],
        Category::Reranking => &["reranking"],
        _ => &["completion"],
    };
    let parameters: Vec<String> = manifest.params.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let mut info = json!({ "general.basename": model.description.id, "general.architecture": "" });
    if let Some(context) = manifest.context_length {
        info["general.context_length"] = json!(context);
    }
    json!({
        "license": manifest.license.clone().unwrap_or_default(),
        "modelfile": format!("FROM {}\n", model.source.display()),
        "parameters": parameters.join("\n"), "template": manifest.chat_template.clone().unwrap_or_default(),
        "details": details(model), "model_info": info, "capabilities": capabilities,
        "modified_at": timestamp(model.created),
    })
}

fn line(value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn in_their_shape(error: &ApiError) -> Response {
    let ours: Value = serde_json::from_str(&error.body(ErrorSource::Coordinator).to_json()).unwrap_or_default();
    let mut response = error_response(error);
    *response.body_mut() = Body::from(json!({ "error": error_text(&ours) }).to_string());
    response
}
