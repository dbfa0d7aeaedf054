//! `/api/v1/jobs`: an order, the jobs, their results, and their end.

use std::sync::Arc;

use axum::response::Response;
use http::header::{HeaderValue, LOCATION};
use http::{HeaderMap, StatusCode, Uri};
use model_boss_http::body::{json, json_with};
use model_boss_http::path::{parameter, parameters};
use model_boss_jobs::{JobId, JobState, KINDS, KeptKind};
use model_boss_protocol::{ApiError, ErrorCode};
use serde_json::Value;
use tokio::time::Instant;

use super::content::content;
use super::events::events;
use super::order::accept;
use super::page::PageQuery;
use super::path::{NamedPath, opened, wait_until};
use crate::api::route::Call;
use crate::jobs::{JobFilter, JobStatus, Jobs, no_job};
use crate::keys::RequestSender;

/// The most jobs of a page.
const MOST: usize = 1_000;
/// The part of a path before the id.
const ROOT: &str = "/jobs/";

/// `POST /api/v1/jobs`.
pub(crate) async fn submit(call: Call) -> Result<Response, ApiError> {
    let mut call = opened(call).await;
    let wait = wait_until(call.request.uri())?;
    let id = accept(&mut call).await?;
    let jobs = Arc::clone(&call.context.jobs);
    let view = jobs.show_ended(&call.identity, &id, wait.unwrap_or_else(Instant::now)).await?;
    let status = if view.has_ended() { StatusCode::OK } else { StatusCode::ACCEPTED };
    let mut response = json_with(status, &view)?;
    if let Ok(place) = HeaderValue::from_str(&format!("/api/v1/jobs/{id}")) {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// `GET /api/v1/jobs`.
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let call = opened(call).await;
    let target = call.request.uri();
    let PageQuery { after, limit, is_ascending } = PageQuery::of(target, MOST)?;
    if is_ascending {
        return Err(ApiError::invalid("order", "jobs are listed the newest first: leave 'order' out"));
    }
    let filter = JobFilter { states: states(target)?, endpoint: endpoint(target)?, after, limit };
    json(&call.context.jobs.list(&call.identity, &filter)?)
}

/// `GET /api/v1/jobs/ID`, `/api/v1/jobs/ID/result` and `/api/v1/jobs/ID/events`.
pub(crate) async fn show(call: Call) -> Result<Response, ApiError> {
    let call = opened(call).await;
    let named = NamedPath::of(call.request.uri(), ROOT);
    let id = JobId::named(&named.id);
    let until = wait_until(call.request.uri())?.unwrap_or_else(Instant::now);
    match named.verb.as_str() {
        "" => json(&call.context.jobs.show_ended(&call.identity, &id, until).await?),
        "result" => {
            call.context.jobs.show_ended(&call.identity, &id, until).await?;
            result(&call.context.jobs, &call.identity, call.request.headers(), &id).await
        }
        "events" => events(&call, id),
        _ => Err(named.no_such_route("job")),
    }
}

/// `DELETE /api/v1/jobs/ID`.
pub(crate) async fn delete(call: Call) -> Result<Response, ApiError> {
    let call = opened(call).await;
    let named = NamedPath::of(call.request.uri(), ROOT);
    if !named.verb.is_empty() {
        return Err(named.no_such_route("job"));
    }
    let id = JobId::named(&named.id);
    let jobs = &call.context.jobs;
    let (before, _) = jobs.show(&call.identity, &id).await?;
    jobs.delete(&call.identity, &id).await?;
    // A job that had ended is gone with its result; one that had not stays, as cancelled.
    match jobs.show(&call.identity, &id).await {
        Ok((after, _)) => json(&after),
        Err(_) => json(&before),
    }
}

/// The body of a job's answer, or the error in its place.
async fn result(jobs: &Jobs, reader: &RequestSender, headers: &HeaderMap, id: &JobId) -> Result<Response, ApiError> {
    let record = jobs.get(reader, id)?.record;
    match (record.state, record.answer, record.error) {
        (JobState::Succeeded, Some(answer), _) => {
            let (file, bytes) = jobs.open_file(KeptKind::Result, id.as_str()).await?;
            content(file, bytes, &answer.content_type, headers, None)
        }
        (JobState::Failed, _, Some(error)) => {
            let code = ErrorCode::ALL.iter().find(|code| code.as_str() == error.code).copied();
            let code = code.unwrap_or(ErrorCode::BackendError);
            let answered = ApiError::new(code, error.message).with_status(error.status);
            Err(ApiError { param: error.param, ..answered })
        }
        (JobState::Cancelled, ..) => {
            Err(ApiError::new(ErrorCode::RequestCancelled, format!("{id} was cancelled, and has no result")))
        }
        (JobState::Queued, ..) => {
            let message = format!("{id} has not ended; ask again, or with ?wait=30s");
            Err(ApiError::new(ErrorCode::JobNotFinished, message))
        }
        (JobState::Succeeded | JobState::Failed, ..) => Err(no_job(id)),
    }
}

/// The states that a query names, with commas or several times.
fn states(target: &Uri) -> Result<Vec<JobStatus>, ApiError> {
    let named: Vec<String> = parameters(target)
        .filter(|(name, _)| name == "state")
        .flat_map(|(_, value)| value.split(',').map(|word| word.trim().to_owned()).collect::<Vec<_>>())
        .collect();
    let state = |word: String| {
        serde_json::from_value(Value::String(word))
            .map_err(|_| ApiError::invalid("state", "'state' must be queued, running, succeeded, failed or cancelled"))
    };
    named.into_iter().map(state).collect()
}

/// The route of the jobs that a query asks for.
fn endpoint(target: &Uri) -> Result<Option<String>, ApiError> {
    let Some(kind) = parameter(target, "kind") else {
        return Ok(parameter(target, "endpoint").map(|path| path.into_owned()));
    };
    let known = KINDS.iter().find(|known| known.name == kind);
    known.map(|known| Some(known.endpoint.to_owned())).ok_or_else(|| {
        let names: Vec<&str> = KINDS.iter().map(|known| known.name).collect();
        ApiError::invalid("kind", format!("'kind' must be one of {}", names.join(", ")))
    })
}
