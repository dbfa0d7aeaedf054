//! Vocabularies that the `tokenizers` library cannot express: special tokens are cut out of a text, and the rest is
//! spelled with tokens in one of several ways.

use aho_corasick::{AhoCorasick, MatchKind};

use super::cutter::Cutter;
use super::error::VocabularyError;
use super::longest_match::LongestMatchTable;
use super::merging::MergeTable;
use super::plamo::PlamoTable;
use super::special::Special;
use super::unigram::{Normalisation, UnigramTable};

/// SentencePiece's spelling of a space.
const SPACE: &str = "\u{2581}";

/// A vocabulary with a way of its own to spell a text.
#[derive(Debug)]
pub struct PieceVocabulary {
    tokens: Vec<PieceToken>,
    /// Finds the tokens that are cut out of a text first; its patterns are `cut`, in order.
    finder: AhoCorasick,
    cut: Vec<CutToken>,
    way: SpellingWay,
    /// The tokens of a text begin with a space that is not part of it.
    space_in_front: bool,
}

/// A token as people see it.
#[derive(Debug)]
pub(super) struct PieceToken {
    pub(super) spelling: String,
    /// The bytes it stands for in a text, where they are not those of its spelling.
    pub(super) bytes: Option<Vec<u8>>,
    /// Readers of an answer do not see it.
    pub(super) hidden: bool,
}

#[derive(Debug)]
struct CutToken {
    id: u32,
    strips_left: bool,
    strips_right: bool,
}

/// The way in which a text between special tokens is spelled.
#[derive(Debug)]
pub(super) enum SpellingWay {
    /// SentencePiece by score, after `▁` took the place of spaces.
    Merged {
        table: MergeTable,
        /// A space is put in front of a text, and behind every token that was cut out of it.
        space_in_front: bool,
    },
    /// SentencePiece by score, after its normaliser.
    Normalised { table: MergeTable, normalisation: Normalisation },
    /// Bytes of words, merged by rank. A word that is a token as a whole is taken whole.
    Ranked { cutter: Cutter, table: MergeTable },
    /// The likeliest spelling.
    Likeliest(UnigramTable),
    /// The longest token at each place.
    Longest(LongestMatchTable),
    /// PLaMo's.
    Plamo(PlamoTable),
}

impl PieceVocabulary {
    pub(super) fn new(
        tokens: Vec<PieceToken>,
        special: &Special,
        way: SpellingWay,
        space_in_front: bool,
    ) -> Result<Self, VocabularyError> {
        let spelling = |id: &u32| tokens.get(*id as usize).map_or("", |token| token.spelling.as_str());
        let cut_ids = || special.control.iter().chain(&special.user_defined).filter(|id| !spelling(id).is_empty());
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(cut_ids().map(spelling))
            .map_err(|error| VocabularyError::Build(error.into()))?;
        let cut = cut_ids()
            .map(|id| CutToken {
                id: *id,
                strips_left: special.strips_left.contains(id),
                strips_right: special.strips_right.contains(id),
            })
            .collect();
        Ok(Self { tokens, finder, cut, way, space_in_front })
    }

    /// The tokens of a text. Special tokens in it are found; none is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, VocabularyError> {
        let mut output = Vec::new();
        let mut rest = text;
        let mut behind_special = true;
        while let Some((before, id, behind)) = self.cut_first(rest) {
            self.encode_plain(before, behind_special, &mut output)?;
            // To SentencePiece a symbol is text like any other, so the space in front of a text is in front of it.
            if let SpellingWay::Normalised { table, normalisation } = &self.way
                && normalisation.space_in_front
                && output.is_empty()
                && !self.is_special(id)
            {
                output.extend(table.whole(SPACE));
            }
            output.push(id);
            (rest, behind_special) = (behind, true);
        }
        self.encode_plain(rest, behind_special, &mut output)?;
        Ok(output)
    }

    /// The first special token of a text, with what lies before it and behind it.
    fn cut_first<'t>(&self, text: &'t str) -> Option<(&'t str, u32, &'t str)> {
        let found = self.finder.find(text)?;
        let cut = self.cut.get(found.pattern().as_usize())?;
        let (before, behind) = (text.get(..found.start())?, text.get(found.end()..)?);
        // White space as C has it.
        let space = |c: char| matches!(c, ' ' | '\t'..='\r');
        let before = if cut.strips_left { before.trim_end_matches(space) } else { before };
        let behind = if cut.strips_right { behind.trim_start_matches(space) } else { behind };
        Some((before, cut.id, behind))
    }

    fn encode_plain(&self, text: &str, behind_special: bool, output: &mut Vec<u32>) -> Result<(), VocabularyError> {
        if text.is_empty() {
            return Ok(());
        }
        match &self.way {
            SpellingWay::Merged { table, space_in_front } => {
                let spaced = if *space_in_front && behind_special { SPACE } else { "" };
                table.encode(&(spaced.to_owned() + &text.replace(' ', SPACE)), output);
            }
            SpellingWay::Normalised { table, normalisation } => {
                let normal = if output.is_empty() { normalisation.apply(text) } else { text.replace(' ', SPACE) };
                table.encode(&normal, output);
            }
            SpellingWay::Ranked { cutter, table } => {
                for word in cutter.words(text)? {
                    match table.whole(word) {
                        Some(token) => output.push(token),
                        None => table.encode(word, output),
                    }
                }
            }
            SpellingWay::Likeliest(table) => table.encode(text, output),
            SpellingWay::Longest(table) => table.encode(text, output),
            SpellingWay::Plamo(table) => table.encode(text, output),
        }
        Ok(())
    }

    /// The text of several tokens, without the space in front of every text.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> String {
        let shown = tokens.iter().filter(|id| !(skip_special && self.is_special(**id)));
        let bytes: Vec<u8> = shown.flat_map(|id| self.token_bytes(*id)).copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        match text.strip_prefix(' ') {
            Some(rest) if self.space_in_front => rest.to_owned(),
            _ => text.into_owned(),
        }
    }

    /// The bytes of a token by itself, special tokens spelled out; none for an unknown id.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let token = self.tokens.get(id as usize);
        token.map_or(&[], |token| token.bytes.as_deref().unwrap_or(token.spelling.as_bytes()))
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
        u32::try_from(self.tokens.iter().position(|token| token.spelling == spelling)?).ok()
    }

    /// Whether readers of an answer do not see a token.
    pub fn is_special(&self, id: u32) -> bool {
        self.tokens.get(id as usize).is_some_and(|token| token.hidden)
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Bytes of the longest spelling.
    pub(super) fn longest(&self) -> usize {
        self.tokens.iter().map(|token| token.spelling.len()).max().unwrap_or(0)
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}
