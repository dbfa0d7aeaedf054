//! `PUT` and `DELETE /adapters/{name}`: the coordinator's orders about the adapters of a model.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use model_boss_engine::AdapterFiles;
use model_boss_protocol::{ApiError, ErrorCode, headers};
use serde::Serialize;
use tokio::task::spawn_blocking;

use crate::state::WorkerState;

use super::error::ErrorAnswer;

/// Most bytes of an adapter's files.
pub(super) const LARGEST_ADAPTER: usize = 4 << 30;

/// An adapter in memory.
#[derive(Serialize)]
pub(super) struct AdapterEntry {
    name: String,
    bytes: u64,
}

/// Makes an adapter of the files in the body: the configuration and behind it the weights of a PEFT folder, or a GGUF
/// file. A header has the bytes of the configuration.
pub(super) async fn load(
    State(worker): State<Arc<WorkerState>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<AdapterEntry>, ErrorAnswer> {
    let body = body?;
    let config = match headers.get(headers::ADAPTER_CONFIG) {
        None => None,
        Some(length) => {
            let length = length.to_str().ok().and_then(|length| length.parse::<usize>().ok());
            let length = length.filter(|length| *length <= body.len());
            Some(
                length
                    .ok_or_else(|| ApiError::invalid(headers::ADAPTER_CONFIG, "no such length of a configuration"))?,
            )
        }
    };
    let loaded = spawn_blocking(move || {
        let serving = worker.serving()?;
        let files = match config {
            Some(length) => AdapterFiles::Peft { config: body[..length].to_vec(), weights: body[length..].to_vec() },
            None => AdapterFiles::Gguf(body.to_vec()),
        };
        drop(body);
        let bytes = serving.adapters.load(&worker.spec.model, &name, &files)?;
        Ok(AdapterEntry { name, bytes })
    });
    let failed = |_| ApiError::new(ErrorCode::Internal, "the worker failed on this adapter");
    let loaded: Result<AdapterEntry, ApiError> = loaded.await.map_err(failed)?;
    Ok(Json(loaded?))
}

/// Forgets an adapter. One that is not there is no error: it may never have been used.
pub(super) async fn unload(
    State(worker): State<Arc<WorkerState>>,
    Path(name): Path<String>,
) -> Result<Json<AdapterEntry>, ErrorAnswer> {
    worker.serving()?.adapters.unload(&name);
    Ok(Json(AdapterEntry { name, bytes: 0 }))
}

/// All adapters in memory.
pub(super) async fn list(State(worker): State<Arc<WorkerState>>) -> Result<Json<Vec<AdapterEntry>>, ErrorAnswer> {
    let all = worker.serving()?.adapters.list();
    Ok(Json(all.into_iter().map(|(name, bytes)| AdapterEntry { name, bytes }).collect()))
}
