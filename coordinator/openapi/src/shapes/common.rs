//! Fields that requests of several APIs share, and the bodies about tokens.

use model_boss_protocol::{KeepAlive, Priority};
use schemars::JsonSchema;
use serde_json::{Map, Value};

/// model-boss's own fields, which any request to a model may have. Each is also a header, such as `X-Client-Id`.
#[derive(Debug, JsonSchema)]
pub struct RequestOwnFields {
    /// The client's name.
    #[schemars(length(min = 1, max = 128))]
    pub x_client_id: Option<String>,
    /// The priority in the queue.
    pub x_priority: Option<Priority>,
    /// A task; `model` is then a wish for one of its rungs.
    pub x_task: Option<String>,
    /// The time for the whole request, in seconds.
    #[schemars(range(min = 0.001, max = 604_800))]
    pub x_budget_s: Option<f64>,
    /// The time for which the model stays loaded afterwards.
    pub x_keep_alive: Option<KeepAlive>,
    /// The same, as Ollama's clients write it.
    pub keep_alive: Option<KeepAlive>,
    /// Whether another rung of the ladder may answer.
    pub x_fallback: Option<FallbackWord>,
    /// Whether a model that can think does so, and for how many tokens.
    pub x_thinking: Option<Value>,
}

/// The one value of `x_fallback`.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub enum FallbackWord {
    /// Only the first rung may answer.
    None,
}

/// A text, or several.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum OneOrSeveralTexts {
    /// One text.
    One(String),
    /// Several texts.
    Several(Vec<String>),
}

/// The tokens of a request.
#[derive(Debug, JsonSchema)]
pub struct UsageBody {
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer.
    pub completion_tokens: Option<u64>,
    /// Their sum.
    pub total_tokens: Option<u64>,
    /// Among the prompt's, `cached_tokens` that were not computed again.
    pub prompt_tokens_details: Option<Map<String, Value>>,
    /// Among the answer's, those of thinking.
    pub completion_tokens_details: Option<Map<String, Value>>,
}

/// The times of an answer, as llama.cpp reports them.
#[derive(Debug, JsonSchema)]
pub struct AnswerTimings {
    /// Tokens of the prompt that were computed.
    pub prompt_n: Option<u64>,
    /// Tokens of the prompt that were kept from before.
    pub cache_n: Option<u64>,
    /// Milliseconds for the prompt.
    pub prompt_ms: Option<f64>,
    /// Tokens of the answer.
    pub predicted_n: Option<u64>,
    /// Milliseconds for the answer.
    pub predicted_ms: Option<f64>,
}

/// A question for the tokens of a text, in the fields of llama-server and vLLM.
#[derive(Debug, JsonSchema)]
pub struct TokenizeRequest {
    /// The model.
    pub model: Option<String>,
    /// A text; the tokens around a prompt are added only with `add_special`.
    pub content: Option<String>,
    /// Whether the tokens around a prompt are added to `content`.
    pub add_special: Option<bool>,
    /// A text; the tokens around a prompt are added.
    pub prompt: Option<String>,
    /// Whether the tokens around a prompt are added to `prompt`.
    pub add_special_tokens: Option<bool>,
    /// A conversation, in the form of the model's chat template.
    pub messages: Option<Vec<Map<String, Value>>>,
    /// Whether each token has its text beside it, as llama-server writes it.
    pub with_pieces: Option<bool>,
    /// Whether a list has the text of each token, as vLLM writes it.
    pub return_token_strs: Option<bool>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// The tokens of a text.
#[derive(Debug, JsonSchema)]
pub struct TokenizedText {
    /// The tokens, as numbers or with their texts.
    pub tokens: Vec<Value>,
    /// The number of tokens.
    pub count: u64,
    /// The text of each token, on request.
    pub token_strs: Option<Vec<String>>,
    /// The model's context.
    pub max_model_len: Option<u64>,
}

/// A question for the text of tokens.
#[derive(Debug, JsonSchema)]
pub struct DetokenizeRequest {
    /// The model.
    pub model: Option<String>,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// The text of tokens, under the names of both servers.
#[derive(Debug, JsonSchema)]
pub struct DetokenizedText {
    /// The text.
    pub content: String,
    /// The same text.
    pub prompt: String,
}
