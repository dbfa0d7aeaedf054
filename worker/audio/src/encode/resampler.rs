//! Another rate of samples, block by block. The result has no delay, and is as long as the sound.

use rubato::audioadapter_buffers::direct::SequentialSliceOfVecs;
use rubato::{Fft, FixedSync, Resampler};

use super::error::EncodeSoundError;

/// Samples that are turned at a time.
const BLOCK: usize = 1024;

/// Turns samples of one rate into those of another.
pub struct StreamResampler {
    /// None where the rates are the same.
    turn: Option<Fft<f32>>,
    from: u32,
    to: u32,
    /// Samples that make no block yet.
    rest: Vec<f32>,
    /// Samples of the result that belong to the delay, and are left out.
    late: usize,
    taken: u64,
    given: u64,
}

impl StreamResampler {
    /// From samples of one rate to those of another.
    pub fn new(from: u32, to: u32) -> Result<Self, EncodeSoundError> {
        let turn = (from != to).then(|| Fft::new(from as usize, to as usize, BLOCK, 1, FixedSync::Input)).transpose();
        let turn = turn.map_err(|error| EncodeSoundError::Rate { from, to, why: error.to_string() })?;
        let late = turn.as_ref().map_or(0, Resampler::output_delay);
        Ok(Self { turn, from, to, rest: Vec::new(), late, taken: 0, given: 0 })
    }

    /// The samples of the other rate that are complete.
    pub fn push(&mut self, samples: &[f32]) -> Result<Vec<f32>, EncodeSoundError> {
        if self.turn.is_none() {
            return Ok(samples.to_vec());
        }
        self.taken += samples.len() as u64;
        self.rest.extend_from_slice(samples);
        let turned = self.turned()?;
        self.given += turned.len() as u64;
        Ok(turned)
    }

    /// The rest of the sound.
    pub fn finish(mut self) -> Result<Vec<f32>, EncodeSoundError> {
        if self.turn.is_none() {
            return Ok(Vec::new());
        }
        let whole = (self.taken * u64::from(self.to)).div_ceil(u64::from(self.from));
        let missing = usize::try_from(whole.saturating_sub(self.given)).unwrap_or(0);
        let mut turned = Vec::new();
        while turned.len() < missing {
            self.rest.resize(self.rest.len() + BLOCK, 0.0);
            turned.extend(self.turned()?);
        }
        turned.truncate(missing);
        Ok(turned)
    }

    fn turned(&mut self) -> Result<Vec<f32>, EncodeSoundError> {
        let (from, to) = (self.from, self.to);
        let failed = |why: &dyn std::fmt::Display| EncodeSoundError::Rate { from, to, why: why.to_string() };
        let Some(turn) = &mut self.turn else { return Ok(Vec::new()) };
        let (mut all, mut at) = (Vec::new(), 0);
        loop {
            let length = turn.input_frames_next();
            if self.rest.len() - at < length {
                break;
            }
            let block = [self.rest[at..at + length].to_vec()];
            let adapter = SequentialSliceOfVecs::new(&block, 1, length).map_err(|error| failed(&error))?;
            let turned = turn.process(&adapter, None).map_err(|error| failed(&error))?.take_data();
            let late = self.late.min(turned.len());
            self.late -= late;
            all.extend_from_slice(&turned[late..]);
            at += length;
        }
        self.rest.drain(..at);
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(rate: u32, samples: usize) -> Vec<f32> {
        (0..samples).map(|at| (at as f32 / rate as f32 * 440.0 * std::f32::consts::TAU).sin() * 0.5).collect()
    }

    #[test]
    fn rc_28_sound_of_another_rate_is_as_long_and_comes_at_once() {
        for (from, to) in [(16_000, 24_000), (22_050, 24_000), (44_100, 24_000), (24_000, 24_000), (48_000, 16_000)] {
            for samples in [0, 1, 700, from as usize] {
                let sound = tone(from, samples);
                let whole = |step: usize| {
                    let mut resampler = StreamResampler::new(from, to).unwrap();
                    let mut turned = Vec::new();
                    for block in sound.chunks(step) {
                        turned.extend(resampler.push(block).unwrap());
                    }
                    turned.extend(resampler.finish().unwrap());
                    turned
                };
                let turned = whole(333);
                assert_eq!(
                    turned.len() as u64,
                    (samples as u64 * u64::from(to)).div_ceil(u64::from(from)),
                    "{from} {to}"
                );
                assert_eq!(turned, whole(5_000), "the blocks do not matter");
                // Away from the ends, where sound begins out of nothing.
                let expected = tone(to, turned.len());
                let inner = 500.min(turned.len() / 2)..turned.len() - 500.min(turned.len() / 2);
                for at in inner {
                    assert!((turned[at] - expected[at]).abs() < 0.01, "{from} {to} {samples} {at}");
                }
            }
        }
    }
}
