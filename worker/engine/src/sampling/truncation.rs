//! Filters by shares of the model's own distribution: `top_n_sigma`, `typical_p` and `xtc`. They look at the
//! distribution before the temperature, as in llama.cpp's default order.

/// Makes logits impossible that lie more than `sigmas` standard deviations below the highest. Source: Tang et al. 2024,
/// arXiv:2411.07641, with the population's standard deviation over the finite logits, as in llama.cpp.
pub(super) fn top_n_sigma(sigmas: f32, logits: &mut [f32]) {
    let finite = || logits.iter().copied().filter(|logit| logit.is_finite()).map(f64::from);
    let count = finite().count() as f64;
    if count < 2.0 {
        return;
    }
    let mean = finite().sum::<f64>() / count;
    let deviation = (finite().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count).sqrt();
    let least = finite().fold(f64::NEG_INFINITY, f64::max) - f64::from(sigmas) * deviation;
    for logit in logits {
        if f64::from(*logit) < least {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// The probabilities of candidates, which are `(logit, token)` with the most likely one first.
fn probabilities(candidates: &[(f32, u32)]) -> Vec<f64> {
    let highest = candidates.first().map_or(0.0, |(logit, _)| f64::from(*logit));
    let weights: Vec<f64> = candidates.iter().map(|(logit, _)| (f64::from(*logit) - highest).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}

/// Keeps the candidates whose surprise is closest to the expected one, until their probabilities sum to more than
/// `share`; at least `min_keep`. Source: Meister et al. 2022, arXiv:2202.00666.
pub(super) fn typical(share: f32, min_keep: usize, candidates: &mut Vec<(f32, u32)>) {
    let probabilities = probabilities(candidates);
    let surprise = |p: f64| if p > 0.0 { -p.ln() } else { f64::INFINITY };
    let entropy: f64 = probabilities.iter().filter(|p| **p > 0.0).map(|p| p * surprise(*p)).sum();
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    let distance = |at: &usize| (surprise(probabilities[*at]) - entropy).abs();
    order.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
    let mut sum = 0.0;
    let enough = order.iter().enumerate().position(|(kept, at)| {
        sum += probabilities[*at];
        sum > f64::from(share) && kept + 1 >= min_keep
    });
    order.truncate(enough.map_or(order.len(), |last| last + 1));
    // The most likely stay in front.
    order.sort_unstable();
    *candidates = order.into_iter().map(|at| candidates[at]).collect();
}

/// Removes all candidates of at least `threshold` but the least likely of them. Source: the sampler's author p-e-w,
/// text-generation-webui, pull request 6335; `min_keep` as in llama.cpp.
pub(super) fn exclude_top_choices(threshold: f32, min_keep: usize, candidates: &mut Vec<(f32, u32)>) {
    let probabilities = probabilities(candidates);
    let likely = probabilities.iter().take_while(|p| **p >= f64::from(threshold)).count();
    let removed = likely.saturating_sub(1);
    if candidates.len() - removed >= min_keep {
        candidates.drain(..removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(probabilities: &[f32]) -> Vec<(f32, u32)> {
        probabilities.iter().map(|p| p.ln()).zip(0..).collect()
    }

    fn ids(candidates: &[(f32, u32)]) -> Vec<u32> {
        candidates.iter().map(|(_, token)| *token).collect()
    }

    #[test]
    fn en_7_top_n_sigma_keeps_logits_near_the_highest() {
        // Mean 2, deviation √2.
        let mut logits = [4.0, 3.0, 2.0, 1.0, 0.0, f32::NEG_INFINITY];
        top_n_sigma(1.0, &mut logits);
        assert_eq!(logits[..3], [4.0, 3.0, f32::NEG_INFINITY]);
        let mut logits = [4.0, 3.0, 2.0, 1.0, 0.0];
        top_n_sigma(2.0, &mut logits);
        assert_eq!(logits, [4.0, 3.0, 2.0, f32::NEG_INFINITY, f32::NEG_INFINITY]);
        let mut alone = [f32::NEG_INFINITY, 1.0];
        top_n_sigma(0.1, &mut alone);
        assert_eq!(alone[1], 1.0);
    }

    #[test]
    fn en_7_typical_tokens_are_those_of_expected_surprise() {
        // Expected values: llama.cpp's tests/test-sampling.cpp.
        let keeps = |probabilities: &[f32], share| {
            let mut list = candidates(probabilities);
            list.sort_by(|a, b| b.0.total_cmp(&a.0));
            typical(share, 0, &mut list);
            ids(&list)
        };
        assert_eq!(keeps(&[0.97, 0.01, 0.01, 0.01], 0.5), [0]);
        assert_eq!(keeps(&[0.4, 0.2, 0.2, 0.2], 0.5), [1, 2, 3]);
    }

    #[test]
    fn en_7_xtc_leaves_the_least_likely_of_the_likely() {
        // Expected values: llama.cpp's tests/test-sampling.cpp.
        for (threshold, kept) in [
            (0.09, vec![3]),
            (0.19, vec![2, 3]),
            (0.29, vec![1, 2, 3]),
            (0.39, vec![0, 1, 2, 3]),
            (0.5, vec![0, 1, 2, 3]),
        ] {
            let mut list = candidates(&[0.4, 0.3, 0.2, 0.1]);
            exclude_top_choices(threshold, 0, &mut list);
            assert_eq!(ids(&list), kept, "{threshold}");
        }
        let mut list = candidates(&[0.4, 0.3, 0.2, 0.1]);
        exclude_top_choices(0.09, 2, &mut list);
        assert_eq!(list.len(), 4, "too few would be left");
    }
}
