//! Many rows of activations in strips: some rows' elements of one group, then those of the next. A product reads a
//! strip from one place, and not from as many as it has rows.

use rayon::prelude::*;

use super::chunk::{CHUNK, Chunk8, GROUP, GROUPS, QuantiseRow, WORDS, WORTH_SHARING};
use crate::lanes::Instructions;

/// Rows of activations in 8 bits. The last strip is filled with rows of zeros.
pub(crate) struct Strips {
    /// The quants of a group, its scale, and the sums of the quants of each half: `[strips, groups, height]`.
    words: Vec<[i32; WORDS]>,
    scales: Vec<f32>,
    sums: Vec<[i32; 2]>,
    /// Rows of a strip.
    height: usize,
    /// Groups of a row.
    per_row: usize,
    rows: usize,
}

impl Strips {
    /// Rounds activations `[rows, depth]`, where `depth` is a multiple of 32.
    pub(super) fn quantise(instructions: Instructions, x: &[f32], [rows, depth]: [usize; 2], height: usize) -> Self {
        let (per_row, strips) = (depth / GROUP, rows.div_ceil(height));
        let all = strips * per_row * height;
        let (mut words, mut scales, mut sums) = (vec![[0; WORDS]; all], vec![0.0; all], vec![[0; 2]; all]);
        let of_strip = (per_row * height).max(1);
        let run = |(((words, scales), sums), x): (OfStrip<'_>, &[f32])| {
            instructions.run_plain(QuantiseStrip { x, depth, height, words, scales, sums });
        };
        if x.len() < WORTH_SHARING {
            let strips = words.chunks_mut(of_strip).zip(scales.chunks_mut(of_strip)).zip(sums.chunks_mut(of_strip));
            strips.zip(x.chunks(height * depth)).for_each(run);
        } else {
            let strips = words.par_chunks_mut(of_strip).zip(scales.par_chunks_mut(of_strip));
            strips.zip(sums.par_chunks_mut(of_strip)).zip(x.par_chunks(height * depth)).for_each(run);
        }
        Self { words, scales, sums, height, per_row, rows }
    }

    /// Rows of a strip.
    pub(crate) fn height(&self) -> usize {
        self.height
    }

    /// Groups of a row.
    pub(crate) fn groups(&self) -> usize {
        self.per_row
    }

    /// The number of strips.
    pub(crate) fn count(&self) -> usize {
        self.rows.div_ceil(self.height)
    }

    /// Scales, `[strips, groups, height]`.
    pub(crate) fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Sums of the quants of each half of a group, `[strips, groups, height]`.
    pub(crate) fn sums(&self) -> &[[i32; 2]] {
        &self.sums
    }

    /// The quants of a strip's groups, `[groups][R]`. `R` is the strip's height.
    pub(crate) fn words<const R: usize>(&self, strip: usize) -> &[[[i32; WORDS]; R]] {
        let length = self.per_row * self.height;
        self.words[strip * length..][..length].as_chunks().0
    }
}

/// Quants, scales and sums of a strip.
type OfStrip<'a> = ((&'a mut [[i32; WORDS]], &'a mut [f32]), &'a mut [[i32; 2]]);

struct QuantiseStrip<'a> {
    x: &'a [f32],
    depth: usize,
    height: usize,
    words: &'a mut [[i32; WORDS]],
    scales: &'a mut [f32],
    sums: &'a mut [[i32; 2]],
}

impl pulp::NullaryFnOnce for QuantiseStrip<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let mut chunk = [Chunk8::ZERO];
        for (row, x) in self.x.chunks_exact(self.depth).enumerate() {
            for (number, x) in x.chunks(CHUNK).enumerate() {
                QuantiseRow { x, chunks: &mut chunk }.call();
                for (g, words) in chunk[0].words.iter().enumerate().take(x.len() / GROUP) {
                    let at = (number * GROUPS + g) * self.height + row;
                    self.words[at] = *words;
                    self.scales[at] = chunk[0].scales[g];
                    self.sums[at] = [chunk[0].offsets[2 * g] / -32, chunk[0].offsets[2 * g + 1] / -32];
                }
            }
        }
    }
}
