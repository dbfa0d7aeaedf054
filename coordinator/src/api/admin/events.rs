//! `GET /api/v1/events`: every change as it happens. One task compares the scheduler's views while there are readers.
//! The last events are kept, so that a reader that reconnects or is slow gets them, or the number that it missed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use http_body::Frame;
use model_boss_core::{Decision, DeviceView, ModelStatus, SlotView};
use model_boss_http::path::flag;
use model_boss_protocol::{ApiError, DeviceId, ModelId};
use schemars::JsonSchema;
use serde_json::{Map, Value};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::api::blocking::blocking;
use crate::api::changes::{EventReader, ReportedViews, look};
use crate::api::context::Context;
use crate::api::route::Call;
use crate::jobs::{BatchObject, JobObject};

/// The header with the last event that a reconnecting reader has seen.
const LAST_EVENT_ID: &str = "last-event-id";

/// The data of an event, by the event's name: `state`, `slot`, `queue`, `model`, `device`, `decision`, `move`,
/// `job`, `batch` or `missed`.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code, reason = "the type only describes")]
pub(crate) enum ChangeEvent {
    /// Everything that is shown at the beginning.
    State(ShownState),
    /// A slot.
    Slot(Box<SlotView>),
    /// The lengths of a model's queue.
    Queue(QueueLength),
    /// A model's status.
    Model(ModelStateEvent),
    /// A device.
    Device(Box<DeviceView>),
    /// A new decision.
    Decision(Decision),
    /// A move that ended.
    Move(EndedMove),
    /// A job.
    Job(Box<JobObject>),
    /// A batch.
    Batch(Box<BatchObject>),
    /// An object that is gone.
    Gone(GoneObject),
    /// The number of events that the reader missed.
    Missed(MissedEvents),
}

/// Everything that is shown at the beginning.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "the type only describes")]
pub(crate) struct ShownState {
    slots: Vec<SlotView>,
    queue: Vec<QueueLength>,
    models: Vec<ModelStateEvent>,
    devices: Vec<DeviceView>,
}

/// A move that ended: `done`, or `failed` with its error.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "the type only describes")]
pub(crate) struct EndedMove {
    model: ModelId,
    device: DeviceId,
    outcome: String,
    error: Option<Map<String, Value>>,
}

/// An object that is gone.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "the type only describes")]
pub(crate) struct GoneObject {
    id: String,
    gone: bool,
}

/// The number of events that the reader missed.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "the type only describes")]
pub(crate) struct MissedEvents {
    missed: u64,
}

/// The requests of a model.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "the type only describes")]
pub(crate) struct QueueLength {
    id: ModelId,
    queued: usize,
    running: usize,
}

/// The status of a model.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "the type only describes")]
pub(crate) struct ModelStateEvent {
    id: ModelId,
    status: ModelStatus,
    failure: Option<String>,
}

/// `GET /api/v1/events`. The stream begins with the current state, or with the events after `Last-Event-ID`.
pub(crate) async fn events(call: Call) -> Result<Response, ApiError> {
    let context = &call.context;
    let resumed = call.request.headers().get(LAST_EVENT_ID);
    let resumed = match resumed.map(|id| id.to_str().ok().and_then(|id| id.trim().parse::<u64>().ok())) {
        None => None,
        Some(Some(id)) => Some(id),
        Some(None) => return Err(ApiError::invalid(LAST_EVENT_ID, "'Last-Event-ID' must be the id of an event")),
    };
    let follows = flag(call.request.uri(), "follow", true)?;
    let listener = EventReader::new(&context.changes);
    // A number greater than the newest is from an earlier run of the process: the reader then gets the state.
    let resumed = resumed.filter(|id| *id <= context.changes.newest());
    let (first, after) = match resumed {
        Some(id) => (None, id),
        None => {
            let after = context.changes.newest();
            (Some(state(context, after).await?), after)
        }
    };
    let body = EventsBody {
        listener,
        interval: context.sse.interval,
        draining: context.draining.clone(),
        follows,
        first,
        after,
        next: None,
    };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

/// The current state as one event.
async fn state(context: &Context, after: u64) -> Result<Bytes, ApiError> {
    let clock = context.clock;
    let Some(views) = context.scheduling.view(|scheduler, _| look(scheduler, u64::MAX)).await else {
        return Ok(Bytes::new());
    };
    let text = move || format!("id: {after}\nevent: state\ndata: {}\n\n", ReportedViews::state(views, clock));
    blocking(text).await.map(Bytes::from)
}

type Next = Pin<Box<dyn Future<Output = Option<(Bytes, u64)>> + Send>>;

/// The events as an HTTP body. A reader that does not read costs no memory but its position.
struct EventsBody {
    listener: EventReader,
    /// The longest silence, after which a comment is sent.
    interval: Duration,
    draining: CancellationToken,
    /// Whether the stream goes on behind the events that there are.
    follows: bool,
    first: Option<Bytes>,
    after: u64,
    next: Option<Next>,
}

impl EventsBody {
    fn next(&self) -> Next {
        if !self.follows {
            return Box::pin(std::future::ready(self.listener.0.after(self.after)));
        }
        let (changes, draining) = (Arc::clone(&self.listener.0), self.draining.clone());
        let (after, interval) = (self.after, self.interval);
        Box::pin(async move {
            let waited = tokio::select! {
                biased;
                () = draining.cancelled() => return None,
                waited = timeout(interval, changes.wait_for_more(after)) => waited,
            };
            let more = waited.ok().and_then(|()| changes.after(after));
            Some(more.unwrap_or((Bytes::from_static(b": nothing new\n\n"), after)))
        })
    }
}

impl http_body::Body for EventsBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let mut next = this.next.take().unwrap_or_else(|| this.next());
        match next.as_mut().poll(cx) {
            Poll::Pending => {
                this.next = Some(next);
                Poll::Pending
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some((bytes, after))) => {
                this.after = after;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
        }
    }
}
