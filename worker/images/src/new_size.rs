//! The size that images get before a model reads them.

/// The size that images get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewSize {
    /// These sides, whatever the image's.
    Sides {
        /// Rows.
        height: usize,
        /// Pixels of a row.
        width: usize,
    },
    /// The short side becomes this long, the long one in proportion; where that is longer than `longest`, it becomes
    /// that long, and the short one is in proportion.
    Shortest {
        /// The short side.
        edge: usize,
        /// The limit on the long side.
        longest: Option<usize>,
    },
    /// About in proportion, of whole square patches, as many as fit: SigLIP 2 with any proportions.
    Patches {
        /// Pixels of a patch's side.
        side: usize,
        /// Patches of an image.
        most: usize,
    },
    /// The largest size in proportion within these sides.
    Within {
        /// Rows.
        height: usize,
        /// Pixels of a row.
        width: usize,
    },
}

impl NewSize {
    /// The new rows and pixels of a row of an image with these.
    pub fn of(self, height: usize, width: usize) -> (usize, usize) {
        match self {
            Self::Sides { height, width } => (height, width),
            Self::Shortest { edge, longest: None } => {
                let long = height.max(width) as u64 * edge as u64 / height.min(width) as u64;
                if width <= height { (long as usize, edge) } else { (edge, long as usize) }
            }
            Self::Shortest { edge, longest: Some(longest) } => aspect_kept(height, width, edge, longest),
            Self::Patches { side, most } => patches(height, width, side, most),
            Self::Within { height: most_height, width: most_width } => {
                let scale = (most_height as f64 / height as f64).min(most_width as f64 / width as f64);
                (((height as f64 * scale) as usize).max(1), ((width as f64 * scale) as usize).max(1))
            }
        }
    }
}

/// Rows and pixels of a row of an image that becomes whole patches. The scale is looked for by halves, down to the same
/// width of the interval as in the reference: where the count jumps, that decides.
fn patches(height: usize, width: usize, side: usize, most: usize) -> (usize, usize) {
    const NEAR: f64 = 1e-5;
    let scaled = |scale: f64, length: usize| (((length as f64 * scale) / side as f64).ceil() as usize).max(1) * side;
    let (mut low, mut high) = (NEAR / 10.0, 100.0);
    while high - low >= NEAR {
        let middle = (low + high) / 2.0;
        let count = (scaled(middle, height) / side) as f64 * (scaled(middle, width) / side) as f64;
        if count <= most as f64 { low = middle } else { high = middle }
    }
    (scaled(low, height), scaled(low, width))
}

/// Rows and pixels of a row of an image whose short side becomes `edge`, and whose long one at most `longest`.
pub fn aspect_kept(height: usize, width: usize, edge: usize, longest: usize) -> (usize, usize) {
    let (h, w) = (height as f64, width as f64);
    let (short, long) = (h.min(w), h.max(w));
    let limited = longest as f64 * short / long;
    let limit = long / short * edge as f64 > longest as f64;
    let (exact, edge) = if limit { (limited, limited.round_ties_even()) } else { (edge as f64, edge as f64) };
    if short == edge {
        (height, width)
    } else if width < height {
        ((exact * h / w) as usize, (edge as usize).max(1))
    } else {
        ((edge as usize).max(1), (exact * w / h) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATCH_SIZES: [(usize, usize); 5] = [(224, 288), (288, 224), (256, 256), (16, 4096), (64, 880)];

    #[test]
    fn em_3_sizes_keep_proportions() {
        let shortest = |edge, longest| NewSize::Shortest { edge, longest };
        assert_eq!(shortest(224, None).of(480, 640), (224, 298));
        assert_eq!(shortest(224, None).of(640, 480), (298, 224));
        assert_eq!(shortest(10, Some(15)).of(100, 200), (8, 15));
        assert_eq!(shortest(10, Some(30)).of(100, 200), (10, 20));
        assert_eq!(NewSize::Within { height: 10, width: 10 }.of(100, 200), (5, 10));
        // As transformers' get_image_size_for_max_num_patches says.
        let patches = NewSize::Patches { side: 16, most: 256 };
        let sizes = [(480, 640), (640, 480), (100, 100), (1, 3_000), (37, 500)];
        assert_eq!(sizes.map(|(height, width)| patches.of(height, width)), PATCH_SIZES);
    }
}
