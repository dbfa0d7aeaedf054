//! Limits on images, checked before anything is decoded.

/// The limits on one image, and on the images of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Bytes of a file.
    pub file_bytes: u64,
    /// Pixels of an image.
    pub pixels: u64,
    /// Images of a request.
    pub count: usize,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { file_bytes: 20 << 20, pixels: 48 << 20, count: 64 }
    }
}
