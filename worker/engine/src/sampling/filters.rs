//! Which tokens stay in the draw, and with what weight.

use std::cmp::Ordering;

use super::SamplingParams;

/// Fills `out` with `(weight, token)` of the tokens that remain after temperature, `top_k`, `top_p` and `min_p`.
/// Weights are relative to the most likely token, which has 1 and always remains. `highest` is the largest logit.
pub(super) fn candidates(params: &SamplingParams, logits: &[f32], highest: f32, out: &mut Vec<(f32, u32)>) {
    out.clear();
    let inverse = 1.0 / f64::from(params.temperature);
    out.extend((0_u32..).zip(logits).filter_map(|(token, &logit)| {
        let weight = (f64::from(logit - highest) * inverse).exp() as f32;
        // A not-a-number fails the comparison, and a weight of zero cannot be drawn.
        (weight > 0.0).then_some((weight, token))
    }));
    if params.top_k > 0 && params.top_k < out.len() {
        out.select_nth_unstable_by(params.top_k - 1, most_likely_first);
        out.truncate(params.top_k);
        out.sort_unstable_by(most_likely_first);
    }
    if params.top_p < 1.0 {
        keep_top_p(params.top_p, out);
    }
    if params.min_p > 0.0 {
        out.retain(|&(weight, _)| weight >= params.min_p);
    }
}

/// Keeps the shortest run of most likely candidates whose weights sum to at least `top_p` of the total; at least one.
///
/// Vocabularies are large and the run is usually short, so only a growing front is sorted.
fn keep_top_p(top_p: f32, out: &mut Vec<(f32, u32)>) {
    let total: f64 = out.iter().map(|&(weight, _)| f64::from(weight)).sum();
    let target = f64::from(top_p) * total;
    let (mut sorted, mut front, mut sum) = (0, 128, 0.0);
    while sorted < out.len() {
        let end = (sorted + front).min(out.len());
        let rest = &mut out[sorted..];
        let take = end - sorted;
        if take < rest.len() {
            rest.select_nth_unstable_by(take - 1, most_likely_first);
        }
        rest[..take].sort_unstable_by(most_likely_first);
        for (index, &(weight, _)) in out.iter().enumerate().take(end).skip(sorted) {
            sum += f64::from(weight);
            if sum >= target {
                out.truncate(index + 1);
                return;
            }
        }
        sorted = end;
        front *= 4;
    }
}

/// Larger weight first; equal weights in ascending token order, so that ties never depend on the sort.
fn most_likely_first(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}
