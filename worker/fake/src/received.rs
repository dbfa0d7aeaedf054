//! Requests that are answered in order: read, reported, and refused where the behaviour wants it.

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use model_boss_fake_worker::behaviour::{Malformed, Report};
use model_boss_protocol::{ApiError, ErrorCode};
use serde_json::json;

use crate::canned::{CannedAnswer, whole};
use crate::echo::{json_or_text, readable};
use crate::failure::exit_now;
use crate::fake_worker::FakeWorker;

/// The largest accepted request body in bytes.
pub(crate) const BODY_LIMIT: usize = 64 << 20;

/// A request that is to be answered in order.
pub(crate) struct Received {
    pub(crate) number: u64,
    pub(crate) headers: http::HeaderMap,
    pub(crate) bytes: Bytes,
}

/// Reads a request and reports it, unless the behaviour answers it at once.
pub(crate) async fn receive(request: Request<Incoming>, worker: &FakeWorker) -> Result<Received, CannedAnswer> {
    let (parts, body) = request.into_parts();
    let number = worker.counters.next_request();
    let Ok(bytes) = Limited::new(body, BODY_LIMIT).collect().await else {
        return Err(worker.refuse(&ApiError::new(ErrorCode::RequestTooLarge, "the body is over the limit")));
    };
    let bytes = bytes.to_bytes();
    if worker.control.listens() {
        worker.control.report(&Report::Request {
            number,
            path: parts.uri.path().to_owned(),
            headers: readable(&parts.headers),
            body: json_or_text(&bytes),
        });
    }
    if worker.behaviour.crash_at_request == Some(number) {
        eprintln!("model-boss-fake-worker: crash at request {number}, as told");
        exit_now(worker.behaviour.crash_exit);
    }
    if worker.ready.get().is_none() {
        return Err(worker.refuse(&ApiError::new(ErrorCode::ModelNotLoaded, "the model is still loading")));
    }
    if let Some(refusal) = &worker.behaviour.refuse {
        let error =
            json!({ "message": refusal.message, "type": "invalid_request_error", "param": null, "code": refusal.code });
        let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        return Err(whole(status, json!({ "error": error, "source": "worker" }).to_string().into()));
    }
    if worker.behaviour.malformed == Some(Malformed::NotJson) {
        return Err(whole(StatusCode::OK, Bytes::from_static(b"<html>good day, this is not JSON</html>")));
    }
    Ok(Received { number, headers: parts.headers, bytes })
}
