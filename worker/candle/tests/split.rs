//! Models in several GGUF files, as `llama-gguf-split` writes them. They answer as the whole file does, to the bit, and
//! a part that does not fit is named.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed unwrap is a failed test with a line number")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use model_boss_candle::{DecoderLoadOptions, IndexOrder, Synthetic, load_with, write_layer_index};
use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_engine::{Logits, SequenceStep, Sequences};
use model_boss_protocol::{DeviceId, ResidencyMode, WorkerExit};
use model_boss_weights::gguf::{GgufModel, HeaderWriter};
use model_boss_weights::store::WeightStoreChoice;

/// A model of random weights in Q4_K and Q6_K, with four layers.
fn whole(folder: &Path, seed: u64) -> PathBuf {
    let path = folder.join("whole.gguf");
    let model = Synthetic::of("qwen3-tiny").unwrap();
    model.write(seed, HeaderWriter::new(), File::create(&path).unwrap()).unwrap();
    path
}

fn part(folder: &Path, number: usize, count: usize) -> PathBuf {
    folder.join(format!("m-{number:05}-of-{count:05}.gguf"))
}

/// Splits a model into parts of these numbers of tensors; the rest is in the last part. As `llama-gguf-split` does, it
/// gives the metadata to the first part only.
fn split(whole: &Path, folder: &Path, sizes: &[usize]) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let model = GgufModel::open(whole).unwrap();
    let header = model.header().unwrap();
    let (all, count) = (header.tensors().len(), sizes.len() + 1);
    let mut tensors = header.tensors().iter();
    for (index, size) in sizes.iter().copied().chain([all]).enumerate() {
        let mut writer = HeaderWriter::new();
        for (key, value) in header.metadata().iter().filter(|_| index == 0) {
            writer.set(key, value).unwrap();
        }
        writer.set("split.no", &u32::try_from(index).unwrap()).unwrap();
        writer.set("split.count", &u32::try_from(count).unwrap()).unwrap();
        writer.set("split.tensors.count", &i32::try_from(all).unwrap()).unwrap();
        let of_part: Vec<_> = tensors.by_ref().take(size).collect();
        for tensor in &of_part {
            writer.tensor(tensor.name, tensor.kind, tensor.shape()).unwrap();
        }
        let mut body = writer.begin(File::create(part(folder, index + 1, count)).unwrap()).unwrap();
        for tensor in of_part {
            body.write(model.files()[0].bytes(tensor)).unwrap();
        }
        body.finish().unwrap();
    }
    part(folder, 1, count)
}

fn logits(model: &Path, residency: ResidencyMode, store: WeightStoreChoice) -> Vec<Vec<u32>> {
    let residency = ResidencyOptions { mode: residency, window: Some(1), block: Some(1) };
    let options = DecoderLoadOptions { context_length: Some(64), residency, store, ..DecoderLoadOptions::default() };
    let decoder = load_with(model, &DeviceId::Cpu, &options, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let mut decoder = Sequences::over(decoder);
    assert_eq!(decoder.monitor().is_some(), residency.mode == ResidencyMode::Stream);
    let kv = decoder.open(32).unwrap();
    let mut rows = Vec::new();
    for tokens in [&[5_u32, 1, 300, 7][..], &[9], &[2]] {
        rows.extend(decoder.forward(&[SequenceStep { kv, tokens, logits: Logits::All }]).unwrap());
    }
    rows.iter().map(|row| row.iter().map(|logit| logit.to_bits()).collect()).collect()
}

#[test]
fn fa_2_a_split_model_is_the_whole_model_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let whole = whole(folder.path(), 3);
    let expected = logits(&whole, ResidencyMode::Resident, WeightStoreChoice::Auto);
    // The first cut is inside of a layer. In the second model the first part has no tensor.
    for (name, sizes) in [("inside", [8, 17]), ("header", [0, 10])] {
        let parts = folder.path().join(name);
        let first = split(&whole, &parts, &sizes);
        for named in [first.clone(), part(&parts, 3, 3), parts.clone()] {
            let rows = logits(&named, ResidencyMode::Resident, WeightStoreChoice::Auto);
            assert!(rows == expected, "{}", named.display());
        }
        let streamed = |store| logits(&first, ResidencyMode::Stream, store) == expected;
        for store in [WeightStoreChoice::Auto, WeightStoreChoice::Map, WeightStoreChoice::Memory] {
            assert!(streamed(store), "{name} {store:?}");
        }
        // An index of layers is made from all parts, and is beside the first one whichever was named.
        let index = write_layer_index(&part(&parts, 2, 3), IndexOrder::Machine).unwrap();
        assert_eq!(index, parts.join("m-00001-of-00003.gguf.layers.json"));
        let text = fs::read_to_string(index).unwrap();
        assert!(text.contains("m-00003-of-00003.gguf"), "{text}");
        assert!(streamed(WeightStoreChoice::Auto), "{name} with an index");
        assert!(logits(&parts, ResidencyMode::Resident, WeightStoreChoice::Auto) == expected, "beside an index");
    }
}

#[test]
fn fa_2_parts_that_make_no_whole_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = whole(folder.path(), 3);
    let parts = folder.path().join("parts");
    let first = split(&model, &parts, &[8, 17]);
    let third = part(&parts, 3, 3);
    let says = |named: &Path, words: &[&str]| {
        let options = DecoderLoadOptions::default();
        let error = load_with(named, &DeviceId::Cpu, &options, &mut |_| {}).map(drop).expect_err("loaded all the same");
        assert_eq!(error.exit(), WorkerExit::BadModel, "{error}");
        words.iter().for_each(|word| assert!(error.to_string().contains(word), "'{word}' is not in: {error}"));
    };
    let bytes = fs::read(&third).unwrap();
    File::options().write(true).open(&third).unwrap().set_len(bytes.len() as u64 / 2).unwrap();
    says(&first, &["m-00003-of-00003.gguf", "cut short"]);
    fs::remove_file(&third).unwrap();
    for named in [&first, &parts] {
        says(named, &["the model lacks 1 of its 3 parts: m-00003-of-00003.gguf", "put all parts into one folder"]);
    }
    fs::write(&third, &bytes).unwrap();
    fs::rename(&first, folder.path().join("kept")).unwrap();
    for named in [&third, &parts] {
        says(named, &["lacks 1 of its 3 parts: m-00001-of-00003.gguf"]);
    }
    // The third part of a model that was split elsewhere has tensors that the second part has too.
    let other = split(&model, &folder.path().join("other"), &[8, 12]);
    fs::rename(folder.path().join("kept"), &first).unwrap();
    fs::copy(part(other.parent().unwrap(), 3, 3), &third).unwrap();
    says(&first, &["m-00003-of-00003.gguf: tensor `", "m-00002-of-00003.gguf too", "part of another model"]);
    let fewer = split(&model, &folder.path().join("fewer"), &[8, 20]);
    fs::copy(part(fewer.parent().unwrap(), 3, 3), &third).unwrap();
    says(&first, &["m-00001-of-00003.gguf: the model has", "tensors by its header", "3 parts"]);
}
