//! Pictures as numbers that lie channel by channel, and as bytes.

use model_boss_images::{MaskImage, Resample, RgbImage, resize};

/// The numbers of a picture between -1 and 1, of this size.
pub(super) fn numbers_of(image: &RgbImage, [width, height]: [usize; 2]) -> Vec<f32> {
    let resized =
        (image.width != width || image.height != height).then(|| resize(image, width, height, Resample::Lanczos));
    let bytes = &resized.as_ref().unwrap_or(image).bytes;
    let channel = |at: usize| bytes.iter().skip(at).step_by(RgbImage::CHANNELS);
    (0..RgbImage::CHANNELS).flat_map(channel).map(|byte| 2.0 * (f32::from(*byte) / 255.0) - 1.0).collect()
}

/// The pixels that are painted anew, of this size. None where the mask has not as many bytes as pixels.
pub(super) fn painted_anew(mask: &MaskImage, [width, height]: [usize; 2]) -> Option<Vec<bool>> {
    let bytes = mask.bytes.iter().flat_map(|byte| [*byte; RgbImage::CHANNELS]).collect();
    let image = RgbImage::new(mask.width, mask.height, bytes)?;
    let image = if [mask.width, mask.height] == [width, height] {
        image
    } else {
        resize(&image, width, height, Resample::Lanczos)
    };
    Some(image.bytes.iter().step_by(RgbImage::CHANNELS).map(|byte| f32::from(*byte) / 255.0 >= 0.5).collect())
}

/// Pictures of numbers around -1 to 1.
pub(super) fn images_of(numbers: &[f32], [width, height]: [usize; 2]) -> Vec<RgbImage> {
    let pixels = width * height;
    let image = |numbers: &[f32]| {
        let byte = |number: f32| ((number * 0.5 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
        let pixel = |at: usize| [0, 1, 2].map(|channel| byte(numbers[channel * pixels + at]));
        RgbImage::new(width, height, (0..pixels).flat_map(pixel).collect())
    };
    numbers.chunks_exact(RgbImage::CHANNELS * pixels).filter_map(image).collect()
}
