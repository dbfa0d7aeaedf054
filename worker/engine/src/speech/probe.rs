//! Single steps of the way from sound to text, for tests that compare them with references.

use super::alignment::{aligned, asked};
use super::model::{HeardWindow, SpeechInfo, SpeechModel};
use super::text::{TranscriptWish, WindowText, start_tokens};
use crate::decoder::DecoderError;

/// The text of one window, token by token.
pub struct WindowProbe(WindowText, bool);

impl WindowProbe {
    /// A text of which no token has come.
    pub fn new(info: &SpeechInfo, wish: &TranscriptWish) -> Self {
        Self(WindowText::new(info, wish, wish.language, &wish.prompt), wish.times)
    }

    /// The tokens in front of it.
    pub fn before(&self) -> &[u32] {
        &self.0.before
    }

    /// The next token of these logits; none when the text has ended.
    pub fn push(&mut self, info: &SpeechInfo, logits: Vec<f32>) -> Option<u32> {
        self.0.push(info, self.1, logits)
    }

    /// The tokens, and the mean logarithm of their probabilities.
    pub fn end(self) -> (Vec<u32>, f32) {
        let mean = self.0.mean_logprob();
        (self.0.tokens, mean)
    }
}

/// The first column of the sound that belongs to each token, and the last column.
pub fn word_columns(
    model: &dyn SpeechModel,
    window: &HeardWindow,
    wish: &TranscriptWish,
    tokens: &[u32],
) -> Result<Vec<usize>, DecoderError> {
    let info = model.info();
    let read = asked(info, &start_tokens(info, wish, wish.language), tokens);
    let (attention, _) = model.attended(window, &read.all, &|| {})?;
    Ok(aligned(&attention, [read.all.len(), info.frames / 2], read.rows(), info.frames / 2, info.smoothed))
}
