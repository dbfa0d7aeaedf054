//! Orders of operators: load (by name, or by the path of a model's files), unload, move, pin, invalidate, free a
//! device.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use model_boss_catalog::{Asker, PathError};
use model_boss_core::{EngineOptions, LayerOptions, LoadOptions, SizeEstimate};
use model_boss_host::owner::OWNER_KEY;
use model_boss_http::body::{RequestBody, json, json_with};
use model_boss_http::path::{flag, percent_decode, unknown_model};
use model_boss_lease_store::Caller;
use model_boss_protocol::{
    ApiError, Backend, ByteCount, DeviceId, ErrorCode, KeepAlive, KvCacheType, LlamaArgs, ModelId, Priority,
    ResidencyMode,
};
use nix::unistd::geteuid;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::api::context::Context;
use crate::api::route::Call;
use crate::scheduling::Ticket;

/// A load, which has either a name or a path.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadBody {
    model_name: Option<String>,
    /// An absolute path below a model root.
    path: Option<PathBuf>,
    /// Whether to answer only once the model serves, not as soon as it is known.
    #[serde(default = "yes")]
    wait: bool,
    /// The context to serve, in tokens.
    #[schemars(range(min = 1))]
    ctx_size: Option<u64>,
    #[schemars(with = "Option<DeviceId>")]
    device: Option<String>,
    /// The residency of the model's layers (RS-11).
    #[schemars(with = "Option<ResidencyMode>")]
    residency: Option<String>,
    /// Blocks of layers fetched ahead. The next field is the number of layers in a block.
    #[schemars(range(min = 1))]
    window: Option<u32>,
    #[schemars(range(min = 1))]
    block: Option<u32>,
    /// The lease on the devices that compute.
    vram: Option<ByteCount>,
    /// The type of keys and values (EN-2).
    #[schemars(with = "Option<KvCacheType>")]
    kv_cache_type: Option<String>,
    /// The time for which an unused model stays loaded.
    keep_alive: Option<KeepAlive>,
    priority: Option<Priority>,
    /// Further arguments for llama-server.
    llamacpp_args: Option<LlamaArgs>,
    /// The build of llama-server.
    llamacpp_backend: Option<String>,
}

fn yes() -> bool {
    true
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UnloadRequest {
    model_name: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MoveRequest {
    #[schemars(with = "DeviceId")]
    device: String,
    /// Whether other models may be evicted for the second copy.
    #[serde(default)]
    evict: bool,
    priority: Option<Priority>,
    #[serde(default = "yes")]
    wait: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PinRequest {
    /// Whether to pin the model; `null` restores the manifest's choice.
    #[serde(default = "pinned")]
    pinned: Option<bool>,
}

fn pinned() -> Option<bool> {
    Some(true)
}

/// The body of an order that says everything in its path.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// The end of an order about a device, or its beginning.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DeviceOrderDone {
    /// `free`, `open` or `draining`.
    status: &'static str,
    device: DeviceId,
}

/// The end of an order about a model, or its beginning.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ModelOrderDone<'a> {
    status: &'static str,
    model_name: Option<&'a ModelId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a DeviceId>,
}

impl<'a> ModelOrderDone<'a> {
    fn with(status: &'static str, model: &'a ModelId) -> Self {
        Self { status, model_name: Some(model), device: None }
    }
}

/// Loads a model. The call waits as long as its caller stays connected (MM-7), or not at all.
pub(crate) async fn load(mut call: Call) -> Result<Response, ApiError> {
    let wait = waits(&call)?;
    let mut request: LoadBody = call.body().await?.parse().await?;
    let asker = asker(&call);
    if request.ctx_size == Some(0) {
        return Err(ApiError::invalid("ctx_size", "'ctx_size' must be at least 1 token"));
    }
    let mode = request.residency.as_deref().map(residency).transpose()?;
    let LoadBody { window, block, vram: memory, .. } = request;
    let kv_cache_type = request.kv_cache_type.as_deref().map(kv_cache_type).transpose()?;
    let layers = LayerOptions { mode, window, block, memory, kv_cache_type };
    let device = request.device.as_deref().map(device).transpose()?;
    let model = match (request.model_name.take(), request.path.take()) {
        (Some(name), None) => known(&call.context, &name)?,
        (None, Some(path)) => at_path(&call.context, path, asker, call.caller()).await?,
        (Some(_), Some(_)) => return Err(ApiError::invalid("path", "give 'model_name' or 'path', not both")),
        (None, None) => return Err(ApiError::invalid("model_name", "give 'model_name', or 'path' of a model's files")),
    };
    let permit = call.permit_model(&model)?;
    admit(&call.context, &model)?;
    let engine = engine_options(&call.context, &model, request.llamacpp_args.take(), request.llamacpp_backend.take())?;
    check_layers(&call.context, &model, &layers)?;
    let size = size_with(&call.context, &model, request.ctx_size, layers).await;
    let (context, keep_alive, priority) = (request.ctx_size, request.keep_alive, request.priority);
    let options = LoadOptions { device, context, layers, size, keep_alive, priority, engine };
    let loading = call.context.scheduling.load(permit, options);
    if request.wait && wait {
        loading.done().await.map_err(about_the_device)?;
        return json(&ModelOrderDone::with("loaded", &model));
    }
    // The model's status and the answers to its requests show the result.
    tokio::spawn(loading.done());
    json_with(StatusCode::ACCEPTED, &ModelOrderDone::with("loading", &model))
}

/// Checks that the model's files are there, or has them downloaded (OP-6).
fn admit(context: &Context, model: &ModelId) -> Result<(), ApiError> {
    let known = context.catalog.current().get(model).cloned();
    known.map_or(Ok(()), |known| context.pulls.admit(&known))
}

/// The load's options for llama-server (MM-11), if that is the model's engine.
fn engine_options(
    context: &Context,
    model: &ModelId,
    args: Option<LlamaArgs>,
    build: Option<String>,
) -> Result<EngineOptions, ApiError> {
    let field = match (&args, &build) {
        (None, None) => return Ok(EngineOptions::default()),
        (Some(_), _) => "llamacpp_args",
        (None, Some(_)) => "llamacpp_backend",
    };
    let catalog = context.catalog.current();
    let engines = context.catalog.engines();
    let known = catalog.get(model).map(|model| (model, engines.backend(model)));
    let Some((described, Backend::LlamaServer)) = known else {
        let runs = known.map_or("nothing", |(_, backend)| backend.as_str());
        let message = format!("'{field}' is for llama-server, and model '{model}' is run by {runs}");
        return Err(ApiError::invalid(field, message));
    };
    if let Some(args) = &args {
        args.check().map_err(|error| ApiError::invalid("llamacpp_args", format!("'llamacpp_args': {error}")))?;
    }
    if let Some(build) = &build {
        engines.build(Some(build)).map_err(|error| ApiError::invalid("llamacpp_backend", error.to_string()))?;
    }
    Ok(EngineOptions { args, build: build.map(|build| engines.same_build(described, build)) })
}

/// Adds the name of the field `device` to an error of the scheduler, which has no fields.
fn about_the_device(error: ApiError) -> ApiError {
    match error.code {
        ErrorCode::DeviceNotAvailable if error.param.is_none() => error.with_param("device"),
        _ => error,
    }
}

/// An error about the model, with the field that names the model in an order to unload.
fn about_model_name(error: ApiError) -> ApiError {
    match error.param.as_deref() {
        Some("model") => error.with_param("model_name"),
        _ => error,
    }
}

/// Whether the caller has the owner key of this process.
pub(super) fn asker(call: &Call) -> Asker {
    let shown = call.request.headers().get(OWNER_KEY).and_then(|key| key.to_str().ok());
    let accepted = call.context.owner.as_ref().zip(shown).is_some_and(|(own, shown)| own.accept(shown));
    if accepted { Asker::Owner } else { Asker::Anybody }
}

/// The model at a path, which belongs to the catalog from now on.
async fn at_path(
    context: &Context,
    path: PathBuf,
    asker: Asker,
    caller: impl Future<Output = Caller>,
) -> Result<ModelId, ApiError> {
    let catalog = Arc::clone(&context.catalog);
    let added = spawn_blocking(move || catalog.add(&path, asker)).await;
    let added = added.map_err(|_| ApiError::new(ErrorCode::Internal, "the path could not be looked at"))?;
    let error = match added {
        Ok(model) => return Ok(model),
        Err(error) => error,
    };
    let code = match error {
        PathError::Outside { .. } | PathError::Absent(_) => ErrorCode::ModelNotFound,
        _ => ErrorCode::InvalidRequest,
    };
    let mut message = error.to_string();
    if let (PathError::Outside { path, .. }, Asker::Anybody) = (&error, asker)
        && caller.await == Caller::User(geteuid().as_raw())
    {
        // The folder is the caller's own. The key in it opens the path, and not the caller's user: a proxy may run as
        // the same user.
        let (folder, path) = (shell_word(context.state.path()), shell_word(path));
        message = format!(
            "{message}. You are that user: `MODEL_BOSS_STATE_DIR={folder} model-boss run {path}` finds its key"
        );
    }
    Err(ApiError::new(code, message).with_param("path"))
}

/// A path quoted for a shell.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:+,@%=".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Checks the requested options for a model's layers (RS-11).
pub(crate) fn check_layers(context: &Context, model: &ModelId, layers: &LayerOptions) -> Result<(), ApiError> {
    for (field, value) in [("window", layers.window), ("block", layers.block)] {
        if value == Some(0) {
            return Err(ApiError::invalid(field, format!("'{field}' must be at least 1")));
        }
    }
    if layers.memory == Some(ByteCount::ZERO) {
        return Err(ApiError::invalid("vram", "'vram' must be more than nothing"));
    }
    let catalog = context.catalog.current();
    let described = catalog.get(model);
    if let (Some(wanted), Some(described)) = (layers.kv_cache_type, described) {
        let keeps = context.catalog.engines().check_kv(described, wanted);
        keeps.map_err(|error| ApiError::invalid("kv_cache_type", error.to_string()))?;
    }
    let field = match layers {
        LayerOptions { mode: Some(_), .. } => "residency",
        LayerOptions { window: Some(_), .. } => "window",
        LayerOptions { block: Some(_), .. } => "block",
        _ => return Ok(()),
    };
    match described.map(|model| context.catalog.backend(model)) {
        Some(backend) if backend.is_foreign() => {
            let runs = backend.as_str();
            let message = format!("'{field}' is for models that our own worker runs; model '{model}' is run by {runs}");
            Err(ApiError::invalid(field, message))
        }
        _ => Ok(()),
    }
}

/// The memory that a model needs with another context than its manifest's, or with other options for its layers.
/// Options of earlier loads are kept. Returns `None` where the request has no options.
pub(crate) async fn size_with(
    context: &Context,
    model: &ModelId,
    tokens: Option<u64>,
    layers: LayerOptions,
) -> Option<SizeEstimate> {
    if tokens.is_none() && layers.is_empty() {
        return None;
    }
    let name = model.clone();
    let before = context.scheduling.view(move |scheduler, _| scheduler.wished(&name)).await.unwrap_or_default();
    let (tokens, layers) = (tokens.max(before.0), layers.over(before.1));
    let model = Arc::clone(context.catalog.current().get(model)?);
    let catalog = Arc::clone(&context.catalog);
    let look = move || {
        let backend = catalog.backend(&model);
        let usual = model.manifest.context_length.or(catalog.engines().context);
        model.size_with(tokens.or(usual), layers, backend)
    };
    spawn_blocking(look).await.ok()
}

/// Unloads one model, or all of them if the request names none (MM-10).
pub(crate) async fn unload(mut call: Call) -> Result<Response, ApiError> {
    let request: UnloadRequest = call.body().await?.parse_or_default().await?;
    let model = request.model_name.map(|name| known(&call.context, &name)).transpose()?;
    let scheduling = &call.context.scheduling;
    let order = match &model {
        Some(model) => scheduling.unload(call.permit_model(model)?),
        None => scheduling.unload_all(call.permit_machine()?),
    };
    order.done().await.map_err(about_model_name)?;
    json(&ModelOrderDone { status: "unloaded", model_name: model.as_ref(), device: None })
}

/// `POST /api/v1/models/{id}/VERB`: the id may contain `/`, so the verb is the last segment.
pub(crate) async fn model(call: Call) -> Result<Response, ApiError> {
    let path = call.request.uri().path();
    let rest = path.split_once("/models/").map_or("", |(_, rest)| rest);
    let (id, verb) = rest.rsplit_once('/').unwrap_or((rest, ""));
    let verb = match verb {
        "device" => Verb::Move,
        "invalidate" => Verb::Invalidate,
        "pin" => Verb::Pin,
        _ => {
            let message = format!("there is no POST {path}; a model takes device, invalidate or pin behind its name");
            return Err(ApiError::new(ErrorCode::NotFound, message));
        }
    };
    let model = percent_decode(id).ok_or_else(|| unknown_model(id)).and_then(|id| {
        let catalog = call.context.catalog.current();
        catalog.find(&id).map(|model| model.description.id.clone()).ok_or_else(|| unknown_model(&id))
    })?;
    match verb {
        Verb::Move => move_to(call, model).await,
        Verb::Invalidate => invalidate(call, model).await,
        Verb::Pin => pin(call, model).await,
    }
}

enum Verb {
    Move,
    Invalidate,
    Pin,
}

/// Moves a model (DM-5). The route answers when the move is done. A caller that disconnects does not stop the move.
async fn move_to(mut call: Call, model: ModelId) -> Result<Response, ApiError> {
    let wait = waits(&call)?;
    let request: MoveRequest = call.body().await?.parse().await?;
    let to = device(&request.device)?;
    let (evict, priority) = (request.evict, request.priority.unwrap_or(Priority::INTERACTIVE));
    let context = Arc::clone(&call.context);
    let moving = context.scheduling.move_to(call.permit_model(&model)?, to.clone(), evict, priority);
    let ended = tokio::spawn(moved(Arc::clone(&context), moving, model.clone(), to.clone()));
    if request.wait && wait {
        let ended = ended.await;
        ended.map_err(|_| ApiError::new(ErrorCode::Internal, "nobody could wait for the move"))??;
        return json(&ModelOrderDone { device: Some(&to), ..ModelOrderDone::with("moved", &model) });
    }
    json_with(StatusCode::ACCEPTED, &ModelOrderDone { device: Some(&to), ..ModelOrderDone::with("moving", &model) })
}

/// Waits for the end of a move and adds it to the events.
async fn moved(context: Arc<Context>, moving: Ticket, model: ModelId, to: DeviceId) -> Result<(), ApiError> {
    let ended = moving.done().await;
    let error = ended.as_ref().err().map(|error| json!({ "code": error.code.as_str(), "message": error.message }));
    let outcome = if error.is_none() { "done" } else { "failed" };
    context.changes.publish("move", &json!({ "model": model, "device": to, "outcome": outcome, "error": error }));
    ended
}

/// Marks the loaded copy of a model as stale (BC-5): it is unloaded when idle, and the next load reads the files again.
async fn invalidate(mut call: Call, model: ModelId) -> Result<Response, ApiError> {
    nothing_in(call.body().await?).await?;
    let permit = call.permit_model(&model)?;
    // Before the worker ends: it parks nothing from then on.
    let (parking, name) = (Arc::clone(&call.context.parking), model.clone());
    let forgotten = spawn_blocking(move || parking.forget(&name)).await;
    forgotten.map_err(|_| ApiError::new(ErrorCode::Internal, "the parked prefixes could not be dropped"))?;
    call.context.scheduling.invalidate(permit).done().await?;
    json(&ModelOrderDone::with("invalidated", &model))
}

/// Pins a model at run time (RC-19); `{"pinned": null}` restores the manifest's choice.
async fn pin(mut call: Call, model: ModelId) -> Result<Response, ApiError> {
    let body = call.body().await?;
    let PinRequest { pinned } = if body.is_empty() { PinRequest { pinned: Some(true) } } else { body.parse().await? };
    call.context.scheduling.pin(call.permit_model(&model)?, pinned).done().await?;
    let status = match pinned {
        Some(true) => "pinned",
        Some(false) => "unpinned",
        None => "as_manifest",
    };
    json(&ModelOrderDone::with(status, &model))
}

/// `POST /api/v1/devices/{id}/drain` and `/open` (RC-30). A drain is answered when the device is empty.
pub(crate) async fn device_order(mut call: Call) -> Result<Response, ApiError> {
    let wait = waits(&call)?;
    let path = call.request.uri().path().to_owned();
    let rest = path.split_once("/devices/").map_or("", |(_, rest)| rest);
    let (id, verb) = rest.rsplit_once('/').unwrap_or((rest, ""));
    let drain = match verb {
        "drain" => true,
        "open" => false,
        _ => {
            let message = format!("there is no POST {path}; a device takes drain or open behind its name");
            return Err(ApiError::new(ErrorCode::NotFound, message));
        }
    };
    nothing_in(call.body().await?).await?;
    let device = device(&percent_decode(id).unwrap_or_else(|| id.to_owned()))?;
    let permit = call.permit_machine()?;
    let order = match drain {
        true => call.context.scheduling.free_device(permit, device.clone()),
        false => call.context.scheduling.open_device(permit, device.clone()),
    };
    if !wait {
        tokio::spawn(order.done());
        return json_with(StatusCode::ACCEPTED, &DeviceOrderDone { status: "draining", device });
    }
    order.done().await?;
    json(&DeviceOrderDone { status: if drain { "free" } else { "open" }, device })
}

/// Whether the caller waits for the end; `?wait=false` answers at once.
fn waits(call: &Call) -> Result<bool, ApiError> {
    flag(call.request.uri(), "wait", true)
}

async fn nothing_in(body: RequestBody) -> Result<(), ApiError> {
    body.parse_or_default::<Nothing>().await.map(|_| ())
}

/// A device by its text; an invalid text is quoted in the error (DM-7).
pub(crate) fn device(text: &str) -> Result<DeviceId, ApiError> {
    text.parse().map_err(|error: model_boss_protocol::ParseDeviceError| {
        ApiError::new(ErrorCode::InvalidDevice, error.to_string()).with_param("device")
    })
}

/// A type of keys and values by its name; an invalid name is quoted in the error.
pub(crate) fn kv_cache_type(word: &str) -> Result<KvCacheType, ApiError> {
    word.parse::<KvCacheType>().map_err(|error| ApiError::invalid("kv_cache_type", format!("'kv_cache_type': {error}")))
}

/// A residency by its name; an invalid name is quoted in the error.
pub(crate) fn residency(word: &str) -> Result<ResidencyMode, ApiError> {
    word.parse().map_err(|error: model_boss_protocol::ParseResidencyError| {
        ApiError::invalid("residency", format!("'residency': {error}"))
    })
}

fn known(context: &Context, name: &str) -> Result<ModelId, ApiError> {
    let catalog = context.catalog.current();
    let model = catalog.find(name).ok_or_else(|| unknown_model(name).with_param("model_name"))?;
    Ok(model.description.id.clone())
}
