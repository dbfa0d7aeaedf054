//! Models that speak beside `transformers`: tiny random ones of several shapes, from `scripts/reference/vits.py`, with
//! the noise of the same seeds, and from `scripts/reference/csm.py` and `parler.py`, with the most likely codes.

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

/// A case with models of the kind `parler_tts`.
#[derive(Deserialize)]
struct ParlerCase {
    case: String,
    files: BTreeMap<String, Value>,
    weights: BTreeMap<String, WeightRules>,
    spoken: Vec<ParlerSpoken>,
}

#[derive(Deserialize)]
struct ParlerSpoken {
    text: String,
    instructions: String,
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
    let part = SpokenPart { symbols: &symbols, voice: case.voice, speed: case.speed, instructions: &[] };
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
    let part = SpokenPart { symbols: &symbols, voice: spoken.voice, speed: 1.0, instructions: &[] };
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
        let part = SpokenPart { symbols: &symbols, voice: 1, speed: 1.0, instructions: &[] };
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

/// Says a text of a case, of which the whole is heard.
fn say_described(speaker: &dyn Speaker, spoken: &ParlerSpoken, memory: &mut SpeakerMemory, seed: u64) -> Ear {
    let symbols = speaker.symbols(&spoken.text, false).unwrap();
    let instructions = match spoken.instructions.as_str() {
        "" => Vec::new(),
        text => speaker.instructions(text).unwrap(),
    };
    let part = SpokenPart { symbols: &symbols, voice: 0, speed: 1.0, instructions: &instructions };
    let mut ear = Ear::default();
    let ended = speaker.speak(&part, memory, &mut TorchGenerator::seeded(seed), &mut ear).unwrap();
    assert!(matches!(ended, PartEnd::Spoken { frames } if spoken.frames.is_empty() || frames == spoken.frames.len()));
    ear
}

fn says_the_same(speaker: &dyn Speaker, case: &ParlerCase) {
    for spoken in &case.spoken {
        let mut memory = None;
        for part in ["first", "next"] {
            let ear = say_described(speaker, spoken, &mut memory, 1);
            assert_eq!(ear.samples.len(), spoken.samples.len(), "{}: {:?}, {part}", case.case, spoken.text);
            let worst = farthest(&ear.samples, &spoken.samples);
            eprintln!("{}: {:?} differs by {worst:.1e}", case.case, spoken.text);
            // The reference's own samples are up to 6e-4 from those that it computes in 64 bits.
            assert!(worst < 1e-3, "{}: {:?} differs by {worst}", case.case, spoken.text);
        }
    }
}

/// The weights of a file under the names of the package that the codec was published with, with directions and lengths
/// in the place of weights.
fn published(file: &[u8]) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let stages = (0..).take_while(|at| header.contains_key(&format!("audio_encoder.decoder.block.{at}.snake1.alpha")));
    let stages = stages.count();
    let unit = |name: &str| match name.split_once('.') {
        Some(("snake1", rest)) => format!("block.0.{rest}"),
        Some(("conv1", rest)) => format!("block.1.{rest}"),
        Some(("snake2", rest)) => format!("block.2.{rest}"),
        Some(("conv2", rest)) => format!("block.3.{rest}"),
        _ => panic!("{name}"),
    };
    let stage = |name: &str| match name.split_once('.') {
        Some(("snake1", rest)) => format!("block.0.{rest}"),
        Some(("conv_t1", rest)) => format!("block.1.{rest}"),
        Some((number, rest)) => {
            let number: usize = number.strip_prefix("res_unit").unwrap().parse().unwrap();
            format!("block.{}.{}", number + 1, unit(rest))
        }
        None => panic!("{name}"),
    };
    let decoder = |name: &str| match name.split_once('.') {
        Some(("conv1", rest)) => format!("0.{rest}"),
        Some(("block", rest)) => {
            let (at, rest) = rest.split_once('.').unwrap();
            format!("{}.{}", at.parse::<usize>().unwrap() + 1, stage(rest))
        }
        Some(("snake1", rest)) => format!("{}.{rest}", stages + 1),
        Some(("conv2", rest)) => format!("{}.{rest}", stages + 2),
        _ => panic!("{name}"),
    };
    let (mut renamed, mut data) = (serde_json::Map::new(), Vec::new());
    let mut put = |name: String, shape: &[u64], bytes: &[u8]| {
        let first = data.len();
        data.extend_from_slice(bytes);
        let about = serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [first, data.len()] });
        renamed.insert(name, about);
    };
    for (name, about) in &header {
        let range: [usize; 2] = serde_json::from_value(about["data_offsets"].clone()).unwrap();
        let shape: Vec<u64> = serde_json::from_value(about["shape"].clone()).unwrap();
        let bytes = &file[8 + length..][range[0]..range[1]];
        let name = match name.strip_prefix("audio_encoder.") {
            Some(part) => match part.strip_prefix("decoder.") {
                Some(part) => format!("audio_encoder.model.decoder.model.{}", decoder(part)),
                None => format!("audio_encoder.model.{part}"),
            },
            None => name.clone(),
        };
        let convolved = name.starts_with("audio_encoder") && shape.len() == 3;
        let Some(path) = name.strip_suffix(".weight").filter(|_| convolved) else {
            put(name, &shape, bytes);
            continue;
        };
        let floats: Vec<f32> = bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
        let rows = floats.chunks(floats.len() / shape[0] as usize);
        let lengths = rows.map(|row| row.iter().map(|float| float * float).sum::<f32>().sqrt().to_le_bytes());
        put(format!("{path}.weight_g"), &[shape[0], 1, 1], &lengths.collect::<Vec<_>>().concat());
        let directions: Vec<_> = floats.iter().map(|float| (3.0 * float).to_le_bytes()).collect();
        put(format!("{path}.weight_v"), &shape, &directions.concat());
    }
    let header = Value::Object(renamed).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

#[test]
fn jb_5_parler_says_what_its_package_says_in_the_voice_that_is_described() {
    let cases: Vec<ParlerCase> = cases_in("tests/parler");
    assert!(cases.len() >= 4);
    for case in cases {
        let (folder, speaker) = load(&case.files, &case.weights);
        says_the_same(speaker.as_ref(), &case);
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, published(&std::fs::read(&path).unwrap())).unwrap();
        says_the_same(load_speaker(folder.path(), &DeviceId::Cpu, &mut |_| {}).unwrap().as_ref(), &case);
    }
}

#[test]
fn jb_5_parler_is_heard_in_pieces_draws_by_its_seed_and_stops() {
    let cases: Vec<ParlerCase> = cases_in("tests/parler");
    let long = cases.iter().find(|case| case.case == "long").unwrap();
    let (_folder, speaker) = load(&long.files, &long.weights);
    let spoken = &long.spoken[0];
    let alone = say_described(speaker.as_ref(), spoken, &mut None, 1);
    assert!(alone.pieces > 1, "{} pieces", alone.pieces);
    let (symbols, instructions) =
        (speaker.symbols(&spoken.text, false).unwrap(), speaker.instructions(&spoken.instructions).unwrap());
    let part = SpokenPart { symbols: &symbols, voice: 0, speed: 1.0, instructions: &instructions };
    for stops_at in [1, 9, alone.pauses / 2, alone.pauses] {
        let mut ear = Ear { stops_at: Some(stops_at), ..Ear::default() };
        let ended = speaker.speak(&part, &mut None, &mut TorchGenerator::seeded(1), &mut ear).unwrap();
        assert_eq!((ended, ear.pauses), (PartEnd::Stopped, stops_at));
        assert_eq!(ear.samples, alone.samples[..ear.samples.len()]);
    }
    let mut files = long.files.clone();
    files.get_mut("generation_config.json").unwrap()["do_sample"] = true.into();
    let (_folder, speaker) = load(&files, &long.weights);
    let drawn = |instructions: &str, seed: u64| {
        let spoken = ParlerSpoken {
            text: "hello".to_owned(),
            instructions: instructions.to_owned(),
            frames: Vec::new(),
            samples: Vec::new(),
        };
        say_described(speaker.as_ref(), &spoken, &mut None, seed).samples
    };
    assert_eq!(drawn("", 1), drawn("", 1), "a voice without a description is always the same one");
    assert_ne!(drawn("", 1), drawn("", 2));
    assert_ne!(drawn("slow", 1), drawn("loud", 1));
}

#[test]
fn jb_5_parler_names_what_it_cannot_use() {
    let case: ParlerCase = cases_in::<ParlerCase>("tests/parler").remove(2);
    let (folder, speaker) = load(&case.files, &case.weights);
    assert_eq!(speaker.symbols(" ", false), Ok(Vec::new()));
    assert!(speaker.symbols("hello", true).unwrap_err().contains("phonemes"));
    assert!(speaker.instructions(&"very long ".repeat(200)).unwrap_err().contains("at most 1024"));
    let words = speaker.symbols("a</s>", false).unwrap();
    assert_eq!(words.iter().filter(|token| **token == 1).count(), 1, "{words:?} has a mark");
    let refused = |file: &str, key: &str, value: Value, words: &[&str]| {
        let mut config = case.files[file].clone();
        let (parent, name) = key.rsplit_once('/').unwrap();
        config.pointer_mut(parent).unwrap()[name] = value;
        std::fs::write(folder.path().join(file), config.to_string()).unwrap();
        let Err(error) = load_speaker(folder.path(), &DeviceId::Cpu, &mut |_| {}) else { panic!("{key} was taken") };
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        std::fs::write(folder.path().join(file), case.files[file].to_string()).unwrap();
    };
    let config = |key: &str, value: Value, words: &[&str]| refused("config.json", key, value, words);
    config("/text_encoder/model_type", "bert".into(), &["'bert'", "t5"]);
    config("/text_encoder/feed_forward_proj", "gated-mish".into(), &["'mish'"]);
    config("/text_encoder/relative_attention_num_buckets", 3.into(), &["3 buckets"]);
    config("/text_encoder/vocab_size", 41.into(), &["description_tokenizer/"]);
    config("/audio_encoder/model_type", "encodec".into(), &["'encodec'"]);
    config("/audio_encoder/upsampling_ratios", serde_json::json!([0, 2]), &["audio_encoder", "from 1"]);
    config("/audio_encoder/upsampling_ratios", vec![2; 9].into(), &["9 stages"]);
    config("/audio_encoder/codebook_dim", 5.into(), &["codebook.weight", "5]"]);
    config("/decoder/num_codebooks", 5.into(), &["num_codebooks is 5"]);
    config("/decoder/num_attention_heads", 3.into(), &["3 heads"]);
    config("/decoder/bos_token_id", 99.into(), &["marks", "99"]);
    config("/decoder/hidden_size", 20.into(), &["[20"]);
    config("/decoder/activation_function", "mish".into(), &["'mish'"]);
    refused("generation_config.json", "/guidance_scale", 3.0.into(), &["guidance_scale"]);
    refused("generation_config.json", "/eos_token_id", 77.into(), &["marks", "77"]);
}

#[test]
fn rc_28_bad_files_and_texts_are_named() {
    let mut cases = cases();
    let case = cases.remove(cases.iter().position(|case| case.case == "mms").unwrap());
    let (folder, speaker) = case.load();
    assert_eq!(speaker.symbols("?!…", false), Ok(Vec::new()));
    let part = SpokenPart { symbols: &[9_999], voice: 0, speed: 1.0, instructions: &[] };
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
