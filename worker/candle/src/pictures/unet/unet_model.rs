//! The network with its weights.

use std::ops::Range;

use candle_core::{Device, Result as CandleResult, Tensor};

use super::text_blocks::{GivenTextRows, TextBlocks};
use super::unet_block::{BlockConditions, DownBlock, UnetLayer, UpBlock, read_change};
use super::unet_spec::{AddedSpec, MiddleSpec, UnetBlockSpec, UnetSpec};
use crate::error::ModelError;
use crate::pictures::layers::{
    AfterNorm, Border, PlaneConv, PlaneNorm, PlaneResidual, PlaneWeights, Planes, ResidualSizes, TimeEmbedding,
};
use crate::spec::Activation;
use crate::speech::weights::SpeechWeights;

/// The network.
pub(in crate::pictures) struct Unet {
    spec: UnetSpec,
    first: PlaneConv,
    time: TimeEmbedding,
    added: Option<(AddedSpec, TimeEmbedding)>,
    downs: Vec<DownBlock>,
    middle: Option<Middle>,
    ups: Vec<UpBlock>,
    norm: PlaneNorm,
    last: PlaneConv,
    device: Device,
}

struct Middle {
    blocks: [PlaneResidual; 2],
    text: TextBlocks,
}

/// The conditions of a picture beside its time.
pub(in crate::pictures) struct Conditions {
    /// The rows of the texts, one text behind the other.
    pub(in crate::pictures) rows: Tensor,
    /// The rows of each picture's text.
    pub(in crate::pictures) ranges: Vec<Range<usize>>,
    /// One row of each picture's text, and its sizes, in networks that have such conditions.
    pub(in crate::pictures) added: Option<(Tensor, Vec<f32>)>,
}

impl Unet {
    pub(in crate::pictures) fn read(weights: &mut SpeechWeights<'_, '_>, spec: &UnetSpec) -> Result<Self, ModelError> {
        let count = spec.blocks.len();
        let width = spec.blocks[0].width;
        let time_width = spec.time_width;
        let reader = BlockReader { spec };
        let added = match spec.added {
            Some(added) => Some((added, TimeEmbedding::read(weights, "add_embedding", [added.ins, time_width])?)),
            None => None,
        };
        let downs = (0..count).map(|at| reader.down(weights, at)).collect::<Result<_, _>>()?;
        let middle = match spec.middle {
            MiddleSpec::Absent => None,
            MiddleSpec::Text(layers) => Some(reader.middle(weights, layers)?),
        };
        Ok(Self {
            first: weights.plane_conv("conv_in", [width, spec.ins, 3], (1, Border::ONE))?,
            time: TimeEmbedding::read(weights, "time_embedding", [width, time_width])?,
            added,
            downs,
            middle,
            ups: (0..count).map(|at| reader.up(weights, at)).collect::<Result<_, _>>()?,
            norm: weights.plane_norm("conv_norm_out", width, spec.groups)?,
            last: weights.plane_conv("conv_out", [spec.outs, width, 3], (1, Border::ONE))?,
            spec: spec.clone(),
            device: weights.device.clone(),
        })
    }

    /// The output for pictures at a time.
    pub(in crate::pictures) fn forward(&self, x: &Planes, time: f32, given: &Conditions) -> CandleResult<Planes> {
        let mut row = self.time.forward(&self.spec.time.rows(&[time], &self.device)?)?;
        if let (Some((spec, embedding)), Some((text, sizes))) = (&self.added, &given.added) {
            let pictures = text.dim(0)?;
            let sizes = spec.sines.rows(sizes, &self.device)?;
            let sizes = sizes.reshape((pictures, sizes.elem_count() / pictures))?;
            row = embedding.forward(&Tensor::cat(&[text, &sizes], 1)?)?.broadcast_add(&row)?;
        }
        let time = Activation::Silu.in_place(row)?;
        let text = GivenTextRows { rows: &given.rows, ranges: &given.ranges };
        let conditions = BlockConditions { time: &time, text };
        let mut x = self.first.forward(x)?;
        let mut kept = vec![x.clone()];
        for block in &self.downs {
            x = block.forward(&x, &conditions, &mut kept)?;
        }
        if let Some(Middle { blocks, text }) = &self.middle {
            x = blocks[0].forward(&x, Some(&time))?;
            x = blocks[1].forward(&text.forward(&x, &conditions.text)?, Some(&time))?;
        }
        for block in &self.ups {
            x = block.forward(&x, &conditions, &mut kept)?;
        }
        self.last.forward(&self.norm.forward(&x, AfterNorm::Silu)?)
    }
}

/// Reads blocks with sizes that depend on those beside them.
struct BlockReader<'a> {
    spec: &'a UnetSpec,
}

impl BlockReader<'_> {
    fn layer(
        &self,
        weights: &mut SpeechWeights<'_, '_>,
        (path, at): (&str, usize),
        [ins, outs]: [usize; 2],
        (block, attention): (&UnetBlockSpec, usize),
    ) -> Result<UnetLayer, ModelError> {
        let groups = self.spec.groups;
        let sizes = ResidualSizes { ins, outs, groups, time: Some(self.spec.time_width) };
        Ok(UnetLayer {
            block: PlaneResidual::read(weights, &format!("{path}.resnets.{at}"), sizes)?,
            text: match attention {
                0 => None,
                layers => {
                    let path = format!("{path}.attentions.{at}");
                    Some(TextBlocks::read(weights, &path, (block, layers), groups.0)?)
                }
            },
        })
    }

    fn down(&self, weights: &mut SpeechWeights<'_, '_>, at: usize) -> Result<DownBlock, ModelError> {
        let (block, path) = (&self.spec.blocks[at], format!("down_blocks.{at}"));
        let mut ins = self.spec.blocks[at.saturating_sub(1)].width;
        let mut layers = Vec::with_capacity(block.layers);
        for layer in 0..block.layers {
            let sizes = [ins, block.width];
            layers.push(self.layer(weights, (&path, layer), sizes, (block, block.attention_down))?);
            ins = block.width;
        }
        let smaller = match at + 1 == self.spec.blocks.len() {
            true => None,
            false => Some(read_change(weights, &format!("{path}.downsamplers.0.conv"), block.width, 2)?),
        };
        Ok(DownBlock { layers, smaller })
    }

    fn middle(&self, weights: &mut SpeechWeights<'_, '_>, layers: usize) -> Result<Middle, ModelError> {
        let block = &self.spec.blocks[self.spec.blocks.len() - 1];
        let sizes = ResidualSizes {
            ins: block.width,
            outs: block.width,
            groups: self.spec.groups,
            time: Some(self.spec.time_width),
        };
        Ok(Middle {
            blocks: [
                PlaneResidual::read(weights, "mid_block.resnets.0", sizes)?,
                PlaneResidual::read(weights, "mid_block.resnets.1", sizes)?,
            ],
            text: TextBlocks::read(weights, "mid_block.attentions.0", (block, layers), self.spec.groups.0)?,
        })
    }

    /// The block that is so far on the way up. It has one layer more than the block on the way down.
    fn up(&self, weights: &mut SpeechWeights<'_, '_>, at: usize) -> Result<UpBlock, ModelError> {
        let blocks = &self.spec.blocks;
        let (down, path) = (blocks.len() - 1 - at, format!("up_blocks.{at}"));
        let block = &blocks[down];
        // The width of the block before, and that of the last picture of this size on the way down.
        let before = blocks[(down + 1).min(blocks.len() - 1)].width;
        let outside = blocks[down.saturating_sub(1)].width;
        let mut layers = Vec::with_capacity(block.layers + 1);
        for layer in 0..=block.layers {
            let own = if layer == 0 { before } else { block.width };
            let beside = if layer == block.layers { outside } else { block.width };
            let sizes = [own + beside, block.width];
            layers.push(self.layer(weights, (&path, layer), sizes, (block, block.attention_up))?);
        }
        let larger = match down {
            0 => None,
            _ => Some(read_change(weights, &format!("{path}.upsamplers.0.conv"), block.width, 1)?),
        };
        Ok(UpBlock { layers, larger })
    }
}
