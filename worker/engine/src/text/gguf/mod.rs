//! Tokenizer, special tokens and chat templates out of a GGUF file's own metadata. The module interprets the keys
//! `tokenizer.*`, not the meaning of tokens in a chat.
//!
//! There are four kinds of vocabulary:
//!
//! - `gpt2`: pairs of bytes merged by rank.
//! - `gemma4`: pairs of characters merged by rank.
//! - `llama`: SentencePiece, pieces merged by score.
//! - `bert`: longest pieces of words.
//!
//! All but `llama` become an ordinary [`tokenizers::Tokenizer`]. `llama` has an encoder of its own, because merging
//! by score breaks ties by position. A list of ranked pairs cannot express that.

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
