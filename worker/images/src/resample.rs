//! Resizing as Pillow does it: each new pixel is a weighted mean of the old ones below its filter, which is as wide as
//! the image shrinks. Rows are resized first, then columns, both rounded to bytes. Pillow 13 takes the columns of some
//! images first, which differs by some units at hard edges. Weights are whole numbers with 22 bits behind the point, so
//! that results are the same to the bit on all machines. The resizing of torchvision, which `transformers` uses, has
//! fewer bits and differs by at most one unit, too.

use crate::rgb::RgbImage;

/// The filter of a resizing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resample {
    /// The pixel in which the centre lies.
    Nearest,
    /// The mean of the pixels that are covered.
    Box,
    /// A triangle.
    Bilinear,
    /// A window of Hamming's kind.
    Hamming,
    /// Cubic pieces with a = -0.5 (Keys, 1981).
    Bicubic,
    /// A sine below a wider one, with three waves.
    Lanczos,
}

impl Resample {
    /// The filter by its number in Pillow and in `preprocessor_config.json`.
    pub fn of_number(number: u64) -> Option<Self> {
        use Resample::{Bicubic, Bilinear, Box, Hamming, Lanczos, Nearest};
        [Nearest, Lanczos, Bilinear, Bicubic, Box, Hamming].get(usize::try_from(number).ok()?).copied()
    }

    /// Pixels from the centre to the end, where the size stays.
    fn reach(self) -> f64 {
        match self {
            Self::Nearest => 0.0,
            Self::Box => 0.5,
            Self::Bilinear | Self::Hamming => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    /// The weight at a distance from the centre.
    fn weight(self, at: f64) -> f64 {
        use std::f64::consts::PI;
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
        let far = at.abs();
        match self {
            Self::Nearest => 1.0,
            Self::Box => f64::from(u8::from(at > -0.5 && at <= 0.5)),
            Self::Bilinear => (1.0 - far).max(0.0),
            Self::Hamming if far >= 1.0 => 0.0,
            Self::Hamming => sinc(far) * (0.54 + 0.46 * (far * PI).cos()),
            Self::Bicubic if far < 1.0 => (1.5 * far - 2.5) * far * far + 1.0,
            Self::Bicubic if far < 2.0 => ((-0.5 * far + 2.5) * far - 4.0) * far + 2.0,
            Self::Lanczos if (-3.0..3.0).contains(&at) => sinc(at) * sinc(at / 3.0),
            Self::Bicubic | Self::Lanczos => 0.0,
        }
    }
}

/// Bits of a weight behind the point.
const BITS: u32 = 22;

/// The old pixels of each new one in one direction, and their weights.
struct Taps {
    /// The first old pixel of each new one, and the number of them.
    ranges: Vec<(usize, usize)>,
    /// The weights of each new pixel, `widest` apart.
    weights: Vec<i32>,
    widest: usize,
}

impl Taps {
    fn new(old: usize, new: usize, filter: Resample) -> Self {
        let scale = old as f64 / new as f64;
        let stretch = scale.max(1.0);
        let reach = filter.reach() * stretch;
        let widest = reach.ceil() as usize * 2 + 1;
        let (mut ranges, mut weights) = (Vec::with_capacity(new), vec![0; widest * new]);
        for (at, weights) in weights.chunks_exact_mut(widest).enumerate() {
            let centre = (at as f64 + 0.5) * scale;
            let first = (centre - reach + 0.5).max(0.0) as usize;
            let end = ((centre + reach + 0.5).max(0.0) as usize).min(old);
            let exact: Vec<f64> =
                (first..end).map(|old| filter.weight((old as f64 - centre + 0.5) * (1.0 / stretch))).collect();
            let sum: f64 = exact.iter().sum();
            for (weight, exact) in weights.iter_mut().zip(&exact) {
                let exact = if sum == 0.0 { *exact } else { exact * (1.0 / sum) } * f64::from(1 << BITS);
                *weight = (exact + 0.5_f64.copysign(exact)) as i32;
            }
            ranges.push((first, exact.len()));
        }
        Self { ranges, weights, widest }
    }

    /// The old pixels of a new one, and their weights.
    fn of(&self, at: usize) -> (usize, &[i32]) {
        let (first, count) = self.ranges[at];
        (first, &self.weights[at * self.widest..][..count])
    }
}

/// The sum of weighted bytes as a byte.
fn byte(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// Half of a unit, from which sums start.
const HALF: i32 = 1 << (BITS - 1);

/// An image of another size, both sides at least one.
pub fn resize(image: &RgbImage, width: usize, height: usize, filter: Resample) -> RgbImage {
    let (width, height) = (width.max(1), height.max(1));
    if filter == Resample::Nearest {
        return nearest(image, width, height);
    }
    let rows = (width != image.width).then(|| in_rows(image, width, filter));
    let image = rows.as_ref().unwrap_or(image);
    if height == image.height { image.clone() } else { in_columns(image, height, filter) }
}

fn in_rows(image: &RgbImage, width: usize, filter: Resample) -> RgbImage {
    let taps = Taps::new(image.width, width, filter);
    let mut bytes = vec![0; width * image.height * RgbImage::CHANNELS];
    for (y, out) in bytes.chunks_exact_mut(width * RgbImage::CHANNELS).enumerate() {
        let row = image.row(y);
        for (x, pixel) in out.chunks_exact_mut(RgbImage::CHANNELS).enumerate() {
            let (first, weights) = taps.of(x);
            let mut sums = [HALF; 3];
            let old = row[first * RgbImage::CHANNELS..].chunks_exact(RgbImage::CHANNELS);
            for (weight, old) in weights.iter().zip(old) {
                for (sum, old) in sums.iter_mut().zip(old) {
                    *sum = sum.wrapping_add(i32::from(*old).wrapping_mul(*weight));
                }
            }
            pixel.copy_from_slice(&sums.map(byte));
        }
    }
    RgbImage { width, height: image.height, bytes }
}

fn in_columns(image: &RgbImage, height: usize, filter: Resample) -> RgbImage {
    let taps = Taps::new(image.height, height, filter);
    let stride = image.width * RgbImage::CHANNELS;
    let mut bytes = vec![0; stride * height];
    let mut sums = vec![HALF; stride];
    for (y, out) in bytes.chunks_exact_mut(stride).enumerate() {
        let (first, weights) = taps.of(y);
        sums.fill(HALF);
        for (at, weight) in weights.iter().enumerate() {
            for (sum, old) in sums.iter_mut().zip(image.row(first + at)) {
                *sum = sum.wrapping_add(i32::from(*old).wrapping_mul(*weight));
            }
        }
        out.iter_mut().zip(&sums).for_each(|(out, sum)| *out = byte(*sum));
    }
    RgbImage { width: image.width, height, bytes }
}

fn nearest(image: &RgbImage, width: usize, height: usize) -> RgbImage {
    // Where a centre lies between two pixels, torchvision's single precision decides.
    let place = |at: usize, old: usize, new: usize| {
        let place = (at as f32 + 0.5) * (old as f32 / new as f32);
        (place as usize).min(old - 1)
    };
    let columns: Vec<usize> = (0..width).map(|x| place(x, image.width, width) * RgbImage::CHANNELS).collect();
    let mut bytes = Vec::with_capacity(width * height * RgbImage::CHANNELS);
    for y in 0..height {
        let row = image.row(place(y, image.height, height));
        columns.iter().for_each(|x| bytes.extend_from_slice(&row[*x..][..RgbImage::CHANNELS]));
    }
    RgbImage { width, height, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn em_3_filters_have_pillows_numbers() {
        assert_eq!(Resample::of_number(0), Some(Resample::Nearest));
        assert_eq!(Resample::of_number(1), Some(Resample::Lanczos));
        assert_eq!(Resample::of_number(2), Some(Resample::Bilinear));
        assert_eq!(Resample::of_number(3), Some(Resample::Bicubic));
        assert_eq!(Resample::of_number(6), None);
    }

    proptest! {
        #[test]
        fn em_3_one_colour_stays_one_colour(
            sizes in proptest::array::uniform4(1_usize..40), colour: [u8; 3], number in 0_u64..6,
        ) {
            let [width, height, new_width, new_height] = sizes;
            let image = RgbImage::new(width, height, colour.repeat(width * height)).unwrap();
            let filter = Resample::of_number(number).unwrap();
            let resized = resize(&image, new_width, new_height, filter);
            prop_assert_eq!(resized.bytes, colour.repeat(new_width * new_height));
        }
    }
}
