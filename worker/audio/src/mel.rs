//! Logarithmic mel spectrograms as `transformers`' `WhisperFeatureExtractor` computes them: windows that are centred on
//! their frames, with the sound reflected at its ends, and filters on Slaney's scale (Slaney, 1998, Auditory Toolbox).

use std::f64::consts::TAU;
use std::ops::Range;
use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};

use crate::recording::RATE;

/// Powers below this count as this.
const FLOOR: f64 = 1e-10;

/// The range that is kept below a spectrogram's largest number, in powers of ten.
const RANGE: f32 = 8.0;

/// The sizes of a spectrogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MelShape {
    /// Filters: numbers of each frame.
    pub bins: usize,
    /// Samples of a window.
    pub window: usize,
    /// Samples from one frame to the next.
    pub hop: usize,
}

/// Filters and windows for one shape.
#[derive(Clone)]
pub struct MelFilters {
    shape: MelShape,
    /// For each filter its first frequency, and its weights.
    filters: Vec<(usize, Vec<f64>)>,
    window: Vec<f64>,
    transform: Arc<dyn RealToComplex<f64>>,
}

impl MelFilters {
    /// Filters from 0 Hz to half of [`RATE`]. None of the sizes is zero.
    pub fn new(shape: MelShape) -> Self {
        let window = (0..shape.window).map(|at| 0.5 - 0.5 * (TAU * at as f64 / shape.window as f64).cos());
        Self {
            shape,
            filters: filters(shape),
            window: window.collect(),
            transform: RealFftPlanner::new().plan_fft_forward(shape.window),
        }
    }

    /// The shape.
    pub fn shape(&self) -> MelShape {
        self.shape
    }

    /// The spectrogram of a sound followed by silence, `[bins, frames]`.
    pub fn spectrogram(&self, samples: &[i16], frames: usize) -> Vec<f32> {
        let mut powers = self.powers(samples, 0..frames, frames);
        let largest = powers.iter().copied().fold(f32::MIN, f32::max);
        normalise(&mut powers, largest);
        powers
    }

    /// Some frames of a sound that is followed by silence, `[bins, frames]`. The largest number is that of the whole
    /// sound ([`Self::largest`]).
    pub fn window(&self, samples: &[i16], frames: Range<usize>, largest: f32) -> Vec<f32> {
        let mut powers = self.powers(samples, frames, usize::MAX / self.shape.hop.max(1) / 4);
        normalise(&mut powers, largest);
        powers
    }

    /// The largest number of a sound's spectrogram, before it is normalised.
    pub fn largest(&self, samples: &[i16], frames: usize) -> f32 {
        const TOGETHER: usize = 3000;
        let mut largest = FLOOR.log10() as f32;
        for first in (0..frames).step_by(TOGETHER) {
            let powers =
                self.powers(samples, first..frames.min(first + TOGETHER), usize::MAX / self.shape.hop.max(1) / 4);
            largest = powers.into_iter().fold(largest, f32::max);
        }
        largest
    }

    /// Logarithms of the powers of some frames, `[bins, frames]`, of a sound with `all` frames.
    fn powers(&self, samples: &[i16], range: Range<usize>, all: usize) -> Vec<f32> {
        let MelShape { bins, window, hop } = self.shape;
        let (length, frames) = (all * hop, range.len());
        // The sample at a place of the sound between its reflections.
        let sample = |at: isize| {
            let end = length as isize - 1;
            let mut at = if at < 0 { -at } else { at };
            if at > end {
                at = 2 * end - at;
            }
            usize::try_from(at).ok().and_then(|at| samples.get(at)).map_or(0.0, |sample| f64::from(*sample) / 32_768.0)
        };
        let mut numbers = vec![0.0_f64; window];
        let mut spectrum = self.transform.make_output_vec();
        let mut scratch = self.transform.make_scratch_vec();
        let mut energies = vec![0.0_f64; spectrum.len()];
        let mut out = vec![FLOOR.log10() as f32; bins * frames];
        for (column, frame) in range.enumerate() {
            let first = (frame * hop) as isize - (window / 2) as isize;
            // Behind the sound there is silence.
            if first >= samples.len() as isize && first + window as isize <= length as isize {
                continue;
            }
            for (at, (number, weight)) in numbers.iter_mut().zip(&self.window).enumerate() {
                *number = sample(first + at as isize) * weight;
            }
            // The lengths are those of the plan.
            if self.transform.process_with_scratch(&mut numbers, &mut spectrum, &mut scratch).is_err() {
                continue;
            }
            for (energy, Complex { re, im }) in energies.iter_mut().zip(&spectrum) {
                // The reference holds the spectrum in 32 bits.
                let (re, im) = (f64::from(*re as f32), f64::from(*im as f32));
                *energy = re * re + im * im;
            }
            for (bin, (first, weights)) in self.filters.iter().enumerate() {
                let sum: f64 = weights.iter().zip(&energies[*first..]).map(|(weight, energy)| weight * energy).sum();
                out[bin * frames + column] = sum.max(FLOOR).log10() as f32;
            }
        }
        out
    }
}

fn normalise(powers: &mut [f32], largest: f32) {
    for power in powers {
        *power = (power.max(largest - RANGE) + 4.0) / 4.0;
    }
}

/// Triangles on Slaney's scale, each of the same area.
fn filters(MelShape { bins, window, .. }: MelShape) -> Vec<(usize, Vec<f64>)> {
    let highest = f64::from(RATE) / 2.0;
    let frequencies = window / 2 + 1;
    let (low, high) = (to_mel(0.0), to_mel(highest));
    let corners: Vec<f64> =
        (0..bins + 2).map(|at| to_hertz(low + (high - low) * at as f64 / (bins + 1) as f64)).collect();
    let hertz = |at: usize| highest * at as f64 / (frequencies - 1).max(1) as f64;
    corners
        .windows(3)
        .map(|corners| {
            let &[left, middle, right] = corners else { return (0, Vec::new()) };
            let area = 2.0 / (right - left);
            let weight = |at: usize| {
                let (up, down) = ((hertz(at) - left) / (middle - left), (right - hertz(at)) / (right - middle));
                up.min(down).max(0.0) * area
            };
            let first = (0..frequencies).find(|at| weight(*at) > 0.0).unwrap_or(0);
            let weights = (first..frequencies).map(weight).take_while(|weight| *weight > 0.0).collect();
            (first, weights)
        })
        .collect()
}

/// The scale is linear up to 1 kHz and logarithmic beyond.
const LINEAR: f64 = 200.0 / 3.0;
const KNEE: f64 = 1000.0;
const STEP: f64 = 0.068_751_777_420_949_12;

fn to_mel(hertz: f64) -> f64 {
    if hertz < KNEE { hertz / LINEAR } else { KNEE / LINEAR + (hertz / KNEE).ln() / STEP }
}

fn to_hertz(mel: f64) -> f64 {
    let knee = KNEE / LINEAR;
    if mel < knee { mel * LINEAR } else { KNEE * ((mel - knee) * STEP).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rc_28_the_scale_turns_back_and_the_step_is_that_of_6_4() {
        assert!((STEP - 6.4_f64.ln() / 27.0).abs() < 1e-15);
        for hertz in [0.0, 440.0, 1000.0, 8000.0] {
            assert!((to_hertz(to_mel(hertz)) - hertz).abs() < 1e-9);
        }
    }

    #[test]
    fn rc_28_silence_is_one_number_and_a_tone_is_in_its_filter() {
        let filters = MelFilters::new(MelShape { bins: 80, window: 400, hop: 160 });
        let silent = filters.spectrogram(&[], 10);
        assert!(silent.iter().all(|number| *number == silent[0]));
        let tone: Vec<i16> = (0..16_000).map(|at| (20_000.0 * (TAU * f64::from(at) / 16.0).sin()) as i16).collect();
        let of_tone = filters.spectrogram(&tone, 100);
        let loudest = (0..80).max_by(|a, b| of_tone[a * 100 + 50].total_cmp(&of_tone[b * 100 + 50])).unwrap();
        let (low, high) = (to_mel(0.0), to_mel(8000.0));
        let centre = to_hertz(low + (high - low) * (loudest + 1) as f64 / 81.0);
        assert!((centre - 1000.0).abs() < 60.0, "{centre}");
    }
}
