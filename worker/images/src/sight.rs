//! How a model that writes text gets images: the text that takes the place of an image's mark in a prompt, and the
//! tiles that its tower reads.

use crate::plan::PixelSteps;
use crate::resample::Resample;

/// How a model gets images.
#[derive(Clone, Debug, PartialEq)]
pub struct SightFacts {
    /// Whether the places of an image see each other in both directions. They come in one step then.
    pub both_ways: bool,
    /// The text by which chat templates name an image.
    pub mark: String,
    /// The token at the places of images.
    pub token: u32,
    /// The spelling of that token. In the text of an image it is there once for each of its parts.
    pub place: String,
    /// The text and the tiles of images.
    pub layout: ImageLayout,
}

/// How an image becomes text and tiles.
#[derive(Clone, Debug, PartialEq)]
pub enum ImageLayout {
    /// One tile of the image's own shape, as Qwen2-VL has it.
    Grid(GridLayout),
    /// One tile of one size, as LLaVA and Gemma 3 have it.
    Single(SingleLayout),
    /// Tiles that cover the image, and one of all of it, as Idefics3 has them.
    Split(SplitLayout),
}

/// Sides that are multiples of a number, within limits on their product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridLayout {
    /// Pixels of a place's side.
    pub side: usize,
    /// The fewest pixels of an image.
    pub min_pixels: usize,
    /// The most pixels of an image.
    pub max_pixels: usize,
    /// Whether images are resized at all.
    pub resizes: bool,
    /// The filter.
    pub resample: Resample,
}

/// One size for all images.
#[derive(Clone, Debug, PartialEq)]
pub struct SingleLayout {
    /// The steps to the size. Numbers are made of pixels later.
    pub steps: PixelSteps,
    /// The colour that makes images square before.
    pub pad: Option<[u8; 3]>,
    /// Rows and pixels of a row of the tile.
    pub size: (usize, usize),
    /// Places of an image.
    pub places: usize,
    /// The text in front of the places, and the one behind.
    pub around: [String; 2],
}

/// The size of an image before it is cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstSize {
    /// The long side has this length, and the other one is in proportion and even.
    Longest(usize),
    /// Rows, and pixels of a row.
    Sides(usize, usize),
}

/// Tiles of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitLayout {
    /// The size of an image before it is cut into tiles; none where it stays as it is.
    pub first: Option<FirstSize>,
    /// Rows and pixels of a row of each tile.
    pub side: usize,
    /// Whether images are cut into tiles. Otherwise one tile has all of the image.
    pub splits: bool,
    /// Places of a tile.
    pub places: usize,
    /// The filter.
    pub resample: Resample,
}
