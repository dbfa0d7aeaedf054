//! Pictures as answers: files in base64, with their seeds.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model_boss_images::{PictureFormat, PictureOrigin, RgbImage, encode};
use model_boss_protocol::{ApiError, ErrorCode};
use serde::Serialize;

use crate::painting::{PaintFailure, PaintTimes};

/// The facts about the pictures of a request that its answers repeat.
#[derive(Clone, Debug)]
pub(super) struct PictureForm {
    pub(super) format: PictureFormat,
    pub(super) origin: PictureOrigin,
    /// Width and height in pixels.
    pub(super) size: [usize; 2],
    /// The seed of each picture.
    pub(super) seeds: Vec<u64>,
    /// Seconds since 1970.
    pub(super) created: u64,
}

/// OpenAI's answer, with the times of the work.
#[derive(Serialize)]
pub(super) struct ImagesBody {
    created: u64,
    background: &'static str,
    output_format: &'static str,
    size: String,
    data: Vec<PictureData>,
    timings: PictureTimings,
}

/// One picture.
#[derive(Serialize)]
struct PictureData {
    b64_json: String,
    seed: u64,
    /// IPTC's word for pictures that a model has made.
    digital_source_type: &'static str,
}

/// The times of a request in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct PictureTimings {
    prompt_ms: f64,
    steps: usize,
    steps_ms: f64,
    per_step_ms: f64,
    decode_ms: f64,
}

impl From<PaintTimes> for PictureTimings {
    fn from(times: PaintTimes) -> Self {
        let ms = |span: std::time::Duration| span.as_secs_f64() * 1e3;
        let steps_ms = ms(times.painting);
        Self {
            prompt_ms: ms(times.begin),
            steps: times.steps,
            steps_ms,
            per_step_ms: steps_ms / times.steps.max(1) as f64,
            decode_ms: ms(times.decoding),
        }
    }
}

impl PictureForm {
    pub(super) fn new(format: PictureFormat, origin: PictureOrigin, size: [usize; 2], seeds: Vec<u64>) -> Self {
        let created = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        Self { format, origin, size, seeds, created }
    }

    pub(super) fn size(&self) -> String {
        let [width, height] = self.size;
        format!("{width}x{height}")
    }

    /// Pictures as files in base64, on a thread where that blocks nobody.
    pub(super) async fn files(&self, pictures: Vec<RgbImage>) -> Result<Vec<String>, ApiError> {
        let (format, origin) = (self.format, self.origin);
        let work = move || {
            let file = |picture: &RgbImage| encode(picture, format, origin).map(|file| STANDARD.encode(file));
            pictures.iter().map(file).collect::<Result<Vec<_>, _>>()
        };
        let failed = |why: String| ApiError::new(ErrorCode::Internal, why);
        match tokio::task::spawn_blocking(work).await {
            Ok(files) => files.map_err(|error| failed(error.to_string())),
            // A panic has been reported on stderr.
            Err(_) => Err(failed("a picture could not be written".to_owned())),
        }
    }

    /// The answer with these files.
    pub(super) fn body(&self, files: Vec<String>, times: PaintTimes) -> ImagesBody {
        let data = files.into_iter().zip(&self.seeds).map(|(b64_json, seed)| PictureData {
            b64_json,
            seed: *seed,
            digital_source_type: self.origin.source_type(),
        });
        ImagesBody {
            created: self.created,
            background: "opaque",
            output_format: self.format.name(),
            size: self.size(),
            data: data.collect(),
            timings: times.into(),
        }
    }
}

/// The client's error for a request that failed.
pub(super) fn failure(failure: &PaintFailure) -> ApiError {
    let message = failure.to_string();
    match failure {
        PaintFailure::Refused { field, .. } => ApiError::invalid(*field, message),
        PaintFailure::OutOfMemory(_) => {
            ApiError::new(ErrorCode::NoCapacity, message).retry_after(std::time::Duration::from_secs(1))
        }
        PaintFailure::Step(_) => ApiError::new(ErrorCode::Internal, message),
    }
}
