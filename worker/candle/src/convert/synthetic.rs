//! Models of random weights in the shapes of real ones, for measurements and checks. They take as long to compute as
//! real ones, and their answers have no meaning. Blocks are drawn in their stored form; the same seed gives the same
//! file.

use std::io::Write;

use half::f16;
use model_boss_weights::gguf::{HeaderWriter, TensorType};

use super::conversion::ConvertError;
use super::gguf_keys;
use crate::spec::tensors::{EMBEDDING, HEAD, Needed, in_gguf};
use crate::spec::{Activation, AttentionBias, DecoderSpec, RopePlanes, RopeScaling, RopeSpec};

/// Rows of a matrix that are drawn together.
const ROWS: u64 = 256;

/// A model's shape, and the types of its matrices.
#[derive(Clone, Debug)]
pub struct Synthetic {
    spec: DecoderSpec,
    stored: Mix,
}

/// The choice of a type for each matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mix {
    /// The mix of llama.cpp's Q4_K_M: four bits, and six for the most important matrices.
    Q4KM,
    /// Eight bits for every matrix.
    Q8_0,
}

impl Synthetic {
    /// The names of all shapes.
    pub const SHAPES: [&'static str; 6] =
        ["qwen3-0.6b", "qwen3-tiny", "qwen3-small", "qwen3-4b", "qwen3-0.6b-q8_0", "qwen3-4b-q8_0"];

    /// The shape of this name.
    pub fn of(name: &str) -> Option<Self> {
        let (name, stored) = match name.strip_suffix("-q8_0") {
            Some(name) if !["qwen3-tiny", "qwen3-small"].contains(&name) => (name, Mix::Q8_0),
            _ => (name, Mix::Q4KM),
        };
        let qwen3 = DecoderSpec {
            layers: 28,
            hidden: 1_024,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            intermediate: 3_072,
            vocab: 151_936,
            // A GGUF file stores this value as f32.
            norm_eps: f64::from(1e-6_f32),
            rope: RopeSpec { planes: RopePlanes::Halves, theta: 1e6, scaling: RopeScaling::None },
            tied_head: true,
            attention_bias: AttentionBias::None,
            head_norm: true,
            mlp_bias: false,
            activation: Activation::Silu,
            max_positions: 40_960,
        };
        // These shapes have a separate head. With the embedding as head, a shallow model of random weights repeats its
        // input.
        let small = DecoderSpec { vocab: 1_024, tied_head: false, max_positions: 4_096, ..qwen3.clone() };
        match name {
            "qwen3-0.6b" => Some(Self { spec: qwen3, stored }),
            "qwen3-4b" => Some(Self {
                spec: DecoderSpec { layers: 36, hidden: 2_560, heads: 32, intermediate: 9_728, ..qwen3 },
                stored,
            }),
            "qwen3-tiny" => Some(Self {
                stored,
                spec: DecoderSpec {
                    layers: 4,
                    hidden: 256,
                    heads: 4,
                    kv_heads: 2,
                    head_dim: 64,
                    intermediate: 768,
                    ..small
                },
            }),
            // This shape is mostly layers: the part that can be streamed is much larger than the part that has to stay.
            "qwen3-small" => Some(Self {
                stored,
                spec: DecoderSpec {
                    layers: 24,
                    hidden: 512,
                    heads: 8,
                    kv_heads: 2,
                    head_dim: 64,
                    intermediate: 1_536,
                    ..small
                },
            }),
            _ => None,
        }
    }

    /// Rows of the embedding. The vocabulary must have as many tokens.
    pub fn vocabulary(&self) -> usize {
        self.spec.vocab
    }

    /// Writes the file: `header` with the model's metadata, and all tensors.
    pub fn write(&self, seed: u64, mut header: HeaderWriter, out: impl Write) -> Result<(), ConvertError> {
        gguf_keys::write(&self.spec, &mut header)?;
        // These are llama.cpp's numbers for files that are mostly Q4_K (medium) and mostly Q8_0.
        header.set("general.file_type", &if self.stored == Mix::Q4KM { 15_u32 } else { 7 })?;
        header.set("general.quantization_version", &2_u32)?;
        let shape = self.spec.embedding_shape();
        let ends = [Some(EMBEDDING), (!self.spec.tied_head).then_some(HEAD)];
        let ends = ends.into_iter().flatten().map(|name| Needed { name: name.to_owned(), shape: shape.clone() });
        let tensors: Vec<Needed> = ends.chain(self.spec.needed()).collect();
        for tensor in &tensors {
            let shape: Vec<u64> = tensor.shape.iter().map(|length| *length as u64).collect();
            header.tensor(&in_gguf(&tensor.name), self.kind(tensor), &shape)?;
        }
        let mut body = header.begin(out)?;
        let mut random = Random(seed);
        for tensor in &tensors {
            let kind = self.kind(tensor);
            let [rows, depth] = match *tensor.shape.as_slice() {
                [rows, depth] => [rows as u64, depth as u64],
                // The remaining tensors are norms.
                _ => {
                    let ones = tensor.shape.iter().product();
                    body.write(&1.0_f32.to_le_bytes().repeat(ones))?;
                    continue;
                }
            };
            // With this spread a product has values of the size of its inputs, as at the beginning of training.
            let spread = 1.0 / (depth as f32).sqrt();
            for first in (0..rows).step_by(ROWS as usize) {
                let blocks = ROWS.min(rows - first) * depth / kind.block_len();
                body.write(&draw(kind, blocks, spread, &mut random))?;
            }
        }
        body.finish()?;
        Ok(())
    }

    /// The type of a tensor, by the rules of llama.cpp's `llama-quantize … Q4_K_M`.
    fn kind(&self, tensor: &Needed) -> TensorType {
        let layers = self.spec.layers;
        let more_bits = |layer: usize| {
            let eighth = layers / 8;
            layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
        };
        let layer = tensor.name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
        match (tensor.name.as_str(), layer) {
            _ if tensor.shape.len() == 1 => TensorType::F32,
            _ if self.stored == Mix::Q8_0 => TensorType::Q8_0,
            (HEAD, _) => TensorType::Q6_K,
            (EMBEDDING, _) if self.spec.tied_head => TensorType::Q6_K,
            (name, Some(layer)) if (name.contains("v_proj") || name.contains("down_proj")) && more_bits(layer) => {
                TensorType::Q6_K
            }
            _ => TensorType::Q4_K,
        }
    }
}

/// Random blocks whose elements have a mean of zero and about this standard deviation.
fn draw(kind: TensorType, blocks: u64, spread: f32, random: &mut Random) -> Vec<u8> {
    let mut stored = vec![0; (blocks * kind.block_bytes()) as usize];
    random.fill(&mut stored);
    // The standard deviation of whole numbers below n is n / √12.
    const SQRT_12: f32 = 3.464_101_6;
    for block in stored.chunks_exact_mut(kind.block_bytes() as usize) {
        match kind {
            TensorType::Q4_K => {
                // Q4_K: scales of 32 to 47, and minimums to match. The first four have the low six bits; the others
                // have nibbles, with their high bits on top of the first.
                let scales: [u8; 8] = std::array::from_fn(|i| 32 | block.get(4 + i).copied().unwrap_or(0) & 15);
                for j in 0..4 {
                    let (low, high) = (scales[j], scales[j + 4]);
                    block[4 + j] = low | high >> 4 << 6;
                    block[8 + j] = low | high >> 4 << 6;
                    block[12 + j] = high & 15 | (high & 15) << 4;
                }
                let d = spread * SQRT_12 / 16.0 / 40.0;
                block[0..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
                // The minimum is the scale times the middle of 0 to 15, so that the mean is zero.
                block[2..4].copy_from_slice(&f16::from_f32(7.5 * d).to_le_bytes());
            }
            TensorType::Q8_0 => {
                let d = spread * SQRT_12 / 256.0;
                block[0..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
            }
            _ => {
                // Q6_K: scales from 8 to 15 with either sign.
                for scale in &mut block[192..208] {
                    let size = 8 | *scale & 7;
                    *scale = if *scale & 8 == 0 { size } else { size.wrapping_neg() };
                }
                let d = spread * SQRT_12 / 64.0 / 12.0;
                block[208..210].copy_from_slice(&f16::from_f32(d).to_le_bytes());
            }
        }
    }
    stored
}

/// The random generator SplitMix64 (Steele et al., 2014): fast, and good enough for weights without meaning.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use model_boss_weights::gguf::dequantise;

    use super::*;

    #[test]
    fn drawn_blocks_have_the_spread_that_was_asked_for() {
        for kind in [TensorType::Q4_K, TensorType::Q6_K, TensorType::Q8_0] {
            let stored = draw(kind, 4_000, 0.05, &mut Random(7));
            let mut values = vec![0.0; 4_000 * kind.block_len() as usize];
            dequantise(kind, &stored, &mut values).unwrap();
            let count = values.len() as f64;
            let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
            let spread = (values.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count).sqrt();
            assert!(mean.abs() < 0.002 && (0.045..0.056).contains(&spread), "{kind}: {mean} {spread}");
        }
    }

    #[test]
    fn half_of_the_layers_have_more_bits_where_it_matters() {
        let model = Synthetic::of("qwen3-0.6b").unwrap();
        let six = |part: &str| {
            let of_layer = |layer| Needed { name: crate::spec::tensors::layer(layer, part), shape: vec![1_024, 1_024] };
            (0..28).filter(|layer| model.kind(&of_layer(*layer)) == TensorType::Q6_K).collect::<Vec<_>>()
        };
        let expected = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27];
        assert_eq!(six("self_attn.v_proj.weight"), expected);
        assert_eq!(six("mlp.down_proj.weight"), expected);
        assert!(six("mlp.up_proj.weight").is_empty());
    }

    #[test]
    fn the_file_is_a_model_and_its_seed_decides() {
        let model = Synthetic::of("qwen3-tiny").unwrap();
        let written = |seed| {
            let mut file = Vec::new();
            model.write(seed, HeaderWriter::new(), &mut file).unwrap();
            file
        };
        assert_eq!(written(1), written(1));
        assert_ne!(written(1), written(2));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, written(1)).unwrap();
        let model = model_boss_weights::gguf::GgufModel::open(&path).unwrap();
        let spec = DecoderSpec::from_gguf(&model).unwrap();
        assert_eq!(spec, Synthetic::of("qwen3-tiny").unwrap().spec);
    }
}
