//! The gradient of every kind of parameter, compared with finite differences. Only this test shows a fused operation
//! that cuts the graph, or a wrong derivative.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test with a line number")]

use candle_core::{Device, Tensor};
use model_boss_train::batch::{Batch, TrainTarget};
use model_boss_train::model::{Architecture, GuideModel};
use model_boss_train::trainer;

const KINDS: [&str; 11] = [
    "embed_tokens",
    "input_layernorm",
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "post_attention_layernorm",
    "gate_proj",
    "up_proj",
    "down_proj",
    "model.norm",
];

fn tiny() -> Architecture {
    Architecture {
        vocab_size: 13,
        hidden_size: 16,
        intermediate_size: 20,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        max_position_embeddings: 16,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-5,
    }
}

fn batch() -> Batch {
    Batch {
        tokens: vec![1, 5, 2, 8, 4, 7, 3, 12, 9, 6, 11, 0, 10, 2, 7, 1, 1, 3],
        time: 6,
        starts: vec![0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 0, 0, 0, 3, 3, 3],
        targets: [(1, 2), (3, 4), (4, 7), (5, 3), (8, 6), (10, 0), (13, 7), (17, 9)]
            .map(|(at, token)| TrainTarget { at, token, weight: 1.0 + at as f32 / 8.0 })
            .to_vec(),
    }
}

/// The loss after one element of one parameter was changed by `by`.
fn moved(model: &GuideModel, name: &str, index: usize, by: f32) -> f64 {
    let var = &model.parameters[name];
    let kept = var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let set = |values: Vec<f32>| var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu).unwrap()).unwrap();
    let mut values = kept.clone();
    values[index] += by;
    set(values);
    let batch = batch();
    let loss = trainer::loss(model, &batch, batch.weight()).unwrap().to_scalar::<f32>().unwrap();
    set(kept);
    f64::from(loss)
}

#[test]
fn every_kind_of_parameter_has_the_gradient_of_finite_differences() {
    let model = GuideModel::random(tiny(), 3).unwrap();
    let (_, gradients) = trainer::gradients(&model, &batch(), 1).unwrap();
    for kind in KINDS {
        let (name, gradient) = gradients.iter().find(|(name, _)| name.contains(kind)).unwrap();
        let mut order: Vec<usize> = (0..gradient.len()).collect();
        order.sort_by(|&a, &b| gradient[b].abs().total_cmp(&gradient[a].abs()));
        // The largest gradients show faults best, and one in the middle shows that small ones are right too.
        for &index in order[..3].iter().chain(&order[gradient.len() / 2..gradient.len() / 2 + 1]) {
            let step = 1e-2;
            let expected =
                (moved(&model, name, index, step) - moved(&model, name, index, -step)) / f64::from(2.0 * step);
            let found = f64::from(gradient[index]);
            let allowed = 2e-4 + 0.02 * expected.abs();
            assert!((found - expected).abs() < allowed, "{name}[{index}]: {found} is not {expected}");
        }
        assert!(gradient[order[0]].abs() > 1e-4, "{name} hardly has a gradient");
    }
}

#[test]
fn the_number_of_parts_does_not_change_the_gradient() {
    let model = GuideModel::random(tiny(), 4).unwrap();
    let (whole_loss, whole) = trainer::gradients(&model, &batch(), 1).unwrap();
    let (parts_loss, parts) = trainer::gradients(&model, &batch(), 3).unwrap();
    assert!((whole_loss - parts_loss).abs() < 1e-5);
    for (name, gradient) in &whole {
        for (a, b) in gradient.iter().zip(&parts[name]) {
            assert!((a - b).abs() < 1e-5, "{name}: {a} and {b}");
        }
    }
}
