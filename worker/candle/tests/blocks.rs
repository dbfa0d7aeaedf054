//! Blocks of keys and values: shared and copied, in any order of memory, cut anywhere, they change no bit (EN-1). Also
//! their budget (EN-2).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

use std::fs::File;
use std::path::{Path, PathBuf};

use model_boss_candle::{DecoderLoadOptions, DeviceOptions, Synthetic, load, load_over, load_with};
use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_engine::{BLOCK_TOKENS, BlockId, Decoder, DecoderError, DecoderStep, Logits, PlaceUse};
use model_boss_protocol::{ByteCount, DeviceId, KvCacheType, ResidencyMode, WorkerExit};
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
    DecoderStep {
        blocks,
        past,
        length: past + tokens.len(),
        shared: 0,
        tokens,
        images: &[],
        adapter: None,
        logits: Logits::Last,
    }
}

/// A decoder whose keys and values have this type.
fn load_as(model: &Path, kv_cache_type: KvCacheType) -> Box<dyn Decoder> {
    let options = DecoderLoadOptions { context_length: Some(128), kv_cache_type, ..DecoderLoadOptions::default() };
    load_with(model, &DeviceId::Cpu, &options, &mut |_| {}).unwrap()
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
    let models = golden().into_iter().map(|model| (model, KvCacheType::Auto));
    let kinds = KvCacheType::ALL.map(|kind| (synthetic(&folder), kind));
    for (model, kind) in models.chain(kinds) {
        let name = format!("{} {kind}", model.display());
        let mut decoder = load_as(&model, kind);
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

/// The answers of most probable tokens to a prompt, beside a neighbour if there is one.
fn answer(decoder: &mut dyn Decoder, prompt: &[u32], beside: Option<&[u32]>, pieces: usize) -> Vec<u32> {
    let (own, other) = (blocks(&[4, 1, 6, 2]), blocks(&[3, 8, 5, 9]));
    let (mut said, mut theirs) = (Vec::new(), beside.unwrap_or_default().to_vec());
    let (mut past, mut their_past) = (0, 0);
    let mut next: Vec<u32> = prompt.to_vec();
    while said.len() < 16 {
        let piece: Vec<u32> = next.drain(..next.len().min(pieces)).collect();
        let mut batch = vec![step(&own, past, &piece)];
        batch.extend(beside.map(|_| step(&other, their_past, &theirs)));
        let rows = decoder.forward(&batch).unwrap();
        let best = |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0 as u32;
        past += piece.len();
        their_past += theirs.len();
        theirs = rows.get(1).map(|row| vec![best(row)]).unwrap_or_default();
        if next.is_empty() {
            said.push(best(&rows[0]));
            next.extend(said.last());
        }
    }
    said
}

#[test]
fn en_2_every_type_of_keys_and_values_answers_the_same_in_any_company() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    for kind in KvCacheType::ALL {
        let mut decoder = load_as(&model, kind);
        let vocab = decoder.info().vocab_size as u32;
        let prompt: Vec<u32> = (0..70).map(|at| (at * 31 + 7) % vocab).collect();
        let alone = answer(decoder.as_mut(), &prompt, None, 70);
        assert_eq!(answer(decoder.as_mut(), &prompt, Some(&[5, 6, 7]), 70), alone, "{kind}, batched");
        assert_eq!(answer(decoder.as_mut(), &prompt, Some(&prompt[..40]), 9), alone, "{kind}, in pieces");
    }
}

/// The differences of logits as shares of their range: the root of their mean square, and the largest.
fn apart(got: &[f32], want: &[f32]) -> (f32, f32) {
    let (least, most) = want.iter().fold((f32::MAX, f32::MIN), |(least, most), x| (least.min(*x), most.max(*x)));
    let shares = || got.iter().zip(want).map(|(got, want)| (got - want).abs() / (most - least));
    let squares: f32 = shares().map(|share| share * share).sum();
    ((squares / want.len() as f32).sqrt(), shares().fold(0.0, f32::max))
}

#[test]
fn en_2_logits_with_eight_bits_are_within_a_hundredth_of_their_range() {
    let table = blocks(&[0, 1, 2, 3]);
    let tokens: Vec<u32> = (0..100).map(|at| (at * 41 + 3) % 128).collect();
    for model in golden() {
        let logits = |kind| {
            let step = DecoderStep {
                blocks: &table,
                past: 0,
                length: tokens.len(),
                shared: 0,
                tokens: &tokens,
                images: &[],
                adapter: None,
                logits: Logits::All,
            };
            load_as(&model, kind).forward(&[step]).unwrap().remove(0)
        };
        let exact = logits(KvCacheType::F32);
        for (kind, bound) in [(KvCacheType::F16, 0.000_5), (KvCacheType::Bf16, 0.003), (KvCacheType::Q8_0, 0.01)] {
            let (mean, largest) = apart(&logits(kind), &exact);
            // Heads of these models are eight wide, and their attention is sharp: one row may move further.
            let seen = format!("{} {kind}: {mean}, {largest}", model.display());
            assert!(0.0 < mean && mean <= bound && largest <= 5.0 * bound, "{seen}");
            assert!(!model.ends_with("qwen3") || largest <= 0.01, "{seen}");
        }
    }
}

#[test]
fn en_2_answers_with_eight_bits_are_those_with_thirty_two() {
    let tokens: Vec<u32> = (0..50).map(|at| (at * 41 + 3) % 128).collect();
    let said = |model: &Path, kind| answer(load_as(model, kind).as_mut(), &tokens, None, 50);
    for model in
        golden().into_iter().filter(|model| ["qwen3", "sharded", "biases"].iter().any(|one| model.ends_with(one)))
    {
        let exact = said(&model, KvCacheType::F32);
        for kind in KvCacheType::ALL {
            assert_eq!(said(&model, kind), exact, "{} {kind}", model.display());
        }
    }
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
fn en_2_eight_bits_leave_room_for_nearly_twice_the_tokens_of_sixteen() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let info = |memory: Option<u64>, kv_cache_type| {
        let residency = ResidencyOptions { mode: ResidencyMode::Resident, ..ResidencyOptions::default() };
        let options = DecoderLoadOptions {
            context_length: Some(1_000),
            max_concurrent: Some(8),
            memory: memory.map(ByteCount),
            residency,
            kv_cache_type,
            ..DecoderLoadOptions::default()
        };
        load_with(&model, &DeviceId::Cpu, &options, &mut |_| {}).unwrap().info().clone()
    };
    let halves = info(None, KvCacheType::F16);
    let block = (BLOCK_TOKENS * halves.kv_bytes_per_token) as u64;
    let memory = Some(halves.weight_bytes + halves.workspace_bytes + 100 * block);
    for (kind, blocks, sixteenths) in [
        (KvCacheType::Auto, 100, 32),
        (KvCacheType::F32, 50, 64),
        (KvCacheType::F16, 100, 32),
        (KvCacheType::Bf16, 100, 32),
        // 34 bytes in place of 64.
        (KvCacheType::Q8_0, 188, 17),
    ] {
        let info = info(memory, kind);
        assert_eq!(info.kv_blocks, blocks, "{kind}");
        assert_eq!(info.kv_bytes_per_token * 32, halves.kv_bytes_per_token * sixteenths, "{kind}");
    }
    // The bytes held are those reported.
    let mut decoder = load_as(&model, KvCacheType::Q8_0);
    let tokens: Vec<u32> = (0..96).collect();
    decoder.forward(&[step(&blocks(&[0, 1, 2]), 0, &tokens)]).unwrap();
    assert_eq!(held(decoder.as_ref()) as usize, 96 * halves.kv_bytes_per_token * 17 / 32);
}

#[test]
fn en_2_the_budget_is_what_is_left_of_the_memory_and_never_more() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let load = |context: u64, memory: Option<u64>, max_concurrent: Option<u32>| {
        let residency = ResidencyOptions { mode: ResidencyMode::Resident, ..ResidencyOptions::default() };
        let options = DecoderLoadOptions {
            context_length: Some(context),
            max_concurrent,
            memory: memory.map(ByteCount),
            residency,
            ..DecoderLoadOptions::default()
        };
        load_with(&model, &DeviceId::Cpu, &options, &mut |_| {}).map(|decoder| decoder.info().clone())
    };
    let budget = |memory, max_concurrent| load(100, memory, max_concurrent).unwrap();
    assert_eq!(budget(None, None).kv_blocks, usize::MAX, "no limit without a number of sequences");
    let all = budget(None, Some(8));
    assert_eq!(all.kv_blocks, 8 * 4, "each of them needs whole blocks");
    let block = (BLOCK_TOKENS * all.kv_bytes_per_token) as u64;
    let besides = all.weight_bytes + all.workspace_bytes;
    let nine = budget(Some(besides + 9 * block + 1), Some(8));
    assert_eq!((nine.kv_blocks, nine.warnings), (9, vec![]));
    assert_eq!(budget(Some(besides + 4 * block), Some(8)).kv_blocks, 4, "one sequence");

    // Less than one sequence of 512 tokens: longer prompts are refused, and the operator is told.
    let short = load(512, Some(besides + 10 * block), Some(8)).unwrap();
    assert_eq!(short.kv_blocks, 10);
    let [warning] = &short.warnings[..] else { panic!("{:?}", short.warnings) };
    assert!(warning.contains("320 tokens") && warning.contains("512"), "{warning}");
    // Less than a short prompt needs: the load fails, with what it would take.
    for (context, least) in [(512, 8), (100, 4)] {
        let Err(error) = load(context, Some(besides + least * block - 1), Some(8)) else { panic!("{context}") };
        assert_eq!(error.exit(), WorkerExit::OutOfMemory);
        let needs = ByteCount(besides + least * block).to_string();
        assert!(error.to_string().contains(&needs) && error.to_string().contains("vram"), "{error}");
        assert!(load(context, Some(besides + least * block), Some(8)).is_ok());
    }
}
