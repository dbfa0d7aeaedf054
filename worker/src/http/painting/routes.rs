//! The two routes: from fields and pictures to an answer.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use model_boss_engine::{BeginningImage, PictureRequest};
use model_boss_images::PictureOrigin;
use model_boss_protocol::{ApiError, WorkUnit};
use tokio::sync::mpsc;

use super::answer::{PictureForm, failure};
use super::edit::edit_of;
use super::fields::{PictureFields, WantedSize};
use super::given_images::DecodedImages;
use super::stream::{EventNames, OF_EDITS, OF_GENERATIONS, PictureStream};
use crate::encoding::asked_priority;
use crate::gone::engine_gone;
use crate::http::error::ErrorAnswer;
use crate::http::fields::RequestFields;
use crate::meter::WorkMeter;
use crate::painting::{PaintEvent, PaintJob, PaintingSide};
use crate::state::WorkerState;

/// Paints pictures of a text.
pub(in crate::http) async fn generate(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ErrorAnswer> {
    let body = body?;
    let fields = PictureFields::read(&RequestFields::read(&body, Some(&worker.defaults))?)?;
    let painting = worker.painting()?;
    if fields.strength.is_some() {
        let message = "'strength' is how much of a given picture is painted anew: send one to /v1/images/edits";
        return Err(ApiError::invalid("strength", message).into());
    }
    let size = match fields.size {
        WantedSize::Pixels(size) => size,
        WantedSize::Usual => painting.info().usual_size,
    };
    let request = fields.request(painting.info(), size)?;
    answer(painting, &fields, request, (PictureOrigin::Painted, OF_GENERATIONS)).await
}

/// Paints a picture anew, or a part of it.
pub(in crate::http) async fn edit(
    State(worker): State<Arc<WorkerState>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ErrorAnswer> {
    let (fields, images) = edit_of(&headers, &body?, &worker.defaults)?;
    let painting = worker.painting()?;
    let info = painting.info();
    if !info.takes_image {
        let message = "this model paints from a text alone: ask /v1/images/generations";
        return Err(ApiError::invalid("image", message).into());
    }
    if images.mask.is_some() && !info.takes_mask {
        return Err(ApiError::invalid("mask", "this model paints pictures as a whole: leave 'mask' out").into());
    }
    if images.mask.is_none() && info.needs_mask {
        let message = "'mask' is missing: this model paints parts of a picture anew, which a mask shows";
        return Err(ApiError::invalid("mask", message).into());
    }
    let DecodedImages { image, mask } = images.decoded().await?;
    let size = match fields.size {
        WantedSize::Pixels(size) => size,
        // That of the picture, as far as the model has it.
        WantedSize::Usual => [image.width, image.height].map(|side| {
            let side = side.min(info.longest_side);
            (side - side % info.size_multiple).max(info.size_multiple)
        }),
    };
    let strength = fields.strength(info, mask.is_some());
    let mut request = fields.request(info, size)?;
    request.beginning = Some(BeginningImage { image, strength, mask });
    answer(painting, &fields, request, (PictureOrigin::Edited, OF_EDITS)).await
}

async fn answer(
    painting: &PaintingSide,
    fields: &PictureFields,
    request: PictureRequest,
    (origin, names): (PictureOrigin, EventNames),
) -> Result<Response, ErrorAnswer> {
    let size = [request.width, request.height];
    let form = PictureForm::new(fields.format, origin, size, request.seeds.clone());
    let at_once = painting.at_once(size)?;
    let batch = |seeds: &[u64]| PictureRequest { seeds: seeds.to_vec(), ..request.clone() };
    let batches = request.seeds.chunks(at_once.max(1)).map(batch).collect();
    let (events, mut news) = mpsc::unbounded_channel();
    let previews = if fields.is_stream { fields.shows } else { 0 };
    painting.paint(PaintJob { batches, previews, priority: asked_priority(), events }).await?;
    let meter = WorkMeter::current();
    if fields.is_stream {
        // A failure before the first step keeps its status.
        let first = next(&mut news).await?;
        let mut response = Response::new(Body::new(PictureStream::new(form, names, first, news)));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        return Ok(response);
    }
    loop {
        match next(&mut news).await? {
            PaintEvent::Step(progress) => {
                if let Some(meter) = &meter {
                    meter.counted(WorkUnit::Steps, progress.step as u64, Some(progress.steps as u64));
                }
            }
            // There are no shows, and `next` has told failures.
            PaintEvent::Preview { .. } | PaintEvent::Failed(_) => {}
            PaintEvent::Done(done) => {
                let files = form.files(done.pictures).await?;
                return Ok(Json(form.body(files, done.times)).into_response());
            }
        }
    }
}

async fn next(news: &mut mpsc::UnboundedReceiver<PaintEvent>) -> Result<PaintEvent, ErrorAnswer> {
    match news.recv().await {
        Some(PaintEvent::Failed(why)) => Err(failure(&why).into()),
        Some(event) => Ok(event),
        None => Err(engine_gone().await.into()),
    }
}
