//! The time at which models are unloaded: `keep_alive`, stay-warm, pins, and two models with memory for one.

use model_boss_tests::{Answer, Behaviour, Boss, FakeModel, Sandbox, binary, question};
use serde_json::Value;

use crate::views;

const CHAT: &str = "/v1/chat/completions";

fn says(reply: &str) -> Behaviour {
    Behaviour { reply: Some(reply.to_owned()), ..Behaviour::default() }
}

async fn ask_keeping(boss: &Boss, model: &str, keep_alive: Value) -> Answer {
    let mut body = question(model, "?");
    body["keep_alive"] = keep_alive;
    boss.client().post(CHAT, &body).await
}

#[tokio::test]
async fn rc_8_keep_alive_zero_unloads_right_after_the_answer() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", says("yes"));
    let boss = sandbox.start().await;
    assert_eq!(ask_keeping(&boss, "alpha", 0.into()).await.text(), "yes");
    model.worker().await.gone().await;
    views::model_state(&boss, "alpha", "unloaded").await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    assert_eq!(model.spawns(), 2);
    boss.finish().await;
}

#[tokio::test]
async fn rc_8_the_last_finished_request_decides() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", says("yes"));
    let boss = sandbox.start().await;
    assert_eq!(ask_keeping(&boss, "alpha", "1h".into()).await.text(), "yes");
    views::model_state(&boss, "alpha", "loaded").await;
    assert_eq!(ask_keeping(&boss, "alpha", "1ms".into()).await.text(), "yes");
    model.worker().await.gone().await;
    boss.finish().await;
    assert_eq!(model.spawns(), 1);
}

#[tokio::test]
async fn rc_8_zero_never_unloads_what_others_wait_for() {
    let sandbox = Sandbox::new();
    let behaviour = Behaviour { hold_after_tokens: Some(0), ..says("yes") };
    let mut model = sandbox.fake_model_with("alpha", "vram = \"64MiB\"\nmax_concurrent = 1", behaviour);
    let boss = sandbox.start().await;
    let mut leaving = question("alpha", "?");
    leaving["keep_alive"] = 0.into();
    let leaving = boss.ask(leaving);
    let mut worker = model.worker().await;
    worker.held().await;
    let waiting = boss.ask(question("alpha", "?"));
    views::waiting(&boss, 1).await;
    worker.decode();
    assert_eq!(leaving.await.unwrap().text(), "yes");
    assert_eq!(waiting.await.unwrap().text(), "yes");
    boss.finish().await;
    assert_eq!(model.spawns(), 1);
}

#[tokio::test]
async fn rc_8_an_unneeded_model_leaves_by_itself() {
    let sandbox = Sandbox::new().with_config("stay_warm.llm = \"200ms\"");
    let mut model = sandbox.fake_model("alpha", says("yes"));
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    let mut worker = model.worker().await;
    worker.terminating().await;
    worker.gone().await;
    views::model_state(&boss, "alpha", "unloaded").await;
    boss.finish().await;
}

#[tokio::test]
async fn rc_8_a_manifests_keep_alive_beats_the_default() {
    let sandbox = Sandbox::new().with_config("stay_warm.llm = \"1h\"");
    let mut model = sandbox.fake_model_with("alpha", "vram = \"64MiB\"\nkeep_alive = \"100ms\"", says("yes"));
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    model.worker().await.gone().await;
    boss.finish().await;
}

/// Two models, each of which needs more than half of the memory.
async fn two_large_models(sandbox: &Sandbox, manifest: &str, behaviour: Behaviour) -> (FakeModel, FakeModel) {
    let boss = sandbox.start().await;
    let devices = boss.read("/api/v1/devices").await;
    boss.finish().await;
    let devices = devices["devices"].as_array().unwrap_or_else(|| panic!("{devices}"));
    let cpu = devices.iter().find(|device| device["id"] == "cpu").unwrap_or_else(|| panic!("no cpu: {devices:?}"));
    let capacity = cpu["capacity"].as_u64().unwrap_or_else(|| panic!("{cpu}"));
    let manifest = format!("vram = \"{}\"\ndevice = \"cpu\"\n{manifest}", capacity / 100 * 52);
    let model = |name| sandbox.fake_model_with(name, &manifest, behaviour.clone());
    (model("alpha"), model("beta"))
}

#[tokio::test]
async fn rc_18_an_idle_model_makes_room_and_is_gone_before_the_other_starts() {
    let sandbox = Sandbox::new();
    let (mut alpha, mut beta) = two_large_models(&sandbox, "", says("yes")).await;
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    let first = alpha.worker().await;
    beta.behave(Behaviour { hold_load: true, ..says("yes") });
    let answer = boss.ask(question("beta", "?"));
    let second = beta.worker().await;
    let gone = !std::path::Path::new(&format!("/proc/{}", first.pid)).exists();
    assert!(gone, "alpha's worker still lives when beta's starts: its bytes are promised twice");
    second.finish_load();
    assert_eq!(answer.await.unwrap().text(), "yes");
    views::model_state(&boss, "alpha", "unloaded").await;
    boss.finish().await;
}

#[tokio::test]
async fn bc_4_mm_6_a_busy_model_is_never_cut() {
    let sandbox = Sandbox::new();
    let (mut alpha, mut beta) = two_large_models(&sandbox, "", says("one two three")).await;
    alpha.behave(Behaviour { hold_after_tokens: Some(1), ..says("one two three") });
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    assert_eq!(stream.token().await, "one ");
    // The request has a higher priority, so that it may use the slot as soon as it is free.
    let mut other = question("beta", "?");
    other["x_priority"] = "interactive".into();
    let other = boss.ask(other);
    views::waiting(&boss, 1).await;
    assert_eq!(beta.spawns(), 0);
    alpha.worker().await.decode();
    assert_eq!(model_boss_tests::text_of_events(&stream.rest().await), "two three");
    assert_eq!(other.await.unwrap().text(), "one two three");
    beta.worker().await;
    boss.finish().await;
}

#[tokio::test]
async fn rc_19_pins_are_named_when_they_leave_no_room() {
    let sandbox = Sandbox::new();
    let (_alpha, _beta) = two_large_models(&sandbox, "pin = true", says("yes")).await;
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    let answer = boss.chat("beta", "?").await;
    assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (409, "slots_pinned"), "{answer:?}");
    assert!(answer.error_message().contains("alpha"), "{answer:?}");
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    boss.finish().await;
}

#[tokio::test]
async fn a_model_larger_than_the_machine_never_fits() {
    let sandbox = Sandbox::new();
    let model = sandbox.fake_model_with("huge", "vram = \"900TiB\"", says("yes"));
    let boss = sandbox.start().await;
    let answer = boss.chat("huge", "?").await;
    assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (507, "model_never_fits"), "{answer:?}");
    assert!(answer.error_message().contains("900 TiB"), "{answer:?}");
    boss.finish().await;
    assert_eq!(model.spawns(), 0);
}

#[tokio::test]
async fn mm_10_load_and_unload_on_request() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", says("yes"));
    let boss = sandbox.start().await;
    let named = serde_json::json!({ "model_name": "alpha" });
    let answer = boss.client().post("/api/v1/unload", &named).await;
    assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (404, "model_not_loaded"));
    let answer = boss.client().post("/api/v1/load", &named).await;
    assert!(answer.status.is_success(), "{answer:?}");
    views::model_state(&boss, "alpha", "loaded").await;
    assert_eq!(boss.chat("alpha", "?").await.header("x-load-ms"), Some("0"));
    let answer = boss.client().post("/api/v1/unload", &serde_json::json!({})).await;
    assert!(answer.status.is_success(), "{answer:?}");
    model.worker().await.gone().await;
    boss.finish().await;
    assert_eq!(model.spawns(), 1);
}

#[tokio::test]
async fn a_span_that_no_clock_can_hold_is_refused_with_its_bound_and_ends_nothing() {
    const ENDLESS: &str = "2600000000000000h";
    let sandbox = Sandbox::new();
    let _alpha = sandbox.fake_model("alpha", says("yes"));
    let more = format!("vram = \"64MiB\"\nkeep_alive = \"{ENDLESS}\"");
    let _beta = sandbox.fake_model_with("beta", &more, says("yes"));
    let boss = sandbox.start().await;
    let refused = boss.chat("beta", "?").await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (404, "model_not_found"), "{refused:?}");
    let problems = boss.read("/api/v1/health").await["problems"].to_string();
    assert!(problems.contains("beta.toml") && problems.contains("36500d"), "{problems}");
    let refused = ask_keeping(&boss, "alpha", ENDLESS.into()).await;
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.error_message().contains("36500d"), "{refused:?}");
    // A span of years is valid: clients of other servers use one to keep a model forever.
    assert_eq!(ask_keeping(&boss, "alpha", "99999h".into()).await.text(), "yes");
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    boss.finish().await;
    for setting in ["max_wait", "min_hold", "max_keep_alive", "stop_grace"] {
        let sandbox = Sandbox::new().with_config(&format!("{setting} = \"{ENDLESS}\""));
        let (status, said) = sandbox.launch(&binary("model-boss-fake-worker")).end().await;
        assert!(!status.success() && said.contains(setting) && said.contains("36500d"), "{setting}: {said}");
    }
}
