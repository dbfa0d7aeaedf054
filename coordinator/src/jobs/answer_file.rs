//! The answer of a job's request as a file, and the facts and errors that it has.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use http_body_util::BodyExt;
use model_boss_jobs::{DraftFile, JobError, JobFolder, KeptAnswer, KeptKind};
use serde::Deserialize;
use serde_json::Value;
use tokio::task::spawn_blocking;

/// The bytes that are written at once.
const PIECE: usize = 256 << 10;
/// The most bytes of an error that are read.
const MAX_ERROR: usize = 64 << 10;
/// The end of a stream in which its error is looked for.
const TAIL: usize = 16 << 10;
/// The most characters of a preview.
const PREVIEW: usize = 200;
/// The longest message of an error that is kept with a job.
const MAX_MESSAGE: usize = 4 << 10;

/// How much of an answer has come.
#[derive(Debug, Default)]
pub(super) struct AnswerMeter {
    pub(super) bytes: AtomicU64,
    /// The events of a stream: one for each token, mostly.
    pub(super) events: AtomicU64,
    /// The latest bytes of a stream.
    tail: Mutex<Vec<u8>>,
}

impl AnswerMeter {
    fn keep(&self, data: &[u8]) {
        let mut tail = self.tail();
        tail.extend_from_slice(data);
        let over = tail.len().saturating_sub(TAIL);
        if over > TAIL {
            tail.drain(..over);
        }
    }

    fn tail(&self) -> MutexGuard<'_, Vec<u8>> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest text of a stream; none of answers that are no streams of text. It is read when it is asked for.
    pub(super) fn preview(&self) -> Option<String> {
        let tail = String::from_utf8_lossy(&self.tail()).into_owned();
        let events = tail.lines().filter_map(|line| line.strip_prefix("data: "));
        let texts = events.filter_map(|event| text_of(&serde_json::from_str(event).ok()?));
        let text = texts.collect::<String>();
        let skipped = text.chars().count().saturating_sub(PREVIEW);
        (!text.is_empty()).then(|| text.chars().skip(skipped).collect())
    }
}

/// The text of an event, in any of the forms in which routes stream it.
fn text_of(event: &Value) -> Option<String> {
    let places = ["/choices/0/delta/content", "/choices/0/text", "/delta/text", "/delta"];
    places.into_iter().find_map(|place| event.pointer(place)?.as_str().map(str::to_owned))
}

/// The result of a request.
pub(super) enum JobAnswer {
    /// A success, whose body is a whole file.
    Kept(KeptAnswer),
    /// An error of the request.
    Error { error: JobError, again: Option<Duration> },
    /// The body could not be written to the disk.
    Disk(io::Error),
}

/// Writes the answer to the result file of a job.
pub(super) async fn keep_answer(
    folder: &JobFolder,
    name: &str,
    response: Response,
    meter: &Arc<AnswerMeter>,
) -> JobAnswer {
    let status = response.status().as_u16();
    let (head, body) = response.into_parts();
    if !head.status.is_success() {
        return refused(status, &head.headers, body).await;
    }
    let text = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let content_type = text(CONTENT_TYPE.as_str()).unwrap_or_else(|| "application/octet-stream".to_owned());
    let model = text("x-served-model");
    let is_stream = content_type.starts_with("text/event-stream");
    let (folder, name) = (folder.clone(), name.to_owned());
    let written = match spawn_blocking(move || folder.draft(KeptKind::Result, &name)).await {
        Ok(Ok(draft)) => write_body(draft, body, meter, is_stream).await,
        Ok(Err(error)) => Err(BodyFault::Disk(error)),
        Err(_) => Err(BodyFault::Broken),
    };
    match written {
        Ok(bytes) => JobAnswer::Kept(KeptAnswer { status, content_type, bytes, model }),
        Err(BodyFault::Disk(error)) => JobAnswer::Disk(error),
        Err(BodyFault::Stream(error)) => JobAnswer::Error { error, again: None },
        Err(BodyFault::Broken) => {
            let message = "the answer broke off".to_owned();
            let error = JobError { status: 502, code: "backend_error".to_owned(), message, param: None };
            JobAnswer::Error { error, again: None }
        }
    }
}

/// Why a body is no result.
enum BodyFault {
    Disk(io::Error),
    /// The stream ended with an error.
    Stream(JobError),
    Broken,
}

async fn write_body(
    mut draft: DraftFile,
    mut body: Body,
    meter: &Arc<AnswerMeter>,
    is_stream: bool,
) -> Result<u64, BodyFault> {
    // An earlier try of the same job may have left some.
    meter.tail().clear();
    let mut piece = Vec::new();
    loop {
        let frame = match body.frame().await {
            None => break,
            Some(Ok(frame)) => frame,
            Some(Err(_)) => return Err(BodyFault::Broken),
        };
        let Ok(data) = frame.into_data() else { continue };
        meter.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        if is_stream {
            meter.events.fetch_add(events_in(&data), Ordering::Relaxed);
            meter.keep(&data);
        }
        piece.extend_from_slice(&data);
        if piece.len() >= PIECE {
            let full = std::mem::take(&mut piece);
            draft = on_disk(move || draft.write(&full).map(|()| draft)).await?;
        }
    }
    if let Some(error) = error_in(&meter.tail()) {
        return Err(BodyFault::Stream(error));
    }
    on_disk(move || {
        draft.write(&piece)?;
        draft.finish()
    })
    .await
}

async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, BodyFault> {
    match spawn_blocking(work).await {
        Ok(done) => done.map_err(BodyFault::Disk),
        Err(_) => Err(BodyFault::Broken),
    }
}

fn events_in(data: &Bytes) -> u64 {
    memchr::memmem::find_iter(data, b"data: ").count() as u64
}

/// The error of an answer, as the API writes it.
#[derive(Deserialize)]
struct WrittenBody {
    error: WrittenFault,
}

#[derive(Deserialize)]
struct WrittenFault {
    message: String,
    code: Option<String>,
    #[serde(default)]
    param: Option<String>,
}

/// The error with which a stream ended, if it did.
fn error_in(tail: &[u8]) -> Option<JobError> {
    let text = String::from_utf8_lossy(tail);
    let last = text.lines().rev().filter_map(|line| line.strip_prefix("data: ")).find(|data| *data != "[DONE]")?;
    let WrittenBody { error: WrittenFault { message, code, param } } = serde_json::from_str(last).ok()?;
    let code = code.unwrap_or_else(|| "backend_error".to_owned());
    let known = model_boss_protocol::ErrorCode::ALL.iter().find(|known| known.as_str() == code);
    let status = known.map_or(502, |known| known.status());
    Some(JobError { status, code, message: shortened(message), param })
}

async fn refused(status: u16, headers: &HeaderMap, mut body: Body) -> JobAnswer {
    let again = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            text.extend_from_slice(&data);
        }
        if text.len() > MAX_ERROR {
            break;
        }
    }
    let written = serde_json::from_slice::<WrittenBody>(&text).ok();
    let (code, message, param) = match written {
        Some(WrittenBody { error: WrittenFault { message, code, param } }) => (code, message, param),
        None => (None, format!("it was answered with status {status}"), None),
    };
    let code = code.unwrap_or_else(|| "backend_error".to_owned());
    let error = JobError { status, code, message: shortened(message), param };
    JobAnswer::Error { error, again: again.map(Duration::from_secs) }
}

fn shortened(message: String) -> String {
    if message.len() <= MAX_MESSAGE { message } else { message.chars().take(MAX_MESSAGE / 4).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_26_a_stream_that_ends_with_an_error_is_no_result() {
        let good = b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n";
        assert_eq!(error_in(good), None);
        let bad = b"data: {\"choices\":[]}\n\ndata: {\"error\":{\"message\":\"gone\",\"code\":\"worker_crashed\"}}\n\n";
        let error = error_in(bad).unwrap();
        assert_eq!((error.status, error.code.as_str(), error.message.as_str()), (502, "worker_crashed", "gone"));
        let meter = AnswerMeter::default();
        for _ in 0..10 {
            meter.keep(&[b'x'; 10 << 10]);
        }
        assert!(meter.tail().len() <= 2 * TAIL);
    }

    #[test]
    fn rc_26_a_streams_latest_text_is_its_preview_in_every_form() {
        let meter = AnswerMeter::default();
        assert_eq!(meter.preview(), None);
        for event in [
            r#"{"choices":[{"delta":{"role":"assistant"}}]}"#,
            r#"{"choices":[{"delta":{"content":"one "}}]}"#,
            r#"{"choices":[{"text":"two "}]}"#,
            r#"{"type":"content_block_delta","delta":{"text":"three "}}"#,
            r#"{"type":"response.output_text.delta","delta":"four "}"#,
        ] {
            meter.keep(format!("event: x\ndata: {event}\n\n").as_bytes());
        }
        meter.keep(b"data: {\"choices\":[{\"delta\":{\"con");
        assert_eq!(meter.preview().as_deref(), Some("one two three four "));
        for _ in 0..300 {
            meter.keep("data: {\"delta\":\"\u{e4}\"}\n\n".as_bytes());
        }
        assert_eq!(meter.preview().unwrap(), "\u{e4}".repeat(PREVIEW));
    }
}
