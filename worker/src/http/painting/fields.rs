//! The fields of a request for pictures, except for those that hold pictures.

use std::hash::{BuildHasher, RandomState};

use model_boss_engine::{PainterInfo, PictureRequest, PipelineKind};
use model_boss_images::PictureFormat;
use model_boss_protocol::{ApiError, ErrorCode};

use crate::defaults::RequestDefaults;
use crate::http::fields::RequestFields;

/// The most pictures of a request, as OpenAI's API has it.
const MOST_PICTURES: i64 = 10;

/// The longest prompt in characters, as OpenAI's API has it.
const LONGEST_PROMPT: usize = 32_000;

/// The most unfinished pictures that a stream shows, as OpenAI's API has it.
const MOST_SHOWS: i64 = 3;

/// The quality of JPEG files where a request names none.
const USUAL_QUALITY: u8 = 95;

/// The steps of [`PictureRequest`] at the most.
const MOST_STEPS: i64 = 1000;

/// Fields that would ask for what no model here does, with the reason.
const NOT_THERE: [(&str, &str); 3] = [
    ("prompt_weighting", "words of a prompt cannot be weighted yet: leave 'prompt_weighting' out"),
    (
        "reference_images",
        "this model paints no given person or character from 'reference_images': send one 'image' to begin with",
    ),
    ("lora", "LoRA files cannot be named in a request for pictures yet: leave 'lora' out"),
];

/// A size of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WantedSize {
    /// That of the model, or of the picture to begin with.
    Usual,
    /// Width and height in pixels.
    Pixels([usize; 2]),
}

/// The fields, checked as far as they can be without the model.
#[derive(Clone, Debug)]
pub(super) struct PictureFields {
    prompt: Option<String>,
    negative_prompt: Option<String>,
    pub(super) size: WantedSize,
    count: u64,
    steps: Option<usize>,
    guidance: Option<f32>,
    scheduler: Option<String>,
    seed: Option<u64>,
    pub(super) strength: Option<f64>,
    max_sequence_length: Option<usize>,
    clip_skip: Option<usize>,
    pub(super) format: PictureFormat,
    pub(super) is_stream: bool,
    pub(super) shows: usize,
}

impl PictureFields {
    pub(super) fn read(fields: &RequestFields<'_>) -> Result<Self, ApiError> {
        for (field, why) in NOT_THERE {
            let asked = fields.text(field).is_some_and(|text| !matches!(text, "null" | "false" | "[]"));
            if asked {
                return Err(ApiError::new(ErrorCode::UnsupportedByModel, why).with_param(field));
            }
        }
        check_answer_fields(fields)?;
        let whole = |names: &[&'static str], range| {
            let number = fields.whole(names, range)?;
            Ok::<_, ApiError>(number.and_then(|number| usize::try_from(number).ok()))
        };
        Ok(Self {
            prompt: text(fields, "prompt")?,
            negative_prompt: text(fields, "negative_prompt")?,
            size: size(fields)?,
            count: fields.whole(&["n"], 1..=MOST_PICTURES)?.map_or(1, i64::unsigned_abs),
            steps: whole(&["steps", "num_inference_steps"], 1..=MOST_STEPS)?,
            guidance: fields.number(&["guidance_scale", "cfg_scale"], 0.0..=100.0)?,
            scheduler: fields.get::<String>("scheduler")?.filter(|name| !name.trim().is_empty()),
            seed: seed(fields)?,
            strength: fields.number(&["strength"], 0.0..=1.0)?.map(exact),
            max_sequence_length: whole(&["max_sequence_length"], 1..=4096)?,
            clip_skip: whole(&["clip_skip"], 0..=64)?,
            format: format(fields)?,
            is_stream: fields.get::<bool>("stream")?.unwrap_or(false),
            shows: whole(&["partial_images"], 0..=MOST_SHOWS)?.unwrap_or(0),
        })
    }

    /// The request for pictures of this size, without a picture to begin with.
    pub(super) fn request(&self, info: &PainterInfo, [width, height]: [usize; 2]) -> Result<PictureRequest, ApiError> {
        let (multiple, longest) = (info.size_multiple, info.longest_side);
        if [width, height].iter().any(|side| *side == 0 || *side > longest || !side.is_multiple_of(multiple)) {
            let message = format!(
                "'size' is {width}x{height}; this model paints sides that are multiples of {multiple} up to {longest}"
            );
            return Err(ApiError::invalid("size", message));
        }
        if !info.takes_negative_prompt && self.negative_prompt.as_ref().is_some_and(|text| !text.is_empty()) {
            let message = "this model does not read a text of what shall not be seen: leave 'negative_prompt' out";
            return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("negative_prompt"));
        }
        let prompt = self.prompt.clone().ok_or_else(|| ApiError::invalid("prompt", "'prompt' is missing"))?;
        let first = self.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
        Ok(PictureRequest {
            prompt,
            negative_prompt: self.negative_prompt.clone(),
            width,
            height,
            steps: self.steps.unwrap_or(info.usual_steps),
            guidance_scale: self.guidance.unwrap_or(info.usual_guidance),
            scheduler: self.scheduler.clone(),
            seeds: (0..self.count).map(|at| first.wrapping_add(at)).collect(),
            beginning: None,
            max_sequence_length: self.max_sequence_length,
            clip_skip: self.clip_skip,
        })
    }

    /// How much of a given picture is painted anew: what `diffusers` has where a request says nothing.
    pub(super) fn strength(&self, info: &PainterInfo, has_mask: bool) -> f64 {
        self.strength.unwrap_or(match (info.pipeline, has_mask) {
            (PipelineKind::StableDiffusionXl, false) => 0.3,
            (PipelineKind::StableDiffusionXl, true) => 0.9999,
            (PipelineKind::StableDiffusion, true) => 1.0,
            (PipelineKind::StableDiffusion, false) => 0.8,
            (PipelineKind::StableDiffusion3 | PipelineKind::Flux, _) => 0.6,
        })
    }
}

/// A number of a request, without the digits that f32 adds.
fn exact(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| f64::from(number))
}

/// Checks the fields that a manifest sets.
pub(in crate::http) fn check_picture_defaults(defaults: &RequestDefaults) -> Result<(), ApiError> {
    PictureFields::read(&RequestFields::of_defaults(defaults)).map(|_| ())
}

/// Fields of OpenAI's API that choose between answers, of which only one is there.
fn check_answer_fields(fields: &RequestFields<'_>) -> Result<(), ApiError> {
    match fields.get::<String>("response_format")?.as_deref() {
        None | Some("b64_json") => {}
        Some("url") => {
            let message = "pictures are in the answer itself, and nowhere else: set 'response_format' to b64_json";
            return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("response_format"));
        }
        Some(other) => {
            let message = format!("'response_format' is '{other}'; it may be b64_json");
            return Err(ApiError::invalid("response_format", message));
        }
    }
    if fields.get::<String>("background")?.as_deref() == Some("transparent") {
        let message = "this model paints no transparent pictures: leave 'background' out";
        return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("background"));
    }
    Ok(())
}

fn text(fields: &RequestFields<'_>, name: &'static str) -> Result<Option<String>, ApiError> {
    let Some(text) = fields.get::<String>(name)? else { return Ok(None) };
    let length = text.chars().count();
    if length > LONGEST_PROMPT {
        let message = format!("'{name}' has {length} characters; it may have {LONGEST_PROMPT}");
        return Err(ApiError::invalid(name, message));
    }
    Ok(Some(text))
}

fn size(fields: &RequestFields<'_>) -> Result<WantedSize, ApiError> {
    let Some(text) = fields.get::<String>("size")? else { return Ok(WantedSize::Usual) };
    if text.is_empty() || text == "auto" {
        return Ok(WantedSize::Usual);
    }
    let side = |side: &str| side.trim().parse::<usize>().ok().filter(|side| *side > 0);
    let sides =
        text.split_once(['x', 'X', '*', '\u{d7}']).and_then(|(width, height)| Some([side(width)?, side(height)?]));
    sides.map(WantedSize::Pixels).ok_or_else(|| {
        let shown: String = text.escape_debug().take(40).collect();
        let message = format!("'size' is '{shown}'; it must be auto, or width and height in pixels such as 512x768");
        ApiError::invalid("size", message)
    })
}

/// A seed as torch takes it: a negative one counts from the end.
fn seed(fields: &RequestFields<'_>) -> Result<Option<u64>, ApiError> {
    let Some(number) = fields.get::<serde_json::Number>("seed")? else { return Ok(None) };
    let seed = number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned));
    let refused = || ApiError::invalid("seed", format!("'seed' is {number}; it must be a whole number of 64 bits"));
    seed.map(Some).ok_or_else(refused)
}

fn format(fields: &RequestFields<'_>) -> Result<PictureFormat, ApiError> {
    let quality = fields.whole(&["output_compression"], 0..=100)?;
    let quality = quality.map(|quality| u8::try_from(quality.max(1)).unwrap_or(USUAL_QUALITY));
    let name = fields.get::<String>("output_format")?;
    let format = match name.as_deref() {
        None | Some("png") => PictureFormat::Png,
        Some("jpeg" | "jpg") => return Ok(PictureFormat::Jpeg(quality.unwrap_or(USUAL_QUALITY))),
        Some("webp") => PictureFormat::WebP,
        Some(other) => {
            let shown: String = other.escape_debug().take(40).collect();
            let message = format!("'output_format' is '{shown}'; it may be png, jpeg or webp");
            return Err(ApiError::invalid("output_format", message));
        }
    };
    if quality.is_some_and(|quality| quality < 100) {
        let message = format!("{} is written without loss here: leave 'output_compression' out", format.name());
        return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("output_compression"));
    }
    Ok(format)
}
