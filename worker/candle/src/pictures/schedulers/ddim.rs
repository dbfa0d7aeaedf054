//! DDIM without noise between steps (Song et al., 2020, arXiv 2010.02502).

use super::noise_levels::{LastLevel, NoiseLevels};
use super::scheduler_class::SchedulerClass;
use super::scheduler_fields::{NoisePrediction, SchedulerFields};
use super::solver::{DrawNoise, Solver};
use super::spacing;

pub(super) struct DdimSolver {
    times: Vec<f32>,
    levels: NoiseLevels,
    /// The level behind the last step.
    last: f32,
    /// The distance between two times.
    distance: i64,
    prediction: NoisePrediction,
    /// The bound on the picture that is predicted.
    clip: Option<f32>,
}

impl DdimSolver {
    pub(super) fn new(fields: &SchedulerFields, steps: usize) -> Result<Self, String> {
        let levels = NoiseLevels::of(fields, LastLevel::Nothing)?;
        let times = spacing::times(fields, SchedulerClass::Ddim, steps)?;
        let times = times.into_iter().map(|time| time.round_ties_even() as f32).collect();
        let last = if fields.set_alpha_to_one.unwrap_or(true) { 1.0 } else { levels.at(0) };
        let clip = fields.clip_sample.unwrap_or(true).then(|| fields.clip_sample_range.unwrap_or(1.0));
        let distance = (fields.trained_times()? / steps) as i64;
        Ok(Self { times, levels, last, distance, prediction: fields.prediction()?, clip })
    }
}

impl Solver for DdimSolver {
    fn times(&self) -> &[f32] {
        &self.times
    }

    fn mixture(&self, call: usize) -> [f32; 2] {
        let level = self.levels.at(self.times[call] as i64);
        [level.sqrt(), (1.0 - level).sqrt()]
    }

    fn step(&mut self, call: usize, output: &[f32], sample: &mut [f32], _: DrawNoise<'_>) {
        let time = self.times[call] as i64;
        let before = time - self.distance;
        let level = self.levels.at(time);
        let level_before = if before >= 0 { self.levels.at(before) } else { self.last };
        let (signal, noise) = (level.sqrt(), (1.0 - level).sqrt());
        let (signal_before, noise_before) = (level_before.sqrt(), (1.0 - level_before).sqrt());
        for (x, output) in sample.iter_mut().zip(output) {
            let (picture, epsilon) = match self.prediction {
                NoisePrediction::Epsilon => ((*x - noise * output) / signal, *output),
                NoisePrediction::Sample => (*output, (*x - signal * output) / noise),
                NoisePrediction::Velocity => (signal * *x - noise * output, signal * output + noise * *x),
            };
            let picture = self.clip.map_or(picture, |bound| picture.clamp(-bound, bound));
            *x = signal_before * picture + noise_before * epsilon;
        }
    }
}
