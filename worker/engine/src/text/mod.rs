//! Text on both sides of the decoder: chat templates, tokens, and pieces of tokens back to whole characters.

mod added_tokens;
mod dates;
mod detokenize;
mod files;
pub mod gguf;
mod gguf_write;
mod library;
mod oniguruma;
mod pair;
mod stop;
mod template;
mod thoughts;
mod tokenizer;
mod vocabulary;

pub use dates::date_variables;
pub use detokenize::Detokenizer;
pub use files::{Prompt, Text, TextError};
pub use gguf_write::{WriteVocabularyError, write_synthetic_vocabulary, write_vocabulary};
pub use library::keep_to_one_thread;
pub use stop::{StopMatcher, Stopped};
pub use template::{ChatTemplate, Conversation, NoContent, TemplateError, TemplateValue};
pub use thoughts::{
    AnswerPart, ChannelPlan, NextPart, SPELLED_ENDING, ThinkingPlan, ThinkingTags, Thoughts, Trimmed, spells_thoughts,
};
pub use tokenizer::{Tokenizer, TokenizerError};
pub use vocabulary::{SpecialTokens, Specials, Vocabulary, VocabularyMalformed, VocabularyTooLarge};

#[cfg(any(test, feature = "fake"))]
pub(crate) mod fixture;
