//! Pictures of the fake worker: one pixel, after as many steps as were asked for, each of which is a token.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use model_boss_protocol::{ApiError, ErrorCode, form_boundary, form_parts};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::canned::{CannedAnswer, events, whole};
use crate::decode::Decode;
use crate::fake_worker::FakeWorker;
use crate::received::{Received, receive};

/// A grey pixel as a PNG file in base64.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==";

/// Steps where a request names none.
const USUAL_STEPS: u64 = 4;

/// Paints: each step is a token of the behaviour's rate.
pub(crate) async fn paint(request: Request<Incoming>, worker: &FakeWorker) -> CannedAnswer {
    let is_edit = request.uri().path().ends_with("/edits");
    let Received { number, headers, bytes } = match receive(request, worker).await {
        Ok(received) => received,
        Err(answer) => return answer,
    };
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let fields = match fields_of(kind, &bytes) {
        Ok(fields) => fields,
        Err(error) => return worker.refuse(&error),
    };
    let Some(prompt) = fields.get("prompt").and_then(Value::as_str) else {
        return worker.refuse(&ApiError::invalid("prompt", "'prompt' is missing"));
    };
    let whole_number = |name: &str| fields.get(name).and_then(Value::as_u64);
    let (steps, count) = (whole_number("steps").unwrap_or(USUAL_STEPS), whole_number("n").unwrap_or(1));
    let words = prompt.split_whitespace().count() as u64;
    let text = "step ".repeat(usize::try_from(steps).unwrap_or(1));
    let decode = worker.decode((number, words, Some(steps)), Some(&text));
    let seed = whole_number("seed").unwrap_or(0);
    if fields.get("stream") == Some(&Value::Bool(true)) {
        let kind = if is_edit { "image_edit" } else { "image_generation" };
        return streamed(decode, kind, seed);
    }
    let asked = headers.get(model_boss_protocol::headers::REQUEST_ID).and_then(|id| id.to_str().ok());
    worker.answers.count_steps(asked.unwrap_or_default(), decode, steps).await;
    let data: Vec<Value> = (0..count).map(|at| json!({ "b64_json": PIXEL, "seed": seed + at })).collect();
    let answer = json!({ "created": 0, "data": data, "output_format": "png", "size": "1x1", "background": "opaque" });
    whole(StatusCode::OK, answer.to_string().into())
}

/// The fields of a body, which is JSON or a form. Whole numbers and truth values of a form are text.
fn fields_of(kind: &str, body: &Bytes) -> Result<Map<String, Value>, ApiError> {
    let refused = |error: &dyn std::fmt::Display| ApiError::new(ErrorCode::InvalidRequest, error.to_string());
    if !kind.starts_with("multipart/") {
        return serde_json::from_slice(body).map_err(|error| refused(&error));
    }
    let boundary = form_boundary(kind).map_err(|error| refused(&error))?;
    let parts = form_parts(body, &boundary).map_err(|error| refused(&error))?;
    if !parts.iter().any(|part| part.name.trim_end_matches("[]") == "image") {
        return Err(ApiError::invalid("image", "'image' is missing"));
    }
    let texts = parts.into_iter().filter(|part| part.file_name.is_none());
    let value = |text: &str| {
        let plain = serde_json::from_str::<Value>(text).ok().filter(|value| value.is_u64() || value.is_boolean());
        plain.unwrap_or_else(|| Value::from(text))
    };
    Ok(texts.map(|part| (part.name, value(&String::from_utf8_lossy(&body[part.content])))).collect())
}

/// A picture after each step but the last one, and one at the end.
fn streamed(mut decode: Decode, kind: &'static str, seed: u64) -> CannedAnswer {
    let (frames, body) = mpsc::channel(16);
    tokio::spawn(async move {
        let event = |what: &str, show: Option<u64>| {
            let told = json!({ "type": format!("{kind}.{what}"), "b64_json": PIXEL, "created_at": 0, "seed": seed,
                "partial_image_index": show });
            Bytes::from(format!("data: {told}\n\n"))
        };
        let mut show = 0;
        loop {
            let step = tokio::select! {
                biased;
                () = frames.closed() => return,
                step = decode.next() => step.is_some(),
            };
            if !step {
                break;
            }
            if frames.send(event("partial_image", Some(show))).await.is_err() {
                return;
            }
            show += 1;
        }
        let _ = decode.finish();
        _ = frames.send(event("completed", None)).await;
    });
    events(body)
}
