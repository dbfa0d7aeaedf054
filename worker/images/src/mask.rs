//! Masks of edits: which pixels of a picture are painted anew.

use crate::decode::{decode, upright};
use crate::error::ImageError;
use crate::limits::ImageLimits;

/// A picture of one byte for each pixel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskImage {
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `width * height` bytes: 255 is painted anew, 0 stays.
    pub bytes: Vec<u8>,
}

/// Decodes a mask. Where a file is transparent anywhere, its transparent pixels are painted anew, as OpenAI's API has
/// it. Of any other file these are the white ones, as `diffusers` has it.
pub fn decode_mask(file: &[u8], limits: &ImageLimits) -> Result<MaskImage, ImageError> {
    let (image, _) = upright(file, limits)?;
    let (width, height) = (image.width() as usize, image.height() as usize);
    if image.color().has_alpha() {
        let alpha: Vec<u8> = image.into_rgba8().into_raw().iter().skip(3).step_by(4).copied().collect();
        if alpha.iter().any(|alpha| *alpha < u8::MAX) {
            return Ok(MaskImage { width, height, bytes: alpha.into_iter().map(|alpha| u8::MAX - alpha).collect() });
        }
    }
    let image = decode(file, limits)?;
    Ok(MaskImage { width, height, bytes: image.bytes.chunks_exact(3).map(grey).collect() })
}

/// The brightness of a pixel in 16 bits behind the point, as Pillow has it (ITU-R 601-2).
fn grey(pixel: &[u8]) -> u8 {
    let sum: u32 = pixel.iter().zip([19_595, 38_470, 7_471]).map(|(colour, share)| u32::from(*colour) * share).sum();
    u8::try_from((sum + 0x8000) >> 16).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use image::{DynamicImage, GrayImage, ImageFormat, RgbaImage};

    use super::*;

    fn png(image: impl Into<DynamicImage>) -> Vec<u8> {
        let mut file = std::io::Cursor::new(Vec::new());
        image.into().write_to(&mut file, ImageFormat::Png).unwrap();
        file.into_inner()
    }

    fn read(file: &[u8]) -> Vec<u8> {
        let mask = decode_mask(file, &ImageLimits::default()).unwrap();
        assert_eq!((mask.width, mask.height), (3, 1));
        mask.bytes
    }

    #[test]
    fn rc_25_transparent_pixels_of_a_mask_are_painted_anew_or_else_the_white_ones() {
        let grey = GrayImage::from_raw(3, 1, vec![0, 200, 255]).unwrap();
        assert_eq!(read(&png(grey)), [0, 200, 255]);
        let colours = |alphas: [u8; 3]| {
            let pixels = alphas.iter().zip([[255, 255, 255], [255, 0, 0], [0, 0, 0]]);
            RgbaImage::from_raw(3, 1, pixels.flat_map(|(alpha, [r, g, b])| [r, g, b, *alpha]).collect()).unwrap()
        };
        assert_eq!(read(&png(colours([255, 55, 0]))), [0, 200, 255]);
        // Red is 76 in Pillow.
        assert_eq!(read(&png(colours([255; 3]))), [255, 76, 0]);
        assert!(decode_mask(b"no image", &ImageLimits::default()).is_err());
    }
}
