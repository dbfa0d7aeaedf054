use super::row::{LogitRow, Weigh};
use super::*;
use proptest::prelude::*;

fn sample(params: SamplingParams, logits: &[f32]) -> u32 {
    Sampler::new(params, &[], 0).sample(&mut logits.to_vec()).unwrap()
}

fn drawn(params: &SamplingParams, logits: &[f32], times: usize) -> Vec<u32> {
    let mut sampler = Sampler::new(params.clone(), &[], 0);
    (0..times).map(|_| sampler.sample(&mut logits.to_vec()).unwrap()).collect()
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    assert_eq!(sample(params.clone(), &[1.0, 3.0, 3.0, 2.0]), 1);
    assert_eq!(sample(params, &[f32::NAN, f32::NEG_INFINITY, -5.0]), 2);
}

#[test]
fn a_row_without_a_finite_logit_is_no_token() {
    let mut sampler = Sampler::new(SamplingParams::default(), &[], 0);
    assert_eq!(sampler.sample(&mut [f32::NAN, f32::NEG_INFINITY]), None);
    assert_eq!(sampler.sample(&mut [0.0, f32::INFINITY]), Some(1));
}

#[test]
fn the_draw_follows_the_softmax() {
    let logits = [0.0, 1.0, 2.0];
    let tokens = drawn(&SamplingParams { seed: 7, ..SamplingParams::default() }, &logits, 30_000);
    let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
    for token in 0..3_u32 {
        let share = tokens.iter().filter(|t| **t == token).count() as f64 / tokens.len() as f64;
        assert!((share - f64::from(logits[token as usize]).exp() / total).abs() < 0.01, "{token}: {share}");
    }
}

#[test]
fn filters_keep_what_they_say() {
    let kept = |params: SamplingParams, logits: &[f32]| {
        let row = LogitRow::new(logits);
        let (_, highest) = row.best().unwrap();
        let mut out = Vec::new();
        filters::candidates(&params, &row, Weigh::new(highest, 1.0), params.xtc_probability >= 1.0, &mut out);
        let mut tokens: Vec<_> = out.into_iter().map(|(_, token)| token).collect();
        tokens.sort_unstable();
        tokens
    };
    // Probabilities 0.5, 0.25, 0.125, 0.125.
    let logits = [0.5_f32, 0.25, 0.125, 0.125].map(f32::ln);
    let all = SamplingParams::default();
    assert_eq!(kept(SamplingParams { top_k: 2, ..all.clone() }, &logits), [0, 1]);
    assert_eq!(kept(SamplingParams { top_k: 3, ..all.clone() }, &logits), [0, 1, 2], "ties go to the lowest id");
    assert_eq!(kept(SamplingParams { top_p: 0.6, ..all.clone() }, &logits), [0, 1]);
    assert_eq!(kept(SamplingParams { top_p: 0.0, ..all.clone() }, &logits), [0], "one always remains");
    assert_eq!(kept(SamplingParams { top_p: 0.9, min_p: 0.4, ..all.clone() }, &logits), [0, 1]);
    // top_p counts within what top_k left: 0.5 / 0.75 is less than 0.7, so both stay.
    assert_eq!(kept(SamplingParams { top_k: 2, top_p: 0.7, ..all }, &logits), [0, 1]);
}

#[test]
fn penalties_look_where_they_should() {
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let mut presence = Sampler::new(SamplingParams { presence_penalty: 0.6, ..greedy.clone() }, &[0], 0);
    let row = [1.0, 0.5, 0.1];
    let tokens: Vec<_> = (0..3).map(|_| presence.sample(&mut row.to_vec()).unwrap()).collect();
    assert_eq!(tokens, [0, 1, 0], "the prompt does not count, the answer does, once");
    let mut frequency = Sampler::new(SamplingParams { frequency_penalty: 0.4, ..greedy.clone() }, &[], 0);
    let tokens: Vec<_> = (0..4).map(|_| frequency.sample(&mut row.to_vec()).unwrap()).collect();
    assert_eq!(tokens, [0, 0, 1, 0]);
    let mut repetition = Sampler::new(SamplingParams { repetition_penalty: 4.0, ..greedy }, &[0], 0);
    assert_eq!(repetition.sample(&mut row.to_vec()), Some(1), "the prompt counts");
}

#[test]
fn a_bias_decides_and_an_unknown_token_is_ignored() {
    let params =
        SamplingParams { temperature: 0.0, logit_bias: vec![(2, 100.0), (99, 1.0)], ..SamplingParams::default() };
    assert_eq!(sample(params, &[5.0, 4.0, -3.0]), 2);
}

#[test]
fn choices_of_one_seed_differ_and_repeat() {
    let logits = [0.0; 50];
    let of = |choice| {
        let mut sampler = Sampler::new(SamplingParams { seed: 42, ..SamplingParams::default() }, &[], choice);
        (0..10).map(|_| sampler.sample(&mut logits.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(of(0), of(0));
    assert_ne!(of(0), of(1));
}

#[test]
fn logprobs_are_of_the_models_own_distribution() {
    let logits = [0.5_f32, 0.25, 0.25].map(f32::ln);
    let row = LogprobRow::new(&logits, 2);
    assert!((row.of(logits[0]) - 0.5_f32.ln()).abs() < 1e-6);
    assert_eq!(row.top().iter().map(|(token, _)| *token).collect::<Vec<_>>(), [0, 1]);
    assert!((row.of(f32::NEG_INFINITY) - -9999.0).abs() < f32::EPSILON);
    assert!(LogprobRow::new(&logits, 0).top().is_empty());
}

proptest! {
    #[test]
    fn sampling_is_a_function_of_its_inputs(
        logits in proptest::collection::vec(-20.0_f32..20.0, 1..400),
        seed in any::<u64>(), temperature in 0.0_f32..2.0, top_p in 0.0_f32..=1.0, top_k in 0_usize..50,
        min_p in 0.0_f32..=1.0,
    ) {
        let params = SamplingParams { temperature, top_p, top_k, min_p, seed, ..SamplingParams::default() };
        let once = drawn(&params, &logits, 5);
        prop_assert_eq!(&once, &drawn(&params, &logits, 5));
        prop_assert!(once.iter().all(|token| (*token as usize) < logits.len()));
    }

    #[test]
    fn top_p_in_pieces_equals_a_full_sort(
        weights in proptest::collection::vec(0.001_f32..1.0, 1..900), top_p in 0.01_f32..0.999,
    ) {
        let logits: Vec<f32> = weights.iter().map(|w| w.ln()).collect();
        let row = LogitRow::new(&logits);
        let weigh = Weigh::new(row.best().unwrap().1, 1.0);
        let mut fast = Vec::new();
        filters::candidates(&SamplingParams { top_p, ..SamplingParams::default() }, &row, weigh, false, &mut fast);
        // By logit: the weights of two that differ in their last bit can be one number.
        let mut all: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        all.iter_mut().for_each(|(logit, _)| *logit = weigh.of(*logit));
        prop_assert_eq!(&all[..fast.len()], &fast[..]);
        let total: f64 = all.iter().map(|c| f64::from(c.0)).sum();
        let kept: f64 = fast.iter().map(|c| f64::from(c.0)).sum();
        let without_last: f64 = kept - f64::from(fast[fast.len() - 1].0);
        prop_assert!(kept >= f64::from(top_p) * total * (1.0 - 1e-6) || fast.len() == all.len());
        prop_assert!(without_last <= f64::from(top_p) * total * (1.0 + 1e-6));
    }
}

#[test]
fn en_7_every_filter_works_with_the_others() {
    let kept = |params: SamplingParams| {
        let logits = [0.4_f32, 0.3, 0.2, 0.1].map(f32::ln);
        let mut tokens = drawn(&params, &logits, 300);
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    };
    let all = SamplingParams::default();
    assert_eq!(kept(all.clone()), [0, 1, 2, 3]);
    assert_eq!(kept(SamplingParams { typical_p: 0.25, ..all.clone() }), [1], "its surprise is nearest to the entropy");
    assert_eq!(kept(SamplingParams { top_n_sigma: 1.0, ..all.clone() }), [0, 1]);
    let xtc = SamplingParams { xtc_probability: 1.0, ..all.clone() };
    assert_eq!(kept(SamplingParams { xtc_threshold: 0.25, ..xtc.clone() }), [1, 2, 3]);
    assert_eq!(kept(SamplingParams { xtc_threshold: 0.05, ..xtc.clone() }), [3]);
    // At a low temperature the others weigh nothing beside what was removed.
    assert_eq!(kept(SamplingParams { xtc_threshold: 0.25, temperature: 0.002, ..xtc.clone() }), [1]);
    assert_eq!(kept(SamplingParams { xtc_threshold: 0.51, ..xtc.clone() }), [0, 1, 2, 3]);
    assert_eq!(kept(SamplingParams { xtc_threshold: 0.05, xtc_probability: 0.0, ..xtc.clone() }), [0, 1, 2, 3]);
    assert_eq!(kept(SamplingParams { xtc_threshold: 0.05, top_k: 2, ..xtc.clone() }), [1], "of what top_k leaves");
    assert_eq!(kept(SamplingParams { xtc_threshold: 0.05, temperature: 0.0, ..xtc }), [0], "the most likely stays it");
    assert_eq!(kept(SamplingParams { top_p: 0.1, min_keep: 3, ..all.clone() }), [0, 1, 2]);
    assert_eq!(kept(SamplingParams { min_p: 0.9, min_keep: 2, ..all }), [0, 1]);
}

/// Expected values: llama.cpp's tests/test-sampling.cpp, which give probabilities.
#[test]
fn en_7_dry_and_windows_of_penalties_lower_logits_as_llama_cpps_do() {
    let after = |params: SamplingParams, text: &[u32], count: usize| {
        let mut logits = vec![0.0_f32; count];
        Sampler::new(SamplingParams { temperature: 0.0, ..params }, text, 0).sample(&mut logits).unwrap();
        let total: f32 = logits.iter().map(|logit| logit.exp()).sum();
        logits.into_iter().map(|logit| logit.exp() / total).collect::<Vec<f32>>()
    };
    let dry = |multiplier: f32, allowed_length: usize, heads: &[u32]| SamplingParams {
        dry: Some(DryParams {
            multiplier,
            base: 1.1,
            allowed_length,
            last_n: None,
            breakers: std::sync::Arc::new(DryBreakers::new(heads.iter().map(|head| (*head, Vec::new())))),
        }),
        ..SamplingParams::default()
    };
    let close = |found: &[f32], expected: &[f32]| {
        let near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-5);
        assert!(near && found.len() == expected.len(), "{found:?} {expected:?}");
    };
    close(&after(dry(1.0, 2, &[]), &[0, 1], 4), &[0.25; 4]);
    close(&after(dry(1.0, 2, &[]), &[0, 1, 2, 0, 1], 4), &[0.296_923, 0.296_923, 0.109_232, 0.296_923]);
    close(&after(dry(1.0, 2, &[3]), &[0, 1, 3, 4, 0, 1], 5), &[0.2; 5]);
    close(&after(dry(2.0, 2, &[]), &[0, 1, 2, 0, 1], 5), &[0.241_818, 0.241_818, 0.032_727, 0.241_818, 0.241_818]);
    close(&after(dry(1.0, 4, &[]), &[0, 1, 2, 3, 4, 0, 1], 5), &[0.2; 5]);
    let window = |repetition_penalty: f32, presence_penalty: f32, window: usize| SamplingParams {
        repetition_penalty,
        presence_penalty,
        penalty_window: Some(window),
        ..SamplingParams::default()
    };
    // The logits of the test's probabilities are 0 here, which no factor changes.
    close(&after(window(50.0, 0.0, 10), &[0], 5), &[0.2; 5]);
    let once = [0.000_011, 0.249_997, 0.249_997, 0.249_997, 0.249_997];
    close(&after(window(1.0, 10.0, 10), &[0], 5), &once);
    close(&after(window(1.0, 10.0, 1), &[1, 2, 0], 5), &once);
}
