//! Cropping around the centre.

use crate::rgb::RgbImage;

/// The middle of an image. Where it is smaller than the crop, it gets black around it, the odd pixel on the right and
/// at the bottom.
pub fn crop_centre(image: &RgbImage, width: usize, height: usize) -> RgbImage {
    let (x, y) = (Cut::centre(image.width, width), Cut::centre(image.height, height));
    let mut bytes = vec![0; width * height * RgbImage::CHANNELS];
    let stride = width * RgbImage::CHANNELS;
    for row in 0..y.count {
        let from = &image.row(y.from + row)[x.from * RgbImage::CHANNELS..][..x.count * RgbImage::CHANNELS];
        bytes[(y.to + row) * stride + x.to * RgbImage::CHANNELS..][..from.len()].copy_from_slice(from);
    }
    RgbImage { width, height, bytes }
}

/// Pixels of one direction that are kept, and their place before and after.
struct Cut {
    from: usize,
    to: usize,
    count: usize,
}

impl Cut {
    fn centre(old: usize, new: usize) -> Self {
        if new > old {
            Self { from: 0, to: (new - old) / 2, count: old }
        } else {
            Self { from: (old - new) / 2, to: 0, count: new }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(width: usize, height: usize) -> RgbImage {
        let bytes = (0..width * height).flat_map(|at| [at as u8 + 1; 3]).collect();
        RgbImage::new(width, height, bytes).unwrap()
    }

    fn reds(image: &RgbImage) -> Vec<u8> {
        image.bytes.chunks_exact(3).map(|pixel| pixel[0]).collect()
    }

    #[test]
    fn em_3_the_middle_stays() {
        assert_eq!(reds(&crop_centre(&counted(5, 4), 2, 2)), [7, 8, 12, 13]);
        assert_eq!(reds(&crop_centre(&counted(4, 1), 3, 1)), [1, 2, 3]);
    }

    #[test]
    fn em_3_small_images_get_black_around_them() {
        assert_eq!(reds(&crop_centre(&counted(2, 1), 5, 2)), [0, 1, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(reds(&crop_centre(&counted(1, 3), 2, 2)), [1, 0, 2, 0]);
    }
}
