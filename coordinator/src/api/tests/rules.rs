//! Every route is tested against every rule about clients (RC-3, RC-9, RC-24). A route that is missing in the table
//! below fails the tests.

use std::collections::BTreeSet;

use model_boss_core::{Event, LedgerState, PrincipalKind, QueuedView};
use serde_json::json;

use super::*;

const CLIENTS: &str = "\
tasks:
  chat: {ladder: [default]}
clients:
  narrow: {allowed_models: ['team/*']}
  inside: {cloud: false}
  humble: {max_priority: 8, rate_per_minute: 1000}
  default: {rate_per_minute: 2}
";

const MODELS: [(&str, &str); 5] = [
    ("vectors", "category = \"embedding\"\n"),
    ("ranks", "category = \"reranking\"\n"),
    ("voices", "category = \"tts\"\n"),
    ("hears", "category = \"transcription\"\n"),
    ("paints", "category = \"diffusion\"\n"),
];

/// The effect of a route for which rules about clients apply.
enum Use {
    /// The route has no such effect: it shows state, or changes settings and leases.
    Nothing,
    /// A request to this model: the body. A field or a header names the client.
    Asks(&'static str, fn(&str) -> Value),
    /// An order about a model: path and body. A header names the client.
    Orders(&'static str, fn(&str) -> Value),
    /// An order about every model: path and body.
    OrdersAll(&'static str, fn(&str) -> Value),
}

use Use::{Asks, Nothing, Orders, OrdersAll};

fn chat(model: &str) -> Value {
    json!({ "model": model, "max_tokens": 5, "messages": [{ "role": "user", "content": "?" }] })
}

fn prompt(model: &str) -> Value {
    json!({ "model": model, "prompt": "?" })
}

fn input(model: &str) -> Value {
    json!({ "model": model, "input": "?" })
}

fn inputs(model: &str) -> Value {
    json!({ "model": model, "inputs": "?" })
}

fn tokens(model: &str) -> Value {
    json!({ "model": model, "tokens": [1] })
}

fn ranked(model: &str) -> Value {
    json!({ "model": model, "query": "?", "documents": ["a"] })
}

fn paired(model: &str) -> Value {
    json!({ "model": model, "text_1": "?", "text_2": ["a"] })
}

/// The fields of a form; a file comes with them.
fn heard(model: &str) -> Value {
    json!({ "model": model, "language": "en" })
}

/// A form with these fields and a file.
fn form_of(fields: &Value) -> String {
    let part =
        |head: &str, content: &str| format!("--x\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n");
    let fields = fields.as_object().unwrap().iter().filter(|(_, value)| !value.is_null());
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let fields: String = fields.map(|(name, value)| part(&format!("name=\"{name}\""), &text(value))).collect();
    format!("{fields}{}--x--\r\n", part("name=\"file\"; filename=\"a.wav\"", "RIFF"))
}

fn lora(model: &str) -> Value {
    json!({ "lora_name": format!("{model}:style"), "lora_path": "/nowhere" })
}

fn only_load(model: &str) -> Value {
    json!({ "model": model })
}

fn only_unload(model: &str) -> Value {
    json!({ "model": model, "keep_alive": 0 })
}

fn named(model: &str) -> Value {
    json!({ "model_name": model })
}

fn device(_: &str) -> Value {
    json!({ "device": "cpu" })
}

fn nothing(_: &str) -> Value {
    json!({})
}

/// Routes that only show state.
const SHOWN: [&str; 41] = [
    "/props",
    "/slots",
    "/v1/audio/voices",
    "/",
    "/dashboard/{*id}",
    "/live",
    "/ready",
    "/health",
    "/openapi.json",
    "/metrics",
    "/api/tags",
    "/api/ps",
    "/api/version",
    "/v1/models",
    "/v1/models/{*id}",
    "/v1/responses/{*id}",
    "/api/v1/health",
    "/api/v1/stats",
    "/api/v1/slots",
    "/api/v1/queue",
    "/api/v1/access",
    "/api/v1/history",
    "/api/v1/clients",
    "/api/v1/devices",
    "/api/v1/providers",
    "/api/v1/keys",
    "/api/v1/decisions",
    "/api/v1/tasks",
    "/api/v1/tasks/{*name}",
    "/api/v1/config",
    "/api/v1/leases",
    "/api/v1/leases/{*id}",
    "/api/v1/events",
    "/api/v1/pull",
    "/api/v1/logs/{*id}",
    "/api/v1/jobs",
    "/api/v1/jobs/{*id}",
    "/v1/files",
    "/v1/files/{*id}",
    "/v1/batches",
    "/v1/batches/{*id}",
];

/// Each route with each of its effects.
fn table() -> Vec<(&'static str, &'static str, Use)> {
    let mut table: Vec<_> = SHOWN.into_iter().map(|path| ("GET", path, Nothing)).collect();
    table.extend([
        ("POST", "/v1/chat/completions", Asks("guide", chat)),
        ("POST", "/v1/completions", Asks("guide", prompt)),
        ("POST", "/completions", Asks("guide", prompt)),
        ("POST", "/completion", Asks("guide", prompt)),
        ("POST", "/infill", Asks("guide", prompt)),
        ("POST", "/apply-template", Asks("guide", chat)),
        ("POST", "/v1/chat/completions/input_tokens", Asks("guide", chat)),
        ("POST", "/v1/embeddings", Asks("vectors", input)),
        ("POST", "/v1/rerank", Asks("ranks", ranked)),
        ("POST", "/v1/reranking", Asks("ranks", ranked)),
        ("POST", "/v1/audio/speech", Asks("voices", input)),
        ("POST", "/v1/images/generations", Asks("paints", prompt)),
        ("POST", "/v1/images/edits", Asks("paints", prompt)),
        // It asks no model: it is refused by name.
        ("POST", "/v1/images/variations", Nothing),
        ("POST", "/v1/score", Asks("ranks", paired)),
        ("POST", "/v1/classify", Asks("ranks", input)),
        ("POST", "/v1/audio/transcriptions", Asks("hears", heard)),
        ("POST", "/v1/audio/translations", Asks("hears", heard)),
        ("POST", "/embed", Asks("vectors", inputs)),
        ("POST", "/embed_all", Asks("vectors", inputs)),
        ("POST", "/predict", Asks("ranks", inputs)),
        ("POST", "/v1/responses", Asks("guide", input)),
        ("POST", "/v1/responses/input_tokens", Asks("guide", input)),
        ("POST", "/v1/responses/{*id}", Nothing),
        ("DELETE", "/v1/responses/{*id}", Nothing),
        ("POST", "/v1/tokenize", Asks("guide", prompt)),
        ("POST", "/v1/detokenize", Asks("guide", tokens)),
        ("POST", "/v1/messages", Asks("guide", chat)),
        ("POST", "/v1/messages/count_tokens", Asks("guide", chat)),
        ("POST", "/api/chat", Asks("guide", chat)),
        ("POST", "/api/chat", Asks("guide", only_load)),
        ("POST", "/api/chat", Asks("guide", only_unload)),
        ("POST", "/api/generate", Asks("guide", prompt)),
        ("POST", "/api/generate", Asks("guide", only_load)),
        ("POST", "/api/generate", Asks("guide", only_unload)),
        ("POST", "/api/embed", Asks("vectors", input)),
        ("POST", "/api/embeddings", Asks("vectors", prompt)),
        ("POST", "/api/show", Nothing),
        // A pull is no request to the scheduler. The tests of OP-6 hold the permissions for it.
        ("POST", "/api/pull", Nothing),
        ("POST", "/api/v1/pull", Nothing),
        ("DELETE", "/api/v1/pull/{*id}", Nothing),
        // An adapter's name is no order to the scheduler. A test below holds the permission for it.
        ("POST", "/v1/load_lora_adapter", Nothing),
        ("POST", "/v1/unload_lora_adapter", Nothing),
        ("POST", "/api/v1/load", Orders("/api/v1/load", named)),
        ("POST", "/api/v1/unload", Orders("/api/v1/unload", named)),
        ("POST", "/api/v1/unload", OrdersAll("/api/v1/unload", nothing)),
        ("POST", "/api/v1/models/{*id}", Orders("/api/v1/models/MODEL/device", device)),
        ("POST", "/api/v1/models/{*id}", Orders("/api/v1/models/MODEL/invalidate", nothing)),
        ("POST", "/api/v1/models/{*id}", Orders("/api/v1/models/MODEL/pin", nothing)),
        ("POST", "/api/v1/devices/{*id}", OrdersAll("/api/v1/devices/cpu/drain", nothing)),
        ("POST", "/api/v1/devices/{*id}", OrdersAll("/api/v1/devices/cpu/open", nothing)),
        // A cancelling ends a request of the client's own. The tests of OP-2 hold the rule.
        ("DELETE", "/api/v1/queue/{*id}", Nothing),
        // A job is a request of its own route, by the same client: the tests of RC-26 hold the rules for it.
        ("POST", "/api/v1/jobs", Nothing),
        ("DELETE", "/api/v1/jobs/{*id}", Nothing),
        ("POST", "/v1/files", Nothing),
        ("DELETE", "/v1/files/{*id}", Nothing),
        ("POST", "/v1/batches", Nothing),
        ("POST", "/v1/batches/{*id}", Nothing),
        // A plan has no effect.
        ("POST", "/api/v1/plan", Nothing),
        ("PUT", "/api/v1/config", Nothing),
        ("POST", "/api/v1/leases", Nothing),
        ("PUT", "/api/v1/leases", Nothing),
        ("DELETE", "/api/v1/leases", Nothing),
        ("POST", "/api/v1/leases/{*id}", Nothing),
        ("PUT", "/api/v1/leases/{*id}", Nothing),
        ("DELETE", "/api/v1/leases/{*id}", Nothing),
    ]);
    table
}

/// An API with these rules and no loaded model, so that every accepted request is queued.
async fn ruled() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let manifests = folder.path().join("manifests");
    std::fs::create_dir_all(&manifests).unwrap();
    for (name, more) in MODELS {
        let text = format!("name = \"{name}\"\nsource = {{ path = \"w\" }}\n{more}");
        std::fs::write(manifests.join(format!("{name}.toml")), text).unwrap();
    }
    let api = fixture_in(folder, CLIENTS, None).await;
    let settings = Settings { max_load_attempts: 1, clients: api.context.tasks.client_rules(), ..Settings::default() };
    let news = api.context.scheduling.news();
    news.event(Event::Settings(Box::new(settings)));
    news.event(Event::Ledger(LedgerState::Away { detail: "somebody pulled the plug".to_owned() }));
    api
}

/// The place in which a request names its client.
#[derive(Clone, Copy)]
enum Named<'a> {
    Header(&'a str),
    Field(&'a str),
}

/// Every place in which a route accepts a client's name for this effect.
fn names<'a>(what: &Use, client: &'a str) -> Vec<Named<'a>> {
    match what {
        Asks(..) => vec![Named::Header(client), Named::Field(client)],
        _ => vec![Named::Header(client)],
    }
}

/// The path, the model and the body of a request with this effect.
fn sent(path: &'static str, what: &Use) -> Option<(String, &'static str, Value)> {
    match what {
        Nothing => None,
        Asks(model, body) => Some((path.to_owned(), model, body(model))),
        Orders(path, body) => Some((path.replace("MODEL", "guide"), "guide", body("guide"))),
        OrdersAll(path, body) => Some(((*path).to_owned(), "", body(""))),
    }
}

/// Whether the request ends at once while no model is loaded.
fn ends_at_once(path: &str, body: &Value) -> bool {
    let ends = ["/unload", "/device", "/invalidate", "/pin", "/drain", "/open"];
    body.get("keep_alive").is_some() || ends.iter().any(|end| path.ends_with(end))
}

impl Fixture {
    /// Sends a request in a client's name.
    async fn ask_as(&self, path: &str, mut body: Value, client: Named<'_>) -> (StatusCode, Value) {
        let is_form = path.starts_with("/v1/audio/trans");
        let kind = if is_form { "multipart/form-data; boundary=x" } else { "application/json" };
        let mut request = Request::post(path).header("host", "localhost").header("content-type", kind);
        match client {
            Named::Header(client) => request = request.header("x-client-id", client),
            Named::Field(client) => body["x_client_id"] = client.into(),
        }
        let body = if is_form { form_of(&body) } else { body.to_string() };
        let (status, _, answer) = self.send(request, &body).await;
        (status, answer)
    }

    async fn waiting(&self) -> Vec<QueuedView> {
        self.context.scheduling.view(|scheduler, now| scheduler.queue(now, 0..usize::MAX)).await.unwrap()
    }

    /// The entry of a request in the queue; the request is cancelled afterwards.
    async fn waits_as(&self, path: &str, body: Value, client: Named<'_>) -> QueuedView {
        let mut request = Box::pin(self.ask_as(path, body, client));
        let seen = async {
            loop {
                if let Some(waiting) = self.waiting().await.pop() {
                    return waiting;
                }
                tokio::task::yield_now().await;
            }
        };
        let waiting = tokio::select! {
            waiting = seen => waiting,
            answered = &mut request => panic!("{path}: answered where it should wait: {answered:?}"),
        };
        drop(request);
        while !self.waiting().await.is_empty() {
            tokio::task::yield_now().await;
        }
        waiting
    }

    async fn decided(&self) -> usize {
        self.context.scheduling.view(|scheduler, _| scheduler.decisions().count()).await.unwrap()
    }
}

#[tokio::test]
async fn op_10_every_route_has_a_place_in_the_table_of_rules() {
    let api = fixture().await;
    let routes = routes(Arc::clone(&api.context)).table;
    let served: BTreeSet<(&str, String)> = routes.into_iter().map(|route| (route.method, route.path)).collect();
    let ruled: BTreeSet<(&str, String)> =
        table().into_iter().map(|(method, path, _)| (method, path.to_owned())).collect();
    assert_eq!(served, ruled, "add a new route to the table here, with what it does in a client's name");
}

#[tokio::test]
async fn en_9_an_adapter_belongs_to_who_may_use_its_model() {
    let api = ruled().await;
    for path in ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"] {
        let (status, answer) = api.ask_as(path, lora("guide"), Named::Header("narrow")).await;
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::FORBIDDEN, &json!("insufficient_scope")), "{path}");
        let (status, answer) = api.ask_as(path, lora("guide"), Named::Header("inside")).await;
        assert_eq!((status, &answer["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")), "{path}");
        let (status, answer) = api.ask_as(path, lora("nobody"), Named::Header("inside")).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::NOT_FOUND, &json!("lora_name")), "{path}");
    }
}

#[tokio::test]
async fn rc_24_no_route_gives_a_client_a_model_that_it_may_not_use() {
    let api = ruled().await;
    for (_, path, what) in table() {
        let Some((path, _, body)) = sent(path, &what) else { continue };
        for client in names(&what, "narrow") {
            let (status, answer) = api.ask_as(&path, body.clone(), client).await;
            assert_eq!(status, 403, "{path} {body}: {answer}");
            assert!(answer.to_string().contains("allowed_models"), "{path}: {answer}");
        }
        assert_eq!((api.waiting().await.len(), api.decided().await), (0, 0), "{path} {body} changed something");
    }
}

#[tokio::test]
async fn tr_3_no_route_leads_a_client_to_a_cloud_that_may_use_none() {
    let api = ruled().await;
    for (_, path, what) in table() {
        let Asks("guide" | "vectors", body) = &what else { continue };
        for client in names(&what, "inside") {
            let (status, answer) = api.ask_as(path, body("claude:opus"), client).await;
            assert_eq!(status, 403, "{path}: {answer}");
        }
    }
}

#[tokio::test]
async fn rc_3_no_route_gives_a_client_a_higher_priority_than_its_own() {
    let api = ruled().await;
    let mut seen = 0;
    for (_, path, what) in table() {
        let Some((path, model, mut body)) = sent(path, &what) else { continue };
        if ends_at_once(&path, &body) {
            continue;
        }
        let field = if matches!(what, Asks(..)) { "x_priority" } else { "priority" };
        for priority in [Some(0), None] {
            body[field] = json!(priority);
            for client in names(&what, "humble") {
                let waiting = api.waits_as(&path, body.clone(), client).await;
                assert_eq!((waiting.client.name(), waiting.priority.number()), ("humble", 8), "{path}");
                assert_eq!(waiting.model.as_str(), model);
                seen += 1;
            }
        }
    }
    assert!(seen > 50, "{seen} requests were looked at");
}

#[tokio::test]
async fn rc_9_every_request_and_order_counts_against_a_clients_limits() {
    let api = ruled().await;
    for (number, (_, path, what)) in table().into_iter().enumerate() {
        let Some((path, model, body)) = sent(path, &what) else { continue };
        // Requests outside of the queue take no other client's place.
        if model.is_empty() || path.ends_with("/invalidate") || path.ends_with("/pin") {
            continue;
        }
        let client = format!("client-{number}");
        for _ in 0..2 {
            let client = Named::Header(&client);
            if ends_at_once(&path, &body) {
                let (status, answer) = api.ask_as(&path, body.clone(), client).await;
                assert_ne!(status, 429, "{path} {body}: {answer}");
            } else {
                api.waits_as(&path, body.clone(), client).await;
            }
        }
        let (status, answer) = api.ask_as(&path, body.clone(), Named::Header(&client)).await;
        assert_eq!(status, 429, "{path} {body}: {answer}");
    }
}

#[tokio::test]
async fn op_10_a_client_that_calls_itself_operator_is_a_client_and_the_operator_has_no_limits() {
    let api = ruled().await;
    for _ in 0..2 {
        let waiting = api.waits_as("/v1/chat/completions", chat("guide"), Named::Header("operator")).await;
        assert_eq!(waiting.kind, PrincipalKind::Client);
    }
    let (status, _) = api.ask_as("/v1/chat/completions", chat("guide"), Named::Header("operator")).await;
    assert_eq!(status, 429);
    for _ in 0..5 {
        let (status, _, answer) = api.post("/api/v1/load", r#"{"model_name": "guide", "wait": false}"#).await;
        assert_eq!(status, 202, "{answer}");
    }
    let waiting = api.waiting().await;
    assert!(waiting.iter().all(|load| load.kind == PrincipalKind::Operator), "{waiting:?}");
    let clients = api.get("/api/v1/clients").await.2;
    let kinds: Vec<&Value> = clients["clients"].as_array().unwrap().iter().map(|client| &client["kind"]).collect();
    assert_eq!(kinds, [&json!("operator"), &json!("client")]);
}
