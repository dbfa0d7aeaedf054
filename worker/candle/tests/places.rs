//! One model on several devices (RC-22). Answers are the same to the bit as on one. Keys and values are on the device
//! of their layers, and activations are copied once per border and step. The devices are places on the CPU, each with
//! memory of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

use std::fs::File;
use std::path::{Path, PathBuf};

use model_boss_candle::{DecoderLoadOptions, DeviceOptions, LoadError, Synthetic, load, load_over};
use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_engine::{KvSlot, Logits, PlaceReport, PlaceUse, SequenceStep, Sequences};
use model_boss_protocol::{ByteCount, DeviceId, ResidencyMode, WorkerExit};
use model_boss_weights::gguf::HeaderWriter;

const CONTEXT: u64 = 1_024;

fn golden() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

/// A model of random weights in Q4_K and Q6_K: four layers of 256 in width, an embedding and a head.
fn synthetic(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("tiny.gguf");
    Synthetic::of("qwen3-tiny").unwrap().write(3, HeaderWriter::new(), File::create(&path).unwrap()).unwrap();
    path
}

/// A place on the CPU with a weight among others, and a limit if one is given.
fn place(share: u64, limit: Option<u64>) -> DeviceOptions {
    DeviceOptions { device: DeviceId::Cpu, share: Some(ByteCount(share)), limit: limit.map(ByteCount) }
}

fn options(mode: ResidencyMode) -> DecoderLoadOptions {
    let residency = ResidencyOptions { mode, window: Some(1), block: Some(1) };
    DecoderLoadOptions { context_length: Some(CONTEXT), residency, ..DecoderLoadOptions::default() }
}

fn over(model: &Path, places: &[DeviceOptions], mode: ResidencyMode) -> Sequences {
    Sequences::over(load_over(model, places, &options(mode), &mut |_| {}).unwrap_or_else(|error| panic!("{error}")))
}

/// All of it in one place.
fn whole(model: &Path) -> Sequences {
    Sequences::over(load(model, &DeviceId::Cpu, Some(CONTEXT), &mut |_| {}).unwrap())
}

fn reports(decoder: &Sequences) -> Vec<PlaceReport> {
    decoder.places().iter().map(PlaceUse::report).collect()
}

/// Runs three sequences in a batch: one of them a long prompt, then a token each. Returns all logits' bits, and the
/// number of rows computed.
fn run(decoder: &mut Sequences) -> (Vec<Vec<u32>>, usize) {
    let vocab = decoder.info().vocab_size as u32;
    let token = |i: u32| (i * 7 + 3) % vocab;
    let longest = decoder.info().context_length.min(700) as u32 - 4;
    let prompts: Vec<Vec<u32>> = [longest, 1, 4].map(|len| (0..len).map(token).collect()).to_vec();
    let slots: Vec<KvSlot> = prompts.iter().map(|prompt| decoder.open(prompt.len() + 4).unwrap()).collect();
    let (mut answers, mut rows) = (Vec::new(), 0);
    for round in 0..3 {
        let tokens = |prompt: &Vec<u32>| if round == 0 { prompt.clone() } else { vec![token(round)] };
        let tokens: Vec<Vec<u32>> = prompts.iter().map(tokens).collect();
        let step = |(kv, tokens): (&KvSlot, &'_ Vec<u32>)| (*kv, tokens.clone());
        let owned: Vec<(KvSlot, Vec<u32>)> = slots.iter().zip(&tokens).map(step).collect();
        let steps: Vec<SequenceStep<'_>> =
            owned.iter().map(|(kv, tokens)| SequenceStep { kv: *kv, tokens, logits: Logits::Last }).collect();
        let logits = decoder.forward(&steps).unwrap();
        answers.extend(logits.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect::<Vec<u32>>()));
        rows += tokens.iter().map(Vec::len).sum::<usize>();
    }
    let held = reports(decoder);
    let of_layers: u64 = held.iter().map(|place| place.kv_bytes).sum();
    assert!(of_layers > 0 && of_layers.is_multiple_of(decoder.info().kv_bytes_per_token as u64));
    slots.into_iter().for_each(|kv| decoder.close(kv));
    assert!(reports(decoder).iter().all(|place| place.kv_bytes == 0));
    (answers, rows)
}

#[test]
fn rc_22_several_places_are_one_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    // With a base that follows the length, each token beyond the original one is computed with all before it.
    let models = golden().into_iter().filter(|model| !model.ends_with("dynamic-old"));
    for model in models.chain([synthetic(&folder)]) {
        let (expected, rows) = run(&mut whole(&model));
        for shares in [&[1 << 30, 1 << 30][..], &[1 << 30, 3 << 30], &[2 << 30, 1 << 30, 1 << 30]] {
            let places: Vec<_> = shares.iter().map(|share| place(*share, None)).collect();
            let mut split = over(&model, &places, ResidencyMode::Auto);
            assert!(run(&mut split).0 == expected, "{} over {shares:?}", model.display());
            let reports = reports(&split);
            // A place with room for half a layer gets none.
            if reports.len() == 1 {
                assert!(reports[0].layers <= 2 && shares[0] != shares[1], "{}", model.display());
                continue;
            }
            // Activations are received once per step: all rows, each as wide as the model.
            assert_eq!((reports[0].received, reports[0].received_bytes), (0, 0));
            let width = reports[1].received_bytes / rows as u64;
            for place in &reports[1..] {
                assert_eq!((place.received, place.received_bytes), (3, rows as u64 * width), "{}", model.display());
            }
            let layers: usize = reports.iter().map(|place| place.layers).sum();
            let border = reports.windows(2).all(|pair| pair[0].first_layer + pair[0].layers == pair[1].first_layer);
            assert!(border && layers > 1 && reports.iter().all(|place| place.weight_bytes > 0));
        }
    }
}

#[test]
fn rc_22_layers_are_where_there_is_room_with_their_keys_and_values() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let mut split = over(&model, &[place(3 << 30, None), place(1 << 30, None)], ResidencyMode::Auto);
    let parts: Vec<_> = reports(&split).iter().map(|place| (place.first_layer, place.layers)).collect();
    assert_eq!(parts, [(0, 3), (3, 1)]);
    let kv = split.open(64).unwrap();
    split.forward(&[SequenceStep { kv, tokens: &[1, 2, 3], logits: Logits::Last }]).unwrap();
    let held: Vec<u64> = reports(&split).iter().map(|place| place.kv_bytes).collect();
    assert_eq!(held[0], 3 * held[1]);
    let [first, last] = [0, 1].map(|at| reports(&split)[at].weight_bytes);
    assert_eq!(first + last, split.info().weight_bytes);
    assert!(first > 2 * last, "three layers and the embedding, one and the head: {first}, {last}");
}

#[test]
fn a_place_that_is_too_small_streams_and_the_other_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let (expected, _) = run(&mut whole(&model));
    // All layers are streamed.
    let mut comes = over(&model, &[place(1 << 30, None), place(1 << 30, None)], ResidencyMode::Stream);
    assert!(run(&mut comes).0 == expected);
    let monitor = comes.monitor().unwrap();
    assert_eq!((monitor.residency().streamed_layers, monitor.residency().slots), (4, 4));
    let layers: Vec<usize> = monitor.layers().iter().map(|layer| layer.layer).collect();
    assert_eq!(layers, [0, 1, 2, 3]);
    assert_eq!(monitor.totals().steps, 3);
    // A limit is searched under which the second place streams. The first has no limit, so its layers are resident.
    let mut streamed = None;
    for quarters in 0..64 {
        let places = [place(1 << 30, None), place(3 << 30, Some((164 + quarters) << 18))];
        match load_over(&model, &places, &options(ResidencyMode::Auto), &mut |_| {}) {
            Ok(decoder) => {
                let mut decoder = Sequences::over(decoder);
                assert!(run(&mut decoder).0 == expected);
                if let Some(monitor) = decoder.monitor() {
                    assert_eq!(monitor.layers()[0].layer, 1);
                    streamed = Some(monitor.residency().streamed_layers);
                }
            }
            Err(LoadError::TooLarge { .. }) => assert!(streamed.is_none()),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(streamed.is_some());
}

#[test]
fn a_place_that_is_too_small_for_what_stays_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = synthetic(&folder);
    let places = [place(1 << 30, None), place(1 << 30, Some(1_000))];
    let error = load_over(&model, &places, &options(ResidencyMode::Resident), &mut |_| {}).err().unwrap();
    assert_eq!(error.exit(), WorkerExit::OutOfMemory);
    assert!(error.to_string().contains("on cpu"), "{error}");
    let nowhere = load_over(&model, &[], &options(ResidencyMode::Auto), &mut |_| {}).err().unwrap();
    assert_eq!(nowhere.exit(), WorkerExit::DeviceLost);
}
