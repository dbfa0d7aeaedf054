//! The state of the process.

use model_boss_openapi::{Operation, Tag};
use model_boss_protocol::ErrorCode;
use schemars::JsonSchema;
use serde_json::{Map, Value};

use crate::api::admin::config::{ConfigFlag, ConfigValues};
use crate::api::admin::events::ChangeEvent;
use crate::api::admin::keys::KeysAnswer;
use crate::api::admin::providers::ProvidersAnswer;
use crate::api::admin::tasks::{TaskObject, TasksAnswer};
use crate::api::admin::view_bodies::{
    AccessAnswer, ClientsAnswer, DecisionsAnswer, DevicesAnswer, HealthAnswer, QueueAnswer, RootAnswer, SlotsAnswer,
    Stats, StatusWord,
};
use crate::history::HistoryAnswer;

const TEXT: &str = "text/plain";
const HTML: &str = "text/html";

fn view<T: JsonSchema>(id: &'static str, text: &'static str) -> Operation {
    Operation::new(Tag::Views, id, text).answers::<T>(200, "the state")
}

/// A number of points of the history.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct PointCount(
    #[schemars(range(min = 1, max = 360))]
    #[allow(dead_code, reason = "it only describes")]
    u32,
);

/// `GET /`.
pub(crate) fn root() -> Operation {
    let text = "the [dashboard](dashboard.md) where `Accept` names HTML, JSON where it names that, else a line of text \
                that the server runs";
    Operation::new(Tag::Views, "get_root", text)
        .answers_as::<String>(200, "the dashboard", HTML)
        .answers_as::<String>(200, "the server runs", TEXT)
        .answers::<RootAnswer>(200, "the server runs")
}

/// `GET /dashboard/NAME`.
pub(crate) fn dashboard_file() -> Operation {
    Operation::new(Tag::Views, "get_dashboard_file", "a file of the dashboard")
        .slashed_id_of::<String>("The name of a file, such as `app.js`.")
        .answers_as::<String>(200, "the file", "text/javascript")
        .answers_as::<String>(200, "the file", "text/css")
        .errors(&[ErrorCode::NotFound])
}

/// `GET /api/v1/access`.
pub(crate) fn access() -> Operation {
    view::<AccessAnswer>("get_access", "whether requests need a key, and the client and the scopes of the sender's key")
        .see(&["keys.md"])
}

/// `GET /api/v1/history`.
pub(crate) fn history() -> Operation {
    let text = "the last hour in points of 10 s, as columns: tokens per second, times to the first token, loads, swaps, \
                waiting and running requests, memory of each device by holder; with `?last=N` the last N points";
    view::<HistoryAnswer>("get_history", text).query::<PointCount>("last", "The number of points; 360 by default.")
}

/// `GET /live`.
pub(crate) fn live() -> Operation {
    view::<StatusWord>("get_live", "success while the process works")
}

/// `GET /ready`.
pub(crate) fn ready() -> Operation {
    let text = "`status`: `ok`, `draining` (503), `lease_store_unavailable` or `lease_store_recovering`: loaded models \
                keep serving (503 until the store was reached once)";
    view::<StatusWord>("get_ready", text).answers::<StatusWord>(503, "no request can be served")
}

/// `GET /health`.
pub(crate) fn well() -> Operation {
    view::<StatusWord>("get_health_word", "another name of `/ready`")
        .answers::<StatusWord>(503, "no request can be served")
}

/// `GET /openapi.json`.
pub(crate) fn openapi() -> Operation {
    let text = "the description of this API in OpenAPI 3.1";
    view::<Map<String, Value>>("get_openapi", text)
}

/// `GET /api/v1/keys`.
pub(crate) fn keys() -> Operation {
    view::<KeysAnswer>("list_keys", "clients with API keys: scopes, limits, ends, what they used today")
        .see(&["keys.md"])
}

/// Sets of names of metrics, in a query.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct NamesList(
    #[schemars(regex(pattern = "^(model_boss|vllm|llamacpp)(,(model_boss|vllm|llamacpp))*$"))]
    #[allow(dead_code, reason = "it only describes")]
    String,
);

/// `GET /metrics`.
pub(crate) fn metrics() -> Operation {
    Operation::new(Tag::Views, "get_metrics", "counters and gauges for Prometheus")
        .answers_as::<String>(200, "the metrics", TEXT)
        .see(&["observability.md"])
        .query::<NamesList>(
            "names",
            "Whose names of metrics: `model_boss`, `vllm` and `llamacpp`, with commas; all by default.",
        )
        .query::<String>("model", "One model, whose figures are shown by llama-server's names and without labels.")
        .errors(&[ErrorCode::ModelNotFound])
}

/// `GET /api/v1/health`.
pub(crate) fn health() -> Operation {
    view::<HealthAnswer>(
        "get_health",
        "`model_loaded`, `checkpoint_loaded`, `all_models_loaded` (latest first; `checkpoint` is `ORG/NAME:FILE` of a \
         file in the Hugging Face cache, else a path), the state of the lease store, and faults of manifests, tasks and \
         stored configuration",
    )
}

/// `GET /api/v1/stats`.
pub(crate) fn stats() -> Operation {
    view::<Stats>(
        "get_stats",
        "the latest inference, totals per model and per provider, reads of streamed models and their overlap \
         (`streams`), entries, bytes and retention budget per device, memory of requests in flight (`request_memory`: \
         `used`, `limit`, times `refused`), parked prefixes (`parking`)",
    )
}

/// `GET /api/v1/slots`.
pub(crate) fn slots() -> Operation {
    view::<SlotsAnswer>(
        "list_slots",
        "every slot that is not idle: model, devices and bytes, state, rank, whether its layers are streamed \
         (`streamed`, `layers`), its threads on `cpu` (`cores`, `cpu_share`), when it leaves and why; models with parked prefixes (`parked`)",
    )
}

/// The number of waiting requests before the answer's first.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct QueueOffset(
    #[schemars(range(max = 1_000_000_000))]
    #[allow(dead_code, reason = "it only describes")]
    u64,
);

/// The most waiting requests of an answer.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct QueueLimit(
    #[schemars(range(min = 1, max = 10_000))]
    #[allow(dead_code, reason = "it only describes")]
    u64,
);

/// `GET /api/v1/queue`.
pub(crate) fn queue() -> Operation {
    let text = "waiting requests in their order, 1,000 at a time, with the `wait` reason of each and the same in words; \
                `total` is the number of all; every running request in `running`";
    view::<QueueAnswer>("list_queue", text)
        .query::<QueueOffset>("offset", "The number of requests to leave out at the head of the queue; 0 by default.")
        .query::<QueueLimit>("limit", "The most requests of the answer; 1,000 by default.")
}

/// `GET /api/v1/clients`.
pub(crate) fn clients() -> Operation {
    view::<ClientsAnswer>(
        "list_clients",
        "recent clients (`kind`: `client` or `operator`): requests in flight, tokens, rate, the limit that holds them \
         back, their last requests (`recent`) with the end of each (`answered`, `refused`, `deadline_exceeded`, \
         `client_gone`, `lost_mid_answer`, `cancelled`); in `profile`, and in `profiles` for every configured client, each limit and \
         permission with its `value` and `origin`",
    )
    .see(&["clients.md"])
}

/// `GET /api/v1/devices`.
pub(crate) fn devices() -> Operation {
    view::<DevicesAnswer>(
        "list_devices",
        "memory in all, in use, foreign, held by models, free; closed devices; `accounting`: `degraded` where the driver \
         does not tell processes apart; `available`, `lost` and `problem` say whether a device can be used and why not; \
         `cpu_features` of `cpu`: the instructions that products use there; `sandbox`: how workers are confined there, with \
         the reason where they are not ([sandbox.md](sandbox.md))",
    )
    .leads_to("/devices/0/id", &["open_device"])
}

/// `GET /api/v1/providers`.
pub(crate) fn providers() -> Operation {
    view::<ProvidersAnswer>(
        "list_providers",
        "cloud providers: requests to each and their cost, today and since the start; whether the key is set; each \
         client's spending today and what remains",
    )
    .see(&["clouds.md"])
}

/// `GET /api/v1/decisions`.
pub(crate) fn decisions() -> Operation {
    view::<DecisionsAnswer>("list_decisions", "the last decisions with their reasons, oldest first")
}

/// `GET /api/v1/tasks`.
pub(crate) fn tasks() -> Operation {
    let text = "the tasks and what each means now: its rungs, which are known, which may not be used and why";
    view::<TasksAnswer>("list_tasks", text).leads_to("/tasks/0/name", &["get_task"]).see(&["tasks.md"])
}

/// `GET /api/v1/tasks/NAME`.
pub(crate) fn task() -> Operation {
    view::<TaskObject>("get_task", "one task")
        .id_of::<String>("The name of a task.")
        .errors(&[ErrorCode::ModelNotFound, ErrorCode::CloudNotAllowed])
}

/// `GET /api/v1/config`.
pub(crate) fn config() -> Operation {
    let text = "the settings that can change while the process runs; with `?origin=1` the source of each value";
    view::<ConfigValues>("get_config", text)
        .with_headers(&[("ETag", "The version, for `If-Match`.")])
        .query::<ConfigFlag>("origin", "Whether each value is shown with its source.")
}

/// The number of an event, in a header.
#[derive(JsonSchema)]
#[schemars(inline, transparent)]
struct EventNumber(
    #[schemars(regex(pattern = "^[0-9]{1,18}$"))]
    #[allow(dead_code, reason = "it only describes")]
    String,
);

/// `GET /api/v1/events`.
pub(crate) fn events() -> Operation {
    let text = "every change, as server-sent [events](#events); with `?follow=false` only what has happened";
    Operation::new(Tag::Views, "get_events", text)
        .streams::<ChangeEvent>("text/event-stream")
        .header::<EventNumber>("last-event-id", "The last event that the reader has seen.")
        .query::<bool>("follow", "Whether the stream goes on; true by default.")
}

/// `GET /api/v1/logs/MODEL`.
pub(crate) fn logs() -> Operation {
    Operation::new(
        Tag::Views,
        "get_logs",
        "the output of a model's workers, as text; `?lines=200&follow=true` follows it. Its file is `logs/NAME.log` of \
         the state folder (characters other than letters, digits and `._-+@` as `%` and two digits), and `NAME.log.old` \
         for older lines; each has at most 8 MiB, all logs together at most 512 MiB",
    )
    .slashed_id_of::<String>("The name of a model, or an alias.")
    .query::<u64>("lines", "The number of lines; 200 by default.")
    .query::<bool>("follow", "Whether new lines follow; false by default.")
    .answers_as::<String>(200, "the lines", TEXT)
    .errors(&[ErrorCode::ModelNotFound])
}
