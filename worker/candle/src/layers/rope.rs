//! Rotary position embedding (Su et al., 2021, arXiv 2104.09864) with the stretchings of later models. Knows
//! frequencies and positions.

use std::f64::consts::PI;

use candle_core::{DType, Device, Result, Tensor};

use crate::spec::{DecoderSpec, RopePlanes, RopeScaling};

/// The frequencies of a head's `head_dim / 2` planes.
///
/// Cosines and sines are computed per step for the positions at hand. A table for the whole context would take `context
/// * head_dim * 4` bytes (64 MiB at 131,072 tokens) and save microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    planes: RopePlanes,
    frequencies: Vec<f32>,
    amplitude: f32,
}

/// Cosine and sine per row and plane, `[rows, head_dim / 2]` each.
pub(crate) struct Angles {
    pub(crate) planes: RopePlanes,
    pub(crate) cos: Tensor,
    pub(crate) sin: Tensor,
}

impl Rope {
    pub(crate) fn new(spec: &DecoderSpec) -> Self {
        let (theta, dim) = (spec.rope.theta, spec.head_dim);
        let plain = |plane: usize| theta.powf(-((2 * plane) as f64) / dim as f64);
        let scaled = |plane: usize| {
            let frequency = plain(plane);
            match spec.rope.scaling {
                RopeScaling::None => frequency,
                RopeScaling::Factors(ref factors) => {
                    frequency / factors.get(plane).map_or(1.0, |factor| f64::from(*factor))
                }
                RopeScaling::Linear { factor } => frequency / factor,
                RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                    // How often the plane turns within the original context decides.
                    let turns = original_max_positions * frequency / (2.0 * PI);
                    if turns > high_freq_factor {
                        frequency
                    } else if turns < low_freq_factor {
                        frequency / factor
                    } else {
                        let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - kept) * frequency / factor + kept * frequency
                    }
                }
                RopeScaling::Yarn { factor, beta_fast, beta_slow, original_max_positions, truncate, .. } => {
                    // The (fractional) plane that turns `turns` times within the original context.
                    let plane_of = |turns: f64| {
                        dim as f64 * (original_max_positions / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln())
                    };
                    let (mut low, mut high) = (plane_of(beta_fast), plane_of(beta_slow));
                    if truncate {
                        (low, high) = (low.floor(), high.ceil());
                    }
                    (low, high) = (low.max(0.0), high.min((dim - 1) as f64));
                    if low == high {
                        high += 0.001;
                    }
                    let divided = ((plane as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    divided * frequency / factor + (1.0 - divided) * frequency
                }
            }
        };
        let amplitude = match spec.rope.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor as f32,
            _ => 1.0,
        };
        let frequencies = (0..dim / 2).map(|plane| scaled(plane) as f32).collect();
        Self { planes: spec.rope.planes, frequencies, amplitude }
    }

    /// The angles of rows at these positions, for rows of `dtype`.
    pub(crate) fn angles(&self, positions: &[usize], dtype: DType, device: &Device) -> Result<Angles> {
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for &position in positions {
            for &frequency in &self.frequencies {
                // In f32, like the models were trained: at long positions the rounding of this product is visible.
                let (s, c) = (position as f32 * frequency).sin_cos();
                cos.push(c * self.amplitude);
                sin.push(s * self.amplitude);
            }
        }
        let shape = (positions.len(), self.frequencies.len());
        let table = |values: Vec<f32>| Tensor::from_vec(values, shape, device)?.to_dtype(dtype);
        Ok(Angles { planes: self.planes, cos: table(cos)?, sin: table(sin)? })
    }
}

impl Angles {
    /// Rotates every head of every row: `[rows, heads * head_dim]` → `[rows, heads, head_dim]`.
    pub(crate) fn rotate(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let head_dim = width / heads.max(1);
        match self.planes {
            RopePlanes::Halves => {
                let x = x.reshape((1, rows, heads, head_dim))?;
                candle_nn::rotary_emb::rope_thd(&x, &self.cos, &self.sin)?.squeeze(0)
            }
            RopePlanes::Neighbours => {
                // Each row as a batch of its own, with one position: so heads may lie behind one another.
                let x = x.reshape((rows, heads, 1, head_dim))?;
                let (cos, sin) = (self.cos.unsqueeze(1)?, self.sin.unsqueeze(1)?);
                candle_nn::rotary_emb::rope_i(&x, &cos, &sin)?.squeeze(2)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_turns_halves_against_each_other_and_keeps_lengths() {
        let rope = Rope { planes: RopePlanes::Halves, frequencies: vec![1.0, 0.5], amplitude: 1.0 };
        let x = Tensor::new(&[[1f32, 2., 3., 4.], [1., 2., 3., 4.]], &Device::Cpu).unwrap();
        let angles = rope.angles(&[0, 3], DType::F32, &Device::Cpu).unwrap();
        let y = angles.rotate(&x, 1).unwrap().squeeze(1).unwrap().to_vec2::<f32>().unwrap();
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
        let halves = Rope { planes: RopePlanes::Halves, frequencies: vec![1.0, 0.5], amplitude: 1.5 };
        let neighbours = Rope { planes: RopePlanes::Neighbours, ..halves.clone() };
        // Two heads of four in two rows; `[a b c d]` as halves is `[a c b d]` as neighbours.
        let x: Vec<f32> = (0..16).map(|i| i as f32 - 7.5).collect();
        let reordered = |x: &[f32]| x.chunks(4).flat_map(|h| [h[0], h[2], h[1], h[3]]).collect::<Vec<_>>();
        let rotated = |rope: &Rope, x: Vec<f32>| {
            let x = Tensor::from_vec(x, (2, 8), &Device::Cpu).unwrap();
            let angles = rope.angles(&[2, 9], DType::F32, &Device::Cpu).unwrap();
            angles.rotate(&x, 2).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        assert_eq!(rotated(&neighbours, reordered(&x)), reordered(&rotated(&halves, x)));
    }
}
