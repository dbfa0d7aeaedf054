//! Files of each format beside the sound that they were made of: worker/audio/tests/files, by
//! scripts/reference/sounds.py.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

use std::path::Path;
use std::time::Duration;

use model_boss_audio::decode::{AudioError, AudioLimits, decode};

fn file(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(name)).unwrap()
}

/// The tone that all files have: 440 Hz at a quarter of the range.
fn tone(samples: usize) -> Vec<f64> {
    (0..samples).map(|at| 8192.0 * (std::f64::consts::TAU * 440.0 * at as f64 / 16_000.0).sin()).collect()
}

/// The mean square error of a decoded tone by its power, wherever it begins: lossy formats have a delay.
fn error_of_tone(samples: &[i16]) -> f64 {
    let (mut sine, mut cosine, mut power) = (0.0, 0.0, 0.0);
    let middle = &samples[samples.len() / 5..samples.len() * 4 / 5];
    let angle = |at: usize| std::f64::consts::TAU * 440.0 * at as f64 / 16_000.0;
    for (at, sample) in middle.iter().enumerate() {
        let sample = f64::from(*sample);
        (sine, cosine, power) =
            (sine + sample * angle(at).sin(), cosine + sample * angle(at).cos(), power + sample * sample);
    }
    let count = middle.len() as f64;
    (1.0 - 2.0 * (sine * sine + cosine * cosine) / count / power).max(0.0)
}

#[test]
fn rc_28_every_format_is_read() {
    for (name, most) in [
        ("mono-16k.wav", 1e-7),
        ("stereo-22k-24.wav", 1e-6),
        ("float-24k.wav", 1e-6),
        ("mulaw-8k.wav", 1e-3),
        ("six-48k.flac", 1e-6),
        ("mono-22k.flac", 1e-6),
        ("stereo-44k.mp3", 1e-3),
        ("mono-24k.mp3", 1e-3),
        ("vorbis-44k.ogg", 1e-2),
        ("opus-mono.ogg", 1e-2),
        ("opus-stereo.ogg", 1e-2),
        ("aac-44k.m4a", 1e-2),
        ("alac-44k.m4a", 1e-6),
        ("aac-adts.aac", 3e-2),
        ("opus.webm", 1e-2),
        ("aiff-32k.aiff", 1e-6),
    ] {
        let recording = decode(file(name), &AudioLimits::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let seconds = recording.duration().as_secs_f64();
        assert!((0.38..0.56).contains(&seconds), "{name} has {seconds} s");
        let error = error_of_tone(&recording.samples);
        assert!(error < most, "{name}: {error}");
    }
    let exact = decode(file("mono-16k.wav"), &AudioLimits::default()).unwrap();
    assert!(exact.samples.iter().zip(tone(6_400)).all(|(ours, exact)| (f64::from(*ours) - exact).abs() <= 0.51));
}

#[test]
fn rc_28_files_that_are_cut_off_are_refused() {
    for name in ["mono-16k.wav", "six-48k.flac", "aac-44k.m4a", "alac-44k.m4a"] {
        let whole = file(name);
        for share in [0.0, 0.02, 0.3] {
            let cut = whole[..(whole.len() as f64 * share) as usize].to_vec();
            let refused = decode(cut, &AudioLimits::default()).map(|recording| recording.samples.len());
            assert!(refused.is_err(), "{name} at {share}: {refused:?}");
            // The format is known, and is not what is wrong.
            let is_known = !matches!(refused, Err(AudioError::UnknownFormat)) || share == 0.0;
            assert!(is_known || !name.ends_with("m4a"), "{name} at {share}: {refused:?}");
        }
    }
    // Streams tell no length: what is there is heard.
    for name in ["mono-24k.mp3", "opus-mono.ogg", "aac-adts.aac"] {
        let whole = file(name);
        let half = decode(whole[..whole.len() / 2].to_vec(), &AudioLimits::default());
        match half {
            Ok(recording) => assert!(recording.duration().as_secs_f64() > 0.1, "{name}"),
            Err(AudioError::CutOff { .. } | AudioError::Damaged(_)) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

#[test]
fn rc_28_streams_behind_each_other_are_one_recording() {
    let seconds = |file: Vec<u8>| decode(file, &AudioLimits::default()).unwrap().duration().as_secs_f64();
    for name in ["vorbis-44k.ogg", "opus-mono.ogg"] {
        let (one, three) = (seconds(file(name)), seconds(file(name).repeat(3)));
        assert!((three - 3.0 * one).abs() < 0.02, "{name}: {one} s, three of it {three} s");
    }
    // Of another rate: what servers of radio stations send.
    let both = seconds([file("vorbis-44k.ogg"), file("opus-mono.ogg")].concat());
    assert!((both - seconds(file("vorbis-44k.ogg")) - seconds(file("opus-mono.ogg"))).abs() < 0.02, "{both} s");
    let limits = AudioLimits { longest: Duration::from_millis(700) };
    assert!(matches!(decode(file("opus-mono.ogg").repeat(3), &limits), Err(AudioError::TooLong { .. })));
}

#[test]
fn rc_28_pages_that_are_missing_leave_silence_and_later_sound_stays_where_it_was() {
    let whole = file("opus-mono.ogg").repeat(1);
    let starts: Vec<usize> =
        (0..whole.len() - 4).filter(|at| whole[*at..].starts_with(b"OggS")).chain([whole.len()]).collect();
    let length = |file: &[u8]| decode(file.to_vec(), &AudioLimits::default()).map(|sound| sound.samples.len());
    let expected = length(&whole).unwrap();
    for lost in 3..starts.len().saturating_sub(2) {
        let shorter = [&whole[..starts[lost]], &whole[starts[lost + 1]..]].concat();
        let heard = length(&shorter).unwrap();
        assert!(heard.abs_diff(expected) < 16_000 / 10, "without page {lost}: {heard} of {expected}");
    }
}

#[test]
fn rc_28_what_is_no_sound_is_refused_in_words() {
    let limits = AudioLimits::default();
    assert_eq!(decode(Vec::new(), &limits), Err(AudioError::Empty));
    for wrong in [b"hello, this is a text and no sound at all".to_vec(), vec![0; 4096], b"\x89PNG\r\n\x1a\n".repeat(40)]
    {
        let refused = decode(wrong, &limits).unwrap_err();
        assert!(matches!(refused, AudioError::UnknownFormat | AudioError::Damaged(_)), "{refused}");
    }
    // A length in the header that would be days, in a file of some bytes.
    let mut long = file("mono-16k.wav");
    let at = long.windows(4).position(|four| four == b"data").unwrap();
    long[at + 4..at + 8].copy_from_slice(&0x7000_0000_u32.to_le_bytes());
    let refused = decode(long, &limits).unwrap_err();
    assert!(!matches!(refused, AudioError::UnknownFormat | AudioError::NoSound), "{refused}");
    let short = AudioLimits { longest: Duration::from_millis(200) };
    for name in ["mono-16k.wav", "opus-mono.ogg", "mono-24k.mp3"] {
        assert!(matches!(decode(file(name), &short), Err(AudioError::TooLong { .. })), "{name}");
    }
}

#[test]
fn rc_28_headers_of_writers_to_a_pipe_are_read() {
    let mut piped = file("mono-16k.wav");
    let at = piped.windows(4).position(|four| four == b"data").unwrap();
    piped[at + 4..at + 8].copy_from_slice(&u32::MAX.to_le_bytes());
    piped[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let recording = decode(piped, &AudioLimits::default()).unwrap();
    assert!((recording.duration().as_secs_f64() - 0.4).abs() < 0.01);
}

#[test]
fn rc_28_damage_anywhere_ends_in_an_answer_or_an_error() {
    let names = [
        "mono-16k.wav",
        "six-48k.flac",
        "mono-24k.mp3",
        "vorbis-44k.ogg",
        "opus-stereo.ogg",
        "aac-44k.m4a",
        "opus.webm",
    ];
    let mut value = 7_u64;
    let mut number = |below: usize| {
        value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (value >> 33) as usize % below
    };
    for name in names {
        let whole = file(name);
        for _ in 0..60 {
            let mut damaged = whole.clone();
            for _ in 0..1 + number(8) {
                let at = number(damaged.len());
                damaged[at] = number(256) as u8;
            }
            // Neither a panic nor an endless loop; both answers are right.
            drop(decode(damaged, &AudioLimits::default()));
        }
    }
}
