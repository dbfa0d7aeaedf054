//! `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM has them: adapters are added to a loaded
//! model, and dropped.

use std::path::PathBuf;
use std::sync::Arc;

use axum::response::Response;
use model_boss_catalog::{AdapterSource, AddAdapterError, PathError};
use model_boss_core::{ModelStatus, RequestOutcome};
use model_boss_http::body::json;
use model_boss_http::path::unknown_model;
use model_boss_protocol::{ApiError, Category, ClientId, ErrorCode, ModelId, is_adapter_name};
use model_boss_tasks::NameQuestion;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::manage::asker;
use crate::adapters::GiveError;
use crate::api::context::Context;
use crate::api::route::Call;
use crate::scheduling::{Destination, Wish};

/// An adapter to be added.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct LoadAdapterBody {
    /// The adapter's name, or `MODEL:NAME`.
    lora_name: String,
    /// An absolute path below a model root: a folder of PEFT, or a GGUF file.
    lora_path: PathBuf,
    /// The model that it is for; not needed where there is only one that writes text.
    #[serde(alias = "model")]
    base_model_name: Option<String>,
    /// Whether an adapter of this name that was loaded before is replaced.
    #[serde(default)]
    load_inplace: bool,
}

/// An adapter to be removed.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct UnloadAdapterBody {
    /// The adapter's name, or `MODEL:NAME`.
    lora_name: String,
    /// The model that it is for; not needed where there is only one that writes text.
    #[serde(alias = "model")]
    base_model_name: Option<String>,
}

/// The end of an order about an adapter.
#[derive(Serialize, JsonSchema)]
pub(crate) struct AdapterOrderDone {
    /// `loaded`, `added` where the model is not loaded itself, or `unloaded`.
    status: &'static str,
    /// The name for requests.
    model: String,
}

/// Adds an adapter. One of a loaded model is checked at once.
pub(crate) async fn load(mut call: Call) -> Result<Response, ApiError> {
    let LoadAdapterBody { lora_name, lora_path, base_model_name, load_inplace } = call.body().await?.parse().await?;
    let (asker, client) = (asker(&call), call.client()?);
    let (model, name) = meant(&call.context, &lora_name, base_model_name.as_deref())?;
    // The permission for the model is that for its adapters.
    call.permit_model(&model)?;
    let (catalog, id, adapter) = (Arc::clone(&call.context.catalog), model.clone(), name.clone());
    let added = spawn_blocking(move || catalog.add_adapter(&id, &adapter, (&lora_path, asker), load_inplace)).await;
    let added = added.map_err(|_| ApiError::new(ErrorCode::Internal, "the path could not be looked at"))?;
    let source = added.map_err(refused)?;
    let context = Arc::clone(&call.context);
    let status = if is_loaded(&context, &model).await {
        if let Err(error) = check((&context, &client), &model, &name, &source).await {
            // An adapter that cannot be used is not kept; one that was there before is lost with it.
            let _ = context.catalog.remove_adapter(&model, &name);
            return Err(error.with_param("lora_path"));
        }
        "loaded"
    } else {
        readable(&source).await?;
        "added"
    };
    json(&AdapterOrderDone { status, model: format!("{model}:{name}") })
}

/// Removes an adapter. Answers that use it end with it.
pub(crate) async fn unload(mut call: Call) -> Result<Response, ApiError> {
    let UnloadAdapterBody { lora_name, base_model_name } = call.body().await?.parse().await?;
    let (model, name) = meant(&call.context, &lora_name, base_model_name.as_deref())?;
    call.permit_model(&model)?;
    call.context.catalog.remove_adapter(&model, &name).map_err(refused)?;
    json(&AdapterOrderDone { status: "unloaded", model: format!("{model}:{name}") })
}

/// The model and the adapter that an order is about.
fn meant(context: &Context, name: &str, base: Option<&str>) -> Result<(ModelId, String), ApiError> {
    let catalog = context.catalog.current();
    let find = |base: &str| catalog.find(base).map(|model| model.description.id.clone());
    let (model, name) = match (base, name.rsplit_once(':')) {
        (Some(base), _) => {
            let model = find(base).ok_or_else(|| unknown_model(base).with_param("base_model_name"))?;
            let own = name.strip_prefix(base).and_then(|rest| rest.strip_prefix(':'));
            (model, own.unwrap_or(name))
        }
        (None, Some((base, name))) => (find(base).ok_or_else(|| unknown_model(base).with_param("lora_name"))?, name),
        (None, None) => (only_model(context)?, name),
    };
    if !is_adapter_name(name) {
        let message = format!("'{name}' cannot name an adapter; use letters, digits and . _ - @ +");
        return Err(ApiError::invalid("lora_name", message));
    }
    Ok((model, name.to_owned()))
}

/// The only model that writes text.
fn only_model(context: &Context) -> Result<ModelId, ApiError> {
    let catalog = context.catalog.current();
    let mut writing = catalog.models().filter(|model| model.description.category == Category::Llm);
    match (writing.next(), writing.next()) {
        (Some(only), None) => Ok(only.description.id.clone()),
        _ => {
            let message = "several models write text, or none: name the adapter's in 'base_model_name'";
            Err(ApiError::invalid("base_model_name", message))
        }
    }
}

fn refused(error: AddAdapterError) -> ApiError {
    let message = error.to_string();
    match error {
        AddAdapterError::Path(PathError::Outside { .. } | PathError::Absent(_)) => {
            ApiError::new(ErrorCode::ModelNotFound, message).with_param("lora_path")
        }
        AddAdapterError::Path(_) => ApiError::invalid("lora_path", message),
        AddAdapterError::Taken { .. } | AddAdapterError::OfManifest(_) => ApiError::invalid("lora_name", message),
        AddAdapterError::Absent { .. } => ApiError::new(ErrorCode::ModelNotFound, message).with_param("lora_name"),
    }
}

async fn is_loaded(context: &Context, model: &ModelId) -> bool {
    let model = model.clone();
    let loaded = context.scheduling.view(move |scheduler, _| {
        scheduler.models().iter().any(|view| view.id == model && view.status == ModelStatus::Loaded)
    });
    loaded.await.unwrap_or(false)
}

/// Whether the files of an adapter can be read, whose model is not loaded.
async fn readable(source: &AdapterSource) -> Result<(), ApiError> {
    let source = source.clone();
    let read = spawn_blocking(move || source.read().map(drop)).await;
    let read = read.map_err(|_| ApiError::new(ErrorCode::Internal, "the files could not be read"))?;
    read.map_err(|error| ApiError::invalid("lora_path", error.to_string()))
}

/// Has the model's worker load the adapter, in turn with requests.
async fn check(
    (context, client): (&Context, &ClientId),
    model: &ModelId,
    name: &str,
    source: &AdapterSource,
) -> Result<(), ApiError> {
    let asked = format!("{model}:{name}");
    let question = NameQuestion { model: Some(&asked), task: None, client, no_fallback: true };
    let resolved = context.tasks.resolve(&question, &context.catalog)?;
    let wish = Wish {
        permit: resolved.permit,
        category: Category::Llm,
        priority: None,
        deadline: None,
        keep_alive: None,
        work: None,
    };
    let mut ticket = context.scheduling.submit(wish);
    let dispatched = ticket.dispatched().await?;
    let given = match &dispatched.place {
        Destination::Worker { worker, .. } => match worker.upstream() {
            Some(upstream) => worker.adapters.give((model, upstream), name, source).await,
            None => Ok(()),
        },
        Destination::Cloud { .. } => Ok(()),
    };
    let given = given.map_err(|error| match error {
        GiveError::Refused(error) => error,
        GiveError::Lost(error) => ApiError::new(ErrorCode::WorkerCrashed, error.to_string()),
    });
    match given {
        Ok(()) => {
            ticket.finish(RequestOutcome::Answered, None);
            Ok(())
        }
        Err(error) => {
            ticket.failed(&error);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn en_9_refusals_name_the_field() {
        let outside = PathError::Absent(Path::new("/models/x").to_owned());
        let error = refused(AddAdapterError::Path(outside));
        assert_eq!((error.code, error.param.as_deref()), (ErrorCode::ModelNotFound, Some("lora_path")));
        let taken = AddAdapterError::Taken { model: "m".into(), name: "a".to_owned() };
        assert_eq!(refused(taken).param.as_deref(), Some("lora_name"));
    }
}
