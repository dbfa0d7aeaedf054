//! Unigram vocabularies: of all ways to spell a text with tokens, the likeliest one. Texts are normalised first, as
//! SentencePiece does it.

use aho_corasick::{AhoCorasick, MatchKind};

use super::charsmap::Charsmap;
use super::error::VocabularyError;

/// A character without a token costs this much more than the least likely token (SentencePiece's constant).
const UNKNOWN_PENALTY: f32 = 10.0;

/// The changes to a text before it is spelled.
#[derive(Debug)]
pub(super) struct Normalisation {
    /// A space is put in front of a text.
    pub(super) space_in_front: bool,
    /// Spaces around a text are removed, and between words one is left.
    pub(super) single_spaces: bool,
    pub(super) charsmap: Option<Charsmap>,
}

impl Normalisation {
    /// A text with `▁` for its spaces.
    pub(super) fn apply(&self, text: &str) -> String {
        let replaced = self.charsmap.as_ref().map(|charsmap| replace(charsmap, text));
        let text = replaced.as_deref().unwrap_or(text);
        let mut output = String::with_capacity(text.len() + text.len() / 4);
        if self.space_in_front && !self.single_spaces && !text.is_empty() {
            output.push('\u{2581}');
        }
        let mut in_word = false;
        for character in text.chars() {
            if character == ' ' {
                in_word = false;
                if !self.single_spaces {
                    output.push('\u{2581}');
                }
                continue;
            }
            if !in_word && self.single_spaces && (self.space_in_front || !output.is_empty()) {
                output.push('\u{2581}');
            }
            in_word = true;
            output.push(character);
        }
        output
    }
}

fn replace(charsmap: &Charsmap, text: &str) -> String {
    let mut output = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let whole = charsmap.longest(rest.as_bytes()).and_then(|(length, by)| Some((rest.get(length..)?, by)));
        match whole {
            Some((behind, by)) => {
                output.extend_from_slice(by);
                rest = behind;
            }
            None => {
                let (this, behind) = rest.split_at(character.len_utf8());
                output.extend_from_slice(this.as_bytes());
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&output).into_owned()
}

/// Tokens with the logarithms of their probabilities.
#[derive(Debug)]
pub(super) struct UnigramTable {
    /// Finds every token everywhere in a text; its patterns are `tokens`, in order.
    finder: AhoCorasick,
    tokens: Vec<(u32, f64)>,
    unknown: Option<u32>,
    unknown_score: f64,
    /// The token of each byte, in vocabularies that spell unknown characters so.
    bytes: Vec<u32>,
    normalisation: Normalisation,
}

/// The best spelling of a text up to some byte.
#[derive(Clone, Copy)]
struct BestSpelling {
    score: f64,
    /// The last token, or none for an unknown character.
    token: Option<u32>,
    /// The byte that the last token begins at.
    start: usize,
}

impl UnigramTable {
    /// A table of tokens: spelling, id and score. The score of the least likely one is `least`.
    pub(super) fn new(
        tokens: &[(&str, u32, f64)],
        least: f32,
        unknown: Option<u32>,
        normalisation: Normalisation,
    ) -> Result<Self, VocabularyError> {
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            .build(tokens.iter().map(|(spelling, _, _)| spelling))
            .map_err(|error| VocabularyError::Build(error.into()))?;
        let tokens = tokens.iter().map(|(_, id, score)| (*id, *score)).collect();
        Ok(Self {
            finder,
            tokens,
            unknown,
            unknown_score: f64::from(least - UNKNOWN_PENALTY),
            bytes: Vec::new(),
            normalisation,
        })
    }

    /// Spells characters without a token in bytes, by the token of each byte. Nothing changes if one has none.
    #[must_use]
    pub(super) fn with_bytes(self, bytes: Vec<Option<u32>>) -> Self {
        Self { bytes: bytes.into_iter().collect::<Option<Vec<u32>>>().unwrap_or_default(), ..self }
    }

    /// Appends the tokens of a text. Characters without a token in a row are one unknown token, or bytes.
    pub(super) fn encode(&self, text: &str, output: &mut Vec<u32>) {
        let text = self.normalisation.apply(text);
        let mut best: Vec<Option<BestSpelling>> = vec![None; text.len() + 1];
        if let Some(first) = best.first_mut() {
            *first = Some(BestSpelling { score: 0.0, token: None, start: 0 });
        }
        // Matches come ordered by their ends, and of those with one end the longest comes first. Of equally likely
        // spellings the first one found stays.
        let mut matches = self.finder.find_overlapping_iter(&text).peekable();
        for (start, character) in text.char_indices() {
            let end = start + character.len_utf8();
            let mut has_token = false;
            while let Some(found) = matches.next_if(|found| found.end() <= end) {
                has_token |= found.start() == start;
                if let Some((id, score)) = self.tokens.get(found.pattern().as_usize()) {
                    offer(&mut best, found.start(), end, Some(*id), *score);
                }
            }
            if !has_token {
                offer(&mut best, start, end, None, self.unknown_score);
            }
        }
        let first_new = output.len();
        let mut end = text.len();
        let mut behind_unknown = false;
        while let Some(BestSpelling { token, start, .. }) = best.get(end).copied().flatten().filter(|_| end > 0) {
            let is_unknown = token.is_none() || token == self.unknown;
            if is_unknown && !self.bytes.is_empty() {
                let spelled = text.as_bytes().get(start..end).unwrap_or_default().iter().rev();
                output.extend(spelled.filter_map(|byte| self.bytes.get(usize::from(*byte))));
            } else if !(is_unknown && behind_unknown) {
                output.extend(token.or(self.unknown));
            }
            (behind_unknown, end) = (is_unknown, start);
        }
        if let Some(new) = output.get_mut(first_new..) {
            new.reverse();
        }
    }
}

/// Keeps the likelier of the best spelling up to `end` and the one with this token as its last.
fn offer(best: &mut [Option<BestSpelling>], start: usize, end: usize, token: Option<u32>, score: f64) {
    let Some(before) = best.get(start).copied().flatten() else { return };
    let score = before.score + score;
    if let Some(champion) = best.get_mut(end)
        && champion.is_none_or(|champion| score > champion.score)
    {
        *champion = Some(BestSpelling { score, token, start });
    }
}
