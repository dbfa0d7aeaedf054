//! Requests to models in the shapes of OpenAI and its relatives, and the list of models.

use model_boss_openapi::shapes::{
    ChatCompletion, ChatCompletionChunk, ChatCompletionRequest, Classes, ClassifyRequest, CompletionRequest,
    DetokenizeRequest, DetokenizedText, EmbedRequest, EmbeddingsBody, EmbeddingsRequest, PredictRequest,
    PredictedLabels, RankedAnswer, RerankRequest, ScoreRequest, Scores, TextCompletion, TextCompletionChunk,
    TokenVectors, TokenizeRequest, TokenizedText, Transcription, TranscriptionEvent, TranscriptionRequest, Vectors,
};
use model_boss_openapi::{Operation, Tag};
use model_boss_protocol::ErrorCode;
use schemars::JsonSchema;

use super::errors::OF_INFERENCE;
use super::parameters::{OF_AN_ANSWER, by_a_client, with_own_headers};
use crate::api::inference::models::{AnthropicList, AnthropicModel, ListedModel, ModelDetails, OpenAiModels};

/// Server-sent events.
pub(super) const EVENTS: &str = "text/event-stream";

/// A request that a model answers at once, or as a stream.
pub(super) fn asked<B: JsonSchema, A: JsonSchema>(tag: Tag, id: &'static str, text: &'static str) -> Operation {
    let operation = Operation::new(tag, id, text).body::<B>().passes::<A>("the answer").with_headers(OF_AN_ANSWER);
    with_own_headers(operation).errors(OF_INFERENCE)
}

fn of_models<B: JsonSchema, A: JsonSchema>(id: &'static str, text: &'static str) -> Operation {
    asked::<B, A>(Tag::Models, id, text).status_of_engines()
}

/// `POST /v1/chat/completions`.
pub(crate) fn chat_completions() -> Operation {
    of_models::<ChatCompletionRequest, ChatCompletion>(
        "create_chat_completion",
        "OpenAI's chat; `reasoning_content` is a model's thinking",
    )
    .passes_stream::<ChatCompletionChunk>(EVENTS)
}

/// `POST /v1/completions`.
pub(crate) fn completions() -> Operation {
    of_models::<CompletionRequest, TextCompletion>("create_completion", "OpenAI's completion of a text")
        .passes_stream::<TextCompletionChunk>(EVENTS)
}

/// `POST /v1/embeddings`.
pub(crate) fn embeddings() -> Operation {
    of_models::<EmbeddingsRequest, EmbeddingsBody>(
        "create_embeddings",
        "vectors by models of the category `embedding`, of texts and images by `vision`, and by providers that speak \
         OpenAI's API",
    )
    .see(&["embeddings.md", "vision.md", "clouds.md"])
}

/// `POST /v1/rerank`.
pub(crate) fn rerank() -> Operation {
    ranking("rerank", "the relevance of documents to a query, by models of the category `reranking`")
}

/// `POST /v1/reranking`.
pub(crate) fn reranking() -> Operation {
    ranking("reranking", "another name of `/v1/rerank`")
}

fn ranking(id: &'static str, text: &'static str) -> Operation {
    of_models::<RerankRequest, RankedAnswer>(id, text).see(&["reranking.md"])
}

/// `POST /v1/score`.
pub(crate) fn score() -> Operation {
    of_models::<ScoreRequest, Scores>("score", "scores of pairs, as vLLM's: by models of the category `reranking`")
}

/// `POST /v1/classify`.
pub(crate) fn classify() -> Operation {
    of_models::<ClassifyRequest, Classes>(
        "classify",
        "shares of labels, as vLLM's: by models of the category `reranking`, and with `labels` by those of `vision`",
    )
}

/// `POST /v1/audio/transcriptions`.
pub(crate) fn transcriptions() -> Operation {
    of_sound("create_transcription", "the words of a recording, by models of the category `transcription`")
}

/// `POST /v1/audio/translations`.
pub(crate) fn translations() -> Operation {
    of_sound("create_translation", "the same in English")
}

/// A form with a file of sound.
fn of_sound(id: &'static str, text: &'static str) -> Operation {
    let operation = Operation::new(Tag::Models, id, text).form::<TranscriptionRequest>();
    let operation = operation.passes::<Transcription>("the answer").with_headers(OF_AN_ANSWER);
    let operation = with_own_headers(operation).errors(OF_INFERENCE).status_of_engines();
    operation.passes_stream::<TranscriptionEvent>(EVENTS).see(&["transcription.md"])
}

/// `POST /embed`.
pub(crate) fn embed() -> Operation {
    of_models::<EmbedRequest, Vectors>(
        "embed",
        "as text-embeddings-inference's: for models of the category `embedding`",
    )
}

/// `POST /embed_all`.
pub(crate) fn embed_all() -> Operation {
    of_models::<EmbedRequest, TokenVectors>("embed_all", "as text-embeddings-inference's, with a vector for each token")
}

/// `POST /predict`.
pub(crate) fn predict() -> Operation {
    of_models::<PredictRequest, PredictedLabels>(
        "predict",
        "as text-embeddings-inference's: for models of the category `reranking`",
    )
}

/// `POST /v1/tokenize`.
pub(crate) fn tokenize() -> Operation {
    of_models::<TokenizeRequest, TokenizedText>(
        "tokenize",
        "the [tokens](#tokens) of a text, by a model of this machine",
    )
}

/// `POST /v1/detokenize`.
pub(crate) fn detokenize() -> Operation {
    of_models::<DetokenizeRequest, DetokenizedText>("detokenize", "the text of tokens")
}

/// The most models of a page.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct ListLimit(
    #[schemars(range(min = 1))]
    #[allow(dead_code, reason = "it only describes")]
    u64,
);

/// The list of models, in the shape of the client's API.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code, reason = "the type only describes")]
enum ListedModels<'a> {
    OpenAi(OpenAiModels<'a>),
    Anthropic(AnthropicList),
}

/// One entry of the list, in the shape of the client's API.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[allow(dead_code, reason = "the type only describes")]
enum ShownModel<'a> {
    Details(Box<ModelDetails<'a>>),
    Entry(Box<ListedModel<'a>>),
    Anthropic(AnthropicModel),
}

/// `GET /v1/models`.
pub(crate) fn models() -> Operation {
    let operation = Operation::new(
        Tag::Models,
        "list_models",
        "models (`kind: model`), their aliases (`alias`), tasks (`task`), and the models of providers (`cloud`) that the \
         caller may use; with `anthropic-version` in Anthropic's shape and pages",
    );
    by_a_client(operation)
        .header::<String>("anthropic-version", "The version of Anthropic's API: the answer has its shape.")
        .query::<ListLimit>("limit", "The most models of a page in Anthropic's shape.")
        .query::<String>("after_id", "The model before a page in Anthropic's shape.")
        .query::<String>("before_id", "The model behind a page in Anthropic's shape.")
        .answers::<ListedModels<'_>>(200, "the models")
        .leads_to("/data/0/id", &["get_model", "move_model", "invalidate_model", "pin_model"])
        .for_anthropics_clients_too()
}

/// `GET /v1/models/ID`.
pub(crate) fn model() -> Operation {
    let text = "one model, with its manifest; the id may contain `/` and `:`, raw or percent-encoded";
    by_a_client(Operation::new(Tag::Models, "get_model", text))
        .slashed_id_of::<String>("The name of a model, an alias, `task:NAME`, or `PROVIDER:MODEL`.")
        .header::<String>("anthropic-version", "The version of Anthropic's API: the answer has its shape.")
        .answers::<ShownModel<'_>>(200, "the model")
        .errors(&[ErrorCode::ModelNotFound, ErrorCode::CloudNotAllowed])
        .for_anthropics_clients_too()
}
