//! The coordinator's views of its own state, which never load a model.

use model_boss_tests::{Behaviour, Sandbox, binary};
use serde_json::{Value, json};

use crate::views;

#[tokio::test]
async fn op_4_looking_wakes_nothing() {
    let sandbox = Sandbox::new();
    let model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    for path in [
        "/live",
        "/ready",
        "/health",
        "/metrics",
        "/v1/models",
        "/v1/models/alpha",
        "/api/v1/health",
        "/api/v1/queue",
        "/api/v1/slots",
        "/api/v1/devices",
        "/api/v1/decisions",
        "/api/v1/stats",
    ] {
        let answer = boss.client().get(path).await;
        assert!(answer.status.is_success(), "{path}: {answer:?}");
    }
    views::model_state(&boss, "alpha", "unloaded").await;
    boss.finish().await;
    assert_eq!(model.spawns(), 0);
}

#[tokio::test]
async fn mm_8_health_lists_what_is_loaded() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let health = boss.read("/api/v1/health").await;
    assert_eq!(health["model_loaded"], Value::Null, "{health}");
    assert_eq!(health["checkpoint_loaded"], Value::Null, "{health}");
    assert_eq!(health["all_models_loaded"], json!([]), "{health}");

    assert!(boss.chat("alpha", "?").await.status.is_success());
    let health = boss.read("/api/v1/health").await;
    assert_eq!(health["model_loaded"], "alpha", "{health}");
    assert!(health["checkpoint_loaded"].as_str().is_some_and(|path| path.contains("alpha")), "{health}");
    let [loaded] = health["all_models_loaded"].as_array().unwrap().as_slice() else { panic!("{health}") };
    assert_eq!(loaded["model_name"], "alpha");
    assert_eq!(loaded["type"], "llm");
    assert_eq!(loaded["device"], "cpu");
    assert_eq!(loaded["backend"], "candle");
    for field in ["checkpoint", "last_use"] {
        assert!(!loaded[field].is_null(), "{field}: {loaded}");
    }
    let port = model.worker().await.port;
    assert!(loaded["backend_url"].as_str().is_some_and(|url| url.contains(&port.to_string())), "{loaded}");
    boss.finish().await;
}

#[tokio::test]
async fn mm_8_the_model_that_was_loaded_last_is_named_whichever_was_used_last() {
    let sandbox = Sandbox::new();
    let _models = ["first", "second"].map(|name| sandbox.fake_model(name, Behaviour::default()));
    let boss = sandbox.start().await;
    for model in ["first", "second", "first"] {
        assert!(boss.chat(model, "?").await.status.is_success());
    }
    let health = boss.read("/api/v1/health").await;
    assert_eq!(health["model_loaded"], "second", "{health}");
    assert_eq!(health["all_models_loaded"][1]["devices"], json!(["cpu"]), "{health}");
    boss.finish().await;
}

#[tokio::test]
async fn mm_9_stats_show_the_most_recent_inference_and_totals_per_model() {
    let sandbox = Sandbox::new();
    let behaviour = |reply: &str| Behaviour { reply: Some(reply.to_owned()), ..Behaviour::default() };
    let _alpha = sandbox.fake_model("alpha", behaviour("one two three"));
    let _beta = sandbox.fake_model("beta", behaviour("one two"));
    let boss = sandbox.start().await;
    for (model, question) in [("beta", "good day to you"), ("alpha", "good day"), ("alpha", "day")] {
        boss.chat_streamed(model, question).await.rest().await;
    }
    let stats = boss.read("/api/v1/stats").await;
    assert_eq!(
        (&stats["model_name"], &stats["input_tokens"], &stats["output_tokens"]),
        (&json!("alpha"), &json!(1), &json!(3))
    );
    for field in ["time_to_first_token", "tokens_per_second", "at"] {
        assert!(stats[field].as_f64().is_some_and(|value| value > 0.0), "{field}: {stats}");
    }
    let totals =
        |name: &str| stats["models"].as_array().unwrap().iter().find(|model| model["model_name"] == name).unwrap();
    for (name, requests, input, output) in [("alpha", 2, 3, 6), ("beta", 1, 4, 2)] {
        let shown = totals(name);
        let counted = (&shown["requests"], &shown["input_tokens"], &shown["output_tokens"]);
        assert_eq!(counted, (&json!(requests), &json!(input), &json!(output)), "{name}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn bc_6_entries_bytes_and_budget_of_a_device_are_metrics() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model_with("alpha", "vram = \"64MiB\"", Behaviour::default());
    let boss = sandbox.start().await;
    let figures = async || {
        let stats = boss.read("/api/v1/stats").await;
        let cpu = stats["devices"].as_array().unwrap().iter().find(|device| device["device"] == "cpu").unwrap().clone();
        for (metric, field) in [("models", "entries"), ("leased_bytes", "bytes"), ("retention_budget_bytes", "budget")]
        {
            let shown = views::metric(&boss, &[&format!("model_boss_device_{metric}"), "\"cpu\""]).await;
            assert_eq!(Some(shown), cpu[field].as_f64(), "{metric}: {cpu}");
        }
        cpu["entries"].as_u64()
    };
    assert_eq!(figures().await, Some(0));
    assert!(boss.chat("alpha", "?").await.status.is_success());
    assert_eq!(figures().await, Some(1));
    boss.finish().await;
}

#[tokio::test]
async fn op_3_metrics_count_requests_and_tokens_per_model() {
    let sandbox = Sandbox::new();
    let _model =
        sandbox.fake_model("alpha", Behaviour { reply: Some("one two three".to_owned()), ..Behaviour::default() });
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "good day").await.status.is_success());
    boss.chat_streamed("alpha", "good day").await.rest().await;
    let alpha = "\"alpha\"";
    assert_eq!(views::metric(&boss, &["requests_total", alpha]).await, 2.0);
    let text = String::from_utf8(boss.client().get("/metrics").await.body.to_vec()).unwrap();
    for part in ["first_token", "queue", "slots"] {
        assert!(text.lines().any(|line| line.starts_with("model_boss_") && line.contains(part)), "{part} in\n{text}");
    }
    assert_eq!(views::metric(&boss, &["tokens_total", alpha, "prompt"]).await, 4.0, "{text}");
    boss.finish().await;
}

#[tokio::test]
async fn dm_4_models_show_their_state_device_and_size() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour { context_length: 2048, ..Behaviour::default() });
    let boss = sandbox.start().await;
    let list = boss.read("/v1/models").await;
    assert_eq!(list["object"], "list");
    let [model] = list["data"].as_array().unwrap().as_slice() else { panic!("{list}") };
    for (field, value) in [("id", "alpha"), ("object", "model"), ("category", "llm")] {
        assert_eq!(model[field], value, "{model}");
    }
    assert!(model["created"].is_u64() && model["owned_by"].is_string(), "{model}");
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let model = boss.read("/v1/models/alpha").await;
    assert_eq!(model["status"]["value"], "loaded", "{model}");
    assert_eq!(model["device"], "cpu", "{model}");
    assert_eq!(model["context_length"], 2048, "{model}");
    boss.finish().await;
}

#[tokio::test]
async fn decisions_say_what_happened_and_why() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let decisions = boss.read("/api/v1/decisions").await;
    assert!(decisions.to_string().contains("alpha"), "{decisions}");
    boss.finish().await;
}

#[tokio::test]
async fn the_first_lines_say_where_what_and_how() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    boss.output().line("shows a command to try", |line| line.contains("curl") || line.contains("model-boss run")).await;
    let text = boss.output().text();
    for part in ["http://127.0.0.1:", "cpu", "alpha", "lease"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn op_5_another_address_needs_keys() {
    let sandbox = Sandbox::new();
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    launch.command.args(["--host", "0.0.0.0"]);
    let (status, output) = launch.end().await;
    assert!(!status.success(), "{output}");
    assert!(output.contains("model-boss keys create"), "what to do: {output}");
}

#[tokio::test]
async fn op_5_with_keys_every_request_needs_one() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let keys = sandbox.path("keys");
    std::fs::write(&keys, "# ours\nan-example-key-of-32-characters\n").unwrap();
    let sandbox = sandbox.with_config(&format!("api_keys = \"{}\"", keys.display()));
    let boss = sandbox.start().await;
    let client = boss.client();
    for (offered, status) in [
        (None, 401),
        (Some("Bearer wrong-key-of-some-length-here"), 401),
        (Some("Bearer an-example-key-of-32-characters"), 200),
    ] {
        for path in ["/v1/models", "/metrics", "/api/v1/slots"] {
            let mut request = client.request(http::Method::GET, path, "");
            if let Some(key) = offered {
                request.headers_mut().insert(http::header::AUTHORIZATION, key.parse().unwrap());
            }
            let answer = client.send(request).await;
            assert_eq!(answer.status, status, "{path} with {offered:?}: {answer:?}");
        }
    }
    // Monitoring programs have no key.
    assert!(client.get("/live").await.status.is_success());
    boss.finish().await;
}
