//! The tokens of a GGUF vocabulary: spelling, kind and score of each. Knows no tokenizer.

use std::borrow::Cow;

use model_boss_weights::gguf::{Array, Header, Strings};

use super::error::VocabularyError;

/// The kind of a token, by the number the format gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Normal,
    /// The token for text that the vocabulary cannot express.
    Unknown,
    /// Steers the model; never part of a text.
    Control,
    /// Found in a text before anything else, and shown.
    UserDefined,
    Unused,
    /// A single byte, spelled `<0x0A>`.
    Byte,
}

impl TokenKind {
    pub(super) fn from_id(id: i64) -> Self {
        match id {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            6 => Self::Byte,
            // 0 is "undefined".
            _ => Self::Unused,
        }
    }
}

/// `<0x0A>` is the byte 10.
pub(super) fn byte_of(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// All tokens, by id.
#[derive(Debug)]
pub(super) struct VocabularyPieces<'a> {
    pub(super) spellings: Vec<Cow<'a, str>>,
    pub(super) kinds: Vec<TokenKind>,
    /// Empty where the file has none.
    pub(super) scores: Vec<f32>,
}

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";

impl<'a> VocabularyPieces<'a> {
    pub(super) fn read(header: &Header<'a>) -> Result<Self, VocabularyError> {
        let spellings = header
            .need::<Strings<'a>>(TOKENS)?
            .enumerate()
            .map(|(index, bytes)| match std::str::from_utf8(bytes) {
                // Vocabularies are sometimes padded with empty strings; each still needs a spelling of its own.
                Ok("") => Ok(Cow::Owned(format!("[EMPTY_{index}]"))),
                Ok(text) => Ok(Cow::Borrowed(text)),
                Err(_) => Err(VocabularyError::NotUtf8(index)),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let count = spellings.len();
        if u32::try_from(count).is_err() {
            return Err(VocabularyError::TooMany(count));
        }
        let long_enough = |key, found| {
            if found < count { Err(VocabularyError::Length { key, found, wanted: count }) } else { Ok(()) }
        };
        let kinds = match header.find::<Array<'a>>(TYPES)? {
            Some(types) => {
                long_enough(TYPES, types.len())?;
                let ids = types.integers().ok_or(VocabularyError::Elements(TYPES))?;
                ids.into_iter().take(count).map(TokenKind::from_id).collect()
            }
            None => vec![TokenKind::Normal; count],
        };
        let scores = match header.find::<Array<'a>>(SCORES)? {
            Some(scores) => {
                long_enough(SCORES, scores.len())?;
                scores.floats().ok_or(VocabularyError::Elements(SCORES))?
            }
            None => Vec::new(),
        };
        Ok(Self { spellings, kinds, scores })
    }

    /// Id, spelling and kind of every token.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &str, TokenKind)> {
        (0_u32..).zip(&self.spellings).zip(&self.kinds).map(|((id, spelling), kind)| (id, spelling.as_ref(), *kind))
    }

    pub(super) fn len(&self) -> usize {
        self.spellings.len()
    }

    /// Bytes of the longest spelling.
    pub(super) fn longest_spelling(&self) -> usize {
        self.spellings.iter().map(|spelling| spelling.len()).max().unwrap_or(0)
    }

    pub(super) fn spelling(&self, id: u32) -> Option<&str> {
        self.spellings.get(id as usize).map(AsRef::as_ref)
    }

    pub(super) fn duplicate(&self, first: u32, second: u32) -> VocabularyError {
        let spelling = self.spelling(second).unwrap_or_default().to_owned();
        VocabularyError::Duplicate { first: first.min(second), second: first.max(second), spelling }
    }
}
