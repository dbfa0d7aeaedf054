//! Streamed layers compared with resident ones. Answers are the same to the bit, for every type of weights, alone and
//! in a batch, after steps that were cut short. The file also tests faults of the disk.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use model_boss_candle::{DecoderLoadOptions, IndexOrder, LoadError, Synthetic, load, load_with, write_layer_index};
use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_engine::{DecoderError, KvSlot, Logits, SequenceStep, Sequences};
use model_boss_protocol::{ByteCount, DeviceId, ResidencyMode, WorkerExit};
use model_boss_weights::gguf::{GgufModel, HeaderWriter};
use model_boss_weights::store::WeightStoreChoice;

fn golden() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

/// A model of random weights in Q4_K and Q6_K, with four layers.
fn synthetic(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("tiny.gguf");
    let model = Synthetic::of("qwen3-tiny").unwrap();
    model.write(3, HeaderWriter::new(), File::create(&path).unwrap()).unwrap();
    path
}

fn options(window: Option<usize>, block: Option<usize>) -> DecoderLoadOptions {
    DecoderLoadOptions {
        context_length: Some(64),
        residency: ResidencyOptions { mode: ResidencyMode::Stream, window, block },
        ..DecoderLoadOptions::default()
    }
}

fn streamed(model: &Path, options: &DecoderLoadOptions) -> Sequences {
    Sequences::over(load_with(model, &DeviceId::Cpu, options, &mut |_| {}).unwrap_or_else(|error| panic!("{error}")))
}

fn resident(model: &Path) -> Sequences {
    Sequences::over(load(model, &DeviceId::Cpu, Some(64), &mut |_| {}).unwrap())
}

fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

/// Decodes prompts of several lengths and then some tokens each, one sequence after the other or all together.
fn run(decoder: &mut Sequences, together: bool) -> Vec<Vec<Vec<u32>>> {
    let vocab = decoder.info().vocab_size as u32;
    let token = |i: u32| (i * 7 + 3) % vocab;
    let prompts: Vec<Vec<u32>> = [9, 1, 4].map(|len| (0..len).map(token).collect()).to_vec();
    let slots: Vec<KvSlot> = prompts.iter().map(|_| decoder.open(32).unwrap()).collect();
    let mut answers = Vec::new();
    for round in 0..4 {
        let tokens: Vec<Vec<u32>> =
            prompts.iter().map(|prompt| if round == 0 { prompt.clone() } else { vec![token(round)] }).collect();
        let steps: Vec<SequenceStep<'_>> = slots
            .iter()
            .zip(&tokens)
            .map(|(kv, tokens)| SequenceStep { kv: *kv, tokens, logits: Logits::All })
            .collect();
        if together {
            answers.push(bits(&decoder.forward(&steps).unwrap()));
        } else {
            answers.extend(steps.chunks(1).map(|step| bits(&decoder.forward(step).unwrap())));
        }
    }
    slots.into_iter().for_each(|kv| decoder.close(kv));
    answers
}

#[test]
fn rs_10_streamed_is_resident_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let models = golden().into_iter().chain([synthetic(&folder)]);
    for (index, model) in models.enumerate() {
        let mut stays = resident(&model);
        let window = [None, Some(1), Some(3)][index % 3];
        let mut comes = streamed(&model, &options(window, Some(1 + index % 2)));
        let monitor = comes.monitor().expect("it streams");
        assert_eq!(monitor.residency().resident_layers, 0, "{}", model.display());
        for together in [false, true] {
            assert!(run(&mut stays, together) == run(&mut comes, together), "{}", model.display());
        }
        let (totals, layers) = (monitor.totals(), monitor.layers());
        assert_eq!(totals.steps, 4 * 3 + 4);
        assert_eq!(layers.len(), monitor.residency().streamed_layers);
        assert!(layers.iter().all(|layer| layer.bytes > 0 && layer.compute_ms > 0.0));
        assert!(totals.overlap() <= 1.0 && totals.bandwidth() > 0.0);
    }
}

/// Eight short sequences ended a worker in a control group of 2 GiB: each takes a piece of memory in every layer.
#[test]
fn short_sequences_are_counted_with_the_memory_they_take() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let refused = |context| {
        let memory = Some(ByteCount::mib(1));
        let options = DecoderLoadOptions { memory, context_length: Some(context), ..options(Some(1), Some(1)) };
        load_with(&model, &DeviceId::Cpu, &options, &mut |_| {}).map(|_| ()).unwrap_err().to_string()
    };
    let (one, full, more) = (refused(1), refused(32), refused(33));
    assert!(one.contains("keys and values"), "{one}");
    assert!(one == full && full != more, "{one}; {full}; {more}");
}

#[test]
fn rs_1_what_fits_stays_and_the_rest_comes() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let expected = run(&mut resident(&model), true);
    let (mut refused, mut mixed, mut stayed) = (0, 0, 0);
    for quarters in 0..60 {
        let memory = ByteCount((160 + quarters) << 18);
        let options = DecoderLoadOptions {
            memory: Some(memory),
            residency: ResidencyOptions { window: Some(1), block: Some(1), ..ResidencyOptions::default() },
            ..options(None, None)
        };
        match load_with(&model, &DeviceId::Cpu, &options, &mut |_| {}) {
            Ok(decoder) => {
                let mut decoder = Sequences::over(decoder);
                match decoder.monitor() {
                    Some(monitor) if monitor.residency().resident_layers > 0 => mixed += 1,
                    Some(_) => {}
                    None => stayed += 1,
                }
                assert!(run(&mut decoder, true) == expected, "in {memory}");
            }
            Err(error) => {
                assert!(matches!(error, LoadError::TooLarge { .. }), "{error}");
                assert_eq!(error.exit(), WorkerExit::OutOfMemory);
                let words = error.to_string();
                assert!(words.contains(&memory.to_string()) && words.contains("context"), "{words}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && mixed > 0 && stayed > 0, "{refused} refused, {mixed} mixed, {stayed} stayed");
}

#[test]
fn a_step_can_be_cut_short_between_layers_and_the_next_one_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let mut comes = streamed(&model, &options(Some(1), Some(1)));
    let kv = comes.open(32).unwrap();
    let step = [SequenceStep { kv, tokens: &[1, 2, 3], logits: Logits::All }];
    for layers in 0..4 {
        let asked = AtomicUsize::new(0);
        let stop = || asked.fetch_add(1, Ordering::SeqCst) >= layers;
        assert!(matches!(comes.forward_until(&step, &stop), Err(DecoderError::Interrupted)), "after {layers}");
        assert_eq!((asked.load(Ordering::SeqCst), comes.len(kv)), (layers + 1, 0));
    }
    let mut stays = resident(&model);
    let other = stays.open(32).unwrap();
    let expected = stays.forward(&[SequenceStep { kv: other, ..step[0].clone() }]).unwrap();
    assert_eq!(bits(&comes.forward(&step).unwrap()), bits(&expected));
}

#[test]
fn a_file_that_changes_underneath_ends_the_process_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let mut comes = streamed(&model, &options(Some(1), Some(1)));
    let kv = comes.open(32).unwrap();
    let step = |token: &'static [u32]| SequenceStep { kv, tokens: token, logits: Logits::Last };
    comes.forward(&[step(&[1])]).unwrap();
    OpenOptions::new().append(true).open(&model).unwrap().write_all(b"x").unwrap();
    // A block whose read had begun before the fault may still serve a step.
    let fault = (0..2).find_map(|_| comes.forward(&[step(&[2])]).err()).unwrap();
    assert!(
        matches!(&fault, DecoderError::Fatal(what) if what.contains("tiny.gguf") && what.contains("changed")),
        "{fault}"
    );
    // Later steps fail too.
    assert!(matches!(comes.forward(&[step(&[2])]), Err(DecoderError::Fatal(_))));
    // The copy of the model's file is truncated.
    let cut = tempfile::tempdir().unwrap();
    let model = synthetic(&cut);
    let mut comes = streamed(&model, &options(Some(1), Some(1)));
    let kv = comes.open(32).unwrap();
    let step = |token: &'static [u32]| SequenceStep { kv, tokens: token, logits: Logits::Last };
    let half = std::fs::metadata(&model).unwrap().len() / 2;
    File::options().write(true).open(&model).unwrap().set_len(half).unwrap();
    let fault = (0..2).find_map(|_| comes.forward(&[step(&[2])]).err()).unwrap();
    assert!(matches!(&fault, DecoderError::Fatal(what) if what.contains("tiny.gguf")), "{fault}");
    // If a new file is moved in its place, the old file stays readable while it is open.
    let second = tempfile::tempdir().unwrap();
    let model = synthetic(&second);
    let mut comes = streamed(&model, &options(Some(1), Some(1)));
    let kv = comes.open(32).unwrap();
    let beside = second.path().join("new");
    std::fs::copy(&model, &beside).unwrap();
    std::fs::rename(&beside, &model).unwrap();
    for _ in 0..3 {
        comes.forward(&[SequenceStep { kv, tokens: &[1], logits: Logits::Last }]).unwrap();
    }
}

#[test]
fn a_number_that_is_none_fails_the_step_with_the_tensors_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let extent = GgufModel::open(&model).unwrap().get("blk.2.ffn_up.weight").unwrap().extent();
    let mut file = OpenOptions::new().write(true).open(&model).unwrap();
    file.seek(SeekFrom::Start(extent.offset)).unwrap();
    file.write_all(&[0xFF; 8]).unwrap();
    let mut comes = streamed(&model, &options(None, Some(1)));
    let kv = comes.open(32).unwrap();
    let step = [SequenceStep { kv, tokens: &[1], logits: Logits::Last }];
    for _ in 0..2 {
        let fault = comes.forward(&step).unwrap_err().to_string();
        assert!(fault.contains("layers.2.mlp.up_proj") && fault.contains("NaN"), "{fault}");
    }
    comes.close(kv);
}

#[test]
fn rs_4_every_store_feeds_the_decoder_to_the_bit() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let model = synthetic(&folder);
    let expected = run(&mut resident(&model), true);
    let mut streams_only = None;
    // Files in memory and some file systems refuse direct reads: then only the refusal is tested.
    for store in [WeightStoreChoice::Auto, WeightStoreChoice::Direct, WeightStoreChoice::Map, WeightStoreChoice::Memory]
    {
        let options = DecoderLoadOptions { store, ..options(Some(1), Some(1)) };
        let mut comes = match load_with(&model, &DeviceId::Cpu, &options, &mut |_| {}) {
            Ok(comes) => Sequences::over(comes),
            Err(error) => {
                let words = error.to_string();
                assert!(store == WeightStoreChoice::Direct && words.contains("past the page cache"), "{words}");
                continue;
            }
        };
        let about = comes.monitor().unwrap().residency().store.clone();
        let words = match store {
            WeightStoreChoice::Auto | WeightStoreChoice::Direct => "direct (",
            WeightStoreChoice::Map => "mapped",
            WeightStoreChoice::Memory => "memory (4 of 4 blocks",
        };
        assert!(about.starts_with(words) || about.starts_with("through the page cache"), "{about}");
        // The report includes layers held in memory.
        let held = if store == WeightStoreChoice::Memory { std::fs::metadata(&model).unwrap().len() / 2 } else { 0 };
        let without = streams_only.get_or_insert(comes.info().weight_bytes);
        assert!(comes.info().weight_bytes >= *without + held, "{about}: {}", comes.info().weight_bytes);
        assert!(run(&mut comes, true) == expected, "{about}");
    }
}

#[test]
fn what_is_held_in_memory_outlives_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let expected = run(&mut resident(&model), true);
    let options = DecoderLoadOptions { store: WeightStoreChoice::Memory, ..options(Some(1), Some(1)) };
    let mut comes = streamed(&model, &options);
    File::options().write(true).open(&model).unwrap().set_len(0).unwrap();
    assert!(run(&mut comes, true) == expected);
}

#[test]
fn rs_5_layers_in_a_file_of_their_own_are_the_same_and_a_stale_one_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let expected = run(&mut resident(&model), true);
    let index = write_layer_index(&model, IndexOrder::Machine).unwrap();
    assert_eq!(index, folder.path().join("tiny.gguf.layers.json"));
    let arranges = std::fs::read_to_string(&index).unwrap().contains("tiles16");
    let with_index = |said: &str| {
        let mut comes = streamed(&model, &options(Some(2), Some(1)));
        let about = comes.monitor().unwrap().residency().clone();
        let store = about.store;
        assert!(store.contains(said), "{store}");
        assert!(run(&mut comes, true) == expected, "{store}");
        // With the index only reading remains. Without it, a machine that rearranges bytes still has that work.
        let left_to_do = arranges && said != ", index";
        assert_eq!(about.rearranged_bytes > 0, left_to_do, "{store}");
    };
    with_index(", index");
    // An index with bytes for another machine is ignored.
    let text = std::fs::read_to_string(&index).unwrap();
    std::fs::write(&index, text.replace("\"rows\"", "\"other\"").replace("\"tiles16\"", "\"other\"")).unwrap();
    with_index("arranged as other");
    std::fs::write(&index, "{").unwrap();
    with_index("no index");
    std::fs::write(&index, text).unwrap();
    let now = File::options().append(true).open(&model).unwrap();
    now.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    with_index("changed since");
    // An index in the model's order leaves as much to rearrange as no index.
    write_layer_index(&model, IndexOrder::Rows).unwrap();
    let mut comes = streamed(&model, &options(Some(2), Some(1)));
    let about = comes.monitor().unwrap().residency().clone();
    assert_eq!((about.store.ends_with(", index"), about.rearranged_bytes > 0), (true, arranges), "{}", about.store);
    assert!(run(&mut comes, true) == expected);
}

/// Doubles every element of a matrix, by the exponents of its blocks' factors, so that no rounding occurs.
fn doubled(dtype: &str, bytes: &mut [u8]) {
    let (block, factors): (usize, &[usize]) = match dtype {
        "F16" => (2, &[0]),
        "Q8_0" => (34, &[0]),
        "Q4_K" => (144, &[0, 2]),
        "Q6_K" => (210, &[208]),
        other => panic!("the test knows no {other}"),
    };
    for block in bytes.chunks_exact_mut(block) {
        for at in factors {
            let factor = half::f16::from_le_bytes([block[*at], block[at + 1]]);
            block[*at..at + 2].copy_from_slice(&half::f16::from_f32(2.0 * factor.to_f32()).to_le_bytes());
        }
    }
}

#[test]
fn rs_5_a_scale_in_the_index_is_a_factor_on_the_matrix() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let expected = run(&mut resident(&model), true);
    let index = write_layer_index(&model, IndexOrder::Rows).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
    let data = index.with_extension("bin");
    let mut bytes = std::fs::read(&data).unwrap();
    let at = |piece: &serde_json::Value, field: &str| usize::try_from(piece[field].as_u64().unwrap()).unwrap();
    for piece in json["layers"].as_array_mut().unwrap().iter_mut().step_by(2) {
        let (offset, len) = (at(piece, "offset"), at(piece, "nbytes"));
        doubled(piece["dtype"].as_str().unwrap(), &mut bytes[offset..offset + len]);
        piece["scale"] = 0.5.into();
    }
    std::fs::write(&data, &bytes).unwrap();
    std::fs::write(&index, json.to_string()).unwrap();
    // Some layers are resident and others are streamed.
    for window in [None, Some(1)] {
        let mut comes = streamed(&model, &options(window, Some(1)));
        let store = comes.monitor().unwrap().residency().store.clone();
        assert!(store.ends_with(", index"), "{store}");
        assert!(run(&mut comes, true) == expected, "{store}");
    }
}

#[test]
fn rs_5_what_cannot_be_written_leaves_no_half_a_copy_and_the_index_before() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let index = write_layer_index(&model, IndexOrder::Machine).unwrap();
    let before = std::fs::read(&index).unwrap();
    // A folder has the name of the unfinished file, which therefore cannot be written, as on a full disk.
    let unfinished = folder.path().join("tiny.gguf.layers.bin.part");
    std::fs::create_dir(&unfinished).unwrap();
    let error = write_layer_index(&model, IndexOrder::Rows).unwrap_err().to_string();
    assert!(error.contains("tiny.gguf.layers.bin.part"), "{error}");
    assert_eq!(std::fs::read(&index).unwrap(), before);
    std::fs::remove_dir(&unfinished).unwrap();
    write_layer_index(&model, IndexOrder::Rows).unwrap();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".part")), "{left:?}");
}

#[test]
fn rs_5_a_folder_of_safetensors_has_an_index_too() {
    let folder = tempfile::tempdir().unwrap();
    let model = golden().into_iter().find(|model| model.join("model.safetensors").exists()).unwrap();
    for entry in std::fs::read_dir(&model).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    write_layer_index(folder.path(), IndexOrder::Machine).unwrap();
    let mut comes = streamed(folder.path(), &options(None, None));
    assert!(comes.monitor().unwrap().residency().store.ends_with(", index"));
    assert!(run(&mut comes, true) == run(&mut resident(&model), true));
}
