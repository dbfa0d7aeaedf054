//! The plain side of a vocabulary: the bytes of each token. Answers become text by it, and no rule of a model's file
//! runs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Token ids are below this: more than ten times the largest vocabulary in use.
pub(super) const MOST_TOKENS: usize = 1 << 22;

/// Most bytes that all tokens together are spelled with.
pub(super) const MOST_BYTES: usize = 64 << 20;

/// The bytes of every token, and which tokens mean something to an engine.
#[derive(Clone, PartialEq, Eq)]
pub struct Vocabulary {
    /// The bytes of all tokens, one behind the other.
    bytes: Vec<u8>,
    /// The end of each token in `bytes`.
    ends: Vec<u32>,
    /// Whether readers of an answer see each token.
    visible: Vec<bool>,
    facts: VocabularyFacts,
}

/// The properties of a vocabulary, without the table itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VocabularyFacts {
    /// A text begins with a space that is not part of it.
    pub(super) space_in_front: bool,
    pub(super) special: SpecialTokens,
    /// Bytes of the longest token's spelling.
    pub(super) longest: usize,
}

/// The special tokens an engine has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialTokens {
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// Tokens that end the model's turn.
    pub end: BTreeSet<u32>,
    /// Whether a text begins with `bos`, where the model's files say so; what `tokenizer.json` does otherwise.
    pub add_bos: Option<bool>,
}

/// Whether special tokens are spelled out in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// As readers of an answer see it.
    Hidden,
    /// As the model sees it.
    Spelled,
}

/// The vocabulary is larger than any known one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VocabularyTooLarge {
    /// An id is out of range.
    #[error("token id {0} is over the limit of {MOST_TOKENS} tokens")]
    Id(u32),
    /// All spellings together are too long.
    #[error("its tokens are spelled with more than {} MiB", MOST_BYTES >> 20)]
    Bytes,
}

/// Tokens that one vocabulary may have more of than another that is the same: models pad their last ones.
const MOST_PADDED: usize = 512;

/// The bytes are no vocabulary.
#[derive(Debug, thiserror::Error)]
#[error("the vocabulary cannot be read: {0}")]
pub struct VocabularyMalformed(String);

impl Vocabulary {
    /// The first difference of another vocabulary, in words; none if tokens of one mean the same in the other. One may
    /// have a few more at its end.
    pub fn differs_from(&self, other: &Self) -> Option<String> {
        let (own, others) = (self.len(), other.len());
        if own.abs_diff(others) > MOST_PADDED {
            return Some(format!("it has {others} tokens, and the model's has {own}"));
        }
        let common = 0..u32::try_from(own.min(others)).unwrap_or(u32::MAX);
        let differs = |id: &u32| self.bytes(*id) != other.bytes(*id);
        common.into_iter().find(differs).map(|id| {
            let shown = |vocabulary: &Self| String::from_utf8_lossy(vocabulary.bytes(id)).escape_debug().to_string();
            format!("its token {id} is '{}', and the model's is '{}'", shown(other), shown(self))
        })
    }

    /// A vocabulary from the bytes of its tokens, in the order of their ids, each with whether readers of an answer see
    /// it.
    pub(super) fn new(
        tokens: impl Iterator<Item = (Vec<u8>, bool)>,
        facts: VocabularyFacts,
    ) -> Result<Self, VocabularyTooLarge> {
        let (mut bytes, mut ends, mut visible) = (Vec::new(), Vec::new(), Vec::new());
        for (token, is_visible) in tokens {
            if bytes.len() + token.len() > MOST_BYTES {
                return Err(VocabularyTooLarge::Bytes);
            }
            bytes.extend_from_slice(&token);
            let end = u32::try_from(bytes.len()).map_err(|_| VocabularyTooLarge::Bytes)?;
            ends.push(end);
            visible.push(is_visible);
        }
        Ok(Self { bytes, ends, visible, facts })
    }

    /// The bytes of a token by itself, special tokens spelled out; none for an unknown id.
    pub fn bytes(&self, token: u32) -> &[u8] {
        let at = token as usize;
        let start = at.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(at).copied().unwrap_or(start);
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }

    /// The bytes of a token for a reader of the answer: none for special tokens.
    pub(super) fn visible_bytes(&self, token: u32) -> &[u8] {
        if self.is_special(token) { &[] } else { self.bytes(token) }
    }

    /// Whether a token is one of the vocabulary's special ones, which readers of an answer do not see.
    pub fn is_special(&self, token: u32) -> bool {
        self.visible.get(token as usize).is_some_and(|visible| !visible)
    }

    /// Whether a token ends the model's turn.
    pub fn ends(&self, token: u32) -> bool {
        self.facts.special.end.contains(&token)
    }

    /// The special tokens.
    pub fn special(&self) -> &SpecialTokens {
        &self.facts.special
    }

    /// Whether the tokens of a text begin with a space that is not part of it.
    pub(super) fn space_in_front(&self) -> bool {
        self.facts.space_in_front
    }

    /// Number of token ids, unused ones included.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// A number of tokens that a text has at least, without tokenising it. Guards against huge prompts.
    pub fn at_least(&self, text: &str) -> usize {
        text.len() / (self.facts.longest.max(1) * Self::SHRINK)
    }

    /// Normalisers may shorten a text; none in use gains more than this factor.
    const SHRINK: usize = 4;

    /// The text of several tokens. Bytes that are no text become U+FFFD.
    pub fn text(&self, tokens: &[u32], specials: Specials) -> String {
        let bytes = |token: &u32| match specials {
            Specials::Hidden => self.visible_bytes(*token),
            Specials::Spelled => self.bytes(*token),
        };
        let bytes: Vec<u8> = tokens.iter().flat_map(bytes).copied().collect();
        let bytes = match bytes.as_slice() {
            [b' ', rest @ ..] if self.facts.space_in_front => rest,
            all => all,
        };
        String::from_utf8_lossy(bytes).into_owned()
    }

    /// The vocabulary as bytes that [`Self::from_wire`] reads.
    pub fn to_wire(&self) -> Vec<u8> {
        // Facts are numbers and switches, which always have a spelling in JSON.
        let facts = serde_json::to_vec(&self.facts).unwrap_or_default();
        let mut wire = Vec::with_capacity(8 + facts.len() + self.ends.len() * 5 + self.bytes.len());
        for length in [facts.len(), self.ends.len()] {
            wire.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        }
        wire.extend_from_slice(&facts);
        wire.extend(self.ends.iter().flat_map(|end| end.to_le_bytes()));
        wire.extend(self.visible.iter().map(|visible| u8::from(*visible)));
        wire.extend_from_slice(&self.bytes);
        wire
    }

    /// Reads what [`Self::to_wire`] wrote.
    pub fn from_wire(wire: &[u8]) -> Result<Self, VocabularyMalformed> {
        let malformed = |what: &str| VocabularyMalformed(what.to_owned());
        let number = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
        let ([facts, tokens], rest) = wire
            .split_first_chunk::<8>()
            .and_then(|(lengths, rest)| {
                let (facts, tokens) = (lengths.first_chunk()?, lengths.last_chunk()?);
                Some(([number(facts) as usize, number(tokens) as usize], rest))
            })
            .ok_or_else(|| malformed("its lengths are missing"))?;
        let (facts, rest) = rest.split_at_checked(facts).ok_or_else(|| malformed("its facts are cut short"))?;
        let facts = serde_json::from_slice(facts).map_err(|error| VocabularyMalformed(error.to_string()))?;
        let table = tokens.checked_mul(4).and_then(|length| rest.split_at_checked(length));
        let (ends, rest) = table.ok_or_else(|| malformed("its table is cut short"))?;
        let (visible, bytes) = rest.split_at_checked(tokens).ok_or_else(|| malformed("its table is cut short"))?;
        let ends: Vec<u32> = ends.as_chunks::<4>().0.iter().map(number).collect();
        if !ends.is_sorted() || ends.last().is_some_and(|end| *end as usize != bytes.len()) {
            return Err(malformed("its table does not fit its bytes"));
        }
        let visible = visible.iter().map(|visible| *visible != 0).collect();
        Ok(Self { bytes: bytes.to_vec(), ends, visible, facts })
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("tokens", &self.ends.len()).field("facts", &self.facts).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::fixture;

    #[test]
    fn the_wire_carries_everything() {
        for vocabulary in [fixture::byte_level().vocabulary().unwrap(), fixture::sentence_piece().vocabulary().unwrap()]
        {
            let wire = vocabulary.to_wire();
            assert_eq!(Vocabulary::from_wire(&wire).unwrap(), vocabulary);
            for cut in [0, 7, 8, 20, wire.len() - 1] {
                assert!(Vocabulary::from_wire(&wire[..cut]).is_err(), "{cut}");
            }
        }
    }

    #[test]
    fn en_8_the_first_difference_of_two_vocabularies_is_named() {
        let (one, other) =
            (fixture::byte_level().vocabulary().unwrap(), fixture::sentence_piece().vocabulary().unwrap());
        assert_eq!(one.differs_from(&one), None);
        let why = one.differs_from(&other).unwrap();
        assert_eq!(why, "its token 256 is '<unk>', and the model's is '<s>'");
        let mut padded = one.clone();
        padded.ends.extend([*one.ends.last().unwrap(); MOST_PADDED]);
        assert_eq!((one.differs_from(&padded), padded.differs_from(&one)), (None, None));
        padded.ends.push(*one.ends.last().unwrap());
        assert!(one.differs_from(&padded).unwrap().contains("tokens"));
    }

    #[test]
    fn an_unknown_id_has_no_bytes() {
        let vocabulary = fixture::byte_level().vocabulary().unwrap();
        assert_eq!(vocabulary.bytes(0), [0]);
        assert_eq!(vocabulary.bytes(u32::MAX), b"");
        assert_eq!(vocabulary.text(&[104, 105, 257, 9_999], Specials::Hidden), "hi");
        assert_eq!(vocabulary.text(&[104, 105, 257, 9_999], Specials::Spelled), "hi</s>");
    }

    #[test]
    fn more_than_any_vocabulary_has_is_refused() {
        let facts = fixture::byte_level().vocabulary().unwrap().facts;
        let long = std::iter::repeat_n((vec![b'x'; 1 << 20], true), 65);
        assert_eq!(Vocabulary::new(long, facts), Err(VocabularyTooLarge::Bytes));
    }
}
