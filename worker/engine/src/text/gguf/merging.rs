//! Merging neighbours until none are a token together, the best score first. Pieces that are no token in the end are
//! spelled in bytes.
//!
//! SentencePiece's models start from characters and score by a file's numbers. Byte-pair models that list tokens by
//! rank (`tiktoken`, `tekken`) start from bytes, and the lowest rank is the best score.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

/// The units that a text is first cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MergeUnits {
    Characters,
    Bytes,
}

/// The tokens that neighbours merge into, each with its score.
#[derive(Debug)]
pub(super) struct MergeTable {
    tokens: HashMap<Vec<u8>, ScoredToken>,
    /// The token of each byte.
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    units: MergeUnits,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ScoredToken {
    pub(super) id: u32,
    pub(super) score: f32,
}

impl MergeTable {
    /// A table of these tokens. `bytes` are the tokens for bytes of a text that nothing else spells.
    pub(super) fn new(
        tokens: HashMap<Vec<u8>, ScoredToken>,
        bytes: Vec<Option<u32>>,
        unknown: Option<u32>,
        units: MergeUnits,
    ) -> Self {
        Self { tokens, bytes, unknown, units }
    }

    /// The token of exactly this text.
    pub(super) fn whole(&self, text: &str) -> Option<u32> {
        self.tokens.get(text.as_bytes()).map(|token| token.id)
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(&self, text: &str, output: &mut Vec<u32>) {
        let has_bytes = self.bytes.iter().any(Option::is_some);
        let mut behind_unknown = false;
        for piece in Merge::new(self, text).run() {
            let token = self.tokens.get(piece);
            match token {
                Some(token) => output.push(token.id),
                None if has_bytes => {
                    let byte = |byte: &u8| self.bytes.get(usize::from(*byte)).copied().flatten().or(self.unknown);
                    output.extend(piece.iter().filter_map(byte));
                }
                // Unknown characters in a row are one token.
                None => output.extend(self.unknown.filter(|_| !behind_unknown)),
            }
            behind_unknown = token.is_none();
        }
    }
}

/// One text on its way from its units to tokens.
struct Merge<'v, 't> {
    table: &'v MergeTable,
    text: &'t [u8],
    pieces: Vec<TextSpan>,
    candidates: BinaryHeap<MergeCandidate>,
}

/// A stretch of the text. Merged into its left neighbour it becomes empty.
struct TextSpan {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that would be a token together.
struct MergeCandidate {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both; no longer true when either has changed.
    len: usize,
}

impl Ord for MergeCandidate {
    /// The best score first, then the leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for MergeCandidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MergeCandidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for MergeCandidate {}

impl<'v, 't> Merge<'v, 't> {
    fn new(table: &'v MergeTable, text: &'t str) -> Self {
        let span = |(index, (start, len))| TextSpan {
            start,
            len,
            previous: usize::checked_sub(index, 1),
            next: Some(index + 1).filter(|_| start + len < text.len()),
        };
        let pieces: Vec<TextSpan> = match table.units {
            MergeUnits::Characters => {
                text.char_indices().map(|(at, c)| (at, c.len_utf8())).enumerate().map(span).collect()
            }
            MergeUnits::Bytes => (0..text.len()).map(|at| (at, 1)).enumerate().map(span).collect(),
        };
        let count = pieces.len();
        let mut merge = Self { table, text: text.as_bytes(), pieces, candidates: BinaryHeap::new() };
        for right in 1..count {
            merge.consider(Some(right - 1), Some(right));
        }
        merge
    }

    fn run(mut self) -> impl Iterator<Item = &'t [u8]> {
        while let Some(MergeCandidate { left, right, len, .. }) = self.candidates.pop() {
            let [first, second] = [left, right].map(|index| self.pieces.get(index).map_or(0, |piece| piece.len));
            if first == 0 || second == 0 || first + second != len {
                continue;
            }
            let next = self.pieces.get_mut(right).and_then(|piece| {
                piece.len = 0;
                piece.next
            });
            let previous = self.pieces.get_mut(left).and_then(|piece| {
                piece.len = len;
                piece.next = next;
                piece.previous
            });
            if let Some(piece) = next.and_then(|next| self.pieces.get_mut(next)) {
                piece.previous = Some(left);
            }
            self.consider(previous, Some(left));
            self.consider(Some(left), next);
        }
        let Self { text, pieces, .. } = self;
        pieces
            .into_iter()
            .filter(|piece| piece.len > 0)
            .filter_map(|piece| text.get(piece.start..piece.start + piece.len))
    }

    /// Makes a candidate of two neighbours if they are a token together.
    fn consider(&mut self, left: Option<usize>, right: Option<usize>) {
        let both = left.zip(right).and_then(|(left, right)| {
            let (first, second) = (self.pieces.get(left)?, self.pieces.get(right)?);
            let len = first.len + second.len;
            let score = self.table.tokens.get(self.text.get(first.start..first.start + len)?)?.score;
            Some(MergeCandidate { score, left, right, len })
        });
        self.candidates.extend(both);
    }
}
