//! Reasons why an image is refused, each with the remedy, and faults of a model's description of its pixels.

/// The reason why an image of a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The URL leads elsewhere.
    #[error(
        "images are not fetched from '{0}': send the image itself, as a data: URL (data:image/png;base64,…) in place of a link"
    )]
    Elsewhere(String),
    /// The URL is not well formed.
    #[error("the data: URL is not well formed: {0}. It has the form data:image/png;base64,…")]
    Url(&'static str),
    /// The file is too large.
    #[error("the image's file has {bytes} bytes; it may have {limit}. Send a smaller or more compressed one")]
    FileTooLarge {
        /// Bytes of the file.
        bytes: u64,
        /// The limit on them.
        limit: u64,
    },
    /// The image has too many pixels.
    #[error("the image has {width}x{height} pixels; it may have {limit} of them. Send a smaller one")]
    TooManyPixels {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
        /// The limit on their product.
        limit: u64,
    },
    /// The file is of an unknown kind.
    #[error("the image's format is not known: it has to be PNG, JPEG, WebP, GIF or BMP")]
    UnknownFormat,
    /// The file is damaged.
    #[error("the image cannot be decoded: {0}")]
    Damaged(String),
    /// The image's sides differ too much for this model.
    #[error(
        "the image has {width}x{height} pixels; as this model reads images, they would become {new_width}x{new_height}"
    )]
    TooLong {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
        /// Pixels of a row afterwards.
        new_width: u64,
        /// Rows afterwards.
        new_height: u64,
    },
    /// One side is so much longer than the other that models do not take it.
    #[error(
        "the image has {width}x{height} pixels; one side may be at most 200 times as long as the other. Send a part of it"
    )]
    TooNarrow {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
    },
}

impl ImageError {
    /// Whether the image is refused for its size, and a smaller one would do.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::FileTooLarge { .. } | Self::TooManyPixels { .. } | Self::TooLong { .. })
    }
}

/// A field of `preprocessor_config.json` that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("preprocessor_config.json: '{field}' {what}")]
pub struct ImagePlanError {
    /// The field.
    pub field: String,
    /// The fault.
    pub what: String,
}

impl ImagePlanError {
    /// A fault of a field.
    pub fn new(field: &str, what: impl Into<String>) -> Self {
        Self { field: field.to_owned(), what: what.into() }
    }
}
