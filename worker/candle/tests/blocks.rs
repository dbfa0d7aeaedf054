//! Blocks of keys and values: shared and copied, in any order of memory, cut anywhere, they change no bit (EN-1). Also
//! their budget (EN-2).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

use std::fs::File;
use std::path::{Path, PathBuf};

use model_boss_candle::{DecoderLoadOptions, DeviceOptions, Synthetic, load, load_over, load_with};
use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_engine::{BLOCK_TOKENS, BlockId, Decoder, DecoderError, DecoderStep, Logits, PlaceUse};
use model_boss_protocol::{ByteCount, DeviceId, ResidencyMode};
use model_boss_weights::gguf::HeaderWriter;

fn golden() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

/// A model of random weights in Q4_K and Q6_K, four layers.
fn synthetic(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("tiny.gguf");
    Synthetic::of("qwen3-tiny").unwrap().write(3, HeaderWriter::new(), File::create(&path).unwrap()).unwrap();
    path
}

fn blocks(numbers: &[u32]) -> Vec<BlockId> {
    numbers.iter().map(|number| BlockId(*number)).collect()
}

fn step<'a>(blocks: &'a [BlockId], past: usize, tokens: &'a [u32]) -> DecoderStep<'a> {
    DecoderStep { blocks, past, tokens, logits: Logits::Last }
}

/// The bits of the logits behind the last token.
fn bits(decoder: &mut dyn Decoder, steps: &[DecoderStep<'_>]) -> Vec<Vec<u32>> {
    let rows = decoder.forward(steps).unwrap();
    rows.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

/// The bytes of keys and values that a decoder holds.
fn held(decoder: &dyn Decoder) -> u64 {
    decoder.places().iter().map(|place| place.report().kv_bytes).sum()
}

#[test]
fn en_1_a_shared_prefix_changes_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    for model in golden().into_iter().chain([synthetic(&folder)]) {
        let name = model.display();
        let mut decoder = load(&model, &DeviceId::Cpu, Some(128), &mut |_| {}).unwrap();
        let vocab = decoder.info().vocab_size as u32;
        let prompt: Vec<u32> = (0..110).map(|at| (at * 37 + 5) % vocab).collect();
        let other: Vec<u32> = (0..30).map(|at| (at * 11 + 1) % vocab).collect();
        // Alone, in one piece.
        let whole = blocks(&[0, 1, 2, 3]);
        let expected = bits(decoder.as_mut(), &[step(&whole, 0, &prompt)]);
        // In pieces of other lengths, over blocks in any order.
        let apart = blocks(&[9, 5, 12, 7]);
        for (from, to) in [(0, 3), (3, 40), (40, 64), (64, 109)] {
            bits(decoder.as_mut(), &[step(&apart, from, &prompt[from..to])]);
        }
        assert!(bits(decoder.as_mut(), &[step(&apart, 109, &prompt[109..])]) == expected, "{name}, in pieces");
        // Behind shared blocks, beside a neighbour that shares them too and goes on in another way.
        let (shares, beside) = (blocks(&[9, 5, 12, 20]), blocks(&[0, 1, 30, 31]));
        decoder.copy(BlockId(2), BlockId(30)).unwrap();
        let steps = [step(&shares, 96, &prompt[96..]), step(&beside, 80, &other)];
        let together = bits(decoder.as_mut(), &steps);
        assert!(together[0] == expected[0], "{name}, behind shared blocks");
        let turned = [&prompt[..80], &other].concat();
        let alone = blocks(&[40, 41, 42, 43]);
        assert!(together[1] == bits(decoder.as_mut(), &[step(&alone, 0, &turned)])[0], "{name}, the neighbour");
        // The copied block is as it was, and all memory comes back.
        assert!(bits(decoder.as_mut(), &[step(&whole, 109, &prompt[109..])]) == expected, "{name}, the copied one");
        let all: Vec<BlockId> = (0..50).map(BlockId).collect();
        assert!(held(decoder.as_ref()) > 0);
        decoder.free(&all);
        assert_eq!(held(decoder.as_ref()), 0, "{name}");
    }
}

#[test]
fn en_1_shared_blocks_serve_streamed_layers_and_several_devices() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let prompt: Vec<u32> = (0..100).map(|at| at * 3 + 1).collect();
    let run = |decoder: &mut dyn Decoder| {
        bits(decoder, &[step(&blocks(&[3, 1, 0]), 0, &prompt[..90])]);
        bits(decoder, &[step(&blocks(&[3, 1, 6, 2]), 64, &prompt[64..])])
    };
    let expected = run(load(&model, &DeviceId::Cpu, Some(128), &mut |_| {}).unwrap().as_mut());
    let place = |share| DeviceOptions { device: DeviceId::Cpu, share: Some(ByteCount(share)), limit: None };
    for mode in [ResidencyMode::Resident, ResidencyMode::Stream] {
        let residency = ResidencyOptions { mode, window: Some(1), block: Some(1) };
        let options = DecoderLoadOptions { context_length: Some(128), residency, ..DecoderLoadOptions::default() };
        let mut several = load_over(&model, &[place(1 << 30), place(3 << 30)], &options, &mut |_| {}).unwrap();
        assert!(run(several.as_mut()) == expected, "{mode:?}");
        let reports: Vec<_> = several.places().iter().map(PlaceUse::report).collect();
        assert!(reports.len() == 2 && reports.iter().all(|place| place.kv_bytes > 0));
    }
}

#[test]
fn en_1_a_block_that_is_written_belongs_to_one_sequence() {
    let model = golden().into_iter().find(|folder| folder.ends_with("plain")).unwrap();
    let mut decoder = load(&model, &DeviceId::Cpu, None, &mut |_| {}).unwrap();
    let tokens: Vec<u32> = (0..40).collect();
    let (one, two) = (blocks(&[0, 1]), blocks(&[2, 3]));
    let before = bits(decoder.as_mut(), &[step(&one, 0, &tokens)]);
    bits(decoder.as_mut(), &[step(&two, 0, &tokens)]);
    let (same, reads, lacks, never) = (blocks(&[0, 3]), blocks(&[1, 4]), blocks(&[2]), blocks(&[7, 8]));
    let wrong: [&[DecoderStep<'_>]; 5] = [
        &[step(&two, 40, &[1]), step(&same, 40, &[1])],
        &[step(&one, 40, &[1]), step(&reads, 32, &[1])],
        &[step(&lacks, 30, &[1, 2, 3])],
        &[step(&never, 32, &[1])],
        &[step(&two, 40, &[1]), step(&one, 40, &[])],
    ];
    for batch in wrong {
        assert!(matches!(decoder.forward(batch), Err(DecoderError::Step(_))), "{batch:?}");
    }
    assert!(decoder.copy(BlockId(9), BlockId(1)).is_err(), "there is nothing to copy");
    assert!(bits(decoder.as_mut(), &[step(&one, 39, &tokens[39..])]) == before, "nothing was changed");
}

#[test]
fn en_2_keys_and_values_take_as_many_whole_blocks_as_their_tokens_need() {
    let folder = tempfile::tempdir().unwrap();
    let mut decoder = load(&synthetic(&folder), &DeviceId::Cpu, Some(1_024), &mut |_| {}).unwrap();
    let tokens: Vec<u32> = (0..1_000).map(|at| at % 500).collect();
    let table: Vec<BlockId> = (0..32).map(BlockId).collect();
    decoder.forward(&[step(&table, 0, &tokens)]).unwrap();
    let needed = tokens.len() * decoder.info().kv_bytes_per_token;
    let taken = held(decoder.as_ref()) as usize;
    assert!(taken >= needed && taken as f64 <= 1.1 * needed as f64, "{taken} for {needed}");
}

#[test]
fn en_2_the_budget_is_what_is_left_of_the_memory_and_enough_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let budget = |memory: Option<u64>, max_concurrent: Option<u32>| {
        let residency = ResidencyOptions { mode: ResidencyMode::Resident, ..ResidencyOptions::default() };
        let options = DecoderLoadOptions {
            context_length: Some(100),
            max_concurrent,
            memory: memory.map(ByteCount),
            residency,
            ..DecoderLoadOptions::default()
        };
        load_with(&model, &DeviceId::Cpu, &options, &mut |_| {}).unwrap().info().clone()
    };
    assert_eq!(budget(None, None).kv_blocks, usize::MAX, "no limit without a number of sequences");
    let all = budget(None, Some(8));
    assert_eq!(all.kv_blocks, 8 * 4, "each of them needs whole blocks");
    let block = (BLOCK_TOKENS * all.kv_bytes_per_token) as u64;
    let besides = all.weight_bytes + all.workspace_bytes;
    assert_eq!(budget(Some(besides + 9 * block + 1), Some(8)).kv_blocks, 9);
    assert_eq!(budget(Some(besides), Some(8)).kv_blocks, 4, "one sequence fits all the same");
}
