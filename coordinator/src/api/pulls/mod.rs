//! Pulls over HTTP: the routes of model-boss, and Ollama's.

mod lines;
mod ollama;
mod routes;
mod wish;

pub(crate) use ollama::pull as pull_as_ollama;
pub(crate) use routes::{PullBody, PullsAnswer, cancel, list, start};
