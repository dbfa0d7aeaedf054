//! Models that see beside `transformers`: tiny random models of each family, from `scripts/reference/seeing.py`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

#[path = "family_cases/rule.rs"]
mod rule;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use model_boss_candle::{DecoderLoadOptions, DeviceOptions, load_over, load_with};
use model_boss_engine::{BLOCK_TOKENS, BlockId, Decoder, DecoderStep, ImageDigests, ImageTiles, Logits, StepImage};
use model_boss_images::{ImagePartLaid, RgbImage};
use model_boss_protocol::{DeviceId, KvCacheType};
use rule::{TensorRule, safetensors};
use serde::Deserialize;
use serde_json::Value;

/// The largest difference of a logit from the reference's; logits are of the order of 10.
const WITHIN: f32 = 1e-3;
/// The largest difference of a logit between two divisions of the same work.
const SAME: f32 = 2e-5;

#[derive(Deserialize)]
struct SeeingCase {
    case: String,
    files: BTreeMap<String, Value>,
    weights: WeightRules,
    images: Vec<(usize, usize)>,
    prompts: Vec<SeeingPrompt>,
}

#[derive(Deserialize)]
struct WeightRules {
    seed: u64,
    tensors: Vec<TensorRule>,
}

#[derive(Deserialize)]
struct SeeingPrompt {
    images: Vec<usize>,
    texts: Vec<String>,
    tokens: Vec<u32>,
    logits: Vec<f32>,
    followed: Vec<u32>,
}

/// A prompt with what is seen in it.
struct SeenPrompt {
    tokens: Vec<u32>,
    images: Vec<StepImage>,
}

/// The image that `image_of` of the script makes.
fn image_of((width, height): (usize, usize)) -> RgbImage {
    let mut bytes = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            let edges = (x / 9 + y / 7) % 2 * 160 + (x + y) % 64;
            bytes.extend([(x * 5 + y * 3) as u8, (x * x / 7 + y * 2) as u8, edges as u8]);
        }
    }
    RgbImage::new(width, height, bytes).unwrap()
}

impl SeeingCase {
    fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seeing");
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() >= 4, "cases are missing");
        files.iter().map(|file| serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()).collect()
    }

    fn write(&self, folder: &Path) {
        self.files.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text.to_string()).unwrap());
        let weights = safetensors(&self.weights.tensors, self.weights.seed);
        std::fs::write(folder.join("model.safetensors"), weights).unwrap();
    }

    fn loaded(&self) -> Box<dyn Decoder> {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path());
        let device = match std::env::var("MODEL_BOSS_TEST_DEVICE") {
            Ok(name) => name.parse().unwrap(),
            Err(_) => DeviceId::Cpu,
        };
        let on = [DeviceOptions { device, share: None, limit: None }];
        let options = DecoderLoadOptions { kv_cache_type: KvCacheType::F32, ..DecoderLoadOptions::default() };
        load_over(folder.path(), &on, &options, &mut |_| {}).unwrap_or_else(|error| panic!("{}: {error}", self.case))
    }

    /// Looks at the images of a prompt.
    fn see(&self, decoder: &mut dyn Decoder, prompt: &SeeingPrompt) -> SeenPrompt {
        let sight = decoder.info().sight.clone().unwrap_or_else(|| panic!("{} sees nothing", self.case));
        let digests = ImageDigests::default();
        let mut parts = Vec::new();
        for (number, text) in prompt.images.iter().zip(&prompt.texts) {
            let laid = sight.lay_out(image_of(self.images[*number])).unwrap();
            let places: Vec<usize> = laid.parts.iter().map(|part| part.places).collect();
            assert_eq!(expanded(&laid.text, &sight.place, &places), *text, "{}", self.case);
            parts.extend(laid.parts);
        }
        let vocab = decoder.info().vocab_size;
        let tokens = prompt.tokens.iter().map(|token| if (*token as usize) < vocab { *token } else { 0 }).collect();
        let mut next = 0;
        let images = parts.into_iter().map(|ImagePartLaid { tiles, sent, places, grid }| {
            let first = next + prompt.tokens[next..].iter().position(|token| *token == sight.token).unwrap();
            next = first + places;
            assert!(prompt.tokens[first..next].iter().all(|token| *token == sight.token), "{}", self.case);
            let digest = digests.of(&tiles, sent);
            let rows = decoder.see(&ImageTiles { tiles, sent, digest }, &|| false).unwrap();
            StepImage { range: first..next, grid, rows: Some(Arc::new(rows)) }
        });
        let seen = SeenPrompt { images: images.collect(), tokens };
        assert!(!prompt.tokens[next..].contains(&sight.token), "{}", self.case);
        seen
    }
}

/// The text with each place as often as there are places.
fn expanded(text: &str, place: &str, places: &[usize]) -> String {
    let mut parts = text.split(place);
    let first = parts.next().unwrap().to_owned();
    let parts: Vec<&str> = parts.collect();
    assert_eq!(parts.len(), places.len());
    parts.iter().zip(places).fold(first, |all, (part, places)| all + &place.repeat(*places) + part)
}

/// The blocks of a sequence, apart from those of others.
fn blocks(number: u32, tokens: usize) -> Vec<BlockId> {
    (0..tokens.div_ceil(BLOCK_TOKENS) as u32).map(|block| BlockId(block * 5 + number)).collect()
}

impl SeenPrompt {
    fn step<'a>(&'a self, blocks: &'a [BlockId], tokens: Range<usize>) -> DecoderStep<'a> {
        let logits = if tokens.end == self.tokens.len() { Logits::Last } else { Logits::None };
        DecoderStep {
            blocks,
            past: tokens.start,
            length: self.tokens.len(),
            shared: 0,
            tokens: &self.tokens[tokens],
            images: &self.images,
            adapter: None,
            logits,
        }
    }

    /// Pieces of so many tokens, or of more where an image has to come in one.
    fn pieces(&self, size: usize, both_ways: bool) -> Vec<Range<usize>> {
        let (mut pieces, mut past) = (Vec::new(), 0);
        while past < self.tokens.len() {
            let mut end = (past + size).min(self.tokens.len());
            let cut = self.images.iter().find(|image| image.range.start < end && end < image.range.end);
            if let Some(image) = cut.filter(|_| both_ways) {
                end = if image.range.start > past { image.range.start } else { image.range.end };
            }
            pieces.push(past..end);
            past = end;
        }
        pieces
    }
}

fn best(logits: &[f32]) -> u32 {
    logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32
}

fn apart(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f32::max)
}

#[test]
fn em_4_every_model_that_sees_gives_the_logits_and_tokens_of_the_reference() {
    for case in SeeingCase::all() {
        let mut decoder = case.loaded();
        let mut largest = 0.0_f32;
        for (at, prompt) in case.prompts.iter().enumerate() {
            let mut seen = case.see(&mut *decoder, prompt);
            let length = seen.tokens.len() + prompt.followed.len();
            let blocks = blocks(at as u32, length);
            let mut logits = decoder.forward(&[seen.step(&blocks, 0..seen.tokens.len())]).unwrap().remove(0);
            let off = apart(&logits, &prompt.logits);
            assert!(off < WITHIN, "{}, prompt {at}: off by {off}", case.case);
            largest = largest.max(off);
            for (number, follows) in prompt.followed.iter().enumerate() {
                assert_eq!(best(&logits), *follows, "{}, prompt {at}, token {number}", case.case);
                seen.tokens.push(*follows);
                let last = seen.tokens.len() - 1;
                logits = decoder.forward(&[seen.step(&blocks, last..last + 1)]).unwrap().remove(0);
            }
        }
        if std::env::var_os("MODEL_BOSS_SHOW").is_some() {
            eprintln!("{}: off by {largest:.1e}", case.case);
        }
    }
}

#[test]
fn em_4_pieces_and_neighbours_change_nothing_that_is_seen() {
    for case in SeeingCase::all() {
        let mut decoder = case.loaded();
        let both_ways = decoder.info().sight.as_ref().unwrap().both_ways;
        let seen: Vec<SeenPrompt> = case.prompts.iter().map(|prompt| case.see(&mut *decoder, prompt)).collect();
        let tables: Vec<Vec<BlockId>> =
            seen.iter().enumerate().map(|(at, seen)| blocks(at as u32, seen.tokens.len())).collect();
        let all: Vec<DecoderStep<'_>> =
            seen.iter().zip(&tables).map(|(seen, blocks)| seen.step(blocks, 0..seen.tokens.len())).collect();
        let together = decoder.forward(&all).unwrap();
        for (at, (seen, together)) in seen.iter().zip(&together).enumerate() {
            let off = apart(together, &case.prompts[at].logits);
            assert!(off < WITHIN, "{}, prompt {at}: together off by {off}", case.case);
            for size in [5, 32, 50] {
                let table = blocks(4, seen.tokens.len());
                let mut rows = Vec::new();
                for piece in seen.pieces(size, both_ways) {
                    rows = decoder.forward(&[seen.step(&table, piece)]).unwrap().remove(0);
                }
                let off = apart(&rows, together);
                assert!(off < SAME, "{}, prompt {at} in pieces of {size}: off by {off}", case.case);
            }
        }
    }
}

#[test]
fn em_4_a_look_at_an_image_ends_when_nobody_waits_for_it() {
    for case in SeeingCase::all() {
        let mut decoder = case.loaded();
        let sight = decoder.info().sight.clone().unwrap();
        let part = sight.lay_out(image_of(case.images[0])).unwrap().parts.remove(0);
        let digest = ImageDigests::default().of(&part.tiles, part.sent);
        let picture = ImageTiles { tiles: part.tiles, sent: part.sent, digest };
        let ended = decoder.see(&picture, &|| true);
        assert!(matches!(ended, Err(model_boss_engine::DecoderError::Interrupted)), "{}", case.case);
    }
}

#[test]
fn em_4_a_model_without_its_tower_reads_text() {
    for mut case in SeeingCase::all() {
        let is_vision =
            |name: &str| ["visual.", "vision", "projector", "connector"].iter().any(|part| name.contains(part));
        case.weights.tensors.retain(|tensor| !matches!(tensor, TensorRule::Floats(name, ..) if is_vision(name)));
        assert!(case.loaded().info().sight.is_none(), "{}", case.case);
    }
}

#[test]
fn em_4_a_size_without_bounds_of_pixels_is_refused_by_name() {
    let case = SeeingCase::all().into_iter().find(|case| case.case == "qwen2_5_vl").unwrap();
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    let path = folder.path().join("preprocessor_config.json");
    let path = if path.exists() { path } else { folder.path().join("processor_config.json") };
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("shortest_edge"), "{text}");
    std::fs::write(&path, text.replace("shortest_edge", "height")).unwrap();
    let loaded = load_with(folder.path(), &DeviceId::Cpu, &DecoderLoadOptions::default(), &mut |_| {});
    let error = loaded.err().unwrap().to_string();
    assert!(error.contains("'shortest_edge'"), "{error}");
}
