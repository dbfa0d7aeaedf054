//! Ollama's API.

use model_boss_openapi::shapes::{
    OllamaChatAnswer, OllamaChatRequest, OllamaEmbedAnswer, OllamaEmbedRequest, OllamaEmbeddingAnswer,
    OllamaEmbeddingRequest, OllamaGenerateAnswer, OllamaGenerateRequest, OllamaModels, OllamaPullRequest,
    OllamaRunningModels, OllamaShowRequest, OllamaShown, OllamaStatus, OllamaVersion,
};
use model_boss_openapi::{Operation, Tag};
use model_boss_protocol::ErrorCode;

use super::models::asked;
use super::parameters::by_a_client;
use super::pulls::OF_PULLS;

/// Lines of JSON.
const LINES: &str = "application/x-ndjson";

const OF_NAMES: &[ErrorCode] = &[ErrorCode::ModelNotFound, ErrorCode::CloudNotAllowed];

/// `POST /api/chat`.
pub(crate) fn ollama_chat() -> Operation {
    asked::<OllamaChatRequest, OllamaChatAnswer>(Tag::Ollama, "ollama_chat", "Ollama's chat")
        .passes_stream::<OllamaChatAnswer>(LINES)
        .see(&["dialects.md"])
        .status_of_engines()
}

/// `POST /api/generate`.
pub(crate) fn ollama_generate() -> Operation {
    asked::<OllamaGenerateRequest, OllamaGenerateAnswer>(Tag::Ollama, "ollama_generate", "Ollama's completion")
        .passes_stream::<OllamaGenerateAnswer>(LINES)
        .see(&["dialects.md"])
        .status_of_engines()
}

/// `POST /api/embed`.
pub(crate) fn ollama_embed() -> Operation {
    asked::<OllamaEmbedRequest, OllamaEmbedAnswer>(Tag::Ollama, "ollama_embed", "Ollama's embeddings")
        .status_of_engines()
}

/// `POST /api/embeddings`.
pub(crate) fn ollama_embeddings() -> Operation {
    let text = "Ollama's older route for the embedding of one text";
    asked::<OllamaEmbeddingRequest, OllamaEmbeddingAnswer>(Tag::Ollama, "ollama_embeddings", text).status_of_engines()
}

/// `POST /api/show`.
pub(crate) fn ollama_show() -> Operation {
    by_a_client(Operation::new(Tag::Ollama, "ollama_show", "one model, as Ollama describes it"))
        .body::<OllamaShowRequest>()
        .passes::<OllamaShown>("the model")
        .errors(OF_NAMES)
}

/// `POST /api/pull`.
pub(crate) fn ollama_pull() -> Operation {
    let text = "Ollama's pull of `hf.co/ORG/NAME:QUANT`, or of a manifest's model";
    by_a_client(Operation::new(Tag::Ollama, "ollama_pull", text))
        .body::<OllamaPullRequest>()
        .see(&["downloads.md"])
        .passes::<OllamaStatus>("the model's files are there")
        .passes_stream::<OllamaStatus>(LINES)
        .errors(OF_NAMES)
        .errors(OF_PULLS)
}

/// `GET /api/tags`.
pub(crate) fn ollama_tags() -> Operation {
    by_a_client(Operation::new(Tag::Ollama, "ollama_tags", "the models that a request may name"))
        .passes::<OllamaModels>("the models")
}

/// `GET /api/ps`.
pub(crate) fn ollama_ps() -> Operation {
    Operation::new(Tag::Ollama, "ollama_ps", "the loaded models").passes::<OllamaRunningModels>("the models")
}

/// `GET /api/version`.
pub(crate) fn ollama_version() -> Operation {
    Operation::new(Tag::Ollama, "ollama_version", "the version of Ollama whose API this is")
        .passes::<OllamaVersion>("the version")
}
