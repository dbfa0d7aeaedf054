//! An image with three bytes for each pixel.

/// Red, green and blue, a byte each, row by row from the top.
#[derive(Clone, PartialEq, Eq)]
pub struct RgbImage {
    /// Pixels of a row, at least one.
    pub width: usize,
    /// Rows, at least one.
    pub height: usize,
    /// `width * height * 3` bytes.
    pub bytes: Vec<u8>,
}

impl RgbImage {
    /// Bytes of one pixel.
    pub const CHANNELS: usize = 3;

    /// An image of these bytes; none where their number is not that of the pixels, or there are no pixels.
    pub fn new(width: usize, height: usize, bytes: Vec<u8>) -> Option<Self> {
        let count = width.checked_mul(height)?.checked_mul(Self::CHANNELS)?;
        (count > 0 && bytes.len() == count).then_some(Self { width, height, bytes })
    }

    /// The bytes of a row.
    pub fn row(&self, y: usize) -> &[u8] {
        let stride = self.width * Self::CHANNELS;
        &self.bytes[y * stride..][..stride]
    }
}

impl std::fmt::Debug for RgbImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RgbImage({}x{})", self.width, self.height)
    }
}
