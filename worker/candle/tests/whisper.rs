//! Models that turn sound into text beside `transformers`: the cases of scripts/reference/whisper.py.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model_boss_audio::{MelFilters, SoundRecording};
use model_boss_candle::load_speech;
use model_boss_engine::speech::{
    ChunkSound, ChunkSpeech, ChunkState, SpeechModel, SpeechSegment, SpeechStep, TokenTexts, TranscriptWish,
};
use model_boss_protocol::{DeviceId, KvCacheType};
use serde::Deserialize;
use serde_json::Value;

#[path = "../../audio/tests/sounds/made_sound.rs"]
mod made_sound;
#[path = "family_cases/rule.rs"]
mod rule;

use rule::{TensorRule, safetensors};

#[derive(Deserialize)]
struct SpeechCase {
    case: String,
    files: BTreeMap<String, Value>,
    weights: SpeechWeights,
    texts: Vec<WindowCase>,
    detected: Vec<DetectedCase>,
    long: Vec<LongCase>,
    words: Vec<WordsCase>,
}

/// Rules, or the name of a GGUF file.
#[derive(Deserialize)]
#[serde(untagged)]
enum SpeechWeights {
    Rules { seed: u64, tensors: Vec<TensorRule> },
    File(String),
}

#[derive(Deserialize)]
struct WindowCase {
    seed: u64,
    samples: usize,
    times: bool,
    language: Option<String>,
    task: Option<String>,
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    logprob: f32,
}

#[derive(Deserialize)]
struct DetectedCase {
    seed: u64,
    samples: usize,
    language: String,
}

#[derive(Deserialize)]
struct LongCase {
    seed: u64,
    samples: usize,
    segments: Vec<SegmentCase>,
}

#[derive(Deserialize)]
struct SegmentCase {
    tokens: Vec<u32>,
    start: f64,
    end: f64,
}

#[derive(Deserialize)]
struct WordsCase {
    seed: u64,
    tokens: Vec<u32>,
    columns: Vec<usize>,
}

/// Each token is a letter: texts are compared by tokens.
struct Letters;

impl TokenTexts for Letters {
    fn bytes(&self, _: u32) -> &[u8] {
        b" a"
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/whisper")
}

fn cases() -> Vec<SpeechCase> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    assert!(files.len() >= 8, "cases are missing");
    files.iter().map(|file| serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()).collect()
}

impl SpeechCase {
    fn loaded(&self) -> Box<dyn SpeechModel> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in &self.files {
            std::fs::write(folder.path().join(name), text.to_string()).unwrap();
        }
        let source = match &self.weights {
            SpeechWeights::Rules { seed, tensors } => {
                std::fs::write(folder.path().join("model.safetensors"), safetensors(tensors, *seed)).unwrap();
                folder.path().to_owned()
            }
            SpeechWeights::File(name) => {
                std::fs::copy(self::folder().join(name), folder.path().join(name)).unwrap();
                folder.path().join(name)
            }
        };
        let loaded = load_speech(&source, &DeviceId::Cpu, 4, KvCacheType::F32, &mut |_| {});
        loaded.unwrap_or_else(|error| panic!("{}: {error}", self.case))
    }

    /// Quantised matrices round activations, so sums differ more.
    fn is_quantised(&self) -> bool {
        matches!(self.weights, SpeechWeights::File(_))
    }
}

fn wish(model: &dyn SpeechModel, times: bool, language: Option<&str>) -> TranscriptWish {
    let languages = &model.info().languages;
    let token = |code: &str| languages.iter().find(|(known, _)| known == code).map(|(_, token)| *token);
    TranscriptWish {
        language: language.and_then(token),
        times,
        temperatures: vec![0.0],
        keeps_context: false,
        most_silence: 2.0,
        ..TranscriptWish::default()
    }
}

/// Hears a sound as one chunk.
fn heard(
    model: &dyn SpeechModel,
    (seed, samples): (u64, usize),
    wish: TranscriptWish,
) -> (Vec<SpeechSegment>, Option<u32>) {
    let filters = MelFilters::new(model.info().mel);
    let recording = Arc::new(SoundRecording { samples: made_sound::sound(seed, samples) });
    let language = wish.language;
    let sound = ChunkSound { recording, samples: 0..samples };
    let mut chunk = ChunkSpeech::new(model, sound, Arc::new(wish), Arc::new(Letters), language);
    let mut segments = Vec::new();
    loop {
        match chunk.state() {
            ChunkState::Hears => chunk.hear(model, &filters, &|| {}).unwrap(),
            ChunkState::Reads => {
                let rows = model.step(&mut [chunk.step(model).unwrap()], &|| {}).unwrap();
                chunk.took(model, rows.into_iter().next().unwrap()).unwrap();
            }
            ChunkState::Settles => chunk.settle(model, &|| {}).unwrap(),
            ChunkState::Done => return (segments, chunk.language()),
        }
        segments.extend(chunk.take().segments);
    }
}

/// The first window's tokens and the mean logarithm of their probabilities, without segments.
fn first_window(model: &dyn SpeechModel, case: &WindowCase) -> (Vec<u32>, f32) {
    let info = model.info();
    let filters = MelFilters::new(info.mel);
    let mel = filters.spectrogram(&made_sound::sound(case.seed, case.samples), info.frames);
    let window = model.hear(&mel, &|| {}).unwrap();
    let mut wish = wish(model, case.times, case.language.as_deref());
    wish.translate = case.task.as_deref() == Some("translate");
    wish.prompt.clone_from(&case.prompt);
    let mut text = model_boss_engine::speech::probe::WindowProbe::new(info, &wish);
    let mut state = model.begin(&window).unwrap();
    let mut next = text.before().to_vec();
    loop {
        let last = [next.len() - 1];
        let mut steps = [SpeechStep { text: &mut state, tokens: &next, wanted: &last }];
        let logits = model.step(&mut steps, &|| {}).unwrap().remove(0);
        match text.push(info, logits) {
            Some(token) => next = vec![token],
            None => return text.end(),
        }
    }
}

#[test]
fn jb_4_tokens_are_those_of_transformers_with_times_and_without() {
    for case in cases() {
        let model = case.loaded();
        for text in &case.texts {
            let (tokens, logprob) = first_window(model.as_ref(), text);
            if case.is_quantised() {
                // Products round activations to eight bits: where two tokens are as likely, either may come.
                let alike = tokens.iter().zip(&text.tokens).take_while(|(ours, exact)| ours == exact).count();
                assert!(alike >= 1, "{}: {tokens:?} {:?}", case.case, text.tokens);
                assert!((logprob - text.logprob).abs() < 0.3, "{}: {logprob} {}", case.case, text.logprob);
                continue;
            }
            assert_eq!(tokens, text.tokens, "{} seed {}", case.case, text.seed);
            assert!((logprob - text.logprob).abs() < 1e-3, "{}: {logprob} {}", case.case, text.logprob);
        }
    }
}

#[test]
fn rc_28_languages_are_found_as_transformers_finds_them() {
    for case in cases() {
        let model = case.loaded();
        for detected in &case.detected {
            let wish = wish(model.as_ref(), true, None);
            let (_, language) = heard(model.as_ref(), (detected.seed, detected.samples), wish);
            let expected = model.info().languages.iter().find(|(code, _)| *code == detected.language).unwrap().1;
            assert_eq!(language, Some(expected), "{} seed {}", case.case, detected.seed);
        }
    }
}

#[test]
fn jb_4_long_sound_is_read_window_by_window_as_transformers_reads_it() {
    for case in cases().into_iter().filter(|case| !case.is_quantised()) {
        let model = case.loaded();
        for long in &case.long {
            let wish = wish(model.as_ref(), true, Some("en"));
            let (ours, _) = heard(model.as_ref(), (long.seed, long.samples), wish);
            // In front of the last window: the reference fills that up with zeros behind the logarithm.
            let whole = |end: f64| end < long.samples as f64 / 16_000.0 - 1.0;
            let expected: Vec<&SegmentCase> = long.segments.iter().take_while(|segment| whole(segment.end)).collect();
            assert!(!expected.is_empty(), "{}", case.case);
            let first_time = model.info().tokens.first_time();
            for (ours, exact) in ours.iter().zip(expected) {
                // The reference adds the time that begins what is heard again.
                let (mut tokens, count) = (exact.tokens.clone(), exact.tokens.len());
                if count > 2 && tokens[count - 1] >= first_time && tokens[count - 2] >= first_time {
                    tokens.pop();
                }
                assert_eq!(ours.tokens, tokens, "{} at {}", case.case, exact.start);
                let times = ours.tokens.iter().filter(|token| **token >= first_time).count();
                if times >= 2 {
                    assert!((ours.start - exact.start).abs() < 1e-6, "{}: {} {}", case.case, ours.start, exact.start);
                    assert!((ours.end - exact.end).abs() < 1e-6, "{}: {} {}", case.case, ours.end, exact.end);
                }
            }
        }
    }
}

#[test]
fn jb_4_words_are_where_the_reference_aligns_them() {
    for case in cases() {
        let model = case.loaded();
        let info = model.info();
        for words in &case.words {
            let filters = MelFilters::new(info.mel);
            let mel = filters.spectrogram(&made_sound::sound(words.seed, 16_000), info.frames);
            let window = model.hear(&mel, &|| {}).unwrap();
            let wish = wish(model.as_ref(), true, Some("en"));
            let mut columns =
                model_boss_engine::speech::probe::word_columns(model.as_ref(), &window, &wish, &words.tokens).unwrap();
            // Behind the last row is the end of the sound.
            columns.pop();
            if case.is_quantised() {
                // Rounded numbers move a border by little.
                let far = columns.iter().zip(&words.columns).filter(|(ours, exact)| ours.abs_diff(**exact) > 3).count();
                assert!(far <= 1, "{}: {columns:?} {:?}", case.case, words.columns);
            } else {
                assert_eq!(columns, words.columns, "{} seed {}", case.case, words.seed);
            }
        }
    }
}

#[test]
fn rc_28_texts_beside_each_other_are_as_alone() {
    let case = cases().into_iter().find(|case| case.case == "tiny").unwrap();
    let model = case.loaded();
    let filters = MelFilters::new(model.info().mel);
    let hear = |seed: u64| {
        let mel = filters.spectrogram(&made_sound::sound(seed, 16_000), model.info().frames);
        model.hear(&mel, &|| {}).unwrap()
    };
    let windows = [hear(1), hear(2)];
    let prompts: [&[u32]; 2] = [&[201, 202, 207], &[201, 203, 206, 211]];
    let alone: Vec<Vec<f32>> = windows
        .iter()
        .zip(prompts)
        .map(|(window, tokens)| {
            let mut text = model.begin(window).unwrap();
            let wanted = [tokens.len() - 1];
            model.step(&mut [SpeechStep { text: &mut text, tokens, wanted: &wanted }], &|| {}).unwrap().remove(0)
        })
        .collect();
    let mut texts = windows.each_ref().map(|window| model.begin(window).unwrap());
    let [first, second] = &mut texts;
    let mut steps = [
        SpeechStep { text: first, tokens: prompts[0], wanted: &[2] },
        SpeechStep { text: second, tokens: prompts[1], wanted: &[0, 3] },
    ];
    let together = model.step(&mut steps, &|| {}).unwrap();
    let vocabulary = model.info().vocab_size;
    assert_eq!((together[0].len(), together[1].len()), (vocabulary, 2 * vocabulary));
    let far = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(far(&together[0], &alone[0]) < 1e-4 && far(&together[1][vocabulary..], &alone[1]) < 1e-4);
    let held: u64 = model.places().iter().map(|place| place.report().kv_bytes).sum();
    assert!(held > 0);
    drop((texts, windows));
    assert_eq!(model.places().iter().map(|place| place.report().kv_bytes).sum::<u64>(), 0);
}
