//! Encoders beside `sentence-transformers` and `transformers`: tiny random models of each family, from
//! `scripts/reference/encoders.py`.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

#[path = "family_cases/rule.rs"]
mod rule;

use std::collections::BTreeMap;
use std::path::Path;

use model_boss_candle::load_encoder;
use model_boss_engine::TextEncoder;
use model_boss_protocol::DeviceId;
use rule::{TensorRule, safetensors};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct EncoderCase {
    case: String,
    files: BTreeMap<String, Value>,
    weights: BTreeMap<String, WeightRules>,
    texts: Vec<Vec<u32>>,
    vectors: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct WeightRules {
    seed: u64,
    tensors: Vec<TensorRule>,
}

impl EncoderCase {
    fn all() -> Vec<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoders");
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert!(files.len() >= 9, "cases are missing");
        files.iter().map(|file| serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()).collect()
    }

    fn write(&self, folder: &Path) {
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        self.files.iter().for_each(|(name, text)| write(name, text.to_string().as_bytes()));
        self.weights.iter().for_each(|(name, rules)| write(name, &safetensors(&rules.tensors, rules.seed)));
    }

    fn loaded(&self) -> Box<dyn TextEncoder> {
        let folder = tempfile::tempdir().unwrap();
        self.write(folder.path());
        load_encoder(folder.path(), &DeviceId::Cpu, &mut |_| {})
            .unwrap_or_else(|error| panic!("{}: {error}", self.case))
    }
}

#[test]
fn em_1_every_encoder_gives_the_vectors_of_sentence_transformers() {
    for case in EncoderCase::all() {
        let mut encoder = case.loaded();
        let texts: Vec<&[u32]> = case.texts.iter().map(Vec::as_slice).collect();
        let vectors = encoder.encode(&texts).unwrap();
        assert_eq!(encoder.info().width, case.vectors[0].len(), "{}", case.case);
        for (ours, theirs) in vectors.iter().zip(&case.vectors) {
            let largest = theirs.iter().fold(1e-3_f32, |largest, number| largest.max(number.abs()));
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert!((ours - theirs).abs() < 2e-5 * largest.max(1.0), "{}: {ours} for {theirs}", case.case);
            }
        }
    }
}

#[test]
fn em_5_a_vector_does_not_depend_on_the_texts_beside_it() {
    for case in EncoderCase::all() {
        let mut encoder = case.loaded();
        let texts: Vec<&[u32]> = case.texts.iter().rev().map(Vec::as_slice).collect();
        let together = encoder.encode(&texts).unwrap();
        for (text, together) in texts.iter().zip(together) {
            let alone = encoder.encode(&[text]).unwrap().remove(0);
            let apart = alone.iter().zip(&together).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-5, "{}: {apart}", case.case);
        }
    }
}

#[test]
fn em_1_what_no_encoder_can_do_is_refused_by_name() {
    let case = EncoderCase::all().remove(0);
    let mut encoder = case.loaded();
    let longest = encoder.info().max_tokens;
    for text in [vec![], vec![5; longest + 1], vec![9_999]] {
        assert!(encoder.encode(&[&text]).is_err());
    }
    assert!(encoder.encode(&[]).unwrap().is_empty());
    let refused = |change: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        case.write(folder.path());
        change(folder.path());
        load_encoder(folder.path(), &DeviceId::Cpu, &mut |_| {}).err().unwrap().to_string()
    };
    let config = |folder: &Path, from: &str, to: &str| {
        let path = folder.join("config.json");
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap().replace(from, to)).unwrap();
    };
    assert!(refused(&|folder| config(folder, "\"bert\"", "\"llama\"")).contains("llama"));
    assert!(
        refused(&|folder| config(folder, "\"num_hidden_layers\":2", "\"num_hidden_layers\":3")).contains("layer.2.")
    );
    assert!(refused(&|folder| config(folder, "\"vocab_size\":90", "\"vocab_size\":91")).contains("word_embeddings"));
    assert!(refused(&|folder| std::fs::remove_file(folder.join("config.json")).unwrap()).contains("config.json"));
}
