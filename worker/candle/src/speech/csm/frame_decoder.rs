//! The decoder over the codebooks of a frame: from the stream behind the text and the frames so far to the codes of the
//! next one, codebook by codebook.

use candle_core::{Result as CandleResult, Tensor};

use super::csm_spec::CsmSpec;
use crate::device;
use crate::error::ModelError;
use crate::layers::linear::Linear;
use crate::layers::norm::Norm;
use crate::matrix::Matrix;
use crate::speech::causal::CausalLayers;
use crate::speech::drawing::CodeDraw;
use crate::speech::weights::SpeechWeights;

/// The decoder with its weights.
pub(super) struct FrameDecoder {
    /// From the width of the model to that of these layers.
    narrow: Linear,
    layers: CausalLayers,
    norm: Norm,
    /// Of each codebook behind the first.
    heads: Vec<Linear>,
}

impl FrameDecoder {
    pub(super) fn read(weights: &mut SpeechWeights<'_, '_>, spec: &CsmSpec) -> Result<Self, ModelError> {
        let (width, from) = (spec.depth.width, spec.backbone.width);
        let narrow = weights.product("depth_decoder.model.inputs_embeds_projector", [width, from])?;
        let layers = CausalLayers::read(weights, "depth_decoder.model.layers", &spec.depth)?;
        let norm = weights.norm("depth_decoder.model.norm", width, spec.depth.norm)?;
        let others = spec.tokens.num_codebooks - 1;
        let heads = weights.tensor("depth_decoder.codebooks_head.weight", &[others, width, spec.tokens.codes])?;
        let head = |at: usize| -> CandleResult<Linear> {
            Linear::new(Matrix::Tensor(heads.get(at)?.t()?.contiguous()?), None).in_panels()
        };
        let heads = (0..others).map(head).collect::<CandleResult<Vec<_>>>();
        let heads = heads.map_err(|error| ModelError::Device(device::failure(&error)))?;
        Ok(Self { narrow, layers, norm, heads })
    }

    /// The codes of a frame behind its first one. `stream` is the model's row, `[1, width]`, and `code_row` gives that
    /// of a code.
    pub(super) fn codes(
        &self,
        stream: &Tensor,
        first: u32,
        code_row: impl Fn(usize, u32) -> CandleResult<Tensor>,
        draw: &mut CodeDraw,
    ) -> CandleResult<Vec<u32>> {
        let mut memory = self.layers.memory();
        let mut codes = vec![first];
        let mut rows = Tensor::cat(&[stream, &code_row(0, first)?], 0)?;
        for head in &self.heads {
            let hidden = self.layers.forward(&self.narrow.forward(&rows)?, &mut memory)?;
            let last = hidden.narrow(0, hidden.dim(0)? - 1, 1)?.contiguous()?;
            let code = draw.code(&head.forward(&self.norm.forward(&last)?)?)?;
            let book = codes.len();
            codes.push(code);
            if book < self.heads.len() {
                rows = code_row(book, code)?;
            }
        }
        Ok(codes)
    }
}
