//! Tiles as rows of patches.

use model_boss_images::{PixelScale, RgbImage};

/// Patches of a tile in the order in which a tower takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PatchOrder {
    /// Pixels of a patch's side.
    pub(crate) patch: usize,
    /// Patches of a square's side, whose patches come one behind the other; 1 where patches come row by row.
    pub(crate) merge: usize,
}

impl PatchOrder {
    /// Rows and columns of patches of a tile.
    pub(crate) fn grid(self, tile: &RgbImage) -> [usize; 2] {
        [tile.height / self.patch, tile.width / self.patch]
    }

    /// Row and column of each patch.
    pub(crate) fn places(self, [rows, columns]: [usize; 2]) -> Vec<[usize; 2]> {
        let merge = self.merge.max(1);
        let mut places = Vec::with_capacity(rows * columns);
        for top in (0..rows).step_by(merge) {
            for left in (0..columns).step_by(merge) {
                let square = (top..top + merge).flat_map(|row| (left..left + merge).map(move |column| [row, column]));
                places.extend(square.filter(|[row, column]| *row < rows && *column < columns));
            }
        }
        places
    }

    /// `[patches, 3 * patch * patch]`: of each patch the reds row by row, then the greens and the blues.
    pub(crate) fn numbers(self, tile: &RgbImage, scale: &PixelScale) -> Vec<f32> {
        let planes = scale.planes(tile);
        let (plane, side) = (tile.width * tile.height, self.patch);
        let mut numbers = Vec::with_capacity(planes.values.len());
        for [row, column] in self.places(self.grid(tile)) {
            for colour in planes.values.chunks_exact(plane) {
                for y in row * side..(row + 1) * side {
                    numbers.extend_from_slice(&colour[y * tile.width + column * side..][..side]);
                }
            }
        }
        numbers
    }
}
