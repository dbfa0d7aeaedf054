//! Images of requests, from their URLs to a model's numbers: within limits, and on threads where they block nobody.

use std::sync::Arc;

use model_boss_engine::SightInfo;
use model_boss_images::{ImageError, ImageLimits, PixelPlanes, PixelSteps, decode, image_bytes};
use model_boss_protocol::{ApiError, ErrorCode};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::error::ErrorAnswer;
use crate::encoding::EncodeItem;

/// Requests whose images are decoded at the same time: a large image takes some hundred megabytes meanwhile.
static DECODED_AT_ONCE: Semaphore = Semaphore::const_new(2);

/// A place for a request whose images are decoded.
pub(super) async fn decoding_place() -> Option<SemaphorePermit<'static>> {
    // The semaphore is never closed.
    DECODED_AT_ONCE.acquire().await.ok()
}

/// An image of a request.
pub(super) struct Picture {
    /// Its place in the request, for errors, such as `input[2].image_url.url`.
    pub(super) place: String,
    pub(super) url: String,
}

/// The images as a model reads them, in their order.
pub(super) async fn read_pictures(sight: &SightInfo, pictures: Vec<Picture>) -> Result<Vec<EncodeItem>, ErrorAnswer> {
    if pictures.is_empty() {
        return Ok(Vec::new());
    }
    let limits = ImageLimits::default();
    if pictures.len() > limits.count {
        let message = format!("the request has {} images; it may have {}", pictures.len(), limits.count);
        return Err(ApiError::new(ErrorCode::RequestTooLarge, message).with_param("input").into());
    }
    let permit = decoding_place().await;
    let (steps, pictures) = (sight.pixels, Arc::new(pictures));
    let read = tokio::task::spawn_blocking(move || {
        let read =
            |picture: &Picture| planes(picture, &steps, &limits).map_err(|error| refusal(&picture.place, &error));
        pictures.iter().map(read).collect::<Result<Vec<PixelPlanes>, ApiError>>()
    });
    let read = read.await;
    drop(permit);
    // A panic on a blocking thread has already been reported on stderr.
    let planes = read.map_err(|_| ApiError::invalid("input", "an image cannot be decoded"))??;
    Ok(planes.into_iter().map(|planes| EncodeItem::Image { rows: sight.rows(&planes), planes }).collect())
}

fn planes(picture: &Picture, steps: &PixelSteps, limits: &ImageLimits) -> Result<PixelPlanes, ImageError> {
    steps.planes(decode(&image_bytes(&picture.url, limits)?, limits)?)
}

/// The refusal of an image: 413 for a large one, 400 for any other.
pub(super) fn refusal(place: &str, error: &ImageError) -> ApiError {
    let message = format!("'{place}': {error}");
    match error.is_too_large() {
        true => ApiError::new(ErrorCode::RequestTooLarge, message).with_param(place),
        false => ApiError::invalid(place, message),
    }
}
