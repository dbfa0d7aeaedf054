//! Models that speak beside `transformers`: tiny random ones of several shapes, from `scripts/reference/vits.py`, with
//! the noise of the same seeds, and from `scripts/reference/csm.py`, with the most likely codes.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

#[path = "family_cases/rule.rs"]
mod rule;

use std::collections::BTreeMap;
use std::path::Path;

use model_boss_candle::load_speaker;
use model_boss_engine::{PartEnd, Speaker, SpeakerMemory, SpeechListener, SpokenPart, TorchGenerator};
use model_boss_protocol::DeviceId;
use rule::{TensorRule, safetensors};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

#[derive(Deserialize)]
struct SpeechCase {
    case: String,
    files: BTreeMap<String, Value>,
    weights: BTreeMap<String, WeightRules>,
    spoken: Vec<SpokenCase>,
}

/// A case with models of the kind `csm`.
#[derive(Deserialize)]
struct CsmCase {
    case: String,
    files: BTreeMap<String, Value>,
    weights: BTreeMap<String, WeightRules>,
    spoken: Vec<CsmSpoken>,
}

#[derive(Deserialize)]
struct CsmSpoken {
    text: String,
    voice: usize,
    frames: Vec<Vec<u32>>,
    samples: Vec<f32>,
}

#[derive(Deserialize)]
struct WeightRules {
    seed: u64,
    tensors: Vec<TensorRule>,
}

#[derive(Deserialize)]
struct SpokenCase {
    text: String,
    voice: usize,
    speed: f32,
    seed: u64,
    symbols: Vec<u32>,
    samples: Vec<f32>,
}

fn cases() -> Vec<SpeechCase> {
    cases_in("tests/speech")
}

fn cases_in<T: DeserializeOwned>(folder: &str) -> Vec<T> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()).collect()
}

fn write(folder: &Path, files: &BTreeMap<String, Value>, weights: &BTreeMap<String, WeightRules>) {
    for (name, text) in files {
        std::fs::write(folder.join(name), text.to_string()).unwrap();
    }
    for (name, rules) in weights {
        std::fs::write(folder.join(name), safetensors(&rules.tensors, rules.seed)).unwrap();
    }
}

fn load(
    files: &BTreeMap<String, Value>,
    weights: &BTreeMap<String, WeightRules>,
) -> (tempfile::TempDir, Box<dyn Speaker>) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), files, weights);
    let speaker = load_speaker(folder.path(), &DeviceId::Cpu, &mut |_| {}).unwrap();
    (folder, speaker)
}

impl SpeechCase {
    fn load(&self) -> (tempfile::TempDir, Box<dyn Speaker>) {
        load(&self.files, &self.weights)
    }
}

/// Keeps what it hears, and counts the pauses; it stops at one of them if it should.
#[derive(Default)]
struct Ear {
    samples: Vec<f32>,
    pieces: usize,
    pauses: usize,
    stops_at: Option<usize>,
    /// Spoken in the third pause.
    beside: Option<(SpokenCase, Vec<f32>)>,
}

impl SpeechListener for Ear {
    fn hear(&mut self, samples: &[f32]) {
        self.samples.extend_from_slice(samples);
        self.pieces += 1;
    }

    fn pause(&mut self, speaker: &dyn Speaker) -> bool {
        self.pauses += 1;
        if self.pauses == 3
            && let Some((case, heard)) = &mut self.beside
        {
            *heard = speak(speaker, case).samples;
        }
        self.stops_at.is_none_or(|at| self.pauses < at)
    }
}

fn speak_to(speaker: &dyn Speaker, case: &SpokenCase, ear: &mut Ear) -> PartEnd {
    let symbols = speaker.symbols(&case.text, false).unwrap();
    assert_eq!(symbols, case.symbols, "{:?}", case.text);
    let part = SpokenPart { symbols: &symbols, voice: case.voice, speed: case.speed };
    speaker.speak(&part, &mut None, &mut TorchGenerator::seeded(case.seed), ear).unwrap()
}

fn speak(speaker: &dyn Speaker, case: &SpokenCase) -> Ear {
    let mut ear = Ear::default();
    assert!(matches!(speak_to(speaker, case, &mut ear), PartEnd::Spoken { .. }));
    ear
}

#[test]
fn rc_28_vits_says_what_transformers_says_with_the_same_seed() {
    let cases = cases();
    assert!(cases.len() >= 6);
    for case in cases {
        let (_folder, speaker) = case.load();
        for spoken in &case.spoken {
            let heard = speak(speaker.as_ref(), spoken).samples;
            assert_eq!(heard.len(), spoken.samples.len(), "{}: {:?}", case.case, spoken.text);
            let worst = heard.iter().zip(&spoken.samples).map(|(ours, theirs)| (ours - theirs).abs());
            let worst = worst.fold(0.0_f32, f32::max);
            eprintln!("{}: {:?} differs by {worst:.1e}", case.case, spoken.text);
            assert!(worst < 5e-4, "{}: {:?} differs by {worst}", case.case, spoken.text);
        }
    }
}

#[test]
fn rc_28_long_sound_is_heard_in_pieces_that_do_not_matter_and_others_are_spoken_in_its_pauses() {
    let mut cases = cases();
    let mut case = cases.remove(cases.iter().position(|case| case.case == "mms").unwrap());
    let (_folder, speaker) = case.load();
    let other = case.spoken.remove(1);
    let expected = speak(speaker.as_ref(), &other).samples;
    let alone = speak(speaker.as_ref(), &case.spoken[0]);
    assert!(alone.pieces > 1, "a long part is heard in pieces");
    let mut ear = Ear { beside: Some((other, Vec::new())), ..Ear::default() };
    assert!(matches!(speak_to(speaker.as_ref(), &case.spoken[0], &mut ear), PartEnd::Spoken { frames } if frames > 90));
    assert_eq!(ear.samples, alone.samples);
    assert_eq!(ear.beside.unwrap().1, expected);
    for stops_at in [1, 2, alone.pauses / 2, alone.pauses] {
        let mut ear = Ear { stops_at: Some(stops_at), ..Ear::default() };
        assert_eq!(speak_to(speaker.as_ref(), &case.spoken[0], &mut ear), PartEnd::Stopped);
        assert!(ear.pauses == stops_at && ear.samples.len() < alone.samples.len());
        assert_eq!(ear.samples, alone.samples[..ear.samples.len()]);
    }
}

fn farthest(ours: &[f32], theirs: &[f32]) -> f32 {
    ours.iter().zip(theirs).map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f32::max)
}

/// Says a text after those that the memory is of.
fn say(speaker: &dyn Speaker, spoken: &CsmSpoken, memory: &mut SpeakerMemory, ear: &mut Ear) -> PartEnd {
    let symbols = speaker.symbols(&spoken.text, false).unwrap();
    let part = SpokenPart { symbols: &symbols, voice: spoken.voice, speed: 1.0 };
    speaker.speak(&part, memory, &mut TorchGenerator::seeded(1), ear).unwrap()
}

#[test]
fn rc_28_csm_says_what_transformers_says_and_keeps_its_voice() {
    let cases: Vec<CsmCase> = cases_in("tests/csm");
    assert!(cases.len() >= 4);
    for case in cases {
        let (_folder, speaker) = load(&case.files, &case.weights);
        let mut memory = None;
        for spoken in &case.spoken {
            let mut ear = Ear::default();
            let ended = say(speaker.as_ref(), spoken, &mut memory, &mut ear);
            assert_eq!(ended, PartEnd::Spoken { frames: spoken.frames.len() }, "{}: {:?}", case.case, spoken.text);
            assert_eq!(ear.samples.len(), spoken.samples.len(), "{}: {:?}", case.case, spoken.text);
            let worst = farthest(&ear.samples, &spoken.samples);
            eprintln!("{}: {:?} differs by {worst:.1e}", case.case, spoken.text);
            assert!(worst < 5e-4, "{}: {:?} differs by {worst}", case.case, spoken.text);
            assert!(ear.pieces > 1, "it is heard while it is made");
            // Stopped in the middle of it, nothing is kept of it.
            let mut ear = Ear { stops_at: Some(spoken.frames.len()), ..Ear::default() };
            let mut other = None;
            assert_eq!(say(speaker.as_ref(), spoken, &mut other, &mut ear), PartEnd::Stopped);
            assert!(other.is_none() && ear.samples.len() < spoken.samples.len());
        }
    }
}

#[test]
fn rc_28_csm_draws_by_its_seed_and_names_what_it_cannot_use() {
    let mut case: CsmCase = cases_in::<CsmCase>("tests/csm").remove(0);
    case.files.insert(
        "generation_config.json".to_owned(),
        serde_json::json!({ "do_sample": true, "depth_decoder_do_sample": true, "depth_decoder_top_k": 3, "max_new_tokens": 9 }),
    );
    let (folder, speaker) = load(&case.files, &case.weights);
    let symbols = speaker.symbols("hello", false).unwrap();
    let say = |seed: u64| {
        let mut ear = Ear::default();
        let part = SpokenPart { symbols: &symbols, voice: 1, speed: 1.0 };
        speaker.speak(&part, &mut None, &mut TorchGenerator::seeded(seed), &mut ear).unwrap();
        ear.samples
    };
    assert_eq!(say(1), say(1));
    assert_ne!(say(1), say(2));
    assert_eq!(speaker.symbols(" ", false), Ok(Vec::new()));
    assert!(speaker.symbols("hello", true).unwrap_err().contains("phonemes"));
    let marks = speaker.symbols("a<|end_of_text|>", false).unwrap();
    assert!(marks.iter().all(|token| *token > 4), "{marks:?} has a mark");
    let refused = |key: &str, value: Value, words: &[&str]| {
        let mut config = case.files["config.json"].clone();
        *config.pointer_mut(key).unwrap() = value;
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let Err(error) = load_speaker(folder.path(), &DeviceId::Cpu, &mut |_| {}) else { panic!("{key} was taken") };
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
    };
    refused("/hidden_size", 32.into(), &["backbone_hidden_size is 24, and 32"]);
    refused("/num_codebooks", 3.into(), &["num_codebooks is 3", "4"]);
    refused("/text_vocab_size", 70.into(), &["embed_text_tokens.weight", "[70, 24]"]);
    refused("/codec_config/use_causal_conv", false.into(), &["not causal"]);
    refused("/codec_config/num_semantic_quantizers", 4.into(), &["4 of 4 codebooks"]);
    refused("/codec_config/sliding_window", 0.into(), &["a size is not from 1"]);
    refused("/codec_config/hidden_act", "mish".into(), &["'mish'"]);
    refused("/depth_decoder_config/vocab_size", 20.into(), &["vocab_size is 20, and 33"]);
}

#[test]
fn rc_28_bad_files_and_texts_are_named() {
    let mut cases = cases();
    let case = cases.remove(cases.iter().position(|case| case.case == "mms").unwrap());
    let (folder, speaker) = case.load();
    assert_eq!(speaker.symbols("?!…", false), Ok(Vec::new()));
    let part = SpokenPart { symbols: &[9_999], voice: 0, speed: 1.0 };
    assert!(speaker.speak(&part, &mut None, &mut TorchGenerator::seeded(1), &mut Ear::default()).is_err());
    let refused = |file: &str, text: &str, words: &[&str]| {
        let before = std::fs::read_to_string(folder.path().join(file)).unwrap();
        std::fs::write(folder.path().join(file), text).unwrap();
        let loaded = load_speaker(folder.path(), &DeviceId::Cpu, &mut |_| {});
        let told = match loaded {
            Err(error) => error.to_string(),
            Ok(speaker) => speaker.symbols("Привет", false).unwrap_err(),
        };
        assert!(words.iter().all(|word| told.contains(word)), "{told}");
        std::fs::write(folder.path().join(file), before).unwrap();
    };
    let config = |key: &str, value: Value| {
        let mut config = case.files["config.json"].clone();
        config[key] = value;
        config.to_string()
    };
    refused("config.json", &config("hidden_act", "mish".into()), &["'mish'"]);
    refused("config.json", &config("hidden_size", 32.into()), &["text_encoder.embed_tokens.weight", "[38, 32]"]);
    refused("config.json", &config("num_attention_heads", 3.into()), &["3 heads"]);
    refused("config.json", &config("upsample_rates", serde_json::json!([4])), &["upsample_rates"]);
    refused("config.json", &config("upsample_rates", serde_json::json!([40, 2])), &["kernel"]);
    refused("config.json", &config("wavenet_dilation_rate", 65_536.into()), &["too far"]);
    refused("vocab.json", r#"{"a": 99}"#, &["'a'"]);
    refused("tokenizer_config.json", r#"{"phonemize": true}"#, &["phonemes"]);
    refused("tokenizer_config.json", r#"{"phonemize": false, "is_uroman": true}"#, &["romanise"]);
}
