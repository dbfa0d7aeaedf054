//! Euler's method on the differential equation of Karras et al. (2022, arXiv 2206.00364), and the ancestral variant,
//! which adds noise after each step.

use super::noise_levels::{LastLevel, NoiseLevels};
use super::scheduler_class::SchedulerClass;
use super::scheduler_fields::{NoisePrediction, SchedulerFields, Spacing};
use super::solver::{DrawNoise, Solver};
use super::spacing::{self, SigmaEnds, SpreadSigmas};

pub(super) struct EulerSolver {
    times: Vec<f32>,
    /// One more than times.
    sigmas: Vec<f32>,
    prediction: NoisePrediction,
    spacing: Spacing,
    is_ancestral: bool,
}

impl EulerSolver {
    pub(super) fn new(fields: &SchedulerFields, steps: usize) -> Result<Self, String> {
        let class = SchedulerClass::Euler;
        let levels = NoiseLevels::of(fields, LastLevel::Finite)?;
        // Times have the type that sigmas are looked up by.
        let times = spacing::times(fields, class, steps)?.into_iter().map(|time| f64::from(time as f32)).collect();
        let SpreadSigmas { mut sigmas, times } = spacing::spread(fields, &levels, times, (steps, SigmaEnds::OfTimes))?;
        match fields.interpolation_type.as_deref() {
            None | Some("linear") => {}
            Some(other) => return Err(format!("interpolation_type '{other}' is not known")),
        }
        sigmas.push(spacing::last_sigma(fields, &levels)?);
        Self::of(fields, class, times, sigmas)
    }

    pub(super) fn ancestral(fields: &SchedulerFields, steps: usize) -> Result<Self, String> {
        let class = SchedulerClass::EulerAncestral;
        let plain = SchedulerFields {
            use_karras_sigmas: None,
            use_exponential_sigmas: None,
            use_beta_sigmas: None,
            ..fields.clone()
        };
        let levels = NoiseLevels::of(&plain, LastLevel::Finite)?;
        let times = spacing::times(&plain, class, steps)?.into_iter().map(|time| f64::from(time as f32)).collect();
        let SpreadSigmas { mut sigmas, times } = spacing::spread(&plain, &levels, times, (steps, SigmaEnds::OfTimes))?;
        sigmas.push(0.0);
        if plain.prediction()? == NoisePrediction::Sample {
            return Err("prediction_type 'sample' is not known with ancestral steps".to_owned());
        }
        Self::of(fields, class, times, sigmas)
    }

    fn of(fields: &SchedulerFields, class: SchedulerClass, times: Vec<f64>, sigmas: Vec<f64>) -> Result<Self, String> {
        Ok(Self {
            times: times.into_iter().map(|time| time as f32).collect(),
            sigmas: sigmas.into_iter().map(|sigma| sigma as f32).collect(),
            prediction: fields.prediction()?,
            spacing: fields.spacing(class)?,
            is_ancestral: class == SchedulerClass::EulerAncestral,
        })
    }
}

impl Solver for EulerSolver {
    fn times(&self) -> &[f32] {
        &self.times
    }

    fn first(&self) -> usize {
        // As in the reference, the second of equal times is the first call.
        usize::from(self.times.len() > 1 && self.times[0] == self.times[1])
    }

    fn initial_scale(&self) -> f32 {
        let most = self.sigmas.iter().copied().fold(0.0, f32::max);
        match self.spacing {
            Spacing::Linspace | Spacing::Trailing => most,
            Spacing::Leading => (most * most + 1.0).sqrt(),
        }
    }

    fn input_scale(&self, call: usize) -> f32 {
        let sigma = self.sigmas[call];
        1.0 / (sigma * sigma + 1.0).sqrt()
    }

    fn mixture(&self, call: usize) -> [f32; 2] {
        [1.0, self.sigmas[call]]
    }

    fn step(&mut self, call: usize, output: &[f32], sample: &mut [f32], draw: DrawNoise<'_>) {
        let (sigma, next) = (self.sigmas[call], self.sigmas[call + 1]);
        let (down, up) = if self.is_ancestral {
            let up = (next * next * (sigma * sigma - next * next) / (sigma * sigma)).sqrt();
            ((next * next - up * up).sqrt(), up)
        } else {
            (next, 0.0)
        };
        let square = sigma * sigma + 1.0;
        for (x, output) in sample.iter_mut().zip(output) {
            let picture = match self.prediction {
                NoisePrediction::Epsilon => *x - sigma * output,
                NoisePrediction::Velocity => output * (-sigma / square.sqrt()) + *x / square,
                NoisePrediction::Sample => *output,
            };
            *x += (*x - picture) / sigma * (down - sigma);
        }
        if self.is_ancestral {
            for (x, noise) in sample.iter_mut().zip(draw()) {
                *x += noise * up;
            }
        }
    }
}
