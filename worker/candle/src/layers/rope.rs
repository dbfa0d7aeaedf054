//! Rotary position embeddings (Su et al., 2021, arXiv 2104.09864) of a head or a part of it, with the scalings of
//! published models. Knows frequencies and positions.

use std::f64::consts::PI;

use candle_core::{DType, Device, Result, Tensor};

use crate::spec::{RopePlanes, RopeScaling, RopeSpec};

/// The frequencies of a head's planes.
///
/// Cosines and sines are computed per step for the positions at hand. A table for the whole context would take `context
/// * head_dim * 4` bytes (64 MiB at 131,072 tokens) and save microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    spec: RopeSpec,
    /// Those of sequences that are not long.
    frequencies: Vec<f32>,
    /// The factors on cosine and sine of sequences that are not long, and of long ones.
    amplitudes: [f32; 2],
}

/// Cosine and sine per row and plane, `[rows, planes]` each.
pub(crate) struct Angles {
    pub(crate) planes: RopePlanes,
    pub(crate) cos: Tensor,
    pub(crate) sin: Tensor,
}

/// A row's position, and the length of its sequence that scalings go by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    /// Its time, row and column: the same number three times where positions have one dimension.
    pub(crate) at: [usize; 3],
    pub(crate) length: usize,
}

impl Rope {
    pub(crate) fn new(spec: &RopeSpec) -> Self {
        let amplitudes = match spec.scaling {
            RopeScaling::Yarn { attention_factor, .. } => [attention_factor; 2],
            RopeScaling::Long { attention_factors, .. } => attention_factors,
            _ => [1.0; 2],
        };
        let amplitudes = amplitudes.map(|amplitude| amplitude as f32);
        Self { spec: spec.clone(), frequencies: frequencies(spec, 0), amplitudes }
    }

    /// The angles of rows at these positions, for rows of `dtype`.
    pub(crate) fn angles(&self, positions: &[Position], dtype: DType, device: &Device) -> Result<Angles> {
        let shape = (positions.len(), self.planes());
        let table = |values: Vec<f32>| Tensor::from_vec(values, shape, device)?.to_dtype(dtype);
        let [cos, sin] = self.turns(positions).map(table);
        Ok(Angles { planes: self.spec.planes, cos: cos?, sin: sin? })
    }

    /// The same angles, of numbers `[cos, sin]` from [`Self::turns`] in a device's memory: `[2, rows, planes]`.
    pub(crate) fn angles_of(&self, turns: &Tensor, dtype: DType) -> Result<Angles> {
        let table = |at| turns.get(at)?.to_dtype(dtype);
        Ok(Angles { planes: self.spec.planes, cos: table(0)?, sin: table(1)? })
    }

    /// Whether planes turn by several dimensions of a position.
    pub(crate) fn has_axes(&self) -> bool {
        !self.spec.axes.is_empty()
    }

    /// Planes of a head.
    pub(crate) fn planes(&self) -> usize {
        self.frequencies.len()
    }

    /// Cosines and sines of all planes at each of these positions.
    pub(crate) fn turns(&self, positions: &[Position]) -> [Vec<f32>; 2] {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        let mut of_length: Option<(usize, Vec<f32>)> = None;
        for &Position { at, length } in positions {
            let long = self.spec.scaling.is_long(length);
            let amplitude = self.amplitudes[usize::from(long)];
            let frequencies = if long {
                match &of_length {
                    Some((of, _)) if *of == length => {}
                    _ => of_length = Some((length, frequencies(&self.spec, length))),
                }
                of_length.as_ref().map_or(&self.frequencies, |(_, frequencies)| frequencies)
            } else {
                &self.frequencies
            };
            for (plane, &frequency) in frequencies.iter().enumerate() {
                let axis = self.spec.axes.get(plane).map_or(0, |axis| usize::from(*axis).min(2));
                // In f32, like the models were trained: at long positions the rounding of this product is visible.
                let (s, c) = (at[axis] as f32 * frequency).sin_cos();
                cos.push(c * amplitude);
                sin.push(s * amplitude);
            }
        }
        [cos, sin]
    }
}

/// The frequencies of the planes in sequences of this length.
fn frequencies(spec: &RopeSpec, length: usize) -> Vec<f32> {
    let (width, mut theta) = (spec.width as f64, spec.theta);
    if let RopeScaling::Dynamic { factor, original_max_positions } = spec.scaling
        && length > original_max_positions
    {
        let longer = factor * length as f64 / original_max_positions as f64 - (factor - 1.0);
        theta *= longer.powf(width / (width - 2.0));
    }
    let plain = |plane: usize| theta.powf(-((2 * plane) as f64) / width);
    let divided =
        |plane: usize, factors: &[f32]| plain(plane) / factors.get(plane).map_or(1.0, |factor| f64::from(*factor));
    let scaled = |plane: usize| {
        let frequency = plain(plane);
        match &spec.scaling {
            RopeScaling::None | RopeScaling::Dynamic { .. } => frequency,
            RopeScaling::Factors(factors) => divided(plane, factors),
            RopeScaling::Long { short, long, .. } => {
                divided(plane, if spec.scaling.is_long(length) { long } else { short })
            }
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                // How often the plane turns within the original context decides.
                let turns = original_max_positions * frequency / (2.0 * PI);
                if turns > *high_freq_factor {
                    frequency
                } else if turns < *low_freq_factor {
                    frequency / factor
                } else {
                    let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - kept) * frequency / factor + kept * frequency
                }
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_positions, truncate, .. } => {
                // The (fractional) plane that turns `turns` times within the original context.
                let plane_of =
                    |turns: f64| width * (original_max_positions / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
                let (mut low, mut high) = (plane_of(*beta_fast), plane_of(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(width - 1.0));
                if low == high {
                    high += 0.001;
                }
                let divided = ((plane as f64 - low) / (high - low)).clamp(0.0, 1.0);
                divided * frequency / factor + (1.0 - divided) * frequency
            }
        }
    };
    (0..spec.width.div_ceil(2)).map(|plane| scaled(plane) as f32).collect()
}

impl Angles {
    /// Rotates every head of every row, from its element `first` on: `[rows, heads * head_dim]` → `[rows, heads,
    /// head_dim]`.
    pub(crate) fn rotate(&self, x: &Tensor, heads: usize, first: usize) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let head_dim = width / heads.max(1);
        let (x, turned) = (x.reshape((rows, heads, head_dim))?, 2 * self.cos.dim(1)?);
        if turned == head_dim {
            return self.turn(&x);
        }
        let part = |first: usize, count: usize| x.narrow(2, first, count)?.contiguous();
        let behind = first + turned;
        let parts = [part(0, first)?, self.turn(&part(first, turned)?)?, part(behind, head_dim - behind)?];
        let parts: Vec<&Tensor> = parts.iter().filter(|part| part.elem_count() > 0).collect();
        Tensor::cat(&parts, 2)
    }

    /// Rotates whole heads: `[rows, heads, width]`.
    fn turn(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, heads, width) = x.dims3()?;
        match self.planes {
            RopePlanes::Halves => {
                let x = x.reshape((1, rows, heads, width))?;
                candle_nn::rotary_emb::rope_thd(&x, &self.cos, &self.sin)?.squeeze(0)
            }
            RopePlanes::Neighbours => {
                // Each row as a batch of its own, with one position: so heads may lie behind one another.
                let x = x.reshape((rows, heads, 1, width))?;
                let (cos, sin) = (self.cos.unsqueeze(1)?, self.sin.unsqueeze(1)?);
                candle_nn::rotary_emb::rope_i(&x, &cos, &sin)?.squeeze(2)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(planes: RopePlanes, amplitude: f32) -> Rope {
        let spec = RopeSpec { planes, width: 4, theta: 1e4, scaling: RopeScaling::None, axes: Vec::new() };
        Rope { spec, frequencies: vec![1.0, 0.5], amplitudes: [amplitude; 2] }
    }

    fn positions<const N: usize>(at: [usize; N]) -> [Position; N] {
        at.map(|at| Position { at: [at; 3], length: at + 1 })
    }

    #[test]
    fn a_part_of_a_head_turns_as_a_head_of_its_own() {
        let angles = rope(RopePlanes::Halves, 1.0).angles(&positions([3]), DType::F32, &Device::Cpu).unwrap();
        let x = Tensor::new(&[[7f32, 1., 2., 3., 4., 8.]], &Device::Cpu).unwrap();
        let part = angles.rotate(&x, 1, 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let alone = angles.rotate(&x.narrow(1, 1, 4).unwrap().contiguous().unwrap(), 1, 0).unwrap();
        let alone = alone.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!((part[0], &part[1..5], part[5]), (7.0, &alone[..], 8.0));
    }

    #[test]
    fn rotation_turns_halves_against_each_other_and_keeps_lengths() {
        let rope = rope(RopePlanes::Halves, 1.0);
        let x = Tensor::new(&[[1f32, 2., 3., 4.], [1., 2., 3., 4.]], &Device::Cpu).unwrap();
        let angles = rope.angles(&positions([0, 3]), DType::F32, &Device::Cpu).unwrap();
        let y = angles.rotate(&x, 1, 0).unwrap().squeeze(1).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(y[0], [1., 2., 3., 4.], "position 0 turns nothing");
        let expected = [
            3f32.cos() - 3. * 3f32.sin(),
            2. * 1.5f32.cos() - 4. * 1.5f32.sin(),
            3f32.sin() + 3. * 3f32.cos(),
            2. * 1.5f32.sin() + 4. * 1.5f32.cos(),
        ];
        for (got, want) in y[1].iter().zip(expected) {
            assert!((got - want).abs() < 1e-6, "{y:?}");
        }
    }

    #[test]
    fn neighbours_turn_like_halves_of_reordered_heads() {
        let (halves, neighbours) = (rope(RopePlanes::Halves, 1.5), rope(RopePlanes::Neighbours, 1.5));
        // Two heads of four in two rows; `[a b c d]` as halves is `[a c b d]` as neighbours.
        let x: Vec<f32> = (0..16).map(|i| i as f32 - 7.5).collect();
        let reordered = |x: &[f32]| x.chunks(4).flat_map(|h| [h[0], h[2], h[1], h[3]]).collect::<Vec<_>>();
        let rotated = |rope: &Rope, x: Vec<f32>| {
            let x = Tensor::from_vec(x, (2, 8), &Device::Cpu).unwrap();
            let angles = rope.angles(&positions([2, 9]), DType::F32, &Device::Cpu).unwrap();
            angles.rotate(&x, 2, 0).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        assert_eq!(rotated(&neighbours, reordered(&x)), reordered(&rotated(&halves, x)));
    }
}
