//! RC-9, RC-24: the limits of clients, and how the API shows them.

use model_boss_tests::{Behaviour, Boss, PATIENCE, Sandbox, question, until};
use serde_json::{Value, json};

use crate::views;

fn from(client: &str, text: &str) -> Value {
    let mut body = question("alpha", text);
    body["x_client_id"] = client.into();
    body
}

async fn client(boss: &Boss, name: &str) -> Value {
    let all = boss.read("/api/v1/clients").await;
    let found = all["clients"].as_array().into_iter().flatten().find(|client| client["id"] == name);
    found.unwrap_or_else(|| panic!("no '{name}' in {all}")).clone()
}

#[tokio::test]
async fn rc_9_a_client_at_its_limit_waits_while_others_run() {
    let sandbox = Sandbox::new().with_config("[clients.greedy]\nmax_concurrent = 1\nmax_queued = 1");
    let behaviour = Behaviour { hold_after_tokens: Some(0), reply: Some("yes".into()), ..Behaviour::default() };
    let mut model = sandbox.fake_model_with("alpha", "vram = \"64MiB\"\nmax_concurrent = 4", behaviour);
    let boss = sandbox.start().await;
    let first = boss.ask(from("greedy", "first"));
    let mut worker = model.worker().await;
    worker.held().await;
    let second = boss.ask(from("greedy", "second"));
    let waiting = views::waiting(&boss, 1).await;
    assert_eq!((&waiting[0]["client"], &waiting[0]["wait"]["reason"]), (&"greedy".into(), &"client_limit".into()));
    let refused = boss.client().post("/v1/chat/completions", &from("greedy", "third")).await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (429, "client_limit"), "{refused:?}");
    assert!(refused.header("retry-after").is_some());
    let other = boss.ask(from("modest", "other"));
    worker.held().await;
    let shown = client(&boss, "greedy").await;
    assert_eq!((&shown["running"], &shown["queued"], &shown["refused"]), (&1.into(), &1.into(), &1.into()), "{shown}");
    assert_eq!(shown["held_back"]["reason"], "client_limit", "{shown}");
    worker.decode();
    for answer in [first, second, other] {
        assert_eq!(answer.await.unwrap().text(), "yes");
    }
    // Rules in tasks.yaml apply, and are shown with their source.
    std::fs::write(sandbox.path("tasks.yaml"), "clients:\n  modest: {cloud: false, rate_per_minute: 600}\n").unwrap();
    let told = async || {
        let shown = client(&boss, "modest").await;
        let cloud = &shown["profile"]["cloud"];
        (cloud["value"] == false && cloud["origin"] == "tasks.yaml: clients.modest").then_some(())
    };
    until(PATIENCE, "the profile is shown", told).await;
    let all = boss.read("/api/v1/clients").await;
    let profiles: Vec<&str> = all["profiles"].as_array().unwrap().iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(profiles, ["default", "greedy", "modest"], "{all}");
    let greedy = &client(&boss, "greedy").await["profile"]["max_concurrent"];
    assert_eq!((&greedy["value"], &greedy["origin"]), (&1.into(), &"model-boss.toml: [clients]".into()));
    let shown = client(&boss, "modest").await;
    assert_eq!((&shown["requests"], &shown["running"]), (&1.into(), &0.into()), "{shown}");
    boss.finish().await;
}

/// RC-24, RC-19: a request that only loads or unloads a model obeys the same rules as one that uses it.
#[tokio::test]
async fn rc_24_ollamas_empty_prompt_keeps_a_clients_rules_and_the_operators_pins() {
    let sandbox = Sandbox::new();
    let _alpha = sandbox.fake_model_with("alpha", "vram = \"64MiB\"\npin = true", Behaviour::default());
    let beta = sandbox.fake_model("beta", Behaviour::default());
    let rules = "clients:\n  phone: {allowed_models: [alpha]}\n  often: {rate_per_minute: 1}\n";
    std::fs::write(sandbox.path("tasks.yaml"), rules).unwrap();
    let boss = sandbox.start().await;
    let empty = async |path: &str, model: &str, client: &str, keep_alive: Value| {
        let body = json!({ "model": model, "x_client_id": client, "keep_alive": keep_alive });
        boss.client().post(path, &body).await.status.as_u16()
    };
    for path in ["/api/generate", "/api/chat"] {
        for keep_alive in [json!("5m"), json!(0)] {
            assert_eq!(empty(path, "beta", "phone", keep_alive).await, 403, "{path}");
        }
        assert_eq!(empty(path, "alpha", "phone", json!("5m")).await, 200, "{path}");
        assert_eq!(empty(path, "alpha", "phone", json!(0)).await, 409, "{path}: it is pinned");
    }
    assert_eq!(beta.spawns(), 0);
    views::model_state(&boss, "alpha", "loaded").await;
    assert_eq!(empty("/api/chat", "beta", "often", json!("5m")).await, 200);
    assert_eq!(empty("/api/chat", "beta", "often", json!(0)).await, 429);
    let mut order = boss.client().request(http::Method::POST, "/api/v1/unload", r#"{"model_name": "beta"}"#);
    order.headers_mut().insert("x-client-id", http::HeaderValue::from_static("phone"));
    assert_eq!(boss.client().send(order).await.error_code(), "insufficient_scope");
    views::model_state(&boss, "beta", "loaded").await;
    boss.finish().await;
}

#[tokio::test]
async fn a_client_that_calls_itself_operator_holds_back_no_load() {
    let sandbox = Sandbox::new().with_config("[clients.default]\nmax_concurrent = 1");
    let held = Behaviour { hold_after_tokens: Some(0), ..Behaviour::default() };
    let mut alpha = sandbox.fake_model("alpha", held);
    let _beta = sandbox.fake_model("beta", Behaviour::default());
    let boss = sandbox.start().await;
    let running = boss.ask(from("operator", "?"));
    let mut worker = alpha.worker().await;
    worker.held().await;
    let loaded = boss.client().post("/api/v1/load", &json!({ "model_name": "beta" })).await;
    assert_eq!(loaded.status, 200, "{loaded:?}");
    let all = boss.read("/api/v1/clients").await;
    let kinds: Vec<_> = all["clients"].as_array().unwrap().iter().map(|one| (&one["id"], &one["kind"])).collect();
    assert_eq!(kinds, [(&json!("operator"), &json!("operator")), (&json!("operator"), &json!("client"))], "{all}");
    worker.decode();
    assert_eq!(running.await.unwrap().status, 200);
    boss.finish().await;
}
