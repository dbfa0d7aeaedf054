//! Models of a hub over HTTP: pulls as jobs of the coordinator, Ollama's lines, and requests for models that were not
//! downloaded. Requirement OP-6.

use std::fs;
use std::process::Command;

use http::{Method, StatusCode};
use model_boss_tests::{Boss, FakeHub, PATIENCE, Sandbox, binary, until};
use serde_json::{Value, json};

const REPO: &str = "org/tiny";
const MIB: usize = 1 << 20;

/// A hub with a GGUF repository and one of safetensors, and a sandbox with a home folder.
fn scene() -> (FakeHub, Sandbox) {
    let (hub, sandbox) = (FakeHub::new(), Sandbox::new());
    fs::create_dir(sandbox.path("home")).unwrap();
    hub.large_file("org/tiny-GGUF", "tiny-Q4_K_M.gguf", 3 * MIB, 1);
    let header = format!(r#"{{"w":{{"dtype":"U8","shape":[{MIB}],"data_offsets":[0,{MIB}]}}}}"#);
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend_from_slice(header.as_bytes());
    weights.resize(weights.len() + MIB, 7);
    hub.file(REPO, "model.safetensors", weights);
    hub.file(REPO, "config.json", r#"{"architectures":["LlamaForCausalLM"]}"#);
    hub.file(REPO, "tokenizer.json", "{}");
    hub.file(REPO, "pytorch_model.bin", "no");
    let manifest = format!("name = \"tiny\"\nbackend = \"candle\"\nvram = \"64MiB\"\nsource = {{ hf = \"{REPO}\" }}\n");
    fs::write(sandbox.path("manifests/tiny.toml"), manifest).unwrap();
    (hub, sandbox)
}

async fn start(hub: &FakeHub, sandbox: &Sandbox) -> Boss {
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    hub.set_for(&mut launch, &sandbox.path("home"));
    launch.start().await
}

async fn downloaded(boss: &Boss, model: &str) -> Value {
    boss.read(&format!("/v1/models/{model}")).await["downloaded"].clone()
}

#[tokio::test]
async fn op_6_a_model_that_was_not_downloaded_is_pulled_by_an_order_and_serves_at_once() {
    let (hub, sandbox) = scene();
    let boss = start(&hub, &sandbox).await;
    assert_eq!(downloaded(&boss, "tiny").await, false);
    let refused = boss.chat("tiny", "?").await;
    assert_eq!((refused.status, refused.error_code().as_str()), (StatusCode::NOT_FOUND, "model_not_downloaded"));
    assert!(refused.error_message().contains("model-boss pull tiny"), "{refused:?}");
    let load = boss.client().post("/api/v1/load", &json!({ "model_name": "tiny" })).await;
    assert_eq!(load.error_code(), "model_not_downloaded");
    assert!(hub.requests().is_empty(), "without auto_pull nothing is asked of the hub");

    let pulled = boss.client().post("/api/v1/pull", &json!({ "model": "tiny" })).await;
    assert_eq!(pulled.status, StatusCode::OK, "{pulled:?}");
    let view = pulled.json();
    assert_eq!(
        (&view["status"], &view["model_name"], &view["percent"]),
        (&json!("pulled"), &json!("tiny"), &json!(100))
    );
    assert_eq!(downloaded(&boss, "tiny").await, true);
    assert!(boss.chat("tiny", "?").await.status.is_success());
    let snapshot = view["path"].as_str().unwrap();
    let mut files: Vec<_> =
        fs::read_dir(snapshot).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, ["config.json", "model.safetensors", "tokenizer.json"], "and no pickle");
    boss.finish().await;
}

#[tokio::test]
async fn op_6_auto_pull_downloads_what_a_request_needs() {
    let (hub, sandbox) = scene();
    let sandbox = sandbox.with_config("auto_pull = true");
    hub.behave(|now| now.hold_after = Some(512 << 10));
    let boss = start(&hub, &sandbox).await;
    let percent = until(PATIENCE, "half of the model is there", async || {
        let refused = boss.chat("tiny", "?").await;
        assert_eq!((refused.status, refused.error_code().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "model_pulling"));
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
        Some(refused.error_message()).filter(|message| message.contains("49 %"))
    });
    percent.await;
    let pulls = boss.read("/api/v1/pull").await;
    assert_eq!(pulls["pulls"].as_array().unwrap().len(), 1, "all requests share one: {pulls}");
    hub.behave(|now| now.hold_after = None);
    let served = until(PATIENCE, "the model serves", async || {
        Some(boss.chat("tiny", "?").await).filter(|answer| answer.status != StatusCode::SERVICE_UNAVAILABLE)
    });
    assert!(served.await.status.is_success());
    boss.finish().await;
}

#[tokio::test]
async fn op_6_ollamas_pull_has_its_lines_and_makes_the_model() {
    let (hub, sandbox) = scene();
    let boss = start(&hub, &sandbox).await;
    let name = "hf.co/org/tiny-GGUF:Q4_K_M";
    let answer = boss.client().post("/api/pull", &json!({ "model": name })).await;
    assert_eq!((answer.status, answer.header("content-type")), (StatusCode::OK, Some("application/x-ndjson")));
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let statuses: Vec<&str> = lines.iter().map(|line| line["status"].as_str().unwrap()).collect();
    assert_eq!(statuses[0], "pulling manifest", "{text}");
    assert_eq!(statuses[statuses.len() - 3..], ["verifying sha256 digest", "writing manifest", "success"], "{text}");
    for line in lines.iter().filter(|line| line.get("digest").is_some()) {
        assert!(line["digest"].as_str().unwrap().starts_with("sha256:"), "{line}");
        assert_eq!(line["total"], 3 * MIB, "{line}");
    }
    let tags = boss.read("/api/tags").await.to_string();
    assert!(tags.contains("org/tiny-GGUF:Q4_K_M"), "{tags}");
    assert_eq!(boss.read("/v1/models/hf.co/org/tiny-GGUF:Q4_K_M").await["id"], "org/tiny-GGUF:Q4_K_M");
    let whole = boss.client().post("/api/pull", &json!({ "model": name, "stream": false })).await;
    assert_eq!(whole.json(), json!({ "status": "success" }));
    let unknown = boss.client().post("/api/pull", &json!({ "model": "llama3.2" })).await;
    assert!(unknown.status == StatusCode::NOT_FOUND && unknown.json()["error"].as_str().unwrap().contains("hf.co/"));
    boss.finish().await;
}

#[tokio::test]
async fn op_6_a_pull_is_shared_shown_and_cancelled() {
    let (hub, sandbox) = scene();
    hub.behave(|now| now.hold_after = Some(1 << 20));
    let boss = start(&hub, &sandbox).await;
    let (order, client) = (json!({ "source": "org/tiny-GGUF:Q4_K_M", "stream": true }), boss.client());
    let mut first = client.stream("/api/v1/pull", &order).await;
    let second = client.post("/api/v1/pull?", &json!({ "source": "hf://org/tiny-GGUF:Q4_K_M", "wait": false })).await;
    assert_eq!(second.status, StatusCode::ACCEPTED, "{second:?}");
    let id = first.chunk().await["id"].clone();
    assert_eq!(second.json()["id"], id);
    until(PATIENCE, "bytes came", async || (first.chunk().await["completed"] == MIB).then_some(())).await;
    let shown = boss.read("/api/v1/pull").await["pulls"][0].clone();
    assert_eq!((&shown["status"], &shown["total"]), (&json!("downloading"), &json!(3 * MIB)), "{shown}");

    drop(first);
    let shown = boss.read("/api/v1/pull").await["pulls"][0].clone();
    assert_eq!(shown["status"], "downloading", "a pull that was ordered without waiting goes on without its callers");
    let cancel = client.request(Method::DELETE, &format!("/api/v1/pull/{id}"), "{}");
    let cancelled = client.send(cancel).await.json();
    assert_eq!((&cancelled["status"], &cancelled["error"]["code"]), (&json!("failed"), &json!("pull_cancelled")));
    let gone = client.send(client.request(Method::DELETE, "/api/v1/pull/77", "{}")).await;
    assert_eq!(gone.error_code(), "pull_not_found");
    assert!(fs::read_dir(sandbox.path("manifests")).unwrap().count() == 1);

    // A pull whose only caller goes ends, and keeps what came.
    let alone = client.stream("/api/v1/pull", &order).await;
    drop(alone);
    until(PATIENCE, "the pull ends with its caller", async || {
        let pulls = boss.read("/api/v1/pull").await;
        (pulls["pulls"][1]["error"]["code"] == "pull_cancelled").then_some(())
    })
    .await;
    hub.behave(|now| now.hold_after = None);
    let done = client.post("/api/v1/pull", &json!({ "source": "org/tiny-GGUF:Q4_K_M" })).await.json();
    assert_eq!(done["status"], "pulled", "{done}");
    assert!(done["downloaded"].as_u64().unwrap() <= 2 << 20, "{done}");
    boss.finish().await;
}

#[tokio::test]
async fn op_6_a_client_that_may_not_manage_pulls_nothing_new() {
    let (hub, sandbox) = scene();
    let tasks = "clients:\n  guest: {allowed_models: [tiny]}\n";
    fs::write(sandbox.path("tasks.yaml"), tasks).unwrap();
    for (config, known) in [("", "insufficient_scope"), ("auto_pull = true", "pulled")] {
        let sandbox = Sandbox::new().with_config(config);
        fs::create_dir(sandbox.path("home")).unwrap();
        fs::write(sandbox.path("tasks.yaml"), tasks).unwrap();
        let manifest = "name = \"tiny\"\nbackend = \"candle\"\nvram = \"64MiB\"\nsource = { hf = \"org/tiny\" }\n";
        fs::write(sandbox.path("manifests/tiny.toml"), manifest).unwrap();
        let boss = start(&hub, &sandbox).await;
        let client = boss.client();
        let pull = async |path: &str, body: Value| {
            let mut request = client.request(Method::POST, path, body.to_string());
            request.headers_mut().insert("x-client-id", "guest".parse().unwrap());
            client.send(request).await
        };
        let new = pull("/api/v1/pull", json!({ "source": "org/tiny-GGUF" })).await;
        assert_eq!((new.status, new.error_code().as_str()), (StatusCode::FORBIDDEN, "insufficient_scope"));
        let new = pull("/api/pull", json!({ "model": "hf.co/org/tiny-GGUF" })).await;
        assert_eq!(new.status, StatusCode::FORBIDDEN, "{new:?}");
        let own = pull("/api/v1/pull", json!({ "model": "tiny" })).await.json();
        assert!(own["status"] == known || own["error"]["code"] == known, "{config}: {own}");
        boss.finish().await;
    }
}

#[tokio::test]
async fn op_6_the_command_has_a_coordinator_pull_and_errors_keep_their_statuses() {
    let (hub, sandbox) = scene();
    let boss = start(&hub, &sandbox).await;
    let run = |args: &[&str]| {
        let mut command = Command::new(binary("model-boss"));
        hub.set(&mut command, &sandbox.path("another-home"));
        command.env("MODEL_BOSS_URL", format!("http://{}", boss.client().address())).current_dir(sandbox.path("run"));
        command.args(args).output().unwrap()
    };
    let pulled = run(&["pull", "org/tiny-GGUF:Q4_K_M"]);
    let said = String::from_utf8(pulled.stdout.clone()).unwrap();
    assert!(pulled.status.success() && said.contains("org/tiny-GGUF:Q4_K_M: 3.00 MiB"), "{pulled:?}");
    assert!(sandbox.path("home/.cache/huggingface/hub").is_dir() && !sandbox.path("another-home").exists());
    assert!(sandbox.path("manifests/org-tiny-GGUF-Q4_K_M.toml").is_file());
    let refused = run(&["pull", "org/tiny-GGUF:Q9"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("tiny-Q4_K_M.gguf"), "{refused:?}");
    hub.behave(|now| now.token = Some("hf_right".to_owned()));
    hub.large_file("org/gated", "gated-Q8_0.gguf", 2 * MIB, 5);
    for (body, status, code) in [
        (json!({ "source": "org/gated" }), 403, "hub_access_denied"),
        (json!({ "source": "org/gated", "stream": true }), 403, "hub_access_denied"),
        (json!({ "source": "org/nothing" }), 404, "model_not_found"),
        (json!({ "source": "a b" }), 400, "invalid_request"),
        (json!({ "source": "a/b", "model": "c" }), 400, "invalid_request"),
        (json!({}), 400, "invalid_request"),
    ] {
        let answer = boss.client().post("/api/v1/pull", &body).await;
        assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (status, code), "{body}");
    }
    boss.finish().await;
}
