//! Models with streamed layers, run by both real binaries: the same answers, leases as planned, and the effects of
//! failing files or workers.

use std::path::{Path, PathBuf};
use std::process::Command;

use http::StatusCode;
use model_boss_protocol::{Residency, ResidencyMode};
use model_boss_tests::{Answer, Boss, Event, LoneWorker, PATIENCE, Sandbox, binary, question, text_of_events, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::views;

const MIB: u64 = 1 << 20;

/// A model file of this shape, with random weights.
pub(crate) fn synth(sandbox: &Sandbox, shape: &str) -> PathBuf {
    let file = sandbox.path("models").join(format!("{shape}.gguf"));
    let made = Command::new(binary("model-boss-worker")).args(["synth", shape]).arg(&file).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    file
}

/// Adds the file as the model `name`, with these further lines in its manifest.
pub(crate) fn with(sandbox: &Sandbox, name: &str, file: &Path, lines: &str) {
    let small = "context_length = 256\nmax_concurrent = 2\n[params]\ntemperature = 0\n";
    // TOML requires tables at the end.
    sandbox.model(name, file, &format!("{lines}\n{small}"));
}

/// A greedy request for exactly this many tokens.
pub(crate) fn tokens(model: &str, count: u64) -> Value {
    let mut body = question(model, "hello");
    body["max_tokens"] = count.into();
    body["ignore_eos"] = true.into();
    body
}

pub(crate) async fn ask(boss: &Boss, model: &str, count: u64) -> Answer {
    boss.client().post("/v1/chat/completions", &tokens(model, count)).await
}

pub(crate) async fn slot(boss: &Boss, model: &str) -> Value {
    let look = async || {
        let slots = boss.read("/api/v1/slots").await;
        let found =
            slots["slots"].as_array()?.iter().find(|slot| slot["model"] == model && slot["state"] == "ready")?;
        Some(found.clone())
    };
    until(PATIENCE, &format!("'{model}' is ready"), look).await
}

/// The figures of streamed layers in the worker's own report.
pub(crate) async fn layers(boss: &Boss, model: &str) -> Value {
    let look = async || {
        let found = slot(boss, model).await["layers"].clone();
        found["streamed_layers"].is_u64().then_some(found)
    };
    until(PATIENCE, &format!("'{model}' says how its layers live"), look).await
}

/// The bytes on each device in the ledger's only lease, by the devices' names.
async fn lease(boss: &Boss) -> Value {
    let leases = boss.read("/api/v1/leases").await;
    let [lease] = leases["leases"].as_array().map_or(&[][..], Vec::as_slice) else { panic!("one lease: {leases}") };
    let mut parts: Vec<[Value; 2]> = lease["parts"].as_array().into_iter().flatten().map(pair).collect();
    parts.sort_by_key(|[device, _]| device.to_string());
    json!(parts)
}

fn pair(part: &Value) -> [Value; 2] {
    [part["device"].clone(), part["bytes"].clone()]
}

#[tokio::test]
async fn rs_10_streamed_answers_are_the_resident_ones_and_the_lease_is_the_plan() {
    let sandbox = Sandbox::new();
    let file = synth(&sandbox, "qwen3-small");
    with(&sandbox, "resident", &file, "residency = \"resident\"");
    with(&sandbox, "least", &file, "residency = \"stream\"\nblock = 1\nwindow = 1");
    with(&sandbox, "given", &file, "residency = \"stream\"\nvram = \"110MiB\"\nblock = 2");
    let boss = sandbox.start_with_real_worker().await;
    let expected = ask(&boss, "resident", 16).await;
    assert_eq!(expected.json()["usage"]["completion_tokens"], 16, "{expected:?}");
    assert!(!expected.text().is_empty());
    boss.client().post("/api/v1/unload", &json!({})).await;
    for model in ["least", "given"] {
        let plan = boss.client().post("/api/v1/plan", &json!({ "model": model })).await.json();
        assert_eq!((&plan["step"], &plan["layers"]["streamed"]), (&"load".into(), &true.into()), "{plan}");
        assert_eq!(ask(&boss, model, 16).await.text(), expected.text(), "{model}");
        assert_eq!(lease(&boss).await, plan["parts"], "{model}");
        let layers = layers(&boss, model).await;
        assert!(layers["streamed_layers"].as_u64() > Some(0), "{layers}");
        // Prompt and answer are computed in the process of the run before: the result is the same.
        assert_eq!(ask(&boss, model, 16).await.text(), expected.text(), "{model}");
        boss.client().post("/api/v1/unload", &json!({ "model_name": model })).await;
    }
    boss.finish().await;
}

#[tokio::test]
async fn rs_11_auto_streams_what_could_never_fit_and_nothing_else() {
    let sandbox = Sandbox::new().with_config("host_memory = \"140MiB\"");
    let file = synth(&sandbox, "qwen3-small");
    with(&sandbox, "fits", &file, "");
    // This is the same file, with more keys and values than fit beside all layers.
    let more = "block = 1\nwindow = 1";
    sandbox.model("large", &file, &format!("{more}\ncontext_length = 1024\nmax_concurrent = 2\n"));
    let boss = sandbox.start_with_real_worker().await;
    let expected = ask(&boss, "fits", 8).await;
    let fits = slot(&boss, "fits").await;
    assert_eq!((&fits["streamed"], &fits["size_rule"]), (&false.into(), &"headers".into()), "{fits}");
    assert!(fits["layers"].is_null(), "{fits}");

    let mut body = tokens("large", 8);
    body["temperature"] = 0.into();
    let answer = boss.client().post("/v1/chat/completions", &body).await;
    assert_eq!(answer.text(), expected.text());
    let large = slot(&boss, "large").await;
    assert_eq!((&large["streamed"], &large["size_rule"]), (&true.into(), &"streamed".into()), "{large}");
    assert!(large["parts"][0][1].as_u64() <= Some(140 * MIB), "{large}");
    let decisions = boss.read("/api/v1/decisions").await.to_string();
    assert!(decisions.contains("its layers come and go: all layers take"), "{decisions}");
    boss.finish().await;
}

#[tokio::test]
async fn rs_11_on_a_simulated_gpu_one_lease_covers_the_gpu_and_the_host() {
    let mut sandbox = Sandbox::new();
    // The device is smaller than the model with its context, but larger than its window.
    sandbox
        .simulate("[cpu]\nmemory = \"2GiB\"\nreserve = \"0MiB\"\n[[gpu]]\nmemory = \"650MiB\"\nreserve = \"0MiB\"\n");
    let file = synth(&sandbox, "qwen3-small");
    with(&sandbox, "large", &file, "device = \"cuda:0\"\nblock = 1\nwindow = 1");
    let boss = sandbox.start().await;
    let plan = boss.client().post("/api/v1/plan", &json!({ "model": "large" })).await.json();
    assert_eq!((&plan["step"], &plan["size_rule"]), (&"load".into(), &"streamed".into()), "{plan}");
    assert!(plan["layers"]["why"].as_str().is_some_and(|why| why.contains("650 MiB of cuda:0")), "{plan}");
    assert_eq!(ask(&boss, "large", 4).await.status, StatusCode::OK);
    let large = slot(&boss, "large").await;
    assert_eq!((&large["streamed"], &large["parts"]), (&true.into(), &plan["parts"]), "{large}");
    let [gpu, host] = large["parts"].as_array().map_or(&[][..], Vec::as_slice) else { panic!("two parts: {large}") };
    assert_eq!((&gpu[0], &host[0]), (&"cuda:0".into(), &"cpu".into()));
    assert!(gpu[1].as_u64() > Some(536 * MIB) && gpu[1].as_u64() <= Some(650 * MIB), "{large}");
    // The host part of the lease is about 45 MiB: the slots and every streamed layer.
    assert!(host[1].as_u64() > Some(30 * MIB) && host[1].as_u64() < Some(64 * MIB), "{large}");
    assert_eq!(lease(&boss).await, json!([host, gpu]), "both in one lease");
    assert_eq!(layers(&boss, "large").await["streamed_layers"], 12);
    let stats = boss.read("/api/v1/stats").await;
    assert_eq!(stats["streams"]["large"]["resident_layers"], 12, "{stats}");
    let streamed = views::metric(&boss, &["model_boss_stream_layers{", "kind=\"streamed\"", "model=\"large\""]).await;
    assert_eq!(streamed, 12.0);
    boss.finish().await;
}

#[tokio::test]
async fn rs_11_a_load_forces_residency_window_and_block_and_what_is_the_same_is_left_alone() {
    let sandbox = Sandbox::new();
    with(&sandbox, "m", &synth(&sandbox, "qwen3-small"), "");
    let boss = sandbox.start_with_real_worker().await;
    let load = async |options: Value| {
        let mut body = json!({ "model_name": "m" });
        body.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        boss.client().post("/api/v1/load", &body).await
    };
    let generation = async || slot(&boss, "m").await["generation"].clone();
    assert_eq!(load(json!({})).await.status, StatusCode::OK);
    let text = ask(&boss, "m", 8).await.text();
    let (id, first) = (slot(&boss, "m").await["id"].clone(), generation().await);
    assert_eq!(load(json!({ "residency": "resident", "window": 3 })).await.status, StatusCode::OK);
    assert_eq!((slot(&boss, "m").await["id"].clone(), generation().await), (id, first), "they stay already");

    let forced = json!({ "residency": "stream", "window": 2, "block": 3, "vram": "120MiB" });
    assert_eq!(load(forced.clone()).await.status, StatusCode::OK);
    let streamed = slot(&boss, "m").await;
    assert_eq!(streamed["parts"], json!([["cpu", 120 * MIB]]), "{streamed}");
    let shown = layers(&boss, "m").await;
    assert_eq!(shown["slots"], 3, "two blocks ahead of the one in use: {shown}");
    assert_eq!(ask(&boss, "m", 8).await.text(), text);
    assert_eq!(load(forced).await.status, StatusCode::OK);
    assert_eq!(slot(&boss, "m").await["pid"], streamed["pid"], "as it is");

    for (options, field) in [
        (json!({ "residency": "sometimes" }), "residency"),
        (json!({ "window": 0 }), "window"),
        (json!({ "block": 0 }), "block"),
        (json!({ "vram": 0 }), "vram"),
    ] {
        let refused = load(options.clone()).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{options}: {refused:?}");
        assert_eq!(refused.json()["error"]["param"], field, "{options}: {refused:?}");
        assert!(refused.error_message().contains(field), "{options}: {refused:?}");
    }
    // An impossible load is refused with the numbers of the worker, which computed them.
    boss.client().post("/api/v1/unload", &json!({})).await;
    let refused = load(json!({ "residency": "stream", "vram": "20MiB" })).await;
    assert_eq!(refused.error_code(), "model_load_failed", "{refused:?}");
    let message = refused.error_message();
    assert!(message.contains("even streamed it needs") && message.contains("MiB"), "{message}");
    boss.finish().await;
}

#[tokio::test]
async fn rs_11_a_model_streamed_beside_a_program_stays_again_when_that_is_gone_and_it_is_idle() {
    let mut sandbox = Sandbox::new().with_config("peak_patience = \"200ms\"");
    let host = |foreign: &str| format!("[cpu]\nmemory = \"400MiB\"\nreserve = \"0MiB\"\nforeign = \"{foreign}\"\n");
    let machine = sandbox.simulate(&host("280MiB"));
    with(&sandbox, "m", &synth(&sandbox, "qwen3-small"), "block = 1\nwindow = 1");
    let boss = sandbox.start().await;
    assert_eq!(ask(&boss, "m", 4).await.status, StatusCode::OK);
    let first = slot(&boss, "m").await;
    assert_eq!((&first["streamed"], &first["size_rule"]), (&true.into(), &"streamed".into()), "{first}");
    std::fs::write(&machine, host("20MiB")).unwrap();
    let stays = async || Some(slot(&boss, "m").await).filter(|slot| slot["streamed"] == false);
    let second = until(PATIENCE, "all its layers stay", stays).await;
    assert!(second["parts"][0][1].as_u64() > first["parts"][0][1].as_u64(), "{first} {second}");
    assert_eq!(ask(&boss, "m", 4).await.status, StatusCode::OK);
    let decisions = boss.read("/api/v1/decisions").await.to_string();
    assert!(decisions.contains("there is room for all its layers now"), "{decisions}");
    boss.finish().await;
}

#[tokio::test]
async fn rs_9_a_workers_stats_and_metrics_show_every_layer_of_the_last_step() {
    let sandbox = Sandbox::new();
    let file = synth(&sandbox, "qwen3-small");
    let mut worker = LoneWorker::spawn("model-boss-worker");
    let stream = Residency { mode: ResidencyMode::Stream, window: Some(1), block: Some(1), ..Residency::default() };
    worker.open_gate_as(&file, stream);
    worker.ready().await;
    assert!(worker.ask(&tokens("tiny", 8)).await.unwrap().status.is_success());
    worker.engine("the step has ended", |engine| engine.active == 0).await;

    let stats = worker.get("/stats").await.json()["residency"].clone();
    let layers = stats["layers"].as_array().unwrap();
    let (streamed, resident) = (&stats["plan"]["streamed_layers"], &stats["plan"]["resident_layers"]);
    assert_eq!(layers.len() as u64, streamed.as_u64().unwrap() + resident.as_u64().unwrap(), "{stats}");
    let text = String::from_utf8(worker.get("/metrics").await.body.to_vec()).unwrap();
    let shown = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in\n{text}")).parse().unwrap()
    };
    // The comparison tolerates the last digit of JSON's numbers.
    let same = |shown: f64, value: &Value| (shown - value.as_f64().unwrap()).abs() <= shown.abs() * 1e-12;
    for layer in layers {
        for field in ["h2d_ms", "compute_ms", "stall_ms", "bytes"] {
            let name = format!("model_boss_worker_layer_{field}{{layer=\"{}\"}}", layer["layer"]);
            assert!(same(shown(&name), &layer[field]), "{name}: {layer}");
        }
        assert!(layer["compute_ms"].as_f64() > Some(0.0), "{layer}");
    }
    let come = layers.iter().filter(|layer| layer["bytes"].as_u64() > Some(0)).count() as u64;
    assert!(come > 0 && Some(come) <= streamed.as_u64(), "{stats}");
    for (name, value) in [("overlap_ratio", &stats["overlap"]), ("bytes_total", &stats["totals"]["bytes"])] {
        assert!(same(shown(&format!("model_boss_worker_stream_{name}")), value), "{name}: {stats}");
    }
    worker.cut_lifeline();
    worker.end().await;
}

#[tokio::test]
async fn rs_9_bench_residency_prints_every_layer_and_draws_them() {
    let sandbox = Sandbox::new();
    let file = synth(&sandbox, "qwen3-small");
    with(&sandbox, "team:m", &file, "residency = \"stream\"\nblock = 2");
    let bench = |args: &[&str]| {
        let mut command = Command::new(binary("model-boss"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("MODEL_BOSS_")) {
            command.env_remove(name);
        }
        command.env("MODEL_BOSS_URL", "http://127.0.0.1:9").env("MODEL_BOSS_MANIFESTS", sandbox.path("manifests"));
        command.env("MODEL_BOSS_WORKER_BINARY", binary("model-boss-worker")).current_dir(sandbox.path(""));
        command.args(["bench", "residency"]).args(args).output().unwrap()
    };
    let ran = bench(&["team:m", "--tokens", "4"]);
    let (text, said) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
    assert!(ran.status.success(), "{said}");
    let rows = text.lines().filter(|line| {
        line.split_whitespace()
            .next()
            .is_some_and(|n| n.parse::<u32>().is_ok_and(|_| line.split_whitespace().count() == 5))
    });
    assert_eq!(rows.count(), 24, "a row for each layer: {text}");
    assert!(text.contains("overlap") && text.contains("GB/s measured at load"), "{text}");
    assert!(said.contains("team-m-residency.svg"), "{said}");
    let picture = std::fs::read_to_string(sandbox.path("team-m-residency.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("class=\"read\""));
    // The model is given by its path, and the output is JSON.
    let ran = bench(&[
        "./models/qwen3-small.gguf",
        "--residency",
        "stream",
        "--tokens",
        "2",
        "--json",
        "--timeline",
        "x.svg",
    ]);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    assert_eq!(report["streaming"]["layers"].as_array().map(Vec::len), Some(24), "{report}");
    assert!(sandbox.path("x.svg").is_file());
    let ran = bench(&["nobody"]);
    assert_eq!(ran.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("no manifest in"), "{ran:?}");
}

#[tokio::test]
async fn a_worker_killed_in_a_streamed_step_is_replaced_and_the_request_sent_again() {
    let sandbox = Sandbox::new();
    with(&sandbox, "m", &synth(&sandbox, "qwen3-small"), "residency = \"stream\"");
    let boss = sandbox.start_with_real_worker().await;
    let expected = ask(&boss, "m", 120).await.text();
    let first = slot(&boss, "m").await;
    let answer = boss.ask(tokens("m", 120));
    let busy = async || (slot(&boss, "m").await["running"] == 1).then_some(());
    until(PATIENCE, "the worker works on it", busy).await;
    kill(Pid::from_raw(first["pid"].as_i64().unwrap().try_into().unwrap()), Signal::SIGKILL).unwrap();
    assert_eq!(answer.await.unwrap().text(), expected);
    assert_ne!(slot(&boss, "m").await["pid"], first["pid"]);
    boss.finish().await;
}

#[tokio::test]
async fn a_file_that_is_cut_while_it_streams_ends_the_answer_in_clear_words_and_the_next_load_is_new() {
    let sandbox = Sandbox::new();
    let file = synth(&sandbox, "qwen3-small");
    with(&sandbox, "m", &file, "residency = \"stream\"\nblock = 1\nwindow = 1");
    let boss = sandbox.start_with_real_worker().await;
    let expected = ask(&boss, "m", 8).await.text();
    let whole = std::fs::read(&file).unwrap();

    let mut body = tokens("m", 200);
    body["stream"] = true.into();
    let mut stream = boss.client().stream("/v1/chat/completions", &body).await;
    stream.token().await;
    std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(whole.len() as u64 / 2).unwrap();
    let events = stream.rest().await;
    let error = events.iter().find_map(|event| match event {
        Event::Data(data) => data.get("error").cloned(),
        _ => None,
    });
    let error = error.unwrap_or_else(|| panic!("no error among {events:?}"));
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains(".gguf") || error["code"] == "worker_crashed", "{error}");
    assert!(text_of_events(&events).len() < 200 * 40, "it did not go on as if nothing had been: {error}");
    let answer = ask(&boss, "m", 8).await;
    assert_eq!(answer.error_code(), "model_load_failed", "{answer:?}");
    assert!(answer.error_message().contains(".gguf"), "{answer:?}");

    std::fs::write(&file, &whole).unwrap();
    let again = async || {
        let answer = ask(&boss, "m", 8).await;
        (answer.status == StatusCode::OK).then(|| answer.text())
    };
    assert_eq!(until(PATIENCE, "the mended file is served", again).await, expected);
    boss.finish().await;
}

#[tokio::test]
async fn a_file_that_is_replaced_is_served_as_it_was_and_loaded_anew_when_idle() {
    let sandbox = Sandbox::new();
    let file = synth(&sandbox, "qwen3-small");
    with(&sandbox, "m", &file, "residency = \"stream\"");
    let boss = sandbox.start_with_real_worker().await;
    let expected = ask(&boss, "m", 120).await.text();
    let first = slot(&boss, "m").await["pid"].clone();
    let answer = boss.ask(tokens("m", 120));
    let busy = async || (slot(&boss, "m").await["running"] == 1).then_some(());
    until(PATIENCE, "the worker works on it", busy).await;
    let other = file.with_extension("new");
    let made =
        Command::new(binary("model-boss-worker")).args(["synth", "qwen3-small", "--seed", "2"]).arg(&other).output();
    assert!(made.unwrap().status.success());
    std::fs::rename(&other, &file).unwrap();
    assert_eq!(answer.await.unwrap().text(), expected, "the old file to its end");
    let replaced = async || {
        let answer = ask(&boss, "m", 120).await;
        (answer.status == StatusCode::OK && answer.text() != expected).then_some(())
    };
    until(PATIENCE, "the new file is served", replaced).await;
    assert_ne!(slot(&boss, "m").await["pid"], first);
    assert_eq!(views::queue(&boss).await.len(), 0);
    boss.finish().await;
}
