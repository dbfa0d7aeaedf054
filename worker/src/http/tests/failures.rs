use super::rig::{PATIENCE, Setup, chat, event};

use std::sync::Arc;
use std::sync::mpsc::channel;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::get;
use http_body_util::BodyExt;
use model_boss_engine::DecoderError;
use model_boss_engine::fake::{FakeDecoder, Script, words};
use model_boss_protocol::{ErrorBody, WorkerExit, WorkerHealth};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tower::ServiceExt;

use crate::http::routes::guarded;

/// Reads from a stream until `what` has arrived.
async fn read_until(stream: &mut TcpStream, what: &str) -> String {
    let mut text = String::new();
    let read = async {
        while !text.contains(what) {
            let mut bytes = [0; 4096];
            let length = stream.read(&mut bytes).await.unwrap();
            assert_ne!(length, 0, "the stream ended before {what}: {text}");
            text.push_str(std::str::from_utf8(&bytes[..length]).unwrap());
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect(what);
    text
}

fn endless() -> Setup {
    Setup {
        script: Script::Answer(words("on and ")),
        context: 1_000_000,
        // Sampling at a temperature takes another token once in a hundred runs.
        params: json!({"ignore_eos": true, "temperature": 0}),
        ..Setup::default()
    }
}

#[tokio::test]
async fn health_is_503_until_the_model_is_loaded() {
    let (load, loading) = channel();
    let rig = Setup { loading: Some(loading), ..Setup::default() }.start().await;
    rig.until(|rig| rig.worker.health().progress > 0.0).await;
    let health = rig.get("/health").await;
    assert_eq!((health.status, health.json()["status"].as_str().unwrap()), (503, "loading"));
    let health: WorkerHealth = serde_json::from_value(health.json()).unwrap();
    assert!((health.progress - 0.5).abs() < 1e-6);
    assert_eq!((&health.proof, health.generation), (&rig.worker.spec.proof, rig.worker.spec.generation));
    let early = rig.chat(json!({})).await;
    assert_eq!((early.error().0, early.headers["retry-after"].as_str()), (503, "1"));
    let briefly = rig.get("/health?wait_ms=1").await;
    assert_eq!(briefly.status, 503, "who waits no longer is told how far it is");
    // The answer comes with the end of the load, whether the question was asked before it or after.
    let (health, ()) = tokio::join!(rig.get("/health?wait_ms=10000"), async { load.send(()).unwrap() });
    assert_eq!(health.status, 200);
    let health = rig.get("/health").await;
    assert_eq!(
        (health.status, &health.json()["status"], &health.json()["context_length"]),
        (200, &json!("ok"), &json!(400))
    );
}

#[tokio::test]
async fn rc_11_a_client_that_goes_away_ends_its_answer_streamed_or_not() {
    for stream in [true, false] {
        let (rig, permits) = endless().start_gated(FakeDecoder::gated).await;
        let body = chat(json!({"stream": stream})).to_string();
        let client = rig.open("POST", "/v1/chat/completions", "", body.as_bytes()).await;
        rig.stepping_until(&permits, |rig| rig.worker.activity.stats().steps >= 3).await;
        assert_eq!(rig.worker.activity.totals().kv_used_blocks, 1);
        drop(client);
        rig.stepping_until(&permits, |rig| rig.worker.activity.totals().cancelled == 1).await;
        rig.until(|rig| rig.worker.activity.totals().kv_used_blocks == 0).await;
    }
}

#[tokio::test]
async fn rc_13_a_request_ends_with_its_time_streamed_or_not() {
    for (stream, status) in [(false, 504), (true, 200)] {
        let rig = endless().start().await;
        let body = chat(json!({"stream": stream})).to_string();
        let answer = rig.send("POST", "/v1/chat/completions", "x-deadline-ms: 200\r\n", body.as_bytes()).await;
        let last = answer.chunks.last().unwrap();
        let error = if stream { event(last) } else { answer.json() };
        assert_eq!((answer.status, &error["error"]["code"]), (status, &json!("deadline_exceeded")), "{last}");
        rig.until(|rig| rig.worker.activity.totals().cancelled == 1).await;
        rig.until(|rig| rig.worker.activity.totals().kv_used_blocks == 0).await;
    }
    // Enough time, or an invalid header, has no effect.
    for header in ["x-deadline-ms: 600000\r\n", "x-deadline-ms: soon\r\n"] {
        let rig = Setup::saying("good day").start().await;
        let body = chat(json!({"stream": true})).to_string();
        let answer = rig.send("POST", "/v1/chat/completions", header, body.as_bytes()).await;
        assert!(answer.events().len() > 1);
    }
}

#[tokio::test]
async fn rc_11_a_waiting_client_that_goes_away_is_forgotten() {
    let (rig, permits) = endless().start_gated(FakeDecoder::gated).await;
    let body = chat(json!({"n": 4})).to_string();
    let running = rig.open("POST", "/v1/chat/completions", "", body.as_bytes()).await;
    rig.stepping_until(&permits, |rig| rig.worker.activity.stats().active == 4).await;
    let body = chat(json!({})).to_string();
    let waiting = rig.open("POST", "/v1/chat/completions", "", body.as_bytes()).await;
    rig.stepping_until(&permits, |rig| rig.worker.activity.stats().waiting == 1).await;
    drop(waiting);
    rig.stepping_until(&permits, |rig| rig.worker.activity.stats().waiting == 0).await;
    assert_eq!(rig.worker.activity.stats().active, 4);
    drop(running);
    rig.stepping_until(&permits, |rig| rig.worker.activity.totals().kv_used_blocks == 0).await;
}

#[tokio::test]
async fn a_failure_in_the_middle_is_told_in_the_stream() {
    let (rig, permits) = endless().start_gated(FakeDecoder::gated).await;
    let body = chat(json!({"stream": true})).to_string();
    let mut client = rig.open("POST", "/v1/chat/completions", "", body.as_bytes()).await;
    permits.send(()).unwrap();
    read_until(&mut client, "\"content\":\"o\"").await;
    rig.control.fail_next(DecoderError::Step("a bad day".to_owned()));
    permits.send(()).unwrap();
    let rest = read_until(&mut client, "\r\n0\r\n\r\n").await;
    let data = rest.split("\r\n").find(|line| line.contains("data: ")).unwrap();
    let error = event(&format!("{data}\n\n").replace("\n\n\n\n", "\n\n"));
    assert_eq!((&error["error"]["code"], &error["source"]), (&json!("internal_error"), &json!("worker")));
    assert!(!rest.contains("[DONE]"));
}

#[tokio::test]
async fn a_failure_before_the_first_token_keeps_its_status() {
    let rig = Setup::default().start().await;
    rig.control.fail_next(DecoderError::Step("a bad day".to_owned()));
    assert_eq!(rig.chat(json!({"stream": true})).await.error(), (500, "internal_error".into(), String::new()));
    rig.control.most_blocks(0);
    let full = rig.chat(json!({"stream": true})).await;
    assert_eq!((full.error().1.as_str(), full.headers["retry-after"].as_str()), ("no_capacity", "1"));
}

#[tokio::test]
async fn a_lost_device_ends_the_process() {
    let mut rig = Setup::default().start().await;
    rig.control.fail_next(DecoderError::Fatal("fell off the bus".to_owned()));
    rig.chat(json!({})).await;
    let failure = (&mut rig.ended).await.unwrap();
    let expected = "the device failed for good: fell off the bus";
    assert_eq!((failure.exit(), failure.to_string().as_str()), (WorkerExit::DeviceLost, expected));
}

#[tokio::test]
async fn draining_lets_answers_end() {
    let (mut rig, permits) = Setup::default().start_gated(FakeDecoder::gated).await;
    let body = chat(json!({"stream": true})).to_string();
    let mut client = rig.open("POST", "/v1/chat/completions", "", body.as_bytes()).await;
    permits.send(()).unwrap();
    read_until(&mut client, "\"content\":\"h\"").await;
    rig.worker.drain();
    assert!(rig.worker.serving().is_err());
    // Without its gate the decoder runs on.
    drop(permits);
    let (rest, ()) = tokio::join!(read_until(&mut client, "[DONE]"), rig.server.drain());
    assert!(rest.contains("\"finish_reason\":\"stop\""));
    assert!(TcpStream::connect(rig.address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn a_panic_is_an_answer_too() {
    let rig = Setup::default().start().await;
    let routes = Router::new().route("/panic", get(async || -> &'static str { panic!("a test panics") }));
    let router = guarded(routes, Arc::clone(&rig.worker));
    let response = router.oneshot(Request::get("/panic").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 500);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body: ErrorBody = serde_json::from_slice(&body).unwrap();
    assert_eq!(body.error.code.as_deref(), Some("internal_error"));
}
