//! Ollama's API, for tools that speak nothing else: its requests as OpenAI's, and OpenAI's answers as its lines of JSON.
//! Shapes as Ollama's API documentation has them; durations are nanoseconds.

mod from_ollama_request;
mod to_ollama_answer;

pub use from_ollama_request::{
    EmbedShape, OllamaRequest, from_chat, from_embed, from_generate, keep_alive_of, model_name,
};
pub use to_ollama_answer::{AnswerShape, Elapsed, OllamaFromChat, OllamaFromEmbeddings, error_text, timestamp};

#[cfg(test)]
mod tests;
