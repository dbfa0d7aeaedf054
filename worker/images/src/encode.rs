//! Files of pictures that were painted. Each says in its metadata that a model has made it.

use image::codecs::jpeg::JpegEncoder;
use image::codecs::webp::WebPEncoder;
use image::{ExtendedColorType, ImageEncoder};

use crate::rgb::RgbImage;
use crate::source_note::PictureOrigin;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureFormat {
    /// PNG.
    Png,
    /// JPEG of this quality, from 1 to 100.
    Jpeg(u8),
    /// WebP without loss.
    WebP,
}

/// A picture could not be written.
#[derive(Debug, thiserror::Error)]
pub enum EncodeImageError {
    /// As PNG.
    #[error("the picture cannot be written as PNG")]
    Png(#[from] png::EncodingError),
    /// As JPEG or WebP.
    #[error("the picture cannot be written")]
    Other(#[from] image::ImageError),
    /// WebP has no pictures of this size.
    #[error("a picture of {0}x{1} cannot be written as WebP: its sides may have 16384 pixels")]
    TooLong(usize, usize),
}

/// The keyword of XMP in PNG files (XMP Specification Part 3, 1.1.5).
const PNG_XMP: &str = "XML:com.adobe.xmp";

/// The head of XMP in JPEG files (ibid., 1.1.3).
const JPEG_XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";

/// The longest side of WebP in pixels.
const LONGEST_WEBP: usize = 1 << 14;

impl PictureFormat {
    /// The name in requests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg(_) => "jpeg",
            Self::WebP => "webp",
        }
    }
}

/// The file of a picture.
pub fn encode(image: &RgbImage, format: PictureFormat, origin: PictureOrigin) -> Result<Vec<u8>, EncodeImageError> {
    let small = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
    let (width, height, mut file) = (small(image.width), small(image.height), Vec::new());
    let note = origin.packet();
    match format {
        PictureFormat::Png => {
            let mut encoder = png::Encoder::new(&mut file, width, height);
            encoder.set_color(png::ColorType::Rgb);
            encoder.set_depth(png::BitDepth::Eight);
            encoder.add_itxt_chunk(PNG_XMP.to_owned(), note)?;
            encoder.write_header()?.write_image_data(&image.bytes)?;
            Ok(file)
        }
        PictureFormat::Jpeg(quality) => {
            JpegEncoder::new_with_quality(&mut file, quality).write_image(
                &image.bytes,
                width,
                height,
                ExtendedColorType::Rgb8,
            )?;
            Ok(with_jpeg_note(&file, &note))
        }
        PictureFormat::WebP => {
            if image.width.max(image.height) > LONGEST_WEBP {
                return Err(EncodeImageError::TooLong(image.width, image.height));
            }
            let encoder = WebPEncoder::new_lossless(&mut file);
            encoder.write_image(&image.bytes, width, height, ExtendedColorType::Rgb8)?;
            Ok(with_webp_note(&file, (width, height), &note))
        }
    }
}

/// Puts a note behind the first segment, which is that of JFIF.
fn with_jpeg_note(file: &[u8], note: &str) -> Vec<u8> {
    let first = match file.get(2..6) {
        Some([0xff, 0xe0, high, low]) => 4 + usize::from(u16::from_be_bytes([*high, *low])),
        _ => 2,
    };
    let (head, rest) = file.split_at(first.min(file.len()));
    let length = u16::try_from(2 + JPEG_XMP.len() + note.len()).unwrap_or(u16::MAX);
    [head, &[0xff, 0xe1], &length.to_be_bytes()[..], JPEG_XMP, note.as_bytes(), rest].concat()
}

/// The extended form of a WebP file, which has room for notes (RFC 9649, 2.7).
fn with_webp_note(file: &[u8], (width, height): (u32, u32), note: &str) -> Vec<u8> {
    /// There is XMP.
    const HAS_XMP: u8 = 4;
    let chunk = |name: &[u8], content: &[u8]| {
        let length = u32::try_from(content.len()).unwrap_or(u32::MAX).to_le_bytes();
        // Chunks begin at even places.
        let odd: &[u8] = if content.len() % 2 == 1 { &[0] } else { &[] };
        [name, &length, content, odd].concat()
    };
    let canvas = |side: u32| side.saturating_sub(1).to_le_bytes();
    let (across, down) = (canvas(width), canvas(height));
    let head = chunk(b"VP8X", &[&[HAS_XMP, 0, 0, 0][..], &across[..3], &down[..3]].concat());
    let picture = file.get(12..).unwrap_or_default();
    let body = [&b"WEBP"[..], &head, picture, &chunk(b"XMP ", note.as_bytes())].concat();
    chunk(b"RIFF", &body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::decode;
    use crate::limits::ImageLimits;

    fn picture(width: usize, height: usize) -> RgbImage {
        let bytes = (0..3 * width * height).map(|at| (at * 7 % 251) as u8).collect();
        RgbImage::new(width, height, bytes).unwrap()
    }

    #[test]
    fn rc_25_files_hold_the_picture_and_the_note_that_a_model_has_made_it() {
        for (width, height) in [(1, 1), (7, 5), (64, 32)] {
            let picture = picture(width, height);
            for (format, beginning) in [
                (PictureFormat::Png, &b"\x89PNG"[..]),
                (PictureFormat::WebP, b"RIFF"),
                (PictureFormat::Jpeg(95), b"\xff\xd8"),
            ] {
                for origin in [PictureOrigin::Painted, PictureOrigin::Edited] {
                    let file = encode(&picture, format, origin).unwrap();
                    assert!(file.starts_with(beginning), "{format:?}");
                    let note = format!("digitalsourcetype/{}\"", origin.source_type());
                    assert!(file.windows(note.len()).any(|part| part == note.as_bytes()), "{format:?} {origin:?}");
                    let read = decode(&file, &ImageLimits::default()).unwrap();
                    match format {
                        PictureFormat::Jpeg(_) => assert_eq!((read.width, read.height), (width, height)),
                        _ => assert!(read == picture, "{format:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn rc_25_a_side_that_webp_does_not_have_is_refused() {
        let error = encode(&picture(LONGEST_WEBP + 1, 1), PictureFormat::WebP, PictureOrigin::Painted).unwrap_err();
        assert!(error.to_string().contains("16385x1"), "{error}");
    }
}
