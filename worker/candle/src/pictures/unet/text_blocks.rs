//! Layers of attention in a block: pixels see each other, then the text.

use std::ops::Range;

use candle_core::{Result as CandleResult, Tensor};

use super::unet_spec::UnetBlockSpec;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::norm::Norm;
use crate::pictures::layers::{AfterNorm, CrossAttention, PlaneNorm, PlaneWeights, Planes};
use crate::spec::{Activation, NormKind, NormSpec};
use crate::speech::weights::SpeechWeights;

/// Epsilon of the norms before and in the layers.
const PLANE_EPS: f64 = 1e-6;
const ROWS: NormSpec = NormSpec { kind: NormKind::LayerWithBias, eps: 1e-5 };

/// The rows of texts, one text for each picture.
pub(super) struct GivenTextRows<'a> {
    pub(super) rows: &'a Tensor,
    pub(super) ranges: &'a [Range<usize>],
}

/// Layers with their weights.
pub(super) struct TextBlocks {
    norm: PlaneNorm,
    before: Linear,
    layers: Vec<TextBlock>,
    behind: Linear,
}

struct TextBlock {
    norms: [Norm; 3],
    own: CrossAttention,
    text: CrossAttention,
    /// The part of the feed-forward product that opens, and the one that is let through.
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl TextBlocks {
    pub(super) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        (spec, layers): (&UnetBlockSpec, usize),
        groups: usize,
    ) -> Result<Self, ModelError> {
        let width = spec.width;
        let layer = |at: usize, weights: &mut SpeechWeights<'_, '_>| {
            TextBlock::read(weights, &format!("{path}.transformer_blocks.{at}"), spec)
        };
        Ok(Self {
            norm: weights.plane_norm(&format!("{path}.norm"), width, (groups, PLANE_EPS))?,
            before: weights.pixel_product(&format!("{path}.proj_in"), [width, width])?,
            layers: (0..layers).map(|at| layer(at, weights)).collect::<Result<_, _>>()?,
            behind: weights.pixel_product(&format!("{path}.proj_out"), [width, width])?,
        })
    }

    pub(super) fn forward(&self, x: &Planes, text: &GivenTextRows<'_>) -> CandleResult<Planes> {
        let ranges = x.ranges();
        let mut y = self.before.forward(&self.norm.forward(x, AfterNorm::Nothing)?.rows)?;
        for layer in &self.layers {
            y = layer.forward(&y, &ranges, text)?;
        }
        Ok(x.with((self.behind.forward(&y)? + &x.rows)?))
    }
}

impl TextBlock {
    fn read(weights: &mut SpeechWeights<'_, '_>, path: &str, spec: &UnetBlockSpec) -> Result<Self, ModelError> {
        let width = spec.width;
        let norm =
            |at: usize, weights: &mut SpeechWeights<'_, '_>| weights.norm(&format!("{path}.norm{at}"), width, ROWS);
        let norms = [norm(1, weights)?, norm(2, weights)?, norm(3, weights)?];
        let own = CrossAttention::read(weights, &format!("{path}.attn1"), [width, width], spec.heads)?;
        let text = CrossAttention::read(weights, &format!("{path}.attn2"), [width, spec.text_width], spec.heads)?;
        let [up, gate] = weights.halves(&format!("{path}.ff.net.0.proj"), [8 * width, width])?;
        let down = weights.panels(&format!("{path}.ff.net.2"), [width, 4 * width])?;
        Ok(Self { norms, own, text, gate, up, down })
    }

    fn forward(&self, x: &Tensor, ranges: &[Range<usize>], text: &GivenTextRows<'_>) -> CandleResult<Tensor> {
        let x = (x + self.own.of_own(&self.norms[0].forward(x)?, ranges)?)?;
        let seen = (text.rows, text.ranges);
        let x = (&x + self.text.of_others(&self.norms[1].forward(&x)?, ranges, seen)?)?;
        let [gate, up] = Linear::forward_all([&self.gate, &self.up], &self.norms[2].forward(&x)?)?;
        let open = Activation::GeluErf.in_place(gate)?;
        &x + self.down.forward(&(open * up)?)?
    }
}
