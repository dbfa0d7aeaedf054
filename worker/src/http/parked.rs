//! `GET` and `PUT /parked`: prefixes that the coordinator keeps beyond the life of this process.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use http_body::{Body as _, Frame};
use model_boss_protocol::{
    ApiError, ErrorCode, ParkedFault, ParkedFrame, ParkedOutcome, ParkedReader, ParkedRefusal, headers,
};
use tokio::sync::{mpsc, oneshot};

use super::error::ErrorAnswer;
use crate::parking::{ParkOrder, RestoreOrder};
use crate::state::WorkerState;

/// Blocks on their way between the engine and a connection.
const ON_THE_WAY: usize = 4;

/// Gives out the hottest prefixes.
pub(super) async fn give_out(
    State(worker): State<Arc<WorkerState>>,
    headers: HeaderMap,
) -> Result<Response, ErrorAnswer> {
    let serving = worker.serving()?;
    let key = serving.parked_key()?.to_owned();
    let (bytes, ms) = (whole(&headers, headers::PARKED_BYTES)?, whole(&headers, headers::PARKED_MS)?);
    let until = Instant::now().checked_add(Duration::from_millis(ms)).unwrap_or_else(Instant::now);
    let (frames, given) = mpsc::channel(ON_THE_WAY);
    serving.park(ParkOrder { model: worker.spec.model.clone(), key, bytes, until, frames }).await?;
    let kind = [(CONTENT_TYPE, "application/octet-stream")];
    Ok((kind, Body::new(GivenFrames(given))).into_response())
}

fn whole(headers: &HeaderMap, name: &'static str) -> Result<u64, ApiError> {
    let number = headers.get(name).and_then(|value| value.to_str().ok()?.parse().ok());
    number.ok_or_else(|| ApiError::invalid(name, format!("the header '{name}' must be a whole number")))
}

/// The frames that the engine gives out, as a body.
struct GivenFrames(mpsc::Receiver<Bytes>);

impl http_body::Body for GivenFrames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(|frame| Ok(Frame::data(frame))))
    }
}

/// Takes prefixes of an earlier process. Those of another key, and damaged ones, are refused.
pub(super) async fn take(
    State(worker): State<Arc<WorkerState>>,
    body: Body,
) -> Result<Json<ParkedOutcome>, ErrorAnswer> {
    let serving = worker.serving()?;
    let key = serving.parked_key()?;
    let mut frames = ArrivingFrames { body, waiting: Vec::new(), first: 0, reader: ParkedReader::default() };
    let head = match frames.next(|frame| if let ParkedFrame::Head(head) = frame { Some(head) } else { None }).await {
        Ok(head) => head,
        Err(fault) => return Ok(Json(refused(ParkedRefusal::Damaged, fault.to_string()))),
    };
    if head.is_none_or(|head| head.key != key || head.model != worker.spec.model) {
        frames.leave().await;
        let message = "the model's files, the worker's program or the form of keys and values have changed";
        return Ok(Json(refused(ParkedRefusal::Changed, message.to_owned())));
    }
    let (bodies, taken) = mpsc::channel(ON_THE_WAY);
    let (done, outcome) = oneshot::channel();
    serving.restore(RestoreOrder { bodies: taken, done }).await?;
    let fault = loop {
        let block =
            |frame: ParkedFrame<'_>| if let ParkedFrame::Block(body) = frame { Some(body.to_vec()) } else { None };
        match frames.next(block).await {
            Err(fault) => break Some(fault),
            Ok(None) => break None,
            // An engine without room takes no more. The rest is read all the same, so that the answer is not lost.
            Ok(Some(body)) => _ = bodies.send(body).await,
        }
    };
    drop(bodies);
    let failed = |_| ApiError::new(ErrorCode::Internal, "the engine has stopped");
    let outcome = outcome.await.map_err(failed)?;
    Ok(Json(match fault {
        Some(fault) => ParkedOutcome { refused: Some(ParkedRefusal::Damaged), message: fault.to_string(), ..outcome },
        None => outcome,
    }))
}

fn refused(refused: ParkedRefusal, message: String) -> ParkedOutcome {
    ParkedOutcome { refused: Some(refused), message, ..ParkedOutcome::default() }
}

/// A body that is read frame by frame.
struct ArrivingFrames {
    body: Body,
    /// Bytes that have arrived.
    waiting: Vec<u8>,
    /// The first of them that no frame has had.
    first: usize,
    reader: ParkedReader,
}

impl ArrivingFrames {
    /// Reads the rest and drops it: a client that still writes would lose its answer.
    async fn leave(mut self) {
        while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await {}
    }

    /// The value that `of` makes of the next frame.
    async fn next<T>(&mut self, of: impl Fn(ParkedFrame<'_>) -> T) -> Result<T, ParkedFault> {
        loop {
            if let Some((frame, length)) = self.reader.read(&self.waiting[self.first..])? {
                let made = of(frame);
                self.first += length;
                return Ok(made);
            }
            self.waiting.drain(..std::mem::take(&mut self.first));
            let piece = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await;
            let piece = piece.and_then(Result::ok).and_then(|frame| frame.into_data().ok());
            self.waiting.extend_from_slice(&piece.ok_or(ParkedFault::Torn)?);
        }
    }
}
