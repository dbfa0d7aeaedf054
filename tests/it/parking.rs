//! Conversations that go on after their model left memory (EN-3): prefixes are parked beyond the life of a worker.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use http::{HeaderName, Method, StatusCode};
use model_boss_protocol::{ParkedOutcome, ParkedRefusal, check_parked, headers};
use model_boss_tests::{Answer, Boss, Client, LoneWorker, PATIENCE, Sandbox, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::real_model::{copy_of_guide, guide};

/// Two models with room for one of them.
fn two_models(config: &str) -> Sandbox {
    let sandbox = Sandbox::new().with_config(&format!("max_loaded_models = 1\nmin_hold = \"0s\"\n{config}"));
    sandbox.model("a", &guide(), "max_concurrent = 4");
    sandbox.model("b", &guide(), "");
    sandbox
}

const FILES: &str = "[parking]\nplace = \"files\"";
const OFF: &str = "[parking]\nplace = \"off\"";

/// A prompt of many tokens, the same for the same number.
fn long(number: usize) -> String {
    let words = ["lease", "slot", "queue", "port", "model", "worker", "device", "memory", "ladder"];
    (0..60).map(|at| words[(at * 7 + at / 9 + number) % words.len()]).collect::<Vec<_>>().join(" ")
}

fn greedy(model: &str, prompt: &str, caller: &str) -> Value {
    json!({
        "model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true, "x_client_id": caller
    })
}

/// The text, the tokens of the prompt, and those of them that were cached.
async fn ask(boss: &Boss, body: &Value) -> (String, u64, u64) {
    let answer = boss.client().post("/v1/completions", body).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let json = answer.json();
    let count = |pointer: &str| json.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{json}"));
    let text = json["choices"][0]["text"].as_str().unwrap().to_owned();
    (text, count("/usage/prompt_tokens"), count("/usage/prompt_tokens_details/cached_tokens"))
}

/// The other model takes the place of the first.
async fn swap(boss: &Boss) {
    ask(boss, &greedy("b", "hello", "somebody")).await;
}

async fn parking(boss: &Boss) -> Value {
    boss.read("/api/v1/stats").await["parking"].clone()
}

/// The models with parked prefixes.
async fn parked(boss: &Boss) -> Vec<String> {
    let parking = parking(boss).await;
    let models = parking["models"].as_array().unwrap_or_else(|| panic!("{parking}")).iter();
    models.map(|model| model["model_name"].as_str().unwrap().to_owned()).collect()
}

/// The next turns of some conversations after a swap, one after another or all at once.
async fn conversations(config: &str, manifest: &str, together: bool) -> Vec<(String, u64, u64)> {
    let sandbox = two_models(config);
    sandbox.model("a", &guide(), &format!("max_concurrent = 4\n{manifest}"));
    let boss = sandbox.start_with_real_worker().await;
    let callers = ["me", "you", "them"];
    let mut next = Vec::new();
    for (number, caller) in callers.iter().enumerate() {
        let (said, _, cached) = ask(&boss, &greedy("a", &long(number), caller)).await;
        assert_eq!(cached, 0);
        next.push(greedy("a", &format!("{}{said} and which port?", long(number)), caller));
    }
    swap(&boss).await;
    let mut answers = Vec::new();
    if together {
        let client = boss.client();
        let asked: Vec<_> = next
            .into_iter()
            .map(|body| tokio::spawn(async move { client.post("/v1/completions", &body).await.json() }))
            .collect();
        for answer in asked {
            let json = answer.await.unwrap();
            let count =
                |pointer: &str| json.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{json}"));
            let cached = count("/usage/prompt_tokens_details/cached_tokens");
            let text = json["choices"][0]["text"].as_str().unwrap().to_owned();
            answers.push((text, count("/usage/prompt_tokens"), cached));
        }
    } else {
        for body in &next {
            answers.push(ask(&boss, body).await);
        }
    }
    boss.finish().await;
    answers
}

#[tokio::test]
async fn en_3_a_conversation_goes_on_with_the_same_tokens_after_another_model_had_its_place() {
    let plain = conversations(OFF, "", false).await;
    assert!(plain.iter().all(|(_, _, cached)| *cached == 0), "{plain:?}");
    for (config, together) in [("", false), ("", true), (FILES, false), (FILES, true)] {
        let parked = conversations(config, "", together).await;
        for ((text, tokens, cached), (as_plain, as_many, _)) in parked.iter().zip(&plain) {
            assert_eq!((text, tokens), (as_plain, as_many), "{config}, together: {together}");
            // All of the first turn is there, but for the token that was sampled last.
            assert!(cached * 10 > tokens * 8 && cached < tokens, "{cached} of {tokens}");
        }
    }
}

#[tokio::test]
async fn en_3_keys_and_values_of_other_types_are_parked_too() {
    for kv in ["q8_0", "bf16", "f32"] {
        let manifest = format!("kv_cache_type = \"{kv}\"");
        let plain = conversations(OFF, &manifest, false).await;
        let parked = conversations("", &manifest, true).await;
        for ((text, tokens, cached), (as_plain, ..)) in parked.iter().zip(&plain) {
            assert_eq!(text, as_plain, "{kv}");
            assert!(cached * 10 > tokens * 8, "{kv}: {cached} of {tokens}");
        }
    }
}

#[tokio::test]
async fn en_3_the_state_of_parking_is_shown_and_counted() {
    let sandbox = two_models("");
    let boss = sandbox.start_with_real_worker().await;
    let (_, tokens, _) = ask(&boss, &greedy("a", &long(0), "me")).await;
    let before = parking(&boss).await;
    assert_eq!((&before["place"], &before["bytes"], &before["limit"]), (&json!("memory"), &json!(0), &json!(1 << 30)));
    swap(&boss).await;
    let now = parking(&boss).await;
    let model = &now["models"][0];
    assert_eq!((&model["model_name"], &model["place"], &now["parked"]), (&json!("a"), &json!("memory"), &json!(1)));
    assert_eq!(model["tokens"], json!(tokens + 23), "the token that was sampled last is not evaluated");
    assert!(model["bytes"].as_u64() > Some(0) && now["bytes"] == model["bytes"], "{now}");
    let metrics = String::from_utf8(boss.client().get("/metrics").await.body.to_vec()).unwrap();
    assert!(metrics.contains("model_boss_parked_bytes{model=\"a\",place=\"memory\"}"), "{metrics}");
    ask(&boss, &greedy("a", &long(0), "me")).await;
    let now = parking(&boss).await;
    assert_eq!((&now["restored"], &now["restored_tokens"]), (&json!(1), &json!(tokens + 23)), "{now}");
    assert_eq!(parked(&boss).await, ["b"], "the worker of 'a' has its own again, and 'b' left for it");
    boss.finish().await;
}

/// Kills the worker of a model, and waits until the coordinator knows.
async fn kill_worker(boss: &Boss, model: &str) {
    let slots = boss.read("/api/v1/slots").await;
    let slot = slots["slots"].as_array().unwrap().iter().find(|slot| slot["model"] == model);
    let pid = slot.and_then(|slot| slot["pid"].as_i64()).unwrap_or_else(|| panic!("{slots}"));
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
    until(PATIENCE, "the worker is known to be gone", async || {
        let slots = boss.read("/api/v1/slots").await;
        slots["slots"].as_array()?.iter().all(|slot| slot["pid"] != pid).then_some(())
    })
    .await;
}

#[tokio::test]
async fn en_3_a_worker_that_is_killed_parks_nothing_and_all_goes_on() {
    let sandbox = two_models("");
    let boss = sandbox.start_with_real_worker().await;
    let (said, ..) = ask(&boss, &greedy("a", &long(0), "me")).await;
    kill_worker(&boss, "a").await;
    assert_eq!(parked(&boss).await, [""; 0]);
    let (again, _, cached) = ask(&boss, &greedy("a", &long(0), "me")).await;
    assert_eq!((again, cached), (said.clone(), 0));
    // The next one parks, and a worker that is killed behind its restore costs what it had.
    swap(&boss).await;
    assert!(ask(&boss, &greedy("a", &long(0), "me")).await.2 > 0);
    kill_worker(&boss, "a").await;
    let (again, _, cached) = ask(&boss, &greedy("a", &long(0), "me")).await;
    assert_eq!((again, cached), (said, 0));
    boss.finish().await;
}

fn files(sandbox: &Sandbox) -> Vec<PathBuf> {
    let entries = fs::read_dir(sandbox.path("state/parked")).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// Waits until the prefixes of a model are in a file.
async fn in_file(boss: &Boss, model: &str) {
    until(PATIENCE, "the file is written", async || {
        let parking = parking(boss).await;
        let models = parking["models"].as_array()?;
        models.iter().any(|parked| parked["model_name"] == model && parked["place"] == "file").then_some(())
    })
    .await;
}

#[tokio::test]
async fn en_3_files_outlive_a_coordinator_that_is_killed_and_memory_does_not() {
    for (config, lasts) in [("", false), (FILES, true)] {
        let sandbox = two_models(config);
        let boss = sandbox.start_with_real_worker().await;
        let (said, ..) = ask(&boss, &greedy("a", &long(0), "me")).await;
        swap(&boss).await;
        assert_eq!(parked(&boss).await, ["a"]);
        if lasts {
            in_file(&boss, "a").await;
            let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&sandbox.path("state/parked")), mode(&files(&sandbox)[0])), (0o700, 0o600));
        }
        boss.kill().await;
        assert_eq!(files(&sandbox).len(), usize::from(lasts));
        let boss = sandbox.start_with_real_worker().await;
        let (again, _, cached) = ask(&boss, &greedy("a", &long(0), "me")).await;
        assert_eq!((again, cached > 0), (said.clone(), lasts));
        // An orderly end parks to files, and to nowhere else.
        boss.finish().await;
        assert_eq!(files(&sandbox).len(), usize::from(lasts));
        let boss = sandbox.start_with_real_worker().await;
        let (again, _, cached) = ask(&boss, &greedy("a", &long(0), "me")).await;
        assert_eq!((again, cached > 0), (said, lasts));
        boss.finish().await;
    }
}

#[tokio::test]
async fn en_3_files_are_removed_where_the_setting_for_them_is_gone() {
    let sandbox = two_models(FILES);
    let boss = sandbox.start_with_real_worker().await;
    ask(&boss, &greedy("a", &long(0), "me")).await;
    boss.finish().await;
    assert_eq!(files(&sandbox).len(), 1);
    let mut launch = sandbox.launch(&model_boss_tests::binary("model-boss-worker"));
    launch.command.args(["--parking-place", "memory"]);
    let boss = launch.start().await;
    assert_eq!(files(&sandbox).len(), 0);
    boss.finish().await;
}

#[tokio::test]
async fn en_3_a_damaged_file_is_removed_and_counted_and_the_answer_is_the_same() {
    let sandbox = two_models(FILES);
    let boss = sandbox.start_with_real_worker().await;
    let (said, ..) = ask(&boss, &greedy("a", &long(0), "me")).await;
    boss.finish().await;
    let file = files(&sandbox).remove(0);
    let whole = fs::read(&file).unwrap();
    let middle = whole.len() / 2;
    let mut flipped = whole.clone();
    flipped[middle] ^= 1;
    for damaged in [&flipped[..], &whole[..middle], &whole[..whole.len() - 1], &[]] {
        fs::write(&file, damaged).unwrap();
        let boss = sandbox.start_with_real_worker().await;
        let (again, _, cached) = ask(&boss, &greedy("a", &long(0), "me")).await;
        assert_eq!((again, cached), (said.clone(), 0));
        let parking = parking(&boss).await;
        assert_eq!(parking["refused"]["damaged"], 1, "{parking}");
        until(PATIENCE, "the file is removed", async || (!file.exists()).then_some(())).await;
        boss.kill().await;
    }
    fs::write(&file, &whole).unwrap();
    let boss = sandbox.start_with_real_worker().await;
    assert!(ask(&boss, &greedy("a", &long(0), "me")).await.2 > 0, "the file itself was good");
    boss.finish().await;
}

#[tokio::test]
async fn en_3_prefixes_of_changed_files_are_not_used() {
    let sandbox = two_models(FILES);
    let folder = copy_of_guide(&sandbox, "c");
    let boss = sandbox.start_with_real_worker().await;
    let (said, ..) = ask(&boss, &greedy("c", &long(0), "me")).await;
    boss.finish().await;
    // The same weights, written again at another time.
    let weights = folder.join("model.safetensors");
    let content = fs::read(&weights).unwrap();
    fs::remove_file(&weights).unwrap();
    fs::write(&weights, content).unwrap();
    let boss = sandbox.start_with_real_worker().await;
    let (again, _, cached) = ask(&boss, &greedy("c", &long(0), "me")).await;
    assert_eq!((again, cached), (said, 0));
    let parking = parking(&boss).await;
    assert_eq!(parking["refused"]["changed"], 1, "{parking}");
    boss.finish().await;
}

#[tokio::test]
async fn en_3_invalidate_drops_prefixes_and_those_of_the_worker_that_runs() {
    for config in ["", FILES] {
        let sandbox = two_models(config);
        let boss = sandbox.start_with_real_worker().await;
        ask(&boss, &greedy("a", &long(0), "me")).await;
        swap(&boss).await;
        assert_eq!(parked(&boss).await, ["a"]);
        let order = boss.client().post("/api/v1/models/a/invalidate", &json!({})).await;
        assert!(order.status.is_success(), "{order:?}");
        assert_eq!((parked(&boss).await, files(&sandbox).len()), (Vec::<String>::new(), 0));
        // The worker is ended for it, and parks nothing; its successor does.
        assert_eq!(ask(&boss, &greedy("a", &long(0), "me")).await.2, 0);
        let order = boss.client().post("/api/v1/models/a/invalidate", &json!({})).await;
        assert!(order.status.is_success(), "{order:?}");
        swap(&boss).await;
        assert!(!parked(&boss).await.contains(&"a".to_owned()));
        assert_eq!(ask(&boss, &greedy("a", &long(0), "me")).await.2, 0);
        swap(&boss).await;
        assert!(parked(&boss).await.contains(&"a".to_owned()));
        boss.finish().await;
    }
}

#[tokio::test]
async fn en_3_the_bound_is_kept_and_a_model_without_a_manifest_keeps_nothing() {
    let sandbox = two_models("[parking]\nplace = \"files\"\nbytes = \"64KiB\"");
    let boss = sandbox.start_with_real_worker().await;
    for number in 0..4 {
        ask(&boss, &greedy("a", &long(number), "me")).await;
    }
    swap(&boss).await;
    let now = parking(&boss).await;
    let bytes = now["bytes"].as_u64().unwrap();
    assert!(bytes > 0 && bytes <= 64 << 10, "{now}");
    let (_, tokens, cached) = ask(&boss, &greedy("a", &long(3), "me")).await;
    assert!(cached > 0 && cached < tokens, "the hottest first: {cached} of {tokens}");
    swap(&boss).await;
    assert!(parked(&boss).await.contains(&"a".to_owned()));
    fs::remove_file(sandbox.path("manifests/a.toml")).unwrap();
    until(PATIENCE, "the prefixes of a removed model are dropped", async || {
        (!parked(&boss).await.contains(&"a".to_owned())).then_some(())
    })
    .await;
    boss.finish().await;
    let sandbox = two_models("[parking]\nbytes = 0");
    let boss = sandbox.start_with_real_worker().await;
    ask(&boss, &greedy("a", &long(0), "me")).await;
    swap(&boss).await;
    let now = parking(&boss).await;
    assert_eq!((&now["place"], &now["parked"]), (&json!("off"), &json!(0)));
    boss.finish().await;
}

/// A worker with the guide whose prefixes have this identity.
async fn lone(identity: Option<&str>) -> LoneWorker {
    let mut worker = LoneWorker::spawn("model-boss-worker");
    worker.open_gate_with(&guide(), |spec| spec.parking = identity.map(str::to_owned));
    worker.ready().await;
    worker
}

/// Asks a worker for its prefixes, or gives it some.
async fn exchange(worker: &LoneWorker, (method, bytes, ms): (Method, u64, u64), body: Vec<u8>) -> Answer {
    let client = Client::new(worker.address());
    let mut request = client.request(method, "/parked", body);
    let bearer = format!("Bearer {}", LoneWorker::token().reveal());
    for (name, value) in
        [("authorization", bearer), (headers::PARKED_BYTES, bytes.to_string()), (headers::PARKED_MS, ms.to_string())]
    {
        request.headers_mut().insert(HeaderName::from_static(name), value.parse().unwrap());
    }
    client.send(request).await
}

const ALL: (Method, u64, u64) = (Method::GET, 1 << 30, 60_000);

async fn put(worker: &LoneWorker, body: &[u8]) -> ParkedOutcome {
    let answer = exchange(worker, (Method::PUT, 0, 0), body.to_vec()).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    serde_json::from_slice(&answer.body).unwrap()
}

/// The text and the cached tokens of a worker's answer.
async fn said(worker: &LoneWorker) -> (String, u64) {
    let json = worker.post("/v1/completions", &greedy("tiny", &long(0), "nobody")).await.json();
    let cached = json.pointer("/usage/prompt_tokens_details/cached_tokens").and_then(Value::as_u64);
    (json["choices"][0]["text"].as_str().unwrap().to_owned(), cached.unwrap_or_else(|| panic!("{json}")))
}

#[tokio::test]
async fn en_3_a_worker_gives_out_what_was_used_last_within_bytes_and_time() {
    let worker = lone(Some("one")).await;
    let (text, _) = said(&worker).await;
    let all = exchange(&worker, ALL, Vec::new()).await.body;
    let (head, counts) = check_parked(&all).unwrap();
    assert_eq!(head.model.as_str(), "tiny");
    let block = (all.len() as u64) / counts.blocks;
    for (bytes, ms, most) in [(block * 3, 60_000, 3), (block / 2, 60_000, 0), (0, 60_000, 0), (1 << 30, 0, 0)] {
        let part = exchange(&worker, (Method::GET, bytes, ms), Vec::new()).await.body;
        let (_, counts) = check_parked(&part).unwrap();
        assert!(counts.blocks <= most && (part.len() as u64) < bytes.max(512), "{counts:?} of {bytes} in {ms}");
        assert!(counts.blocks > 0 || most == 0);
    }
    let refused = exchange(&lone(None).await, ALL, Vec::new()).await;
    assert_eq!(refused.error_code(), "unsupported_by_model");
    let other = lone(Some("one")).await;
    let outcome = put(&other, &all).await;
    assert_eq!((outcome.blocks, outcome.tokens, outcome.refused), (counts.blocks, counts.tokens, None));
    let (again, cached) = said(&other).await;
    assert!(again == text && cached > 50, "{cached}");
}

#[tokio::test]
async fn en_3_a_worker_refuses_prefixes_of_another_identity_and_damaged_ones() {
    let worker = lone(Some("one")).await;
    let (text, _) = said(&worker).await;
    let all = exchange(&worker, ALL, Vec::new()).await.body.to_vec();
    let other = lone(Some("another")).await;
    assert_eq!(put(&other, &all).await.refused, Some(ParkedRefusal::Changed));
    assert_eq!(said(&other).await, (text.clone(), 0));
    let damaged = lone(Some("one")).await;
    let mut flipped = all.clone();
    let end = flipped.len() - 60;
    flipped[end] ^= 4;
    // Blocks that were whole before the damage are used.
    for body in [&b"nonsense"[..], &[], &all[..all.len() / 2], &flipped] {
        let outcome = put(&damaged, body).await;
        assert_eq!(outcome.refused, Some(ParkedRefusal::Damaged), "{outcome:?}");
    }
    let (again, cached) = said(&damaged).await;
    assert!(again == text && cached > 0, "{cached}");
}
