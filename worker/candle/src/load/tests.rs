//! Keys and values in tensors, as devices with memory of their own have them, beside those in pages: the same decoder
//! and the same steps on the CPU (EN-1, EN-2).

use std::path::PathBuf;

use model_boss_engine::{BLOCK_TOKENS, BlockId, Decoder, DecoderStep, Logits};
use model_boss_protocol::KvCacheType;

use super::*;

#[allow(dead_code, reason = "the tests of families use more of it")]
#[path = "../../tests/family_cases/case.rs"]
mod case;
use crate::rule;
use case::Case;

/// The largest difference of a logit, as a share of the largest one. Sums are in another order, and a number that lies
/// between two of the kept ones may be rounded to either.
fn tolerance(kind: KvCacheType) -> f32 {
    match kind {
        KvCacheType::F16 => 2e-3,
        KvCacheType::Bf16 => 2e-2,
        _ => 1e-4,
    }
}

fn golden() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

fn opened(model: &Path, kv_cache_type: KvCacheType) -> SpecDecoder {
    let options = DecoderLoadOptions { context_length: Some(128), kv_cache_type, ..DecoderLoadOptions::default() };
    let place = DeviceOptions { device: DeviceId::Cpu, share: None, limit: None };
    read_over(model, &[place], &options, (DecoderHead::Read, &|_, _| Ok(None)), &mut |_| {}).unwrap()
}

fn blocks(numbers: &[u32]) -> Vec<BlockId> {
    numbers.iter().map(|number| BlockId(*number)).collect()
}

fn step<'a>(blocks: &'a [BlockId], past: usize, tokens: &'a [u32]) -> DecoderStep<'a> {
    DecoderStep {
        blocks,
        past,
        length: past + tokens.len(),
        shared: 0,
        tokens,
        images: &[],
        adapter: None,
        logits: Logits::All,
    }
}

/// The logits of steps over scattered blocks, with pieces across their borders, a copy, shared blocks and neighbours.
fn played(decoder: &mut SpecDecoder) -> Vec<Vec<f32>> {
    let vocab = decoder.info().vocab_size as u32;
    let prompt: Vec<u32> = (0..110).map(|at| (at * 37 + 5) % vocab).collect();
    let other: Vec<u32> = (0..30).map(|at| (at * 11 + 1) % vocab).collect();
    let mut rows = Vec::new();
    let (apart, dense) = (blocks(&[9, 5, 12, 7]), blocks(&[1, 2, 3, 4]));
    for (from, to) in [(0, 3), (3, 40), (40, 64), (64, 109)] {
        let piece = &prompt[from..to];
        rows.extend(decoder.forward(&[step(&apart, from, piece), step(&dense, from, piece)]).unwrap());
    }
    // Blocks far beyond those that there is room for, while the others hold something.
    let (shares, beside) = (blocks(&[9, 5, 12, 40]), blocks(&[1, 2, 30, 31]));
    decoder.copy(BlockId(3), BlockId(30)).unwrap();
    rows.extend(decoder.forward(&[step(&shares, 96, &prompt[96..]), step(&beside, 80, &other)]).unwrap());
    rows.extend(decoder.forward(&[step(&dense, 109, &prompt[109..]), step(&apart, 109, &prompt[109..])]).unwrap());
    let all: Vec<BlockId> = (0..50).map(BlockId).collect();
    decoder.free(&all);
    assert!(decoder.places().iter().all(|place| place.report().kv_bytes == 0), "all memory came back");
    rows
}

#[test]
fn fa_1_every_family_is_the_same_in_tensors() {
    for case in Case::all() {
        let mut pages = opened(case.folder(), KvCacheType::F32);
        // The steps are longer than what the shortest models are for, and they begin where no state of a sequence is.
        if pages.info().context_length < 128 || pages.info().state_bytes > 0 {
            continue;
        }
        let expected = played(&mut pages);
        let tensors = played(&mut opened(case.folder(), KvCacheType::F32).in_tensors());
        for (at, (got, want)) in tensors.iter().zip(&expected).enumerate() {
            let largest = want.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
            let apart = got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
            assert!(apart <= tolerance(KvCacheType::F32) * largest, "{}, {at}: {apart} of {largest}", case.name);
        }
    }
}

#[test]
fn en_1_tensors_and_pages_of_keys_and_values_give_the_same() {
    for model in golden() {
        let kinds: &[KvCacheType] = match model.file_name().and_then(|name| name.to_str()) {
            Some("plain" | "qwen3") => &[KvCacheType::F32, KvCacheType::F16, KvCacheType::Bf16],
            _ => &[KvCacheType::F32],
        };
        for kind in kinds {
            let expected = played(&mut opened(&model, *kind));
            let tensors = played(&mut opened(&model, *kind).in_tensors());
            assert_eq!(tensors.len(), expected.len());
            for (at, (got, want)) in tensors.iter().zip(&expected).enumerate() {
                let largest = want.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                let apart = got.iter().zip(want).map(|(got, want)| (got - want).abs()).fold(0.0, f32::max);
                let name = model.display();
                assert!(got.len() == want.len() && apart <= tolerance(*kind) * largest, "{name} {kind}, {at}: {apart}");
            }
        }
    }
}

/// Logits behind a prompt and three tokens more; half-way, the blocks go to `other` as bytes, or nowhere without one.
fn goes_on(mut decoder: SpecDecoder, other: Option<SpecDecoder>, prompt: &[u32]) -> Vec<Vec<f32>> {
    let (mut here, past) = (blocks(&[5, 2, 9, 11, 13, 15]), prompt.len());
    decoder.forward(&[last(&here, 0, prompt)]).unwrap();
    if let Some(mut other) = other {
        let layout = decoder.block_layout();
        assert!(layout.is_some() && layout == other.block_layout());
        let there = blocks(&[4, 30, 1, 8, 7, 3]);
        for (from, to) in here.iter().zip(&there).take(past.div_ceil(BLOCK_TOKENS)) {
            let mut contents = Vec::new();
            decoder.read_block(*from, &mut contents).unwrap();
            // Fewer bytes, or more, are refused, and the block is as if it had not been touched.
            let longer = [&contents[..], &[0]].concat();
            for wrong in [&contents[..contents.len() - 1], &longer] {
                assert!(other.write_block(*to, wrong).is_err());
            }
            assert!(other.read_block(*to, &mut Vec::new()).is_err(), "the block holds nothing");
            other.write_block(*to, &contents).unwrap();
        }
        assert_eq!(other.resumable(&there, past), past);
        (decoder, here) = (other, there);
    }
    let mut rows = Vec::new();
    for (at, token) in [1, 7, 4].into_iter().enumerate() {
        rows.extend(decoder.forward(&[last(&here, past + at, &[token])]).unwrap());
    }
    rows
}

fn last<'a>(blocks: &'a [BlockId], past: usize, tokens: &'a [u32]) -> DecoderStep<'a> {
    DecoderStep { logits: Logits::Last, ..step(blocks, past, tokens) }
}

#[test]
fn en_3_blocks_go_from_one_decoder_to_another_in_every_family() {
    let mut with_states = 0;
    for case in Case::all() {
        let open = || opened(case.folder(), KvCacheType::F32);
        let info = open().info().clone();
        with_states += usize::from(info.state_bytes > 0);
        let prompts = case.usable_prompts(info.context_length.min(128));
        for prompt in prompts {
            let expected = goes_on(open(), None, prompt);
            assert!(goes_on(open(), Some(open()), prompt) == expected, "{}", case.name);
            if info.state_bytes == 0 {
                let expected = goes_on(open().in_tensors(), None, prompt);
                let tensors = goes_on(open().in_tensors(), Some(open().in_tensors()), prompt);
                assert!(tensors == expected, "{} in tensors", case.name);
            }
        }
    }
    assert!(with_states > 5 || std::env::var_os("MODEL_BOSS_FAMILY").is_some(), "{with_states}");
}

#[test]
fn en_3_blocks_of_every_type_of_keys_and_values_go_to_another_decoder() {
    let model = golden().into_iter().find(|model| model.ends_with("qwen3")).unwrap();
    let prompt: Vec<u32> = (0..70).map(|at| at * 3 % 50).collect();
    let mut layouts = std::collections::BTreeSet::new();
    for kind in [KvCacheType::F32, KvCacheType::F16, KvCacheType::Bf16, KvCacheType::Q8_0] {
        let open = || opened(&model, kind);
        layouts.insert(open().block_layout());
        assert!(goes_on(open(), Some(open()), &prompt) == goes_on(open(), None, &prompt), "{kind}");
        if kind != KvCacheType::Q8_0 {
            let open = || opened(&model, kind).in_tensors();
            layouts.insert(open().block_layout());
            assert!(goes_on(open(), Some(open()), &prompt) == goes_on(open(), None, &prompt), "{kind} in tensors");
        }
    }
    assert_eq!(layouts.len(), 7, "no form can be mistaken for another");
}
