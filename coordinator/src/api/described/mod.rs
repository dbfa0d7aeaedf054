//! The descriptions of the routes: parameters, bodies, answers and errors, by the types that handlers read and write.
//! The OpenAPI document and the tables of docs/api.md are made of them.

mod anthropic;
mod errors;
mod images;
mod jobs;
mod leases;
mod llama;
mod models;
mod ollama;
mod orders;
mod parameters;
mod pulls;
mod responses;
mod speech;
mod views;

pub(super) use anthropic::{count_tokens, messages};
pub(super) use images::{edits, generations, variations};
pub(super) use jobs::{
    batch, batch_orders, batches, create_batch, delete_file, delete_job, file, files, job, jobs, submit_job,
    upload_file,
};
pub(super) use leases::{
    acquire_lease, cancel_lease, lease, lease_orders, leases, release_lease, renew_leases, resize_lease,
};
pub(super) use llama::{apply_template, bare_completions, chat_tokens, infill, model_slots, native_completion, props};
pub(super) use models::{
    chat_completions, classify, completions, detokenize, embed, embed_all, embeddings, model, models, predict, rerank,
    reranking, score, tokenize, transcriptions, translations,
};
pub(super) use ollama::{
    ollama_chat, ollama_embed, ollama_embeddings, ollama_generate, ollama_ps, ollama_pull, ollama_show, ollama_tags,
    ollama_version,
};
pub(super) use orders::{
    cancel_request, change_config, device_orders, load, load_adapter, model_orders, plan, unload, unload_adapter,
};
pub(super) use pulls::{cancel_pull, pulls, start_pull};
pub(super) use responses::{create_response, delete_response, response, response_orders, response_tokens};
pub(super) use speech::{speech, voices};
pub(super) use views::{
    access, clients, config, dashboard_file, decisions, devices, events, health, history, keys, live, logs, metrics,
    openapi, providers, queue, ready, root, slots, stats, task, tasks, well,
};
