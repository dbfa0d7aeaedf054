//! Codes as the decoder writes them: column by column, in which each codebook is one column behind the codebook before
//! it (Copet et al., 2023, arXiv 2306.05284). A frame is whole once its last codebook has come.

use super::parler_generation::ParlerGeneration;

/// The columns of a part so far.
pub(super) struct DelayedFrames<'a> {
    generation: &'a ParlerGeneration,
    books: usize,
    /// Codes of the codec.
    codes: usize,
    columns: Vec<Vec<u32>>,
    /// Whether a codebook has ended.
    ended: Vec<bool>,
    /// The first codebook that had not ended a column ago. None behind it ends now.
    open: usize,
}

/// A frame that became whole by a column.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WholeFrame {
    /// A frame that is heard.
    Heard(Vec<u32>),
    /// None, or one with a code that the codec does not have, as it is left out in the reference.
    Nothing,
    /// The frame behind the last one: there is no more.
    End,
}

impl<'a> DelayedFrames<'a> {
    /// A part of which nothing has come, in frames of so many codebooks with so many codes.
    pub(super) fn new(generation: &'a ParlerGeneration, books: usize, codes: usize) -> Self {
        let columns = vec![vec![generation.begin; books]];
        Self { generation, books, codes, columns, ended: vec![false; books], open: 0 }
    }

    /// The codes of the last column, as the decoder reads them: marks before a codebook's first code, and behind its
    /// last one in the longest part.
    pub(super) fn read(&self) -> Vec<u32> {
        let at = self.columns.len() - 1;
        let last = self.generation.columns - self.books;
        let code = |(book, code): (usize, &u32)| match at {
            at if at <= book => self.generation.begin,
            at if at > last + book => self.generation.pad,
            _ => *code,
        };
        self.columns[at].iter().enumerate().map(code).collect()
    }

    /// The column behind the last one, of codes that are drawn by their logits. A code of the end is drawn only where
    /// its codebook may end.
    pub(super) fn write<E>(
        &mut self,
        logits: Vec<Vec<f32>>,
        mut draw: impl FnMut(Vec<f32>) -> Result<u32, E>,
    ) -> Result<WholeFrame, E> {
        let ParlerGeneration { end, pad, least, .. } = *self.generation;
        if self.ended[self.open] && self.open + 1 < self.books {
            self.open += 1;
        }
        let early = self.columns.len() < least;
        let mut column = Vec::with_capacity(self.books);
        for (book, mut logits) in logits.into_iter().enumerate() {
            if (early || book > self.open)
                && let Some(logit) = logits.get_mut(end as usize)
            {
                *logit = f32::NEG_INFINITY;
            }
            let code = if self.ended[book] { pad } else { draw(logits)? };
            column.push(code);
            self.ended[book] |= code == end;
        }
        self.columns.push(column);
        let newest = self.columns.len() - 1;
        let Some(first) = newest.checked_sub(self.books) else { return Ok(WholeFrame::Nothing) };
        let frame: Vec<u32> = (0..self.books).map(|book| self.columns[first + 1 + book][book]).collect();
        // The first codebook ends first, and all frames behind that have a mark in its place.
        if frame[0] == end || (frame[0] == pad && self.ended[0]) {
            return Ok(WholeFrame::End);
        }
        let heard = frame.iter().all(|code| (*code as usize) < self.codes);
        Ok(if heard { WholeFrame::Heard(frame) } else { WholeFrame::Nothing })
    }

    /// Whether there is room for one more column.
    pub(super) fn has_room(&self) -> bool {
        self.columns.len() < self.generation.columns
    }
}

#[cfg(test)]
mod tests {
    use model_boss_engine::sampling::SamplingParams;

    use super::*;

    /// Three codebooks with codes below 4; 4 ends, 5 begins, and 6 only is written.
    fn rules(columns: usize, least: usize) -> ParlerGeneration {
        ParlerGeneration { columns, least, rules: SamplingParams::default(), begin: 5, end: 4, pad: 4 }
    }

    /// Writes columns of the codes that are asked for, or of 0 where these may not be drawn.
    fn written(rules: &ParlerGeneration, wishes: &[[usize; 3]]) -> (Vec<WholeFrame>, Vec<Vec<u32>>) {
        let mut frames = DelayedFrames::new(rules, 3, 4);
        let (mut whole, mut read) = (Vec::new(), vec![frames.read()]);
        for wish in wishes {
            let logits = wish.iter().map(|code| (0..7).map(|at| f32::from(at == *code)).collect());
            let best = |logits: Vec<f32>| -> Result<u32, ()> {
                Ok(logits.iter().position(|logit| *logit == 1.0).unwrap_or(0) as u32)
            };
            whole.push(frames.write(logits.collect(), best).unwrap());
            read.push(frames.read());
        }
        (whole, read)
    }

    #[test]
    fn rc_28_codebooks_are_behind_each_other_and_end_one_after_another() {
        let wishes = [[1, 4, 4], [2, 1, 4], [4, 2, 1], [0, 4, 2], [0, 3, 4], [0, 0, 0]];
        let (whole, read) = written(&rules(20, 0), &wishes);
        let heard = |frame: [u32; 3]| WholeFrame::Heard(frame.to_vec());
        use WholeFrame::{End, Nothing};
        assert_eq!(whole, [Nothing, Nothing, heard([1, 1, 1]), heard([2, 2, 2]), End, End]);
        assert_eq!(read[..4], [[5, 5, 5], [1, 5, 5], [2, 1, 5], [4, 2, 1]]);
        assert_eq!(read[4..], [[4, 4, 2], [4, 4, 4], [4, 4, 4]]);
        let (whole, _) = written(&rules(20, 4), &wishes);
        assert_eq!(whole[4], heard([0, 0, 0]), "no codebook ends early");
    }

    #[test]
    fn rc_28_codes_that_only_mark_something_are_not_heard_and_the_longest_part_has_an_end() {
        let (whole, read) = written(&rules(6, 0), &[[1, 0, 0], [6, 1, 0], [3, 3, 1], [2, 3, 3], [2, 2, 3]]);
        let heard = |frame: [u32; 3]| WholeFrame::Heard(frame.to_vec());
        assert_eq!(whole[2..], [heard([1, 1, 1]), WholeFrame::Nothing, heard([3, 3, 3])]);
        assert_eq!(read[3..], [[3, 3, 1], [4, 3, 3], [4, 4, 3]]);
    }
}
