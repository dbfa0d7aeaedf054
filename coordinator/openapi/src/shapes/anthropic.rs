//! Anthropic's Messages.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::common::RequestOwnFields;

/// A conversation for Anthropic's API.
#[derive(Debug, JsonSchema)]
pub struct MessagesRequest {
    /// The most tokens of the answer.
    pub max_tokens: u64,
    /// The other fields.
    #[schemars(flatten)]
    pub conversation: MessagesFields,
}

/// A conversation whose tokens are counted.
#[derive(Debug, JsonSchema)]
pub struct CountMessagesRequest {
    /// The conversation.
    #[schemars(flatten)]
    pub conversation: MessagesFields,
}

/// The fields of a conversation.
#[derive(Debug, JsonSchema)]
pub struct MessagesFields {
    /// A model, an alias, `task:NAME`, or `PROVIDER:MODEL`.
    #[schemars(example = &"default")]
    pub model: Option<String>,
    /// The conversation so far.
    #[schemars(length(min = 1))]
    pub messages: Vec<MessageBody>,
    /// The system prompt: a text, or blocks of text.
    pub system: Option<BlockContent>,
    /// Whether the answer is streamed.
    pub stream: Option<bool>,
    /// The temperature.
    pub temperature: Option<f64>,
    /// The share of the likeliest tokens that are kept.
    pub top_p: Option<f64>,
    /// The number of the likeliest tokens that are kept.
    pub top_k: Option<i64>,
    /// Texts that end the answer.
    pub stop_sequences: Option<Vec<String>>,
    /// Tools that the answer may call.
    pub tools: Option<Vec<Map<String, Value>>>,
    /// The choice among the tools.
    pub tool_choice: Option<Map<String, Value>>,
    /// Whether and how long the model thinks.
    pub thinking: Option<Map<String, Value>>,
    /// `format`: the form of the answer; `effort`: that of thinking.
    pub output_config: Option<Map<String, Value>>,
    /// `user_id`.
    pub metadata: Option<Map<String, Value>>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// One message.
#[derive(Debug, JsonSchema)]
pub struct MessageBody {
    /// The speaker.
    pub role: MessageRole,
    /// A text, or blocks.
    pub content: Option<BlockContent>,
}

/// The speaker of a message.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub enum MessageRole {
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// A text, or blocks.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum BlockContent {
    /// A text.
    Text(String),
    /// Blocks: `text`, `image`, `tool_use`, `tool_result`, `thinking`.
    Blocks(Vec<Map<String, Value>>),
}

/// The answer to a conversation.
#[derive(Debug, JsonSchema)]
pub struct MessagesAnswer {
    /// The name of the answer.
    pub id: String,
    /// `message`.
    #[schemars(rename = "type")]
    pub kind: String,
    /// `assistant`.
    pub role: String,
    /// The model that was asked for.
    pub model: String,
    /// Blocks: `text`, `thinking`, `tool_use`.
    pub content: Vec<Map<String, Value>>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    pub stop_reason: Option<String>,
    /// The text that ended the answer.
    pub stop_sequence: Option<String>,
    /// `input_tokens`, `output_tokens`, and those of the cache.
    pub usage: Map<String, Value>,
}

/// An event of a streamed answer, such as `message_start`, `content_block_delta` and `message_stop`.
#[derive(Debug, JsonSchema)]
pub struct MessagesEvent {
    /// The name of the event.
    #[schemars(rename = "type")]
    pub kind: String,
}

/// The tokens of a conversation.
#[derive(Debug, JsonSchema)]
pub struct CountedTokens {
    /// Their number.
    pub input_tokens: u64,
}
