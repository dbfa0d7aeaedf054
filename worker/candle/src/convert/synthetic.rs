//! Models of random weights in the shapes of real ones, for measurements and checks. They take as long to compute as
//! real ones, and their answers have no meaning. Blocks are drawn in their stored form; the same seed gives the same
//! file.

use std::io::Write;

use half::{bf16, f16};
use model_boss_weights::gguf::{HeaderWriter, TensorType, dequantise};

use super::conversion::ConvertError;
use super::gguf_keys;
use super::random::Random;
use super::synthetic_experts::{self, Mixture};
use crate::spec::part_names::{EMBEDDING, HEAD, Needed};
use crate::spec::{
    Activation, AttentionSpec, DecoderSpec, Factors, FeedForward, LayerSpec, Mixer, MlpSpec, NormKind, NormOrder,
    NormPlaces, NormSpec, QueryKeyNorm, RopePlanes, RopeScaling, RopeSpec, TensorSpelling,
};

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
    /// One type for every matrix.
    All(TensorType),
}

/// The types that all matrices of a model can have, each with llama.cpp's number for files that are mostly of it.
const TYPES: [(TensorType, u32); 18] = [
    (TensorType::F32, 0),
    (TensorType::F16, 1),
    (TensorType::BF16, 32),
    (TensorType::Q4_0, 2),
    (TensorType::Q4_1, 3),
    (TensorType::Q5_0, 8),
    (TensorType::Q5_1, 9),
    (TensorType::Q8_0, 7),
    (TensorType::Q2_K, 10),
    (TensorType::Q3_K, 12),
    (TensorType::Q4_K, 15),
    (TensorType::Q5_K, 17),
    (TensorType::Q6_K, 18),
    (TensorType::IQ4_NL, 25),
    (TensorType::IQ4_XS, 30),
    (TensorType::MXFP4, 38),
    (TensorType::TQ1_0, 36),
    (TensorType::TQ2_0, 37),
];

/// The widths of a Qwen3.
struct Qwen3 {
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    intermediate: usize,
}

impl Qwen3 {
    /// The spec with a vocabulary, a head that is the embedding or not, and a longest sequence.
    fn spec(&self, (vocab, tied_head, max_positions): (usize, bool, usize)) -> DecoderSpec {
        let layer = LayerSpec {
            mixer: Mixer::Attention(AttentionSpec {
                norm: QueryKeyNorm::Heads(NormOrder::BeforeRotation),
                ..AttentionSpec::plain(self.heads, self.kv_heads, self.head_dim)
            }),
            feed_forward: FeedForward::Gated(MlpSpec {
                intermediate: self.intermediate,
                bias: false,
                activation: Activation::Silu,
            }),
            norms: NormPlaces::Before,
        };
        DecoderSpec {
            hidden: self.hidden,
            vocab,
            layers: vec![layer; self.layers],
            // A GGUF file stores this value as f32.
            norm: NormSpec { kind: NormKind::Rms, eps: f64::from(1e-6_f32) },
            ropes: vec![RopeSpec {
                planes: RopePlanes::Halves,
                width: self.head_dim,
                theta: 1e6,
                scaling: RopeScaling::None,
                axes: Vec::new(),
            }],
            tied_head,
            head_bias: false,
            factors: Factors::default(),
            streams: None,
            matrix_factors: Vec::new(),
            logit_softcap: None,
            whole_images: false,
            max_positions,
            spelling: TensorSpelling::gguf(),
        }
    }
}

impl Synthetic {
    /// The names of all shapes. A type behind a name is that of all matrices: `qwen3-tiny-q5_1`.
    pub const SHAPES: [&'static str; 7] =
        ["qwen3-0.6b", "qwen3-tiny", "qwen3-small", "qwen3-4b", "qwen3moe-tiny", "qwen3moe-small", "qwen3moe-30b-a3b"];

    /// The types that can be behind a shape's name, as they are written there.
    pub fn types() -> impl Iterator<Item = String> {
        TYPES.iter().map(|(kind, _)| kind.name().to_lowercase())
    }

    /// The shape of this name, in the mix of Q4_K_M or in the type behind the name.
    pub fn of(name: &str) -> Option<Self> {
        let of_type = |(kind, _): &(TensorType, u32)| {
            let shape = name.strip_suffix(&kind.name().to_lowercase())?.strip_suffix('-')?;
            Some((shape, Mix::All(*kind)))
        };
        let (name, stored) = TYPES.iter().find_map(of_type).unwrap_or((name, Mix::Q4KM));
        let qwen3 = Qwen3 { layers: 28, hidden: 1_024, heads: 16, kv_heads: 8, head_dim: 128, intermediate: 3_072 };
        // Small shapes have a separate head. With the embedding as head, a shallow model of random weights repeats its
        // input.
        let (large, small) = ((151_936, true, 40_960), (1_024, false, 4_096));
        let experts =
            |mixture: Mixture, shape: Qwen3, ends| Some(Self { spec: mixture.in_each_layer(shape.spec(ends)), stored });
        // The widths of Qwen3-30B-A3B.
        let a3b = Qwen3 { layers: 48, hidden: 2_048, heads: 32, kv_heads: 4, intermediate: 6_144, ..qwen3 };
        let of_a3b = Mixture { count: 128, used: 8, intermediate: 768 };
        let (shape, ends) = match name {
            "qwen3moe-30b-a3b" => return experts(of_a3b, a3b, (151_936, false, 40_960)),
            "qwen3moe-small" => return experts(of_a3b, Qwen3 { layers: 10, ..a3b }, small),
            "qwen3moe-tiny" => {
                let shape = Qwen3 { layers: 4, hidden: 256, heads: 4, kv_heads: 2, head_dim: 64, intermediate: 768 };
                return experts(Mixture { count: 16, used: 4, intermediate: 256 }, shape, small);
            }
            "qwen3-0.6b" => (qwen3, large),
            "qwen3-4b" => (Qwen3 { layers: 36, hidden: 2_560, heads: 32, intermediate: 9_728, ..qwen3 }, large),
            "qwen3-tiny" => {
                let shape = Qwen3 { layers: 4, hidden: 256, heads: 4, kv_heads: 2, head_dim: 64, intermediate: 768 };
                (shape, small)
            }
            // This shape is mostly layers: the part that can be streamed is much larger than the part that has to stay.
            "qwen3-small" => {
                let shape = Qwen3 { layers: 24, hidden: 512, heads: 8, kv_heads: 2, head_dim: 64, intermediate: 1_536 };
                (shape, small)
            }
            _ => return None,
        };
        Some(Self { spec: shape.spec(ends), stored })
    }

    /// Rows of the embedding. The vocabulary must have as many tokens.
    pub fn vocabulary(&self) -> usize {
        self.spec.vocab
    }

    /// Writes the file: `header` with the model's metadata, and all tensors.
    pub fn write(&self, seed: u64, mut header: HeaderWriter, out: impl Write) -> Result<(), ConvertError> {
        if self.has_experts() {
            gguf_keys::write_experts(&self.spec, &mut header)?;
        } else {
            gguf_keys::write(&self.spec, &mut header)?;
        }
        // Files of one type and of the mix with its medium size have the same number.
        let most = match self.stored {
            Mix::Q4KM => TensorType::Q4_K,
            Mix::All(kind) => kind,
        };
        let number = TYPES.iter().find(|(kind, _)| *kind == most).map_or(0, |(_, number)| *number);
        header.set("general.file_type", &number)?;
        header.set("general.quantization_version", &2_u32)?;
        let shape = self.spec.embedding_shape();
        let ends = [Some(EMBEDDING), (!self.spec.tied_head).then_some(HEAD)];
        let ends = ends.into_iter().flatten().map(|name| Needed { name: name.to_owned(), shape: shape.clone() });
        let tensors = synthetic_experts::stacked(&self.spec, ends.chain(self.spec.needed()));
        let names = synthetic_experts::names();
        for tensor in &tensors {
            let shape: Vec<u64> = tensor.shape.iter().map(|length| *length as u64).collect();
            header.tensor(&names.name(tensor), self.kind(tensor), &shape)?;
        }
        let mut body = header.begin(out)?;
        let mut random = Random(seed);
        for tensor in &tensors {
            let kind = self.kind(tensor);
            let [rows, depth] = match *tensor.shape.as_slice() {
                _ if self.has_experts() && synthetic_experts::is_of_trace(tensor) => {
                    body.write(&synthetic_experts::draw(tensor, &mut random))?;
                    continue;
                }
                [rows, depth] => [rows as u64, depth as u64],
                [experts, rows, depth] => [(experts * rows) as u64, depth as u64],
                // The remaining tensors are norms.
                _ => {
                    let ones = tensor.shape.iter().product();
                    body.write(&1.0_f32.to_le_bytes().repeat(ones))?;
                    continue;
                }
            };
            // With this spread a product has values of the size of its inputs, as at the beginning of training.
            let factor = if self.has_experts() { synthetic_experts::spread(tensor) } else { 1.0 };
            let spread = factor / (depth as f32).sqrt();
            for first in (0..rows).step_by(ROWS as usize) {
                let blocks = ROWS.min(rows - first) * depth / kind.block_len();
                body.write(&draw(kind, blocks, spread, &mut random))?;
            }
        }
        body.finish()?;
        Ok(())
    }

    fn has_experts(&self) -> bool {
        self.spec.layers.iter().any(|layer| matches!(layer.feed_forward, FeedForward::Experts(_)))
    }

    /// The type of a tensor, by the rules of llama.cpp's `llama-quantize … Q4_K_M`.
    fn kind(&self, tensor: &Needed) -> TensorType {
        let layers = self.spec.layers.len();
        let more_bits = |layer: usize| {
            let eighth = layers / 8;
            layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
        };
        let layer = tensor.name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
        match (tensor.name.as_str(), layer) {
            _ if tensor.shape.len() == 1 || synthetic_experts::is_router(tensor) => TensorType::F32,
            (EMBEDDING, _) if self.has_experts() => TensorType::F16,
            _ if let Mix::All(kind) = self.stored => kind,
            (HEAD, _) => TensorType::Q6_K,
            (EMBEDDING, _) if self.spec.tied_head => TensorType::Q6_K,
            (name, Some(layer)) if (name.contains("v_proj") || name.contains("down_proj")) && more_bits(layer) => {
                TensorType::Q6_K
            }
            _ => TensorType::Q4_K,
        }
    }
}

/// The standard deviation of whole numbers below n is n / √12.
const SQRT_12: f32 = 3.464_101_6;

/// Random blocks whose elements have a mean of zero and about this standard deviation.
fn draw(kind: TensorType, blocks: u64, spread: f32, random: &mut Random) -> Vec<u8> {
    if let TensorType::F32 | TensorType::F16 | TensorType::BF16 = kind {
        let values = (0..blocks).map(|_| {
            let uniform = (random.next() >> 40) as f32 / (1 << 24) as f32 - 0.5;
            spread * SQRT_12 * uniform
        });
        return match kind {
            TensorType::F16 => values.flat_map(|value| f16::from_f32(value).to_le_bytes()).collect(),
            TensorType::BF16 => values.flat_map(|value| bf16::from_f32(value).to_le_bytes()).collect(),
            _ => values.flat_map(f32::to_le_bytes).collect(),
        };
    }
    let mut stored = vec![0; (blocks * kind.block_bytes()) as usize];
    random.fill(&mut stored);
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
            TensorType::Q6_K => {
                // Q6_K: scales from 8 to 15 with either sign.
                for scale in &mut block[192..208] {
                    let size = 8 | *scale & 7;
                    *scale = if *scale & 8 == 0 { size } else { size.wrapping_neg() };
                }
                let d = spread * SQRT_12 / 64.0 / 12.0;
                block[208..210].copy_from_slice(&f16::from_f32(d).to_le_bytes());
            }
            // The fourth value of two bits is none of the ternary ones; it becomes the middle one.
            TensorType::TQ2_0 => block.iter_mut().for_each(|byte| *byte &= !(*byte << 1 & 0xaa)),
            _ => {}
        }
    }
    if !matches!(kind, TensorType::Q4_K | TensorType::Q8_0 | TensorType::Q6_K) {
        rescale(kind, &mut stored, spread);
    }
    stored
}

/// Gives random blocks the scales with which their elements have this standard deviation. It is measured.
fn rescale(kind: TensorType, stored: &mut [u8], spread: f32) {
    let block = kind.block_bytes() as usize;
    let few = (1 << 14) / kind.block_len() as usize;
    for block in stored.chunks_exact_mut(block) {
        put_scales(kind, block, 1.0);
    }
    let few = &stored[..stored.len().min(few * block)];
    let mut values = vec![0.0; few.len() / block * kind.block_len() as usize];
    // A type without plain code has no model either, and its blocks keep the scale 1.
    if dequantise(kind, few, &mut values).is_err() {
        return;
    }
    let squares: f32 = values.iter().map(|value| value * value).sum();
    let measured = (squares / values.len().max(1) as f32).sqrt();
    for block in stored.chunks_exact_mut(block) {
        put_scales(kind, block, spread / measured);
    }
}

/// Sets the scales of a block, and its minimums so that the mean is about zero.
fn put_scales(kind: TensorType, block: &mut [u8], d: f32) {
    if kind == TensorType::MXFP4 {
        // The scale is a power of two; the exponent 128 stands for 1.
        block[0] = (128.0 + d.log2().round()).clamp(0.0, 254.0) as u8;
        return;
    }
    // Places of f16 in the block. A minimum is subtracted in some types and added in others.
    let places: &[(usize, f32)] = match kind {
        TensorType::Q4_1 => &[(0, 1.0), (2, -7.5)],
        TensorType::Q5_1 => &[(0, 1.0), (2, -15.5)],
        TensorType::Q2_K => &[(80, 1.0), (82, 1.5)],
        TensorType::Q3_K => &[(108, 1.0)],
        TensorType::Q5_K => &[(0, 1.0), (2, 15.5)],
        TensorType::I8_AFFINE => &[(0, 1.0), (2, 1.0), (4, 0.001)],
        TensorType::TQ1_0 => &[(52, 1.0)],
        TensorType::TQ2_0 => &[(64, 1.0)],
        _ => &[(0, 1.0)],
    };
    for (at, factor) in places {
        block[*at..*at + 2].copy_from_slice(&f16::from_f32(d * factor).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawn_blocks_have_the_spread_that_was_asked_for() {
        for (kind, _) in TYPES {
            let stored = draw(kind, 4_000, 0.05, &mut Random(7));
            let mut values = vec![0.0; 4_000 * kind.block_len() as usize];
            dequantise(kind, &stored, &mut values).unwrap();
            let count = values.len() as f64;
            let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
            let spread = (values.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count).sqrt();
            // The scales of MXFP4 are powers of two.
            let wide = if kind == TensorType::MXFP4 { 0.034..0.072 } else { 0.045..0.056 };
            assert!(mean.abs() < 0.01 && wide.contains(&spread), "{kind}: {mean} {spread}");
        }
    }

    #[test]
    fn half_of_the_layers_have_more_bits_where_it_matters() {
        let model = Synthetic::of("qwen3-0.6b").unwrap();
        let six = |part: &str| {
            let of_layer =
                |layer| Needed { name: crate::spec::part_names::layer(layer, part), shape: vec![1_024, 1_024] };
            (0..28).filter(|layer| model.kind(&of_layer(*layer)) == TensorType::Q6_K).collect::<Vec<_>>()
        };
        let expected = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27];
        assert_eq!(six("self_attn.v_proj.weight"), expected);
        assert_eq!(six("mlp.down_proj.weight"), expected);
        assert!(six("mlp.up_proj.weight").is_empty());
    }

    #[test]
    fn a_type_behind_the_name_is_that_of_all_matrices() {
        for name in Synthetic::types() {
            let model = Synthetic::of(&format!("qwen3-tiny-{name}")).unwrap();
            let Mix::All(kind) = model.stored else { panic!("{name}") };
            assert_eq!(kind.name().to_lowercase(), name);
            assert_eq!(model.spec, Synthetic::of("qwen3-tiny").unwrap().spec);
        }
        assert!(Synthetic::of("qwen3-tiny-q9_0").is_none() && Synthetic::of("q8_0").is_none());
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

    #[test]
    fn a_file_with_experts_is_the_model_that_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        let model = Synthetic::of("qwen3moe-tiny").unwrap();
        model.write(1, HeaderWriter::new(), std::fs::File::create(&path).unwrap()).unwrap();
        let file = model_boss_weights::gguf::GgufModel::open(&path).unwrap();
        let spec = DecoderSpec::from_gguf(&file).unwrap();
        // The experts of a file have their own names.
        assert_eq!(DecoderSpec { spelling: TensorSpelling::gguf(), ..spec }, model.spec);
        assert_eq!(file.get("blk.3.ffn_down_exps.weight").unwrap().shape, [16, 256, 256]);
    }
}
