//! SentencePiece vocabularies with scores. Neighbouring pieces are merged, best score first; pieces that are no token
//! in the end are spelled in bytes.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use aho_corasick::{AhoCorasick, MatchKind};
use model_boss_weights::gguf::Header;

use super::error::VocabularyError;
use super::pieces::{TokenKind, VocabularyPieces};
use super::special::Special;

/// SentencePiece's spelling of a space.
const SPACE: &str = "\u{2581}";

/// A vocabulary whose pieces are merged by score.
#[derive(Debug)]
pub struct SentencePieces {
    ids: HashMap<String, u32>,
    tokens: Vec<PieceToken>,
    /// The token of each byte.
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    /// Finds the tokens that are cut out of a text first; its patterns are `cut`, in order.
    finder: AhoCorasick,
    cut: Vec<CutToken>,
    /// A space is put in front of a text, and behind every token that was cut out of it.
    space_in_front: bool,
}

#[derive(Debug)]
struct PieceToken {
    spelling: String,
    kind: TokenKind,
    score: f32,
}

#[derive(Debug)]
struct CutToken {
    id: u32,
    strips_right: bool,
}

impl SentencePieces {
    pub(super) fn build(
        header: &Header<'_>,
        pieces: &VocabularyPieces<'_>,
        special: &Special,
    ) -> Result<Self, VocabularyError> {
        if pieces.scores.is_empty() {
            return Err(VocabularyError::NoScores);
        }
        let mut ids = HashMap::with_capacity(pieces.len());
        let mut tokens = Vec::with_capacity(pieces.len());
        let mut bytes = vec![None; 256];
        for ((id, spelling, kind), score) in pieces.iter().zip(&pieces.scores) {
            if let Some(first) = ids.insert(spelling.to_owned(), id) {
                return Err(pieces.duplicate(first, id));
            }
            if let Some(entry) = byte_of(spelling).and_then(|byte| bytes.get_mut(usize::from(byte))) {
                *entry = Some(id);
            }
            let kind =
                if special.control.contains(&id) && kind != TokenKind::Unknown { TokenKind::Control } else { kind };
            tokens.push(PieceToken { spelling: spelling.to_owned(), kind, score: *score });
        }
        let cut_ids = || special.control.iter().chain(&special.user_defined);
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(cut_ids().map(|id| pieces.spelling(*id).unwrap_or_default()))
            .map_err(|error| VocabularyError::Build(error.into()))?;
        let cut = cut_ids().map(|id| CutToken { id: *id, strips_right: special.strips_right.contains(id) }).collect();
        let space_in_front = header.find("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        Ok(Self { ids, tokens, bytes, unknown: special.unknown, finder, cut, space_in_front })
    }

    /// The tokens of a text. Special tokens in it are found; none is added.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut output = Vec::new();
        let mut rest = text;
        let mut behind_special = true;
        while let Some((before, id, behind)) = self.cut_first(rest) {
            self.encode_plain(before, behind_special, &mut output);
            output.push(id);
            (rest, behind_special) = (behind, true);
        }
        self.encode_plain(rest, behind_special, &mut output);
        output
    }

    /// The first special token of a text, with what lies before it and behind it.
    fn cut_first<'t>(&self, text: &'t str) -> Option<(&'t str, u32, &'t str)> {
        let found = self.finder.find(text)?;
        let cut = self.cut.get(found.pattern().as_usize())?;
        let behind = text.get(found.end()..)?;
        // White space as C has it.
        let space = |c: char| matches!(c, ' ' | '\t'..='\r');
        let behind = if cut.strips_right { behind.trim_start_matches(space) } else { behind };
        Some((text.get(..found.start())?, cut.id, behind))
    }

    fn encode_plain(&self, text: &str, behind_special: bool, output: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let mut escaped = String::with_capacity(text.len() + text.len() / 2 + SPACE.len());
        if self.space_in_front && behind_special {
            escaped.push_str(SPACE);
        }
        for (number, word) in text.split(' ').enumerate() {
            if number > 0 {
                escaped.push_str(SPACE);
            }
            escaped.push_str(word);
        }
        for piece in Merge::new(self, &escaped).run() {
            match self.ids.get(piece) {
                Some(id) => output.push(*id),
                None => {
                    let byte = |byte: u8| self.bytes.get(usize::from(byte)).copied().flatten().or(self.unknown);
                    output.extend(piece.bytes().filter_map(byte));
                }
            }
        }
    }

    /// The text of several tokens, without the space in front of every text.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        let shown = tokens.iter().filter(|id| !(skip_special && self.is_special(**id)));
        let bytes: Vec<u8> = shown.flat_map(|id| self.token_bytes(*id)).collect();
        let text = String::from_utf8_lossy(&bytes);
        match text.strip_prefix(' ') {
            Some(rest) if self.space_in_front => rest.to_owned(),
            _ => text.into_owned(),
        }
    }

    /// The bytes of a token by itself, special tokens spelled out; none for an unknown id.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        match self.tokens.get(id as usize) {
            None => Vec::new(),
            Some(PieceToken { spelling, kind: TokenKind::Byte, .. }) => {
                byte_of(spelling).map_or_else(|| spelling.clone().into_bytes(), |byte| vec![byte])
            }
            Some(PieceToken { spelling, kind: TokenKind::Normal | TokenKind::Unused, .. }) => {
                spelling.replace(SPACE, " ").into_bytes()
            }
            Some(PieceToken { spelling, .. }) => spelling.clone().into_bytes(),
        }
    }

    /// Whether the tokens of a text begin with a space that is not part of it.
    pub fn space_in_front(&self) -> bool {
        self.space_in_front
    }

    /// A token's spelling.
    pub fn spelling(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(|token| token.spelling.as_str())
    }

    /// The token of a spelling.
    pub fn id(&self, spelling: &str) -> Option<u32> {
        self.ids.get(spelling).copied()
    }

    /// Whether readers of an answer do not see a token.
    pub fn is_special(&self, id: u32) -> bool {
        self.tokens.get(id as usize).is_some_and(|token| matches!(token.kind, TokenKind::Control | TokenKind::Unknown))
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// `<0x0A>` is the byte 10.
fn byte_of(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// One text on its way from characters to tokens.
struct Merge<'v, 't> {
    vocabulary: &'v SentencePieces,
    text: &'t str,
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
    fn new(vocabulary: &'v SentencePieces, text: &'t str) -> Self {
        let count = text.chars().count();
        let pieces = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, character))| TextSpan {
                start,
                len: character.len_utf8(),
                previous: index.checked_sub(1),
                next: Some(index + 1).filter(|next| *next < count),
            })
            .collect();
        let mut merge = Self { vocabulary, text, pieces, candidates: BinaryHeap::new() };
        for right in 1..count {
            merge.consider(Some(right - 1), Some(right));
        }
        merge
    }

    fn run(mut self) -> impl Iterator<Item = &'t str> {
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
            let id = self.vocabulary.ids.get(self.text.get(first.start..first.start + len)?)?;
            let score = self.vocabulary.tokens.get(*id as usize)?.score;
            Some(MergeCandidate { score, left, right, len })
        });
        self.candidates.extend(both);
    }
}
