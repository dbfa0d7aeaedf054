//! Filters of the most likely tokens: which of them may be drawn, and with what weight.

use super::params::SamplingParams;
use super::row::{LogitRow, Weigh};
use super::truncation::{exclude_top_choices, typical};

/// Tokens looked at, in turn, where a share of the probability is wanted. Usually it is in a few; if not, in all.
const FRONTS: [usize; 3] = [128, 4_096, usize::MAX];

/// Fills `out` with `(weight, token)` of the tokens that remain after all filters, the most likely first; one always
/// remains. `excludes` says whether `xtc` removes the most likely.
pub(super) fn candidates(
    params: &SamplingParams,
    row: &LogitRow<'_>,
    weigh: Weigh,
    excludes: bool,
    out: &mut Vec<(f32, u32)>,
) {
    if params.typical_p < 1.0 || excludes || params.min_keep > 0 {
        return by_logits(params, row, excludes, out);
    }
    if limits(params.top_k, row) {
        most_likely(row, weigh, params.top_k, out);
        if params.top_p < 1.0 {
            let total = out.iter().map(|&(weight, _)| f64::from(weight)).sum();
            keep(params.top_p, total, out);
        }
    } else {
        let total = row.weights(weigh).into_iter().map(f64::from).sum();
        for count in FRONTS {
            most_likely(row, weigh, count, out);
            if keep(params.top_p, total, out) {
                break;
            }
        }
    }
    out.retain(|&(weight, _)| weight >= params.min_p);
}

/// The same with filters that look at logits. Weights are relative to the likeliest candidate that is left.
fn by_logits(params: &SamplingParams, row: &LogitRow<'_>, excludes: bool, out: &mut Vec<(f32, u32)>) {
    let count = if limits(params.top_k, row) { params.top_k } else { usize::MAX };
    row.most_likely(count, out);
    out.retain(|&(logit, _)| logit > f32::NEG_INFINITY);
    if params.typical_p < 1.0 {
        typical(params.typical_p, params.min_keep, out);
    }
    let relative =
        |out: &[(f32, u32)]| Weigh::new(out.first().map_or(0.0, |&(highest, _)| highest), params.temperature);
    let weigh = relative(out);
    let most = out.len().min(params.min_keep.max(1));
    let share = f64::from(params.top_p) * out.iter().map(|&(logit, _)| f64::from(weigh.of(logit))).sum::<f64>();
    let mut sum = 0.0;
    let enough = out.iter().position(|&(logit, _)| {
        sum += f64::from(weigh.of(logit));
        sum >= share
    });
    if let Some(last) = enough.filter(|_| params.top_p < 1.0) {
        out.truncate((last + 1).max(most));
    }
    let likely = out.iter().take_while(|&&(logit, _)| weigh.of(logit) >= params.min_p).count();
    out.truncate(likely.max(most));
    if excludes {
        exclude_top_choices(params.xtc_threshold, params.min_keep, out);
    }
    let weigh = relative(out);
    for (logit, _) in out {
        *logit = weigh.of(*logit);
    }
}

/// Whether some number of most likely tokens has to be found; if not, every token can be drawn that `min_p` lets pass.
pub(super) fn are_asked_for(params: &SamplingParams, row: &LogitRow<'_>) -> bool {
    let by_logits = params.typical_p < 1.0 || params.min_keep > 0 || may_exclude(params);
    by_logits || params.top_p < 1.0 || limits(params.top_k, row)
}

/// Whether `xtc` may remove the most likely candidates. Above a threshold of a half, at most one is likely.
pub(super) fn may_exclude(params: &SamplingParams) -> bool {
    params.xtc_probability > 0.0 && params.xtc_threshold <= 0.5
}

fn limits(top_k: usize, row: &LogitRow<'_>) -> bool {
    top_k > 0 && top_k < row.len()
}

fn most_likely(row: &LogitRow<'_>, weigh: Weigh, count: usize, out: &mut Vec<(f32, u32)>) {
    row.most_likely(count, out);
    for (weight, _) in &mut *out {
        *weight = weigh.of(*weight);
    }
    out.retain(|&(weight, _)| weight > 0.0);
}

/// Keeps the shortest run of candidates whose weights sum to at least `top_p` of `total`, at least one. Says whether
/// they reach it.
fn keep(top_p: f32, total: f64, out: &mut Vec<(f32, u32)>) -> bool {
    let (target, mut sum) = (f64::from(top_p) * total, 0.0);
    let enough = out.iter().position(|&(weight, _)| {
        sum += f64::from(weight);
        sum >= target
    });
    if let Some(last) = enough {
        out.truncate(last + 1);
    }
    enough.is_some()
}
