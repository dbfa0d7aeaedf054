//! OpenAI's Responses.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::common::RequestOwnFields;

/// A request of the Responses API.
#[derive(Debug, JsonSchema)]
pub struct ResponsesRequestBody {
    /// A model, an alias, `task:NAME`, or `PROVIDER:MODEL`.
    #[schemars(example = &"default")]
    pub model: Option<String>,
    /// A text, or items; absent only where an earlier response is continued.
    pub input: Option<ResponsesInput>,
    /// The system prompt.
    pub instructions: Option<String>,
    /// The response that this one continues.
    pub previous_response_id: Option<String>,
    /// Whether the response is kept, so that another may continue it.
    pub store: Option<bool>,
    /// Whether the answer is streamed.
    pub stream: Option<bool>,
    /// The most tokens of the answer.
    pub max_output_tokens: Option<i64>,
    /// The temperature.
    pub temperature: Option<f64>,
    /// The share of the likeliest tokens that are kept.
    pub top_p: Option<f64>,
    /// Functions that the answer may call.
    pub tools: Option<Vec<Map<String, Value>>>,
    /// `none`, `auto`, `required`, a function, or `allowed_tools`.
    pub tool_choice: Option<Value>,
    /// Parts of the answer that are left out by default.
    pub include: Option<Vec<Value>>,
    /// `effort` and `summary`.
    pub reasoning: Option<Map<String, Value>>,
    /// `format`: the form of the answer.
    pub text: Option<Map<String, Value>>,
    /// Whether a conversation that is too long is shortened.
    pub truncation: Option<TruncationWord>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// The values of `truncation`.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub enum TruncationWord {
    /// It is shortened.
    Auto,
    /// It is refused.
    Disabled,
}

/// The input of a request.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum ResponsesInput {
    /// A text of the user's.
    Text(String),
    /// Items: messages, calls and their results, thoughts.
    Items(Vec<Map<String, Value>>),
}

/// A response.
#[derive(Debug, JsonSchema)]
pub struct ResponseObject {
    /// The name of the response.
    pub id: String,
    /// `response`.
    pub object: String,
    /// Seconds since 1970.
    pub created_at: u64,
    /// `completed`, `incomplete` or `failed`.
    pub status: String,
    /// The model that was asked for.
    pub model: String,
    /// Items: `message`, `reasoning`, `function_call`.
    pub output: Vec<Map<String, Value>>,
    /// `input_tokens`, `output_tokens` and their sum.
    pub usage: Option<Map<String, Value>>,
    /// The reason why the answer is not whole.
    pub incomplete_details: Option<Map<String, Value>>,
    /// The error of a response that failed.
    pub error: Option<Map<String, Value>>,
    /// The response that this one continues.
    pub previous_response_id: Option<String>,
}

/// An event of a streamed response, such as `response.created` and `response.output_text.delta`.
#[derive(Debug, JsonSchema)]
pub struct ResponsesEvent {
    /// The name of the event.
    #[schemars(rename = "type")]
    pub kind: String,
    /// The number of the event.
    pub sequence_number: u64,
}

/// A page of the items of a response's request.
#[derive(Debug, JsonSchema)]
pub struct ResponseItems {
    /// `list`.
    pub object: String,
    /// The items.
    pub data: Vec<Map<String, Value>>,
    /// Whether more follow.
    pub has_more: bool,
    /// The id of the first item.
    pub first_id: Option<String>,
    /// The id of the last item.
    pub last_id: Option<String>,
}

/// A response that was forgotten.
#[derive(Debug, JsonSchema)]
pub struct DeletedResponse {
    /// The name of the response.
    pub id: String,
    /// `response`.
    pub object: String,
    /// `true`.
    pub deleted: bool,
}
