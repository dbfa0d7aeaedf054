//! DRY: the penalty on tokens that would repeat a run of the text.
//!
//! Source: the definition by p-e-w (text-generation-webui, pull request 5677) as llama.cpp's sampler `dry` has it. A
//! token that would make a run of `n` tokens at the end of the text repeat an earlier run loses
//! `multiplier · base^(n − allowed_length)` where `n` is at least `allowed_length`. Sequence breakers end runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The parameters of DRY.
#[derive(Clone, Debug, PartialEq)]
pub struct DryParams {
    /// The weight of the penalty. Not positive: off.
    pub multiplier: f32,
    /// The factor for each further token of a run; at least 1.
    pub base: f32,
    /// The longest run that may be repeated.
    pub allowed_length: usize,
    /// The tokens at the end of the text that are looked at; `None`: all.
    pub last_n: Option<usize>,
    /// The sequences over which no run goes.
    pub breakers: Arc<DryBreakers>,
}

/// Sequences of tokens that end runs: a first token, and the tokens that follow it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DryBreakers(BTreeMap<u32, Vec<Vec<u32>>>);

impl DryBreakers {
    /// Breakers from their first tokens and those that follow.
    pub fn new(sequences: impl IntoIterator<Item = (u32, Vec<u32>)>) -> Self {
        let mut by_head: BTreeMap<u32, Vec<Vec<u32>>> = BTreeMap::new();
        for (head, tail) in sequences {
            by_head.entry(head).or_default().push(tail);
        }
        Self(by_head)
    }

    /// Whether a token is a breaker by itself.
    fn is_alone(&self, token: u32) -> bool {
        self.0.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// The tokens behind the head of the longest breaker that begins `place` tokens before the last of `text`.
    fn longest(&self, text: &[u32], place: usize) -> Option<usize> {
        let at = text.len() - 1 - place;
        let follows =
            |tail: &&Vec<u32>| text.get(at + 1..=at + tail.len()).is_some_and(|behind| behind == tail.as_slice());
        self.0.get(text.get(at)?)?.iter().filter(follows).map(Vec::len).max()
    }
}

/// Takes the penalties from `logits`; `text` is the prompt and the answer so far.
pub(super) fn apply(params: &DryParams, text: &[u32], logits: &mut [f32]) {
    for (token, run) in repeated(params, text) {
        let Some(logit) = logits.get_mut(token as usize) else { continue };
        // A larger power would be infinite.
        let most = (f64::from(f32::MAX).ln() / f64::from(params.base).ln()) as usize;
        let exponent = (run - params.allowed_length).min(most);
        *logit -= params.multiplier * params.base.powi(i32::try_from(exponent).unwrap_or(i32::MAX));
    }
}

/// The tokens that would go on a repeated run, with the length of the longest.
fn repeated(params: &DryParams, text: &[u32]) -> HashMap<u32, usize> {
    let looked = params.last_n.unwrap_or(usize::MAX).min(text.len());
    let mut longest = HashMap::new();
    if looked <= params.allowed_length {
        return longest;
    }
    let text = &text[text.len() - looked..];
    // A run at the end does not go over the last breaker.
    let limit = (0..looked).find_map(|place| Some(place.saturating_sub(params.breakers.longest(text, place)?)));
    let limit = limit.unwrap_or(looked);
    if limit < params.allowed_length {
        return longest;
    }
    let runs = suffix_runs(text, limit);
    // The run that ends at a token is followed by the next one. The last token has no next.
    for (at, &run) in runs.iter().enumerate().take(looked - 1) {
        if run >= params.allowed_length {
            let known = longest.entry(text[at + 1]).or_insert(0);
            *known = run.max(*known);
        }
    }
    // A breaker by itself begins every sequence anew.
    longest.retain(|token, _| !params.breakers.is_alone(*token));
    longest
}

/// For each place, the length of the run that ends there and ends the whole text too, at most `limit`. This is the Z
/// function (Gusfield 1997) of the text from its end.
fn suffix_runs(text: &[u32], limit: usize) -> Vec<usize> {
    let count = text.len();
    let from_end = |place: usize| text[count - 1 - place];
    let (mut runs, mut left, mut right) = (vec![0; count], 0, 0);
    for place in 1..count {
        let mut run = if place < right { (right - place).min(runs[count - 1 - (place - left)]) } else { 0 };
        while place + run < count && from_end(run) == from_end(place + run) {
            run += 1;
        }
        runs[count - 1 - place] = run;
        if place + run > right {
            (left, right) = (place, place + run);
        }
    }
    runs.iter().map(|run| *run.min(&limit)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn params(breakers: DryBreakers, last_n: Option<usize>) -> DryParams {
        DryParams { multiplier: 1.0, base: 2.0, allowed_length: 2, last_n, breakers: Arc::new(breakers) }
    }

    /// The definition by itself: every earlier place, every length.
    fn by_definition(params: &DryParams, text: &[u32]) -> HashMap<u32, usize> {
        let text = &text[text.len() - params.last_n.unwrap_or(usize::MAX).min(text.len())..];
        let breaks = |from: usize| {
            (from..text.len())
                .any(|at| params.breakers.0.get(&text[at]).is_some_and(|tails| tails.contains(&Vec::new())))
        };
        let mut longest: HashMap<u32, usize> = HashMap::new();
        for end in 0..text.len().saturating_sub(1) {
            for run in params.allowed_length..=end + 1 {
                let same = text[end + 1 - run..=end] == text[text.len() - run..];
                if same && !breaks(text.len() - run) {
                    let known = longest.entry(text[end + 1]).or_insert(run);
                    *known = run.max(*known);
                }
            }
        }
        longest.retain(|token, _| !params.breakers.is_alone(*token));
        longest
    }

    proptest! {
        #[test]
        fn en_7_runs_are_those_of_the_definition(
            text in proptest::collection::vec(0_u32..4, 1..40), last_n in proptest::option::of(0_usize..40), breaks in any::<bool>(),
        ) {
            let breakers = DryBreakers::new(breaks.then_some((3, Vec::new())));
            let params = params(breakers, last_n);
            prop_assert_eq!(repeated(&params, &text), by_definition(&params, &text));
        }
    }

    #[test]
    fn en_7_a_repeated_run_costs_a_power_of_its_length() {
        let text = [1, 2, 3, 9, 1, 2, 3];
        let mut logits = [0.0; 10];
        apply(&params(DryBreakers::default(), None), &text, &mut logits);
        let mut expected = [0.0; 10];
        expected[9] = -2.0;
        assert_eq!(logits, expected, "three tokens are one more than may repeat");
        for (breakers, found) in [
            (vec![(3, vec![])], false),
            (vec![(2, vec![3])], false),
            // A breaker of two tokens that begins before the run leaves all of it.
            (vec![(9, vec![1])], true),
            (vec![(2, vec![9])], true),
        ] {
            let known = repeated(&params(DryBreakers::new(breakers.clone()), None), &text).contains_key(&9);
            assert_eq!(known, found, "{breakers:?}");
        }
        let mut far = [0.0; 10];
        apply(&params(DryBreakers::default(), Some(4)), &text, &mut far);
        assert_eq!(far, [0.0; 10], "the earlier run is out of sight");
        let endless: Vec<u32> = vec![5; 500];
        apply(&params(DryBreakers::default(), None), &endless, &mut far);
        assert!(far[5].is_finite() && far[5] < -1e30, "{}", far[5]);
    }
}
