//! The progress of a pull as a stream: server-sent events, or the lines of Ollama's API.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http_body::Frame;
use model_boss_hub::{PullProgress, PullStage};
use model_boss_protocol::ApiError;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::api::context::Context;
use crate::pulls::{PullJob, PullResult, PullWatch};

/// The least time between two lines.
const LINE_EVERY: Duration = Duration::from_millis(200);
/// Lines that a slow reader may have before it.
const AHEAD: usize = 4;

/// The form of a stream about a pull.
pub(super) trait PullLines: Send + 'static {
    /// The content type.
    const KIND: &'static str;

    /// The lines about a progress.
    fn progress(&mut self, job: &PullJob, progress: &PullProgress) -> String;

    /// The last lines.
    fn end(&mut self, job: &PullJob, result: &Result<PullResult, ApiError>) -> String;
}

/// Streams a pull. The head waits until the hub has answered, so that an early failure keeps its status.
pub(super) async fn stream<L: PullLines>(
    context: &Arc<Context>,
    job: &Arc<PullJob>,
    lines: L,
) -> Result<Response, ApiError> {
    let watch = PullWatch::new(job);
    let (mut progress, mut end) = (job.progress(), job.end());
    let begun = async {
        tokio::select! {
            Ok(_) = progress.wait_for(|now| now.stage != PullStage::Listing && now.completed > 0) => {}
            _ = end.wait_for(Option::is_some) => {}
        }
    };
    // A slow hub does not hold the head back for long.
    let _ = timeout(context.sse.first_comment, begun).await;
    if let Some(Err(error)) = job.end().borrow().clone() {
        return Err(error);
    }
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(write(watch, lines, sender, context.sse.interval));
    let mut response = Response::new(Body::new(LinesBody(receiver)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(L::KIND));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// Writes lines until the pull ends or the reader is gone. A reader gets a line at least once in `interval`.
async fn write<L: PullLines>(watch: PullWatch, mut lines: L, sender: mpsc::Sender<Bytes>, interval: Duration) {
    let job = watch.job();
    let (mut progress, mut end) = (job.progress(), job.end());
    loop {
        let now = progress.borrow_and_update().clone();
        let ended = end.borrow().clone();
        let text = match &ended {
            Some(result) => lines.end(job, result),
            None => lines.progress(job, &now),
        };
        if !text.is_empty() && sender.send(Bytes::from(text)).await.is_err() || ended.is_some() {
            return;
        }
        tokio::select! {
            biased;
            () = sender.closed() => return,
            _ = end.wait_for(Option::is_some) => {}
            () = async {
                sleep(LINE_EVERY).await;
                // The sender of the progress goes with the pull's thread, shortly before its result is there.
                let moved = async { if progress.changed().await.is_err() { sleep(interval).await } };
                let _ = timeout(interval, moved).await;
            } => {}
        }
    }
}

struct LinesBody(mpsc::Receiver<Bytes>);

impl http_body::Body for LinesBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}
