//! DPM-Solver++ in one or two steps (Lu et al., 2022, arXiv 2211.01095): steps are exact in the linear part of the
//! equation, and use the pictures that earlier calls predicted.

use super::noise_levels::{LastLevel, NoiseLevels};
use super::scheduler_class::SchedulerClass;
use super::scheduler_fields::{FinalSigma, NoisePrediction, SchedulerFields, SigmaSpread};
use super::solver::{DrawNoise, Solver, weighted};
use super::spacing::{self, SigmaEnds, SpreadSigmas};

/// Fewer calls than these end in a step of the first order.
const FEW_CALLS: usize = 15;

pub(super) struct DpmSolver {
    times: Vec<f32>,
    sigmas: Vec<f32>,
    prediction: NoisePrediction,
    order: usize,
    is_heun: bool,
    lower_order_final: bool,
    euler_at_final: bool,
    final_sigma: FinalSigma,
    /// The picture that the call before predicted.
    before: Option<Vec<f32>>,
}

/// Signal, noise, and half the logarithm of their squares' ratio.
#[derive(Clone, Copy)]
pub(super) struct SignalAndNoise {
    pub(super) signal: f32,
    pub(super) noise: f32,
    pub(super) lambda: f32,
}

impl SignalAndNoise {
    pub(super) fn of(sigma: f32) -> Self {
        let signal = 1.0 / (sigma * sigma + 1.0).sqrt();
        let noise = sigma * signal;
        Self { signal, noise, lambda: signal.ln() - noise.ln() }
    }
}

impl DpmSolver {
    pub(super) fn new(fields: &SchedulerFields, steps: usize) -> Result<Self, String> {
        match fields.algorithm_type.as_deref() {
            None | Some("dpmsolver++" | "deis") => {}
            Some(other) => return Err(format!("algorithm_type '{other}' is not known; dpmsolver++ is")),
        }
        let order = fields.solver_order.unwrap_or(2);
        if !(1..=2).contains(&order) {
            return Err(format!("solver_order is {order}; 1 and 2 are known"));
        }
        let is_heun = match fields.solver_type.as_deref() {
            None | Some("midpoint" | "logrho" | "bh1" | "bh2") => false,
            Some("heun") => true,
            Some(other) => return Err(format!("solver_type '{other}' is not known")),
        };
        let class = SchedulerClass::DpmSolverMultistep;
        let levels = NoiseLevels::of(fields, LastLevel::Finite)?;
        let below = fields.lambda_min_clipped.map_or(0, |bound| levels.times_below(bound));
        let kept = fields.trained_times()?.saturating_sub(below);
        let times = spacing::times_of_one_more(fields, class, (steps, kept))?;
        // Both ends of the table, as the reference has no others here.
        let SpreadSigmas { mut sigmas, times } =
            spacing::spread(fields, &levels, times, (steps, SigmaEnds::OfTraining))?;
        let rounds =
            fields.spread()? == SigmaSpread::Karras && fields.beta_schedule.as_deref() != Some("squaredcos_cap_v2");
        sigmas.push(spacing::last_sigma(fields, &levels)?);
        let whole = |time: f64| if rounds { time.round_ties_even() } else { time }.trunc() as f32;
        Ok(Self {
            times: times.into_iter().map(whole).collect(),
            sigmas: sigmas.into_iter().map(|sigma| sigma as f32).collect(),
            prediction: fields.prediction()?,
            order,
            is_heun,
            lower_order_final: fields.lower_order_final.unwrap_or(true),
            euler_at_final: fields.euler_at_final.unwrap_or(false),
            final_sigma: fields.final_sigma()?,
            before: None,
        })
    }

    fn is_first_order(&self, call: usize) -> bool {
        let calls = self.times.len();
        let ends_lower =
            self.euler_at_final || self.lower_order_final && calls < FEW_CALLS || self.final_sigma == FinalSigma::Zero;
        self.order == 1 || call + 1 == calls && ends_lower
    }
}

/// The picture that an output predicts.
pub(super) fn predicted(prediction: NoisePrediction, at: SignalAndNoise, output: &[f32], sample: &[f32]) -> Vec<f32> {
    let SignalAndNoise { signal, noise, .. } = at;
    match prediction {
        NoisePrediction::Epsilon => {
            sample.iter().zip(output).map(|(x, output)| (x - noise * output) / signal).collect()
        }
        NoisePrediction::Velocity => weighted([(signal, sample), (-noise, output)]),
        NoisePrediction::Sample => output.to_vec(),
    }
}

/// The first call of a sample that is noise alone: the second of equal times, as in the reference.
pub(super) fn first_call(times: &[f32]) -> usize {
    usize::from(times.len() > 1 && times[0] == times[1])
}

impl Solver for DpmSolver {
    fn times(&self) -> &[f32] {
        &self.times
    }

    fn first(&self) -> usize {
        first_call(&self.times)
    }

    fn mixture(&self, call: usize) -> [f32; 2] {
        let SignalAndNoise { signal, noise, .. } = SignalAndNoise::of(self.sigmas[call]);
        [signal, noise]
    }

    fn step(&mut self, call: usize, output: &[f32], sample: &mut [f32], _: DrawNoise<'_>) {
        let [here, next] = [call, call + 1].map(|at| SignalAndNoise::of(self.sigmas[at]));
        let picture = predicted(self.prediction, here, output, sample);
        let h = next.lambda - here.lambda;
        let grown = next.signal * ((-h).exp() - 1.0);
        let of_sample = next.noise / here.noise;
        let first = self.is_first_order(call);
        let moved = match self.before.take().filter(|_| !first && call > 0) {
            None => weighted([(of_sample, &*sample), (-grown, &picture)]),
            Some(before) => {
                let earlier = here.lambda - SignalAndNoise::of(self.sigmas[call - 1]).lambda;
                let change = weighted([(h / earlier, &picture), (-h / earlier, &before)]);
                let of_change = if self.is_heun { next.signal * (((-h).exp() - 1.0) / h + 1.0) } else { -0.5 * grown };
                weighted([(of_sample, &*sample), (-grown, &picture), (of_change, &change)])
            }
        };
        sample.copy_from_slice(&moved);
        self.before = Some(picture);
    }
}
