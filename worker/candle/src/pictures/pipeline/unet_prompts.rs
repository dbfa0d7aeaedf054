//! Prompts as conditions of a network: the rows of one encoder, or of two side by side with a vector of the text.

use candle_core::{Result as CandleResult, Tensor};
use model_boss_engine::PaintError;

use crate::pictures::text::{ClipEncoder, ClipLayer, ClipText, ClipTokens};
use crate::pictures::unet::Conditions;

/// The encoders of a pipeline.
pub(super) struct UnetPrompts {
    pub(super) encoders: Vec<(ClipTokens, ClipEncoder)>,
    /// Whether an absent negative prompt is rows of zeros, and not an empty text.
    pub(super) zeros_for_absent: bool,
    /// Whether rows are those in front of the last layer, with a vector of the text beside them.
    pub(super) is_xl: bool,
}

/// The texts of a request.
pub(super) struct PromptTokens {
    /// Of each encoder.
    tokens: Vec<Vec<u32>>,
    layers: Vec<ClipLayer>,
    is_zero: bool,
}

impl UnetPrompts {
    /// The tokens of a prompt, which a request has in this field.
    pub(super) fn prompt(
        &self,
        field: &'static str,
        text: &str,
        clip_skip: Option<usize>,
    ) -> Result<PromptTokens, PaintError> {
        let tokens = self.encoders.iter().map(|(tokens, _)| tokens.of(text)).collect::<Result<_, _>>();
        let tokens = tokens.map_err(|why| PaintError::refused(field, why))?;
        let layer = |encoder: &ClipEncoder| {
            let left = clip_skip.unwrap_or(0) + usize::from(self.is_xl);
            if left > encoder.layers() {
                let why = format!("'clip_skip' leaves out {left} of {} layers", encoder.layers());
                return Err(PaintError::refused("clip_skip", why));
            }
            Ok(if self.is_xl { ClipLayer::Plain(left) } else { ClipLayer::Normed(left) })
        };
        let layers = self.encoders.iter().map(|(_, encoder)| layer(encoder)).collect::<Result<_, _>>()?;
        Ok(PromptTokens { tokens, layers, is_zero: false })
    }

    /// The tokens of a negative prompt. No layer of it is left out.
    pub(super) fn negative(&self, text: Option<&str>) -> Result<PromptTokens, PaintError> {
        let prompt = self.prompt("negative_prompt", text.unwrap_or_default(), None)?;
        Ok(PromptTokens { is_zero: text.is_none() && self.zeros_for_absent, ..prompt })
    }

    /// Rows `[tokens, width]`, and the text's vector `[1, width]`.
    fn read(&self, prompt: &PromptTokens) -> CandleResult<ClipText> {
        let all = self.encoders.iter().zip(&prompt.tokens).zip(&prompt.layers);
        let texts = all.map(|(((_, encoder), tokens), layer)| encoder.read_text(tokens, *layer));
        let mut texts = texts.collect::<CandleResult<Vec<_>>>()?;
        let rows: Vec<&Tensor> = texts.iter().map(|text| &text.rows).collect();
        let rows = if rows.len() == 1 { rows[0].clone() } else { Tensor::cat(&rows, 1)? };
        let Some(last) = texts.pop() else { candle_core::bail!("the pipeline has no text encoder") };
        if prompt.is_zero {
            return Ok(ClipText { rows: rows.zeros_like()?, pooled: last.pooled.zeros_like()? });
        }
        Ok(ClipText { rows, pooled: last.pooled })
    }

    /// The conditions of so many pictures, first those of the negative prompt where there is one.
    pub(super) fn conditions(
        &self,
        prompts: &[PromptTokens],
        pictures: usize,
        [width, height]: [usize; 2],
    ) -> CandleResult<Conditions> {
        let texts = prompts.iter().map(|prompt| self.read(prompt)).collect::<CandleResult<Vec<_>>>()?;
        let rows = Tensor::cat(&texts.iter().map(|text| &text.rows).collect::<Vec<_>>(), 0)?;
        let count = texts[0].rows.dim(0)?;
        let each = |of: usize| std::iter::repeat_n(of, pictures);
        let ranges = (0..texts.len()).flat_map(each).map(|at| at * count..(at + 1) * count).collect();
        let added = if self.is_xl {
            let pooled = (0..texts.len()).flat_map(each).map(|at| &texts[at].pooled).collect::<Vec<_>>();
            let sizes = [height, width, 0, 0, height, width].map(|size| size as f32);
            Some((Tensor::cat(&pooled, 0)?, sizes.repeat(texts.len() * pictures)))
        } else {
            None
        };
        Ok(Conditions { rows, ranges, added })
    }
}
