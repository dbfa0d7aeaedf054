//! Anthropic's Messages.

use model_boss_openapi::shapes::{CountMessagesRequest, CountedTokens, MessagesAnswer, MessagesEvent, MessagesRequest};
use model_boss_openapi::{Operation, Tag};

use super::models::{EVENTS, asked};

/// `POST /v1/messages`.
pub(crate) fn messages() -> Operation {
    let text = "Anthropic's Messages, for any model that answers chats";
    asked::<MessagesRequest, MessagesAnswer>(Tag::Anthropic, "create_message", text)
        .passes_stream::<MessagesEvent>(EVENTS)
        .see(&["dialects.md"])
        .status_of_engines()
}

/// `POST /v1/messages/count_tokens`.
pub(crate) fn count_tokens() -> Operation {
    let text =
        "the tokens of such a request: counted by the provider for its models, else by the model that would answer";
    asked::<CountMessagesRequest, CountedTokens>(Tag::Anthropic, "count_message_tokens", text).status_of_engines()
}
