//! Anthropic's Messages API in both directions. OpenAI's chat requests are translated for Claude models, and Messages
//! requests for any model that answers chats here. Messages requests for Claude models pass as they are. Shapes follow
//! Anthropic's API reference, version 2023-06-01.

mod command;
mod from_messages_answer;
mod from_messages_request;
mod passed_answer;
mod passed_request;
mod signature;
mod to_messages_answer;
mod to_messages_request;
mod token_count;

pub use command::{CommandAnswer, CommandQuestion, Ended, command_question};
pub use from_messages_answer::{ChatFromMessages, cloud_error};
pub use from_messages_request::from_messages_request;
pub use passed_answer::PassedAnswer;
pub use passed_request::{
    PassedChanges, counted_request, needs_translation, passed_request, without_texts_of_documents,
};
pub use to_messages_answer::{MessagesFromChat, messages_error};
pub use to_messages_request::{thinking_note, to_messages_request};

/// The API's version, sent in the header `anthropic-version`.
pub const VERSION: &str = "2023-06-01";

#[cfg(test)]
mod tests;
