//! Requests that the coordinator sends to its own routes, with the permissions of the job's sender.

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Request};
use model_boss_http::headers::RequestId;
use model_boss_jobs::{JobOwner, SenderKind};
use model_boss_protocol::{ApiError, ErrorCode};
use tower::ServiceExt;

use crate::keys::RequestSender;

/// The sender of a request, which needs no key: it was known when the job was accepted, and its key is still valid.
/// Only this process sets it, because extensions do not come over a connection.
#[derive(Clone, Debug)]
pub(crate) struct JobSender(pub(crate) RequestSender);

/// A request to one of the coordinator's routes.
pub(super) struct InnerRequest {
    pub(super) id: String,
    pub(super) endpoint: String,
    pub(super) content_type: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Body,
    pub(super) sender: RequestSender,
}

/// The sender of an order, as it is kept with the job.
pub(crate) fn owner_of(sender: &RequestSender, client: &str) -> JobOwner {
    let (kind, key) = match sender {
        RequestSender::Anyone => (SenderKind::Anyone, None),
        RequestSender::Owner => (SenderKind::Owner, None),
        RequestSender::Unnamed => (SenderKind::Unnamed, None),
        RequestSender::Client(record) => (SenderKind::Client, Some(record.name.to_string())),
    };
    JobOwner { kind, client: client.to_owned(), key }
}

/// Whether a sender may see what belongs to an owner: its own, or everything where it is an operator.
pub(crate) fn may_see(sender: &RequestSender, owner: &JobOwner) -> bool {
    sender.bound().is_none_or(|record| record.is_admin() || owner.is_seen_by(record.name.as_str()))
}

/// Sends a request to the router, and returns the answer's beginning.
pub(super) async fn send(router: Router, inner: InnerRequest) -> Result<Response, ApiError> {
    let InnerRequest { id, endpoint, content_type, headers, body, sender } = inner;
    let unusable = |what: &str| ApiError::new(ErrorCode::Internal, format!("the job's {what} cannot be sent"));
    let mut request =
        Request::builder().method(Method::POST).uri(&endpoint).body(body).map_err(|_| unusable("path"))?;
    let kind = HeaderValue::from_str(&content_type).map_err(|_| unusable("content type"))?;
    request.headers_mut().insert(CONTENT_TYPE, kind);
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unusable("header"))?;
        let value = HeaderValue::from_str(&value).map_err(|_| unusable("header"))?;
        request.headers_mut().insert(name, value);
    }
    let id = HeaderValue::from_str(&id).map_err(|_| unusable("id"))?;
    request.extensions_mut().insert(RequestId(id));
    request.extensions_mut().insert(JobSender(sender));
    match router.oneshot(request).await {
        Ok(response) => Ok(response),
        Err(never) => match never {},
    }
}
