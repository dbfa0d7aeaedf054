//! Images in prompts: the places that they take among the tokens, and the rows that a model has there in place of
//! embeddings. Knows no tower.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

use model_boss_images::RgbImage;

/// A digest of an image as the model gets it. Prompts share blocks only where their images have the same digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageDigest(pub [u64; 2]);

impl fmt::Debug for ImageDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, other] = self.0;
        write!(f, "{one:016x}{other:016x}")
    }
}

/// Makes digests of images. Its keys are random numbers, so that nobody can make two images of one digest; digests of
/// another maker mean nothing to it.
#[derive(Clone, Debug, Default)]
pub struct ImageDigests([RandomState; 2]);

impl ImageDigests {
    /// The digest of some tiles of an image, and of its size before.
    pub fn of(&self, tiles: &[RgbImage], sent: [usize; 2]) -> ImageDigest {
        ImageDigest(self.0.each_ref().map(|keys| {
            let mut hasher = keys.build_hasher();
            sent.hash(&mut hasher);
            for RgbImage { width, height, bytes } in tiles {
                (width, height, bytes).hash(&mut hasher);
            }
            hasher.finish()
        }))
    }
}

/// A part of an image as the model's tower takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageTiles {
    /// The tiles.
    pub tiles: Vec<RgbImage>,
    /// Rows and pixels of a row of the image that was sent, which some models make their rows by.
    pub sent: [usize; 2],
    /// The digest of all this.
    pub digest: ImageDigest,
}

/// An image in a prompt.
#[derive(Clone, Debug)]
pub struct PromptImage {
    /// The first token that the image takes the place of.
    pub first: usize,
    /// How many these are. Never 0.
    pub places: usize,
    /// Rows and columns of the places, for models whose positions have several dimensions.
    pub grid: [usize; 2],
    /// The image.
    pub picture: Arc<ImageTiles>,
}

impl PromptImage {
    /// The tokens that it takes the place of.
    pub fn range(&self) -> Range<usize> {
        self.first..self.first + self.places
    }
}

/// A model's rows for an image, in f32, one behind the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenRows {
    /// `[places, hidden]`: in place of embeddings.
    pub embedded: Vec<f32>,
    /// `[places, hidden]` each: added to the stream behind the first layers, one for each.
    pub behind_layers: Vec<Vec<f32>>,
}

impl SeenRows {
    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let numbers = self.embedded.len() + self.behind_layers.iter().map(Vec::len).sum::<usize>();
        numbers * size_of::<f32>()
    }
}

/// An image of a sequence in a step.
#[derive(Clone, Debug)]
pub struct StepImage {
    /// Its places in the sequence.
    pub range: Range<usize>,
    /// As in [`PromptImage`].
    pub grid: [usize; 2],
    /// The rows; none where a step has no token of the image.
    pub rows: Option<Arc<SeenRows>>,
}
