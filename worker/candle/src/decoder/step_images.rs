//! The images of a step: rows in place of embeddings, and rows that are added to the stream behind the first layers
//! (DeepStack: Meng et al., 2024, arXiv 2406.04334). Knows rows, no towers.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use model_boss_engine::{DecoderError, DecoderStep, SeenRows};

/// The images that a step has tokens of.
pub(crate) struct StepImages<'a> {
    parts: Vec<ImagePart<'a>>,
    /// Rows of the step.
    rows: usize,
    hidden: usize,
}

/// Some places of an image.
struct ImagePart<'a> {
    /// The step's row of the first of them.
    row: usize,
    places: Range<usize>,
    rows: &'a SeenRows,
}

impl<'a> StepImages<'a> {
    /// The images of a batch, for a stream of this width.
    pub(crate) fn of(batch: &[DecoderStep<'a>], hidden: usize) -> std::result::Result<Self, DecoderError> {
        let (mut parts, mut first) = (Vec::new(), 0);
        for step in batch {
            let end = step.past + step.tokens.len();
            for image in step.images {
                let (start, stop) = (image.range.start.max(step.past), image.range.end.min(end));
                if start >= stop {
                    continue;
                }
                let wrong = |what: &str| DecoderError::Step(format!("an image {what}"));
                let rows = image.rows.as_deref().ok_or_else(|| wrong("has no rows"))?;
                let numbers = image.range.len() * hidden;
                if rows.embedded.len() != numbers || rows.behind_layers.iter().any(|rows| rows.len() != numbers) {
                    return Err(wrong("has rows of another width or number"));
                }
                let places = start - image.range.start..stop - image.range.start;
                parts.push(ImagePart { row: first + start - step.past, places, rows });
            }
            first += step.tokens.len();
        }
        parts.sort_by_key(|part| part.row);
        Ok(Self { parts, rows: first, hidden })
    }

    /// Embeddings `[rows, hidden]` with those of images in their places, times a factor.
    pub(crate) fn embed(&self, x: Tensor, factor: f64) -> Result<Tensor> {
        if self.parts.is_empty() {
            return Ok(x);
        }
        let (mut pieces, mut next) = (Vec::with_capacity(2 * self.parts.len() + 1), 0);
        for part in &self.parts {
            if part.row > next {
                pieces.push(x.narrow(0, next, part.row - next)?);
            }
            let rows = part.tensor(&part.rows.embedded, self.hidden, x.device())?;
            let rows = if factor == 1.0 { rows } else { (rows * factor)? };
            pieces.push(rows.to_dtype(x.dtype())?);
            next = part.row + part.places.len();
        }
        if next < self.rows {
            pieces.push(x.narrow(0, next, self.rows - next)?);
        }
        Tensor::cat(&pieces, 0)
    }

    /// The stream behind a layer, with what images add to it there.
    pub(crate) fn behind(&self, layer: usize, x: Tensor) -> Result<Tensor> {
        let mut added = Vec::new();
        for part in &self.parts {
            let Some(rows) = part.rows.behind_layers.get(layer) else { continue };
            if added.is_empty() {
                added = vec![0.0; self.rows * self.hidden];
            }
            let from = &rows[part.places.start * self.hidden..part.places.end * self.hidden];
            added[part.row * self.hidden..][..from.len()].copy_from_slice(from);
        }
        if added.is_empty() {
            return Ok(x);
        }
        let added = Tensor::from_vec(added, (self.rows, self.hidden), x.device())?.to_dtype(x.dtype())?;
        x + added
    }
}

impl ImagePart<'_> {
    fn tensor(&self, rows: &[f32], hidden: usize, device: &Device) -> Result<Tensor> {
        let part = &rows[self.places.start * hidden..self.places.end * hidden];
        Tensor::from_slice(part, (self.places.len(), hidden), device)
    }
}
