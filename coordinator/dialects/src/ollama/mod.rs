//! Ollama's API, for tools that speak nothing else: its requests as OpenAI's, and OpenAI's answers as its lines of JSON.
//! Shapes as Ollama's API documentation has them; durations are nanoseconds.

mod answer;
mod request;

pub use answer::{AnswerShape, Elapsed, OllamaFromChat, OllamaFromEmbeddings, error_text, timestamp};
pub use request::{Asked, EmbedShape, chat, embed, generate, keep_alive_of, model_name};

#[cfg(test)]
mod tests;
