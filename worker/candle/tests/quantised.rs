//! Safetensors with quantised matrices, compared with `transformers` on the floats that the formats' own packages make
//! of them: resident, streamed from the model's files, streamed through an index, and written as GGUF. The models are
//! from `scripts/reference/quantised_models.py`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

use std::path::{Path, PathBuf};

use model_boss_candle::{Conversion, DecoderLoadOptions, IndexOrder, MatrixType, load, load_with, write_layer_index};
use model_boss_engine::residency::plan::ResidencyOptions;
use model_boss_engine::{Logits, SequenceStep, Sequences};
use model_boss_protocol::{DeviceId, ResidencyMode};
use model_boss_weights::gguf::HeaderWriter;
use serde::Deserialize;

#[derive(Deserialize)]
struct ExpectedAnswers {
    cases: Vec<AnswerCase>,
}

#[derive(Deserialize)]
struct AnswerCase {
    prompt: Vec<u32>,
    last_logits: Vec<f32>,
}

fn models() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quantised");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert_eq!(folders.len(), 7, "a way of quantisation each, and one more with latent attention");
    folders
}

fn cases(folder: &Path) -> Vec<AnswerCase> {
    let expected: ExpectedAnswers =
        serde_json::from_slice(&std::fs::read(folder.join("expected.json")).unwrap()).unwrap();
    expected.cases
}

fn resident(model: &Path) -> Sequences {
    Sequences::over(load(model, &DeviceId::Cpu, None, &mut |_| {}).unwrap_or_else(|error| panic!("{error}")))
}

fn streamed(model: &Path) -> Sequences {
    let residency = ResidencyOptions { mode: ResidencyMode::Stream, window: Some(1), block: Some(1) };
    let options = DecoderLoadOptions { context_length: Some(64), residency, ..DecoderLoadOptions::default() };
    Sequences::over(load_with(model, &DeviceId::Cpu, &options, &mut |_| {}).unwrap_or_else(|error| panic!("{error}")))
}

/// The logits behind each prompt.
fn answers(decoder: &mut Sequences, folder: &Path) -> Vec<Vec<f32>> {
    let answer = |case: AnswerCase| {
        let kv = decoder.open(48).unwrap();
        let step = SequenceStep { kv, tokens: &case.prompt, logits: Logits::Last };
        let logits = decoder.forward(&[step]).unwrap().remove(0);
        decoder.close(kv);
        logits
    };
    cases(folder).into_iter().map(answer).collect()
}

/// The largest difference from the reference, as a share of the largest logit.
fn apart(answers: &[Vec<f32>], folder: &Path) -> f32 {
    let mut worst = 0.0_f32;
    for (ours, case) in answers.iter().zip(cases(folder)) {
        let largest = case.last_logits.iter().fold(0.0_f32, |largest, logit| largest.max(logit.abs()));
        for (ours, theirs) in ours.iter().zip(&case.last_logits) {
            worst = worst.max((ours - theirs).abs() / largest);
        }
    }
    worst
}

#[test]
fn fa_2_quantised_safetensors_answer_as_their_floats_do_in_transformers() {
    for folder in models() {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let apart = apart(&answers(&mut resident(&folder), &folder), &folder);
        // Products of integers round activations to 8 bits, which such narrow models show. Products of FP8 round
        // nothing; keys and values are f16.
        let allowed = if name == "fp8" { 2e-3 } else { 0.12 };
        assert!(apart < allowed, "{name}: {apart}");
    }
}

#[test]
fn fa_2_quantised_safetensors_stream_as_they_are_resident_to_the_bit() {
    for folder in models() {
        let copy = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors", "expected.json"] {
            std::fs::copy(folder.join(file), copy.path().join(file)).unwrap();
        }
        let whole = answers(&mut resident(&folder), &folder);
        let mut from_files = streamed(copy.path());
        let store = from_files.monitor().unwrap().residency().store.clone();
        assert!(store.contains("blocks made of mapped files"), "{store}");
        assert!(answers(&mut from_files, &folder) == whole, "{}", folder.display());
        write_layer_index(copy.path(), IndexOrder::Machine).unwrap();
        let mut indexed = streamed(copy.path());
        let store = indexed.monitor().unwrap().residency().store.clone();
        assert!(store.ends_with("index"), "{store}");
        assert!(answers(&mut indexed, &folder) == whole, "{}", folder.display());
    }
}

#[test]
fn fa_2_quantised_safetensors_are_written_as_gguf_with_their_columns_in_order() {
    // Families that differ from Llama are not written.
    for folder in models().into_iter().filter(|folder| !folder.ends_with("gptq-act-order-latent")) {
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("model.gguf");
        let conversion = Conversion::open(&folder, MatrixType::F16).unwrap();
        conversion.write(HeaderWriter::new(), std::fs::File::create(&path).unwrap()).unwrap();
        let apart = apart(&answers(&mut resident(&path), &folder), &folder);
        assert!(apart < 4e-3, "{}: {apart}", folder.display());
    }
}

#[test]
fn fa_2_a_description_beside_the_configuration_is_as_good_as_one_inside() {
    for (name, file) in [("gptq", "quantize_config.json"), ("awq", "quant_config.json")] {
        let folder = models().into_iter().find(|folder| folder.ends_with(name)).unwrap();
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(folder.join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
        let config = std::fs::read(folder.join("config.json")).unwrap();
        let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&config).unwrap();
        let mut about = config.remove("quantization_config").unwrap();
        // The older files do not say what they are.
        about.as_object_mut().unwrap().remove("quant_method").unwrap();
        std::fs::write(copy.path().join("config.json"), serde_json::to_string(&config).unwrap()).unwrap();
        std::fs::write(copy.path().join(file), about.to_string()).unwrap();
        let inside = answers(&mut resident(&folder), &folder);
        assert!(answers(&mut resident(copy.path()), &folder) == inside, "{name}");
        std::fs::write(copy.path().join(file), "4 bits").unwrap();
        let error = load(copy.path(), &DeviceId::Cpu, None, &mut |_| {}).map(|_| ()).unwrap_err().to_string();
        assert!(error.ends_with(&format!("{file} is no JSON object")), "{error}");
    }
}

#[test]
fn fa_2_a_matrix_whose_parts_do_not_fit_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = &models()[0];
    std::fs::copy(model.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(model.join("config.json")).unwrap();
    std::fs::write(folder.path().join("config.json"), config.replace("\"group_size\": 32", "\"group_size\": 64"))
        .unwrap();
    let error = load(folder.path(), &DeviceId::Cpu, None, &mut |_| {}).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("qzeros` has the shape"), "{error}");
    std::fs::write(folder.path().join("config.json"), config.replace("\"awq\"", "\"hqq\"")).unwrap();
    let error = load(folder.path(), &DeviceId::Cpu, None, &mut |_| {}).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("quant_method `hqq`") && error.contains("GGUF"), "{error}");
}
