//! Errors in the shapes of Anthropic's and Ollama's clients. OpenAI's shape is `ErrorBody` of the protocol.

use schemars::JsonSchema;

/// An error as Anthropic's clients read it.
#[derive(Debug, JsonSchema)]
pub struct AnthropicErrorBody {
    /// Always `error`.
    #[schemars(rename = "type")]
    pub kind: String,
    /// The error itself.
    pub error: AnthropicErrorObject,
}

/// The object inside of an error as Anthropic's clients read it.
#[derive(Debug, JsonSchema)]
pub struct AnthropicErrorObject {
    /// Anthropic's type of the error.
    #[schemars(rename = "type")]
    pub kind: String,
    /// The message, human-readable.
    pub message: String,
}

/// An error as Ollama's clients read it.
#[derive(Debug, JsonSchema)]
pub struct OllamaErrorBody {
    /// The message, human-readable.
    pub error: String,
}
