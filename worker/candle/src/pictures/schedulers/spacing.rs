//! The times at which the model is called, and sigmas between those of training.

use super::noise_levels::NoiseLevels;
use super::scheduler_class::SchedulerClass;
use super::scheduler_fields::{FinalSigma, SchedulerFields, SigmaSpread, Spacing};

/// The exponent of Karras' sigmas.
const RHO: f64 = 7.0;

/// The times of solvers whose last step ends at the picture: the last time is a call of the model.
pub(super) fn times(fields: &SchedulerFields, class: SchedulerClass, steps: usize) -> Result<Vec<f64>, String> {
    let trained = fields.trained_times()?;
    let offset = fields.steps_offset.unwrap_or(0) as f64;
    Ok(match fields.spacing(class)? {
        Spacing::Linspace => reversed(line(0.0, (trained - 1) as f64, steps)),
        Spacing::Leading => (0..steps).rev().map(|at| (at * (trained / steps)) as f64 + offset).collect(),
        Spacing::Trailing => trailing(trained, trained, steps),
    })
}

/// The same of solvers with one time more, which is not a call, of those that are not left out at the end.
pub(super) fn times_of_one_more(
    fields: &SchedulerFields,
    class: SchedulerClass,
    (steps, kept): (usize, usize),
) -> Result<Vec<f64>, String> {
    let trained = fields.trained_times()?;
    let offset = fields.steps_offset.unwrap_or(0) as f64;
    Ok(match fields.spacing(class)? {
        Spacing::Linspace => {
            let all = line(0.0, kept.saturating_sub(1) as f64, steps + 1);
            all.into_iter().skip(1).rev().map(f64::round_ties_even).collect()
        }
        Spacing::Leading => (1..=steps).rev().map(|at| (at * (kept / (steps + 1))) as f64 + offset).collect(),
        Spacing::Trailing => trailing(kept, trained, steps),
    })
}

fn trailing(last: usize, trained: usize, steps: usize) -> Vec<f64> {
    let step = trained as f64 / steps as f64;
    let count = (last as f64 / step).ceil() as usize;
    (0..count).map(|at| (last as f64 - at as f64 * step).round_ties_even() - 1.0).collect()
}

/// Numbers in equal distances.
pub(super) fn line(first: f64, last: f64, count: usize) -> Vec<f64> {
    let step = (last - first) / (count.max(2) - 1) as f64;
    let at = |at: usize| if at > 0 && at + 1 == count { last } else { first + step * at as f64 };
    (0..count).map(at).collect()
}

fn reversed(mut numbers: Vec<f64>) -> Vec<f64> {
    numbers.reverse();
    numbers
}

/// Sigmas of calls, and the times that the model is given with them.
pub(super) struct SpreadSigmas {
    pub(super) sigmas: Vec<f64>,
    pub(super) times: Vec<f64>,
}

/// Spreads sigmas over the calls at these times.
pub(super) fn spread(
    fields: &SchedulerFields,
    levels: &NoiseLevels,
    times: Vec<f64>,
    (steps, ends): (usize, SigmaEnds),
) -> Result<SpreadSigmas, String> {
    let table: Vec<f64> = levels.sigmas().into_iter().map(f64::from).collect();
    let by_times: Vec<f64> = times.iter().map(|time| between(&table, *time)).collect();
    let (least, most) = match ends {
        SigmaEnds::OfTimes => (by_times.last(), by_times.first()),
        SigmaEnds::OfTraining => (table.first(), table.last()),
    };
    let least = fields.sigma_min.or(least.copied()).unwrap_or(0.0);
    let most = fields.sigma_max.or(most.copied()).unwrap_or(0.0);
    let sigmas: Vec<f64> = match fields.spread()? {
        SigmaSpread::ByTimes => return Ok(SpreadSigmas { sigmas: by_times, times }),
        SigmaSpread::Karras => {
            let [least, most] = [least, most].map(|sigma| sigma.powf(1.0 / RHO));
            line(0.0, 1.0, steps).into_iter().map(|share| (most + share * (least - most)).powf(RHO)).collect()
        }
        SigmaSpread::Exponential => line(most.ln(), least.ln(), steps).into_iter().map(f64::exp).collect(),
    };
    let times = sigmas.iter().map(|sigma| time_of(&table, *sigma)).collect();
    Ok(SpreadSigmas { sigmas, times })
}

/// The sigmas between which others are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SigmaEnds {
    /// Those of the first and the last call.
    OfTimes,
    /// Those of all times of training.
    OfTraining,
}

/// The sigma after the last call.
pub(super) fn last_sigma(fields: &SchedulerFields, levels: &NoiseLevels) -> Result<f64, String> {
    Ok(match fields.final_sigma()? {
        FinalSigma::Zero => 0.0,
        FinalSigma::Least => levels.sigmas().first().copied().map_or(0.0, f64::from),
    })
}

/// The sigma at a time between two of the table.
fn between(table: &[f64], time: f64) -> f64 {
    let time = time.clamp(0.0, (table.len() - 1) as f64);
    let low = (time as usize).min(table.len() - 2);
    table[low] + (table[low + 1] - table[low]) * (time - low as f64)
}

/// The time of a sigma, between two of the table by their logarithms.
fn time_of(table: &[f64], sigma: f64) -> f64 {
    let wanted = sigma.max(1e-10).ln();
    let low = table.iter().rposition(|sigma| f64::from(sigma.ln() as f32) <= wanted).unwrap_or(0).min(table.len() - 2);
    let [first, second] = [low, low + 1].map(|at| f64::from(table[at].ln() as f32));
    let share = ((first - wanted) / (first - second)).clamp(0.0, 1.0);
    low as f64 + share
}
