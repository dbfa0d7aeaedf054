//! Filters of the most likely tokens: which of them may be drawn, and with what weight.

use super::params::SamplingParams;
use super::row::{LogitRow, Weigh};

/// Tokens looked at, in turn, where a share of the probability is wanted. Usually it is in a few; if not, in all.
const FRONTS: [usize; 3] = [128, 4_096, usize::MAX];

/// Fills `out` with `(weight, token)` of the tokens that remain after `top_k`, `top_p` and `min_p`, the most likely
/// first; that one always remains.
pub(super) fn candidates(params: &SamplingParams, row: &LogitRow<'_>, weigh: Weigh, out: &mut Vec<(f32, u32)>) {
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

/// Whether some number of most likely tokens has to be found; if not, every token can be drawn that `min_p` lets pass.
pub(super) fn are_asked_for(params: &SamplingParams, row: &LogitRow<'_>) -> bool {
    params.top_p < 1.0 || limits(params.top_k, row)
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
