//! Ollama's API, for tools that support no other. Its requests are translated to OpenAI's, and OpenAI's answers to
//! Ollama's lines of JSON. Shapes follow Ollama's API documentation; durations are in nanoseconds.

mod from_ollama_request;
mod to_ollama_answer;

pub use from_ollama_request::{
    EmbedShape, OllamaRequest, context_wish, from_chat, from_embed, from_generate, ignored_options, keep_alive_of,
    model_name, num_ctx,
};
pub use to_ollama_answer::{AnswerShape, Elapsed, OllamaFromChat, OllamaFromEmbeddings, error_text, timestamp};

#[cfg(test)]
mod tests;
