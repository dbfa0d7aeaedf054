//! Anthropic's Messages API, both ways: OpenAI's chat requests put to a Claude model, and Messages requests put to whatever
//! model answers chats here. Shapes as Anthropic's API reference of version 2023-06-01 has them.

mod answers;
mod ask;
mod asked;
mod command;
mod said;

pub use answers::{ChatFromMessages, cloud_error};
pub use ask::{messages_request, thinking_note};
pub use asked::chat_request;
pub use command::{CommandAnswer, CommandQuestion, Ended, command_question};
pub use said::{MessagesFromChat, messages_error};

/// The version of the API that is spoken, sent as `anthropic-version`.
pub const VERSION: &str = "2023-06-01";

#[cfg(test)]
mod tests;
