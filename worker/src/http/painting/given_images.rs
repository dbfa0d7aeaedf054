//! The pictures of an edit: files of a form, or `data:` URLs in JSON. They are decoded within limits, off the threads
//! that serve sockets.

use axum::body::Bytes;
use model_boss_images::{ImageError, ImageLimits, MaskImage, RgbImage, decode, decode_mask, image_bytes};
use model_boss_protocol::{ApiError, ErrorCode};
use serde::Deserialize;

use crate::http::pictures::{decoding_place, refusal};

/// A picture of a request, undecoded.
#[derive(Clone, Debug)]
pub(super) enum GivenImage {
    /// A file.
    File(Bytes),
    /// A `data:` URL.
    Url(String),
}

/// A picture in JSON: a URL, or an object with one.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a data: URL, or an object with 'image_url'")]
pub(super) enum ImageField {
    Url(String),
    Object { image_url: UrlField },
}

/// A URL, or an object with one, as parts of messages have it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a data: URL")]
pub(super) enum UrlField {
    Plain(String),
    Object { url: String },
}

/// One picture or a list of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a data: URL, an object with 'image_url', or a list with one of them")]
pub(super) enum ImageFields {
    One(ImageField),
    Several(Vec<ImageField>),
}

/// The pictures of an edit.
#[derive(Clone, Debug)]
pub(super) struct EditImages {
    pub(super) image: GivenImage,
    pub(super) mask: Option<GivenImage>,
}

/// The pictures of an edit, decoded.
pub(super) struct DecodedImages {
    pub(super) image: RgbImage,
    pub(super) mask: Option<MaskImage>,
}

impl From<ImageField> for GivenImage {
    fn from(field: ImageField) -> Self {
        Self::Url(match field {
            ImageField::Url(url)
            | ImageField::Object { image_url: UrlField::Plain(url) | UrlField::Object { url } } => url,
        })
    }
}

impl ImageFields {
    pub(super) fn into_images(self) -> Vec<GivenImage> {
        match self {
            Self::One(one) => vec![one.into()],
            Self::Several(all) => all.into_iter().map(GivenImage::from).collect(),
        }
    }
}

impl GivenImage {
    fn file(&self, limits: &ImageLimits) -> Result<Bytes, ImageError> {
        match self {
            Self::File(file) => Ok(file.clone()),
            Self::Url(url) => image_bytes(url, limits).map(Bytes::from),
        }
    }
}

impl EditImages {
    /// The only picture of a list, with a mask.
    pub(super) fn of(mut images: Vec<GivenImage>, mask: Option<GivenImage>) -> Result<Self, ApiError> {
        match (images.pop(), images.len()) {
            (Some(image), 0) => Ok(Self { image, mask }),
            (None, _) => Err(ApiError::invalid("image", "'image' is missing: send the picture to begin with")),
            (Some(_), more) => {
                let message = format!("this model begins with one picture, and 'image' has {}: send one", more + 1);
                Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param("image"))
            }
        }
    }

    pub(super) async fn decoded(self) -> Result<DecodedImages, ApiError> {
        let place = decoding_place().await;
        let limits = ImageLimits::default();
        let work = move || {
            let file = self.image.file(&limits).and_then(|file| decode(&file, &limits));
            let image = file.map_err(|error| refusal("image", &error))?;
            let mask = self.mask.map(|mask| mask.file(&limits).and_then(|file| decode_mask(&file, &limits)));
            let mask = mask.transpose().map_err(|error| refusal("mask", &error))?;
            Ok(DecodedImages { image, mask })
        };
        let decoded = tokio::task::spawn_blocking(work).await;
        drop(place);
        // A panic has been reported on stderr: a decoder's fault about this file.
        decoded.unwrap_or_else(|_| Err(ApiError::invalid("image", "'image' cannot be decoded")))
    }
}
