//! The noise of each time of training: how much of the picture is left (Ho et al., 2020, arXiv 2006.11239).

use super::scheduler_fields::SchedulerFields;

/// The share of noise that stands for none being left of the picture, where a solver divides by it.
const NEARLY_NOTHING: f32 = 1.0 / 16_777_216.0;

/// The share of the picture's square that is left at each time: `alphas_cumprod`.
#[derive(Clone, Debug)]
pub(super) struct NoiseLevels(Vec<f32>);

/// The last level where the signal of the last time is rescaled to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastLevel {
    /// The picture has no part in it.
    Nothing,
    /// So little that sigmas are finite.
    Finite,
}

impl NoiseLevels {
    pub(super) fn of(fields: &SchedulerFields, last: LastLevel) -> Result<Self, String> {
        let mut betas = betas(fields)?;
        if betas.len() < 2 {
            return Err(format!("{} levels of noise are too few", betas.len()));
        }
        if betas.iter().any(|beta| !(0.0..1.0).contains(beta)) {
            return Err("the noise of a step is not between 0 and 1".to_owned());
        }
        let rescaled = fields.rescale_betas_zero_snr.unwrap_or(false);
        if rescaled {
            betas = ending_in_noise(&betas);
        }
        let mut levels = products(&betas);
        if rescaled
            && last == LastLevel::Finite
            && let Some(level) = levels.last_mut()
        {
            *level = NEARLY_NOTHING;
        }
        Ok(Self(levels))
    }

    /// That of a time; the nearest one outside of the table.
    pub(super) fn at(&self, time: i64) -> f32 {
        self.0[(time.max(0) as usize).min(self.0.len() - 1)]
    }

    /// Noise by picture: `sqrt((1 - a) / a)` of each time.
    pub(super) fn sigmas(&self) -> Vec<f32> {
        self.0.iter().map(|level| ((1.0 - level) / level).sqrt()).collect()
    }

    /// The times of which half the logarithm of signal by noise is below a bound.
    pub(super) fn times_below(&self, bound: f64) -> usize {
        let signal = |level: &f32| f64::from(level.sqrt().ln() - (1.0 - level).sqrt().ln());
        self.0.iter().rev().take_while(|level| signal(level) < bound).count()
    }
}

/// The noise that each step adds.
fn betas(fields: &SchedulerFields) -> Result<Vec<f32>, String> {
    if let Some(betas) = &fields.trained_betas {
        return Ok(betas.clone());
    }
    let (first, last) = (fields.beta_start.unwrap_or(1e-4), fields.beta_end.unwrap_or(0.02));
    let count = fields.trained_times()?;
    match fields.beta_schedule.as_deref().unwrap_or("linear") {
        "linear" => Ok(line(first, last, count)),
        "scaled_linear" => Ok(line(first.sqrt(), last.sqrt(), count).into_iter().map(|root| root * root).collect()),
        // Nichol and Dhariwal, 2021, arXiv 2102.09672.
        "squaredcos_cap_v2" => {
            let level = |share: f64| ((share + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2);
            let share = |at: usize| at as f64 / count as f64;
            Ok((0..count).map(|at| (1.0 - level(share(at + 1)) / level(share(at))).min(0.999) as f32).collect())
        }
        other => Err(format!("beta_schedule '{other}' is not known")),
    }
}

/// Numbers in equal distances, from both ends, as torch makes them.
fn line(first: f64, last: f64, count: usize) -> Vec<f32> {
    let (first, last) = (first as f32, last as f32);
    let step = (last - first) / (count - 1) as f32;
    let at = |at: usize| {
        if at < count / 2 { first + step * at as f32 } else { last - step * (count - 1 - at) as f32 }
    };
    (0..count).map(at).collect()
}

fn products(betas: &[f32]) -> Vec<f32> {
    let mut product = 1.0_f64;
    let mut next = |beta: &f32| {
        product *= f64::from(1.0 - beta);
        product as f32
    };
    betas.iter().map(&mut next).collect()
}

/// Betas whose last time has no signal (Lin et al., 2023, arXiv 2305.08891, algorithm 1).
fn ending_in_noise(betas: &[f32]) -> Vec<f32> {
    let roots: Vec<f32> = products(betas).into_iter().map(f32::sqrt).collect();
    let (first, last) = (roots[0], roots[roots.len() - 1]);
    let levels = roots.iter().map(|root| ((root - last) * (first / (first - last))).powi(2));
    let levels: Vec<f32> = levels.collect();
    let before = std::iter::once(1.0).chain(levels.iter().copied());
    levels.iter().zip(before).map(|(level, before)| 1.0 - level / before).collect()
}
