//! Whole texts as steps of a decoder that keeps nothing of them: as many at once as there are blocks and rows for. A
//! text of more tokens than a step has comes alone, and in pieces.

use crate::BLOCK_TOKENS;
use crate::decoder::{BlockId, DecoderError, DecoderInfo, DecoderStep, Logits};
use crate::encoder::EncoderText;

/// The blocks of some texts, and the tokens of a step.
pub struct TextSteps {
    blocks: Vec<Vec<BlockId>>,
    longest: usize,
    piece: usize,
}

impl TextSteps {
    /// The texts in parts that come at once, in their order.
    ///
    /// # Errors
    ///
    /// When a text is empty or has more than `most_tokens`.
    pub fn batches<'t, 'a>(
        texts: &'t [EncoderText<'a>],
        most_tokens: usize,
        decoder: &DecoderInfo,
    ) -> Result<Vec<&'t [EncoderText<'a>]>, DecoderError> {
        if texts.iter().any(|text| text.tokens.is_empty() || text.tokens.len() > most_tokens) {
            return Err(DecoderError::Step("a text is empty or too long".to_owned()));
        }
        let (mut left, mut batches) = (texts, Vec::new());
        while !left.is_empty() {
            let (now, later) = left.split_at(Self::fitting(left, decoder));
            batches.push(now);
            left = later;
        }
        Ok(batches)
    }

    /// How many of the texts come at once, from the first on; at least one.
    fn fitting(texts: &[EncoderText<'_>], decoder: &DecoderInfo) -> usize {
        let (mut blocks, mut rows) = (decoder.kv_blocks, most_rows(decoder));
        let fits = |text: &&EncoderText<'_>| {
            let (needed, tokens) = (text.tokens.len().div_ceil(BLOCK_TOKENS), text.tokens.len());
            let fits = needed <= blocks && tokens <= rows;
            blocks = blocks.saturating_sub(needed);
            rows = rows.saturating_sub(tokens);
            fits
        };
        texts.iter().take_while(fits).count().max(1).min(texts.len())
    }

    /// The steps of texts that come at once.
    pub fn of(texts: &[EncoderText<'_>], decoder: &DecoderInfo) -> Self {
        Self::in_pieces(texts, most_rows(decoder))
    }

    /// The one step of texts whose tokens see those behind them, however long they are.
    pub fn whole(texts: &[EncoderText<'_>]) -> Self {
        Self::in_pieces(texts, usize::MAX)
    }

    fn in_pieces(texts: &[EncoderText<'_>], most: usize) -> Self {
        let mut first = 0;
        let of_text = |text: &EncoderText<'_>| {
            let last = first + text.tokens.len().div_ceil(BLOCK_TOKENS) as u32;
            let blocks: Vec<BlockId> = (first..last).map(BlockId).collect();
            first = last;
            blocks
        };
        let blocks = texts.iter().map(of_text).collect();
        let longest = texts.iter().map(|text| text.tokens.len()).max().unwrap_or(0);
        Self { blocks, longest, piece: most.min(longest).max(1) }
    }

    /// The steps, one behind the other. The last tokens' logits are asked for.
    pub fn pieces<'a>(&'a self, texts: &'a [EncoderText<'_>]) -> impl Iterator<Item = Vec<DecoderStep<'a>>> {
        (0..self.longest).step_by(self.piece).map(|past| {
            let step = |(text, blocks): (&'a EncoderText<'_>, &'a Vec<BlockId>)| {
                let length = text.tokens.len();
                let end = length.min(past.saturating_add(self.piece));
                let logits = if end == length { Logits::Last } else { Logits::None };
                DecoderStep {
                    blocks,
                    past,
                    length,
                    shared: 0,
                    tokens: &text.tokens[past..end],
                    images: &[],
                    adapter: None,
                    logits,
                }
            };
            texts.iter().zip(&self.blocks).map(step).collect()
        })
    }

    /// The blocks of all texts, to be freed.
    pub fn all_blocks(&self) -> Vec<BlockId> {
        self.blocks.concat()
    }
}

fn most_rows(decoder: &DecoderInfo) -> usize {
    if decoder.step_rows == 0 { usize::MAX } else { decoder.step_rows }
}
