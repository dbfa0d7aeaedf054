//! Blocks of an autoencoder: convolutions, and attention in the middle.

use candle_core::Result as CandleResult;

use super::vae_spec::VaeSpec;
use crate::error::ModelError;
use crate::pictures::layers::{Border, PlaneAttention, PlaneConv, PlaneResidual, PlaneWeights, Planes, ResidualSizes};
use crate::speech::weights::SpeechWeights;

/// Epsilon of all norms.
pub(super) const EPS: f64 = 1e-6;

/// Pairs of convolutions, and the change to another size behind them.
pub(super) struct VaeBlock {
    layers: Vec<PlaneResidual>,
    change: Option<SizeChange>,
}

/// A change of sides.
pub(super) enum SizeChange {
    Half(PlaneConv),
    Double(PlaneConv),
}

/// Pairs of convolutions with attention between them.
pub(super) struct VaeMiddle {
    blocks: [PlaneResidual; 2],
    attention: Option<PlaneAttention>,
}

/// The convolutions of a block: how many, and whether sides are halved or doubled behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockEnd {
    Same,
    Half,
    Double,
}

fn sizes(spec: &VaeSpec, [ins, outs]: [usize; 2]) -> ResidualSizes {
    ResidualSizes { ins, outs, groups: (spec.groups, EPS), time: None }
}

impl VaeBlock {
    pub(super) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        (spec, layers): (&VaeSpec, usize),
        ([ins, outs], end): ([usize; 2], BlockEnd),
    ) -> Result<Self, ModelError> {
        let mut blocks = Vec::with_capacity(layers);
        for at in 0..layers {
            let ins = if at == 0 { ins } else { outs };
            blocks.push(PlaneResidual::read(weights, &format!("{path}.resnets.{at}"), sizes(spec, [ins, outs]))?);
        }
        let shape = [outs, outs, 3];
        let change = match end {
            BlockEnd::Same => None,
            BlockEnd::Half => {
                let path = format!("{path}.downsamplers.0.conv");
                Some(SizeChange::Half(weights.plane_conv(&path, shape, (2, Border::BEHIND))?))
            }
            BlockEnd::Double => {
                let path = format!("{path}.upsamplers.0.conv");
                Some(SizeChange::Double(weights.plane_conv(&path, shape, (1, Border::ONE))?))
            }
        };
        Ok(Self { layers: blocks, change })
    }

    pub(super) fn forward(&self, x: &Planes) -> CandleResult<Planes> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.forward(&x, None)?;
        }
        match &self.change {
            Some(SizeChange::Half(conv)) => conv.forward(&x),
            Some(SizeChange::Double(conv)) => conv.enlarged(&x, [2 * x.height, 2 * x.width]),
            None => Ok(x),
        }
    }
}

impl VaeMiddle {
    pub(super) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        spec: &VaeSpec,
        width: usize,
    ) -> Result<Self, ModelError> {
        let block = |at: usize, weights: &mut SpeechWeights<'_, '_>| {
            PlaneResidual::read(weights, &format!("{path}.resnets.{at}"), sizes(spec, [width, width]))
        };
        let blocks = [block(0, weights)?, block(1, weights)?];
        let attention = match spec.has_attention {
            true => Some(PlaneAttention::read(weights, &format!("{path}.attentions.0"), width, (spec.groups, EPS))?),
            false => None,
        };
        Ok(Self { blocks, attention })
    }

    pub(super) fn forward(&self, x: &Planes) -> CandleResult<Planes> {
        let mut x = self.blocks[0].forward(x, None)?;
        if let Some(attention) = &self.attention {
            x = attention.forward(&x)?;
        }
        self.blocks[1].forward(&x, None)
    }
}
