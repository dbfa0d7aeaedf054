//! An estimate of the memory that a model will need (RC-20), from manifest, headers, file sizes and name.

use std::collections::BTreeMap;
use std::path::Path;

use model_boss_core::{SizeEstimate, SizeRule, Streaming};
use model_boss_protocol::{Backend, ByteCount, Category, KvCacheType, Manifest, ResidencyMode};

use super::adapters::AdapterSource;
use super::files::{ModelFile, has_extension};
use super::headers::{HeaderFacts, LayerFacts, ModelShape};
use super::{pipeline, speech_size};

/// Code and buffers of a worker. A worker's context on each GPU is added where it is placed on one.
const PROCESS: ByteCount = ByteCount::mib(64);

/// Keys and values of a model whose shape is unknown.
const UNKNOWN_CACHE: ByteCount = ByteCount::mib(256);

/// Rows of a batch of a vision model, and an image that is decoded. Its configuration may leave its shape out.
const VISION_BATCH: ByteCount = ByteCount::mib(192);

/// Activations of a model that speaks: pieces of sound, and the scores of a sentence.
const SPEECH_WORK: ByteCount = ByteCount::mib(128);

/// A program that speaks, beside its model's files: what small voices take.
const SPEECH_PROGRAM: ByteCount = ByteCount::mib(192);

/// The context in tokens that is assumed when the manifest states none and the model permits it.
const USUAL_CONTEXT: u64 = 4096;

/// The estimate by the first rule that applies:
/// - the size that the manifest states
/// - the recorded size of weights that are absent, on a disk that is not mounted yet or a server that is away
/// - weights, keys and values, activations and the process, from the headers
/// - file sizes (GGUF ×1.1, safetensors ×1.3)
/// - the name
pub(super) fn estimate(
    manifest: &Manifest,
    category: Category,
    source: &Path,
    files: &[ModelFile],
    backend: Backend,
) -> SizeEstimate {
    // External engines keep what they load, or stream in ways of their own.
    let may_stream = !backend.is_foreign() && manifest.residency != Some(ResidencyMode::Resident);
    let forced = may_stream && manifest.residency == Some(ResidencyMode::Stream);
    let stated = manifest.stated_size();
    if let (Some(bytes), false) = (stated, forced) {
        return SizeEstimate { bytes, rule: SizeRule::Manifest, streamed: None };
    }
    // Such a model keeps nothing of texts and images, and its layers always stay.
    if manifest.category() == Category::Vision
        && !backend.is_foreign()
        && stated.is_none()
        && let Some(weights) = HeaderFacts::weights_of(files)
    {
        return SizeEstimate { bytes: weights + VISION_BATCH + PROCESS, rule: SizeRule::Headers, streamed: None };
    }
    if category == Category::Tts && !backend.is_foreign() && stated.is_none() {
        if manifest.speech.is_some() {
            // A program that speaks is not asked; its files are what it reads.
            let read = source.metadata().ok().filter(std::fs::Metadata::is_file).map_or(0, |about| about.len());
            let bytes = ByteCount(read) + SPEECH_PROGRAM + PROCESS;
            return SizeEstimate { bytes, rule: SizeRule::FileSize, streamed: None };
        }
        if let Some(weights) = HeaderFacts::weights_of(files) {
            let beside = speech_size::of_speakers(source).unwrap_or(SPEECH_WORK);
            return SizeEstimate { bytes: weights + beside + PROCESS, rule: SizeRule::Headers, streamed: None };
        }
    }
    if category == Category::Diffusion
        && !backend.is_foreign()
        && stated.is_none()
        && let Some((weights, picture)) = pipeline::memory(source, files)
    {
        return SizeEstimate { bytes: weights + picture + PROCESS, rule: SizeRule::Headers, streamed: None };
    }
    if category == Category::Transcription
        && !backend.is_foreign()
        && stated.is_none()
        && let Some((weights, narrow)) = HeaderFacts::weights_and_width(files)
    {
        let windows = u64::from(manifest.max_concurrent.unwrap_or(DEFAULT_CONCURRENCY));
        let beside = speech_size::beside_weights(source, windows, narrow);
        return SizeEstimate { bytes: weights + beside + PROCESS, rule: SizeRule::Headers, streamed: None };
    }
    if let Some(HeaderFacts { weights, layers, shape, own_type }) = HeaderFacts::read(source, files) {
        let beside = cache((manifest, category), &shape, backend, own_type) + shape.activations() + PROCESS;
        let window = window(manifest, &layers);
        let whole = weights + beside;
        let least = ((weights - layers.bytes) + window + beside).min(whole);
        // The host buffers that streamed layers are read into are as large as their device slots.
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
    let cache = ModelShape::beside(source).map_or(UNKNOWN_CACHE, |shape| {
        // Models are usually published in sixteen bits.
        cache((manifest, category), &shape, backend, KvCacheType::F16)
    });
    SizeEstimate { bytes: weights + cache + PROCESS, rule, streamed: None }
}

/// The same with a model's adapters, which are f32 on the CPU whatever their files have. A size that the operator
/// stated is meant with them.
pub(super) fn beside(size: SizeEstimate, adapters: &BTreeMap<String, AdapterSource>) -> SizeEstimate {
    let stored: ByteCount = adapters.values().map(AdapterSource::bytes).sum();
    if size.rule == SizeRule::Manifest || stored == ByteCount::ZERO {
        return size;
    }
    let added = stored + stored;
    let streamed = size.streamed.map(|streaming| Streaming {
        whole: streaming.whole + added,
        least: streaming.least + added,
        ..streaming
    });
    SizeEstimate { bytes: size.bytes + added, streamed, ..size }
}

/// The memory of the slots that streamed layers pass through (RS-6): the block in use and those fetched ahead. A block
/// is the fewest layers that make 32 MiB, at most four.
fn window(manifest: &Manifest, layers: &LayerFacts) -> ByteCount {
    let fewest = ByteCount::mib(32).0.div_ceil(layers.largest.0.max(1)).clamp(1, 4);
    let block = manifest.block.map_or(fewest, u64::from);
    let slots = u64::from(manifest.window.unwrap_or(1)) + 1;
    // Reads are of whole pages.
    ByteCount((layers.largest + ByteCount::mib(1)).0.saturating_mul(block).saturating_mul(slots))
}

/// The tokens by which the candle decoder's keys and values grow (`worker/engine`, `BLOCK_TOKENS`).
const KV_BLOCK: u64 = 32;

/// Keys and values of every sequence at its full context, in the type that the manifest chooses. Without a choice it is
/// `own_type` for the candle decoder, and 16 bits for external engines.
fn cache(
    (manifest, category): (&Manifest, Category),
    shape: &ModelShape,
    backend: Backend,
    own_type: KvCacheType,
) -> ByteCount {
    // A model that gives vectors or scores keeps nothing of a text. A decoder among them has room for one, an encoder
    // for none.
    let keeps_nothing = !backend.is_foreign() && matches!(category, Category::Embedding | Category::Reranking);
    if keeps_nothing && shape.encoder {
        return ByteCount::ZERO;
    }
    // Few requests use a model's longest context: without a stated one the estimate assumes a usual one.
    let usual = shape.max_position_embeddings.unwrap_or(USUAL_CONTEXT).min(USUAL_CONTEXT);
    let context = manifest.context_length.unwrap_or(usual);
    let at_once = u64::from(manifest.max_concurrent.unwrap_or(DEFAULT_CONCURRENCY));
    let sequences = if keeps_nothing { 1 } else { at_once };
    let unchosen = if backend.is_foreign() { KvCacheType::F16 } else { own_type };
    let kept = manifest.kv_cache_type.filter(|kind| !kind.is_auto()).unwrap_or(unchosen);
    // The candle decoder's keys and values grow in blocks.
    let context = if backend.is_foreign() { context } else { context.next_multiple_of(KV_BLOCK) };
    let factors = [shape.cached_bytes(kept), context, sequences];
    ByteCount(factors.into_iter().fold(1, u64::saturating_mul))
}

/// The size of weights by the model's name: `qwen3-0.6b`, `llama-7b-q4`, `mixtral-8x7b`. The size is zero where the
/// name states none.
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
    // Models are usually published in sixteen bits.
    let bits = words().find_map(bits).unwrap_or(16.0);
    ByteCount((billions * 1e9 * bits / 8.0) as u64)
}

/// A number that changes when the manifest's text or a file of the model changes: FNV-1a over text, paths, sizes,
/// times.
pub(super) fn revision<'a>(manifest: &str, files: impl IntoIterator<Item = &'a ModelFile>) -> u64 {
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

/// The number of requests that a model serves at once by default.
pub(super) const DEFAULT_CONCURRENCY: u32 = 8;

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
