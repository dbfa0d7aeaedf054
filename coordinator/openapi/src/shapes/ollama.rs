//! Ollama's API.

use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::common::{OneOrSeveralTexts, RequestOwnFields};

/// Fields that Ollama's chats and completions share.
#[derive(Debug, JsonSchema)]
pub struct OllamaAsked {
    /// A model, an alias, `task:NAME`, or `PROVIDER:MODEL`. A tag `:latest` is left out.
    #[schemars(example = &"default")]
    pub model: Option<String>,
    /// An older name of `model`.
    pub name: Option<String>,
    /// Whether the answer is streamed; true by default.
    pub stream: Option<bool>,
    /// `json`, or a JSON schema.
    pub format: Option<Value>,
    /// Options of the model's engine, such as `temperature` and `num_predict`.
    pub options: Option<Map<String, Value>>,
    /// Whether the model thinks: true, false, or an effort.
    pub think: Option<ThinkBody>,
    /// Whether a prompt that is too long is shortened.
    pub truncate: Option<bool>,
    /// Whether an answer goes on behind the end of the context.
    pub shift: Option<bool>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// Whether a model thinks.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum ThinkBody {
    /// Whether it does.
    Flag(bool),
    /// The effort.
    Effort(String),
}

/// A chat. Without messages the model is loaded, or unloaded where `keep_alive` is 0.
#[derive(Debug, JsonSchema)]
pub struct OllamaChatRequest {
    /// The conversation so far.
    pub messages: Option<Vec<Map<String, Value>>>,
    /// Tools that the answer may call.
    pub tools: Option<Vec<Value>>,
    /// Fields of all requests.
    #[schemars(flatten)]
    pub asked: OllamaAsked,
}

/// A completion. Without a prompt the model is loaded, or unloaded where `keep_alive` is 0.
#[derive(Debug, JsonSchema)]
pub struct OllamaGenerateRequest {
    /// The prompt.
    pub prompt: Option<String>,
    /// The text behind the completion, for models that fill in.
    pub suffix: Option<String>,
    /// The system prompt.
    pub system: Option<String>,
    /// Images in base64.
    pub images: Option<Vec<Value>>,
    /// Whether the prompt is used without a chat template.
    pub raw: Option<bool>,
    /// Fields of all requests.
    #[schemars(flatten)]
    pub asked: OllamaAsked,
}

/// The answer to a chat, and each line of a streamed one. The last line has the counts.
#[derive(Debug, JsonSchema)]
pub struct OllamaChatAnswer {
    /// The message, or a piece of it.
    pub message: Map<String, Value>,
    /// Fields of all answers.
    #[schemars(flatten)]
    pub answer: OllamaAnswerFields,
}

/// The answer to a completion, and each line of a streamed one. The last line has the counts.
#[derive(Debug, JsonSchema)]
pub struct OllamaGenerateAnswer {
    /// The text, or a piece of it.
    pub response: String,
    /// Fields of all answers.
    #[schemars(flatten)]
    pub answer: OllamaAnswerFields,
}

/// Fields that Ollama's answers share. Durations are in nanoseconds.
#[derive(Debug, JsonSchema)]
pub struct OllamaAnswerFields {
    /// The model that was asked for.
    pub model: String,
    /// The time of the answer.
    pub created_at: String,
    /// Whether this is the end.
    pub done: bool,
    /// `stop`, `length`, `load` or `unload`.
    pub done_reason: Option<String>,
    /// The whole time.
    pub total_duration: Option<u64>,
    /// The time of loading.
    pub load_duration: Option<u64>,
    /// Tokens of the prompt.
    pub prompt_eval_count: Option<u64>,
    /// The time of the prompt.
    pub prompt_eval_duration: Option<u64>,
    /// Tokens of the answer.
    pub eval_count: Option<u64>,
    /// The time of the answer.
    pub eval_duration: Option<u64>,
}

/// A request for vectors of one text or several.
#[derive(Debug, JsonSchema)]
pub struct OllamaEmbedRequest {
    /// A model, an alias, or `PROVIDER:MODEL`.
    pub model: Option<String>,
    /// The texts.
    pub input: OneOrSeveralTexts,
    /// The length of the vectors.
    pub dimensions: Option<i64>,
    /// Whether a text that is too long is cut.
    pub truncate: Option<bool>,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// A vector for each text.
#[derive(Debug, JsonSchema)]
pub struct OllamaEmbedAnswer {
    /// The model that was asked for.
    pub model: String,
    /// The vectors.
    pub embeddings: Vec<Vec<f64>>,
    /// The whole time in nanoseconds.
    pub total_duration: Option<u64>,
    /// The time of loading in nanoseconds.
    pub load_duration: Option<u64>,
    /// Tokens of the texts.
    pub prompt_eval_count: Option<u64>,
}

/// A request for the vector of one text, by the older route.
#[derive(Debug, JsonSchema)]
pub struct OllamaEmbeddingRequest {
    /// A model, an alias, or `PROVIDER:MODEL`.
    pub model: Option<String>,
    /// The text.
    pub prompt: String,
    /// model-boss's own fields.
    #[schemars(flatten)]
    pub own: RequestOwnFields,
}

/// The vector of one text.
#[derive(Debug, JsonSchema)]
pub struct OllamaEmbeddingAnswer {
    /// The vector.
    pub embedding: Vec<f64>,
}

/// A question about one model.
#[derive(Debug, JsonSchema)]
pub struct OllamaShowRequest {
    /// The model.
    #[schemars(example = &"default")]
    pub model: Option<String>,
    /// An older name of `model`.
    pub name: Option<String>,
}

/// A request for a model that exists here already.
#[derive(Debug, JsonSchema)]
pub struct OllamaPullRequest {
    /// The model.
    #[schemars(example = &"default")]
    pub model: Option<String>,
    /// An older name of `model`.
    pub name: Option<String>,
    /// Whether the answer comes in lines; true by default.
    pub stream: Option<bool>,
}

/// A state in words.
#[derive(Debug, JsonSchema)]
pub struct OllamaStatus {
    /// `success` at the end.
    pub status: String,
}

/// The version of Ollama whose API this is.
#[derive(Debug, JsonSchema)]
pub struct OllamaVersion {
    /// Ollama's version.
    pub version: String,
    /// This program's version.
    pub model_boss: String,
}

/// The models that a request may name.
#[derive(Debug, JsonSchema)]
pub struct OllamaModels {
    /// The models.
    pub models: Vec<OllamaModel>,
}

/// A model.
#[derive(Debug, JsonSchema)]
pub struct OllamaModel {
    /// The name.
    pub name: String,
    /// The same name.
    pub model: String,
    /// The time of its last change.
    pub modified_at: String,
    /// Bytes.
    pub size: u64,
    /// A digest that changes with the model's files.
    pub digest: String,
    /// Format, family and sizes; unknown ones are empty texts.
    pub details: Map<String, Value>,
    /// The provider's own name of a model of a provider.
    pub remote_model: Option<String>,
    /// The address of the provider.
    pub remote_host: Option<String>,
}

/// The loaded models.
#[derive(Debug, JsonSchema)]
pub struct OllamaRunningModels {
    /// The models.
    pub models: Vec<OllamaRunningModel>,
}

/// A loaded model.
#[derive(Debug, JsonSchema)]
pub struct OllamaRunningModel {
    /// The model.
    #[schemars(flatten)]
    pub model: OllamaModel,
    /// Bytes on GPUs.
    pub size_vram: u64,
    /// The context in tokens.
    pub context_length: u64,
    /// The time of unloading.
    pub expires_at: String,
}

/// One model in detail.
#[derive(Debug, JsonSchema)]
pub struct OllamaShown {
    /// The licence.
    pub license: String,
    /// The source of the model.
    pub modelfile: String,
    /// Defaults of requests, one a line.
    pub parameters: String,
    /// The chat template.
    pub template: String,
    /// Format, family and sizes; unknown ones are empty texts.
    pub details: Map<String, Value>,
    /// Metadata of the model's files.
    pub model_info: Map<String, Value>,
    /// The abilities of the model: `completion`, `tools`, `vision`, `thinking`, `embedding`, `reranking`.
    pub capabilities: Vec<String>,
    /// The time of its last change.
    pub modified_at: String,
}
