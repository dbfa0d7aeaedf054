//! llama-server's own routes.

use model_boss_openapi::shapes::{
    CompletionRequest, ConversationRequest, InfillRequest, NativeCompletion, NativeCompletionRequest,
    NativeCompletions, RenderedPrompt, TextCompletion,
};
use model_boss_openapi::{Operation, Tag};
use model_boss_protocol::ErrorCode;
use schemars::JsonSchema;

use super::models::{EVENTS, asked};
use super::parameters::by_a_client;
use crate::api::inference::llama::{BatchPlace, ModelProps, TokenCount};

const PAGE: &[&str] = &["llama-server.md"];

fn of_llama_server<B: JsonSchema, A: JsonSchema>(id: &'static str, text: &'static str) -> Operation {
    asked::<B, A>(Tag::Models, id, text).status_of_engines().see(PAGE)
}

/// `POST /completions`.
pub(crate) fn bare_completions() -> Operation {
    of_llama_server::<CompletionRequest, TextCompletion>(
        "create_completion_at_root",
        "llama-server's `/completion` for a request with `n_predict` or without `model`, else `/v1/completions`",
    )
}

/// `POST /completion`.
pub(crate) fn native_completion() -> Operation {
    of_llama_server::<NativeCompletionRequest, NativeCompletions>(
        "create_native_completion",
        "llama-server's completion of a prompt, in its own shape",
    )
    .passes_stream::<NativeCompletion>(EVENTS)
}

/// `POST /infill`.
pub(crate) fn infill() -> Operation {
    of_llama_server::<InfillRequest, NativeCompletions>("infill", "the text of a gap, by models with tokens for it")
        .passes_stream::<NativeCompletion>(EVENTS)
}

/// `POST /apply-template`.
pub(crate) fn apply_template() -> Operation {
    of_llama_server::<ConversationRequest, RenderedPrompt>("apply_template", "the prompt of a conversation, as a text")
}

/// `POST /v1/chat/completions/input_tokens`.
pub(crate) fn chat_tokens() -> Operation {
    of_llama_server::<ConversationRequest, TokenCount>("count_chat_tokens", "the number of tokens of a chat's prompt")
}

fn of_a_model(id: &'static str, text: &'static str) -> Operation {
    by_a_client(Operation::new(Tag::Models, id, text))
        .see(PAGE)
        .query::<String>("model", "The model; the only one of this machine, or `default`, where it is absent.")
        .errors(&[ErrorCode::ModelNotFound, ErrorCode::InvalidRequest])
}

/// `GET /props`.
pub(crate) fn props() -> Operation {
    of_a_model("model_props", "the properties of a model, as llama-server's")
        .answers::<ModelProps>(200, "the properties")
}

/// `GET /slots`.
pub(crate) fn model_slots() -> Operation {
    of_a_model("model_slots", "the places in a model's batch, as llama-server's")
        .answers::<Vec<BatchPlace>>(200, "the places")
}
