//! Pixels as models read them: numbers in one plane for each colour.

use crate::rgb::RgbImage;

/// Numbers `[3, height, width]`: the reds row by row, then the greens and the blues.
#[derive(Clone, Debug, PartialEq)]
pub struct PixelPlanes {
    /// Numbers of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `3 * height * width` numbers.
    pub values: Vec<f32>,
}

/// The numbers that bytes become: `(byte - mean) / deviation` of each colour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PixelScale {
    /// By colour.
    pub mean: [f32; 3],
    /// By colour.
    pub deviation: [f32; 3],
}

impl PixelScale {
    /// Bytes are multiplied with a factor, if at all, and then normalised, if at all. Both are one step, as in the
    /// reference, so that roundings are the same.
    pub fn of(factor: Option<f64>, normal: Option<([f32; 3], [f32; 3])>) -> Self {
        match (factor, normal) {
            (Some(factor), Some((mean, deviation))) => {
                let back = (1.0 / factor) as f32;
                Self { mean: mean.map(|mean| mean * back), deviation: deviation.map(|part| part * back) }
            }
            (None, Some((mean, deviation))) => Self { mean, deviation },
            (Some(factor), None) => Self { mean: [0.0; 3], deviation: [(1.0 / factor) as f32; 3] },
            (None, None) => Self { mean: [0.0; 3], deviation: [1.0; 3] },
        }
    }

    /// The numbers of an image.
    pub fn planes(&self, image: &RgbImage) -> PixelPlanes {
        let mut values = Vec::with_capacity(image.bytes.len());
        for colour in 0..RgbImage::CHANNELS {
            let (mean, deviation) = (self.mean[colour], self.deviation[colour]);
            let of_byte: Vec<f32> = (0..256).map(|byte| (byte as f32 - mean) / deviation).collect();
            values
                .extend(image.bytes.chunks_exact(RgbImage::CHANNELS).map(|pixel| of_byte[usize::from(pixel[colour])]));
        }
        PixelPlanes { width: image.width, height: image.height, values }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_3_bytes_become_planes() {
        let image = RgbImage::new(2, 1, vec![0, 51, 255, 255, 102, 0]).unwrap();
        let scale = PixelScale::of(Some(1.0 / 255.0), Some(([0.5; 3], [0.5; 3])));
        let planes = scale.planes(&image);
        for (one, other) in planes.values.iter().zip([-1.0, 1.0, -0.6, -0.2, 1.0, -1.0]) {
            assert!((one - other).abs() < 1e-6, "{planes:?}");
        }
        assert_eq!(PixelScale::of(None, None).planes(&image).values, [0.0, 255.0, 51.0, 102.0, 255.0, 0.0]);
        let halves = PixelScale::of(Some(0.5), None).planes(&image);
        assert_eq!(halves.values, [0.0, 127.5, 25.5, 51.0, 127.5, 0.0]);
    }
}
