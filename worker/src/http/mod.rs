//! The worker's HTTP API: OpenAI's inference routes, health, tokens, metrics. Knows the engine's contract and the text
//! side of the model; no decoder.

mod adapters;
mod answer;
mod body;
mod call_ids;
mod chat;
mod completions;
mod deadline;
mod dry;
mod embeddings;
mod error;
mod fields;
mod form;
mod generate;
mod images;
mod infill;
mod info;
mod logprobs;
mod message;
mod native;
mod native_answer;
mod options;
mod painting;
mod pairs;
mod parked;
mod pictures;
mod plan;
mod progress;
mod prompts;
mod rerank;
mod routes;
mod score;
mod server;
mod speech;
mod stream;
mod tally;
mod tei;
#[cfg(test)]
mod tests;
mod tokens;
mod tools;
mod transcripts;
mod vision;

pub(crate) use options::check_defaults;
pub(crate) use server::HttpServer;
