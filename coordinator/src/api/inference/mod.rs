//! Routes of clients of models: four dialects, from a request to the last byte of its answer, and the lists of models.

mod account;
pub(super) mod ahead;
mod allowance;
mod annotate;
mod answer;
mod answer_body;
mod answer_form;
mod cloud_models;
mod endings;
mod fitting;
mod forward;
pub(super) mod llama;
mod marks;
mod meant;
pub(super) mod messages;
pub(super) mod models;
pub(super) mod ollama;
pub(super) mod openai;
mod reshape;
pub(super) mod responses;
mod sound;
pub(super) mod speech;
mod stream;
pub(super) mod tokens;
mod traced;
pub(super) mod transcripts;
mod usage;
