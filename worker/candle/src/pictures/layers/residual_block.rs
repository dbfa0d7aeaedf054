//! Two convolutions behind norms, added to their input (He et al., 2015, arXiv 1512.03385), with a time between them.

use candle_core::{Result as CandleResult, Tensor};

use super::plane_conv::{Border, PlaneConv};
use super::plane_norm::{AfterNorm, PlaneNorm};
use super::plane_weights::PlaneWeights;
use super::planes::Planes;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::speech::weights::SpeechWeights;

/// The sizes of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::pictures) struct ResidualSizes {
    pub(in crate::pictures) ins: usize,
    pub(in crate::pictures) outs: usize,
    /// Groups of norms, and their epsilon.
    pub(in crate::pictures) groups: (usize, f64),
    /// The width of times; none of a block without.
    pub(in crate::pictures) time: Option<usize>,
}

/// A block with its weights.
pub(in crate::pictures) struct PlaneResidual {
    norms: [PlaneNorm; 2],
    convs: [PlaneConv; 2],
    time: Option<Linear>,
    shortcut: Option<Linear>,
}

impl PlaneResidual {
    pub(in crate::pictures) fn read(
        weights: &mut SpeechWeights<'_, '_>,
        path: &str,
        ResidualSizes { ins, outs, groups, time }: ResidualSizes,
    ) -> Result<Self, ModelError> {
        let plain = (1, Border::ONE);
        Ok(Self {
            norms: [
                weights.plane_norm(&format!("{path}.norm1"), ins, groups)?,
                weights.plane_norm(&format!("{path}.norm2"), outs, groups)?,
            ],
            convs: [
                weights.plane_conv(&format!("{path}.conv1"), [outs, ins, 3], plain)?,
                weights.plane_conv(&format!("{path}.conv2"), [outs, outs, 3], plain)?,
            ],
            time: match time {
                Some(width) => Some(weights.panels(&format!("{path}.time_emb_proj"), [outs, width])?),
                None => None,
            },
            shortcut: match ins == outs {
                true => None,
                false => Some(weights.pixel_product(&format!("{path}.conv_shortcut"), [outs, ins])?),
            },
        })
    }

    /// `time`: a row behind its activation, which is that of all pictures, or one for each.
    pub(in crate::pictures) fn forward(&self, x: &Planes, time: Option<&Tensor>) -> CandleResult<Planes> {
        let mut y = self.convs[0].forward(&self.norms[0].forward(x, AfterNorm::Silu)?)?;
        if let (Some(product), Some(time)) = (&self.time, time) {
            y = added_to_each(&y, &product.forward(time)?)?;
        }
        let y = self.convs[1].forward(&self.norms[1].forward(&y, AfterNorm::Silu)?)?;
        let sum = match &self.shortcut {
            Some(shortcut) => (shortcut.forward(&x.rows)? + y.rows)?,
            None => (&x.rows + y.rows)?,
        };
        Ok(x.with(sum))
    }
}

/// Adds a row to all pixels, or one of each picture to its pixels.
fn added_to_each(x: &Planes, rows: &Tensor) -> CandleResult<Planes> {
    let (count, width) = rows.dims2()?;
    if count == 1 {
        return Ok(x.with(x.rows.broadcast_add(rows)?));
    }
    let pixels = x.rows.reshape((count, x.rows.dim(0)? / count, width))?;
    Ok(x.with(pixels.broadcast_add(&rows.unsqueeze(1)?)?.reshape(x.rows.shape())?))
}
