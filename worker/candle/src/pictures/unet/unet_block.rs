//! Blocks of one size: convolutions and layers of attention by turns, and the change to the next size.

use candle_core::{Result as CandleResult, Tensor};

use super::text_blocks::{GivenTextRows, TextBlocks};
use crate::error::ModelError;
use crate::pictures::layers::{Border, PlaneConv, PlaneResidual, PlaneWeights, Planes};
use crate::speech::weights::SpeechWeights;

/// The conditions of a call that all blocks share.
pub(super) struct BlockConditions<'a> {
    /// A row behind its activation.
    pub(super) time: &'a Tensor,
    pub(super) text: GivenTextRows<'a>,
}

/// A pair of convolutions, and the layers of attention behind them.
pub(super) struct UnetLayer {
    pub(super) block: PlaneResidual,
    pub(super) text: Option<TextBlocks>,
}

impl UnetLayer {
    pub(super) fn forward(&self, x: &Planes, conditions: &BlockConditions<'_>) -> CandleResult<Planes> {
        let x = self.block.forward(x, Some(conditions.time))?;
        self.text.as_ref().map_or(Ok(x.clone()), |text| text.forward(&x, &conditions.text))
    }
}

/// A block on the way down.
pub(super) struct DownBlock {
    pub(super) layers: Vec<UnetLayer>,
    pub(super) smaller: Option<PlaneConv>,
}

impl DownBlock {
    /// Puts all pictures that the way up needs behind `kept`.
    pub(super) fn forward(
        &self,
        x: &Planes,
        conditions: &BlockConditions<'_>,
        kept: &mut Vec<Planes>,
    ) -> CandleResult<Planes> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = layer.forward(&x, conditions)?;
            kept.push(x.clone());
        }
        if let Some(smaller) = &self.smaller {
            x = smaller.forward(&x)?;
            kept.push(x.clone());
        }
        Ok(x)
    }
}

/// A block on the way up.
pub(super) struct UpBlock {
    pub(super) layers: Vec<UnetLayer>,
    pub(super) larger: Option<PlaneConv>,
}

impl UpBlock {
    /// Takes pictures from the end of `kept`.
    pub(super) fn forward(
        &self,
        x: &Planes,
        conditions: &BlockConditions<'_>,
        kept: &mut Vec<Planes>,
    ) -> CandleResult<Planes> {
        let mut x = x.clone();
        for layer in &self.layers {
            let Some(beside) = kept.pop() else { candle_core::bail!("a block has no picture of the way down") };
            x = layer.forward(&x.beside(&beside)?, conditions)?;
        }
        match (&self.larger, kept.last()) {
            (Some(larger), Some(next)) => larger.enlarged(&x, [next.height, next.width]),
            _ => Ok(x),
        }
    }
}

/// Reads a convolution that halves sides, or one behind their doubling.
pub(super) fn read_change(
    weights: &mut SpeechWeights<'_, '_>,
    path: &str,
    width: usize,
    stride: usize,
) -> Result<PlaneConv, ModelError> {
    weights.plane_conv(path, [width, width, 3], (stride, Border::ONE))
}
