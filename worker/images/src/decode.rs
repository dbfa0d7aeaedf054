//! Decoding, as Pillow opens a file and `transformers` converts it to RGB: the first picture of it, upright, and where
//! it is transparent in front of white. Sizes are read from the header and compared with the limits first.

use std::io::Cursor;

use image::codecs::bmp::BmpDecoder;
use image::codecs::gif::GifDecoder;
use image::codecs::jpeg::JpegDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageResult, Limits};

use crate::error::ImageError;
use crate::limits::ImageLimits;
use crate::rgb::RgbImage;

/// Bytes of a decoder's memory for each pixel that the limits allow: four colours of 16 bits.
const BYTES_OF_PIXEL: u64 = 8;

/// The facts of an image that its header tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// Pixels of a row, once the image is upright.
    pub width: u32,
    /// Rows, once the image is upright.
    pub height: u32,
}

impl ImageHeader {
    /// Reads the header of a file, and compares file and size with the limits.
    pub fn read(file: &[u8], limits: &ImageLimits) -> Result<Self, ImageError> {
        let (mut decoder, _) = open(file, limits)?;
        let turned = matches!(
            decoder.orientation().map_err(damaged)?,
            Orientation::Rotate90 | Orientation::Rotate270 | Orientation::Rotate90FlipH | Orientation::Rotate270FlipH
        );
        let (width, height) = decoder.dimensions();
        let (width, height) = if turned { (height, width) } else { (width, height) };
        Ok(Self { width, height })
    }
}

/// Decodes a file, if file and size are within the limits.
pub fn decode(file: &[u8], limits: &ImageLimits) -> Result<RgbImage, ImageError> {
    let (image, format) = upright(file, limits)?;
    let (width, height) = (image.width() as usize, image.height() as usize);
    let bytes = rgb(image, format);
    RgbImage::new(width, height, bytes).ok_or_else(|| ImageError::Damaged("it has no pixels".to_owned()))
}

/// The picture of a file within the limits, with all of its channels.
pub(crate) fn upright(file: &[u8], limits: &ImageLimits) -> Result<(DynamicImage, ImageFormat), ImageError> {
    let (mut decoder, format) = open(file, limits)?;
    let orientation = decoder.orientation().map_err(damaged)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    image.apply_orientation(orientation);
    Ok((image, format))
}

fn damaged(error: image::ImageError) -> ImageError {
    ImageError::Damaged(error.to_string())
}

/// The decoder of a file within the limits.
fn open<'a>(file: &'a [u8], limits: &ImageLimits) -> Result<(Box<dyn ImageDecoder + 'a>, ImageFormat), ImageError> {
    let bytes = file.len() as u64;
    if bytes > limits.file_bytes {
        return Err(ImageError::FileTooLarge { bytes, limit: limits.file_bytes });
    }
    let format = image::guess_format(file).map_err(|_| ImageError::UnknownFormat)?;
    let decoder = decoder(file, format).ok_or(ImageError::UnknownFormat)?;
    let mut decoder = decoder.map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > limits.pixels {
        return Err(ImageError::TooManyPixels { width, height, limit: limits.pixels });
    }
    let mut memory = Limits::no_limits();
    memory.max_alloc = Some(limits.pixels.saturating_mul(BYTES_OF_PIXEL).max(limits.file_bytes));
    decoder.set_limits(memory).map_err(damaged)?;
    Ok((decoder, format))
}

/// The decoder of a format; none of one that is not read.
fn decoder(file: &[u8], format: ImageFormat) -> Option<ImageResult<Box<dyn ImageDecoder + '_>>> {
    fn boxed<'a>(decoder: impl ImageDecoder + 'a) -> Box<dyn ImageDecoder + 'a> {
        Box::new(decoder)
    }
    let file = Cursor::new(file);
    Some(match format {
        ImageFormat::Png => PngDecoder::new(file).map(boxed),
        ImageFormat::Jpeg => JpegDecoder::new(file).map(boxed),
        ImageFormat::WebP => WebPDecoder::new(file).map(boxed),
        ImageFormat::Gif => GifDecoder::new(file).map(boxed),
        ImageFormat::Bmp => BmpDecoder::new(file).map(boxed),
        _ => return None,
    })
}

/// Three bytes for each pixel. Of 16 bits the upper 8 stay, but grey ones are cut at 255: Pillow keeps such images in a
/// mode of its own, which it converts so.
fn rgb(image: DynamicImage, format: ImageFormat) -> Vec<u8> {
    let upper = |number: u16| number.to_be_bytes()[0];
    match image {
        DynamicImage::ImageRgb8(image) => image.into_raw(),
        DynamicImage::ImageRgba8(image) => {
            let mut bytes = image.into_raw();
            for at in 0..bytes.len() / 4 {
                let [red, green, blue, alpha] = [0, 1, 2, 3].map(|colour| bytes[at * 4 + colour]);
                let colours = [red, green, blue].map(|colour| in_front_of_white(colour, alpha));
                bytes[at * 3..at * 3 + 3].copy_from_slice(&colours);
            }
            bytes.truncate(bytes.len() / 4 * 3);
            bytes
        }
        DynamicImage::ImageLuma8(image) => image.into_raw().into_iter().flat_map(|grey| [grey; 3]).collect(),
        DynamicImage::ImageLumaA8(image) => {
            image.into_raw().chunks_exact(2).flat_map(|pixel| [in_front_of_white(pixel[0], pixel[1]); 3]).collect()
        }
        DynamicImage::ImageLuma16(image) if format == ImageFormat::Png => {
            let cut = |grey: u16| u8::try_from(grey).unwrap_or(u8::MAX);
            image.into_raw().into_iter().flat_map(|grey| [cut(grey); 3]).collect()
        }
        DynamicImage::ImageLumaA16(image) => image
            .into_raw()
            .chunks_exact(2)
            .flat_map(|pixel| [in_front_of_white(upper(pixel[0]), upper(pixel[1])); 3])
            .collect(),
        DynamicImage::ImageRgb16(image) => image.into_raw().into_iter().map(upper).collect(),
        DynamicImage::ImageRgba16(image) => image
            .into_raw()
            .chunks_exact(4)
            .flat_map(|pixel| [0, 1, 2].map(|colour| in_front_of_white(upper(pixel[colour]), upper(pixel[3]))))
            .collect(),
        other => other.into_rgb8().into_raw(),
    }
}

/// A colour in front of white, rounded as Pillow's `alpha_composite` does.
fn in_front_of_white(colour: u8, alpha: u8) -> u8 {
    // Seven bits behind the point.
    let sum = (u32::from(colour) * u32::from(alpha) + 255 * u32::from(u8::MAX - alpha)) << 7;
    let half = sum + (0x80 << 7);
    ((((half >> 8) + half) >> 8) >> 7) as u8
}
