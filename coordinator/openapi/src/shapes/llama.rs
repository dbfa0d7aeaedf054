//! Bodies of llama-server's own routes.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::chat::{PromptBody, SamplingFields};
use super::common::{AnswerTimings, RequestOwnFields};

/// A prompt to continue, in llama-server's fields.
#[derive(Debug, JsonSchema)]
pub struct NativeCompletionRequest {
    /// The model; the only one of this machine, or the one called `default`, where it is absent.
    pub model: Option<String>,
    /// A text, texts, tokens, lists of them, or tokens and texts in one list.
    pub prompt: PromptBody,
    /// The most tokens of the answer; -1 for no limit but the context.
    pub n_predict: Option<i64>,
    /// The number of alternatives beside each token.
    pub n_probs: Option<u64>,
    /// Whether the answer has its tokens as numbers.
    pub return_tokens: Option<bool>,
    /// Whether a stream tells how much of the prompt is evaluated.
    pub return_progress: Option<bool>,
    /// Whether every event of a stream has times.
    pub timings_per_token: Option<bool>,
    /// The fields of the answer that the client wants; all where it is absent.
    pub response_fields: Option<Vec<String>>,
    /// Whether the end token is passed over.
    pub ignore_eos: Option<bool>,
    /// Fields about the choice of tokens.
    #[schemars(flatten)]
    pub sampling: SamplingFields,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// A gap to fill, in llama-server's fields.
#[derive(Debug, JsonSchema)]
pub struct InfillRequest {
    /// The model.
    pub model: Option<String>,
    /// The text before the gap.
    pub input_prefix: String,
    /// The text behind the gap.
    pub input_suffix: String,
    /// The beginning of the text in the gap.
    pub prompt: Option<String>,
    /// Other files of the project.
    pub input_extra: Option<Vec<InfillFile>>,
    /// The most tokens of the answer.
    pub n_predict: Option<i64>,
    /// Fields about the choice of tokens.
    #[schemars(flatten)]
    pub sampling: SamplingFields,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// A file beside the one with the gap.
#[derive(Debug, JsonSchema)]
pub struct InfillFile {
    /// The file's name.
    pub filename: Option<String>,
    /// The file's text.
    pub text: String,
}

/// An answer in llama-server's own shape. Answers to several prompts are in a list.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum NativeCompletions {
    /// One answer.
    One(Box<NativeCompletion>),
    /// Several answers.
    Several(Vec<NativeCompletion>),
}

/// One answer in llama-server's own shape.
#[derive(Debug, JsonSchema)]
pub struct NativeCompletion {
    /// The number of the answer.
    pub index: u64,
    /// The text.
    pub content: String,
    /// The tokens of the text, on request.
    pub tokens: Vec<u32>,
    /// Whether this is the end; false in events of a stream.
    pub stop: bool,
    /// `eos`, `word` or `limit`.
    pub stop_type: Option<String>,
    /// The text that ended the answer.
    pub stopping_word: Option<String>,
    /// Tokens of the prompt.
    pub tokens_evaluated: u64,
    /// Tokens of the answer.
    pub tokens_predicted: u64,
    /// Every option as it was used.
    pub generation_settings: Option<Map<String, Value>>,
    /// Each token with its probability and its alternatives, on request.
    pub completion_probabilities: Option<Vec<Map<String, Value>>>,
    /// The times of the answer.
    pub timings: Option<AnswerTimings>,
}

/// A conversation, for its prompt or the number of its tokens.
#[derive(Debug, JsonSchema)]
pub struct ConversationRequest {
    /// The model.
    pub model: Option<String>,
    /// The messages.
    pub messages: Vec<Map<String, Value>>,
    /// The tools that the model may call.
    pub tools: Option<Vec<Map<String, Value>>>,
    /// Whether the beginning of the answer's turn follows.
    pub add_generation_prompt: Option<bool>,
    /// Variables of the model's chat template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// The prompt of a conversation.
#[derive(Debug, JsonSchema)]
pub struct RenderedPrompt {
    /// The prompt as a text.
    pub prompt: String,
}
