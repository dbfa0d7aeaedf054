//! The part of a step that each sequence has, and the positions of its rows. Knows numbers only.

use std::ops::Range;

use model_boss_engine::DecoderStep;

use crate::layers::rope::Position;

/// The part of a step that a sequence has.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpanLength {
    /// Tokens that it holds.
    pub(crate) past: usize,
    /// Tokens that it brings.
    pub(crate) new: usize,
    /// Its length, which scalings of ropes go by.
    pub(crate) length: usize,
    /// Its images up to the last of these tokens.
    pub(crate) images: Vec<SpanImage>,
}

/// The places of an image in a sequence.
#[derive(Clone, Debug)]
pub(crate) struct SpanImage {
    pub(crate) range: Range<usize>,
    /// Rows and columns of the places.
    pub(crate) grid: [usize; 2],
}

impl SpanLength {
    /// The part of a step.
    pub(crate) fn of(step: &DecoderStep<'_>) -> Self {
        let end = step.past + step.tokens.len();
        let before = step.images.iter().filter(|image| image.range.start < end);
        Self {
            past: step.past,
            new: step.tokens.len(),
            length: step.length.max(end),
            images: before.map(|image| SpanImage { range: image.range.clone(), grid: image.grid }).collect(),
        }
    }

    /// The places of images that the step has a token of.
    pub(crate) fn images_in(&self) -> impl Iterator<Item = &Range<usize>> {
        self.images.iter().map(|image| &image.range).filter(|range| range.end > self.past)
    }

    /// The positions of its rows, one for each token.
    fn plain(&self) -> impl Iterator<Item = Position> {
        let length = self.length;
        (self.past..self.past + self.new).map(move |at| Position { at: [at; 3], length })
    }

    /// The positions of a model whose images have rows and columns, as Qwen2-VL's (Wang et al., 2024, arXiv
    /// 2409.12191): all places of an image have one time, and what follows goes on behind its longer side.
    fn in_grids(&self) -> Vec<Position> {
        let mut positions: Vec<Position> = self.plain().collect();
        let mut saved = 0;
        for SpanImage { range, grid: [rows, columns] } in &self.images {
            let first = range.start - saved;
            for token in range.clone().filter(|token| *token >= self.past) {
                let place = token - range.start;
                let (row, column) = (place / (*columns).max(1), place % (*columns).max(1));
                if let Some(position) = positions.get_mut(token - self.past) {
                    position.at = [first, first + row, first + column];
                }
            }
            saved += range.len().saturating_sub(*rows.max(columns));
            let behind = range.end.saturating_sub(self.past);
            positions.iter_mut().skip(behind).enumerate().for_each(|(number, position)| {
                position.at = [self.past.max(range.end) + number - saved; 3];
            });
        }
        positions
    }
}

/// The positions of a step's rows.
pub(crate) fn positions(lengths: &[SpanLength], in_grids: bool) -> Vec<Position> {
    let of_span = |span: &SpanLength| match in_grids && !span.images.is_empty() {
        true => span.in_grids(),
        false => span.plain().collect(),
    };
    lengths.iter().flat_map(of_span).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn em_4_positions_behind_an_image_go_on_behind_its_longer_side() {
        // Two tokens, an image of two rows and three columns, one token, an image of three rows and one column, two.
        let image = |start: usize, grid: [usize; 2]| SpanImage { range: start..start + grid[0] * grid[1], grid };
        let images = vec![image(2, [2, 3]), image(9, [3, 1])];
        let expected = [
            [0; 3],
            [1; 3],
            [2, 2, 2],
            [2, 2, 3],
            [2, 2, 4],
            [2, 3, 2],
            [2, 3, 3],
            [2, 3, 4],
            [5; 3],
            [6, 6, 6],
            [6, 7, 6],
            [6, 8, 6],
            [9; 3],
            [10; 3],
        ];
        let at = |past: usize, new: usize| {
            let span = SpanLength { past, new, length: 14, images: images.clone() };
            positions(&[span], true).iter().map(|position| position.at).collect::<Vec<_>>()
        };
        assert_eq!(at(0, 14), expected);
        for cut in 1..14 {
            assert_eq!([at(0, cut), at(cut, 14 - cut)].concat(), expected, "cut behind {cut}");
        }
        assert_eq!(at(13, 1), [[10; 3]], "a token of the answer");
    }
}
