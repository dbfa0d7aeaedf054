//! The environment, headers and devices that a worker can see, and those that it cannot.

use http::{Method, header};
use model_boss_tests::{Behaviour, Sandbox, question};
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn rc_2_extension_fields_are_stripped_and_everything_else_stays() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let mut body = question("alpha", "hello");
    let kept = json!({ "temperature": 0.25, "seed": 7, "stop": ["\u{00e9}\n"], "metadata": { "x_inner": [1, null] } });
    let stripped = json!({
        "x_client_id": "me", "x_priority": "batch", "x_keep_alive": "5m", "x_budget_s": 30,
        "x_fallback": "none", "keep_alive": "5m",
    });
    for (name, value) in kept.as_object().unwrap().iter().chain(stripped.as_object().unwrap()) {
        body[name] = value.clone();
    }
    assert!(boss.client().post(CHAT, &body).await.status.is_success());
    let got = model.worker().await.request().await.body;
    for name in stripped.as_object().unwrap().keys() {
        assert!(got.get(name).is_none(), "{name} reached the worker: {got}");
    }
    for (name, value) in kept.as_object().unwrap() {
        assert_eq!(&got[name], value);
    }
    assert_eq!(got["messages"], body["messages"]);
    boss.finish().await;
}

#[tokio::test]
async fn a_clients_credentials_and_hop_headers_stay_outside() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let client = boss.client();
    let mut request = client.request(Method::POST, CHAT, question("alpha", "hello").to_string());
    for (name, value) in [
        (header::AUTHORIZATION.as_str(), "Bearer a-clients-own-key"),
        (header::COOKIE.as_str(), "session=1"),
        ("x-client-id", "me"),
        ("x-priority", "batch"),
    ] {
        request.headers_mut().insert(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
    }
    assert!(client.send(request).await.status.is_success());
    let headers = model.worker().await.request().await.headers;
    let text = format!("{headers:?}");
    assert!(!text.contains("a-clients-own-key") && !text.contains("session=1"), "{text}");
    assert!(!headers.contains_key("x-client-id"), "{text}");
    // The header has the priority that the scheduler uses, not the one that the client sent.
    assert_eq!(headers["x-priority"], "8", "{text}");
    boss.finish().await;
}

#[tokio::test]
async fn rc_16_a_worker_on_the_cpu_sees_no_gpu() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model_with("alpha", "device = \"cpu\"\nvram = \"64MiB\"", Behaviour::default());
    let mut launch = sandbox.launch(&model_boss_tests::binary("model-boss-fake-worker"));
    // Variables of the operator's shell concern the operator's own programs.
    launch.command.env("CUDA_VISIBLE_DEVICES", "0,1");
    let boss = launch.start().await;
    assert!(boss.chat("alpha", "hello").await.status.is_success());
    let worker = model.worker().await;
    assert_eq!(worker.env.get("CUDA_VISIBLE_DEVICES").map(String::as_str), Some(""));
    assert_eq!(worker.env.get("CUDA_DEVICE_ORDER").map(String::as_str), Some("PCI_BUS_ID"));
    assert_eq!(worker.spec["device"], "cpu");
    boss.finish().await;
}

#[tokio::test]
async fn a_worker_answers_its_coordinator_only() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "hello").await.status.is_success());
    let port = model.worker().await.port;
    let stranger = model_boss_tests::Client::new(([127, 0, 0, 1], port).into());
    let answer = stranger.post(CHAT, &question("alpha", "hello")).await;
    assert_eq!(answer.error_code(), "invalid_api_key");
    boss.finish().await;
}
