//! Files of sound that clients send: decoding ends in a recording within its limits, or in an error.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use model_boss_audio::decode::{AudioLimits, decode};
use model_boss_audio::{ChunkPlan, cuts};

fuzz_target!(|file: &[u8]| {
    let limits = AudioLimits { longest: Duration::from_secs(20) };
    if let Ok(recording) = decode(file.to_vec(), &limits) {
        assert!(recording.duration() <= limits.longest + Duration::from_secs(1));
        let mut behind = 0;
        for chunk in cuts(&recording, ChunkPlan { longest: 16_000 }) {
            assert!(chunk.start >= behind && chunk.end <= recording.samples.len() && chunk.len() <= 16_000);
            behind = chunk.end;
        }
    }
});
