//! OpenAI's chats and completions.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::common::{AnswerTimings, OneOrSeveralTexts, RequestOwnFields, UsageBody};

/// A chat. Fields that are not listed are passed on to the engine or provider that answers.
#[derive(Debug, JsonSchema)]
pub struct ChatCompletionRequest {
    /// A model, an alias, `task:NAME`, or `PROVIDER:MODEL`.
    #[schemars(example = &"default")]
    pub model: Option<String>,
    /// The conversation so far.
    #[schemars(length(min = 1))]
    pub messages: Vec<ChatMessageBody>,
    /// Tools that the answer may call.
    pub tools: Option<Vec<ToolBody>>,
    /// `none`, `auto`, `required`, a function, or `allowed_tools`.
    pub tool_choice: Option<Value>,
    /// Whether an answer may have several calls.
    pub parallel_tool_calls: Option<bool>,
    /// The form of the answer: `json_object`, `json_schema`, `regex` or `grammar`.
    pub response_format: Option<Map<String, Value>>,
    /// The effort of thinking.
    pub reasoning_effort: Option<String>,
    /// Whether to report the probability of each token.
    pub logprobs: Option<bool>,
    /// The number of alternatives beside each token.
    pub top_logprobs: Option<i64>,
    /// Variables of the chat template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether a last message of the assistant is continued.
    pub continue_final_message: Option<bool>,
    /// Fields about the choice of tokens.
    #[schemars(flatten)]
    pub sampling: SamplingFields,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// One message of a chat.
#[derive(Debug, JsonSchema)]
pub struct ChatMessageBody {
    /// `system`, `developer`, `user`, `assistant`, `tool`, or a further one that the model's template knows.
    pub role: String,
    /// A text, or parts of texts and images.
    pub content: Option<ChatContent>,
    /// The name of the speaker.
    pub name: Option<String>,
    /// Calls of tools in an answer.
    pub tool_calls: Option<Vec<Map<String, Value>>>,
    /// The call that a message of role `tool` answers.
    pub tool_call_id: Option<String>,
    /// The thoughts before an answer.
    pub reasoning_content: Option<String>,
}

/// The content of a message.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum ChatContent {
    /// A text.
    Text(String),
    /// Parts: `text`, or `image_url` with a `data:` URL.
    Parts(Vec<ChatContentPart>),
}

/// A part of a message.
#[derive(Debug, JsonSchema)]
pub struct ChatContentPart {
    /// The kind of part.
    #[schemars(rename = "type")]
    pub kind: String,
    /// The text of a part of type `text`.
    pub text: Option<String>,
    /// The image of a part of type `image_url`.
    pub image_url: Option<Value>,
}

/// A tool.
#[derive(Debug, JsonSchema)]
pub struct ToolBody {
    /// `function`.
    #[schemars(rename = "type")]
    pub kind: String,
    /// The function: `name`, `description`, `parameters`, `strict`.
    pub function: Option<Map<String, Value>>,
}

/// Fields about the choice of tokens and the form of the answer, which chats and completions share.
#[derive(Debug, JsonSchema)]
pub struct SamplingFields {
    /// Whether the answer is streamed.
    pub stream: Option<bool>,
    /// `include_usage` and `continuous_usage_stats`.
    pub stream_options: Option<StreamOptionsBody>,
    /// The most tokens of the answer; -1 is no limit.
    pub max_tokens: Option<i64>,
    /// The same, which goes first.
    pub max_completion_tokens: Option<i64>,
    /// The temperature.
    pub temperature: Option<f64>,
    /// The share of the likeliest tokens that are kept.
    pub top_p: Option<f64>,
    /// The number of the likeliest tokens that are kept.
    pub top_k: Option<i64>,
    /// The least probability, relative to that of the likeliest token.
    pub min_p: Option<f64>,
    /// The share of tokens of expected surprise that are kept.
    pub typical_p: Option<f64>,
    /// The standard deviations below the highest logit that are kept; off where not positive.
    pub top_n_sigma: Option<f64>,
    /// The chance that the likeliest tokens are removed.
    pub xtc_probability: Option<f64>,
    /// The probability from which a token counts as likely for that.
    pub xtc_threshold: Option<f64>,
    /// The weight of the penalty on repeated runs; off where not positive.
    pub dry_multiplier: Option<f64>,
    /// The factor of that penalty for each further token.
    pub dry_base: Option<f64>,
    /// The longest run that may be repeated.
    pub dry_allowed_length: Option<i64>,
    /// The tokens that are searched for runs; -1 for all.
    pub dry_penalty_last_n: Option<i64>,
    /// The texts over which no run goes.
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// The tokens at the end of the text that penalties look at; -1 for all.
    pub repeat_last_n: Option<i64>,
    /// Tokens that filters leave at least.
    pub min_keep: Option<i64>,
    /// The seed of random numbers.
    pub seed: Option<i64>,
    /// Texts that end the answer.
    pub stop: Option<OneOrSeveralTexts>,
    /// The number of answers.
    pub n: Option<i64>,
    /// Numbers that are added to the logits of tokens, by token or as pairs; `false` forbids a token.
    pub logit_bias: Option<Value>,
    /// The penalty for tokens that occurred.
    pub presence_penalty: Option<f64>,
    /// The penalty for each time that a token occurred.
    pub frequency_penalty: Option<f64>,
    /// The factor for tokens that occurred.
    pub repetition_penalty: Option<f64>,
    /// Whether keys and values of the prompt are kept for later requests.
    pub cache_prompt: Option<bool>,
    /// Keys and values are shared only between requests with the same text here.
    pub cache_salt: Option<String>,
}

/// Counts that a stream has beside its tokens.
#[derive(Debug, JsonSchema)]
pub struct StreamOptionsBody {
    /// Whether the last chunk has the usage.
    pub include_usage: Option<bool>,
    /// Whether each chunk has the count of tokens.
    pub continuous_usage_stats: Option<bool>,
}

/// A completion of a text or of tokens.
#[derive(Debug, JsonSchema)]
pub struct CompletionRequest {
    /// A model, an alias, `task:NAME`, or `PROVIDER:MODEL`.
    #[schemars(example = &"default")]
    pub model: Option<String>,
    /// A text, texts, tokens or lists of tokens.
    pub prompt: PromptBody,
    /// Whether the answer begins with the prompt.
    pub echo: Option<bool>,
    /// The number of alternatives beside each token.
    pub logprobs: Option<i64>,
    /// The text behind the completion, for models that fill in.
    pub suffix: Option<Value>,
    /// Whether the end token is passed over.
    pub ignore_eos: Option<bool>,
    /// Fields about the choice of tokens.
    #[schemars(flatten)]
    pub sampling: SamplingFields,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// The beginning of a completion.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum PromptBody {
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// The tokens of a text.
    Tokens(Vec<u32>),
    /// The tokens of several texts.
    TokenLists(Vec<Vec<u32>>),
}

/// The answer to a chat.
#[derive(Debug, JsonSchema)]
pub struct ChatCompletion {
    /// The name of the answer.
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answers.
    pub model: String,
    /// The answers.
    pub choices: Vec<ChatCompletionChoice>,
    /// The tokens of the request.
    pub usage: Option<UsageBody>,
    /// The times of the answer.
    pub timings: Option<AnswerTimings>,
}

/// One answer to a chat.
#[derive(Debug, JsonSchema)]
pub struct ChatCompletionChoice {
    /// The number of the answer.
    pub index: u64,
    /// The message of the assistant.
    pub message: AssistantMessage,
    /// The probabilities of tokens, on request.
    pub logprobs: Option<Map<String, Value>>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: Option<String>,
}

/// A message of the assistant.
#[derive(Debug, JsonSchema)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: String,
    /// The text; `null` beside calls.
    pub content: Option<String>,
    /// The thoughts before the answer.
    pub reasoning_content: Option<String>,
    /// Calls of tools.
    pub tool_calls: Option<Vec<Map<String, Value>>>,
}

/// An event of a streamed chat. The last event is `[DONE]`.
#[derive(Debug, JsonSchema)]
pub struct ChatCompletionChunk {
    /// The name of the answer.
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: String,
    /// The model that answers.
    pub model: String,
    /// A piece of each answer; empty in the chunk with the usage.
    pub choices: Vec<ChatDelta>,
    /// The tokens of the request, where they were asked for.
    pub usage: Option<UsageBody>,
    /// In the first and the last chunk: the model that serves, its rung, and the request's waits.
    pub model_boss: Option<Map<String, Value>>,
}

/// A piece of an answer.
#[derive(Debug, JsonSchema)]
pub struct ChatDelta {
    /// The number of the answer.
    pub index: u64,
    /// The piece: `role`, `content`, `reasoning_content`, `tool_calls`.
    pub delta: Map<String, Value>,
    /// The reason of the end, in the last piece.
    pub finish_reason: Option<String>,
}

/// The answer to a completion.
#[derive(Debug, JsonSchema)]
pub struct TextCompletion {
    /// The name of the answer.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answers.
    pub model: String,
    /// The answers.
    pub choices: Vec<TextChoice>,
    /// The tokens of the request.
    pub usage: Option<UsageBody>,
    /// The times of the answer.
    pub timings: Option<AnswerTimings>,
}

/// One completion.
#[derive(Debug, JsonSchema)]
pub struct TextChoice {
    /// The number of the answer.
    pub index: u64,
    /// The text.
    pub text: String,
    /// The probabilities of tokens, on request.
    pub logprobs: Option<Map<String, Value>>,
    /// `stop` or `length`.
    pub finish_reason: Option<String>,
}

/// An event of a streamed completion. The last event is `[DONE]`.
#[derive(Debug, JsonSchema)]
pub struct TextCompletionChunk {
    /// The name of the answer.
    pub id: String,
    /// The model that answers.
    pub model: String,
    /// A piece of each answer.
    pub choices: Vec<TextChoice>,
    /// The tokens of the request, where they were asked for.
    pub usage: Option<UsageBody>,
}
