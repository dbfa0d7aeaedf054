//! The choice of experts from a row's logits, and their weights. Knows numbers only.

use crate::spec::{ExpertGroups, ExpertsSpec, GroupWorth, RouterSpec, Weighting};

/// The least that weights are divided by, as in DeepSeek-V3.
const LEAST_SUM: f32 = 1e-20;

/// Chooses experts.
pub(crate) struct Router {
    spec: RouterSpec,
    used: usize,
    /// Added to an expert's weight for the choice alone; empty without.
    correction: Vec<f32>,
}

/// An expert of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RoutedExpert {
    pub(crate) expert: usize,
    pub(crate) weight: f32,
}

impl Router {
    pub(crate) fn new(spec: &ExpertsSpec, correction: Vec<f32>) -> Self {
        Self { spec: spec.router.clone(), used: spec.used, correction }
    }

    /// The experts of a row, in the order of their numbers.
    pub(crate) fn choose(&self, logits: &[f32]) -> Vec<RoutedExpert> {
        if let Weighting::SparseMixer { jitter } = self.spec.weighting {
            return sparse_mixer(logits, self.used, jitter);
        }
        let scores = match self.spec.weighting {
            Weighting::Softmax => softmax(logits),
            Weighting::SoftmaxOfChosen | Weighting::SparseMixer { .. } => logits.to_vec(),
            Weighting::Sigmoid => logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
        };
        let corrected = |expert: usize| scores[expert] + self.correction.get(expert).copied().unwrap_or(0.0);
        let mut worth: Vec<f32> = (0..scores.len()).map(corrected).collect();
        if let Some(groups) = self.spec.groups {
            only_best_groups(groups, &mut worth);
        }
        let mut experts = best(&worth, self.used);
        experts.sort_unstable();
        let mut weights: Vec<f32> = experts.iter().map(|expert| scores[*expert]).collect();
        if self.spec.weighting == Weighting::SoftmaxOfChosen {
            weights = softmax(&weights);
        }
        if self.spec.normalised {
            let sum = weights.iter().sum::<f32>() + LEAST_SUM;
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        let scale = self.spec.scale as f32;
        let choice = |(expert, weight)| RoutedExpert { expert, weight: weight * scale };
        experts.into_iter().zip(weights).map(choice).collect()
    }
}

/// Chooses one expert after the other. The weight of each is its softmax among those that are left and close to it.
fn sparse_mixer(logits: &[f32], used: usize, jitter: f32) -> Vec<RoutedExpert> {
    let mut chosen: Vec<RoutedExpert> = Vec::new();
    for _ in 0..used {
        let left = |expert: usize| chosen.iter().all(|choice| choice.expert != expert);
        let best =
            (0..logits.len()).filter(|expert| left(*expert)).reduce(|a, b| if logits[b] > logits[a] { b } else { a });
        let Some(best) = best else { break };
        let largest = logits[best];
        let close = |expert: &usize| {
            let logit = logits[*expert];
            (largest - logit) / logit.abs().max(largest) <= 2.0 * jitter
        };
        let sum: f32 = (0..logits.len())
            .filter(|expert| left(*expert))
            .filter(close)
            .map(|expert| (logits[expert] - largest).exp())
            .sum();
        chosen.push(RoutedExpert { expert: best, weight: sum.recip() });
    }
    chosen.sort_unstable_by_key(|choice| choice.expert);
    chosen
}

/// Leaves the best groups, and takes all experts of others out of the choice.
fn only_best_groups(groups: ExpertGroups, worth: &mut [f32]) {
    let size = (worth.len() / groups.count.max(1)).max(1);
    let of_group = |group: &[f32]| match groups.worth {
        GroupWorth::Best => group.iter().copied().fold(f32::NEG_INFINITY, f32::max),
        GroupWorth::TwoBest => best(group, 2).into_iter().map(|expert| group[expert]).sum(),
    };
    let values: Vec<f32> = worth.chunks(size).map(of_group).collect();
    let chosen = best(&values, groups.used);
    for (group, worth) in worth.chunks_mut(size).enumerate() {
        if !chosen.contains(&group) {
            worth.fill(f32::NEG_INFINITY);
        }
    }
}

/// The places of the largest values; of equal ones the first.
fn best(values: &[f32], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..values.len()).collect();
    places.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
    places.truncate(count);
    places
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let sum: f32 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn router(weighting: Weighting, normalised: bool, groups: Option<ExpertGroups>) -> Router {
        let spec = RouterSpec { weighting, bias: false, correction: false, groups, normalised, scale: 2.0 };
        Router { spec, used: 2, correction: Vec::new() }
    }

    #[test]
    fn weights_are_of_all_or_of_those_chosen() {
        let logits = [0.0, 3.0, 1.0, 2.0];
        let chosen = |router: &Router| {
            let choices = router.choose(&logits);
            assert_eq!(choices.iter().map(|choice| choice.expert).collect::<Vec<_>>(), [1, 3]);
            choices.iter().map(|choice| choice.weight).sum::<f32>()
        };
        assert!((chosen(&router(Weighting::Softmax, true, None)) - 2.0).abs() < 1e-6);
        assert!((chosen(&router(Weighting::SoftmaxOfChosen, false, None)) - 2.0).abs() < 1e-6);
        let all: f32 = logits.iter().map(|logit: &f32| logit.exp()).sum();
        let expected = 2.0 * (3_f32.exp() + 2_f32.exp()) / all;
        assert!((chosen(&router(Weighting::Softmax, false, None)) - expected).abs() < 1e-6);
    }

    #[test]
    fn groups_are_chosen_first_and_corrections_change_no_weight() {
        let logits = [5.0, -5.0, 1.0, 1.5];
        let experts = |worth| {
            let groups = ExpertGroups { count: 2, used: 1, worth };
            let choices = router(Weighting::Sigmoid, false, Some(groups)).choose(&logits);
            choices.into_iter().map(|choice| choice.expert).collect::<Vec<_>>()
        };
        assert_eq!(experts(GroupWorth::Best), [0, 1]);
        assert_eq!(experts(GroupWorth::TwoBest), [2, 3]);
        let mut router = router(Weighting::Sigmoid, false, None);
        router.correction = vec![0.0, 9.0, 0.0, 0.0];
        let choices = router.choose(&logits);
        assert_eq!(choices[1].expert, 1);
        assert!((choices[1].weight - 2.0 / (1.0 + 5_f32.exp())).abs() < 1e-6);
    }
}
