//! Prompts of Stable Diffusion 3: the rows of two CLIPs side by side, and those of a T5 behind them.

use candle_core::{Device, Result as CandleResult, Tensor};
use model_boss_engine::PaintError;

use crate::pictures::text::{ClipEncoder, ClipLayer, ClipTokens, T5Tokens};
use crate::speech::t5::T5Encoder;

/// The encoders of a pipeline.
pub(super) struct Sd3Prompts {
    pub(super) clips: Vec<(ClipTokens, ClipEncoder)>,
    /// None in folders without it, whose rows are zeros then.
    pub(super) t5: Option<(T5Tokens, T5Encoder)>,
    /// Numbers of a row.
    pub(super) width: usize,
    pub(super) device: Device,
}

/// The tokens of a text.
pub(super) struct Sd3Tokens {
    clips: Vec<(Vec<u32>, ClipLayer)>,
    t5: Option<Vec<u32>>,
    length: usize,
}

impl Sd3Prompts {
    /// The tokens of a text, which a request has in this field.
    pub(super) fn tokens(
        &self,
        (field, text): (&'static str, &str),
        clip_skip: Option<usize>,
        length: usize,
    ) -> Result<Sd3Tokens, PaintError> {
        let refused = |why: String| PaintError::refused(field, why);
        let mut clips = Vec::with_capacity(self.clips.len());
        for (tokens, encoder) in &self.clips {
            let left = clip_skip.unwrap_or(0) + 1;
            if left > encoder.layers() {
                let why = format!("'clip_skip' leaves out {left} of {} layers", encoder.layers());
                return Err(PaintError::refused("clip_skip", why));
            }
            clips.push((tokens.of(text).map_err(refused)?, ClipLayer::Plain(left)));
        }
        let t5 = self.t5.as_ref().map(|(tokens, _)| tokens.of(text, length)).transpose().map_err(refused)?;
        Ok(Sd3Tokens { clips, t5, length })
    }

    /// The rows of a text, and its vector.
    pub(super) fn read(&self, tokens: &Sd3Tokens) -> CandleResult<(Tensor, Tensor)> {
        let read = self.clips.iter().zip(&tokens.clips);
        let texts = read.map(|((_, encoder), (tokens, layer))| encoder.read_text(tokens, *layer));
        let texts = texts.collect::<CandleResult<Vec<_>>>()?;
        let rows = Tensor::cat(&texts.iter().map(|text| &text.rows).collect::<Vec<_>>(), 1)?;
        let rows = rows.pad_with_zeros(1, 0, self.width - rows.dim(1)?)?;
        let pooled = Tensor::cat(&texts.iter().map(|text| &text.pooled).collect::<Vec<_>>(), 1)?;
        let behind = match (&self.t5, &tokens.t5) {
            (Some((_, encoder)), Some(tokens)) => encoder.states(tokens)?,
            _ => Tensor::zeros((tokens.length, self.width), rows.dtype(), &self.device)?,
        };
        Ok((Tensor::cat(&[rows, behind], 0)?, pooled))
    }
}
