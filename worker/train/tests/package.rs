//! The trainer's package, read by the parts that use it: the worker's decoder, its template renderer, the manifest
//! reader.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use model_boss_engine::text::{ChatTemplate, Conversation};
use model_boss_engine::{Logits, SequenceStep, Sequences};
use model_boss_protocol::{DeviceId, Manifest};
use model_boss_train::corpus;
use model_boss_train::evaluate;
use model_boss_train::model::{Architecture, GuideModel};
use model_boss_train::package;
use model_boss_train::text::{CHAT_TEMPLATE, GuideText};
use serde_json::{Value, json};

fn corpus_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn guide_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/guide")
}

fn text() -> GuideText {
    GuideText::train(&corpus::read_families(&corpus_folder()).unwrap(), 600).unwrap()
}

/// The text of messages by the worker's renderer.
fn render(messages: Value) -> String {
    let sources = BTreeMap::from([("default".to_owned(), CHAT_TEMPLATE.to_owned())]);
    let template = ChatTemplate::new(sources, BTreeMap::new()).unwrap();
    let messages = serde_json::from_value(messages).unwrap();
    template.render(&Conversation { messages, ..Conversation::default() }).unwrap()
}

#[test]
fn the_workers_decoder_computes_the_trainers_logits() {
    let folder = tempfile::tempdir().unwrap();
    let text = text();
    let architecture = Architecture { num_hidden_layers: 2, ..Architecture::guide(text.vocab_size()) };
    let model = GuideModel::random(architecture, 11).unwrap();
    package::write(folder.path(), &model, &text).unwrap();
    // The file has f16 weights, so the trainer's model is rounded to the same numbers.
    for var in model.parameters.values() {
        var.set(&var.to_dtype(DType::F16).unwrap().to_dtype(DType::F32).unwrap()).unwrap();
    }

    let tokens = text.question("Which port does model-boss listen on?").unwrap();
    let time = tokens.len();
    let input = Tensor::from_slice(&tokens, (1, time), &Device::Cpu).unwrap();
    let places = (0..time as u32).collect();
    let expected = model.forward(&input, &vec![0; time].into(), places).unwrap().to_vec2::<f32>().unwrap();

    let mut decoder =
        Sequences::over(model_boss_candle::load(folder.path(), &DeviceId::Cpu, None, &mut |_| ()).unwrap());
    let kv = decoder.open(time).unwrap();
    let step = SequenceStep { kv, tokens: &tokens, logits: Logits::All };
    let found = decoder.forward(&[step]).unwrap();
    let vocab_size = model.architecture.vocab_size;
    // The worker stores keys and values in 16 bits (ADR 19).
    let largest = expected.iter().flatten().fold(0.0_f32, |largest, logit| largest.max(logit.abs()));
    for (place, (expected, found)) in expected.iter().zip(found[0].chunks_exact(vocab_size)).enumerate() {
        for (e, f) in expected.iter().zip(found) {
            assert!((e - f).abs() < 2e-3 * largest, "behind token {place}: {f} is not {e}");
        }
    }
}

#[test]
fn the_chat_template_renders_what_was_trained() {
    let text = text();
    for question in ["Which PORT does model-boss listen on?", "  hello there  ", "what?? now"] {
        let rendered = render(json!([{"role": "user", "content": question}]));
        assert_eq!(text.encode(&rendered).unwrap(), text.question(question).unwrap(), "{rendered}");
    }
    let exchange = [text.question("Hi").unwrap(), text.answer("Hello!").unwrap(), text.question("Port?").unwrap()];
    let rendered = render(json!([
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Port?"},
    ]));
    assert_eq!(text.encode(&rendered).unwrap(), exchange.concat());
}

#[test]
fn the_chat_template_keeps_the_last_exchange_and_reads_parts() {
    let last = render(json!([{"role": "user", "content": "c"}]));
    let long = render(json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "b"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": [{"type": "text", "text": "c"}]},
    ]));
    assert!(long.ends_with(&last) && !long.contains("Be brief") && long.matches("<|user|>").count() == 2, "{long}");
}

#[test]
fn the_committed_package_is_complete_and_answers() {
    let folder = guide_folder();
    let manifest = std::fs::read_to_string(folder.join("model.toml")).unwrap();
    let manifest: Manifest = toml::from_str(&manifest).unwrap();
    manifest.check().unwrap();
    assert_eq!((manifest.name.as_str(), manifest.aliases), ("guide", vec!["default".to_owned()]));

    let size: u64 = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(size <= 8 << 20, "{size} bytes");
    let config: Value = serde_json::from_slice(&std::fs::read(folder.join("tokenizer_config.json")).unwrap()).unwrap();
    assert_eq!(config["chat_template"], CHAT_TEMPLATE, "retrain: the template has changed");

    let mut decoder = Sequences::over(model_boss_candle::load(&folder, &DeviceId::Cpu, None, &mut |_| ()).unwrap());
    let text = GuideText::open(&folder.join("tokenizer.json")).unwrap();
    let answers = evaluate::answer(&mut decoder, &text, &["Which port does model-boss listen on?", "Hi!"]).unwrap();
    assert!(answers[0].contains("8210"), "{answers:?}");
    assert!(answers[1].contains("Hello"), "{answers:?}");
}

#[test]
fn guide_answers_most_held_out_questions() {
    let mut decoder =
        Sequences::over(model_boss_candle::load(&guide_folder(), &DeviceId::Cpu, None, &mut |_| ()).unwrap());
    let text = GuideText::open(&guide_folder().join("tokenizer.json")).unwrap();
    let questions = corpus::read_held_out(&corpus_folder().join("heldout.txt")).unwrap();
    let report = evaluate::evaluate(&mut decoder, &text, &questions).unwrap();
    assert!(report.share() >= 0.8, "{} of {}", report.correct(), questions.len());
}
