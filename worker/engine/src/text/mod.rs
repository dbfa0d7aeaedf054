//! Text on both sides of the decoder: chat templates, tokens, and pieces of tokens back to whole characters.

mod detokenize;
mod files;
pub mod gguf;
mod library;
mod stop;
mod stream;
mod template;
mod thoughts;
mod tokenizer;

pub use detokenize::Detokenizer;
pub use files::{Text, TextError};
pub use stop::{StopMatcher, Stopped};
pub use stream::{Piece, TextStream};
pub use template::{ChatTemplate, Conversation, TemplateError, TemplateValue};
pub use thoughts::{Part, ThinkingPlan, ThinkingTags, Thoughts, Trimmed};
pub use tokenizer::{SpecialTokens, Tokenizer, TokenizerError};

#[cfg(any(test, feature = "fake"))]
pub(crate) mod fixture;
