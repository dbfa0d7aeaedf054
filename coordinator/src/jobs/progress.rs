//! How far the request of a job has come, asked of the worker that answers it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use model_boss_http::upstream::Outgoing;
use model_boss_jobs::JobId;
use model_boss_protocol::WorkProgress;
use tokio::time::timeout;

use crate::worker::Worker;

/// The longest wait for a worker's answer. A job's view is shown without it then.
const PATIENCE: Duration = Duration::from_millis(500);
/// The most bytes of its answer.
const MAX_ANSWER: usize = 16 << 10;

/// The progress of a job's request; `None` where the worker cannot tell.
pub(super) async fn progress_of(worker: &Arc<Worker>, id: &JobId) -> Option<WorkProgress> {
    // External engines know nothing of a request's id.
    if worker.dialect().is_some() {
        return None;
    }
    timeout(PATIENCE, ask(worker, id)).await.ok().flatten()
}

async fn ask(worker: &Arc<Worker>, id: &JobId) -> Option<WorkProgress> {
    let mut request = Request::new(Outgoing::new(Bytes::new(), Bytes::new()));
    *request.method_mut() = Method::GET;
    *request.uri_mut() = WorkProgress::path(id.as_str()).parse().ok()?;
    let (head, body) = worker.upstream()?.send(request).await.ok()?.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await.ok()?.to_bytes();
    (head.status == StatusCode::OK).then(|| serde_json::from_slice(&body).ok()).flatten()
}
