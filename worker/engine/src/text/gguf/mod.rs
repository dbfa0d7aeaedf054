//! Tokenizer, special tokens and chat templates out of a GGUF file's own metadata. Knows the keys `tokenizer.*`, not
//! what a chat means by its tokens.
//!
//! Four kinds of vocabulary: `gpt2` (pairs of bytes merged by rank), `gemma4` (the same over characters), `llama`
//! (SentencePiece: pieces merged by score) and `bert` (longest pieces of words). All but `llama` become an ordinary
//! [`tokenizers::Tokenizer`]; `llama` has an encoder of its own, because merging by score breaks ties by position, which
//! a list of ranked pairs cannot say.

mod byte_pairs;
mod encoder;
mod pieces;
mod pre_tokenizer;
mod sentence_pieces;
mod special;
mod word_pieces;
mod write;

use std::collections::BTreeMap;

use model_boss_weights::gguf::{Header, KeyError};

pub use encoder::Encoder;
pub use sentence_pieces::SentencePieces;
pub use special::Special;
pub use write::{WriteVocabularyError, write_synthetic_vocabulary, write_vocabulary};

use pieces::Pieces;

/// Everything a GGUF file says about text.
#[derive(Debug)]
pub struct GgufVocabulary {
    /// Text to token ids and back.
    pub encoder: Encoder,
    /// The special tokens.
    pub special: Special,
    /// Chat templates by name; the usual one is `default`.
    pub templates: BTreeMap<String, String>,
    /// Bytes of the longest token's spelling.
    pub longest_spelling: usize,
    /// What the reader should know: an unknown pre-tokenizer was replaced by the default one, or the like.
    pub warnings: Vec<String>,
}

impl GgufVocabulary {
    /// Reads the vocabulary of a file.
    pub fn read(header: &Header<'_>) -> Result<Self, VocabularyError> {
        let model: &str = header.need("tokenizer.ggml.model")?;
        let pieces = Pieces::read(header)?;
        let mut warnings = Vec::new();
        let mut special = Special::read(header, model, &pieces, &mut warnings)?;
        let encoder = match model {
            "gpt2" | "gemma4" => {
                let name = if model == "gemma4" { "gemma4" } else { header.find("tokenizer.ggml.pre")?.unwrap_or("") };
                let rules = pre_tokenizer::rules(name).unwrap_or_else(|| {
                    warnings.push(format!(
                        "the pre-tokenizer `{}` is not known; the default one is used, and some texts may be cut into \
                         other tokens than the model was trained on",
                        name.escape_debug()
                    ));
                    pre_tokenizer::DEFAULT
                });
                special.add_bos = special.add_bos_given.unwrap_or(rules.add_bos) || name == "gemma4";
                Encoder::Library(Box::new(byte_pairs::build(header, &pieces, &special, &rules)?))
            }
            "llama" => Encoder::SentencePieces(Box::new(SentencePieces::build(header, &pieces, &special)?)),
            "bert" => Encoder::Library(Box::new(word_pieces::build(header, &pieces, &special)?)),
            other => return Err(VocabularyError::Model(other.to_owned())),
        };
        if special.add_bos && special.bos.is_none() {
            warnings.push("texts should begin with a bos token, but the file names none".to_owned());
            special.add_bos = false;
        }
        let longest_spelling = pieces.longest_spelling();
        Ok(Self { encoder, special, templates: templates(header)?, longest_spelling, warnings })
    }
}

/// `tokenizer.chat_template` is the usual template, `tokenizer.chat_template.NAME` are others.
fn templates(header: &Header<'_>) -> Result<BTreeMap<String, String>, KeyError> {
    const KEY: &str = "tokenizer.chat_template";
    let mut templates = BTreeMap::new();
    for (key, _) in header.metadata() {
        let name = match key.strip_prefix(KEY) {
            Some("") => "default",
            Some(rest) => match rest.strip_prefix('.') {
                Some(name) => name,
                None => continue,
            },
            None => continue,
        };
        templates.insert(name.to_owned(), header.need::<&str>(key)?.to_owned());
    }
    Ok(templates)
}

/// Why a file's vocabulary cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyError {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A kind of vocabulary there is no code for.
    #[error("tokenizers of the kind `{}` are not supported (gpt2, gemma4, llama and bert are); llama-server may run it", .0.escape_debug())]
    Model(String),
    /// A token's spelling is not text.
    #[error("token {0} is not UTF-8")]
    NotUtf8(usize),
    /// A merge is not text.
    #[error("merge {0} is not UTF-8")]
    MergeNotUtf8(usize),
    /// Two tokens with the same spelling.
    #[error("tokens {first} and {second} are both spelled `{}`", spelling.escape_debug())]
    Duplicate {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// Their spelling.
        spelling: String,
    },
    /// Per-token arrays of different lengths.
    #[error("GGUF metadata key `{key}` has {found} entries for {wanted} tokens")]
    Length {
        /// The shorter array.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The number of tokens.
        wanted: usize,
    },
    /// An array that holds something else than it should.
    #[error("GGUF metadata key `{0}` holds values of the wrong type")]
    Elements(&'static str),
    /// More tokens than ids.
    #[error("{0} tokens are more than this program can number")]
    TooMany(usize),
    /// A word-piece vocabulary without a token for unknown words.
    #[error("the vocabulary has no token for {0}")]
    NoToken(&'static str),
    /// A SentencePiece vocabulary without scores.
    #[error("the vocabulary has no scores (`tokenizer.ggml.scores`), by which its pieces are merged")]
    NoScores,
    /// The library refused a text or tokens.
    #[error("the tokenizer failed: {0}")]
    Text(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The tokenizer could not be put together.
    #[error("the tokenizer cannot be built: {0}")]
    Build(#[source] Box<dyn std::error::Error + Send + Sync>),
}

#[cfg(test)]
mod tests;
