//! `POST /api/v1/load` (by name, or by the path of a model's files) and `/api/v1/unload`.

use std::path::PathBuf;
use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use model_boss_protocol::{ApiError, ErrorCode, ModelId};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::Context;
use super::body::{json, json_with, parse};
use super::route::Call;
use crate::catalog::PathError;

/// Exactly one of name and path.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadRequest {
    model_name: Option<String>,
    /// Absolute, below a model root.
    path: Option<PathBuf>,
    /// Answer when the model serves, and not already when it is known.
    #[serde(default = "yes")]
    wait: bool,
}

fn yes() -> bool {
    true
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UnloadRequest {
    model_name: Option<String>,
}

#[derive(Serialize)]
struct Done<'a> {
    status: &'static str,
    model_name: Option<&'a ModelId>,
}

/// Waits as long as its caller stays connected (MM-7), or not at all.
pub(super) async fn load(mut call: Call) -> Result<Response, ApiError> {
    let body = call.body().await?;
    let request: LoadRequest = parse(&body)?;
    let model = match (request.model_name, request.path) {
        (Some(name), None) => known(&call.context, &name)?,
        (None, Some(path)) => at_path(&call.context, path).await?,
        (Some(_), Some(_)) => return Err(ApiError::invalid("path", "give 'model_name' or 'path', not both")),
        (None, None) => return Err(ApiError::invalid("model_name", "give 'model_name', or 'path' of a model's files")),
    };
    let loading = call.context.scheduling.load(model.clone());
    if request.wait {
        loading.done().await?;
        return json(&Done { status: "loaded", model_name: Some(&model) });
    }
    // How it ends shows in the model's status, and to whoever uses the model.
    tokio::spawn(loading.done());
    json_with(StatusCode::ACCEPTED, &Done { status: "loading", model_name: Some(&model) })
}

/// The model at a path, which is one of the catalog from now on.
async fn at_path(context: &Context, path: PathBuf) -> Result<ModelId, ApiError> {
    let catalog = Arc::clone(&context.catalog);
    let added = spawn_blocking(move || catalog.add(&path)).await;
    let added = added.map_err(|_| ApiError::new(ErrorCode::Internal, "the path could not be looked at"))?;
    added.map_err(|error| {
        let code = match error {
            PathError::Outside { .. } | PathError::Absent(_) => ErrorCode::ModelNotFound,
            _ => ErrorCode::InvalidRequest,
        };
        ApiError::new(code, error.to_string()).with_param("path")
    })
}

/// One model, or all of them without a name (MM-10).
pub(super) async fn unload(mut call: Call) -> Result<Response, ApiError> {
    let body = call.body().await?;
    let request: UnloadRequest = if body.is_empty() { UnloadRequest::default() } else { parse(&body)? };
    let model = request.model_name.map(|name| known(&call.context, &name)).transpose()?;
    call.context.scheduling.unload(model.clone()).done().await?;
    json(&Done { status: "unloaded", model_name: model.as_ref() })
}

fn known(context: &Context, name: &str) -> Result<ModelId, ApiError> {
    let catalog = context.catalog.current();
    let model = catalog.find(name).ok_or_else(|| {
        ApiError::new(ErrorCode::ModelNotFound, format!("there is no model '{name}'; GET /v1/models lists them"))
            .with_param("model_name")
    })?;
    Ok(model.description.id.clone())
}
