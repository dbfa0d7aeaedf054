//! Reasons why a GGUF file's vocabulary cannot be used.

use model_boss_weights::gguf::KeyError;

/// The reason why a file's vocabulary cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VocabularyError {
    /// A key is missing or has the wrong type.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A kind of vocabulary there is no code for.
    #[error(
        "tokenizers of the kind `{}` are not supported (gpt2, gemma4, whitespace, llama, t5, bert, rwkv and plamo2 \
         are); llama-server may run it",
        .0.escape_debug()
    )]
    Model(String),
    /// A file that says that it has no vocabulary.
    #[error(
        "the file says that it has no vocabulary (`tokenizer.ggml.model` is `{}`), so it cannot read text",
        .0.escape_debug()
    )]
    NoVocabulary(String),
    /// A way to cut words there is no pattern for.
    #[error(
        "the pre-tokenizer `{}` is not known, and another one would cut texts into other tokens than the model was \
         trained on; llama-server may run the file, and a folder with the model's tokenizer.json needs no name",
        .0.escape_debug()
    )]
    PreTokenizer(String),
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
    /// The bytes of a normaliser cannot be read.
    #[error("`tokenizer.ggml.precompiled_charsmap` cannot be read: {0}")]
    Charsmap(&'static str),
    /// A vocabulary that spells unknown characters in bytes lacks one.
    #[error("the vocabulary has no token for the byte {0}, with which it spells unknown characters")]
    NoByte(usize),
    /// A `tokenizer.model` is none, or needs what is not supported.
    #[error("this SentencePiece model cannot be used: {0}")]
    SentencePieceModel(&'static str),
    /// A `tekken.json` is none, or contradicts itself.
    #[error("this is no usable tekken.json: {0}")]
    Tekken(String),
    /// More white space in one place than the expressions that cut a text can step over.
    #[error("the text has {found} white space characters in a row, and the limit is {most}; shorten the run")]
    WhiteSpace {
        /// The length of the longest run.
        found: usize,
        /// The limit.
        most: usize,
    },
    /// The library refused a text or tokens.
    #[error("the tokenizer failed: {0}")]
    Text(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The tokenizer could not be put together.
    #[error("the tokenizer cannot be built: {0}")]
    Build(#[source] Box<dyn std::error::Error + Send + Sync>),
}
