//! Pseudo numerical methods (Liu et al., 2022, arXiv 2202.09778): outputs of earlier calls make the next one better.
//! The first steps may be of the method of Runge and Kutta, which calls the model four times for two of them.

use super::noise_levels::{LastLevel, NoiseLevels};
use super::scheduler_class::SchedulerClass;
use super::scheduler_fields::{NoisePrediction, SchedulerFields};
use super::solver::{DrawNoise, Solver, weighted};
use super::spacing;

/// Times that begin with steps of Runge and Kutta.
const BEGINNING: usize = 4;

pub(super) struct PndmSolver {
    times: Vec<f32>,
    levels: NoiseLevels,
    last: f32,
    distance: i64,
    prediction: NoisePrediction,
    /// Calls for steps of Runge and Kutta.
    beginning: usize,
    /// Calls that were made.
    calls: usize,
    /// Outputs of earlier calls, the latest last.
    outputs: Vec<Vec<f32>>,
    /// The sum of the outputs of a step in several calls.
    sum: Vec<f32>,
    /// The sample before it.
    before: Option<Vec<f32>>,
}

impl PndmSolver {
    pub(super) fn new(fields: &SchedulerFields, steps: usize) -> Result<Self, String> {
        let levels = NoiseLevels::of(fields, LastLevel::Nothing)?;
        let times = spacing::times(fields, SchedulerClass::Pndm, steps)?;
        let times: Vec<f32> = times.into_iter().map(|time| time.round_ties_even() as f32).collect();
        let distance = fields.trained_times()? / steps;
        let (times, beginning) = if fields.skip_prk_steps.unwrap_or(false) {
            // The second time is called twice.
            let twice = if steps > 1 { vec![times[1]] } else { Vec::new() };
            (times.iter().take(1).copied().chain(twice).chain(times.iter().skip(1).copied()).collect(), 0)
        } else {
            let prepared = runge_kutta(&times, distance);
            let count = prepared.len();
            (prepared.into_iter().chain(times.iter().skip(BEGINNING - 1).copied()).collect(), count)
        };
        let last = if fields.set_alpha_to_one.unwrap_or(false) { 1.0 } else { levels.at(0) };
        let (prediction, distance) = (fields.prediction()?, distance as i64);
        if prediction == NoisePrediction::Sample {
            return Err("prediction_type 'sample' is not known with PNDM".to_owned());
        }
        let (outputs, sum) = (Vec::new(), Vec::new());
        Ok(Self { times, levels, last, distance, prediction, beginning, calls: 0, outputs, sum, before: None })
    }

    /// The sample at another time, by an output of the first one.
    fn moved(&self, sample: &[f32], [from, to]: [i64; 2], output: &[f32]) -> Vec<f32> {
        let level = self.levels.at(from);
        let level_to = if to >= 0 { self.levels.at(to) } else { self.last };
        let (noise, noise_to) = (1.0 - level, 1.0 - level_to);
        let of_sample = (level_to / level).sqrt();
        let below = level * noise_to.sqrt() + (level * noise * level_to).sqrt();
        let of_output = -(level_to - level) / below;
        match self.prediction {
            NoisePrediction::Velocity => {
                let epsilon = weighted([(level.sqrt(), output), (noise.sqrt(), sample)]);
                weighted([(of_sample, sample), (of_output, &epsilon)])
            }
            NoisePrediction::Epsilon | NoisePrediction::Sample => weighted([(of_sample, sample), (of_output, output)]),
        }
    }

    /// A call of a step of Runge and Kutta.
    fn begin(&mut self, call: usize, output: &[f32], sample: &[f32]) -> Vec<f32> {
        let half = if self.calls % 2 == 1 { 0 } else { self.distance / 2 };
        let to = self.times[call] as i64 - half;
        let from = self.times[self.calls / 4 * 4] as i64;
        let mut output = output.to_vec();
        match self.calls % 4 {
            0 => {
                self.sum = weighted([(1.0 / 6.0, &output)]);
                self.outputs.push(output.clone());
                self.before = Some(sample.to_vec());
            }
            1 | 2 => self.sum = weighted([(1.0, &self.sum), (1.0 / 3.0, &output)]),
            _ => output = weighted([(1.0, &self.sum), (1.0 / 6.0, &output)]),
        }
        let before = self.before.as_deref().unwrap_or(sample);
        self.moved(before, [from, to], &output)
    }

    /// A call of a step that is made of several outputs.
    fn go_on(&mut self, call: usize, output: &[f32], sample: &[f32]) -> Vec<f32> {
        let mut from = self.times[call] as i64;
        let mut to = from - self.distance;
        if self.calls == 1 {
            (from, to) = (from + self.distance, from);
        } else {
            let kept = self.outputs.len().saturating_sub(3);
            self.outputs.drain(..kept);
            self.outputs.push(output.to_vec());
        }
        let mut start = sample.to_vec();
        let joined = match (self.outputs.as_slice(), self.calls) {
            ([only], 1) => {
                start = self.before.take().unwrap_or(start);
                weighted([(0.5, output), (0.5, only)])
            }
            ([one, two], _) => weighted([(1.5, two), (-0.5, one)]),
            ([one, two, three], _) => weighted([(23.0 / 12.0, three), (-16.0 / 12.0, two), (5.0 / 12.0, one)]),
            ([one, two, three, four], _) => {
                weighted([(55.0 / 24.0, four), (-59.0 / 24.0, three), (37.0 / 24.0, two), (-9.0 / 24.0, one)])
            }
            _ => {
                self.before = Some(sample.to_vec());
                output.to_vec()
            }
        };
        self.moved(&start, [from, to], &joined)
    }
}

/// The times of the steps of Runge and Kutta: each half step is called twice.
fn runge_kutta(times: &[f32], distance: usize) -> Vec<f32> {
    let half = (distance / 2) as f32;
    // The four latest times in the order of training, and the one half a step behind each.
    let doubled = times.iter().take(BEGINNING).rev().flat_map(|time| [*time, *time + half]);
    let doubled: Vec<f32> = doubled.collect();
    let twice: Vec<f32> = doubled[..doubled.len() - 1].iter().flat_map(|time| [*time, *time]).collect();
    twice[1..twice.len() - 1].iter().rev().copied().collect()
}

impl Solver for PndmSolver {
    fn times(&self) -> &[f32] {
        &self.times
    }

    fn mixture(&self, call: usize) -> [f32; 2] {
        let level = self.levels.at(self.times[call] as i64);
        [level.sqrt(), (1.0 - level).sqrt()]
    }

    fn step(&mut self, call: usize, output: &[f32], sample: &mut [f32], _: DrawNoise<'_>) {
        let next = if self.calls < self.beginning {
            self.begin(call, output, sample)
        } else {
            self.go_on(call, output, sample)
        };
        sample.copy_from_slice(&next);
        self.calls += 1;
    }
}
