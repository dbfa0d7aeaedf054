//! SEANet's decoder (Tagliasacchi et al., 2020, arXiv 2009.02095): causal convolutions that make more moments of fewer
//! numbers, stage by stage, up to samples.

use candle_core::{Result as CandleResult, Tensor};

use super::mimi_spec::MimiSpec;
use crate::error::ModelError;
use crate::speech::convolution::{InputActivation, MomentsBefore, TimeConvolution, Upsampling};
use crate::speech::weights::{ConvolutionSizes, SpeechWeights};

/// The decoder with its weights.
pub(super) struct SeaNet {
    first: TimeConvolution,
    stages: Vec<SeaStage>,
    last: TimeConvolution,
}

struct SeaStage {
    up: Upsampling,
    blocks: Vec<SeaBlock>,
}

/// Two convolutions whose result is added to the stream.
struct SeaBlock {
    narrow: TimeConvolution,
    wide: TimeConvolution,
    shortcut: Option<TimeConvolution>,
}

/// The moments before a piece, of each convolution in turn.
pub(super) struct SeaMemory(Vec<MomentsBefore>);

impl SeaNet {
    /// Reads the decoder below a path, where each convolution and activation has a number.
    pub(super) fn read(weights: &mut SpeechWeights<'_, '_>, path: &str, spec: &MimiSpec) -> Result<Self, ModelError> {
        let ratios = spec.ratios();
        let mut width = spec.num_filters << ratios.len();
        let sizes =
            |outs: usize, ins: usize, taps: usize, dilation: usize| ConvolutionSizes { outs, ins, taps, dilation };
        let first = sizes(width, spec.hidden_size, spec.kernel_size, 1);
        let first = weights.convolution(&format!("{path}.layers.0.conv"), first)?;
        let (mut stages, mut at) = (Vec::new(), 1);
        for ratio in ratios {
            let up = format!("{path}.layers.{}.conv", at + 1);
            let up = weights.causal_upsampling(&up, sizes(width / 2, width, 2 * ratio, 1), *ratio, 1)?;
            (width, at) = (width / 2, at + 2);
            let narrow = spec.narrowed(width);
            let mut blocks = Vec::new();
            for block in 0..spec.num_residual_layers {
                let path = format!("{path}.layers.{at}");
                let taps = spec.residual_kernel_size;
                let shortcut = match spec.use_conv_shortcut {
                    true => Some(weights.convolution(&format!("{path}.shortcut.conv"), sizes(width, width, 1, 1))?),
                    false => None,
                };
                blocks.push(SeaBlock {
                    narrow: weights.convolution(
                        &format!("{path}.block.1.conv"),
                        sizes(narrow, width, taps, spec.dilation(block)),
                    )?,
                    wide: weights.convolution(&format!("{path}.block.3.conv"), sizes(width, narrow, 1, 1))?,
                    shortcut,
                });
                at += 1;
            }
            stages.push(SeaStage { up, blocks });
        }
        let last = sizes(1, spec.num_filters, spec.last_kernel_size, 1);
        let last = weights.convolution(&format!("{path}.layers.{}.conv", at + 1), last)?;
        Ok(Self { first, stages, last })
    }

    /// The memory of a part of which nothing has come.
    pub(super) fn memory(&self) -> SeaMemory {
        let blocks: usize = self.stages.iter().map(|stage| stage.blocks.len()).sum();
        let count = 2 + self.stages.len() + 3 * blocks;
        SeaMemory((0..count).map(|_| MomentsBefore::default()).collect())
    }

    /// The next moments: `[moments, width]` → samples.
    pub(super) fn samples(&self, x: &Tensor, memory: &mut SeaMemory) -> CandleResult<Vec<f32>> {
        use InputActivation::{Elu, Nothing};
        let mut earlier = memory.0.iter_mut();
        let mut next = || earlier.next().ok_or_else(|| candle_core::Error::msg("the memory is of another decoder"));
        let mut x = self.first.causal(x, Nothing, next()?)?;
        for stage in &self.stages {
            x = stage.up.causal(&x, Elu, next()?)?;
            for block in &stage.blocks {
                let (narrow, wide, beside) = (next()?, next()?, next()?);
                let inner = block.wide.causal(&block.narrow.causal(&x, Elu, narrow)?, Elu, wide)?;
                x = match &block.shortcut {
                    Some(shortcut) => shortcut.causal(&x, Nothing, beside)? + inner,
                    None => &x + inner,
                }?;
            }
        }
        self.last.causal(&x, Elu, next()?)?.flatten_all()?.to_vec1::<f32>()
    }
}
