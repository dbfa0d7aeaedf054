//! Sound of any rate at the rate of recordings, while it is decoded: a sinc under a Kaiser window (Kaiser and Schafer,
//! 1980, doi 10.1109/TASSP.1980.1163349), as a table of phases. It passes what is below nine tenths of the lower half
//! rate, and what is beyond the half rate becomes less than a sixteen-bit sample can hold.

use std::f64::consts::PI;

use super::error::AudioError;
use super::limits::check_rate;
use crate::recording::RATE;

/// Zeros of the sinc on each side.
const ZEROS: f64 = 64.0;

/// The middle of the filter's edge, by the lower half rate.
const EDGE: f64 = 0.95;

/// The shape of Kaiser's window: 100 dB.
const SHAPE: f64 = 10.0;

/// Most phases of the table. Rates with more phases are interpolated between them.
const MOST_PHASES: u64 = 2048;

/// Takes samples at one rate and has them at [`RATE`].
pub(super) struct ToRate {
    pub(super) from: u32,
    /// None where both rates are the same.
    filter: Option<PhaseFilter>,
    /// Samples from `first` on that are still needed.
    window: Vec<f32>,
    /// The number of the window's first sample; those before the sound are zeros.
    first: i64,
    /// Samples at the original rate.
    taken: u64,
    samples: Vec<i16>,
}

/// The filter at each phase between two samples.
struct PhaseFilter {
    /// Samples of the original rate and of the new one in which all phases come once.
    steps: [u64; 2],
    phases: usize,
    taps: usize,
    /// `[phases + 1, taps]`: the last row is the first, a sample later.
    table: Vec<f32>,
}

impl ToRate {
    pub(super) fn new(from: u32) -> Result<Self, AudioError> {
        check_rate(from)?;
        let filter = (from != RATE).then(|| PhaseFilter::new(u64::from(from), u64::from(RATE)));
        let ahead = filter.as_ref().map_or(0, |filter| filter.taps / 2);
        let first = -(ahead as i64);
        Ok(Self { from, filter, window: vec![0.0; ahead], first, taken: 0, samples: Vec::new() })
    }

    /// The samples at the new rate so far.
    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    pub(super) fn push(&mut self, mono: &[f32]) {
        self.taken += mono.len() as u64;
        match &self.filter {
            None => self.samples.extend(mono.iter().copied().map(rounded)),
            Some(_) => {
                self.window.extend_from_slice(mono);
                self.resample(usize::MAX);
            }
        }
    }

    /// All samples.
    pub(super) fn end(mut self) -> Vec<i16> {
        if let Some(filter) = &self.filter {
            let wanted = (u128::from(self.taken) * u128::from(RATE)).div_ceil(u128::from(self.from));
            self.window.resize(self.window.len() + filter.taps + 1, 0.0);
            self.resample(usize::try_from(wanted).unwrap_or(usize::MAX));
        }
        self.samples
    }

    /// Makes the samples whose surroundings are there, up to so many in all.
    fn resample(&mut self, most: usize) {
        let Some(filter) = &self.filter else { return };
        let half = (filter.taps / 2) as i64;
        let [from, to] = filter.steps;
        while self.samples.len() < most {
            let at = u128::from(self.samples.len() as u64) * u128::from(from);
            let centre = (at / u128::from(to)) as i64;
            // The taps begin behind the sample that is half of them before.
            let begin = centre - half + 1 - self.first;
            let Ok(begin) = usize::try_from(begin) else { break };
            let Some(near) = self.window.get(begin..begin + filter.taps) else { break };
            let sample = filter.mixed(near, (at % u128::from(to)) as u64);
            self.samples.push(rounded(sample));
        }
        let next = (u128::from(self.samples.len() as u64) * u128::from(from) / u128::from(to)) as i64;
        let done = usize::try_from(next - half + 1 - self.first).unwrap_or(0).min(self.window.len());
        // Moved rarely, not at each call.
        if done > filter.taps.max(1 << 14) {
            self.window.drain(..done);
            self.first += done as i64;
        }
    }
}

impl PhaseFilter {
    fn new(from: u64, to: u64) -> Self {
        let shared = divisor(from, to);
        let steps = [from / shared, to / shared];
        let phases = steps[1].min(MOST_PHASES) as usize;
        // The cut-off by the original half rate.
        let cut = EDGE * (to as f64 / from as f64).min(1.0);
        let half = (ZEROS / cut).ceil();
        let taps = 2 * half as usize;
        let mut table = Vec::with_capacity((phases + 1) * taps);
        for phase in 0..=phases {
            let offset = phase as f64 / phases as f64;
            // The tap at `half - 1` is the sample before the place, or at it.
            let weight = |tap: usize| {
                let distance = tap as f64 - (half - 1.0) - offset;
                cut * sinc(cut * distance) * kaiser(distance / half)
            };
            let weights: Vec<f64> = (0..taps).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            table.extend(weights.iter().map(|weight| (weight / sum) as f32));
        }
        Self { steps, phases, taps, table }
    }

    /// The sample at a place between two samples, in parts of [`Self::steps`].
    fn mixed(&self, near: &[f32], part: u64) -> f32 {
        let row = |phase: usize| &self.table[phase * self.taps..][..self.taps];
        if self.steps[1] == self.phases as u64 {
            return product(near, row(part as usize));
        }
        let place = part as f64 / self.steps[1] as f64 * self.phases as f64;
        let (phase, share) = ((place as usize).min(self.phases - 1), place.fract() as f32);
        product(near, row(phase)) * (1.0 - share) + product(near, row(phase + 1)) * share
    }
}

/// The sum of products, in lanes that the compiler keeps in one vector.
fn product(one: &[f32], other: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [0.0_f32; LANES];
    let (ones, rest) = one.as_chunks::<LANES>();
    let (others, behind) = other.as_chunks::<LANES>();
    for (one, other) in ones.iter().zip(others) {
        for ((lane, one), other) in lanes.iter_mut().zip(one).zip(other) {
            *lane += one * other;
        }
    }
    let tail: f32 = rest.iter().zip(behind).map(|(one, other)| one * other).sum();
    lanes.iter().sum::<f32>() + tail
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) }
}

/// Kaiser's window at a place from -1 to 1.
fn kaiser(x: f64) -> f64 {
    let inside = 1.0 - x * x;
    if inside < 0.0 { 0.0 } else { bessel(SHAPE * inside.sqrt()) / bessel(SHAPE) }
}

/// The modified Bessel function of the first kind and order 0, as its power series.
fn bessel(x: f64) -> f64 {
    let (mut sum, mut term, mut at) = (1.0, 1.0, 1.0);
    while term > sum * 1e-17 {
        term *= (x / 2.0 / at).powi(2);
        sum += term;
        at += 1.0;
    }
    sum
}

fn divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one.max(1) } else { divisor(other, one % other) }
}

/// A sample in 16 bits.
fn rounded(sample: f32) -> i16 {
    (sample * 32_768.0).round().clamp(-32_768.0, 32_767.0) as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tone of half the range at a rate, given in pieces.
    fn tone(hertz: f64, rate: u32, seconds: f64) -> Vec<i16> {
        let count = (seconds * f64::from(rate)) as usize;
        let sample = |at: usize| (0.5 * (2.0 * PI * hertz * at as f64 / f64::from(rate)).sin()) as f32;
        let samples: Vec<f32> = (0..count).map(sample).collect();
        let mut to_rate = ToRate::new(rate).unwrap();
        samples.chunks(777).for_each(|piece| to_rate.push(piece));
        to_rate.end()
    }

    #[test]
    fn rc_28_a_tone_stays_a_tone_at_its_place() {
        for rate in [8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 44_101, 15_999] {
            let ours = tone(440.0, rate, 0.5);
            assert!(ours.len().abs_diff(8_000) <= 1, "{rate}: {}", ours.len());
            for (at, ours) in ours.iter().enumerate().take(7_500).skip(500) {
                let exact = 16_384.0 * (2.0 * PI * 440.0 * at as f64 / 16_000.0).sin();
                assert!((f64::from(*ours) - exact).abs() < 2.0, "{rate} at {at}: {ours} {exact}");
            }
        }
    }

    #[test]
    fn rc_28_what_the_new_rate_cannot_hold_is_gone() {
        for (hertz, rate) in [(8_100.0, 44_100), (12_000.0, 48_000), (30_000.0, 96_000), (21_000.0, 44_101)] {
            let ours = tone(hertz, rate, 0.5);
            let loudest = ours[500..7_500].iter().map(|sample| sample.unsigned_abs()).max().unwrap();
            assert!(loudest <= 2, "{hertz} Hz of {rate}: {loudest}");
        }
        let near = tone(7_000.0, 48_000, 0.5);
        let loudest = near[500..7_500].iter().map(|sample| sample.unsigned_abs()).max().unwrap();
        assert!(loudest > 16_300, "what is below stays: {loudest}");
    }
}
