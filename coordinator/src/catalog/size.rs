//! How much memory a model will need (RC-20), as far as manifest, headers, file sizes and name tell.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use model_boss_core::{SizeEstimate, SizeRule, Streaming};
use model_boss_protocol::{Backend, ByteCount, Manifest, ResidencyMode};

use super::DEFAULT_CONCURRENCY;
use super::folders::Folders;
use super::headers::{HeaderFacts, LayerFacts, Shape};

/// Code and buffers of a worker. What its context takes of each GPU comes on top where it is placed on one.
const PROCESS: ByteCount = ByteCount::mib(64);
/// Keys and values when nothing tells the shape of the model.
const UNKNOWN_CACHE: ByteCount = ByteCount::mib(256);
/// The context assumed when the manifest does not say and the model allows it.
const USUAL_CONTEXT: u64 = 4096;
/// Folders within folders that are looked into, and files that are counted: a link back to the root must not hang us.
const MAX_DEPTH: u32 = 8;
const MAX_FILES: usize = 10_000;

/// What a model's files end in: the weights, and the small ones beside them that a worker reads.
const WEIGHTS: &[&str] = &["safetensors", "gguf"];
const BESIDE_WEIGHTS: &[&str] = &["json", "jinja", "model"];

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelFile {
    path: PathBuf,
    bytes: u64,
    /// Nanoseconds since 1970.
    modified: u128,
}

impl ModelFile {
    /// Where it is, links as they are.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_weights(&self) -> bool {
        has_extension(&self.path, WEIGHTS)
    }

    pub(super) fn is_gguf(&self) -> bool {
        has_extension(&self.path, &["gguf"])
    }
}

/// The files at `source`, which may be one file, or a folder that is searched recursively. Empty when it is missing. One
/// part of a model in parts brings the others.
pub(super) fn model_files(source: &Path) -> Vec<ModelFile> {
    model_files_in(source, &mut Folders::default())
}

/// The same with folders that may have been listed before.
pub(super) fn model_files_in(source: &Path, folders: &mut Folders) -> Vec<ModelFile> {
    let mut files = Vec::new();
    collect(source, 0, &mut files, folders);
    // Only a part of a model in parts has others beside it.
    let part = source.file_name().map(|name| name.to_string_lossy()).filter(|name| split_of(name).is_some());
    if let (Some(name), Some(folder), true) = (part, source.parent(), source.is_file())
        && let Ok(about) = std::fs::metadata(folder)
    {
        let is_other = |other: &Path| {
            let other = other.file_name().unwrap_or_default().to_string_lossy();
            other != name && same_split(&name, &other)
        };
        for other in folders.list(folder, &about, counts).entries.iter().filter(|path| is_other(path)) {
            collect(other, MAX_DEPTH, &mut files, folders);
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// Whether both are parts of one model: `name-00001-of-00003.gguf` and the like.
pub(super) fn same_split(a: &str, b: &str) -> bool {
    split_of(a).is_some_and(|a| split_of(b) == Some(a))
}

/// The model that a part belongs to, and how many parts there are.
fn split_of(name: &str) -> Option<(&str, &str)> {
    let (name, total) = name.rsplit_once("-of-")?;
    let (name, part) = name.rsplit_once('-')?;
    part.bytes().all(|byte| byte.is_ascii_digit()).then_some((name, total))
}

/// Whether a file belongs to a model.
pub(super) fn counts(path: &Path) -> bool {
    has_extension(path, WEIGHTS) || has_extension(path, BESIDE_WEIGHTS)
}

fn collect(path: &Path, depth: u32, files: &mut Vec<ModelFile>, folders: &mut Folders) {
    // Follows links: model caches are made of them.
    let Ok(about) = std::fs::metadata(path) else { return };
    if about.is_file() && counts(path) && files.len() < MAX_FILES {
        let modified = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        files.push(ModelFile {
            path: path.to_owned(),
            bytes: about.len(),
            modified: modified.map_or(0, |time| time.as_nanos()),
        });
    } else if about.is_dir() && depth < MAX_DEPTH {
        for entry in &folders.list(path, &about, counts).entries {
            collect(entry, depth + 1, files, folders);
        }
    }
}

/// The first rule that applies: what the manifest states; what was recorded of weights that are not there, on a disk that
/// is not mounted yet or a server that is away; weights, keys and values, activations and the process as the
/// headers tell them; file sizes (GGUF ×1.1, safetensors ×1.3); the name.
pub(super) fn estimate(manifest: &Manifest, source: &Path, files: &[ModelFile], backend: Backend) -> SizeEstimate {
    // Engines of others keep what they load, or have ways of their own.
    let may_stream = !backend.is_foreign() && manifest.residency != Some(ResidencyMode::Resident);
    let forced = may_stream && manifest.residency == Some(ResidencyMode::Stream);
    let stated = manifest.stated_size();
    if let (Some(bytes), false) = (stated, forced) {
        return SizeEstimate { bytes, rule: SizeRule::Manifest, streamed: None };
    }
    if let Some(HeaderFacts { weights, layers, shape, cached_value }) = HeaderFacts::read(source, files) {
        let beside = cache(manifest, &shape, backend, cached_value) + shape.activations() + PROCESS;
        let window = window(manifest, &layers);
        let whole = weights + beside;
        let least = ((weights - layers.bytes) + window + beside).min(whole);
        // The buffers that layers are read into on their way to another device are as large as their places there.
        let streaming = Streaming { whole, least, layers: layers.bytes, ring: window };
        let (bytes, rule) = match stated {
            Some(bytes) => (bytes, SizeRule::Manifest),
            None => (if forced { least } else { whole }, SizeRule::Headers),
        };
        return SizeEstimate { bytes, rule, streamed: may_stream.then_some(streaming) };
    }
    if let Some(bytes) = stated {
        return SizeEstimate { bytes, rule: SizeRule::Manifest, streamed: None };
    }
    let weigh = |bytes: ByteCount, is_gguf: bool| bytes.scaled(if is_gguf { 1.1 } else { 1.3 });
    let recorded = manifest.source.as_ref().and_then(|source| source.bytes);
    let present: Vec<&ModelFile> = files.iter().filter(|file| file.is_weights()).collect();
    let (weights, rule) = match recorded {
        _ if !present.is_empty() => {
            let weights = present.iter().map(|file| weigh(ByteCount(file.bytes), file.is_gguf())).sum();
            (weights, SizeRule::FileSize)
        }
        Some(bytes) => (weigh(bytes, has_extension(source, &["gguf"])), SizeRule::Source),
        None => (by_name(manifest.name.as_str()), SizeRule::Name),
    };
    let cache = Shape::beside(source).map_or(UNKNOWN_CACHE, |shape| {
        // Sixteen bits are what models are published in.
        cache(manifest, &shape, backend, size_of::<u16>() as u64)
    });
    SizeEstimate { bytes: weights + cache + PROCESS, rule, streamed: None }
}

/// What layers come through if they come and go (RS-6): the block in use and those fetched ahead. A block is the fewest
/// layers that make 32 MiB, at most four.
fn window(manifest: &Manifest, layers: &LayerFacts) -> ByteCount {
    let fewest = ByteCount::mib(32).0.div_ceil(layers.largest.0.max(1)).clamp(1, 4);
    let block = manifest.block.map_or(fewest, u64::from);
    let slots = u64::from(manifest.window.unwrap_or(1)) + 1;
    // Reads are of whole pages.
    ByteCount((layers.largest + ByteCount::mib(1)).0.saturating_mul(block).saturating_mul(slots))
}

/// Tokens that our decoder takes memory for at once (`worker/candle`, `cpu_attention::SEGMENT`).
const KV_SEGMENT: u64 = 256;

/// Keys and values of every sequence at its full context: as wide as our decoder keeps them, and in 16 bits for engines of
/// others.
fn cache(manifest: &Manifest, shape: &Shape, backend: Backend, cached_value: u64) -> ByteCount {
    // A model that could read a book is rarely given one: without a stated context the estimate assumes a usual one.
    let usual = shape.max_position_embeddings.unwrap_or(USUAL_CONTEXT).min(USUAL_CONTEXT);
    let context = manifest.context_length.unwrap_or(usual);
    let sequences = u64::from(manifest.max_concurrent.unwrap_or(DEFAULT_CONCURRENCY));
    let value = if backend.is_foreign() { size_of::<u16>() as u64 } else { cached_value };
    // Our decoder's memory for them is given in pieces of so many tokens.
    let context = if backend.is_foreign() { context } else { context.next_multiple_of(KV_SEGMENT) };
    let factors = [value, shape.cached_values(), context, sequences];
    ByteCount(factors.into_iter().fold(1, u64::saturating_mul))
}

/// Weights as the name has them: `qwen3-0.6b`, `llama-7b-q4`, `mixtral-8x7b`. Nothing where it says nothing.
fn by_name(name: &str) -> ByteCount {
    let name = name.to_ascii_lowercase();
    let words = || name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
    let billions = |word: &str| -> Option<f64> {
        let number = word.strip_suffix('b')?;
        let (experts, each) = number.split_once('x').unwrap_or(("1", number));
        Some(experts.parse::<f64>().ok()? * each.parse::<f64>().ok()?).filter(|billions| *billions < 1e4)
    };
    let bits = |word: &str| match word {
        "q2" => Some(3.0),
        "q3" => Some(4.0),
        "q4" | "int4" | "4bit" => Some(4.9),
        "q5" => Some(5.7),
        "q6" => Some(6.6),
        "q8" | "int8" | "fp8" | "8bit" => Some(8.5),
        "f32" | "fp32" => Some(32.0),
        _ => None,
    };
    let Some(billions) = words().find_map(billions) else { return ByteCount::ZERO };
    // Sixteen bits are what models are published in.
    let bits = words().find_map(bits).unwrap_or(16.0);
    ByteCount((billions * 1e9 * bits / 8.0) as u64)
}

/// A number that changes when the manifest's text or a file of the model changes: FNV-1a over text, paths, sizes, times.
pub(super) fn revision(manifest: &str, files: &[ModelFile]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    add(manifest.as_bytes());
    for file in files {
        add(file.path.as_os_str().as_encoded_bytes());
        add(&file.bytes.to_le_bytes());
        add(&file.modified.to_le_bytes());
    }
    hash
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    path.extension().is_some_and(|found| extensions.iter().any(|extension| found.eq_ignore_ascii_case(extension)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_20_a_name_tells_billions_and_bits() {
        let gigabytes = |name: &str| (by_name(name).0 as f64 / 1e8).round() / 10.0;
        for (name, expected) in [
            ("llama-7b-q4", 4.3),
            ("Qwen3-0.6B", 1.2),
            ("mixtral-8x7b", 112.0),
            ("phi-3-q8_0-4b", 4.3),
            ("guide", 0.0),
            ("b", 0.0),
            ("1e9b", 0.0),
        ] {
            assert_eq!(gigabytes(name), expected, "{name}");
        }
    }
}
