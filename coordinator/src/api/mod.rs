//! The HTTP API: who may come in, what is asked, and how answers and errors look. Every decision about models is the
//! scheduler's; every byte of an answer is a worker's.

mod accept;
mod account;
mod annotate;
mod answer;
mod answer_body;
mod bare_errors;
mod body;
mod clients;
mod clock;
mod cloud_models;
mod config;
mod door;
mod error;
mod events;
mod inference;
mod leases;
mod logs;
mod manage;
mod messages;
mod models;
mod ollama;
mod origin;
mod patience;
mod peek;
mod peer;
mod plan;
mod prometheus;
mod providers;
mod reshape;
mod route;
mod status;
mod stream;
mod tasks;
mod usage;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use route::{Routes, Scope};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::catalog::LiveCatalog;
use crate::cloud::Clouds;
use crate::config::{ApiKeys, Limits, Sse};
use crate::leases::{DeviceTable, Leases, StoreWatch};
use crate::log_filter::LogFilter;
use crate::memory::MemoryBudget;
use crate::metrics::Metrics;
use crate::owner::OwnerKey;
use crate::runtime_config::RuntimeConfig;
use crate::scheduling::Scheduling;
use crate::state_folder::StateFolder;
use crate::supervisor::Streams;
use crate::tasks::LiveTasks;

pub(crate) use accept::{Server, ServerLimits};
pub(crate) use clock::Clock;
pub(crate) use door::Door;
pub(crate) use events::Changes;
pub(crate) use origin::AllowedHosts;
pub(crate) use patience::Patience;

/// What handlers use.
pub(crate) struct Context {
    /// The queue.
    pub(crate) scheduling: Scheduling,
    /// The models.
    pub(crate) catalog: Arc<LiveCatalog>,
    /// What names mean.
    pub(crate) tasks: Arc<LiveTasks>,
    /// What can be set while the process runs.
    pub(crate) config: Arc<RuntimeConfig>,
    /// The providers elsewhere.
    pub(crate) clouds: Arc<Clouds>,
    /// The ledger.
    pub(crate) leases: Leases,
    /// The devices as last seen.
    pub(crate) devices: DeviceTable,
    /// How the ledger's store is.
    pub(crate) store: StoreWatch,
    /// What workers say of layers that come and go.
    pub(crate) streams: Streams,
    /// What is counted.
    pub(crate) metrics: Arc<Metrics>,
    /// The names that mean this server.
    pub(crate) hosts: AllowedHosts,
    /// The keys that open it; everybody on loopback may come in without.
    pub(crate) keys: Option<ApiKeys>,
    /// What the user who runs this process shows; `None` where it could not be written.
    pub(crate) owner: Option<OwnerKey>,
    /// How large things may be.
    pub(crate) limits: Limits,
    /// What bodies and answers in flight may take in all.
    pub(crate) memory: MemoryBudget,
    /// When comments keep a stream alive.
    pub(crate) sse: Sse,
    /// Where the output of workers is kept.
    pub(crate) logs: PathBuf,
    /// What survives a restart, and what is wrong there.
    pub(crate) state: StateFolder,
    /// The log of the process itself.
    pub(crate) log: LogFilter,
    /// Set when the process is asked to end.
    pub(crate) draining: CancellationToken,
    /// When the process began.
    pub(crate) started: Instant,
    /// The scheduler's time as people know it.
    pub(crate) clock: Clock,
    /// What changed lately.
    pub(crate) changes: Arc<Changes>,
    /// The beginning of every request id made here.
    pub(crate) id_prefix: String,
}

/// What answers every route.
pub(crate) fn router(context: Arc<Context>) -> Router {
    routes(context).into_router()
}

/// Every route, with what it takes to use it.
fn routes(context: Arc<Context>) -> Routes {
    use Scope::{Inference, Manage, Public, Read};

    Routes::new(context)
        .get("/", Public, status::root)
        .get("/live", Public, status::live)
        .get("/ready", Public, status::ready)
        .get("/health", Public, status::ready)
        .get("/metrics", Read, prometheus::metrics)
        .post("/v1/chat/completions", Inference, inference::chat_completions)
        .post("/v1/completions", Inference, inference::completions)
        .post("/v1/embeddings", Inference, inference::embeddings)
        .post("/v1/rerank", Inference, inference::rerank)
        .post("/v1/reranking", Inference, inference::rerank)
        .post("/v1/messages", Inference, messages::messages)
        .post("/v1/messages/count_tokens", Inference, messages::count_tokens)
        .post("/api/chat", Inference, ollama::chat)
        .post("/api/generate", Inference, ollama::generate)
        .post("/api/embed", Inference, ollama::embed)
        .post("/api/embeddings", Inference, ollama::embeddings)
        .post("/api/show", Inference, ollama::show)
        .post("/api/pull", Inference, ollama::pull)
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
        .post("/api/v1/load", Manage, manage::load)
        .post("/api/v1/unload", Manage, manage::unload)
        .post("/api/v1/plan", Manage, plan::plan)
        .post("/api/v1/models/{*id}", Manage, manage::model)
        .post("/api/v1/devices/{*id}", Manage, manage::device_order)
}

#[cfg(test)]
mod tests;
