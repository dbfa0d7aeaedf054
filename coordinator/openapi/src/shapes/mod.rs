//! Bodies of other APIs, which the coordinator passes on, translates or makes itself. The types only describe: what a
//! route takes and answers is held to them by tests that send real requests.

mod anthropic;
mod chat;
mod common;
mod errors;
mod hearing;
mod images;
mod judging;
mod llama;
mod ollama;
mod responses;
mod speech;
mod vectors;

pub use anthropic::{CountMessagesRequest, CountedTokens, MessagesAnswer, MessagesEvent, MessagesRequest};
pub use chat::{
    ChatCompletion, ChatCompletionChunk, ChatCompletionRequest, CompletionRequest, TextCompletion, TextCompletionChunk,
};
pub use common::{DetokenizeRequest, DetokenizedText, TokenizeRequest, TokenizedText};
pub use errors::{AnthropicErrorBody, OllamaErrorBody};
pub use hearing::{Transcription, TranscriptionEvent, TranscriptionRequest};
pub use images::{EditRequest, PictureEventBody, PictureRequestBody, PicturesBody};
pub use judging::{
    Classes, ClassifyRequest, PredictRequest, PredictedLabels, RankedAnswer, RerankRequest, ScoreRequest, Scores,
};
pub use llama::{
    ConversationRequest, InfillFile, InfillRequest, NativeCompletion, NativeCompletionRequest, NativeCompletions,
    RenderedPrompt,
};
pub use ollama::{
    OllamaChatAnswer, OllamaChatRequest, OllamaEmbedAnswer, OllamaEmbedRequest, OllamaEmbeddingAnswer,
    OllamaEmbeddingRequest, OllamaGenerateAnswer, OllamaGenerateRequest, OllamaModels, OllamaPullRequest,
    OllamaRunningModels, OllamaShowRequest, OllamaShown, OllamaStatus, OllamaVersion,
};
pub use responses::{DeletedResponse, ResponseItems, ResponseObject, ResponsesEvent, ResponsesRequestBody};
pub use speech::{
    SoundBytes, SpeechEventBody, SpeechFormat, SpeechRequest, SpeechStreamFormat, SpeechUsageBody, VoiceChoice,
};
pub use vectors::{EmbedRequest, EmbeddingsBody, EmbeddingsRequest, TokenVectors, Vectors};
