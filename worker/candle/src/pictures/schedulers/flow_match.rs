//! Euler's method on straight paths from noise to pictures (Esser et al., 2024, arXiv 2403.03206), with sigmas shifted
//! towards noise, by a fixed number or by the size of the picture.

use super::scheduler_fields::SchedulerFields;
use super::solver::{DrawNoise, Solver};
use super::spacing::line;

pub(super) struct FlowMatchSolver {
    times: Vec<f32>,
    sigmas: Vec<f32>,
    is_stochastic: bool,
}

/// The sigmas that a pipeline begins with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::pictures) enum FlowSigmas {
    /// Those between the ends of training, whose shift is applied to them once more.
    OfTraining,
    /// From 1 to 1 by the number of steps, shifted for so many tokens of a picture.
    OfSteps {
        /// Tokens of the picture.
        tokens: usize,
    },
}

impl FlowMatchSolver {
    pub(super) fn new(fields: &SchedulerFields, steps: usize, from: FlowSigmas) -> Result<Self, String> {
        let trained = fields.trained_times()?;
        let shift = fields.shift.unwrap_or(1.0);
        if fields.invert_sigmas == Some(true) {
            return Err("invert_sigmas is not known".to_owned());
        }
        for (name, value) in [
            ("use_karras_sigmas", fields.use_karras_sigmas),
            ("use_exponential_sigmas", fields.use_exponential_sigmas),
            ("use_beta_sigmas", fields.use_beta_sigmas),
        ] {
            if value == Some(true) {
                return Err(format!("{name} is not known with flow matching"));
            }
        }
        let is_dynamic = fields.use_dynamic_shifting.unwrap_or(false);
        let shifted = |sigma: f64| shift * sigma / (1.0 + (shift - 1.0) * sigma);
        let count = trained as f64;
        let mut sigmas: Vec<f64> = match from {
            FlowSigmas::OfTraining => {
                let ends = [1.0, 1.0 / count].map(|sigma| if is_dynamic { sigma } else { shifted(sigma) });
                let [most, least] = ends.map(|sigma| f64::from(sigma as f32) * count);
                line(most, least, steps).into_iter().map(|time| time / count).collect()
            }
            FlowSigmas::OfSteps { .. } => {
                line(1.0, 1.0 / steps as f64, steps).into_iter().map(|sigma| f64::from(sigma as f32)).collect()
            }
        };
        if is_dynamic {
            let FlowSigmas::OfSteps { tokens } = from else {
                return Err("use_dynamic_shifting needs the size of the picture".to_owned());
            };
            let moved = mu(fields, tokens);
            let moved = match fields.time_shift_type.as_deref() {
                None | Some("exponential") => moved.exp(),
                Some("linear") => moved,
                Some(other) => return Err(format!("time_shift_type '{other}' is not known")),
            };
            sigmas.iter_mut().for_each(|sigma| *sigma = moved / (moved + (1.0 / *sigma - 1.0)));
        } else {
            sigmas.iter_mut().for_each(|sigma| *sigma = shifted(*sigma));
        }
        if let (Some(end), Some(last)) = (fields.shift_terminal.filter(|end| *end != 0.0), sigmas.last().copied()) {
            let factor = (1.0 - last) / (1.0 - end);
            sigmas.iter_mut().for_each(|sigma| *sigma = 1.0 - (1.0 - *sigma) / factor);
        }
        let mut sigmas: Vec<f32> = sigmas.into_iter().map(|sigma| sigma as f32).collect();
        let times = sigmas.iter().map(|sigma| sigma * trained as f32).collect();
        sigmas.push(0.0);
        Ok(Self { times, sigmas, is_stochastic: fields.stochastic_sampling.unwrap_or(false) })
    }
}

/// The shift for so many tokens, on the line through two sizes.
fn mu(fields: &SchedulerFields, tokens: usize) -> f64 {
    let least = fields.base_image_seq_len.unwrap_or(256) as f64;
    let most = fields.max_image_seq_len.unwrap_or(4096) as f64;
    let (base, end) = (fields.base_shift.unwrap_or(0.5), fields.max_shift.unwrap_or(1.15));
    let slope = (end - base) / (most - least);
    tokens as f64 * slope + (base - slope * least)
}

impl Solver for FlowMatchSolver {
    fn times(&self) -> &[f32] {
        &self.times
    }

    fn mixture(&self, call: usize) -> [f32; 2] {
        let sigma = self.sigmas[call];
        [1.0 - sigma, sigma]
    }

    fn step(&mut self, call: usize, output: &[f32], sample: &mut [f32], draw: DrawNoise<'_>) {
        let (sigma, next) = (self.sigmas[call], self.sigmas[call + 1]);
        if self.is_stochastic {
            for ((x, output), noise) in sample.iter_mut().zip(output).zip(draw()) {
                *x = (1.0 - next) * (*x - sigma * output) + next * noise;
            }
            return;
        }
        for (x, output) in sample.iter_mut().zip(output) {
            *x += (next - sigma) * output;
        }
    }
}
