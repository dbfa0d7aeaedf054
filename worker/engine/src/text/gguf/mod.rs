//! Tokenizer, special tokens and chat templates out of a GGUF file's own metadata. Knows the keys `tokenizer.*`, not
//! what a chat means by its tokens.
//!
//! Four kinds of vocabulary: `gpt2` (pairs of bytes merged by rank), `gemma4` (the same over characters), `llama`
//! (SentencePiece: pieces merged by score) and `bert` (longest pieces of words). All but `llama` become an ordinary
//! [`tokenizers::Tokenizer`]. `llama` has an encoder of its own: merging by score breaks ties by position, which a list
//! of ranked pairs cannot express.

mod byte_pairs;
mod encoder;
mod error;
mod pieces;
pub(super) mod pre_tokenizer;
mod sentence_pieces;
mod special;
#[cfg(test)]
mod tests;
mod vocabulary;
mod word_pieces;

pub use encoder::Encoder;
pub use error::VocabularyError;
pub use sentence_pieces::SentencePieces;
pub use special::Special;
pub use vocabulary::GgufVocabulary;
