//! The HTTP API: permissions, routes, and the shapes of answers and errors. The scheduler makes every decision about
//! models; workers make every byte of an answer.

mod admin;
mod blocking;
mod changes;
mod clock;
mod context;
mod described;
mod described_api;
mod inference;
mod jobs;
mod pulls;
mod route;

use std::sync::Arc;

use admin::{
    access, adapters, clients, config, dashboard, events, history, keys, leases, logs, manage, openapi, plan,
    providers, requests, status, tasks,
};
use axum::Router;
use inference::{images, llama, messages, models, ollama, openai, responses, speech, tokens, transcripts};
use jobs::{batches, files, routes as job_routes};
use route::{Routes, Scope};

pub(crate) use changes::ChangeFeed;
pub(crate) use clock::Clock;
pub(crate) use context::Context;

/// The router of the whole API.
pub(crate) fn router(context: Arc<Context>) -> Router {
    routes(context).into_router()
}

/// Every route with its scope, its handler and its description.
fn routes(context: Arc<Context>) -> Routes {
    use Scope::{Admin, Held, Inference, Lease, Leases, Manage, Models, Public, Read};

    Routes::new(context)
        .get("/", Public, dashboard::root, described::root())
        .get("/dashboard/{*id}", Public, dashboard::file, described::dashboard_file())
        .get("/live", Public, status::live, described::live())
        .get("/ready", Public, status::ready, described::ready())
        .get("/health", Public, status::ready, described::well())
        .get("/openapi.json", Public, openapi::document, described::openapi())
        .get("/metrics", Read, llama::metrics, described::metrics())
        .post("/v1/chat/completions", Inference, llama::chat_completions, described::chat_completions())
        .post("/v1/completions", Inference, openai::completions, described::completions())
        .post("/completions", Inference, llama::bare_completions, described::bare_completions())
        .post("/completion", Inference, llama::completion, described::native_completion())
        .post("/infill", Inference, llama::infill, described::infill())
        .post("/apply-template", Inference, llama::apply_template, described::apply_template())
        .post("/v1/chat/completions/input_tokens", Inference, llama::chat_tokens, described::chat_tokens())
        .get("/props", Models, llama::props, described::props())
        .get("/slots", Models, llama::slots, described::model_slots())
        .post("/v1/embeddings", Inference, openai::embeddings, described::embeddings())
        .post("/v1/rerank", Inference, openai::rerank, described::rerank())
        .post("/v1/reranking", Inference, openai::rerank, described::reranking())
        .post("/v1/audio/speech", Inference, speech::speech, described::speech())
        .get("/v1/audio/voices", Models, speech::voices, described::voices())
        .post("/v1/images/generations", Inference, images::generations, described::generations())
        .post("/v1/images/edits", Inference, images::edits, described::edits())
        .post("/v1/images/variations", Inference, images::variations, described::variations())
        .post("/v1/score", Inference, openai::score, described::score())
        .post("/v1/classify", Inference, openai::classify, described::classify())
        .post("/v1/audio/transcriptions", Inference, transcripts::transcriptions, described::transcriptions())
        .post("/v1/audio/translations", Inference, transcripts::translations, described::translations())
        .post("/embed", Inference, openai::embed, described::embed())
        .post("/embed_all", Inference, openai::embed_all, described::embed_all())
        .post("/predict", Inference, openai::predict, described::predict())
        .post("/v1/messages", Inference, messages::messages, described::messages())
        .post("/v1/messages/count_tokens", Inference, messages::count_tokens, described::count_tokens())
        .post("/v1/tokenize", Inference, tokens::tokenize, described::tokenize())
        .post("/v1/detokenize", Inference, tokens::detokenize, described::detokenize())
        .post("/v1/responses", Inference, responses::create, described::create_response())
        .post("/v1/responses/input_tokens", Inference, responses::input_tokens, described::response_tokens())
        .get("/v1/responses/{*id}", Inference, responses::show, described::response())
        .post("/v1/responses/{*id}", Inference, responses::order, described::response_orders())
        .delete("/v1/responses/{*id}", Inference, responses::delete, described::delete_response())
        .post("/api/chat", Inference, ollama::chat, described::ollama_chat())
        .post("/api/generate", Inference, ollama::generate, described::ollama_generate())
        .post("/api/embed", Inference, ollama::embed, described::ollama_embed())
        .post("/api/embeddings", Inference, ollama::embeddings, described::ollama_embeddings())
        .post("/api/show", Models, ollama::show, described::ollama_show())
        .post("/api/pull", Inference, pulls::pull_as_ollama, described::ollama_pull())
        .get("/api/tags", Models, ollama::tags, described::ollama_tags())
        .get("/api/ps", Models, ollama::ps, described::ollama_ps())
        .get("/api/version", Models, ollama::version, described::ollama_version())
        .get("/v1/models", Models, models::list, described::models())
        .get("/v1/models/{*id}", Models, models::show, described::model())
        .get("/api/v1/health", Read, status::health, described::health())
        .get("/api/v1/stats", Read, status::stats, described::stats())
        .get("/api/v1/slots", Read, status::slots, described::slots())
        .get("/api/v1/queue", Read, requests::list, described::queue())
        .delete("/api/v1/queue/{*id}", Manage, requests::cancel, described::cancel_request())
        .get("/api/v1/access", Held, access::show, described::access())
        .get("/api/v1/history", Read, history::show, described::history())
        .get("/api/v1/clients", Read, clients::list, described::clients())
        .get("/api/v1/devices", Read, status::devices, described::devices())
        .get("/api/v1/providers", Read, providers::list, described::providers())
        .get("/api/v1/decisions", Read, status::decisions, described::decisions())
        .get("/api/v1/tasks", Read, tasks::list, described::tasks())
        .get("/api/v1/tasks/{*name}", Read, tasks::show, described::task())
        .get("/api/v1/config", Read, config::show, described::config())
        .put("/api/v1/config", Manage, config::change, described::change_config())
        .get("/api/v1/leases", Leases, leases::list, described::leases())
        .post("/api/v1/leases", Lease, leases::acquire, described::acquire_lease())
        .put("/api/v1/leases", Lease, leases::renew, described::renew_leases())
        .delete("/api/v1/leases", Lease, leases::cancel, described::cancel_lease())
        .get("/api/v1/leases/{*id}", Leases, leases::show, described::lease())
        .post("/api/v1/leases/{*id}", Lease, leases::order, described::lease_orders())
        .put("/api/v1/leases/{*id}", Lease, leases::resize, described::resize_lease())
        .delete("/api/v1/leases/{*id}", Lease, leases::release, described::release_lease())
        .get("/api/v1/keys", Admin, keys::list, described::keys())
        .get("/api/v1/pull", Read, pulls::list, described::pulls())
        .post("/api/v1/pull", Manage, pulls::start, described::start_pull())
        .delete("/api/v1/pull/{*id}", Manage, pulls::cancel, described::cancel_pull())
        .get("/api/v1/jobs", Inference, job_routes::list, described::jobs())
        .post("/api/v1/jobs", Inference, job_routes::submit, described::submit_job())
        .get("/api/v1/jobs/{*id}", Inference, job_routes::show, described::job())
        .delete("/api/v1/jobs/{*id}", Inference, job_routes::delete, described::delete_job())
        .get("/v1/files", Inference, files::list, described::files())
        .post("/v1/files", Inference, files::upload, described::upload_file())
        .get("/v1/files/{*id}", Inference, files::show, described::file())
        .delete("/v1/files/{*id}", Inference, files::delete, described::delete_file())
        .get("/v1/batches", Inference, batches::list, described::batches())
        .post("/v1/batches", Inference, batches::create, described::create_batch())
        .get("/v1/batches/{*id}", Inference, batches::show, described::batch())
        .post("/v1/batches/{*id}", Inference, batches::order, described::batch_orders())
        .get("/api/v1/events", Read, events::events, described::events())
        .get("/api/v1/logs/{*id}", Read, logs::logs, described::logs())
        .post("/v1/load_lora_adapter", Manage, adapters::load, described::load_adapter())
        .post("/v1/unload_lora_adapter", Manage, adapters::unload, described::unload_adapter())
        .post("/api/v1/load", Manage, manage::load, described::load())
        .post("/api/v1/unload", Manage, manage::unload, described::unload())
        .post("/api/v1/plan", Manage, plan::plan, described::plan())
        .post("/api/v1/models/{*id}", Manage, manage::model, described::model_orders())
        .post("/api/v1/devices/{*id}", Manage, manage::device_order, described::device_orders())
}

#[cfg(test)]
mod tests;
