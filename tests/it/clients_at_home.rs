//! Requests in the form that clients and proxies send to other servers: hosts, origins, heads and first requests.

use http::StatusCode;
use model_boss_tests::{Behaviour, Boss, Sandbox, question};
use serde_json::{Value, json};

async fn raw(boss: &Boss, head: &str) -> String {
    String::from_utf8(boss.client().raw(head.as_bytes()).await).unwrap()
}

#[tokio::test]
async fn op_5_watchers_containers_and_listed_sites_come_in_and_others_hear_what_to_set() {
    let sandbox = Sandbox::new().with_config("allowed_origins = [\"app://\", \"https://chat.example\"]");
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    for path in ["/live", "/ready", "/health"] {
        let answer = raw(&boss, &format!("GET {path} HTTP/1.0\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let close = "connection: close\r\n";
    let answer =
        raw(&boss, &format!("GET /v1/models HTTP/1.1\r\nhost: host.docker.internal:8210\r\n{close}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let answer = raw(&boss, &format!("GET /v1/models HTTP/1.1\r\nhost: boss.lan\r\n{close}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("--allowed-hosts"), "{answer}");
    for (origin, status) in
        [("app://obsidian.md", "200"), ("https://chat.example", "200"), ("https://evil.example", "200")]
    {
        let asks = format!(
            "OPTIONS /api/chat HTTP/1.1\r\nhost: localhost\r\norigin: {origin}\r\naccess-control-request-method: POST\r\n{close}\r\n"
        );
        let answer = raw(&boss, &asks).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        let allowed = format!("access-control-allow-origin: {origin}\r\n");
        // A preflight without a site in its answer is a refusal.
        assert_eq!(answer.to_lowercase().contains(&allowed), !origin.contains("evil"), "{answer}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_told_so_in_a_body() {
    let sandbox = Sandbox::new().with_config("limits.header_size = \"16KiB\"");
    let boss = sandbox.start().await;
    let answer =
        raw(&boss, &format!("GET /live HTTP/1.1\r\nhost: localhost\r\ncookie: {}\r\n\r\n", "x".repeat(60_000))).await;
    assert!(answer.starts_with("HTTP/1.1 431") && answer.contains("limits.header_size"), "{answer}");
    assert!(answer.contains("request_too_large"), "{answer}");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_what_ollamas_command_line_asks_first_is_answered() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    for head in ["HEAD / HTTP/1.1", "GET / HTTP/1.1", "HEAD /api/version HTTP/1.1"] {
        let answer = raw(&boss, &format!("{head}\r\nhost: localhost\r\nconnection: close\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{head}: {answer}");
    }
    let pulled = boss.client().post("/api/pull", &json!({ "model": "alpha:latest" })).await;
    assert_eq!(pulled.status, StatusCode::OK, "{pulled:?}");
    assert!(String::from_utf8_lossy(&pulled.body).ends_with("{\"status\":\"success\"}\n"), "{pulled:?}");
    assert_eq!(boss.client().post("/api/show", &json!({ "model": "alpha" })).await.status, StatusCode::OK);
    boss.finish().await;
}

/// Sends the requests of Ollama's `cmd/cmd.go` and `api/client.go`, field by field.
#[tokio::test]
async fn en_7_every_command_of_ollamas_command_line_gets_what_it_reads() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let show = async |name: &str| {
        let asked =
            json!({ "model": "", "system": "", "template": "", "verbose": false, "options": null, "name": name });
        boss.client().post("/api/show", &asked).await
    };
    let generate = |more: Value| {
        let mut asked =
            json!({ "model": "alpha", "prompt": "", "suffix": "", "system": "", "template": "", "options": null });
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        asked
    };
    let last = async |path: &str, asked: Value| -> Value {
        let answer = boss.client().post(path, &asked).await;
        assert_eq!(answer.status, StatusCode::OK, "{path} {asked}: {answer:?}");
        serde_json::from_str(String::from_utf8_lossy(&answer.body).lines().last().unwrap()).unwrap()
    };

    // run: reads the model's description, loads it, asks a question, and continues a conversation.
    assert!(show("alpha").await.json()["model_info"].is_object());
    assert_eq!(last("/api/generate", generate(json!({ "keep_alive": "1h5m0s" }))).await["done_reason"], "load");
    let asked = generate(json!({ "prompt": "?", "context": [], "options": {}, "think": false }));
    let said = last("/api/generate", asked).await;
    assert!(said["done"] == true && said["total_duration"].as_u64() > Some(0), "{said}");
    let said = json!([{ "role": "user", "content": "?" }]);
    let asked = json!({ "model": "alpha", "messages": said, "options": {}, "keep_alive": -1 });
    assert_eq!(last("/api/chat", asked).await["done_reason"], "stop");

    // The commands ps, list and stop.
    let running = boss.read("/api/ps").await;
    let entry = &running["models"][0];
    assert!(entry["digest"].as_str().unwrap().len() > 12 && entry["size"].as_u64() > Some(0), "{running}");
    assert_eq!(boss.read("/api/tags").await["models"][0]["name"], "alpha");
    assert_eq!(last("/api/generate", generate(json!({ "keep_alive": "0s" }))).await["done_reason"], "unload");
    assert_eq!(boss.read("/api/ps").await["models"], json!([]));

    // The name is unknown. `stop` and `rm` search the error for these words, and `run` tries to pull because of the
    // status.
    let missing = show("nobody").await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND, "{missing:?}");
    assert!(missing.json()["error"].as_str().unwrap().contains("not found"), "{missing:?}");
    let asked =
        json!({ "model": "nobody", "insecure": false, "username": "", "password": "", "stream": null, "name": "" });
    let pulled = boss.client().post("/api/pull", &asked).await;
    assert_eq!(pulled.status, StatusCode::NOT_FOUND, "{pulled:?}");
    assert!(pulled.json()["error"].as_str().unwrap().contains("manifest"), "{pulled:?}");
    // The commands rm, cp, create, push and signin are not supported, and each error says so.
    for (method, path) in [
        ("DELETE", "/api/delete"),
        ("POST", "/api/copy"),
        ("POST", "/api/create"),
        ("POST", "/api/push"),
        ("POST", "/api/me"),
        ("GET", "/api/status"),
    ] {
        let answer =
            raw(&boss, &format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("{\"error\":\""), "{path}: {answer}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn rc_3_fields_of_ours_count_in_the_bodies_of_ollamas_embeddings() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let mut vectors =
        sandbox.gguf_model("vectors", "labels = [\"embedding\"]\nbackend = \"llama-server\"", Behaviour::default());
    let boss = sandbox.start().await;
    let ours = json!({ "x_client_id": "shop", "x_priority": 8, "x_budget_s": 60, "keep_alive": "1h" });
    for (path, field) in [("/api/embed", "input"), ("/api/embeddings", "prompt")] {
        let mut body = ours.clone();
        body["model"] = "vectors".into();
        body[field] = "a b".into();
        let answer = boss.client().post(path, &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {answer:?}");
    }
    let wrong = json!({ "model": "vectors", "input": "a", "x_priority": 12 });
    assert_eq!(boss.client().post("/api/embed", &wrong).await.status, StatusCode::BAD_REQUEST);
    let clients = boss.read("/api/v1/clients").await.to_string();
    assert!(clients.contains("\"shop\""), "{clients}");
    drop(vectors.worker().await);
    boss.finish().await;
}

#[tokio::test]
async fn several_addresses_of_both_kinds_are_listened_on() {
    let mut hosts = vec!["127.0.0.2"];
    match std::net::TcpListener::bind("[::1]:0") {
        Ok(_) => hosts.push("[::1]"),
        Err(error) => eprintln!("skipped: [::1], because this machine has no IPv6 loopback address: {error}"),
    }
    for host in hosts {
        let sandbox = Sandbox::new();
        let mut model = sandbox.fake_model("alpha", Behaviour::default());
        let mut launch = sandbox.launch(&model_boss_tests::binary("model-boss-fake-worker"));
        launch.command.args(["--host", "127.0.0.1", "--host", host]);
        let boss = launch.start().await;
        let line = boss.output().line("says where", |line| line.contains("listens on")).await;
        let port = boss.client().address().port();
        assert!(line.ends_with(&format!("http://127.0.0.1:{port} and http://{host}:{port}")), "{line}");
        let second = model_boss_tests::Client::new(format!("{host}:{port}").parse().unwrap());
        for client in [boss.client(), second] {
            // Requests of the page name the address that they came to.
            let answer = client.post("/v1/chat/completions", &question("alpha", "?")).await;
            assert_eq!(answer.status, StatusCode::OK, "{host}: {answer:?}");
        }
        drop(model.worker().await);
        boss.finish().await;
        assert!(!second.listens().await, "{host} is closed as well");
    }
}
