//! Pictures, as OpenAI's API has them, with the fields of `diffusers`.

use schemars::JsonSchema;

use super::common::RequestOwnFields;

/// A request for pictures of a text.
#[derive(Debug, JsonSchema)]
pub struct PictureRequestBody {
    /// The text, of at most 32000 characters.
    #[schemars(length(max = 32_000))]
    pub prompt: String,
    /// A model of the category `diffusion`, or an alias of one.
    pub model: Option<String>,
    /// The wishes about the pictures.
    #[schemars(flatten)]
    pub wishes: PictureWishes,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// A form with a picture to begin with, or the same fields in JSON.
#[derive(Debug, JsonSchema)]
pub struct EditRequest {
    /// The picture: PNG, JPEG, WebP, GIF or BMP; in JSON a `data:` URL.
    pub image: String,
    /// A picture whose transparent pixels are painted anew; without transparent ones, its white ones.
    pub mask: Option<String>,
    /// The text, of at most 32000 characters.
    #[schemars(length(max = 32_000))]
    pub prompt: String,
    /// A model of the category `diffusion`, or an alias of one.
    pub model: Option<String>,
    /// How much of the picture is painted anew; as `diffusers` has it when absent.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub strength: Option<f64>,
    /// The wishes about the pictures.
    #[schemars(flatten)]
    pub wishes: PictureWishes,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// Wishes about pictures.
#[derive(Debug, JsonSchema)]
pub struct PictureWishes {
    /// How many, of which each has the seed behind that of the one before.
    #[schemars(range(min = 1, max = 10))]
    pub n: Option<u64>,
    /// Width and height in pixels, such as `512x768`, or `auto`.
    pub size: Option<String>,
    /// The seed of the first picture; a new one each time when absent.
    pub seed: Option<i64>,
    /// Steps of the model.
    #[schemars(range(min = 1, max = 1000))]
    pub steps: Option<u64>,
    /// The weight of the prompt.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub guidance_scale: Option<f64>,
    /// The text of what shall not be seen.
    pub negative_prompt: Option<String>,
    /// A scheduler: a class of `diffusers`, with `+karras` behind it for Karras' spacing; the folder's when absent.
    pub scheduler: Option<String>,
    /// The most tokens of the prompt, for models that read long ones.
    pub max_sequence_length: Option<u64>,
    /// Layers of the text encoder that are left out at its end.
    pub clip_skip: Option<u64>,
    /// The format of the files; `png` when absent.
    pub output_format: Option<PictureFileFormat>,
    /// The quality of `jpeg`, from 0 to 100.
    #[schemars(range(min = 0, max = 100))]
    pub output_compression: Option<u64>,
    /// `b64_json`.
    pub response_format: Option<String>,
    /// Whether the answer is events.
    pub stream: Option<bool>,
    /// How many unfinished pictures a stream shows.
    #[schemars(range(min = 0, max = 3))]
    pub partial_images: Option<u64>,
}

/// A format of pictures.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub enum PictureFileFormat {
    /// PNG.
    Png,
    /// JPEG.
    Jpeg,
    /// WebP without loss.
    Webp,
}

/// Pictures.
#[derive(Debug, JsonSchema)]
pub struct PicturesBody {
    /// Seconds since 1970.
    pub created: u64,
    /// The pictures in the order of their seeds.
    pub data: Vec<PictureBody>,
    /// The format of the files.
    pub output_format: Option<PictureFileFormat>,
    /// Width and height in pixels.
    pub size: Option<String>,
    /// `opaque`.
    pub background: Option<String>,
    /// The times of the work.
    pub timings: Option<PictureTimes>,
}

/// A picture.
#[derive(Debug, JsonSchema)]
pub struct PictureBody {
    /// The file in base64.
    pub b64_json: Option<String>,
    /// The seed that makes this picture alone.
    pub seed: Option<u64>,
    /// IPTC's digital source type, which says that a model has made it; it is in the file as well.
    pub digital_source_type: Option<String>,
}

/// An event with an unfinished picture, or with a whole one.
#[derive(Debug, JsonSchema)]
pub struct PictureEventBody {
    /// `image_generation.partial_image`, `image_generation.completed`, or the same of `image_edit`.
    #[schemars(rename = "type")]
    pub kind: String,
    /// The file in base64.
    pub b64_json: String,
    /// Seconds since 1970.
    pub created_at: u64,
    /// The place of the picture among those of the request.
    pub image_index: Option<u64>,
    /// The number of the show, of an unfinished one.
    pub partial_image_index: Option<u64>,
    /// The picture's seed.
    pub seed: Option<u64>,
    /// The format of the file.
    pub output_format: Option<PictureFileFormat>,
    /// Width and height in pixels.
    pub size: Option<String>,
    /// `opaque`.
    pub background: Option<String>,
    /// IPTC's digital source type.
    pub digital_source_type: Option<String>,
    /// The times of the work, of a whole picture.
    pub timings: Option<PictureTimes>,
}

/// Times of a request in milliseconds.
#[derive(Debug, JsonSchema)]
pub struct PictureTimes {
    /// Reading the prompt and the picture to begin with.
    pub prompt_ms: f64,
    /// Steps that were made.
    pub steps: u64,
    /// All steps.
    pub steps_ms: f64,
    /// One step.
    pub per_step_ms: f64,
    /// Making pictures of latent ones.
    pub decode_ms: f64,
}
