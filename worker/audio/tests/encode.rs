//! Files that the encoders write, read again by other decoders: those of crates always, ffmpeg, opusdec and libsndfile
//! where they are installed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

use std::io::{Cursor, Write};
use std::process::{Command, Stdio};

use model_boss_audio::encode::{SoundEncoder, SoundFormat};
use ogg::PacketReader;
use opus_decoder::OpusDecoder;
use proptest::prelude::*;
use symphonia::core::codecs::audio::AudioDecoderOptions;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::MetadataOptions;

/// A sound that is louder and quieter, with a rising tone.
fn sound(rate: u32, seconds: f32) -> Vec<f32> {
    let at = |n: usize| {
        let t = n as f32 / rate as f32;
        (std::f32::consts::TAU * (220.0 + 90.0 * t) * t).sin() * (0.3 + 0.2 * (3.0 * t).sin())
    };
    (0..(rate as f32 * seconds) as usize).map(at).collect()
}

fn encoded(format: SoundFormat, rate: u32, samples: &[f32], step: usize) -> Vec<u8> {
    let mut encoder = SoundEncoder::new(format, rate).unwrap();
    let mut bytes = Vec::new();
    for block in samples.chunks(step) {
        bytes.extend(encoder.push(block).unwrap());
    }
    bytes.extend(encoder.finish().unwrap());
    bytes
}

/// Decodes WAV and FLAC by symphonia.
fn decoded(bytes: Vec<u8>, ending: &str) -> (u32, Vec<f32>) {
    let mut hint = Hint::new();
    hint.with_extension(ending);
    let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
    let probe = symphonia::default::get_probe();
    let mut format = probe.probe(&hint, stream, FormatOptions::default(), MetadataOptions::default()).unwrap();
    let track = format.default_track(TrackType::Audio).unwrap();
    let parameters = track.codec_params.as_ref().and_then(|codec| codec.audio()).unwrap().clone();
    let codecs = symphonia::default::get_codecs();
    let mut decoder = codecs.make_audio_decoder(&parameters, &AudioDecoderOptions::default()).unwrap();
    let mut samples = Vec::new();
    while let Ok(Some(packet)) = format.next_packet() {
        let buffer = decoder.decode(&packet).unwrap();
        let mut block: Vec<f32> = Vec::new();
        buffer.copy_to_vec_interleaved(&mut block);
        samples.extend(block);
    }
    (parameters.sample_rate.unwrap(), samples)
}

/// Decodes Opus in Ogg: the head's rate, and samples at 48,000 a second within what the granules say.
fn opus_decoded(bytes: Vec<u8>) -> (u32, Vec<f32>) {
    let mut packets = PacketReader::new(Cursor::new(bytes));
    let head = packets.read_packet_expected().unwrap().data;
    assert_eq!((&head[..8], head[8], head[9]), (&b"OpusHead"[..], 1, 1));
    let ahead = u16::from_le_bytes([head[10], head[11]]) as usize;
    let rate = u32::from_le_bytes([head[12], head[13], head[14], head[15]]);
    assert_eq!(&packets.read_packet_expected().unwrap().data[..8], b"OpusTags");
    let mut decoder = OpusDecoder::new(48_000, 1).unwrap();
    let (mut samples, mut last) = (Vec::new(), 0);
    while let Some(packet) = packets.read_packet().unwrap() {
        let mut block = vec![0.0_f32; 5_760];
        let length = decoder.decode_float(&packet.data, &mut block, false).unwrap();
        samples.extend_from_slice(&block[..length]);
        last = packet.absgp_page() as usize;
        assert_eq!(packet.last_in_stream(), last < samples.len() || last == samples.len() && packet.last_in_stream());
    }
    samples.truncate(last);
    (rate, samples.split_off(ahead.min(samples.len())))
}

/// The power of a sound, in decibels over that of what another one differs by.
fn fidelity(sound: &[f32], other: &[f32]) -> f64 {
    let power = |samples: &mut dyn Iterator<Item = f32>| samples.map(|s| f64::from(s) * f64::from(s)).sum::<f64>();
    let noise = power(&mut sound.iter().zip(other).map(|(one, other)| one - other));
    10.0 * (power(&mut sound.iter().copied()) / noise.max(1e-12)).log10()
}

#[test]
fn rc_28_plain_and_lossless_files_have_every_sample() {
    for rate in [8_000, 16_000, 22_050, 24_000, 44_100] {
        for seconds in [0.0, 0.01, 0.77, 2.5] {
            let sound = sound(rate, seconds);
            for (format, ending) in [(SoundFormat::Wav, "wav"), (SoundFormat::Flac, "flac")] {
                let bytes = encoded(format, rate, &sound, 999);
                assert_eq!(bytes, encoded(format, rate, &sound, 4_097), "the blocks do not matter");
                if sound.is_empty() {
                    continue;
                }
                let (told, read) = decoded(bytes, ending);
                assert_eq!(told, rate);
                assert!(read.len() >= sound.len() && read.len() < sound.len() + 32, "{format:?} {}", read.len());
                for (one, other) in sound.iter().zip(&read) {
                    assert!((one - other).abs() < 1.0 / 16_000.0, "{format:?} {rate}: {one} {other}");
                }
            }
        }
    }
    let raw = encoded(SoundFormat::Pcm, 24_000, &[0.0, 1.0, -1.0, 7.0, f32::NAN], 2);
    let samples: Vec<i16> = raw.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect();
    assert_eq!(samples, [0, 32_767, -32_768, 32_767, 0]);
    assert_eq!(encoded(SoundFormat::Pcm, 16_000, &sound(16_000, 1.0), 70).len(), 2 * 24_000);
}

#[test]
fn rc_28_opus_is_as_long_as_the_sound_and_sounds_like_it() {
    for rate in [8_000, 16_000, 22_050, 24_000, 48_000] {
        for seconds in [0.3, 2.0] {
            let original = sound(rate, seconds);
            let bytes = encoded(SoundFormat::Opus, rate, &original, 1_000);
            assert!(bytes.len() as f32 <= 1_000.0 + seconds * 12_000.0, "{} bytes of {seconds} s", bytes.len());
            let (told, read) = opus_decoded(bytes);
            assert_eq!(told, SoundFormat::Opus.rate(rate));
            let expected = sound(48_000, seconds);
            assert!(read.len().abs_diff(expected.len()) <= 12, "{rate}: {} of {}", read.len(), expected.len());
            let fidelity = fidelity(&expected[4_800..], &read[4_800..]);
            assert!(fidelity > 15.0, "{rate}: {fidelity:.1} dB");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn rc_28_no_sound_fails(samples in prop::collection::vec(-2.0_f32..2.0, 0..9_000), rate in 8_000_u32..192_000, step in 1_usize..3_000) {
        for format in SoundFormat::ALL {
            encoded(format, rate, &samples, step);
        }
    }
}

/// The output of a program that reads the file, or nothing where it is not installed.
fn by_program(program: &str, args: &[&str], file: &[u8]) -> Option<Vec<u8>> {
    let started = Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = started else {
        eprintln!("skipped: '{program}' is not installed");
        return None;
    };
    let mut stdin = child.stdin.take().unwrap();
    let file = file.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&file));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{program} {args:?}");
    Some(output.stdout)
}

fn samples_of(raw: &[u8]) -> Vec<f32> {
    raw.chunks_exact(2).map(|pair| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32_767.0).collect()
}

#[test]
fn rc_28_ffmpeg_and_opusdec_read_what_is_written() {
    let rate = 24_000;
    let original = sound(rate, 2.0);
    let plain = ["-v", "error", "-i", "pipe:0", "-ar", "24000", "-f", "s16le", "pipe:1"];
    for format in [SoundFormat::Wav, SoundFormat::Flac, SoundFormat::Opus] {
        let file = encoded(format, rate, &original, 4_000);
        let mut readers: Vec<(&str, &[&str])> = vec![("ffmpeg", &plain)];
        if format == SoundFormat::Opus {
            readers.push(("opusdec", &["--quiet", "--rate", "24000", "--no-dither", "-", "-"]));
        }
        for (program, args) in readers {
            let Some(raw) = by_program(program, args, &file) else { continue };
            let read = samples_of(&raw);
            assert!(read.len().abs_diff(original.len()) <= 32, "{program} {format:?}: {}", read.len());
            let least = if format == SoundFormat::Opus { 15.0 } else { 80.0 };
            let fidelity = fidelity(&original[2_400..], &read[2_400..]);
            assert!(fidelity > least, "{program} {format:?}: {fidelity:.1} dB");
        }
    }
}

#[test]
fn rc_28_libsndfile_reads_what_is_written() {
    let Some(python) = std::env::var_os("MODEL_BOSS_REFERENCE_PYTHON") else {
        eprintln!("skipped: MODEL_BOSS_REFERENCE_PYTHON names no Python with the package soundfile");
        return;
    };
    let script = "import sys, io, soundfile\nfile = soundfile.SoundFile(io.BytesIO(sys.stdin.buffer.read()))\n\
                  # A stream of FLAC does not tell its length, so the caller does.\n\
                  data = file.read(10 * file.samplerate, dtype='int16')\n\
                  sys.stdout.buffer.write(data.tobytes())";
    let original = sound(24_000, 2.0);
    for format in [SoundFormat::Wav, SoundFormat::Flac, SoundFormat::Opus] {
        let file = encoded(format, 24_000, &original, 4_000);
        let Some(raw) = by_program(&python.to_string_lossy(), &["-c", script], &file) else { continue };
        let read = samples_of(&raw);
        assert!(read.len().abs_diff(original.len()) <= 32, "{format:?}: {}", read.len());
    }
}
