//! An image as a model gets it: text and tiles. The arithmetic of sizes is that of the processors in `transformers`.

use crate::error::ImageError;
use crate::resample::resize;
use crate::rgb::RgbImage;
use crate::sight::{FirstSize, GridLayout, ImageLayout, SightFacts, SingleLayout, SplitLayout};

/// The long side that no image is larger than before it is cut into tiles.
const LONGEST_SPLIT: usize = 4096;

/// How many times longer than the other one a side may be.
const MOST_ASPECT: f64 = 200.0;

/// An image as text and tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaidImage {
    /// The text that takes the mark's place. It has the place's token once for each part.
    pub text: String,
    /// The parts, in the order of their places in the text.
    pub parts: Vec<ImagePartLaid>,
}

/// Consecutive places, and what is seen there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePartLaid {
    /// The tiles that a tower makes the places of.
    pub tiles: Vec<RgbImage>,
    /// Rows and pixels of a row of the image that was sent.
    pub sent: [usize; 2],
    /// Places.
    pub places: usize,
    /// Rows and columns of the places.
    pub grid: [usize; 2],
}

impl SightFacts {
    /// Lays an image out.
    ///
    /// # Errors
    /// When the model has no size for an image of this shape.
    pub fn lay_out(&self, image: RgbImage) -> Result<LaidImage, ImageError> {
        match &self.layout {
            ImageLayout::Grid(layout) => {
                let part = layout.part(image)?;
                Ok(LaidImage { text: self.place.clone(), parts: vec![part] })
            }
            ImageLayout::Single(layout) => {
                let part = layout.part(image)?;
                let [before, behind] = &layout.around;
                Ok(LaidImage { text: format!("{before}{}{behind}", self.place), parts: vec![part] })
            }
            ImageLayout::Split(layout) => Ok(layout.lay_out(&image, &self.place)),
        }
    }
}

impl GridLayout {
    fn part(&self, image: RgbImage) -> Result<ImagePartLaid, ImageError> {
        let sent = [image.height, image.width];
        let (height, width) = if self.resizes {
            self.sides(image.height, image.width)?
        } else {
            // Without a resize, pixels beyond whole places would be lost.
            let whole = image.height.is_multiple_of(self.side) && image.width.is_multiple_of(self.side);
            (whole.then_some((image.height, image.width))).ok_or_else(|| self.misfit(&image))?
        };
        let grid = [height / self.side, width / self.side];
        let tile = if (height, width) == (image.height, image.width) {
            image
        } else {
            resize(&image, width, height, self.resample)
        };
        Ok(ImagePartLaid { tiles: vec![tile], sent, places: grid[0] * grid[1], grid })
    }

    fn misfit(&self, image: &RgbImage) -> ImageError {
        let next = |length: usize| length.next_multiple_of(self.side) as u64;
        ImageError::TooLong {
            width: image.width as u32,
            height: image.height as u32,
            new_width: next(image.width),
            new_height: next(image.height),
        }
    }

    /// Rows and pixels of a row of an image with these: `smart_resize` of Qwen2-VL's image processor.
    fn sides(&self, height: usize, width: usize) -> Result<(usize, usize), ImageError> {
        let (long, short) = (height.max(width) as f64, height.min(width) as f64);
        if long / short > MOST_ASPECT {
            return Err(ImageError::TooNarrow { width: width as u32, height: height as u32 });
        }
        let side = self.side as f64;
        let nearest = |length: usize| (length as f64 / side).round_ties_even() * side;
        let pixels = height as f64 * width as f64;
        let (mut rows, mut columns) = (nearest(height), nearest(width));
        if rows * columns > self.max_pixels as f64 {
            let factor = (pixels / self.max_pixels as f64).sqrt();
            let smaller = |length: usize| ((length as f64 / factor / side).floor() * side).max(side);
            (rows, columns) = (smaller(height), smaller(width));
        } else if rows * columns < self.min_pixels as f64 {
            let factor = (self.min_pixels as f64 / pixels).sqrt();
            let larger = |length: usize| (length as f64 * factor / side).ceil() * side;
            (rows, columns) = (larger(height), larger(width));
        }
        Ok((rows as usize, columns as usize))
    }
}

impl SingleLayout {
    fn part(&self, image: RgbImage) -> Result<ImagePartLaid, ImageError> {
        let sent = [image.height, image.width];
        let image = match self.pad {
            Some(colour) => squared(image, colour),
            None => image,
        };
        let tile = self.steps.sized(image)?;
        if (tile.height, tile.width) != self.size {
            let (height, width) = self.size;
            return Err(ImageError::TooLong {
                width: tile.width as u32,
                height: tile.height as u32,
                new_width: width as u64,
                new_height: height as u64,
            });
        }
        Ok(ImagePartLaid { tiles: vec![tile], sent, places: self.places, grid: [1, self.places] })
    }
}

/// An image in the middle of a square of this colour.
fn squared(image: RgbImage, colour: [u8; 3]) -> RgbImage {
    let side = image.height.max(image.width);
    if image.height == image.width {
        return image;
    }
    let (top, left) = ((side - image.height) / 2, (side - image.width) / 2);
    let mut bytes = colour.repeat(side * side);
    for y in 0..image.height {
        let at = ((top + y) * side + left) * RgbImage::CHANNELS;
        bytes[at..at + image.width * RgbImage::CHANNELS].copy_from_slice(image.row(y));
    }
    RgbImage { width: side, height: side, bytes }
}

impl SplitLayout {
    /// The tiles row by row, then one of all of the image: Idefics3's processor.
    fn lay_out(&self, image: &RgbImage, place: &str) -> LaidImage {
        let sent = [image.height, image.width];
        let (height, width) = self.first_size(image.height, image.width);
        let image = resize(image, width, height, self.resample);
        let side = self.side;
        let mut tiles = Vec::new();
        let mut text = String::new();
        let global = if self.splits {
            let (height, width) = self.whole_tiles(height, width);
            let image = resize(&image, width, height, self.resample);
            let (rows, columns) = (height / side, width / side);
            if rows > 1 || columns > 1 {
                for row in 0..rows {
                    for column in 0..columns {
                        tiles.push(cut(&image, row * side, column * side, side));
                        text.push_str(&format!("{AROUND}<row_{}_col_{}>{place}", row + 1, column + 1));
                    }
                    text.push('\n');
                }
                text.push('\n');
            }
            resize(&image, side, side, self.resample)
        } else {
            resize(&image, side, side, self.resample)
        };
        tiles.push(global);
        text.push_str(&format!("{AROUND}{GLOBAL}{place}{AROUND}"));
        let part = |tile| ImagePartLaid { tiles: vec![tile], sent, places: self.places, grid: [1, self.places] };
        LaidImage { text, parts: tiles.into_iter().map(part).collect() }
    }

    /// The size before tiles are cut.
    fn first_size(&self, height: usize, width: usize) -> (usize, usize) {
        match self.first {
            None => (height, width),
            Some(FirstSize::Sides(height, width)) => (height, width),
            Some(FirstSize::Longest(longest)) => {
                let aspect = width as f64 / height as f64;
                let even = |length: f64| (length as usize).next_multiple_of(2).max(1);
                let (height, width) = if width >= height {
                    (even(longest as f64 / aspect), longest)
                } else {
                    (longest, even(longest as f64 * aspect))
                };
                within(height, width, LONGEST_SPLIT)
            }
        }
    }

    /// Sides of whole tiles: the long side first, and the short one by the shape that this gives.
    fn whole_tiles(&self, height: usize, width: usize) -> (usize, usize) {
        let whole = |length: usize| length.next_multiple_of(self.side);
        let aspect = width as f64 / height as f64;
        if width >= height {
            let width = whole(width);
            (whole((width as f64 / aspect) as usize), width)
        } else {
            let height = whole(height);
            (height, whole((height as f64 * aspect) as usize))
        }
    }
}

/// The token in front of each tile, and behind the last.
const AROUND: &str = "<fake_token_around_image>";
/// The name of the tile that has all of the image.
const GLOBAL: &str = "<global-img>";

/// Sides in proportion whose longer one has at most this length.
fn within(height: usize, width: usize, longest: usize) -> (usize, usize) {
    let aspect = width as f64 / height as f64;
    let (height, width) = if width >= height && width > longest {
        ((longest as f64 / aspect) as usize, longest)
    } else if height > width && height > longest {
        (longest, (longest as f64 * aspect) as usize)
    } else {
        (height, width)
    };
    (height.max(1), width.max(1))
}

/// A square of an image.
fn cut(image: &RgbImage, top: usize, left: usize, side: usize) -> RgbImage {
    let columns = left * RgbImage::CHANNELS..(left + side) * RgbImage::CHANNELS;
    let bytes = (top..top + side).flat_map(|y| image.row(y)[columns.clone()].iter().copied()).collect();
    RgbImage { width: side, height: side, bytes }
}
