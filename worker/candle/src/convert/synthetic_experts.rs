//! Synthetic mixtures of experts whose routers play a skewed trace. Real routers choose few experts often, and a cache
//! of experts is worth nothing without that, so routers are not random here.
//!
//! Some values of every embedding are the same. A router has the logarithm of each expert's popularity on them, and
//! noise on all others. Its choice among the experts is then a draw by popularity that the token decides, in every
//! program that reads the file. Popularity falls by Zipf's law, in another order in each layer.

use half::f16;

use super::random::Random;
use crate::spec::part_names::{EMBEDDING, Needed};
use crate::spec::{Activation, DecoderSpec};
use crate::spec::{ExpertsSpec, FeedForward, LayerSpec, RouterSpec, TensorSpelling};

/// Values of an embedding that are the same for every token.
const CONSTANT: usize = 16;
/// The exponent of Zipf's law: the expert of rank r is as popular as 1 / r to this power.
const EXPONENT: f32 = 1.0;
/// The standard deviation of Gumbel's distribution: with noise of it, the largest of the logarithms of some weights
/// plus noise is a draw by these weights.
const NOISE: f32 = 1.282_55;
/// The standard deviation of numbers that are even between -1 and 1 is 1 / √3.
const SQRT_3: f32 = 1.732_050_8;

/// Some experts of a width, and how many of them a token uses.
#[derive(Clone, Copy)]
pub(super) struct Mixture {
    pub(super) count: usize,
    pub(super) used: usize,
    pub(super) intermediate: usize,
}

impl Mixture {
    /// The decoder with these experts in each layer in place of its feed-forward part.
    pub(super) fn in_each_layer(self, mut spec: DecoderSpec) -> DecoderSpec {
        let Self { count, used, intermediate } = self;
        let experts = ExpertsSpec {
            count,
            used,
            intermediate,
            activation: Activation::Silu,
            bias: false,
            gated: true,
            router: RouterSpec::softmax(true),
            shared: None,
        };
        for LayerSpec { feed_forward, .. } in &mut spec.layers {
            *feed_forward = FeedForward::Experts(experts.clone());
        }
        spec
    }
}

/// The names of GGUF, with those of stacked experts.
pub(super) fn names() -> TensorSpelling {
    TensorSpelling::gguf().renaming(&[
        ("mlp.gate", "ffn_gate_inp"),
        ("mlp.experts.gate_proj", "ffn_gate_exps"),
        ("mlp.experts.up_proj", "ffn_up_exps"),
        ("mlp.experts.down_proj", "ffn_down_exps"),
    ])
}

/// The tensors as a file has them: all experts of a layer in one.
pub(super) fn stacked(spec: &DecoderSpec, tensors: impl Iterator<Item = Needed>) -> Vec<Needed> {
    let count = spec.layers.iter().find_map(|layer| match &layer.feed_forward {
        FeedForward::Experts(experts) => Some(experts.count),
        _ => None,
    });
    let of_stack = |Needed { name, shape }: Needed| match name.split_once(".mlp.experts.") {
        None => Some(Needed { name, shape }),
        Some((layer, part)) => part.strip_prefix("0.").map(|part| Needed {
            name: format!("{layer}.mlp.experts.{part}"),
            shape: count.into_iter().chain(shape).collect(),
        }),
    };
    tensors.filter_map(of_stack).collect()
}

/// Whether a tensor decides about the trace; it is stored in floats.
pub(super) fn is_of_trace(tensor: &Needed) -> bool {
    tensor.name == EMBEDDING || is_router(tensor)
}

/// Whether a tensor is a router's.
pub(super) fn is_router(tensor: &Needed) -> bool {
    tensor.name.ends_with("mlp.gate.weight")
}

/// The factor on the usual spread of a tensor: attention changes the stream less than embeddings and experts do, so
/// that tokens decide about the trace.
pub(super) fn spread(tensor: &Needed) -> f32 {
    if tensor.name.ends_with("o_proj.weight") { 0.25 } else { 1.0 }
}

/// All bytes of the embedding in f16, or of a router in f32.
pub(super) fn draw(tensor: &Needed, random: &mut Random) -> Vec<u8> {
    let &[rows, width] = tensor.shape.as_slice() else { return Vec::new() };
    let mut even = |spread: f32| ((random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0) * SQRT_3 * spread;
    if !is_router(tensor) {
        let value = |at: usize| if at % width < CONSTANT { 1.0 } else { even(1.0) };
        return (0..rows * width).map(value).flat_map(|value| f16::from_f32(value).to_le_bytes()).collect();
    }
    let mut order: Vec<(u32, usize)> = (0..rows).map(|expert| (even(1.0).to_bits(), expert)).collect();
    order.sort_unstable();
    let mut popularity = vec![0.0; rows];
    for (rank, (_, expert)) in order.into_iter().enumerate() {
        popularity[expert] = -EXPONENT * ((rank + 1) as f32).ln() / CONSTANT as f32;
    }
    let noise = NOISE / (width as f32).sqrt();
    let value = |at: usize| if at % width < CONSTANT { popularity[at / width] } else { even(noise) };
    (0..rows * width).map(value).flat_map(f32::to_le_bytes).collect()
}
