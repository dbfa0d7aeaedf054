use std::sync::Mutex;

use model_boss_audio::MelShape;

use super::*;
use crate::speech::fake_speech::{ScriptedSpeech, info};

const MEL: MelShape = MelShape { bins: 4, window: 400, hop: 160 };

/// Tokens 0 to 99 are " a", " b" and so on, and longer ones.
struct Letters(Vec<String>);

impl TokenTexts for Letters {
    fn bytes(&self, token: u32) -> &[u8] {
        self.0.get(token as usize).map_or(&[], |text| text.as_bytes())
    }
}

/// The time of so many steps.
fn t(steps: u32) -> u32 {
    109 + steps
}

/// Says a script over so many seconds of sound; a window has one second.
fn said(
    script: &[(&[u32], f32)],
    seconds: f64,
    wish: TranscriptWish,
) -> (Vec<SpeechSegment>, Vec<Vec<u32>>, Option<u32>) {
    let model = ScriptedSpeech {
        info: info(MEL),
        script: Mutex::new(script.iter().map(|(tokens, sure)| (tokens.to_vec(), *sure)).collect()),
        begun: Mutex::default(),
    };
    let letters = Letters((0..100).map(|at| format!(" {}", char::from(b'a' + at % 26))).collect());
    let samples = (seconds * f64::from(RATE)) as usize;
    let sound = ChunkSound { recording: Arc::new(SoundRecording { samples: vec![100; samples] }), samples: 0..samples };
    let filters = MelFilters::new(MEL);
    let language = wish.language;
    let mut chunk = ChunkSpeech::new(&model, sound, Arc::new(wish), Arc::new(letters), language);
    let mut segments = Vec::new();
    loop {
        match chunk.state() {
            ChunkState::Hears => chunk.hear(&model, &filters, &|| {}).unwrap(),
            ChunkState::Reads => {
                let rows = model.step(&mut [chunk.step(&model).unwrap()], &|| {}).unwrap();
                chunk.took(&model, rows.into_iter().next().unwrap()).unwrap();
            }
            ChunkState::Settles => chunk.settle(&model, &|| {}).unwrap(),
            ChunkState::Done => break,
        }
        segments.extend(chunk.take().segments);
    }
    let begun = model.begun.into_inner().unwrap();
    (segments, begun, chunk.language())
}

fn english() -> TranscriptWish {
    TranscriptWish { language: Some(103), ..TranscriptWish::default() }
}

fn times(segments: &[SpeechSegment]) -> Vec<(f64, f64, &str)> {
    let round = |seconds: f64| (seconds * 100.0).round() / 100.0;
    segments.iter().map(|segment| (round(segment.start), round(segment.end), segment.text.as_str())).collect()
}

#[test]
fn rc_28_a_window_goes_on_where_the_one_before_was_complete() {
    let first: &[u32] = &[t(0), 0, t(20), t(20), 1];
    let second: &[u32] = &[t(0), 1, t(25), t(25), 2, t(50)];
    let (segments, begun, _) = said(&[(first, 20.0), (second, 20.0)], 1.4, english());
    assert_eq!(times(&segments), [(0.0, 0.4, " a"), (0.4, 0.9, " b"), (0.9, 1.4, " c")]);
    assert_eq!(begun[0], [101, 103, 104], "the language and the task");
    assert_eq!(begun[1], [106, t(0), 0, t(20), 101, 103, 104], "behind what was said");
    assert_eq!((segments[1].seek, segments.len()), (40, 3));
}

#[test]
fn rc_28_the_language_is_found_and_the_task_is_asked_for() {
    let wish = TranscriptWish { translate: true, ..TranscriptWish::default() };
    let (segments, begun, language) = said(&[(&[t(0), 5, t(40)], 20.0)], 1.0, wish);
    assert_eq!((begun, language), (vec![vec![101], vec![101, 103, 105]], Some(103)));
    assert_eq!(segments[0].text, " f");
}

#[test]
fn rc_28_an_unsure_text_is_written_again_and_silence_is_none() {
    let unsure: (&[u32], f32) = (&[t(0), 5, 6, t(40)], 1.5);
    let wish = TranscriptWish { temperatures: vec![0.0, 1e-3], ..english() };
    let (segments, begun, _) = said(&[unsure, (&[t(0), 7, t(40)], 20.0)], 1.0, wish);
    assert_eq!((segments[0].text.as_str(), segments[0].temperature, begun.len()), (" h", 1e-3, 2));
    // Where silence is likelier than the limit, an unsure text is none, and there is no second try.
    let wish = TranscriptWish { most_silence: 0.001, ..english() };
    let (segments, begun, _) = said(&[unsure], 1.0, wish);
    assert_eq!((segments.len(), begun.len()), (0, 1));
    // A text that repeats itself is written again, as sure as it is.
    let again: Vec<u32> = [vec![t(0)], vec![3; 18], vec![t(40)]].concat();
    let wish = TranscriptWish { most_compressed: 2.0, temperatures: vec![0.0, 1e-3], ..english() };
    let (segments, ..) = said(&[(&again, 20.0), (&[t(0), 4, t(40)], 20.0)], 1.0, wish);
    assert_eq!(segments[0].text, " e");
}

#[test]
fn rc_28_without_times_a_window_is_one_segment() {
    let wish = TranscriptWish { times: false, prompt: vec![8, 9], ..english() };
    let (segments, begun, _) = said(&[(&[5, 6], 20.0), (&[7], 20.0)], 1.5, wish);
    assert_eq!(times(&segments), [(0.0, 1.0, " f g"), (1.0, 1.5, " h")]);
    assert_eq!(begun[0], [106, 8, 9, 101, 103, 104, 108]);
    let context = [106, 8, 9, 5, 6, 101, 103, 104, 108];
    assert_eq!(begun[1], context);
}

#[test]
fn rc_28_words_have_times_within_their_segments() {
    let wish = TranscriptWish { words: true, ..english() };
    let (segments, ..) = said(&[(&[t(0), 0, 1, t(10), t(10), 2, t(14)], 20.0)], 1.0, wish);
    let words: Vec<&str> = segments.iter().flat_map(|segment| &segment.words).map(|word| word.word.as_str()).collect();
    assert_eq!(words, [" a", " b", " c"]);
    for segment in &segments {
        for word in &segment.words {
            assert!(word.start <= word.end && word.start >= segment.start && word.end <= segment.end, "{segment:?}");
            assert!(word.probability > 0.0);
        }
    }
    assert!(segments[0].words[1].start > segments[0].words[0].start);
}
