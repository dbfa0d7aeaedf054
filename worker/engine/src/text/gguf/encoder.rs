//! The interface of all kinds of vocabulary: text to ids, ids to their bytes.

use super::error::VocabularyError;
use super::piece_vocabulary::PieceVocabulary;
use crate::text::library::call;

/// Most white space characters in a row. The expressions that cut a text step back over all of them, at most a million
/// steps. Beyond that the library leaves the rest of the text in one piece and reports nothing.
const MOST_WHITE_SPACE: usize = 500_000;

/// Turns text into token ids and back. Special tokens in the text are found; none is added.
#[derive(Debug)]
pub enum Encoder {
    /// A tokenizer that the `tokenizers` library can express.
    Library(Box<tokenizers::Tokenizer>),
    /// A vocabulary that it cannot express.
    Pieces(Box<PieceVocabulary>),
}

impl Encoder {
    /// The tokens of a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, VocabularyError> {
        self.encode_with(text, false)
    }

    /// The tokens of a text, with those that a `tokenizer.json` adds around it when asked.
    pub(in crate::text) fn encode_with(&self, text: &str, add_special: bool) -> Result<Vec<u32>, VocabularyError> {
        match self {
            Self::Library(library) => {
                let spaces = longest_white_space(text);
                if spaces > MOST_WHITE_SPACE {
                    return Err(VocabularyError::WhiteSpace { found: spaces, most: MOST_WHITE_SPACE });
                }
                let encoding = call(|| library.encode_fast(text, add_special)).map_err(VocabularyError::Text)?;
                Ok(encoding.get_ids().to_vec())
            }
            Self::Pieces(pieces) => pieces.encode(text),
        }
    }

    /// The text of several tokens.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> Result<String, VocabularyError> {
        match self {
            Self::Library(library) => call(|| library.decode(tokens, skip_special)).map_err(VocabularyError::Text),
            Self::Pieces(pieces) => Ok(pieces.decode(tokens, skip_special)),
        }
    }

    /// A token's spelling.
    pub fn spelling(&self, id: u32) -> Option<String> {
        match self {
            Self::Library(library) => library.id_to_token(id),
            Self::Pieces(pieces) => pieces.spelling(id).map(str::to_owned),
        }
    }

    /// The token of a spelling.
    pub fn id(&self, spelling: &str) -> Option<u32> {
        match self {
            Self::Library(library) => library.token_to_id(spelling),
            Self::Pieces(pieces) => pieces.id(spelling),
        }
    }

    /// Whether readers of an answer do not see a token.
    pub fn is_special(&self, id: u32) -> bool {
        match self {
            Self::Library(library) => {
                library.get_added_vocabulary().get_added_tokens_decoder().get(&id).is_some_and(|token| token.special)
            }
            Self::Pieces(pieces) => pieces.is_special(id),
        }
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Library(library) => library.get_vocab_size(true),
            Self::Pieces(pieces) => pieces.len(),
        }
    }
}

/// The number of white space characters in the longest run of them.
fn longest_white_space(text: &str) -> usize {
    if text.len() <= MOST_WHITE_SPACE {
        return 0;
    }
    let (mut longest, mut current) = (0, 0);
    for character in text.chars() {
        current = if character.is_whitespace() { current + 1 } else { 0 };
        longest = longest.max(current);
    }
    longest
}

#[cfg(test)]
mod tests {
    use crate::text::fixture;

    #[test]
    fn more_white_space_than_expressions_can_cut_is_an_error() {
        let tokenizer = fixture::byte_level();
        let long = " ".repeat(500_001);
        let error = tokenizer.encode_rendered(&long).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("500001 white space characters"), "{source}");
        assert_eq!(tokenizer.encode_rendered(&(" ".repeat(400_000) + "x" + &long[1..])).unwrap().len(), 900_001);
    }
}
