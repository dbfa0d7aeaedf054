//! Tests of the API over a real scheduler, ledger and driver, with a worker program that does not exist.

mod dashboard;
mod descriptions;
mod jobs;
mod keys;
mod rules;

use std::time::{Duration, Instant as StdInstant, SystemTime};

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::service::Service;
use model_boss_access::KeyFile;
use model_boss_catalog::{Engines, LiveCatalog, ModelRoots};
use model_boss_cloud::Clouds;
use model_boss_config::{Hosts, JobSettings, Limits, LogLevel, ParkingSettings, ProviderTables, Sse};
use model_boss_core::{Moment, Scheduler, Settings};
use model_boss_host::environment::ChildEnvironment;
use model_boss_host::log_filter::LogFilter;
use model_boss_host::probe::{DeviceSample, Probe, SpareMemory};
use model_boss_host::process::Spawner;
use model_boss_host::programs::Programs;
use model_boss_host::state_folder::StateFolder;
use model_boss_http::door::Door;
use model_boss_http::memory::MemoryBudget;
use model_boss_http::origin::AllowedHosts;
use model_boss_hub::{Hub, HubSettings};
use model_boss_jobs::RedbRecords;
use model_boss_lease_store::LeaseDurations;
use model_boss_protocol::{ByteCount, DeviceId, InstructionSet, SandboxMode};
use model_boss_settings::{Configured, DocumentStore, LiveSettings, RuntimeConfig};
use model_boss_tasks::Providers;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::audit::AuditLog;
use crate::driver::{Driver, DriverQueue};
use crate::footprints::FootprintSink;
use crate::jobs::{Jobs, JobsSetup};
use crate::keys::LiveKeys;
use crate::leases::{LeaseSetup, LeaseStart, Leases, LedgerDocuments, StoreChoice};
use crate::listeners::{catalogs_to, settings_to};
use crate::metrics::Metrics;
use crate::parking::{ParkingDesk, ParkingSetup};
use crate::pulls::Pulls;
use crate::responses::ResponseStore;
use crate::scheduling::{News, Pulse, Scheduling};
use crate::supervisor::{Ports, Supervisor, SupervisorSettings, Tools};
use crate::tasks::LiveTasks;

/// A machine with 8 GiB, of which 1 GiB is in use.
struct FakeProbe;

impl Probe for FakeProbe {
    fn sample(&mut self, _: &[u32]) -> Vec<DeviceSample> {
        vec![DeviceSample {
            device: DeviceId::Cpu,
            name: "fake".into(),
            uuid: None,
            capacity: Some(ByteCount::gib(8)),
            reserve: ByteCount::gib(1),
            used: Some(ByteCount::gib(1)),
            told_apart: true,
            processes: Vec::new(),
            retention: None,
            trouble: None,
            exclusive: false,
            sampled_at: StdInstant::now(),
        }]
    }
}

const TASKS: &str = "\
tasks:
  chat: {ladder: [default, nobody], description: talk, params: {temperature: 0}}
clients:
  guest: {allowed_models: ['task:chat']}
";

struct Fixture {
    door: Door,
    context: Arc<Context>,
    folder: tempfile::TempDir,
}

async fn fixture() -> Fixture {
    fixture_with(None).await
}

async fn fixture_with(keys: Option<&str>) -> Fixture {
    fixture_in(tempfile::tempdir().unwrap(), TASKS, keys).await
}

/// An API whose manifests are added to those in the folder.
async fn fixture_in(folder: tempfile::TempDir, tasks: &str, keys: Option<&str>) -> Fixture {
    let manifests = folder.path().join("manifests");
    std::fs::create_dir_all(&manifests).unwrap();
    for (file, text) in [
        (
            "guide.toml",
            "name = \"guide\"\naliases = [\"default\"]\ndescription = \"the guide\"\nsource = { path = \"w\" }\n",
        ),
        ("odd.toml", "name = \"team/m:1\"\nsource = { path = \"w\" }\n[custom]\nowner = \"red\"\n"),
    ] {
        std::fs::write(manifests.join(file), text).unwrap();
    }
    let keys = keys.map(|key| {
        let file = folder.path().join("keys");
        std::fs::write(&file, key).unwrap();
        KeyFile::read(&file).unwrap()
    });
    let (news, inbox) = News::channel();
    let metrics = Arc::new(Metrics::new([], 100).unwrap());
    let roots = ModelRoots::new(&[folder.path().join("models")]);
    let live = Arc::new(LiveCatalog::read(&manifests, roots, Engines::default(), catalogs_to(&news, &metrics)));
    let catalog = live.current();
    assert!(catalog.problems.is_empty(), "{:?}", catalog.problems);
    let setup = LeaseSetup {
        store: StoreChoice::Embedded(folder.path().join("state")),
        runtime_dir: Some(folder.path().join("run")),
        terms: LeaseDurations::default(),
        foreign: ByteCount::ZERO,
        return_patience: Duration::from_secs(10),
        probes: vec![Box::new(FakeProbe)],
        news: news.clone(),
    };
    let LeaseStart { leases, devices, store, .. } = Leases::start(setup).await.unwrap();
    let documents: Arc<dyn DocumentStore> = Arc::new(LedgerDocuments::new(leases.clone()));
    let scheduling = Scheduling::new(news.clone());
    // The program exists when its path is checked, and is removed before it is started.
    let worker = folder.path().join("no-such-worker");
    std::fs::write(&worker, "").unwrap();
    let programs = Programs::find(Some(&worker)).unwrap();
    std::fs::remove_file(&worker).unwrap();
    let parking = ParkingDesk::open(ParkingSetup {
        settings: ParkingSettings::default(),
        state: StateFolder::new(folder.path()),
        spare: SpareMemory::default(),
        on_change: Box::new(|_| ()),
    });
    let tools = Tools {
        settings: SupervisorSettings {
            programs,
            state: StateFolder::new(folder.path()),
            load_timeout: None,
            stop_grace: Duration::from_secs(1),
            hang_timeout: Duration::from_secs(5),
            environment: ChildEnvironment::everything(),
            text: Default::default(),
            cpu_features: None,
            sandbox: SandboxMode::Off,
        },
        spawner: Spawner::start(tokio::runtime::Handle::current()).unwrap(),
        ports: Ports::new(8300..=8499),
        catalog: Arc::clone(&live),
        leases: leases.clone(),
        news: news.clone(),
        machine: None,
        streams: Default::default(),
        parking: Arc::clone(&parking),
    };
    let (pulse, changes) = (Arc::new(Pulse::default()), Arc::new(ChangeFeed::new()));
    let clock = Clock::start();
    tokio::spawn(Arc::clone(&changes).follow(scheduling.clone(), Arc::clone(&pulse), clock));
    let driver = Driver {
        scheduler: Scheduler::new(Settings { max_load_attempts: 1, ..Settings::default() }, Moment::START),
        scheduling: scheduling.clone(),
        catalog: Arc::clone(&live),
        supervisor: Supervisor::new(tools),
        leases: leases.clone(),
        devices: devices.clone(),
        footprints: FootprintSink::start(Arc::clone(&documents), news).await,
        metrics: Arc::clone(&metrics),
        drained: CancellationToken::new(),
        pulse,
        waiting: DriverQueue::default(),
    };
    tokio::spawn(driver.run(inbox));
    let configured = Configured {
        settings: Settings { max_load_attempts: 1, ..Settings::default() },
        allow_cloud_fallback: true,
        model_idle: None,
        log_level: LogLevel::Info,
    };
    let settings = Arc::new(LiveSettings::new(configured, LogFilter::default(), settings_to(scheduling.news())));
    let file = folder.path().join("tasks.yaml");
    std::fs::write(&file, tasks).unwrap();
    let tasks = Arc::new(LiveTasks::read(&file, true, Providers::new(), Arc::clone(&settings)).unwrap());
    let keys = Arc::new(LiveKeys::new(&folder.path().join("keys"), keys, Arc::clone(&tasks)));
    let config = RuntimeConfig::open(
        Arc::clone(&documents),
        settings,
        &std::collections::BTreeMap::new(),
        &StateFolder::new(folder.path()),
        "s",
    )
    .await;
    let events = Arc::clone(&changes);
    let state_dir = folder.path().join("state");
    let jobs = Jobs::new(JobsSetup {
        settings: JobSettings::default(),
        state: StateFolder::new(&state_dir),
        open_store: Box::new(move |_| Ok(Box::new(RedbRecords::new(&state_dir)))),
        keys: Arc::clone(&keys),
        scheduling: scheduling.clone(),
        on_change: Box::new(move |kind, view| events.publish(kind, &view)),
        draining: CancellationToken::new(),
    })
    .unwrap();
    let context = Arc::new(Context {
        jobs: Arc::clone(&jobs),
        tasks,
        config,
        scheduling,
        catalog: Arc::clone(&live),
        pulls: Pulls::new(Hub::new(no_hub()), manifests, live, false, CancellationToken::new()),
        clouds: Arc::new(Clouds::new(&ProviderTables::default(), &StateFolder::new(folder.path()))),
        leases,
        devices,
        instructions: InstructionSet::Portable,
        confinement: model_boss_host::sandbox::WorkerConfinement::of_fake_workers(),
        store,
        streams: Default::default(),
        parking,
        metrics,
        traces: model_boss_traces::Traces::default(),
        keys,
        audit: AuditLog::start(&StateFolder::new(folder.path())),
        owner: None,
        limits: Limits { inference_body: ByteCount(2_000), management_body: ByteCount(200), ..Limits::default() },
        memory: MemoryBudget::new(Limits::default().request_memory),
        responses: ResponseStore::new(Limits::default().responses, Limits::default().response_idle),
        sse: Sse::default(),
        logs: folder.path().join("logs"),
        state: StateFolder::new(folder.path()),
        log: LogFilter::default(),
        draining: CancellationToken::new(),
        started: Instant::now(),
        clock,
        changes,
    });
    let router = router(Arc::clone(&context));
    tokio::spawn(jobs.serve(router.clone()));
    // The records are read on a thread of their own.
    while context.jobs.trouble().is_some() {
        tokio::task::yield_now().await;
    }
    let door = door(router);
    Fixture { door, context, folder }
}

/// A hub to which no connection is allowed, with an empty cache.
fn no_hub() -> HubSettings {
    let offline = |name: &str| (name == "HF_HUB_OFFLINE").then(|| "1".to_owned());
    HubSettings::below(std::path::Path::new("/nonexistent"), offline)
}

fn door(router: axum::Router) -> Door {
    let allowed = AllowedHosts::new(&[], &["https://chat.example".to_owned()], &Hosts::default());
    Door::new(allowed, "req-test", router)
}

impl Fixture {
    async fn send(&self, request: http::request::Builder, body: &str) -> (StatusCode, HeaderMap, Value) {
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap();
        let is_head = request.method() == http::Method::HEAD;
        let response: Response = self.door.call(request).await.unwrap_or_else(|never| match never {});
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        if let Some(length) = head.headers.get("content-length").filter(|_| !is_head) {
            assert_eq!(length.to_str().unwrap(), bytes.len().to_string(), "what is said is what comes");
        }
        (head.status, head.headers, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    async fn get(&self, path: &str) -> (StatusCode, HeaderMap, Value) {
        self.send(Request::get(path).header("host", "localhost:8210"), "").await
    }

    async fn post(&self, path: &str, body: &str) -> (StatusCode, HeaderMap, Value) {
        let request = Request::post(path).header("host", "localhost").header("content-type", "application/json");
        self.send(request, body).await
    }
}

fn code(value: &Value) -> &str {
    let error = &value["error"];
    assert!(error["message"].is_string() && error["type"].is_string(), "{value}");
    assert!(error.get("param").is_some() && value["source"] == "coordinator", "{value}");
    error["code"].as_str().unwrap()
}

#[tokio::test]
async fn unknown_routes_and_methods_answer_in_the_error_shape() {
    let api = fixture().await;
    for path in ["/v1", "/v1/", "/v1/nothing", "/api/v1/load/x", "/v2/models", "/nothing"] {
        let (status, _, body) = api.get(path).await;
        assert_eq!((status.as_u16(), code(&body).contains("not_found")), (404, true), "{path}: {body}");
    }
    for path in ["/v1/chat/completions", "/api/v1/load"] {
        let (status, headers, body) = api.get(path).await;
        assert_eq!((status.as_u16(), code(&body)), (405, "method_not_allowed"), "{path}");
        assert_eq!(headers["allow"], "POST", "{path}");
    }
    assert_eq!(api.post("/v1/models", "{}").await.0, 405);
}

#[tokio::test]
async fn every_way_to_write_a_base_url_leads_to_the_same_route() {
    let api = fixture().await;
    for path in [
        "/v1/models",
        "/v1/models/",
        "//v1/models",
        "/v1//models",
        "/models",
        "/api/v1/models",
        "/api//v1/models",
        "/v1/v1/models",
        "/models/",
    ] {
        let (status, _, body) = api.get(path).await;
        assert_eq!((status.as_u16(), &body["object"]), (200, &Value::from("list")), "{path}");
    }
    for path in [
        "/chat/completions",
        "/v1/chat/completions/",
        "/v1//chat/completions",
        "/completions",
        "/embeddings",
        "/rerank",
        "/reranking",
    ] {
        let (status, _, body) = api.post(path, r#"{"model":"nobody"}"#).await;
        assert_eq!((status.as_u16(), code(&body)), (404, "model_not_found"), "{path}");
    }
    assert_eq!(api.post("/messages", r#"{"model":"nobody"}"#).await.2["type"], "error");
}

#[tokio::test]
async fn somebody_is_there_for_those_who_ask_at_the_root() {
    let api = fixture().await;
    for (method, accept, kind) in [
        ("GET", "*/*", "text/plain; charset=utf-8"),
        ("GET", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html; charset=utf-8"),
        ("GET", "image/png", "text/plain; charset=utf-8"),
        ("GET", "application/json", "application/json"),
        ("HEAD", "*/*", "text/plain; charset=utf-8"),
    ] {
        let request = Request::builder().method(method).uri("/").header("host", "localhost").header("accept", accept);
        let (status, headers, _) = api.send(request, "").await;
        assert_eq!((status.as_u16(), headers["content-type"].to_str().unwrap()), (200, kind), "{method} {accept}");
    }
    let head = Request::head("/api/version").header("host", "localhost");
    assert_eq!(api.send(head, "").await.0, 200);
}

#[tokio::test]
async fn op_5_a_listed_site_gets_its_headers_on_answers_and_errors() {
    let api = fixture_with(Some("a-key-of-sixteen-or-more")).await;
    let from = |method: &str, origin: &str| {
        let request = Request::builder().method(method).uri("/v1/chat/completions").header("host", "localhost");
        request.header("origin", origin.to_owned()).header("content-type", "application/json")
    };
    let asks = from("OPTIONS", "https://chat.example").header("access-control-request-method", "POST");
    let (status, headers, _) = api.send(asks.header("access-control-request-headers", "authorization"), "").await;
    assert_eq!(
        (status.as_u16(), &headers["access-control-allow-origin"]),
        (200, &"https://chat.example".parse().unwrap())
    );
    assert_eq!(headers["access-control-allow-headers"], "authorization");
    let (status, headers, _) = api.send(from("POST", "https://chat.example"), "{}").await;
    assert_eq!(
        (status.as_u16(), &headers["access-control-allow-origin"]),
        (401, &"https://chat.example".parse().unwrap())
    );
    // A preflight is refused by what its answer lacks.
    for (method, expected) in [("OPTIONS", 200), ("POST", 403)] {
        let asks = from(method, "https://evil.example").header("access-control-request-method", "POST");
        let (status, headers, body) = api.send(asks, "").await;
        assert_eq!((status.as_u16(), code(&body)), (expected, "forbidden_origin"), "{method}");
        assert!(!headers.contains_key("access-control-allow-origin"), "{method}");
    }
}

#[tokio::test]
async fn en_7_errors_have_the_shape_of_the_dialect_wherever_they_are_found() {
    let api = fixture_with(Some("a-key-of-sixteen-or-more")).await;
    let send = async |path: &str, host: &str, version: bool| {
        let mut request =
            Request::post(path).header("host", host.to_owned()).header("content-type", "application/json");
        if version {
            request = request.header("anthropic-version", "2023-06-01");
        }
        api.send(request, "{}").await
    };
    for path in ["/api/chat", "/api/show", "/api/nothing", "/api/tags"] {
        for host in ["localhost", "evil.example"] {
            let (status, _, body) = send(path, host, false).await;
            assert!(status.is_client_error() && body["error"].is_string(), "{path} {host}: {body}");
        }
    }
    for (path, version) in [("/v1/messages", false), ("/v1/messages/count_tokens", false), ("/v1/models/x", true)] {
        for (host, kind) in [("localhost", "authentication_error"), ("evil.example", "permission_error")] {
            let (status, headers, body) = send(path, host, version).await;
            let expected = if path == "/v1/models/x" && host == "localhost" { "invalid_request_error" } else { kind };
            assert_eq!((&body["type"], &body["error"]["type"]), (&"error".into(), &expected.into()), "{path} {host}");
            assert_eq!(headers["request-id"], headers["x-request-id"], "{status} {path}");
        }
    }
}

#[tokio::test]
async fn en_7_the_list_of_models_has_anthropics_shape_for_its_clients() {
    let api = fixture().await;
    let get = async |path: &str| {
        let request = Request::get(path).header("host", "localhost").header("anthropic-version", "2023-06-01");
        api.send(request, "").await.2
    };
    let page = get("/v1/models?limit=1").await;
    assert_eq!((&page["data"][0]["type"], &page["has_more"]), (&"model".into(), &true.into()), "{page}");
    let next = get(&format!("/v1/models?after_id={}", page["last_id"].as_str().unwrap())).await;
    assert_ne!(next["data"][0]["id"], page["data"][0]["id"], "{next}");
    let one = get("/v1/models/team/m:1").await;
    assert_eq!((&one["type"], &one["display_name"]), (&"model".into(), &"team/m:1".into()), "{one}");
    assert!(one["created_at"].as_str().unwrap().ends_with('Z'), "{one}");
}

#[tokio::test]
async fn en_7_what_is_there_is_pulled_and_the_rest_says_what_to_do() {
    let api = fixture().await;
    for name in ["guide", "guide:latest", "default", "task:chat"] {
        for field in ["model", "name"] {
            let (status, _, body) =
                api.post("/api/pull", &format!("{{\"{field}\":\"{name}\",\"stream\":false}}")).await;
            assert_eq!((status.as_u16(), &body["status"]), (200, &"success".into()), "{name}");
        }
    }
    let (status, headers, _) = api.post("/api/pull", r#"{"model":"guide"}"#).await;
    assert_eq!((status.as_u16(), &headers["content-type"]), (200, &"application/x-ndjson".parse().unwrap()));
    let (status, _, body) = api.post("/api/pull", r#"{"model":"nobody"}"#).await;
    assert_eq!(status, 404);
    assert!(body["error"].as_str().unwrap().contains("manifest"), "{body}");
    assert_eq!(api.post("/api/pull", "{}").await.0, 400);
}

#[tokio::test]
async fn op_6_without_permission_to_connect_a_pull_says_so() {
    let api = fixture().await;
    for (body, status, code) in [
        (r#"{"source":"org/m:Q4_0"}"#, 409, "hub_offline"),
        (r#"{"source":"org/m:Q4_0","stream":true}"#, 409, "hub_offline"),
        (r#"{"model":"guide"}"#, 400, "invalid_request"),
    ] {
        let (answered, _, body) = api.post("/api/v1/pull", body).await;
        assert_eq!((answered.as_u16(), &body["error"]["code"]), (status, &code.into()), "{body}");
    }
    let (_, _, pulls) = api.get("/api/v1/pull").await;
    let last = &pulls["pulls"][1];
    assert_eq!((&last["status"], &last["source"]), (&"failed".into(), &"hf://org/m:Q4_0".into()), "{pulls}");
    assert!(last["error"]["message"].as_str().unwrap().contains("HF_HUB_OFFLINE"), "{pulls}");
}

#[tokio::test]
async fn en_7_the_tag_that_ollamas_clients_add_is_understood_everywhere() {
    let api = fixture().await;
    let (_, _, shown) = api.get("/v1/models/guide:latest").await;
    assert_eq!(shown["id"], "guide");
    // The worker program is absent, so the error shows which model was meant.
    for (path, body) in [
        ("/v1/chat/completions", r#"{"model":"guide:latest","messages":[]}"#),
        ("/api/generate", r#"{"model":"guide:latest"}"#),
        ("/api/v1/load", r#"{"model_name":"guide:latest"}"#),
    ] {
        assert_eq!(api.post(path, body).await.0.as_u16() / 100, 5, "{path}");
    }
    let (status, _, body) = api.post("/v1/chat/completions", r#"{"model":"nobody:latest"}"#).await;
    assert_eq!((status.as_u16(), code(&body)), (404, "model_not_found"));
}

#[tokio::test]
async fn en_7_ollamas_show_of_a_task_has_what_all_of_its_models_can() {
    let folder = tempfile::tempdir().unwrap();
    let manifests = folder.path().join("manifests");
    std::fs::create_dir_all(&manifests).unwrap();
    for (name, fields) in [("thinker", "thinking = \"on\"\n"), ("engine", "backend = \"fake\"\n")] {
        let text = format!("name = \"{name}\"\nsource = {{ path = \"w\" }}\n{fields}");
        std::fs::write(manifests.join(format!("{name}.toml")), text).unwrap();
    }
    let tasks = "\
tasks:
  thinks: {ladder: [thinker]}
  mixed: {ladder: [thinker, guide]}
  plain: {ladder: [guide, engine]}
";
    let api = fixture_in(folder, tasks, None).await;
    for (task, expected) in [
        ("thinks", json!(["completion", "tools", "thinking"])),
        ("mixed", json!(["completion", "tools"])),
        ("plain", json!(["completion"])),
    ] {
        let (status, _, shown) = api.post("/api/show", &format!("{{\"model\":\"task:{task}\"}}")).await;
        assert_eq!((status.as_u16(), &shown["capabilities"]), (200, &expected), "{task}: {shown}");
    }
}

#[tokio::test]
async fn a_mark_before_a_body_is_passed_over_and_a_compressed_body_is_refused() {
    let api = fixture().await;
    let (status, _, body) = api.post("/v1/chat/completions", "\u{feff}{\"model\":\"nobody\"}").await;
    assert_eq!((status.as_u16(), code(&body)), (404, "model_not_found"));
    assert_eq!(api.post("/api/show", "\u{feff}{\"model\":\"guide\"}").await.0, 200);
    for path in ["/v1/chat/completions", "/api/v1/load", "/api/show"] {
        let request = Request::post(path).header("host", "localhost").header("content-type", "application/json");
        let (status, _, body) = api.send(request.header("content-encoding", "gzip"), "x").await;
        assert_eq!(status, 415, "{path}: {body}");
        let said = if body["error"].is_string() { &body["error"] } else { &body["error"]["message"] };
        assert!(said.as_str().unwrap().contains("gzip"), "{body}");
    }
}

#[tokio::test]
async fn models_are_found_by_odd_ids_raw_and_encoded_and_under_both_roots() {
    let api = fixture().await;
    for (id, name) in [
        ("guide", "guide"),
        ("default", "guide"),
        ("team/m:1", "team/m:1"),
        ("team%2Fm:1", "team/m:1"),
        ("team%2fm%3A1", "team/m:1"),
        ("team/m%3a1", "team/m:1"),
    ] {
        for root in ["/v1", "/api/v1"] {
            let (status, _, body) = api.get(&format!("{root}/models/{id}")).await;
            assert_eq!((status.as_u16(), &body["id"]), (200, &Value::from(name)), "{root} {id}");
        }
    }
    for id in ["m:1", "team", "team/", "team/m", "team//m:1", "Guide", "%", "%zz", "%ff", "..%2fguide"] {
        let (status, _, body) = api.get(&format!("/v1/models/{id}")).await;
        assert_eq!((status.as_u16(), code(&body)), (404, "model_not_found"), "{id}");
    }
    let (_, _, body) = api.get("/v1/models/team/m:1").await;
    assert_eq!(body["custom"]["owner"], "red");
    assert!(body["file"].as_str().unwrap().ends_with("manifests/odd.toml"), "{body}");
    assert!(body["source"].as_str().unwrap().ends_with("manifests/w"), "{body}");
    assert_eq!(body["max_concurrent"], 8);
}

#[tokio::test]
async fn the_list_of_models_has_openais_fields_and_ours() {
    let api = fixture().await;
    let (status, _, body) = api.get("/v1/models").await;
    assert_eq!((status.as_u16(), &body["object"]), (200, &Value::from("list")));
    let guide = &body["data"][0];
    assert_eq!((&guide["id"], &guide["object"]), (&Value::from("guide"), &Value::from("model")));
    assert!(guide["created"].is_u64() && guide["owned_by"].is_string());
    assert_eq!(guide["status"]["value"], "unloaded");
    assert_eq!((&guide["category"], &guide["device"]), (&Value::from("llm"), &Value::from("auto")));
    assert!(guide["size"].is_u64() && guide.get("context_length").is_some());
}

#[tokio::test]
async fn bad_bodies_are_refused_with_their_field() {
    let api = fixture().await;
    for (body, param) in [
        ("", None),
        ("{", None),
        ("[]", None),
        (r#"{"model":3}"#, Some("model")),
        (r#"{"stream":"no"}"#, Some("stream")),
        (r#"{"x_priority":10}"#, Some("x_priority")),
        (r#"{"x_budget_s":-1}"#, Some("x_budget_s")),
    ] {
        let (status, _, answer) = api.post("/v1/chat/completions", body).await;
        assert_eq!((status.as_u16(), code(&answer)), (400, "invalid_request"), "{body}");
        assert_eq!(answer["error"]["param"].as_str(), param, "{body}");
    }
    let (status, _, answer) = api.post("/v1/chat/completions", &format!("{{\"a\":\"{}\"}}", "x".repeat(2_000))).await;
    assert_eq!((status.as_u16(), code(&answer)), (413, "request_too_large"));
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(70), "]".repeat(70));
    assert_eq!(api.post("/v1/completions", &deep).await.0, 400);
}

#[tokio::test]
async fn unknown_models_and_tasks_are_404() {
    let api = fixture().await;
    for body in [r#"{"model":"nobody"}"#, r#"{"model":"task:code"}"#, r#"{"model":"guide","x_task":"code"}"#] {
        for path in ["/v1/chat/completions", "/api/v1/completions"] {
            let (status, _, answer) = api.post(path, body).await;
            assert_eq!((status.as_u16(), code(&answer)), (404, "model_not_found"), "{body}");
        }
    }
    let (status, _, answer) = api.post("/api/v1/load", r#"{"model_name":"nobody"}"#).await;
    assert_eq!((status.as_u16(), code(&answer)), (404, "model_not_found"));
    let (status, _, answer) = api.post("/api/v1/unload", r#"{"model_name":"guide"}"#).await;
    assert_eq!((status.as_u16(), code(&answer)), (404, "model_not_loaded"));
}

#[tokio::test]
async fn dm_9_a_model_is_loaded_by_the_path_of_its_files() {
    let api = fixture().await;
    let models = api.folder.path().join("models");
    std::fs::create_dir_all(models.join("empty")).unwrap();
    std::fs::write(models.join("x.gguf"), "x").unwrap();
    let load = |path: &str, more: &str| {
        let body = format!("{{\"path\":\"{}\"{more}}}", models.join(path).display());
        let api = &api;
        async move { api.post("/api/v1/load", &body).await }
    };
    // The worker program is absent: the model is listed all the same, and its status has the reason.
    let (status, _, body) = load("x.gguf", "").await;
    assert_eq!((status.as_u16(), code(&body)), (502, "model_load_failed"), "{body}");
    let (_, _, shown) = api.get("/v1/models/file:x").await;
    assert_eq!((&shown["id"], &shown["status"]["value"]), (&"file:x".into(), &"failed".into()), "{shown}");
    let (status, _, body) = load("../models/x.gguf", ",\"wait\":false").await;
    assert_eq!((status.as_u16(), &body["status"], &body["model_name"]), (202, &"loading".into(), &"file:x".into()));

    for (path, status, word) in [
        ("nothing.gguf", 404, "does not exist"),
        ("../manifests", 404, "model_roots"),
        ("../nothing", 404, "model_roots"),
        ("empty", 400, "no model in"),
    ] {
        let (answered, _, body) = load(path, "").await;
        let message = body["error"]["message"].as_str().unwrap();
        assert_eq!((answered.as_u16(), message.contains(word)), (status, true), "{path}: {body}");
        assert_eq!(body["error"]["param"], "path", "{body}");
    }
    for body in ["{}", r#"{"path":"/x","model_name":"guide"}"#, r#"{"path":"x.gguf"}"#, r#"{"path":1}"#] {
        let (status, _, answer) = api.post("/api/v1/load", body).await;
        assert_eq!((status.as_u16(), code(&answer)), (400, "invalid_request"), "{body}");
    }
}

#[tokio::test]
async fn op_5_management_routes_take_small_json_only() {
    let api = fixture().await;
    for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("application/jsonp")] {
        let mut request = Request::post("/api/v1/load").header("host", "localhost");
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        let (status, _, body) = api.send(request, r#"{"model_name":"guide"}"#).await;
        assert_eq!((status.as_u16(), code(&body)), (415, "unsupported_media_type"), "{kind:?}");
    }
    let request = Request::post("/api/v1/load").header("host", "localhost");
    let request = request.header("content-type", "Application/JSON; charset=utf-8");
    let (status, _, body) = api.send(request, r#"{"model":"guide"}"#).await;
    assert_eq!((status.as_u16(), code(&body)), (400, "invalid_request"));
    assert_eq!(body["error"]["param"], "model");
    let (status, _, body) = api.post("/api/v1/load", &format!("{{\"model_name\":\"{}\"}}", "x".repeat(300))).await;
    assert_eq!((status.as_u16(), code(&body)), (413, "request_too_large"));
}

#[tokio::test]
async fn op_5_foreign_hosts_and_origins_stay_out_of_every_route() {
    let api = fixture().await;
    for path in ["/live", "/v1/models", "/metrics", "/nowhere"] {
        let (status, _, body) = api.send(Request::get(path).header("host", "evil.example"), "").await;
        assert_eq!((status.as_u16(), code(&body)), (403, "forbidden_origin"), "{path}");
        let request = Request::get(path).header("host", "localhost").header("origin", "https://evil.example");
        let (status, headers, _) = api.send(request, "").await;
        assert_eq!(status, 403, "{path}");
        assert!(!headers.contains_key("access-control-allow-origin"));
    }
}

#[tokio::test]
async fn op_5_keys_open_everything_but_liveness() {
    let key = "0123456789abcdef0123";
    let api = fixture_with(Some(key)).await;
    for (path, open) in
        [("/live", true), ("/ready", true), ("/health", true), ("/v1/models", false), ("/metrics", false)]
    {
        let expected = if open { 200 } else { 401 };
        assert_eq!(api.get(path).await.0, expected, "{path}");
        for header in [("authorization", format!("Bearer {key}")), ("x-api-key", key.to_owned())] {
            let request = Request::get(path).header("host", "localhost").header(header.0, header.1);
            assert_eq!(api.send(request, "").await.0, 200, "{path}");
        }
        let wrong =
            || Request::get(path).header("host", "localhost").header("authorization", "Bearer wrong-wrong-wrong");
        assert_eq!(api.send(wrong(), "").await.0, expected, "{path}");
        assert_eq!(api.send(wrong().header("x-api-key", key), "").await.0, 200, "one of two is right: {path}");
    }
    let (status, _, body) = api.post("/v1/chat/completions", "{}").await;
    assert_eq!((status.as_u16(), code(&body)), (401, "invalid_api_key"));
    assert!(body["error"]["message"].as_str().unwrap().contains("x-api-key"), "{body}");
}

#[tokio::test]
async fn op_3_request_ids_are_echoed_or_made() {
    let api = fixture().await;
    let request = |id: &str| Request::get("/live").header("host", "localhost").header("x-request-id", id.to_owned());
    assert_eq!(api.send(request("mine-7"), "").await.1["x-request-id"], "mine-7");
    for bad in ["", "a b", &"x".repeat(200)] {
        let made = api.send(request(bad), "").await.1["x-request-id"].clone();
        assert!(made.to_str().unwrap().starts_with("req-test-"), "{made:?}");
    }
    assert_ne!(api.get("/live").await.1["x-request-id"], api.get("/nowhere").await.1["x-request-id"]);
}

#[tokio::test]
async fn a_worker_that_cannot_be_started_is_a_clear_502() {
    let api = fixture().await;
    let (status, _, body) = api.post("/v1/chat/completions", r#"{"model":"guide","messages":[]}"#).await;
    assert_eq!((status.as_u16(), code(&body)), (502, "model_load_failed"), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("no-such-worker"), "{body}");
    let (status, _, _) = api.post("/api/v1/load", r#"{"model_name":"team/m:1"}"#).await;
    assert_eq!(status, 502);
    let (_, _, body) = api.get("/v1/models/guide").await;
    assert_eq!(body["status"]["value"], "failed");
    let (_, _, body) = api.get("/api/v1/decisions").await;
    let at = body["decisions"][0]["at"].as_f64().unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - 600.0..=now).contains(&at), "{body}");
}

#[tokio::test]
async fn op_4_looking_wakes_no_model_and_every_list_answers() {
    let api = fixture().await;
    for path in [
        "/live",
        "/ready",
        "/health",
        "/api/v1/health",
        "/api/v1/stats",
        "/api/v1/slots",
        "/api/v1/queue",
        "/api/v1/clients",
        "/api/v1/devices",
        "/api/v1/decisions",
        "/api/v1/leases",
        "/metrics",
        "/v1/models",
    ] {
        assert_eq!(api.get(path).await.0, 200, "{path}");
    }
    let (_, _, health) = api.get("/api/v1/health").await;
    assert_eq!((&health["model_loaded"], &health["checkpoint_loaded"]), (&Value::Null, &Value::Null));
    assert_eq!(health["all_models_loaded"], Value::Array(Vec::new()));
    let (_, _, stats) = api.get("/api/v1/stats").await;
    for field in ["input_tokens", "output_tokens", "time_to_first_token", "tokens_per_second", "model_name", "at"] {
        assert_eq!(stats.get(field), Some(&Value::Null), "{field}");
    }
    let (_, _, devices) = api.get("/api/v1/devices").await;
    let cpu = &devices["devices"][0];
    assert_eq!((&cpu["id"], &cpu["total"]), (&Value::from("cpu"), &Value::from(ByteCount::gib(8).0)));
    assert_eq!(cpu["foreign"], Value::from(ByteCount::gib(1).0));
    api.context.draining.cancel();
    assert_eq!(api.get("/ready").await.0, 503);
    assert_eq!(api.get("/live").await.0, 200);
}

#[tokio::test]
async fn a_panic_in_a_handler_is_a_500_in_the_shape() {
    let api = fixture().await;
    let context = Arc::clone(&api.context);
    let routes = Routes::new(Arc::clone(&context));
    let router = routes.get("/boom", Scope::Public, async |_| panic!("boom"), described::live()).into_router();
    let api = Fixture { door: door(router), ..api };
    let (status, _, body) = api.get("/boom").await;
    assert_eq!((status.as_u16(), code(&body)), (500, "internal_error"));
}
