//! Anthropic's Messages API, both ways: OpenAI's chat requests put to a Claude model, and Messages requests put to whatever
//! model answers chats here. Shapes as Anthropic's API reference of version 2023-06-01 has them.

mod command;
mod from_messages_answer;
mod from_messages_request;
mod to_messages_answer;
mod to_messages_request;

pub use command::{CommandAnswer, CommandQuestion, Ended, command_question};
pub use from_messages_answer::{ChatFromMessages, cloud_error};
pub use from_messages_request::from_messages_request;
pub use to_messages_answer::{MessagesFromChat, messages_error};
pub use to_messages_request::{thinking_note, to_messages_request};

/// The version of the API that is spoken, sent as `anthropic-version`.
pub const VERSION: &str = "2023-06-01";

#[cfg(test)]
mod tests;
