//! Spectrograms beside those of `transformers`: worker/audio/tests/mel.json, by scripts/reference/whisper.py.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

use std::path::Path;

use model_boss_audio::{MelFilters, MelShape};
use serde::Deserialize;

#[path = "sounds/made_sound.rs"]
mod made_sound;

#[derive(Deserialize)]
struct MelCases {
    spectrograms: Vec<MelCase>,
}

#[derive(Deserialize)]
struct MelCase {
    bins: usize,
    frames: usize,
    seed: u64,
    samples: usize,
    /// The frames whose numbers follow.
    shown: Vec<usize>,
    numbers: Vec<Vec<f32>>,
}

#[test]
fn rc_28_spectrograms_are_those_of_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mel.json");
    let cases: MelCases = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(cases.spectrograms.len() >= 4);
    for case in cases.spectrograms {
        let filters = MelFilters::new(MelShape { bins: case.bins, window: 400, hop: 160 });
        let sound = made_sound::sound(case.seed, case.samples);
        let ours = filters.spectrogram(&sound, case.frames);
        for (frame, numbers) in case.shown.iter().zip(&case.numbers) {
            for (bin, exact) in numbers.iter().enumerate() {
                let ours = ours[bin * case.frames + frame];
                assert!((ours - exact).abs() < 2e-4, "{} bins, frame {frame}, bin {bin}: {ours} {exact}", case.bins);
            }
        }
        // Part of a longer sound: frames in the middle do not know of the window's ends.
        let largest = filters.largest(&sound, case.frames);
        let part = filters.window(&sound, 10..20, largest);
        let whole = filters.window(&sound, 0..case.frames, largest);
        for bin in 0..case.bins {
            assert_eq!(part[bin * 10..][..10], whole[bin * case.frames + 10..][..10]);
        }
    }
}
