//! The HTTP API: permissions, routes, and the shapes of answers and errors. The scheduler makes every decision about
//! models; workers make every byte of an answer.

mod admin;
mod changes;
mod clock;
mod context;
mod inference;
mod pulls;
mod route;

use std::sync::Arc;

use admin::{clients, config, events, leases, logs, manage, plan, prometheus, providers, status, tasks};
use axum::Router;
use inference::{messages, models, ollama, openai, responses, tokens};
use route::{Routes, Scope};

pub(crate) use changes::ChangeFeed;
pub(crate) use clock::Clock;
pub(crate) use context::Context;

/// The router of the whole API.
pub(crate) fn router(context: Arc<Context>) -> Router {
    routes(context).into_router()
}

/// Every route with its scope.
fn routes(context: Arc<Context>) -> Routes {
    use Scope::{Inference, Manage, Public, Read};

    Routes::new(context)
        .get("/", Public, status::root)
        .get("/live", Public, status::live)
        .get("/ready", Public, status::ready)
        .get("/health", Public, status::ready)
        .get("/metrics", Read, prometheus::metrics)
        .post("/v1/chat/completions", Inference, openai::chat_completions)
        .post("/v1/completions", Inference, openai::completions)
        .post("/v1/embeddings", Inference, openai::embeddings)
        .post("/v1/rerank", Inference, openai::rerank)
        .post("/v1/reranking", Inference, openai::rerank)
        .post("/v1/score", Inference, openai::score)
        .post("/v1/classify", Inference, openai::classify)
        .post("/embed", Inference, openai::embed)
        .post("/embed_all", Inference, openai::embed_all)
        .post("/predict", Inference, openai::predict)
        .post("/v1/messages", Inference, messages::messages)
        .post("/v1/messages/count_tokens", Inference, messages::count_tokens)
        .post("/v1/tokenize", Inference, tokens::tokenize)
        .post("/v1/detokenize", Inference, tokens::detokenize)
        .post("/v1/responses", Inference, responses::create)
        .get("/v1/responses/{*id}", Inference, responses::show)
        .post("/v1/responses/{*id}", Inference, responses::order)
        .delete("/v1/responses/{*id}", Inference, responses::delete)
        .post("/api/chat", Inference, ollama::chat)
        .post("/api/generate", Inference, ollama::generate)
        .post("/api/embed", Inference, ollama::embed)
        .post("/api/embeddings", Inference, ollama::embeddings)
        .post("/api/show", Inference, ollama::show)
        .post("/api/pull", Inference, pulls::pull_as_ollama)
        .get("/api/tags", Read, ollama::tags)
        .get("/api/ps", Read, ollama::ps)
        .get("/api/version", Read, ollama::version)
        .get("/v1/models", Read, models::list)
        .get("/v1/models/{*id}", Read, models::show)
        .get("/api/v1/health", Read, status::health)
        .get("/api/v1/stats", Read, status::stats)
        .get("/api/v1/slots", Read, status::slots)
        .get("/api/v1/queue", Read, status::queue)
        .get("/api/v1/clients", Read, clients::list)
        .get("/api/v1/devices", Read, status::devices)
        .get("/api/v1/providers", Read, providers::list)
        .get("/api/v1/decisions", Read, status::decisions)
        .get("/api/v1/tasks", Read, tasks::list)
        .get("/api/v1/tasks/{*name}", Read, tasks::show)
        .get("/api/v1/config", Read, config::show)
        .put("/api/v1/config", Manage, config::change)
        .get("/api/v1/leases", Read, leases::list)
        .post("/api/v1/leases", Manage, leases::acquire)
        .put("/api/v1/leases", Manage, leases::renew)
        .delete("/api/v1/leases", Manage, leases::cancel)
        .get("/api/v1/leases/{*id}", Read, leases::show)
        .post("/api/v1/leases/{*id}", Manage, leases::order)
        .put("/api/v1/leases/{*id}", Manage, leases::resize)
        .delete("/api/v1/leases/{*id}", Manage, leases::release)
        .get("/api/v1/events", Read, events::events)
        .get("/api/v1/logs/{*id}", Read, logs::logs)
        .get("/api/v1/pull", Read, pulls::list)
        .post("/api/v1/pull", Manage, pulls::start)
        .delete("/api/v1/pull/{*id}", Manage, pulls::cancel)
        .post("/api/v1/load", Manage, manage::load)
        .post("/api/v1/unload", Manage, manage::unload)
        .post("/api/v1/plan", Manage, plan::plan)
        .post("/api/v1/models/{*id}", Manage, manage::model)
        .post("/api/v1/devices/{*id}", Manage, manage::device_order)
}

#[cfg(test)]
mod tests;
