//! Turns of queries and keys by their places in a picture (Su et al., 2021, arXiv 2104.09864), along several axes.

use candle_core::{Device, Result, Tensor};
use candle_nn::rotary_emb::rope_i;

/// The longest wave.
const LONGEST: f64 = 10_000.0;

/// Cosines and sines of the rows of a text and the picture behind it.
pub(in crate::pictures) struct StreamTurns {
    /// `[rows, width / 2]`, those of a head for each head.
    cosines: Tensor,
    sines: Tensor,
}

impl StreamTurns {
    /// For rows and columns of patches behind so many tokens, which do not turn. The axes share the numbers of a head:
    /// the first one stands still, the others turn by the row and the column.
    pub(in crate::pictures) fn new(
        tokens: usize,
        [rows, columns]: [usize; 2],
        (axes, heads): ([usize; 3], usize),
        device: &Device,
    ) -> Result<Self> {
        let waves =
            |axis: usize| (0..axes[axis] / 2).map(move |at| LONGEST.powf(-((2 * at) as f64) / axes[axis] as f64));
        let texts = std::iter::repeat_n([0, 0, 0], tokens);
        let patches = (0..rows).flat_map(|row| (0..columns).map(move |column| [0, row, column]));
        let (mut cosines, mut sines) = (Vec::new(), Vec::new());
        for place in texts.chain(patches) {
            let of_axis = |axis: usize| waves(axis).map(move |wave| place[axis] as f64 * wave);
            let angles: Vec<f64> = (0..axes.len()).flat_map(of_axis).collect();
            for _ in 0..heads {
                cosines.extend(angles.iter().map(|angle| angle.cos() as f32));
                sines.extend(angles.iter().map(|angle| angle.sin() as f32));
            }
        }
        let shape = (tokens + rows * columns, heads * axes.iter().sum::<usize>() / 2);
        let table = |numbers: Vec<f32>| Tensor::from_vec(numbers, shape, device);
        Ok(Self { cosines: table(cosines)?, sines: table(sines)? })
    }

    /// Rows of some pictures, `[pictures * rows, width]`, turned.
    pub(super) fn turned(&self, x: &Tensor) -> Result<Tensor> {
        let (all, width) = x.dims2()?;
        let rows = self.cosines.dim(0)?;
        let apart = x.reshape((all / rows, 1, rows, width))?;
        rope_i(&apart, &self.cosines, &self.sines)?.reshape((all, width))
    }
}
