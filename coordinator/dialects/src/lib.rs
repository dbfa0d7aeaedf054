//! Translations between OpenAI's API and other dialects: Anthropic's Messages, Ollama's API, llama.cpp's completions.
//! They cover requests, whole answers, streams and errors, in both directions. The crate is pure: it translates bytes,
//! and has no sockets, no models and no clock.

pub mod anthropic;
mod arguments;
mod check;
mod completion;
mod continued;
mod engine;
mod engine_error;
mod error;
mod fields;
mod links;
mod llama;
mod names;
pub mod ollama;
mod overflow;
mod reshape;
mod response_format;
pub mod responses;
mod shorten;
pub mod sse;
pub mod thinking;
mod tokens;
mod tool_results;
mod tool_subset;

pub use check::{AnswerKind, BadStream, EDITS, MESSAGES, PICTURES, SPEECH, StreamCheck, check_answer};
pub use completion::CompletionToChat;
pub use engine::{EngineDialect, Prepared};
pub use engine_error::engine_error;
pub use error::{DialectError, DialectFault, EngineFault, ProviderFault};
pub use links::{LinkSearch, link_refused};
pub use llama::{APPLY_TEMPLATE, COMPLETION, INFILL, SelectedFields};
pub use names::Names;
pub use overflow::Overflow;
pub use reshape::{Reshape, Stamp, nonsense};
pub use shorten::{ContextWish, RefusedPrompt, shortened};
pub use tokens::{DETOKENIZE, TOKENIZE};
pub use tool_subset::only_allowed_tools;
