//! UniPC (Zhao et al., 2023, arXiv 2302.04867): a step is predicted, and corrected with the next call's output.

use super::dpm_solver::{SignalAndNoise, first_call, predicted};
use super::noise_levels::{LastLevel, NoiseLevels};
use super::scheduler_class::SchedulerClass;
use super::scheduler_fields::{FinalSigma, NoisePrediction, SchedulerFields, SigmaSpread};
use super::solver::{DrawNoise, Solver, weighted};
use super::spacing::{self, SigmaEnds, SpreadSigmas};

/// The highest order.
const MOST_ORDER: usize = 3;

pub(super) struct UniPcSolver {
    times: Vec<f32>,
    sigmas: Vec<f32>,
    prediction: NoisePrediction,
    order: usize,
    /// B is h, and not e^h - 1.
    is_plain: bool,
    lower_order_final: bool,
    uncorrected: Vec<usize>,
    /// Predicted pictures, the latest last.
    pictures: Vec<Vec<f32>>,
    /// The sample of the call before, corrected, and the order of the step from it.
    before: Option<(Vec<f32>, usize)>,
}

/// Numbers of a step: of pictures before the latest and of the newest, and what all steps have.
struct Combination {
    of_sample: f32,
    of_latest: f32,
    /// Factors on the differences to the latest picture.
    of_differences: Vec<f32>,
    /// The factor on the difference of the newest picture, of a correction.
    of_newest: f32,
}

impl UniPcSolver {
    pub(super) fn new(fields: &SchedulerFields, steps: usize) -> Result<Self, String> {
        let order = fields.solver_order.unwrap_or(2);
        if !(1..=MOST_ORDER).contains(&order) {
            return Err(format!("solver_order is {order}; 1 to {MOST_ORDER} are known"));
        }
        if fields.predict_x0 == Some(false) {
            return Err("predict_x0 is false, which is not known".to_owned());
        }
        let is_plain = match fields.solver_type.as_deref() {
            Some("bh1") => true,
            None | Some("bh2" | "midpoint" | "heun" | "logrho") => false,
            Some(other) => return Err(format!("solver_type '{other}' is not known")),
        };
        let class = SchedulerClass::UniPc;
        let levels = NoiseLevels::of(fields, LastLevel::Finite)?;
        let times = spacing::times_of_one_more(fields, class, (steps, fields.trained_times()?))?;
        let SpreadSigmas { mut sigmas, times } =
            spacing::spread(fields, &levels, times, (steps, SigmaEnds::OfTraining))?;
        let spread = fields.spread()?;
        let last = match (fields.final_sigma()?, spread) {
            (FinalSigma::Least, SigmaSpread::Karras | SigmaSpread::Exponential) => sigmas.last().copied(),
            _ => Some(spacing::last_sigma(fields, &levels)?),
        };
        sigmas.extend(last);
        let rounds = spread == SigmaSpread::Karras;
        let whole = |time: f64| if rounds { time.round_ties_even() } else { time }.trunc() as f32;
        Ok(Self {
            times: times.into_iter().map(whole).collect(),
            sigmas: sigmas.into_iter().map(|sigma| sigma as f32).collect(),
            prediction: fields.prediction()?,
            order,
            is_plain,
            lower_order_final: fields.lower_order_final.unwrap_or(true),
            uncorrected: fields.disable_corrector.clone().unwrap_or_default(),
            pictures: Vec::new(),
            before: None,
        })
    }

    /// The combination for a step between two calls. Differences are those of the calls before the first one.
    fn combination(&self, [from, to]: [usize; 2], order: usize, is_correction: bool) -> Combination {
        let at = |call: usize| SignalAndNoise::of(self.sigmas[call]);
        let (here, next) = (at(from), at(to));
        let h = f64::from(next.lambda) - f64::from(here.lambda);
        let earlier = |back: usize| (f64::from(at(from - back).lambda) - f64::from(here.lambda)) / h;
        let mut ratios: Vec<f64> = (1..order).map(earlier).collect();
        ratios.push(1.0);
        let hh = -h;
        let grown = hh.exp_m1();
        let b = if self.is_plain { hh } else { grown };
        let (mut phi, mut factorial) = (grown / hh - 1.0, 1.0);
        let mut right = Vec::with_capacity(order);
        for at in 1..=order {
            right.push(phi * factorial / b);
            factorial *= (at + 1) as f64;
            phi = phi / hh - 1.0 / factorial;
        }
        let unknowns = if is_correction { order } else { order - 1 };
        let rhos = match (is_correction, unknowns) {
            // As the paper has them, where they are nearly so.
            (true, 1) | (false, 1) => vec![0.5],
            _ => solved(&ratios[..unknowns], &right[..unknowns]),
        };
        let scale = -f64::from(next.signal) * b;
        let differences = rhos.iter().zip(&ratios).take(order - 1).map(|(rho, ratio)| (scale * rho / ratio) as f32);
        Combination {
            of_sample: next.noise / here.noise,
            of_latest: (-f64::from(next.signal) * grown) as f32,
            of_differences: differences.collect(),
            of_newest: if is_correction { (scale * rhos.last().copied().unwrap_or(0.0)) as f32 } else { 0.0 },
        }
    }

    /// Applies a combination to a sample.
    fn combined(&self, combination: &Combination, sample: &[f32], newest: Option<&[f32]>) -> Vec<f32> {
        let [.., latest] = self.pictures.as_slice() else { return sample.to_vec() };
        let mut moved = weighted([(combination.of_sample, sample), (combination.of_latest, latest)]);
        let earlier = self.pictures.iter().rev().skip(1).map(Vec::as_slice);
        let all = combination.of_differences.iter().copied().zip(earlier);
        for (factor, picture) in all.chain(newest.map(|newest| (combination.of_newest, newest))) {
            for ((x, picture), latest) in moved.iter_mut().zip(picture).zip(latest) {
                *x += factor * (picture - latest);
            }
        }
        moved
    }
}

/// The solution of the equations whose rows are powers of the ratios, from 0 on.
fn solved(ratios: &[f64], right: &[f64]) -> Vec<f64> {
    let count = ratios.len();
    let mut rows: Vec<Vec<f64>> = right
        .iter()
        .enumerate()
        .map(|(power, right)| ratios.iter().map(|ratio| ratio.powi(power as i32)).chain([*right]).collect())
        .collect();
    for column in 0..count {
        let best = (column..count).max_by(|a, b| rows[*a][column].abs().total_cmp(&rows[*b][column].abs()));
        rows.swap(column, best.unwrap_or(column));
        for row in 0..count {
            if row != column {
                let factor = rows[row][column] / rows[column][column];
                let pivot = rows[column].clone();
                for (value, above) in rows[row].iter_mut().zip(pivot).skip(column) {
                    *value -= factor * above;
                }
            }
        }
    }
    (0..count).map(|row| rows[row][count] / rows[row][row]).collect()
}

impl Solver for UniPcSolver {
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
        let picture = predicted(self.prediction, SignalAndNoise::of(self.sigmas[call]), output, sample);
        if let Some((before, order)) = self.before.take()
            && call > 0
            && !self.uncorrected.contains(&(call - 1))
        {
            let combination = self.combination([call - 1, call], order, true);
            sample.copy_from_slice(&self.combined(&combination, &before, Some(&picture)));
        }
        self.pictures.push(picture);
        let surplus = self.pictures.len().saturating_sub(self.order);
        self.pictures.drain(..surplus);
        let left = if self.lower_order_final { self.times.len() - call } else { self.order };
        let order = self.order.min(left).min(self.pictures.len()).max(1);
        let moved = self.combined(&self.combination([call, call + 1], order, false), sample, None);
        self.before = Some((sample.to_vec(), order));
        sample.copy_from_slice(&moved);
    }
}
