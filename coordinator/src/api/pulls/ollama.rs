//! `POST /api/pull`: Ollama's pull, in its own lines. Ollama's library is no hub of Hugging Face's API, so models are
//! named as `hf.co/ORG/NAME:Q4_K_M`, or as their manifests call them.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use model_boss_dialects::ollama::model_name;
use model_boss_http::body::json;
use model_boss_hub::{HubName, PullProgress, PullStage};
use model_boss_protocol::{ApiError, ErrorCode};
use serde_json::{Map, Value, json};

use super::lines::{PullLines, stream};
use super::wish;
use crate::api::inference::ollama::about;
use crate::api::route::Call;
use crate::pulls::{PullJob, PullOrder, PullResult, PullWatch};

/// The digits of a checksum in a status.
const SHOWN: usize = 12;
/// The digits of a SHA-256.
const SHA256: usize = 64;

/// `POST /api/pull`.
pub(crate) async fn pull(mut call: Call) -> Result<Response, ApiError> {
    let body: Map<String, Value> = call.body().await?.parse().await?;
    let is_stream = match body.get("stream") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(stream)) => *stream,
        Some(_) => return Err(ApiError::invalid("stream", "'stream' must be true or false")),
    };
    let Some(order) = order(&call, &body)? else {
        let client = call.client()?;
        about(&call.context, &client, body).await.map_err(|mut error| {
            if error.code == ErrorCode::ModelNotFound {
                error.message += "; name a manifest's model, or one of a hub: hf.co/ORG/NAME:Q4_K_M (Ollama's \
                                  library is not pulled from)";
            }
            error
        })?;
        return success(is_stream);
    };
    let job = call.context.pulls.start(order)?;
    if is_stream {
        return stream(&call.context, &job, OllamaLines::default()).await;
    }
    let watch = PullWatch::new(&job);
    watch.job().done().await?;
    success(is_stream)
}

/// The order; `None` where no files are to be fetched: for a model that is there, a task, or a provider's model.
fn order(call: &Call, body: &Map<String, Value>) -> Result<Option<PullOrder>, ApiError> {
    let name = model_name(body).unwrap_or_default();
    let model = call.context.catalog.current().find(name).map(Arc::clone);
    match model {
        Some(model) if model.is_absent => wish::of_model(call, &model, "model").map(Some),
        Some(_) => Ok(None),
        None if HubName::is_explicit(name) => wish::of_name(call, name, "model").map(Some),
        None => Ok(None),
    }
}

fn success(is_stream: bool) -> Result<Response, ApiError> {
    let done = json!({ "status": "success" });
    if !is_stream {
        return json(&done);
    }
    let mut response = Response::new(Body::from(format!("{}\n{done}\n", json!({ "status": "pulling manifest" }))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(OllamaLines::KIND));
    Ok(response)
}

/// Ollama's lines. Each status that has no bytes is written once.
#[derive(Default)]
struct OllamaLines {
    last: Option<&'static str>,
}

impl OllamaLines {
    fn once(&mut self, status: &'static str) -> String {
        if self.last.replace(status) == Some(status) { String::new() } else { line(&json!({ "status": status })) }
    }
}

const MANIFEST: &str = "pulling manifest";
const VERIFYING: &str = "verifying sha256 digest";
const WRITING: &str = "writing manifest";

impl PullLines for OllamaLines {
    const KIND: &'static str = "application/x-ndjson";

    fn progress(&mut self, _: &PullJob, progress: &PullProgress) -> String {
        let first = if self.last.is_none() { self.once(MANIFEST) } else { String::new() };
        let next = match progress.stage {
            PullStage::Listing => self.once(MANIFEST),
            PullStage::Verifying => self.once(VERIFYING),
            PullStage::Linking => self.once(WRITING),
            PullStage::Waiting | PullStage::Downloading => {
                self.last = Some("");
                let kind = if progress.digest.len() == SHA256 { "sha256" } else { "sha1" };
                line(&json!({
                    "status": format!("pulling {}", progress.digest.get(..SHOWN).unwrap_or_default()),
                    "digest": format!("{kind}:{}", progress.digest),
                    "total": progress.file_total,
                    "completed": progress.file_completed,
                }))
            }
        };
        first + &next
    }

    fn end(&mut self, _: &PullJob, result: &Result<PullResult, ApiError>) -> String {
        match result {
            Ok(_) => {
                let before = if self.last.is_none() { self.once(MANIFEST) } else { String::new() };
                let verified = if self.last == Some(WRITING) { String::new() } else { self.once(VERIFYING) };
                before + &verified + &self.once(WRITING) + &line(&json!({ "status": "success" }))
            }
            Err(error) => line(&json!({ "error": error.message })),
        }
    }
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}
