//! Both real binaries with a real, tiny model: answers have the requested content and form.

use std::path::{Path, PathBuf};

use http::StatusCode;
use model_boss_tests::{Answer, Boss, Sandbox, question, text_of_events};
use serde_json::{Value, json};

use crate::views;

const CHAT: &str = "/v1/chat/completions";

/// The built-in model, which is part of the repository.
pub(crate) fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/guide").canonicalize().expect("the guide is committed")
}

/// A sandbox with the built-in model as `guide`.
fn with_guide(manifest: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.model("guide", &guide(), manifest);
    sandbox
}

/// A copy of the guide's files that may be damaged, as the model `name`.
pub(crate) fn copy_of_guide(sandbox: &Sandbox, name: &str) -> PathBuf {
    let folder = sandbox.path("models").join(name);
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(guide()).unwrap().flatten().filter(|entry| entry.path().is_file()) {
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    sandbox.model(name, &folder, "");
    folder
}

fn weights_in(folder: &Path) -> PathBuf {
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    files.into_iter().find(|path| path.extension().is_some_and(|e| e == "safetensors")).expect("weights")
}

/// A greedy request for at most `tokens` tokens.
fn greedy(text: &str, tokens: u64) -> Value {
    let mut body = question("guide", text);
    body["temperature"] = 0.into();
    body["max_tokens"] = tokens.into();
    body
}

async fn ask(boss: &Boss, body: &Value) -> Answer {
    boss.client().post(CHAT, body).await
}

#[tokio::test]
async fn the_guide_knows_its_port() {
    let boss = with_guide("").start_with_real_worker().await;
    let answer = ask(&boss, &greedy("Which port does model-boss listen on?", 64)).await;
    assert!(answer.text().contains("8210"), "{answer:?}");
    let json = answer.json();
    assert_eq!(json["choices"][0]["finish_reason"], "stop", "{json}");
    assert_eq!(json["model"], "guide");
    let count = |field: &str| json["usage"][field].as_u64().unwrap_or_else(|| panic!("{field}: {json}"));
    assert!(count("prompt_tokens") > 3 && count("completion_tokens") > 1, "{json}");
    assert_eq!(count("total_tokens"), count("prompt_tokens") + count("completion_tokens"));
    boss.finish().await;
}

#[tokio::test]
async fn greedy_is_deterministic_streamed_and_not() {
    let boss = with_guide("").start_with_real_worker().await;
    let body = greedy("What is a lease?", 48);
    let first = ask(&boss, &body).await.text();
    assert!(!first.is_empty());
    assert_eq!(ask(&boss, &body).await.text(), first);
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = boss.client().stream(CHAT, &streamed).await.rest().await;
    assert_eq!(text_of_events(&events), first);
    boss.finish().await;
}

#[tokio::test]
async fn neighbours_do_not_change_a_greedy_answer() {
    let boss = with_guide("max_concurrent = 4").start_with_real_worker().await;
    let questions =
        ["What is a lease?", "Which port does model-boss listen on?", "How do I add a model?", "What is a slot?"];
    let mut alone = Vec::new();
    for text in questions {
        alone.push(ask(&boss, &greedy(text, 32)).await.text());
    }
    let together = questions.map(|text| boss.ask(greedy(text, 32)));
    for (answer, alone) in together.into_iter().zip(alone) {
        assert_eq!(answer.await.unwrap().text(), alone);
    }
    boss.finish().await;
}

#[tokio::test]
async fn max_tokens_and_stop_end_an_answer() {
    let boss = with_guide("").start_with_real_worker().await;
    let cut = ask(&boss, &greedy("What is a lease?", 5)).await;
    assert_eq!(cut.json()["choices"][0]["finish_reason"], "length");
    assert_eq!(cut.json()["usage"]["completion_tokens"], 5);

    let whole = ask(&boss, &greedy("What is a lease?", 48)).await.text();
    let word = whole.split(' ').nth(3).expect("an answer of some words").to_owned();
    let mut body = greedy("What is a lease?", 48);
    body["stop"] = json!([word]);
    let stopped = ask(&boss, &body).await;
    assert_eq!(stopped.json()["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped.text(), whole[..whole.find(&word).unwrap()]);
    boss.finish().await;
}

#[tokio::test]
async fn a_seed_makes_sampling_repeatable() {
    let boss = with_guide("").start_with_real_worker().await;
    let mut body = greedy("Tell me about slots.", 32);
    body["temperature"] = 1.5.into();
    body["seed"] = 7.into();
    let first = ask(&boss, &body).await.text();
    assert_eq!(ask(&boss, &body).await.text(), first);
    let mut others = Vec::new();
    for seed in 8..16 {
        body["seed"] = seed.into();
        others.push(ask(&boss, &body).await.text());
    }
    assert!(others.iter().any(|other| *other != first), "eight other seeds all say: {first}");
    boss.finish().await;
}

#[tokio::test]
async fn a_prompt_over_the_context_is_refused_in_the_workers_words() {
    let boss = with_guide("").start_with_real_worker().await;
    let answer = ask(&boss, &greedy(&"lease ".repeat(5_000), 8)).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
    assert_eq!(answer.error_code(), "context_length_exceeded");
    assert_eq!(answer.json()["source"], "worker");
    assert!(ask(&boss, &greedy("What is a lease?", 8)).await.status.is_success());
    boss.finish().await;
}

#[tokio::test]
async fn values_out_of_range_are_named() {
    let boss = with_guide("").start_with_real_worker().await;
    for (field, value) in [
        ("temperature", json!(-1)),
        ("temperature", json!("hot")),
        ("top_p", json!(7)),
        ("max_tokens", json!(-5)),
        ("messages", json!("hello")),
        ("messages", json!([])),
        ("stop", json!(5)),
        ("n", json!(0)),
    ] {
        let mut body = greedy("What is a lease?", 8);
        body[field] = value.clone();
        let answer = ask(&boss, &body).await;
        assert_eq!(
            (answer.status.as_u16(), answer.error_code().as_str()),
            (400, "invalid_request"),
            "{field} = {value}: {answer:?}"
        );
        assert_eq!(answer.json()["error"]["param"].as_str(), Some(field), "{field} = {value}: {answer:?}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn truncated_weights_are_named_and_the_door_stays_open() {
    let sandbox = with_guide("");
    let whole = std::fs::metadata(weights_in(&guide())).unwrap().len();
    let cuts = [0, 7, 100, whole / 2, whole - 1];
    for keep in cuts {
        let weights = weights_in(&copy_of_guide(&sandbox, &format!("cut-at-{keep}")));
        std::fs::OpenOptions::new().write(true).open(weights).unwrap().set_len(keep).unwrap();
    }
    let boss = sandbox.start_with_real_worker().await;
    for keep in cuts {
        let answer = boss.chat(&format!("cut-at-{keep}"), "?").await;
        assert_eq!(answer.status, StatusCode::BAD_GATEWAY, "{keep} bytes: {answer:?}");
        assert_eq!(answer.error_code(), "model_load_failed", "{keep} bytes: {answer:?}");
        assert!(answer.error_message().contains(".safetensors"), "{keep} bytes: {answer:?}");
    }
    assert!(ask(&boss, &greedy("What is a lease?", 8)).await.status.is_success());
    boss.finish().await;
}

#[tokio::test]
async fn missing_and_malformed_files_are_named() {
    for (file, content) in [
        ("config.json", None),
        ("tokenizer.json", None),
        ("config.json", Some("{")),
        ("config.json", Some(r#"{"architectures": ["Zebra"], "model_type": "zebra"}"#)),
        ("tokenizer.json", Some("[]")),
    ] {
        let sandbox = Sandbox::new();
        let folder = copy_of_guide(&sandbox, "broken");
        match content {
            Some(text) => std::fs::write(folder.join(file), text).unwrap(),
            None => std::fs::remove_file(folder.join(file)).unwrap(),
        }
        let boss = sandbox.start_with_real_worker().await;
        let answer = boss.chat("broken", "?").await;
        assert_eq!(answer.error_code(), "model_load_failed", "{file} = {content:?}: {answer:?}");
        let named = answer.error_message();
        assert!(
            named.contains(file) || named.contains("zebra") || named.contains("Zebra"),
            "{file} = {content:?}: {answer:?}"
        );
        boss.finish().await;
    }
}

#[tokio::test]
async fn rc_11_a_client_that_goes_away_stops_the_engine() {
    let boss = with_guide("max_concurrent = 1").start_with_real_worker().await;
    let mut body = greedy("Tell me everything.", 100_000);
    body["stream"] = true.into();
    body["ignore_eos"] = true.into();
    body.as_object_mut().unwrap().remove("max_tokens");
    let mut stream = boss.client().stream(CHAT, &body).await;
    stream.token().await;
    drop(stream);
    // The engine has a place for one sequence only, so the next answer shows that the first has left it.
    assert!(ask(&boss, &greedy("What is a lease?", 4)).await.status.is_success());
    assert_eq!(views::queue(&boss).await.len(), 0);
    boss.finish().await;
}

#[tokio::test]
async fn killed_coordinator_leaves_no_real_worker() {
    let boss = with_guide("").start_with_real_worker().await;
    assert!(ask(&boss, &greedy("What is a lease?", 4)).await.status.is_success());
    assert!(!boss.processes().is_empty());
    boss.kill().await;
}
