//! Tokenizer, special tokens and chat templates out of a GGUF file's own metadata. The module interprets the keys
//! `tokenizer.*`, not the meaning of tokens in a chat.
//!
//! These kinds of vocabulary are known:
//!
//! - `gpt2`: pairs of bytes merged by rank.
//! - `gemma4` and `whitespace`: pairs of characters merged by rank.
//! - `bert`: longest pieces of words.
//! - `llama`: SentencePiece, pieces merged by score.
//! - `t5`: SentencePiece, the likeliest spelling by a unigram model.
//! - `rwkv`: the longest token at each place.
//! - `plamo2`: the spelling with the best sum of scores.
//!
//! Two files of other formats are read here too. `tekken.json` has byte pairs by rank, without a list of merges.
//! `tokenizer.model` is SentencePiece's own, of the kinds of `llama` and `t5`.
//!
//! The first four become an ordinary [`tokenizers::Tokenizer`]. The others have encoders of their own. Merging by score
//! breaks ties by position, which a list of ranked pairs cannot express. Nor does the library normalise texts as
//! SentencePiece does.

mod byte_pairs;
mod charsmap;
mod cutter;
mod encoder;
mod error;
mod longest_match;
mod merging;
mod piece_vocabulary;
mod pieces;
mod plamo;
pub(super) mod pre_tokenizer;
pub(super) mod ranks;
pub(super) mod sentence_piece_model;
mod sentence_pieces;
mod special;
#[cfg(test)]
mod tests;
mod unigram;
mod vocabulary;
mod word_pieces;

pub use encoder::Encoder;
pub use error::VocabularyError;
pub use piece_vocabulary::PieceVocabulary;
pub use special::Special;
pub use vocabulary::GgufVocabulary;
