//! The places at which a long recording is cut into chunks: the quiet ones. Chunks are computed apart from each other,
//! so a cut within a word would spoil it.
//!
//! Loudness decides where to cut, and never what is speech: all sound is in some chunk. Only stretches in which no
//! sample rises above the noise of a converter are left out, since speech cannot be there.

use std::ops::Range;

use crate::recording::{RATE, SoundRecording};

/// Samples whose loudness is one number: 20 ms.
const FRAME: usize = RATE as usize / 50;

/// Samples up to this are silence: -66 dB of the largest.
const SILENT: u16 = 16;

/// Silence that is left out, in frames.
const LEFT_OUT: usize = 100;

/// Silence that stays on both sides of sound, in frames.
const KEPT: usize = 10;

/// A pause of speech is quieter than its surroundings for at least so many frames.
const PAUSE: usize = 15;

/// How a recording is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlan {
    /// Samples of the longest chunk.
    pub longest: usize,
}

/// The chunks of a recording, in its order.
pub fn cuts(recording: &SoundRecording, plan: ChunkPlan) -> Vec<Range<usize>> {
    let longest = (plan.longest / FRAME).max(1);
    let frames: Vec<FrameLoudness> = recording.samples.chunks(FRAME).map(FrameLoudness::of).collect();
    let smooth = smoothed(&frames);
    let mut chunks = Vec::new();
    for sound in sounds(&frames) {
        let mut first = sound.start;
        while sound.end - first > longest {
            let cut = quietest(&smooth, first, longest);
            chunks.push(first..cut);
            first = cut;
        }
        chunks.push(first..sound.end);
    }
    merge(&mut chunks, longest);
    let sample = |frame: usize| (frame * FRAME).min(recording.samples.len());
    chunks.into_iter().map(|frames| sample(frames.start)..sample(frames.end)).collect()
}

#[derive(Clone, Copy)]
struct FrameLoudness {
    /// The mean square of the samples.
    power: f32,
    is_silent: bool,
}

impl FrameLoudness {
    fn of(samples: &[i16]) -> Self {
        let square = |sample: &i16| f32::from(*sample) * f32::from(*sample);
        let power = samples.iter().map(square).sum::<f32>() / samples.len().max(1) as f32;
        Self { power, is_silent: samples.iter().all(|sample| sample.unsigned_abs() <= SILENT) }
    }
}

/// Stretches with sound: what is between long silences.
fn sounds(frames: &[FrameLoudness]) -> Vec<Range<usize>> {
    let mut sounds: Vec<Range<usize>> = Vec::new();
    for (at, _) in frames.iter().enumerate().filter(|(_, frame)| !frame.is_silent) {
        match sounds.last_mut() {
            Some(last) if at - last.end < LEFT_OUT => last.end = at + 1,
            _ => sounds.push(at..at + 1),
        }
    }
    for sound in &mut sounds {
        *sound = sound.start.saturating_sub(KEPT)..(sound.end + KEPT).min(frames.len());
    }
    sounds
}

/// The loudness in decibels, each frame with its neighbours.
fn smoothed(frames: &[FrameLoudness]) -> Vec<f32> {
    let around = |at: usize| {
        let near = &frames[at.saturating_sub(PAUSE / 2)..frames.len().min(at + PAUSE / 2 + 1)];
        let power = near.iter().map(|frame| frame.power).sum::<f32>() / near.len() as f32;
        10.0 * (power + 1.0).log10()
    };
    (0..frames.len()).map(around).collect()
}

/// The frame at which a stretch that begins at `first` is cut: the quietest of the second half of what fits into a
/// chunk. A later one is as good if it is a little louder.
fn quietest(loudness: &[f32], first: usize, longest: usize) -> usize {
    /// Decibels that the whole half is worth.
    const LATER: f32 = 6.0;
    let half = longest.div_ceil(2);
    let worth = |at: usize| loudness[at] - LATER * (at - first - half) as f32 / half.max(1) as f32;
    let places = first + half..(first + longest).min(loudness.len());
    places.min_by(|one, other| worth(*one).total_cmp(&worth(*other))).unwrap_or(first + longest).max(first + 1)
}

/// Joins neighbours that fit into one chunk together, with the silence between them.
fn merge(chunks: &mut Vec<Range<usize>>, longest: usize) {
    chunks.dedup_by(|next, chunk| {
        let fits = next.end - chunk.start <= longest;
        if fits {
            chunk.end = next.end;
        }
        fits
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn noise(seconds: f64, loud: i16) -> Vec<i16> {
        let count = (seconds * f64::from(RATE)) as usize;
        (0..count).map(|at| (((at * 7919) % 2003) as i32 * i32::from(loud) / 1001 - i32::from(loud)) as i16).collect()
    }

    fn cut(samples: Vec<i16>) -> (usize, Vec<Range<usize>>) {
        let plan = ChunkPlan { longest: 30 * RATE as usize };
        (samples.len(), cuts(&SoundRecording { samples }, plan))
    }

    #[test]
    fn rc_28_a_cut_is_in_the_pause() {
        let samples = [noise(24.0, 8000), noise(0.5, 100), noise(20.0, 8000)].concat();
        let (count, chunks) = cut(samples);
        assert_eq!((chunks[0].start, chunks[1].end, chunks.len()), (0, count, 2));
        let seconds = chunks[0].end as f64 / f64::from(RATE);
        assert!((24.0..24.5).contains(&seconds), "{seconds}");
    }

    #[test]
    fn rc_28_long_silence_is_left_out_and_short_silence_stays() {
        assert!(cut(noise(9.0, 10)).1.is_empty());
        let (_, chunks) = cut([noise(20.0, 8000), noise(40.0, 0), noise(20.0, 8000)].concat());
        assert_eq!(chunks.len(), 2);
        assert!(chunks[0].end < 21 * RATE as usize && chunks[1].start > 59 * RATE as usize);
        let (count, chunks) = cut([noise(5.0, 8000), noise(6.0, 0), noise(5.0, 8000)].concat());
        assert_eq!((chunks.len(), &chunks[0]), (1, &(0..count)), "both parts fit into one chunk");
    }

    proptest! {
        #[test]
        fn rc_28_every_loud_sample_is_in_one_chunk(parts in prop::collection::vec((0.01_f64..20.0, 0_i16..3000), 0..12)) {
            let (count, chunks) = cut(parts.iter().flat_map(|(seconds, loud)| noise(*seconds, *loud)).collect());
            let samples: Vec<i16> = parts.iter().flat_map(|(seconds, loud)| noise(*seconds, *loud)).collect();
            let mut behind = 0;
            for chunk in &chunks {
                prop_assert!(chunk.start >= behind && chunk.end <= count && !chunk.is_empty());
                prop_assert!(chunk.len() <= 30 * RATE as usize);
                prop_assert!(samples[behind..chunk.start].iter().all(|sample| sample.unsigned_abs() <= SILENT));
                behind = chunk.end;
            }
            prop_assert!(samples[behind..].iter().all(|sample| sample.unsigned_abs() <= SILENT));
        }
    }
}
