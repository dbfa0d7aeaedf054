//! llama-server's own routes: `/completion`, `/infill`, `/apply-template`, counts of tokens, `/props` and `/slots`.
//!
//! They are requests like all others, with keys, priorities and leases. A request that names no model is for the one
//! called `default`, or for the only one of this machine (ADR 74).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt, Collected, Limited};
use memchr::memmem;
use model_boss_catalog::Model;
use model_boss_core::{ModelStatus, ModelView};
use model_boss_dialects::{APPLY_TEMPLATE, COMPLETION, INFILL, Names, Reshape, SelectedFields, TOKENIZE};
use model_boss_host::clocks::unix_seconds;
use model_boss_http::body::{OpenBody, RequestBody, json};
use model_boss_http::path::{parameter, unknown_model};
use model_boss_protocol::{ApiError, Category, ErrorBody, ErrorCode, Modality};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::meant::{DEFAULT_MODEL, only_model};
use super::models::look;
use super::openai::{self, InferenceRoute, completions_of, infer, infer_body};
use super::reshape::reshaped;
use crate::api::admin::prometheus;
use crate::api::blocking::blocking;
use crate::api::context::Context;
use crate::api::route::Call;

/// The most bytes of an answer to a count.
const MAX_COUNTED: usize = 64 << 20;

/// The field by which a client selects fields of an answer.
const SELECTION: &str = "response_fields";

/// `POST /completion`.
pub(crate) async fn completion(mut call: Call) -> Result<Response, ApiError> {
    let body = call.body().await?;
    native(call, body, COMPLETION).await
}

/// `POST /v1/chat/completions`, and without the prefix, where the route is llama-server's too.
pub(crate) async fn chat_completions(call: Call) -> Result<Response, ApiError> {
    let is_own = call.request.uri().path() == "/chat/completions";
    let answer = openai::chat_completions(call).await?;
    Ok(if is_own { with_own_error(answer).await } else { answer })
}

/// `POST /infill`.
pub(crate) async fn infill(mut call: Call) -> Result<Response, ApiError> {
    let body = call.body().await?;
    native(call, body, INFILL).await
}

/// `POST /completions` without `/v1`: llama-server's route where the request has `n_predict` or names no model, as its
/// own clients send it; OpenAI's otherwise, whose clients always name one.
pub(crate) async fn bare_completions(mut call: Call) -> Result<Response, ApiError> {
    let (is_native, body) = call
        .body()
        .await?
        .open(|body: OpenBody| {
            // A body that is no object is refused by the route itself.
            let fields: BTreeMap<Cow<'_, str>, IgnoredAny> = serde_json::from_slice(body.bytes()).unwrap_or_default();
            let is_native = fields.contains_key("n_predict") || !fields.contains_key("model");
            drop(fields);
            Ok::<_, ApiError>((is_native, body.close()))
        })
        .await?;
    if is_native { native(call, body, COMPLETION).await } else { completions_of(call, body).await }
}

/// `POST /apply-template`.
pub(crate) async fn apply_template(call: Call) -> Result<Response, ApiError> {
    infer(call, InferenceRoute::at(APPLY_TEMPLATE, Category::Llm).unnamed().here()).await
}

/// A request whose answer has llama-server's own shape. Its selection of fields is made here, because the answer's
/// counts are read before.
async fn native(call: Call, body: RequestBody, path: &'static str) -> Result<Response, ApiError> {
    let select = |mut body: OpenBody| {
        if memmem::find(body.bytes(), format!("\"{SELECTION}\"").as_bytes()).is_none() {
            return Ok((Vec::new(), body.close()));
        }
        let mut asked = body.object()?;
        let fields = asked.remove(SELECTION).unwrap_or_default();
        let fields: Option<Vec<String>> = serde_json::from_value(fields)
            .map_err(|error| ApiError::invalid(SELECTION, format!("'{SELECTION}' must be a list of texts: {error}")))?;
        body.replace(Value::Object(asked).to_string());
        Ok((fields.unwrap_or_default(), body.close()))
    };
    let (fields, body) = body.open(select).await?;
    let context = Arc::clone(&call.context);
    let answer = infer_body(call, body, InferenceRoute::at(path, Category::Llm).unnamed().here()).await?;
    let answer = with_own_error(answer).await;
    if fields.is_empty() {
        return Ok(answer);
    }
    let select: Box<dyn Reshape> = Box::new(SelectedFields(fields));
    reshaped(&context, answer, select, "text/event-stream").await
}

/// The most bytes of an error.
const MAX_ERROR: usize = 64 << 10;

/// An answer with llama-server's own type where the prompt is too long, for its own spellings of routes.
pub(super) async fn with_own_error(answer: Response) -> Response {
    let is_small = answer.body().size_hint().upper().is_some_and(|size| size <= MAX_ERROR as u64);
    if answer.status() != StatusCode::BAD_REQUEST || !is_small {
        return answer;
    }
    let (mut head, body) = answer.into_parts();
    let bytes = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    match serde_json::from_slice::<ErrorBody>(&bytes) {
        Ok(mut told) if told.error.code.as_deref() == Some(ErrorCode::ContextLengthExceeded.as_str()) => {
            told.error.kind = "exceed_context_size_error".to_owned();
            head.headers.remove(CONTENT_LENGTH);
            Response::from_parts(head, Body::from(told.to_json()))
        }
        _ => Response::from_parts(head, Body::from(bytes)),
    }
}

/// A number of tokens.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TokenCount {
    /// The tokens of the prompt.
    input_tokens: u64,
    object: &'static str,
}

impl TokenCount {
    /// An answer with this number.
    pub(super) const fn of(input_tokens: u64) -> Self {
        Self { input_tokens, object: "response.input_tokens" }
    }
}

/// `POST /v1/chat/completions/input_tokens`: the length of a chat's prompt, by the model's template and vocabulary.
pub(crate) async fn chat_tokens(mut call: Call) -> Result<Response, ApiError> {
    let body = call.body().await?;
    let count = tokens_of_chat(call, body, &Names::default()).await?;
    json(&TokenCount::of(count))
}

/// The number of tokens of a chat's prompt.
pub(super) async fn tokens_of_chat(call: Call, chat: RequestBody, names: &Names) -> Result<u64, ApiError> {
    let only_messages = |mut body: OpenBody| {
        let mut asked = body.object()?;
        // A text beside a conversation would be counted in its place.
        for text in ["content", "prompt", "stream"] {
            asked.remove(text);
        }
        if !asked.contains_key("messages") {
            return Err(ApiError::invalid("messages", "'messages' is missing"));
        }
        body.replace(Value::Object(asked).to_string());
        Ok(body.close())
    };
    let chat = chat.open(only_messages).await?;
    let answer = infer_body(call, chat, InferenceRoute::about_tokens(TOKENIZE)).await;
    let answer = answer.map_err(|error| crate::refusals::in_client_names(names, error))?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, MAX_COUNTED).collect().await.map(Collected::to_bytes).unwrap_or_default();
    let said: Map<String, Value> = serde_json::from_slice(&body).unwrap_or_default();
    if !head.status.is_success() {
        let error = said.get("error").cloned().unwrap_or_default();
        let message = error["message"].as_str().unwrap_or("the model could not be asked").to_owned();
        let code = if head.status.is_client_error() { ErrorCode::InvalidRequest } else { ErrorCode::BackendError };
        let mut error_told = ApiError::new(code, message).with_status(head.status.as_u16());
        error_told.param = error["param"].as_str().map(str::to_owned);
        return Err(crate::refusals::in_client_names(names, error_told));
    }
    let count = said.get("count").and_then(Value::as_u64);
    count.ok_or_else(|| ApiError::new(ErrorCode::BackendError, "the model did not say how many tokens it read"))
}

/// The kinds of input of a model, in llama-server's words.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ModelSenses {
    vision: bool,
    audio: bool,
}

/// The context of a request and the defaults of its options.
#[derive(Serialize, JsonSchema)]
pub(crate) struct UsualSettings {
    /// The context of each request; 0 where it is known when the model is loaded.
    n_ctx: u64,
    /// The manifest's values for options that a request leaves out.
    params: Map<String, Value>,
}

/// The properties of a model, as llama-server shows them.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ModelProps {
    default_generation_settings: UsualSettings,
    /// Requests that are answered at the same time.
    total_slots: u32,
    model_alias: String,
    model_path: String,
    modalities: ModelSenses,
    chat_template: String,
    endpoint_slots: bool,
    endpoint_props: bool,
    endpoint_metrics: bool,
    build_info: &'static str,
    /// Whether the model is not loaded now. A request loads it.
    is_sleeping: bool,
}

/// `GET /props`, with `?model=` of one model.
pub(crate) async fn props(call: Call) -> Result<Response, ApiError> {
    let (context, model, view) = named(call).await?;
    blocking(move || {
        let manifest = &model.manifest;
        let about = model.about();
        let backend = context.catalog.backend(&model);
        let inputs = model.input_modalities(backend);
        let mut params: Map<String, Value> = manifest.params.clone().into_iter().collect();
        if let Some(limit) = manifest.params.get("max_tokens") {
            params.insert("n_predict".to_owned(), limit.clone());
        }
        let template = manifest.chat_template.as_ref().or(about.template.as_ref());
        let n_ctx = view.context_length.or(manifest.context_length).unwrap_or_default();
        json(&ModelProps {
            default_generation_settings: UsualSettings { n_ctx, params },
            total_slots: model.description.max_concurrent,
            model_alias: model.description.id.to_string(),
            model_path: model.source.display().to_string(),
            modalities: ModelSenses {
                vision: inputs.contains(&Modality::Image),
                audio: inputs.contains(&Modality::Audio),
            },
            chat_template: template.cloned().unwrap_or_default(),
            endpoint_slots: true,
            endpoint_props: false,
            endpoint_metrics: true,
            build_info: concat!("model-boss ", env!("CARGO_PKG_VERSION")),
            is_sleeping: view.status != ModelStatus::Loaded,
        })
    })
    .await?
}

/// A place for a request in a model's batch, as llama-server shows it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct BatchPlace {
    id: u32,
    n_ctx: u64,
    /// Whether a request is being answered in it.
    is_processing: bool,
}

/// `GET /slots`, with `?model=` of one model. Places have no order here: the first ones are taken.
pub(crate) async fn slots(call: Call) -> Result<Response, ApiError> {
    let (_, model, view) = named(call).await?;
    let n_ctx = view.context_length.or(model.manifest.context_length).unwrap_or_default();
    let is_processing = |id: u32| (id as usize) < view.running;
    let slots =
        (0..model.description.max_concurrent).map(|id| BatchPlace { id, n_ctx, is_processing: is_processing(id) });
    json(&slots.collect::<Vec<_>>())
}

/// `GET /metrics`: of all models, or with `?model=` of one, as llama-server in its router mode shows them.
pub(crate) async fn metrics(call: Call) -> Result<Response, ApiError> {
    if parameter(call.request.uri(), "model").is_none() {
        return prometheus::metrics(call).await;
    }
    let (context, _, view) = named(call).await?;
    let (now, before) = context.metrics.model(Some(&view.id)).served();
    let page = now.page(&before, view.running, view.queued);
    let mut response = Response::new(Body::from(page));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"));
    let started = unix_seconds().saturating_sub(context.started.elapsed().as_secs());
    headers.insert(HeaderName::from_static("process-start-time-unix"), HeaderValue::from(started));
    Ok(response)
}

/// The model that `?model=` names, or the only one.
async fn named(call: Call) -> Result<(Arc<Context>, Arc<Model>, ModelView), ApiError> {
    let context = Arc::clone(&call.context);
    let client = call.client()?;
    let name = match parameter(call.request.uri(), "model") {
        Some(name) => name.into_owned(),
        None => only_model(&context, Category::Llm)?.unwrap_or_else(|| DEFAULT_MODEL.to_owned()),
    };
    let model = Arc::clone(context.catalog.current().find(&name).ok_or_else(|| unknown_model(&name))?);
    if !context.tasks.may_use(&client, model.description.id.as_str(), &context.catalog) {
        return Err(unknown_model(&name));
    }
    let (views, _) = look(&context).await;
    let view = views.into_iter().find(|view| view.id == model.description.id).ok_or_else(|| unknown_model(&name))?;
    Ok((context, model, view))
}
