//! The contract between coordinator and worker, tested from outside a worker. The fake and the real worker pass the
//! same tests, so that results with the fake worker hold for the real one.

use std::net::{Ipv4Addr, TcpListener};

use http::StatusCode;
use model_boss_protocol::{WorkerExit, WorkerHealth};
use model_boss_tests::{Behaviour, Client, LoneWorker};
use nix::sys::signal::Signal;
use serde_json::json;

const BINARIES: [&str; 2] = ["model-boss-fake-worker", "model-boss-worker"];
#[tokio::test]
async fn standard_input_that_ends_before_the_start_line_is_a_clean_end() {
    for name in BINARIES {
        let mut worker = LoneWorker::spawn(name);
        worker.cut_lifeline();
        assert_eq!(worker.end().await.0, Some(WorkerExit::Clean.code()), "{name}");
    }
}

#[tokio::test]
async fn a_malformed_start_line_is_named() {
    for name in BINARIES {
        let mut worker = LoneWorker::spawn(name);
        worker.write("{\"model\": 5}\n");
        let (code, text) = worker.end().await;
        assert_eq!(code, Some(WorkerExit::BadSpec.code()), "{name}: {text}");
        assert!(text.contains("start line"), "{name}: {text}");
    }
}

#[tokio::test]
async fn a_taken_port_is_named() {
    for name in BINARIES {
        let stranger = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut worker = LoneWorker::spawn(name).at(stranger.local_addr().unwrap());
        let folder = tempfile::tempdir().unwrap();
        worker.open_gate(folder.path());
        let (code, text) = worker.end().await;
        assert_eq!(code, Some(WorkerExit::PortInUse.code()), "{name}: {text}");
        assert!(text.contains(&stranger.local_addr().unwrap().port().to_string()), "{name}: {text}");
    }
}

#[tokio::test]
async fn missing_files_are_a_bad_model_and_named() {
    let mut worker = LoneWorker::spawn("model-boss-worker");
    let folder = tempfile::tempdir().unwrap();
    worker.open_gate(folder.path());
    let (code, text) = worker.end().await;
    assert_eq!(code, Some(WorkerExit::BadModel.code()), "{text}");
    assert!(text.contains(folder.path().to_str().unwrap()), "{text}");
}

/// A model's folder for a fake worker with this behaviour.
fn model_of(behaviour: &Behaviour) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("fake.json"), serde_json::to_string(behaviour).unwrap()).unwrap();
    folder
}

/// A model's folder for a fake worker that loads without end, so that no result depends on the time of a load.
fn endless_load() -> tempfile::TempDir {
    model_of(&Behaviour { load_ms: 3_600_000, ..Behaviour::default() })
}

#[tokio::test]
async fn it_listens_while_it_loads_and_answers_only_its_token() {
    let folder = endless_load();
    let mut worker = LoneWorker::spawn("model-boss-fake-worker");
    worker.open_gate(folder.path());
    worker.listens().await;
    let health = worker.get("/health").await;
    assert_eq!(health.status, StatusCode::SERVICE_UNAVAILABLE);
    let health: WorkerHealth = serde_json::from_slice(&health.body).unwrap();
    assert_eq!((health.generation, health.proof), (worker.generation(), worker.proof()));

    let stranger = Client::new(worker.address()).get("/health").await;
    assert_eq!(stranger.status, StatusCode::UNAUTHORIZED);
    assert_eq!(stranger.error_code(), "invalid_api_key");
}

#[tokio::test]
async fn the_lifelines_end_is_the_workers_end() {
    let folder = endless_load();
    let mut worker = LoneWorker::spawn("model-boss-fake-worker");
    worker.open_gate(folder.path());
    worker.listens().await;
    worker.cut_lifeline();
    assert_eq!(worker.end().await.0, Some(WorkerExit::Clean.code()));
}

#[tokio::test]
async fn sigterm_lets_an_answer_finish() {
    let folder = model_of(&Behaviour { tokens: 3, tokens_per_s: 20.0, ..Behaviour::default() });
    let mut worker = LoneWorker::spawn("model-boss-fake-worker");
    worker.open_gate(folder.path());
    worker.ready().await;
    let answer = worker.ask(&json!({ "messages": [{ "role": "user", "content": "count" }] }));
    worker.engine("a request runs", |engine| engine.active == 1).await;
    worker.signal(Signal::SIGTERM);
    assert_eq!(answer.await.unwrap().text(), "one two three");
    assert_eq!(worker.end().await.0, Some(WorkerExit::Clean.code()));
}

#[tokio::test]
async fn rc_11_a_connection_that_closes_stops_the_real_engine() {
    let mut worker = LoneWorker::spawn("model-boss-worker");
    worker.open_gate(&crate::real_model::guide());
    worker.ready().await;
    for stream in [true, false] {
        let before = worker.engine("nothing runs", |engine| engine.active == 0).await.steps;
        // Without an interruption, the answer would fill the context, which takes hundreds of steps.
        let messages = json!([{ "role": "user", "content": "Tell me everything." }]);
        let answer = worker.ask(&json!({ "messages": messages, "stream": stream, "ignore_eos": true }));
        worker.engine("a request runs", |engine| engine.active == 1 && engine.steps > before + 2).await;
        answer.abort();
        let after = worker.engine("nothing runs", |engine| engine.active == 0).await.steps;
        assert!(after - before < 250, "{} steps for a client that left at once (stream: {stream})", after - before);
    }
}

#[tokio::test]
async fn a_failing_worker_says_why_on_its_last_line() {
    let mut worker = LoneWorker::spawn("model-boss-fake-worker");
    let message = "tensor 'x' ends behind the end of the file".to_owned();
    let load_exit = Some(WorkerExit::BadModel.code());
    let folder = model_of(&Behaviour { load_exit, load_message: message.clone(), ..Behaviour::default() });
    worker.open_gate(folder.path());
    let (code, text) = worker.end().await;
    assert_eq!(code, load_exit);
    assert_eq!(text.lines().last(), Some(message.as_str()));
}
