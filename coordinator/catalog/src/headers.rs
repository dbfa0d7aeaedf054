//! The memory that a model will need, from the headers of its files (RC-20). The module reads the beginning of each
//! file piece by piece and never maps a file. A file that shrinks or grows meanwhile must not end the coordinator.

use std::collections::BTreeMap;
use std::path::Path;

use model_boss_host::plain_file::{CONFIG, open, text_beside_weights};
use model_boss_protocol::{ByteCount, ENCODER_TYPES, GGUF_ENCODERS, KvCacheType};
use model_boss_weights::gguf::{HeaderFault, Outline, OutlineError, TensorInfo, TensorType};
use model_boss_weights::quantised::bytes_in_blocks;
use model_boss_weights::{Dtype, HeaderBudget, outline_safetensors};
use serde::Deserialize;

use super::files::ModelFile;

/// The most layers of a model: a tensor's name may claim any number.
const MOST_LAYERS: usize = 1 << 16;
/// Rows that a step of a long prompt processes at once.
const ROWS: u64 = 512;
/// Values, in units of the model's width, that such a row needs at the same time. They are its input, queries, keys,
/// values, the output of attention and the two halves of the feed-forward part. That part is about four times as wide.
const ROW_VALUES: u64 = 16;

/// Facts of the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeaderFacts {
    /// The size of all tensors.
    pub(super) weights: ByteCount,
    pub(super) layers: LayerFacts,
    pub(super) shape: ModelShape,
    /// The type that the candle decoder keeps keys and values in unless another is chosen.
    pub(super) own_type: KvCacheType,
}

/// The sizes of layers, which may be streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LayerFacts {
    /// All layers together.
    pub(super) bytes: ByteCount,
    /// The largest layer.
    pub(super) largest: ByteCount,
}

/// The dimensions that determine the size of keys, values and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "ShapeFields")]
pub(super) struct ModelShape {
    num_hidden_layers: u64,
    num_attention_heads: u64,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    /// The widths of the latent vector and of the rotated key that are kept in place of keys and values.
    kv_lora_rank: Option<u64>,
    qk_rope_head_dim: Option<u64>,
    hidden_size: u64,
    pub(super) max_position_embeddings: Option<u64>,
    /// Whether it is an encoder, which keeps no keys and values.
    pub(super) encoder: bool,
}

/// The dimensions as `config.json` has them: some encoders have other names for them, or both.
#[derive(Deserialize)]
struct ShapeFields {
    model_type: Option<String>,
    num_hidden_layers: Option<u64>,
    n_layers: Option<u64>,
    n_layer: Option<u64>,
    num_attention_heads: Option<u64>,
    n_heads: Option<u64>,
    n_head: Option<u64>,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    kv_lora_rank: Option<u64>,
    qk_rope_head_dim: Option<u64>,
    hidden_size: Option<u64>,
    dim: Option<u64>,
    n_embd: Option<u64>,
    max_position_embeddings: Option<u64>,
    n_positions: Option<u64>,
}

/// A dimension is missing.
#[derive(Debug, thiserror::Error)]
#[error("config.json lacks {0}")]
struct NoDimension(&'static str);

impl TryFrom<ShapeFields> for ModelShape {
    type Error = NoDimension;

    fn try_from(fields: ShapeFields) -> Result<Self, NoDimension> {
        let layers = fields.num_hidden_layers.or(fields.n_layers).or(fields.n_layer);
        let heads = fields.num_attention_heads.or(fields.n_heads).or(fields.n_head);
        let hidden = fields.hidden_size.or(fields.dim).or(fields.n_embd);
        Ok(Self {
            num_hidden_layers: layers.ok_or(NoDimension("num_hidden_layers"))?,
            num_attention_heads: heads.ok_or(NoDimension("num_attention_heads"))?,
            num_key_value_heads: fields.num_key_value_heads,
            head_dim: fields.head_dim,
            kv_lora_rank: fields.kv_lora_rank,
            qk_rope_head_dim: fields.qk_rope_head_dim,
            hidden_size: hidden.ok_or(NoDimension("hidden_size"))?,
            max_position_embeddings: fields.max_position_embeddings.or(fields.n_positions),
            encoder: fields.model_type.is_some_and(|kind| ENCODER_TYPES.contains(&kind.as_str())),
        })
    }
}

/// A configuration whose shape is in its part for text.
#[derive(Deserialize)]
struct ConfigParts {
    text_config: ModelShape,
}

impl HeaderFacts {
    /// The size of all tensors by the headers alone.
    pub(super) fn weights_of(files: &[ModelFile]) -> Option<ByteCount> {
        let (mut budget, mut ignored) = (HeaderBudget::default(), LayerSizes::default());
        let mut weights = files.iter().filter(|file| file.is_weights() && !file.is_gguf()).peekable();
        weights.peek()?;
        let size = |file: &ModelFile| of_safetensors(file.path(), &mut budget, &mut ignored).ok();
        let sizes: Option<Vec<TensorFacts>> = weights.map(size).collect();
        Some(ByteCount(sizes?.into_iter().fold(0, |all, (bytes, _)| all.saturating_add(bytes))))
    }

    /// The same of any weight files, and whether a matrix is stored in fewer bits than f32.
    pub(super) fn weights_and_width(files: &[ModelFile]) -> Option<(ByteCount, bool)> {
        let (mut budget, mut layers, mut bytes) = (HeaderBudget::default(), LayerSizes::default(), 0_u64);
        let mut weights = files.iter().filter(|file| file.is_weights()).peekable();
        weights.peek()?;
        for file in weights {
            let facts = match file.is_gguf() {
                true => of_gguf(file.path(), &mut budget, &mut layers),
                false => of_safetensors(file.path(), &mut budget, &mut layers),
            };
            bytes = bytes.saturating_add(facts.ok()?.0);
        }
        Some((ByteCount(bytes), layers.narrow))
    }

    /// Reads the headers. `None` where they lack a fact, or cannot be read.
    pub(super) fn read(source: &Path, files: &[ModelFile]) -> Option<Self> {
        let weights: Vec<&ModelFile> = files.iter().filter(|file| file.is_weights()).collect();
        let (mut bytes, mut shape, mut layers) = (0_u64, ModelShape::beside(source), LayerSizes::default());
        let mut budget = HeaderBudget::default();
        for file in &weights {
            let facts = if file.is_gguf() {
                of_gguf(file.path(), &mut budget, &mut layers)
            } else {
                of_safetensors(file.path(), &mut budget, &mut layers)
            };
            let (of_file, said) = facts.ok()?;
            bytes = bytes.saturating_add(of_file);
            shape = shape.or(said);
        }
        if layers.bytes.len() > MOST_LAYERS {
            return None;
        }
        let shape = shape.filter(|_| !weights.is_empty())?;
        // The layers of an encoder are never streamed.
        let sizes = || layers.bytes.values().copied().filter(|_| !shape.encoder);
        let facts = LayerFacts {
            bytes: ByteCount(sizes().fold(0, u64::saturating_add).min(bytes)),
            largest: ByteCount(sizes().max().unwrap_or(0)),
        };
        let own_type = if layers.narrow { KvCacheType::F16 } else { KvCacheType::F32 };
        Some(Self { weights: ByteCount(bytes), layers: facts, shape, own_type })
    }
}

impl ModelShape {
    /// The shape from a `config.json` beside the weights.
    pub(super) fn beside(source: &Path) -> Option<Self> {
        let folder = if source.is_dir() { Some(source) } else { source.parent() };
        let text = text_beside_weights(&folder?.join("config.json"), CONFIG)?;
        // The text of a model for several kinds of input is one of its parts.
        serde_json::from_str(&text).ok().or_else(|| {
            let parts: ConfigParts = serde_json::from_str(&text).ok()?;
            Some(parts.text_config)
        })
    }

    /// The bytes of keys and values of one position of one sequence, kept in this type; 0 for `auto`.
    pub(super) fn cached_bytes(&self, kept: KvCacheType) -> u64 {
        let heads = self.num_key_value_heads.unwrap_or(self.num_attention_heads);
        let wide = || self.hidden_size.checked_div(self.num_attention_heads).unwrap_or(0);
        let head_dim = self.head_dim.unwrap_or_else(wide);
        if let Some(rank) = self.kv_lora_rank {
            let vector = rank.saturating_add(self.qk_rope_head_dim.unwrap_or(0));
            return self.num_hidden_layers.saturating_mul(kept.bytes_of(vector).unwrap_or(0));
        }
        let of_head = kept.bytes_of(head_dim).unwrap_or(0);
        [2, self.num_hidden_layers, heads, of_head].into_iter().fold(1, u64::saturating_mul)
    }

    /// The size of activations in f32 for a step of a long prompt, beside weights, keys and values.
    pub(super) fn activations(&self) -> ByteCount {
        let factors = [ROWS, ROW_VALUES, self.hidden_size, size_of::<f32>() as u64];
        ByteCount(factors.into_iter().fold(1, u64::saturating_mul))
    }

    /// The shape from the keys of a GGUF file, whose names begin with the architecture.
    fn of_gguf(outline: &Outline) -> Option<Self> {
        let architecture = outline.text("general.architecture")?;
        let number = |key: &str| outline.number(&format!("{architecture}.{key}"));
        Some(Self {
            num_hidden_layers: number("block_count")?,
            num_attention_heads: number("attention.head_count")?,
            encoder: GGUF_ENCODERS.contains(&architecture),
            num_key_value_heads: number("attention.head_count_kv"),
            head_dim: number("attention.key_length"),
            kv_lora_rank: number("attention.kv_lora_rank"),
            qk_rope_head_dim: number("rope.dimension_count"),
            hidden_size: number("embedding_length")?,
            max_position_embeddings: number("context_length"),
        })
    }
}

/// Sizes of layers, collected from the tensors of one or more files.
#[derive(Default)]
struct LayerSizes {
    /// The size of each layer in bytes, by its number. Parts of a split model may share a layer.
    bytes: BTreeMap<u64, u64>,
    /// Whether any matrix is stored in fewer bits than f32: the candle decoder then keeps keys and values in 16 bits.
    narrow: bool,
}

impl LayerSizes {
    /// Adds a tensor if it is a layer's, by the names of GGUF and of safetensors.
    fn add(&mut self, tensor: &str, bytes: u64) {
        const PREFIXES: [&str; 5] = [
            "blk.",
            "model.layers.",
            "model.language_model.layers.",
            "language_model.model.layers.",
            "model.text_model.layers.",
        ];
        let rest = PREFIXES.iter().find_map(|prefix| tensor.strip_prefix(prefix));
        if let Some(layer) = rest.and_then(|rest| rest.split('.').next()?.parse().ok()) {
            self.add_to(layer, bytes);
        }
    }

    fn add_to(&mut self, layer: u64, bytes: u64) {
        // One layer over the limit is kept, so that the excess shows.
        if self.bytes.len() <= MOST_LAYERS {
            let of_layer = self.bytes.entry(layer).or_insert(0_u64);
            *of_layer = of_layer.saturating_add(bytes);
        }
    }
}

/// The size of the tensors in bytes, and the shape if the file states it.
type TensorFacts = (u64, Option<ModelShape>);

/// The file cannot be read, or its header is implausible.
struct Unknown;

fn of_gguf(path: &Path, budget: &mut HeaderBudget, layers: &mut LayerSizes) -> Result<TensorFacts, Unknown> {
    let mut bytes = 0_u64;
    let outline = gguf_outline(path, budget, |tensor| {
        layers.add(tensor.name, tensor.bytes);
        layers.narrow |= tensor.shape().len() > 1 && tensor.kind != TensorType::F32;
        bytes = bytes.saturating_add(tensor.bytes);
    });
    let outline = outline.map_err(|_| Unknown)?;
    Ok((bytes, ModelShape::of_gguf(&outline)))
}

/// Reads the header of a GGUF file; `each` is called with its tensors. The error is the header's fault, or `None` where
/// the file could not be read.
pub(super) fn gguf_outline(
    path: &Path,
    budget: &mut HeaderBudget,
    each: impl FnMut(&TensorInfo<'_>),
) -> Result<Outline, Option<HeaderFault>> {
    let file = open(path).map_err(|_| None)?;
    let about = file.metadata().map_err(|_| None)?;
    if !about.is_file() {
        return Err(None);
    }
    Outline::read(file, about.len(), budget, each).map_err(|error| match error {
        OutlineError::Header(error) => Some(error.fault),
        OutlineError::Read(_) | OutlineError::Budget(_) => None,
    })
}

fn of_safetensors(path: &Path, budget: &mut HeaderBudget, layers: &mut LayerSizes) -> Result<TensorFacts, Unknown> {
    let mut more = 0_u64;
    let data = outline_safetensors(path, budget, |tensor| {
        let bytes = bytes_in_blocks(tensor.name, tensor.dtype, tensor.bytes);
        more = more.saturating_add(bytes.saturating_sub(tensor.bytes));
        layers.add(tensor.name, bytes);
        layers.narrow |= tensor.shape.len() > 1 && tensor.dtype != Some(Dtype::F32);
    });
    Ok((data.map_err(|_| Unknown)?.saturating_add(more), None))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use model_boss_weights::gguf::HeaderWriter;

    use super::super::files::model_files;
    use super::*;

    fn safetensors(path: &Path, data: usize) {
        let header = format!(r#"{{"w":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{data}]}}}}"#, data / 4);
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        std::fs::write(path, bytes).unwrap();
    }

    fn gguf(path: &Path, vocabulary: usize) {
        gguf_of(path, "llama", vocabulary);
    }

    fn gguf_of(path: &Path, architecture: &str, vocabulary: usize) {
        let mut writer = HeaderWriter::new();
        writer.set("general.architecture", architecture).unwrap();
        for (key, value) in [
            ("block_count", 2_u32),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("embedding_length", 64),
            ("context_length", 100),
        ] {
            writer.set(&format!("{architecture}.{key}"), &value).unwrap();
        }
        let tokens: Vec<String> = (0..vocabulary).map(|n| format!("token number {n}")).collect();
        writer.set("tokenizer.ggml.tokens", tokens.as_slice()).unwrap();
        writer.tensor("output.weight", TensorType::F32, &[8, 32]).unwrap();
        writer.tensor("blk.0.a.weight", TensorType::F32, &[8]).unwrap();
        writer.tensor("blk.1.a.weight", TensorType::F32, &[16]).unwrap();
        let mut body = writer.begin(std::fs::File::create(path).unwrap()).unwrap();
        body.write(&[0; 8 * 32 * 4]).unwrap();
        body.write(&[0; 8 * 4]).unwrap();
        body.write(&[0; 16 * 4]).unwrap();
        body.finish().unwrap().flush().unwrap();
    }

    #[test]
    fn rc_20_tensors_and_shape_are_read_from_headers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        safetensors(&path, 4_000);
        assert_eq!(HeaderFacts::read(folder.path(), &model_files(folder.path())), None);
        let config = r#"{"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"hidden_size":64}"#;
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let facts = HeaderFacts::read(folder.path(), &model_files(folder.path())).unwrap();
        assert_eq!(facts.weights, ByteCount(4_000));
        // Keys and values × layers × heads × 64 / 4 wide.
        assert_eq!(facts.shape.cached_bytes(KvCacheType::F16), 2 * 2 * 2 * 16 * 2);
        assert_eq!(facts.shape.activations(), ByteCount(512 * 16 * 64 * 4));
    }

    #[test]
    fn rc_20_encoders_have_other_names_for_their_dimensions_and_are_never_streamed() {
        let folder = tempfile::tempdir().unwrap();
        safetensors(&folder.path().join("model.safetensors"), 4_000);
        for config in [
            r#"{"model_type":"nomic_bert","n_layer":2,"n_head":4,"n_embd":64,"n_positions":128}"#,
            r#"{"model_type":"nomic_bert","n_layer":2,"n_head":4,"n_embd":64,"hidden_size":64,"num_hidden_layers":2,
                "num_attention_heads":4,"max_position_embeddings":128}"#,
        ] {
            std::fs::write(folder.path().join("config.json"), config).unwrap();
            let shape = HeaderFacts::read(folder.path(), &model_files(folder.path())).unwrap().shape;
            assert!(shape.encoder && shape.max_position_embeddings == Some(128), "{config}");
        }
        let path = folder.path().join("model.gguf");
        gguf_of(&path, "bert", 10);
        let facts = HeaderFacts::read(&path, &model_files(&path)).unwrap();
        assert!(facts.shape.encoder && facts.layers == LayerFacts::default(), "{facts:?}");
        assert_eq!(facts.weights, ByteCount(1_120));
    }

    #[test]
    fn rc_20_a_latent_vector_is_kept_once_for_all_heads_and_a_text_is_a_part_of_a_model() {
        let folder = tempfile::tempdir().unwrap();
        safetensors(&folder.path().join("model.safetensors"), 4_000);
        let cached = |config: &str| {
            std::fs::write(folder.path().join("config.json"), config).unwrap();
            let facts = HeaderFacts::read(folder.path(), &model_files(folder.path())).unwrap();
            facts.shape.cached_bytes(KvCacheType::F16)
        };
        let shape = r#""num_hidden_layers":3,"num_attention_heads":16,"hidden_size":64"#;
        assert_eq!(cached(&format!(r#"{{{shape},"kv_lora_rank":512,"qk_rope_head_dim":64}}"#)), 3 * 576 * 2);
        assert_eq!(cached(&format!(r#"{{"model_type":"gemma3","text_config":{{{shape}}}}}"#)), 2 * 3 * 16 * 4 * 2);
    }

    #[test]
    fn rc_20_keys_and_values_are_kept_in_16_bits_unless_all_matrices_are_f32() {
        let folder = tempfile::tempdir().unwrap();
        let config = r#"{"num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64}"#;
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let (wide, narrow) = (KvCacheType::F32, KvCacheType::F16);
        for (dtypes, kept) in [(["F32", "F32"], wide), (["F32", "BF16"], narrow), (["F16", "F16"], narrow)] {
            let [first, second] = dtypes;
            let header = format!(
                r#"{{"norm":{{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}},
                    "a":{{"dtype":"{first}","shape":[1,1],"data_offsets":[4,8]}},
                    "b":{{"dtype":"{second}","shape":[1,1],"data_offsets":[8,12]}}}}"#
            );
            let mut file = (header.len() as u64).to_le_bytes().to_vec();
            file.extend(header.as_bytes());
            file.extend([0; 12]);
            std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
            let facts = HeaderFacts::read(folder.path(), &model_files(folder.path())).unwrap();
            assert_eq!(facts.own_type, kept, "{dtypes:?}");
        }
    }

    #[test]
    fn rc_20_a_gguf_file_tells_it_alone_however_long_its_vocabulary() {
        let folder = tempfile::tempdir().unwrap();
        for vocabulary in [10, 100_000] {
            let path = folder.path().join("model.gguf");
            gguf(&path, vocabulary);
            let facts = HeaderFacts::read(&path, &model_files(&path)).unwrap();
            assert_eq!(
                (facts.weights, facts.shape.cached_bytes(KvCacheType::Q8_0)),
                (ByteCount(1_120), 2 * 2 * 2 * 18)
            );
            assert_eq!(facts.layers, LayerFacts { bytes: ByteCount(96), largest: ByteCount(64) });
            // The only matrix is f32, so keys and values are f32 too.
            assert_eq!(facts.own_type, KvCacheType::F32);
            assert_eq!(facts.shape.max_position_embeddings, Some(100));
        }
    }

    #[test]
    fn files_that_lie_or_end_early_tell_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        gguf(&path, 10);
        let whole = std::fs::read(&path).unwrap();
        for length in [0, 3, 24, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(HeaderFacts::read(&path, &model_files(&path)), None, "{length} bytes");
        }
        let path = folder.path().join("model.safetensors");
        for bytes in [b"".to_vec(), b"\xff\xff\xff\xff\xff\xff\xff\x7f{}".to_vec(), b"\x02\0\0\0\0\0\0\0[]".to_vec()] {
            std::fs::write(&path, &bytes).unwrap();
            assert!(
                of_safetensors(&path, &mut HeaderBudget::default(), &mut LayerSizes::default()).is_err(),
                "{bytes:?}"
            );
        }
    }
}
