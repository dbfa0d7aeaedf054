//! The images of sequences: keys by which blocks are found, and rows from the time when a model has looked at an image
//! until its places are evaluated.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::images::{ImageDigest, ImageTiles, PromptImage, SeenRows, StepImage};
use crate::kv::CacheSalt;

/// The bit of keys that stand for images. Tokens of a vocabulary are smaller.
pub(super) const IMAGE_KEY: u32 = 1 << 31;

/// Images whose numbers are known. One that is forgotten gets another number, and so finds no blocks of its own.
const MOST_NUMBERS: usize = 1 << 16;

/// Bytes of rows that are kept for later sequences, and for those that have to begin again.
const KEPT_ROWS: usize = 64 << 20;

/// The results for images that were in prompts.
#[derive(Debug, Default)]
pub(super) struct KnownImages {
    /// Numbers by digest. A number comes again only after all others.
    numbers: HashMap<ImageDigest, u32>,
    /// The digests in the order of their numbers.
    order: VecDeque<ImageDigest>,
    next: u32,
    /// Those used last are at the end.
    rows: VecDeque<KeptRows>,
    bytes: usize,
}

/// Rows of an image that one caller sent.
#[derive(Debug)]
struct KeptRows {
    salt: Option<CacheSalt>,
    digest: ImageDigest,
    rows: Arc<SeenRows>,
}

/// The images of one sequence.
#[derive(Debug, Default)]
pub(super) struct SequenceImages {
    prompt: Arc<[PromptImage]>,
    steps: Vec<StepImage>,
    /// As the sequence's tokens, but for images. Empty for a sequence without any.
    keys: Vec<u32>,
}

/// An image that has to be looked at before a step.
pub(super) struct Unseen {
    /// Its number in the sequence.
    pub(super) index: usize,
    /// Its first place.
    pub(super) first: usize,
    pub(super) picture: Arc<ImageTiles>,
}

impl KnownImages {
    /// The images of a prompt, in places that it has.
    pub(super) fn enter(&mut self, tokens: &[u32], images: Arc<[PromptImage]>) -> SequenceImages {
        if images.is_empty() {
            return SequenceImages::default();
        }
        let mut keys = tokens.to_vec();
        for image in images.iter() {
            keys[image.range()].fill(IMAGE_KEY | self.number(image.picture.digest));
        }
        let step = |image: &PromptImage| StepImage { range: image.range(), grid: image.grid, rows: None };
        SequenceImages { steps: images.iter().map(step).collect(), prompt: images, keys }
    }

    fn number(&mut self, digest: ImageDigest) -> u32 {
        if let Some(number) = self.numbers.get(&digest) {
            return *number;
        }
        // At a thousand images a second they last for 24 days; then the oldest blocks are long gone.
        let number = self.next % IMAGE_KEY;
        self.next = (number + 1) % IMAGE_KEY;
        self.numbers.insert(digest, number);
        self.order.push_back(digest);
        if self.order.len() > MOST_NUMBERS
            && let Some(oldest) = self.order.pop_front()
        {
            self.numbers.remove(&oldest);
        }
        number
    }

    /// Rows of an image that the same caller sent before.
    pub(super) fn rows(&mut self, salt: Option<&CacheSalt>, digest: ImageDigest) -> Option<Arc<SeenRows>> {
        let salt = salt?;
        let at = self.rows.iter().position(|kept| kept.digest == digest && kept.salt.as_ref() == Some(salt))?;
        let kept = self.rows.remove(at)?;
        let rows = Arc::clone(&kept.rows);
        self.rows.push_back(kept);
        Some(rows)
    }

    /// Keeps rows, and drops those that were not used for the longest time. A single image may be larger.
    pub(super) fn keep(&mut self, salt: Option<&CacheSalt>, digest: ImageDigest, rows: &Arc<SeenRows>) {
        let Some(salt) = salt else { return };
        self.bytes += rows.bytes();
        self.rows.push_back(KeptRows { salt: Some(salt.clone()), digest, rows: Arc::clone(rows) });
        while self.bytes > KEPT_ROWS
            && let Some(oldest) = self.rows.pop_front()
        {
            self.bytes -= oldest.rows.bytes();
        }
    }
}

impl SequenceImages {
    /// The numbers that blocks are found by: the tokens, with a number of the image in its places.
    pub(super) fn keys<'a>(&'a self, tokens: &'a [u32]) -> &'a [u32] {
        if self.keys.is_empty() { tokens } else { &self.keys }
    }

    /// Whether the prompt has no images.
    pub(super) fn are_none(&self) -> bool {
        self.prompt.is_empty()
    }

    /// A token was sampled.
    pub(super) fn push(&mut self, token: u32) {
        if !self.keys.is_empty() {
            self.keys.push(token);
        }
    }

    /// The images as steps have them.
    pub(super) fn steps(&self) -> &[StepImage] {
        &self.steps
    }

    /// The share of a step that ends at no place inside of an image. It may be more than the step's own.
    pub(super) fn whole(&self, fed: usize, share: usize) -> usize {
        let end = fed + share;
        match self.steps.iter().find(|image| image.range.start < end && end < image.range.end) {
            Some(image) if image.range.start > fed => image.range.start - fed,
            Some(image) => image.range.end - fed,
            None => share,
        }
    }

    /// The first image with places among these that nobody has looked at yet.
    pub(super) fn unseen(&self, tokens: Range<usize>) -> Option<Unseen> {
        let within = |image: &StepImage| image.range.start < tokens.end && image.range.end > tokens.start;
        let index = self.steps.iter().position(|image| image.rows.is_none() && within(image))?;
        let PromptImage { first, picture, .. } = self.prompt.get(index)?;
        Some(Unseen { index, first: *first, picture: Arc::clone(picture) })
    }

    /// An image was looked at.
    pub(super) fn saw(&mut self, index: usize, rows: Arc<SeenRows>) {
        if let Some(image) = self.steps.get_mut(index) {
            image.rows = Some(rows);
        }
    }

    /// Drops the rows of images whose places are evaluated.
    pub(super) fn forget(&mut self, fed: usize) {
        self.steps.iter_mut().filter(|image| image.range.end <= fed).for_each(|image| image.rows = None);
    }
}

/// Whether images are in places of such a prompt, in their order and apart from each other.
pub(super) fn are_placed(images: &[PromptImage], prompt: usize) -> bool {
    let mut free = 0;
    images.iter().all(|image| {
        let fits = image.first >= free && image.places > 0 && image.places <= prompt.saturating_sub(image.first);
        free = image.first.saturating_add(image.places);
        fits
    })
}
