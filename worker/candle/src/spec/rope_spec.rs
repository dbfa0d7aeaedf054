//! Descriptions of rotary position embeddings (Su et al., 2021, arXiv 2104.09864).

use model_boss_kernels::RopePlanes;

/// Rotary position embedding over a head, or over a part of it.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// The pairs of elements that are rotated together.
    pub planes: RopePlanes,
    /// Elements of a head that are rotated: two for each plane.
    pub width: usize,
    /// The base of the wavelengths.
    pub theta: f64,
    /// The change of wavelengths for longer sequences.
    pub scaling: RopeScaling,
    /// The dimension of a position that each plane turns by: 0 for time, 1 for rows and 2 for columns of an image.
    /// Empty where positions have one dimension.
    pub axes: Vec<u8>,
}

/// The scaling of rotary wavelengths, named as in `transformers`.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// A base that follows the length of sequences that are longer than the original ones, at all positions.
    Dynamic {
        /// The factor on lengths.
        factor: f64,
        /// The longest sequence before scaling, in tokens.
        original_max_positions: usize,
    },
    /// Division of every frequency by `factor`.
    Linear {
        /// The divisor of every frequency.
        factor: f64,
    },
    /// The scaling of Llama 3.1: long wavelengths are scaled, short ones are not, and those between are interpolated.
    Llama3 {
        /// The divisor of the frequencies of long wavelengths.
        factor: f64,
        /// Wavelengths above `original_max_positions / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_positions / high_freq_factor` are short.
        high_freq_factor: f64,
        /// The longest sequence before scaling, in tokens.
        original_max_positions: f64,
    },
    /// Division of each plane's frequency by its own factor, one for each plane. GGUF files express Llama 3.1's scaling
    /// in this way.
    Factors(Vec<f32>),
    /// YaRN (Peng et al., 2023, arXiv 2309.00071): interpolation by parts, and a scale on attention.
    Yarn {
        /// The divisor of the frequencies of long wavelengths.
        factor: f64,
        /// The factor on cosine and sine.
        attention_factor: f64,
        /// Dimensions with more rotations than this are not scaled.
        beta_fast: f64,
        /// Dimensions with fewer rotations than this are divided by `factor`.
        beta_slow: f64,
        /// The longest sequence before scaling, in tokens.
        original_max_positions: f64,
        /// Whether the ramp's ends are rounded outwards to whole dimensions.
        truncate: bool,
    },
    /// LongRoPE (Ding et al., 2024, arXiv 2402.13753): a factor for each plane, of two sets. Sequences that are longer
    /// than the original ones have the second set at all positions.
    Long {
        /// The divisors of short sequences.
        short: Vec<f32>,
        /// The divisors of long sequences.
        long: Vec<f32>,
        /// The longest short sequence, in tokens.
        original_max_positions: usize,
        /// The factors on cosine and sine of short and of long sequences.
        attention_factors: [f64; 2],
    },
}

impl RopeScaling {
    /// Whether sequences of this length have other frequencies than short ones.
    pub fn is_long(&self, length: usize) -> bool {
        match self {
            Self::Dynamic { original_max_positions, .. } | Self::Long { original_max_positions, .. } => {
                length > *original_max_positions
            }
            _ => false,
        }
    }

    /// The same for sequences that have the same frequencies.
    pub fn length_class(&self, length: usize) -> usize {
        match self {
            // Each length has a base of its own.
            Self::Dynamic { .. } if self.is_long(length) => length,
            _ => usize::from(self.is_long(length)),
        }
    }
}
