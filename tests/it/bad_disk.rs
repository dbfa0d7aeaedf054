//! Layers from a disk that fails, hangs or returns fewer bytes than requested, with the real binaries. The tests check
//! which clients get an error, which requests continue, and that everything works again when the disk does.

use std::path::{Path, PathBuf};

use http::StatusCode;
use model_boss_protocol::{Residency, ResidencyMode, WorkerExit};
use model_boss_tests::{
    Answer, Boss, DirectReads, Event, FaultyDisk, LoneWorker, PATIENCE, Sandbox, Trouble, text_of_events, until,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::streaming::{ask, layers, slot, synth, tokens, with};

const ALWAYS: u64 = u64::MAX;
const WORKER: &str = "model-boss-worker";

/// A coordinator with the model `m`, whose layers are all streamed from the disk one by one.
struct Rig {
    boss: Boss,
    disk: FaultyDisk,
    file: PathBuf,
}

impl Rig {
    async fn new(config: &str, direct: DirectReads) -> Option<Self> {
        let sandbox = Sandbox::new().with_config(config);
        let file = synth(&sandbox, "qwen3-small");
        with(&sandbox, "m", &file, "residency = \"stream\"\nblock = 1\nwindow = 1");
        let disk = FaultyDisk::under(&sandbox, WORKER, &file, direct)?;
        let boss = sandbox.launch(disk.program()).start().await;
        Some(Self { boss, disk, file })
    }

    /// The next `times` reads in the second half of the file meet this trouble.
    fn in_the_middle(&self, trouble: Trouble, times: u64) {
        self.disk.gets(trouble, middle(&self.file), times);
    }

    async fn pid(&self) -> Value {
        slot(&self.boss, "m").await["pid"].clone()
    }

    async fn stream(&self, count: u64) -> model_boss_tests::Streamed {
        let mut body = tokens("m", count);
        body["stream"] = true.into();
        self.boss.client().stream("/v1/chat/completions", &body).await
    }
}

fn middle(file: &Path) -> u64 {
    std::fs::metadata(file).unwrap().len() / 2
}

/// Whether the worker's error on a failed read names the file and the offset.
fn names_the_place(error: &Value, file: &Path) {
    let message = error["error"]["message"].as_str().unwrap_or_default();
    assert_eq!((&error["error"]["code"], &error["source"]), (&"internal_error".into(), &"worker".into()), "{error}");
    assert!(message.contains(&file.display().to_string()) && message.contains("at byte"), "{error}");
}

fn error_in(events: &[Event]) -> Value {
    match events.last() {
        Some(Event::Data(last)) if last["error"].is_object() => last.clone(),
        _ => panic!("an error at the end, not {events:?}"),
    }
}

#[tokio::test]
async fn a_read_error_ends_the_requests_it_meets_and_the_next_are_as_before() {
    for direct in [DirectReads::AsItIs, DirectReads::Refused] {
        let Some(rig) = Rig::new("", direct).await else { return };
        let boss = &rig.boss;
        let expected = ask(boss, "m", 24).await.text();
        let (first, store) = (rig.pid().await, layers(boss, "m").await["store"].to_string());
        assert!(direct == DirectReads::AsItIs || store.contains("through the page cache"), "{store}");

        rig.in_the_middle(Trouble::Fails, ALWAYS);
        let answer = ask(boss, "m", 24).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR, "{answer:?}");
        names_the_place(&answer.json(), &rig.file);
        rig.disk.works();
        assert_eq!(ask(boss, "m", 24).await.text(), expected);

        // The fault comes during two answers: each stream ends with an error.
        let mut streams = [rig.stream(200).await, rig.stream(200).await];
        for stream in &mut streams {
            stream.token().await;
        }
        rig.in_the_middle(Trouble::Fails, ALWAYS);
        for stream in &mut streams {
            names_the_place(&error_in(&stream.rest().await), &rig.file);
        }
        rig.disk.works();
        assert_eq!(ask(boss, "m", 24).await.text(), expected);
        assert_eq!(rig.pid().await, first, "the worker goes on");
        rig.boss.finish().await;
    }
}

#[tokio::test]
async fn one_read_that_fails_harms_nobody_of_several() {
    let Some(rig) = Rig::new("", DirectReads::AsItIs).await else { return };
    let expected = ask(&rig.boss, "m", 80).await.text();
    let mut streams = [rig.stream(80).await, rig.stream(80).await];
    let mut texts = [String::new(), String::new()];
    for (stream, text) in streams.iter_mut().zip(&mut texts) {
        text.push_str(&stream.token().await);
    }
    rig.in_the_middle(Trouble::Fails, 1);
    rig.disk.is_met().await;
    for (stream, text) in streams.iter_mut().zip(&mut texts) {
        let events = stream.rest().await;
        assert_eq!(events.last(), Some(&Event::Done), "{events:?}");
        text.push_str(&text_of_events(&events));
        assert_eq!(*text, expected);
    }
    rig.boss.finish().await;
}

#[tokio::test]
async fn reads_that_end_early_give_the_same_answers() {
    for direct in [DirectReads::AsItIs, DirectReads::Refused] {
        let Some(rig) = Rig::new("", direct).await else { return };
        let expected = ask(&rig.boss, "m", 8).await.text();
        rig.disk.gets(Trouble::ReadsShort, 0, ALWAYS);
        assert_eq!(ask(&rig.boss, "m", 8).await.text(), expected);
        rig.disk.is_met().await;
        // Short reads are enough to load with.
        rig.boss.client().post("/api/v1/unload", &json!({})).await;
        assert_eq!(ask(&rig.boss, "m", 8).await.text(), expected);
        rig.boss.finish().await;
    }
}

#[tokio::test]
async fn rc_11_whoever_waits_for_a_disk_that_hangs_can_go_away_and_so_can_the_worker() {
    let sandbox = Sandbox::new();
    let file = synth(&sandbox, "qwen3-small");
    let Some(disk) = FaultyDisk::under(&sandbox, WORKER, &file, DirectReads::AsItIs) else { return };
    let mut worker = LoneWorker::spawn_program(disk.program());
    let stream = Residency { mode: ResidencyMode::Stream, window: Some(1), block: Some(1), ..Residency::default() };
    worker.open_gate_as(&file, stream);
    worker.ready().await;
    let asked = |count| {
        let mut body = tokens("tiny", count);
        body["temperature"] = 0.into();
        worker.ask(&body)
    };
    let expected = asked(24).await.unwrap().text();
    for _ in 0..2 {
        let gone = asked(200);
        worker.engine("it works on the request", |engine| engine.active == 1).await;
        disk.gets(Trouble::Hangs, 0, ALWAYS);
        disk.is_met().await;
        gone.abort();
        worker.engine("the place is free", |engine| engine.active == 0).await;
        // The next request can only wait for the disk.
        let next = asked(24);
        worker.engine("it waits for the disk", |engine| engine.active == 1).await;
        disk.works();
        assert_eq!(next.await.unwrap().text(), expected);
    }
    disk.gets(Trouble::Hangs, 0, ALWAYS);
    let gone = asked(24);
    disk.is_met().await;
    gone.abort();
    worker.engine("the place is free", |engine| engine.active == 0).await;
    worker.signal(Signal::SIGTERM);
    let (code, said) = worker.end().await;
    assert_eq!(code, Some(WorkerExit::Clean.code()), "{said}");
}

#[tokio::test]
async fn rc_13_a_deadline_holds_while_the_disk_hangs_and_the_worker_is_kept() {
    let Some(rig) = Rig::new("", DirectReads::AsItIs).await else { return };
    let boss = &rig.boss;
    let expected = ask(boss, "m", 24).await.text();
    let first = rig.pid().await;
    rig.in_the_middle(Trouble::Hangs, ALWAYS);
    let mut body = tokens("m", 24);
    body["x_budget_s"] = 1.into();
    let answer = boss.client().post("/v1/chat/completions", &body).await;
    assert_eq!((answer.status, answer.error_code().as_str()), (StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded"));
    let health = boss.client().get("/api/v1/health").await;
    assert_eq!(health.status, StatusCode::OK, "{health:?}");
    rig.disk.works();
    assert_eq!(ask(boss, "m", 24).await.text(), expected);
    assert_eq!(rig.pid().await, first, "waiting for a disk is no hang yet");
    rig.boss.finish().await;
}

#[tokio::test]
async fn a_step_that_waits_for_the_disk_for_ever_is_a_hang_and_the_request_is_sent_again() {
    let Some(rig) = Rig::new("hang_timeout = \"1s\"", DirectReads::AsItIs).await else { return };
    let boss = &rig.boss;
    let expected = ask(boss, "m", 24).await.text();
    let first = rig.pid().await;
    rig.in_the_middle(Trouble::Hangs, ALWAYS);
    let answer = boss.ask(tokens("m", 24));
    let hung = async || boss.read("/api/v1/decisions").await.to_string().contains("hung: 1 requests").then_some(());
    until(PATIENCE, "the hang is noticed", hung).await;
    // The next worker waits for the disk too, but while it loads.
    rig.disk.works();
    assert_eq!(answer.await.unwrap().text(), expected);
    assert_ne!(rig.pid().await, first);
    rig.boss.finish().await;
}

#[tokio::test]
async fn an_unload_waits_no_longer_for_an_answer_that_hangs_than_for_a_hang() {
    let Some(rig) = Rig::new("hang_timeout = \"1s\"", DirectReads::AsItIs).await else { return };
    let boss = &rig.boss;
    let expected = ask(boss, "m", 24).await.text();
    let mut stream = rig.stream(200).await;
    stream.token().await;
    rig.disk.gets(Trouble::Hangs, 0, ALWAYS);
    rig.disk.is_met().await;
    let unloaded = boss.client().post("/api/v1/unload", &json!({ "model_name": "m" })).await;
    assert_eq!(unloaded.status, StatusCode::OK, "{unloaded:?}");
    let told = error_in(&stream.rest().await);
    assert_eq!((&told["error"]["code"], &told["source"]), (&"worker_crashed".into(), &"coordinator".into()), "{told}");
    assert!(boss.output().text().contains("hung: 1 requests"), "it was not killed for its hang");
    rig.disk.works();
    assert_eq!(ask(boss, "m", 24).await.text(), expected);
    rig.boss.finish().await;
}

#[tokio::test]
async fn the_coordinator_ends_in_its_grace_while_an_answer_waits_for_the_disk() {
    let grace = "drain_grace = \"300ms\"\nstop_grace = \"300ms\"";
    let Some(rig) = Rig::new(grace, DirectReads::AsItIs).await else { return };
    let mut stream = rig.stream(200).await;
    stream.token().await;
    rig.disk.gets(Trouble::Hangs, 0, ALWAYS);
    rig.disk.is_met().await;
    rig.boss.signal(Signal::SIGTERM);
    let told = error_in(&stream.rest().await);
    assert_eq!(told["source"], "coordinator", "{told}");
    // No process is left, and the exit code reports lost work.
    rig.boss.exit().await;
}

#[tokio::test]
async fn a_load_from_a_disk_that_fails_is_told_and_tried_again_when_it_may_work() {
    let Some(rig) = Rig::new("back_off_first = \"100ms\"", DirectReads::AsItIs).await else { return };
    let boss = &rig.boss;
    rig.disk.gets(Trouble::Fails, 0, ALWAYS);
    let told = |answer: &Answer| {
        let message = answer.error_message();
        assert!(message.contains("qwen3-small.gguf cannot be read at byte"), "{answer:?}");
        assert!(message.contains(&format!("exit code {}", WorkerExit::ReadFailed.code())), "{answer:?}");
    };
    let first = ask(boss, "m", 24).await;
    assert_eq!((first.status, first.error_code().as_str()), (StatusCode::BAD_GATEWAY, "model_load_failed"));
    told(&first);
    // New requests are refused at once, without a new process for each.
    let next = ask(boss, "m", 24).await;
    assert!(matches!(next.error_code().as_str(), "model_load_failed" | "model_backing_off"), "{next:?}");
    told(&next);
    rig.disk.works();
    let again = async || Some(ask(boss, "m", 24).await).filter(|answer| answer.status == StatusCode::OK);
    assert!(!until(PATIENCE, "it loads after all", again).await.text().is_empty());
    let decisions = boss.read("/api/v1/decisions").await.to_string();
    let crashes = decisions.matches("\"crash\"").count();
    assert!((3..=8).contains(&crashes), "{crashes}: {decisions}");
    rig.boss.finish().await;
}
