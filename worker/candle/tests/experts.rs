//! Experts in pages compared with resident ones. Answers are the same to the bit for prompts, decoding and batches,
//! with memory for few pages and for all. The file also tests faults and cancelled steps. `families.rs` has other
//! families.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use model_boss_candle::{DecoderLoadOptions, IndexOrder, LoadError, Synthetic, load, load_with, write_layer_index};
use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_engine::{BlockId, Decoder, DecoderError, DecoderStep, KvSlot, Logits, SequenceStep, Sequences};
use model_boss_protocol::{ByteCount, DeviceId, ResidencyMode};
use model_boss_weights::gguf::{GgufModel, HeaderWriter};

fn synthetic(folder: &tempfile::TempDir, shape: &str) -> PathBuf {
    let path = folder.path().join("experts.gguf");
    Synthetic::of(shape).unwrap().write(3, HeaderWriter::new(), File::create(&path).unwrap()).unwrap();
    path
}

fn options(mode: ResidencyMode, memory: Option<ByteCount>) -> DecoderLoadOptions {
    let residency = ResidencyOptions { mode, ..ResidencyOptions::default() };
    DecoderLoadOptions { context_length: Some(64), residency, memory, ..DecoderLoadOptions::default() }
}

fn paged(model: &Path, memory: Option<ByteCount>) -> Result<Sequences, LoadError> {
    load_with(model, &DeviceId::Cpu, &options(ResidencyMode::Stream, memory), &mut |_| {}).map(Sequences::over)
}

fn resident(model: &Path) -> Sequences {
    Sequences::over(load(model, &DeviceId::Cpu, Some(64), &mut |_| {}).unwrap())
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

/// Reads prompts of several lengths and then decodes some tokens of each: every sequence alone, all in a batch, or
/// alone with prompts in pieces. The answers of the three ways are in the same order.
#[derive(Clone, Copy, Debug)]
enum Way {
    Alone,
    Batched,
    Chunked,
}

fn run(decoder: &mut Sequences, way: Way) -> Vec<Vec<Vec<u32>>> {
    let vocab = decoder.info().vocab_size as u32;
    let token = |i: u32| (i * 37 + 3) % vocab;
    let prompts: Vec<Vec<u32>> = [9, 1, 24].map(|len| (len..2 * len).map(token).collect()).to_vec();
    let slots: Vec<KvSlot> = prompts.iter().map(|_| decoder.open(32).unwrap()).collect();
    let mut answers = vec![Vec::new(); prompts.len()];
    for round in 0..6 {
        let tokens: Vec<Vec<u32>> =
            prompts.iter().map(|prompt| if round == 0 { prompt.clone() } else { vec![token(round)] }).collect();
        let all = slots.iter().zip(&tokens);
        match way {
            Way::Batched => {
                let steps: Vec<SequenceStep<'_>> =
                    all.map(|(kv, tokens)| SequenceStep { kv: *kv, tokens, logits: Logits::Last }).collect();
                for (answer, logits) in answers.iter_mut().zip(decoder.forward(&steps).unwrap()) {
                    answer.push(logits);
                }
            }
            Way::Alone | Way::Chunked => {
                let size = if matches!(way, Way::Alone) { usize::MAX } else { 5 };
                for (answer, (kv, tokens)) in answers.iter_mut().zip(all) {
                    let pieces = tokens.chunks(size.min(tokens.len()));
                    let logits = pieces.map(|tokens| {
                        decoder.forward(&[SequenceStep { kv: *kv, tokens, logits: Logits::Last }]).unwrap().remove(0)
                    });
                    answer.extend(logits.last());
                }
            }
        }
    }
    slots.into_iter().for_each(|kv| decoder.close(kv));
    answers.iter().map(|rows| bits(rows)).collect()
}

#[test]
fn fa_6_pages_are_resident_to_the_bit_in_whatever_memory_and_batch() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder, "qwen3moe-tiny");
    let mut stays = resident(&model);
    let expected = run(&mut stays, Way::Alone);
    for way in [Way::Batched, Way::Chunked] {
        assert!(run(&mut stays, way) == expected, "{way:?}");
    }
    let (mut refused, mut blocks, mut partly, mut all) = (0, 0, 0, 0);
    for eighths in (0..180).step_by(3) {
        let memory = ByteCount((320 + eighths) << 17);
        let mut comes = match paged(&model, Some(memory)) {
            Ok(comes) => comes,
            Err(error) => {
                assert!(matches!(error, LoadError::TooLarge { .. }), "{error}");
                refused += 1;
                continue;
            }
        };
        let monitor = comes.monitor().unwrap();
        let way = [Way::Alone, Way::Batched, Way::Chunked][eighths as usize / 3 % 3];
        assert!(run(&mut comes, way) == expected, "{way:?} in {memory}");
        let Some(pages) = monitor.residency().experts else {
            blocks += 1;
            continue;
        };
        let totals = monitor.experts().unwrap();
        assert!(totals.uses > 0 && totals.reads >= totals.uses - totals.hits - totals.late, "{totals:?}");
        assert_eq!(totals.bytes, monitor.totals().bytes, "{totals:?}");
        if pages.memory < pages.bytes {
            partly += 1;
        } else {
            all += 1;
            assert!(totals.reads <= pages.pages as u64, "each page is read once: {totals:?}");
        }
        assert!(comes.info().weight_bytes <= memory.0);
    }
    let counts = format!("{refused} refused, {blocks} in blocks, {partly} with some pages, {all} with all");
    assert!(refused > 0 && partly > 4 && all > 0, "{counts}");
}

#[test]
fn fa_6_a_shared_prefix_in_pages_changes_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder, "qwen3moe-tiny");
    let prompt: Vec<u32> = (0..50).map(|at| at * 3 + 1).collect();
    let answers = |mut decoder: Box<dyn Decoder>| {
        let mut last = |blocks: &[u32], past: usize, tokens: &[u32]| {
            let blocks: Vec<BlockId> = blocks.iter().map(|block| BlockId(*block)).collect();
            let length = past + tokens.len();
            let step = DecoderStep {
                blocks: &blocks,
                past,
                shared: 0,
                length,
                tokens,
                images: &[],
                adapter: None,
                logits: Logits::Last,
            };
            bits(&decoder.forward(&[step]).unwrap())
        };
        // Alone, and behind the first block of another sequence.
        [last(&[0, 1], 0, &prompt), last(&[0, 5], 32, &prompt[32..])]
    };
    let expected = answers(load(&model, &DeviceId::Cpu, Some(64), &mut |_| {}).unwrap());
    assert!(expected[0] == expected[1]);
    let memory = Some(ByteCount::mib(48));
    let paged = load_with(&model, &DeviceId::Cpu, &options(ResidencyMode::Stream, memory), &mut |_| {}).unwrap();
    assert!(paged.monitor().unwrap().residency().experts.is_some());
    assert!(answers(paged) == expected);
}

#[test]
fn a_window_or_a_block_streams_whole_layers() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder, "qwen3moe-tiny");
    let mut with = options(ResidencyMode::Stream, None);
    with.residency.block = Some(1);
    let mut comes = Sequences::over(load_with(&model, &DeviceId::Cpu, &with, &mut |_| {}).unwrap());
    assert!(comes.monitor().unwrap().residency().experts.is_none());
    assert!(run(&mut comes, Way::Batched) == run(&mut resident(&model), Way::Batched));
}

#[test]
fn pages_come_from_an_index_of_layers_too() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder, "qwen3moe-tiny");
    let expected = run(&mut resident(&model), Way::Alone);
    write_layer_index(&model, IndexOrder::Machine).unwrap();
    let mut comes = paged(&model, None).unwrap();
    let about = comes.monitor().unwrap().residency().clone();
    assert!(about.store.ends_with(", index") && about.experts.is_some() && about.rearranged_bytes == 0, "{about:?}");
    assert!(run(&mut comes, Way::Alone) == expected);
}

#[test]
fn a_number_that_is_none_fails_the_step_with_the_experts_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder, "qwen3moe-tiny");
    let extent = GgufModel::open(&model).unwrap().get("blk.2.ffn_up_exps.weight").unwrap().extent();
    let mut file = OpenOptions::new().write(true).open(&model).unwrap();
    // One block of each expert.
    for expert in 0..16 {
        file.seek(SeekFrom::Start(extent.offset + expert * extent.len / 16)).unwrap();
        file.write_all(&[0xFF; 8]).unwrap();
    }
    let mut comes = paged(&model, None).unwrap();
    let kv = comes.open(32).unwrap();
    let step = [SequenceStep { kv, tokens: &[1], logits: Logits::Last }];
    for _ in 0..2 {
        let fault = comes.forward(&step).unwrap_err();
        let words = fault.to_string();
        assert!(matches!(fault, DecoderError::Step(_)), "{words}");
        assert!(words.contains("layers.2.mlp.experts") && words.contains("NaN"), "{words}");
    }
}

#[test]
fn a_file_that_changes_underneath_ends_the_process_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder, "qwen3moe-tiny");
    let mut comes = paged(&model, None).unwrap();
    let kv = comes.open(32).unwrap();
    comes.forward(&[SequenceStep { kv, tokens: &[1], logits: Logits::Last }]).unwrap();
    OpenOptions::new().append(true).open(&model).unwrap().write_all(b"x").unwrap();
    // Pages that are in memory already still serve a step.
    let step = |token: &'static [u32]| SequenceStep { kv, tokens: token, logits: Logits::Last };
    let fault = [&[300], &[611], &[12]].iter().find_map(|token| comes.forward(&[step(*token)]).err()).unwrap();
    assert!(
        matches!(&fault, DecoderError::Fatal(what) if what.contains("experts.gguf") && what.contains("changed")),
        "{fault}"
    );
    assert!(matches!(comes.forward(&[step(&[2])]), Err(DecoderError::Fatal(_))));
}

#[test]
fn a_step_can_be_cut_short_between_experts_and_the_next_one_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder, "qwen3moe-tiny");
    let mut comes = paged(&model, None).unwrap();
    let kv = comes.open(32).unwrap();
    let step = [SequenceStep { kv, tokens: &[1, 2, 3], logits: Logits::All }];
    for checks in 0..12 {
        let asked = AtomicUsize::new(0);
        let stop = || asked.fetch_add(1, Ordering::SeqCst) >= checks;
        assert!(matches!(comes.forward_until(&step, &stop), Err(DecoderError::Interrupted)), "after {checks}");
        assert_eq!(comes.len(kv), 0);
    }
    let mut stays = resident(&model);
    let other = stays.open(32).unwrap();
    let expected = stays.forward(&[SequenceStep { kv: other, ..step[0].clone() }]).unwrap();
    assert_eq!(bits(&comes.forward(&step).unwrap()), bits(&expected));
}
