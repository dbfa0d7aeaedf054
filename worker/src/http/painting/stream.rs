//! An answer as server-sent events: unfinished pictures, and at the end each picture whole.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use http_body::{Body, Frame};
use model_boss_protocol::{ApiError, ErrorCode, ErrorSource, sse};
use serde::Serialize;
use tokio::sync::mpsc;

use super::answer::{PictureForm, PictureTimings, failure};
use crate::gone::ENGINE_GONE;
use crate::painting::PaintEvent;

/// Events that wait for the client.
const WAITING: usize = 2;

/// The body of a streamed answer. Dropped when the client disconnects, which ends its work.
pub(super) struct PictureStream(mpsc::Receiver<Bytes>);

/// The names of the events of a route.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventNames {
    pub(super) partial: &'static str,
    pub(super) completed: &'static str,
}

/// Those of `/v1/images/generations`.
pub(super) const OF_GENERATIONS: EventNames =
    EventNames { partial: "image_generation.partial_image", completed: "image_generation.completed" };

/// Those of `/v1/images/edits`.
pub(super) const OF_EDITS: EventNames =
    EventNames { partial: "image_edit.partial_image", completed: "image_edit.completed" };

#[derive(Serialize)]
struct PictureEvent<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    b64_json: String,
    created_at: u64,
    background: &'static str,
    output_format: &'static str,
    size: &'a str,
    /// The place of the picture among those of the request.
    image_index: usize,
    seed: u64,
    digital_source_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial_image_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<PictureTimings>,
}

impl PictureStream {
    /// The events of a request whose first news has come.
    pub(super) fn new(
        form: PictureForm,
        names: EventNames,
        first: PaintEvent,
        news: mpsc::UnboundedReceiver<PaintEvent>,
    ) -> Self {
        let (events, reader) = mpsc::channel(WAITING);
        tokio::spawn(tell(form, names, (first, news), events));
        Self(reader)
    }
}

/// Tells the news until the end, or until the client is gone.
async fn tell(
    form: PictureForm,
    names: EventNames,
    (first, mut news): (PaintEvent, mpsc::UnboundedReceiver<PaintEvent>),
    events: mpsc::Sender<Bytes>,
) {
    let mut next = Some(first);
    loop {
        let told = match next {
            None => vec![failed(&ApiError::new(ErrorCode::Internal, ENGINE_GONE))],
            Some(PaintEvent::Step(_)) => Vec::new(),
            Some(PaintEvent::Failed(why)) => vec![failed(&failure(&why))],
            Some(PaintEvent::Preview { show, first, pictures }) => {
                let event = |at: usize, b64_json: String| picture(&form, names.partial, at, b64_json, Some(show), None);
                match form.files(pictures).await {
                    Ok(files) => files.into_iter().enumerate().map(|(at, file)| event(first + at, file)).collect(),
                    Err(error) => vec![failed(&error)],
                }
            }
            Some(PaintEvent::Done(done)) => {
                let times = Some(PictureTimings::from(done.times));
                let event = |at: usize, b64_json: String| picture(&form, names.completed, at, b64_json, None, times);
                let told = match form.files(done.pictures).await {
                    Ok(files) => files.into_iter().enumerate().map(|(at, file)| event(at, file)).collect(),
                    Err(error) => vec![failed(&error)],
                };
                return send(told, &events).await;
            }
        };
        let ended = next_is_end(&told);
        send(told, &events).await;
        if ended {
            return;
        }
        next = tokio::select! {
            biased;
            () = events.closed() => return,
            event = news.recv() => event,
        };
    }
}

/// Whether the last event is an error, behind which nothing comes.
fn next_is_end(told: &[Bytes]) -> bool {
    told.last().is_some_and(|event| event.starts_with(b"data: {\"error\""))
}

async fn send(told: Vec<Bytes>, events: &mpsc::Sender<Bytes>) {
    for event in told {
        if events.send(event).await.is_err() {
            return;
        }
    }
}

fn picture(
    form: &PictureForm,
    kind: &'static str,
    at: usize,
    b64_json: String,
    show: Option<usize>,
    timings: Option<PictureTimings>,
) -> Bytes {
    let event = PictureEvent {
        kind,
        b64_json,
        created_at: form.created,
        background: "opaque",
        output_format: form.format.name(),
        size: &form.size(),
        image_index: at,
        seed: form.seeds.get(at).copied().unwrap_or_default(),
        digital_source_type: form.origin.source_type(),
        partial_image_index: show,
        timings,
    };
    // Texts and finite numbers always serialise.
    sse::event(serde_json::to_string(&event).unwrap_or_default()).into()
}

fn failed(error: &ApiError) -> Bytes {
    sse::event(error.body(ErrorSource::Worker).to_json()).into()
}

impl Body for PictureStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|event| event.map(|bytes| Ok(Frame::data(bytes))))
    }
}
