//! The changes of a job as server-sent events.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http_body::Frame;
use model_boss_host::clocks::in_a;
use model_boss_jobs::JobId;
use model_boss_protocol::ApiError;
use model_boss_protocol::sse::{comment, event};
use tokio::sync::mpsc;

use crate::api::context::Context;
use crate::api::route::Call;
use crate::keys::RequestSender;

/// The interval in which the progress of a job is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Events that a slow reader may have before it.
const AHEAD: usize = 4;

/// Streams a job's views: the present one, each change, and the last one.
pub(super) fn events(call: &Call, id: JobId) -> Result<Response, ApiError> {
    call.context.jobs.get(&call.identity, &id)?;
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(write(Arc::clone(&call.context), call.identity.clone(), id, sender));
    let mut response = Response::new(Body::new(JobEventLines(receiver)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

async fn write(context: Arc<Context>, reader: RequestSender, id: JobId, sender: mpsc::Sender<Bytes>) {
    let (mut last, mut silent) = (String::new(), Duration::ZERO);
    loop {
        // A job that was forgotten has no more views.
        let Ok((view, revision)) = context.jobs.show(&reader, &id).await else { return };
        let text = serde_json::to_string(&view).unwrap_or_default();
        let line = if text != last {
            (last, silent) = (text.clone(), Duration::ZERO);
            Some(event(text))
        } else {
            silent = silent.saturating_add(LOOK_EVERY);
            (silent >= context.sse.interval).then(|| {
                silent = Duration::ZERO;
                comment("nothing new")
            })
        };
        if let Some(line) = line
            && sender.send(Bytes::from(line)).await.is_err()
        {
            return;
        }
        if view.has_ended() || context.draining.is_cancelled() {
            return;
        }
        tokio::select! {
            () = sender.closed() => return,
            () = context.jobs.changed_since(&id, revision, in_a(LOOK_EVERY)) => {}
        }
    }
}

struct JobEventLines(mpsc::Receiver<Bytes>);

impl http_body::Body for JobEventLines {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}
