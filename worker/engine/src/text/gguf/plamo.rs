//! PLaMo 2's vocabularies: of all ways to spell a text with tokens, the one with the best sum of scores, found from the
//! end of the text. Characters without a token are spelled in bytes.

use aho_corasick::{AhoCorasick, MatchKind};

use super::error::VocabularyError;

/// Scores are counted in these parts, as whole numbers.
const PARTS: f64 = 1e4;

/// The score of a character that is spelled in bytes, in parts.
const UNKNOWN_SCORE: i64 = -10_000_000;

/// Tokens with a score of this or less are never used, in parts.
const UNUSABLE_SCORE: i64 = -20_000_000;

/// Tokens with their scores.
#[derive(Debug)]
pub(super) struct PlamoTable {
    /// Finds every token everywhere in a text; its patterns are `tokens`, in order.
    finder: AhoCorasick,
    tokens: Vec<(u32, i64)>,
    /// The token of each byte.
    bytes: Vec<Option<u32>>,
}

/// The best spelling of a text from some byte on.
#[derive(Clone, Copy)]
struct BestRest {
    score: i64,
    /// The first token, or none for a character in bytes.
    token: Option<u32>,
    /// The byte behind it.
    end: usize,
}

impl PlamoTable {
    pub(super) fn new(tokens: &[(&str, u32, f32)], bytes: Vec<Option<u32>>) -> Result<Self, VocabularyError> {
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(tokens.iter().map(|(spelling, _, _)| spelling))
            .map_err(|error| VocabularyError::Build(error.into()))?;
        #[allow(clippy::cast_possible_truncation)]
        let parts = |score: f32| (f64::from(score) * PARTS).round() as i64;
        let tokens = tokens.iter().map(|(_, id, score)| (*id, parts(*score))).collect();
        Ok(Self { finder, tokens, bytes })
    }

    /// Appends the tokens of a text. A byte order mark in front of it is dropped.
    pub(super) fn encode(&self, text: &str, output: &mut Vec<u32>) {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut found: Vec<(usize, usize, usize)> =
            self.finder.find_overlapping_iter(text).map(|m| (m.start(), m.end(), m.pattern().as_usize())).collect();
        // The last ones are taken first; of one start, the longest.
        found.sort_unstable();
        let mut best: Vec<Option<BestRest>> = vec![None; text.len() + 1];
        if let Some(last) = best.last_mut() {
            *last = Some(BestRest { score: 0, token: None, end: text.len() });
        }
        for (start, character) in text.char_indices().rev() {
            while let Some((_, end, pattern)) = found.pop_if(|(at, _, _)| *at >= start) {
                if let Some((id, score)) = self.tokens.get(pattern).filter(|(_, score)| *score > UNUSABLE_SCORE) {
                    offer(&mut best, start, end, Some(*id), *score);
                }
            }
            offer(&mut best, start, start + character.len_utf8(), None, UNKNOWN_SCORE);
        }
        let mut at = 0;
        while let Some(BestRest { token, end, .. }) = best.get(at).copied().flatten().filter(|_| at < text.len()) {
            match token {
                Some(token) => output.push(token),
                None => {
                    let byte = |byte: &u8| self.bytes.get(usize::from(*byte)).copied().flatten();
                    output.extend(text.as_bytes().get(at..end).unwrap_or_default().iter().filter_map(byte));
                }
            }
            at = end;
        }
    }
}

/// Keeps the better of the best spelling from `start` on and the one with this token as its first.
fn offer(best: &mut [Option<BestRest>], start: usize, end: usize, token: Option<u32>, score: i64) {
    let Some(behind) = best.get(end).copied().flatten() else { return };
    let score = behind.score.saturating_add(score);
    if let Some(champion) = best.get_mut(start)
        && champion.is_none_or(|champion| score > champion.score)
    {
        *champion = Some(BestRest { score, token, end });
    }
}
