//! `/api/v1/pull`: the pulls, an order for one, and its end.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use model_boss_http::body::{json as answer, json_with};
use model_boss_protocol::sse::event;
use model_boss_protocol::{ApiError, ErrorCode, ErrorSource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::lines::{PullLines, stream};
use super::wish;
use crate::api::route::Call;
use crate::pulls::{PullJob, PullObject, PullOrder, PullResult, PullWatch};

/// An order to pull a model.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PullBody {
    /// A model's name or alias, or a name of a hub.
    #[serde(alias = "model_name")]
    model: Option<String>,
    /// A name of a hub.
    source: Option<String>,
    /// Whether the progress is streamed.
    #[serde(default)]
    stream: bool,
    /// Whether the answer waits for the end of the pull.
    #[serde(default = "yes")]
    wait: bool,
    /// Whether a manifest is written for files that none names.
    #[serde(default = "yes")]
    manifest: bool,
}

fn yes() -> bool {
    true
}

/// The pulls.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PullsAnswer {
    /// Those that run, and the last ones that ended.
    pulls: Vec<PullObject>,
}

/// `GET /api/v1/pull`.
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    answer(&PullsAnswer { pulls: call.context.pulls.all().iter().map(|job| job.view()).collect() })
}

/// `POST /api/v1/pull`.
pub(crate) async fn start(mut call: Call) -> Result<Response, ApiError> {
    let body: PullBody = call.body().await?.parse().await?;
    let order = order(&call, &body)?;
    let order = PullOrder {
        wants_manifest: order.wants_manifest && body.manifest,
        is_kept: !body.wait && !body.stream,
        ..order
    };
    let job = call.context.pulls.start(order)?;
    if body.stream {
        return stream(&call.context, &job, EventLines).await;
    }
    if !body.wait {
        return json_with(StatusCode::ACCEPTED, &job.view());
    }
    let watch = PullWatch::new(&job);
    watch.job().done().await?;
    answer(&job.view())
}

fn order(call: &Call, body: &PullBody) -> Result<PullOrder, ApiError> {
    match (&body.model, &body.source) {
        (Some(name), None) => {
            let model = call.context.catalog.current().find(name).map(Arc::clone);
            model.map_or_else(|| wish::of_name(call, name, "model"), |model| wish::of_model(call, &model, "model"))
        }
        (None, Some(source)) => wish::of_name(call, source, "source"),
        (Some(_), Some(_)) => Err(ApiError::invalid("source", "give 'model' or 'source', not both")),
        (None, None) => {
            let message = "give 'model', the name of a model, or 'source', such as \"hf://ORG/NAME:Q4_K_M\"";
            Err(ApiError::invalid("model", message))
        }
    }
}

/// `DELETE /api/v1/pull/{id}`.
pub(crate) async fn cancel(call: Call) -> Result<Response, ApiError> {
    let id = call.request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let cancelled =
        id.parse().ok().and_then(|id| Some((id, call.context.pulls.all().into_iter().find(|job| job.id() == id)?)));
    let Some((number, job)) = cancelled else {
        let message = format!("there is no pull '{id}'; GET /api/v1/pull lists them");
        return Err(ApiError::new(ErrorCode::PullNotFound, message));
    };
    wish::may_manage(&call)?;
    call.context.pulls.cancel(number);
    // The result is that of the pull, whatever came first.
    let _ = job.done().await;
    answer(&job.view())
}

/// Server-sent events, each with the pull as lists show it.
struct EventLines;

impl PullLines for EventLines {
    const KIND: &'static str = "text/event-stream";

    fn progress(&mut self, job: &PullJob, _: &model_boss_hub::PullProgress) -> String {
        event(json!(job.view()))
    }

    fn end(&mut self, job: &PullJob, result: &Result<PullResult, ApiError>) -> String {
        match result {
            Ok(_) => event(json!(job.view())),
            Err(error) => event(error.body(ErrorSource::Coordinator).to_json()),
        }
    }
}
