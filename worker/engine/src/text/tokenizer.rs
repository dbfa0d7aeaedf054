//! Text to token ids and ids to the bytes they stand for. Knows the special tokens, not what they mean in a chat.

use std::collections::BTreeSet;

use tokenizers::DecoderWrapper;

use super::gguf::{Encoder, Special};
use super::library;

/// A model's vocabulary.
pub struct Tokenizer {
    inner: Encoder,
    alphabet: Alphabet,
    special: SpecialTokens,
    /// Bytes of the longest token's spelling.
    longest: usize,
}

/// The special tokens an engine has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// The token that begins a text.
    pub bos: Option<u32>,
    /// Tokens that end the model's turn.
    pub end: BTreeSet<u32>,
    /// Whether a text begins with `bos`, where the model's files say so; what `tokenizer.json` does otherwise.
    pub add_bos: Option<bool>,
}

/// How a token's spelling stands for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// Each character is one byte (GPT-2's table).
    ByteLevel,
    /// Each token has bytes of its own; a space in front of the whole text is not part of it.
    Pieces {
        /// Whether there is that space.
        space_in_front: bool,
    },
    /// Anything else: only the decoder knows, and it needs the neighbours.
    Other,
}

/// The tokenizer refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// `tokenizer.json` is not one.
    #[error("tokenizer.json cannot be used")]
    Malformed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The text could not be turned into tokens.
    #[error("the text cannot be turned into tokens")]
    Encode(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The tokens could not be turned into text.
    #[error("the tokens cannot be turned into text")]
    Decode(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Tokenizer {
    /// A tokenizer from the bytes of a `tokenizer.json`.
    pub fn from_json(json: &[u8], special: SpecialTokens) -> Result<Self, TokenizerError> {
        let mut inner = library::call(|| tokenizers::Tokenizer::from_bytes(json)).map_err(TokenizerError::Malformed)?;
        // Some files carry the settings of the training run. A prompt must never be cut or padded behind our back.
        inner.with_truncation(None).map_err(TokenizerError::Malformed)?.with_padding(None);
        let longest = inner.get_vocab(true).keys().map(String::len).max().unwrap_or(0);
        Ok(Self::new(Encoder::Library(Box::new(inner)), special, longest))
    }

    /// A tokenizer from a GGUF file's vocabulary. `longest` is the number of bytes of the longest token's spelling.
    pub fn from_gguf(encoder: Encoder, special: &Special, longest: usize) -> Self {
        let special = SpecialTokens { bos: special.bos, end: special.end.clone(), add_bos: Some(special.add_bos) };
        Self::new(encoder, special, longest)
    }

    fn new(inner: Encoder, special: SpecialTokens, longest: usize) -> Self {
        let alphabet = match &inner {
            Encoder::SentencePieces(pieces) => Alphabet::Pieces { space_in_front: pieces.space_in_front() },
            Encoder::Library(library) => match library.get_decoder() {
                Some(DecoderWrapper::ByteLevel(_)) => Alphabet::ByteLevel,
                Some(DecoderWrapper::Sequence(sequence))
                    if matches!(sequence.get_decoders(), [DecoderWrapper::ByteLevel(_)]) =>
                {
                    Alphabet::ByteLevel
                }
                _ => Alphabet::Other,
            },
        };
        Self { longest: longest.max(1), inner, alphabet, special }
    }

    /// Replaces the special tokens.
    #[must_use]
    pub fn with_special(mut self, special: SpecialTokens) -> Self {
        self.special = special;
        self
    }

    /// The tokens of a text that stands by itself: with `bos` in front where the model wants it, once even when the
    /// text spells it out.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut tokens = self.encode(text, true)?;
        if let Some(bos) = self.special.bos {
            let spelled = self.inner.spelling(bos).is_some_and(|spelling| text.starts_with(&spelling));
            let leading = tokens.iter().take_while(|token| **token == bos).count();
            let wanted = match self.special.add_bos {
                Some(wanted) => usize::from(wanted || spelled),
                None => usize::from(leading > 0),
            };
            if leading > wanted && leading <= 2 {
                tokens.drain(..leading - wanted);
            } else if leading < wanted {
                tokens.insert(0, bos);
            }
        }
        Ok(tokens)
    }

    /// The tokens of a text that already spells its special tokens, such as a rendered chat template.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode(text, false)
    }

    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        self.inner.encode_with(text, add_special).map_err(|error| TokenizerError::Encode(error.into()))
    }

    /// A number of tokens that the text has at least, without tokenising it. Guards against huge prompts.
    pub fn at_least(&self, text: &str) -> usize {
        text.len() / (self.longest * Self::SHRINK)
    }

    /// Normalisers may shorten a text; none in use gains more than this factor.
    const SHRINK: usize = 4;

    /// The text of several tokens, special ones left out.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        self.inner.decode(tokens, true).map_err(|error| TokenizerError::Decode(error.into()))
    }

    /// The text of several tokens, special ones spelled out.
    pub fn decode_with_special(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        self.inner.decode(tokens, false).map_err(|error| TokenizerError::Decode(error.into()))
    }

    /// Number of tokens, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    /// The special tokens.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The id of a token by its spelling.
    pub fn id(&self, spelling: &str) -> Option<u32> {
        self.inner.id(spelling)
    }

    /// Whether a token ends the model's turn.
    pub fn ends(&self, token: u32) -> bool {
        self.special.end.contains(&token)
    }

    pub(super) fn alphabet(&self) -> Alphabet {
        self.alphabet
    }

    /// Whether a token is one of the vocabulary's special ones, which readers of an answer do not see.
    pub fn is_special(&self, token: u32) -> bool {
        self.inner.is_special(token)
    }

    /// The bytes of a token for a reader of the answer: none for special tokens.
    pub(super) fn visible_bytes(&self, token: u32) -> Vec<u8> {
        if self.is_special(token) { Vec::new() } else { self.bytes(token) }
    }

    /// The bytes of a token by itself, special tokens spelled out.
    pub fn bytes(&self, token: u32) -> Vec<u8> {
        match &self.inner {
            Encoder::SentencePieces(pieces) => pieces.token_bytes(token),
            Encoder::Library(_) => {
                self.inner.spelling(token).map_or_else(Vec::new, |spelling| self.spelled_bytes(spelling))
            }
        }
    }

    /// The byte a token stands for in a vocabulary that falls back to bytes.
    pub(super) fn fallback_byte(&self, token: u32) -> Option<u8> {
        fallback_byte(&self.inner.spelling(token)?)
    }

    fn spelled_bytes(&self, spelling: String) -> Vec<u8> {
        match self.alphabet {
            Alphabet::ByteLevel => {
                let bytes: Option<Vec<u8>> = spelling.chars().map(byte_of).collect();
                // Added tokens are spelled as they are.
                bytes.unwrap_or_else(|| spelling.into_bytes())
            }
            Alphabet::Pieces { .. } | Alphabet::Other => match fallback_byte(&spelling) {
                Some(byte) => vec![byte],
                None => spelling.replace('\u{2581}', " ").into_bytes(),
            },
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("alphabet", &self.alphabet).field("special", &self.special).finish()
    }
}

/// The byte that a character of the byte-level alphabet stands for: printable Latin-1 stands for itself, the other 68
/// bytes follow in order from U+0100 (GPT-2's `bytes_to_unicode`).
fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// `<0x0A>` stands for the byte 10 where a vocabulary falls back to bytes.
fn fallback_byte(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::fixture;

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        let bytes: BTreeSet<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        assert_eq!(bytes.len(), 256);
    }

    #[test]
    fn bos_comes_once() {
        let tokenizer = fixture::byte_level();
        let bos = tokenizer.id("<s>").unwrap();
        let special = |add_bos| SpecialTokens { bos: Some(bos), add_bos, ..SpecialTokens::default() };
        let hi = tokenizer.encode_rendered("hi").unwrap();
        let with_bos: Vec<u32> = std::iter::once(bos).chain(hi.iter().copied()).collect();
        let wanting = fixture::byte_level().with_special(special(Some(true)));
        assert_eq!(wanting.encode_prompt("hi").unwrap(), with_bos);
        assert_eq!(wanting.encode_prompt("<s>hi").unwrap(), with_bos);
        let silent = fixture::byte_level().with_special(special(None));
        assert_eq!(silent.encode_prompt("hi").unwrap(), hi);
        assert_eq!(silent.encode_prompt("<s>hi").unwrap(), with_bos);
        assert_eq!(silent.encode_rendered("<s>hi").unwrap(), with_bos, "a template spells bos itself");
    }

    #[test]
    fn settings_of_the_training_run_do_not_cut_prompts() {
        let mut json: serde_json::Value = serde_json::from_slice(&fixture::byte_level_json()).unwrap();
        json["truncation"] = serde_json::json!(
            {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), SpecialTokens::default()).unwrap();
        assert_eq!(tokenizer.encode_prompt("a long text").unwrap().len(), 11);
    }

    #[test]
    fn what_is_no_tokenizer_is_an_error() {
        assert!(matches!(Tokenizer::from_json(b"{}", SpecialTokens::default()), Err(TokenizerError::Malformed(_))));
    }

    /// Found by fuzzing: the library panics at these.
    #[test]
    fn files_that_the_library_panics_at_are_errors() {
        let merged = r#"{"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]}}"#;
        let prefix = r#"{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"],
            "continuing_subword_prefix":"~~~~"}}"#;
        let charsmap = r#"{"normalizer":{"type":"Precompiled","precompiled_charsmap":"ABAA"},
            "model":{"type":"WordLevel","unk_token":"a","vocab":{"a":0}}}"#;
        // What an interrupted download leaves.
        let cut = r#"{"model":{"type":"WordLevel","unk_token":"a","vocab":{"a":0}},"decoder":{"type":"Fuse""#;
        for json in [merged, prefix, charsmap, cut] {
            let refused = Tokenizer::from_json(json.as_bytes(), SpecialTokens::default());
            assert!(matches!(refused, Err(TokenizerError::Malformed(_))), "{json}");
        }
    }
}
