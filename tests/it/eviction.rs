//! RC-13, RC-18, RC-20, RC-22 with real processes on a simulated machine: the choice of models to evict, and the sizes
//! of models.

use model_boss_tests::{Behaviour, Boss, PATIENCE, Sandbox, question, until};
use serde_json::{Value, json};

use crate::views;

const ONE: &str = "[cpu]\nmemory = \"8GiB\"\n[[gpu]]\nmemory = \"24GiB\"\n";
const GIB: u64 = 1 << 30;

fn says(reply: &str) -> Behaviour {
    Behaviour { reply: Some(reply.to_owned()), ..Behaviour::default() }
}

fn at(priority: u64, model: &str) -> Value {
    let mut body = question(model, "?");
    body["x_priority"] = priority.into();
    body
}

async fn slot(boss: &Boss, model: &str) -> Option<Value> {
    let slots = boss.read("/api/v1/slots").await;
    slots["slots"].as_array().unwrap().iter().find(|slot| slot["model"] == model).cloned()
}

async fn decisions(boss: &Boss, what: &str) -> Vec<Value> {
    let all = boss.read("/api/v1/decisions").await;
    all["decisions"].as_array().unwrap().iter().filter(|decision| decision["what"] == what).cloned().collect()
}

#[tokio::test]
async fn rc_18_the_less_important_idle_model_leaves_and_the_reason_is_told() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    let manifest = "vram = \"10GiB\"\ndevice = \"cuda:0\"";
    let _models = ["alpha", "beta", "gamma"].map(|name| sandbox.fake_model_with(name, manifest, says(name)));
    let boss = sandbox.start().await;
    // The model of lower priority was used last: priority decides before recency.
    assert_eq!(boss.ask(at(2, "beta")).await.unwrap().text(), "beta");
    assert_eq!(boss.ask(at(8, "alpha")).await.unwrap().text(), "alpha");
    assert_eq!(boss.ask(at(5, "gamma")).await.unwrap().text(), "gamma");
    assert!(slot(&boss, "beta").await.is_some());
    assert!(slot(&boss, "alpha").await.is_none());
    let [evicted] = &decisions(&boss, "evict").await[..] else { panic!("one eviction") };
    assert_eq!(evicted["model"], "alpha");
    assert!(evicted["reasons"].to_string().contains("gamma"), "{evicted}");
    boss.finish().await;
}

#[tokio::test]
async fn bc_4_mm_6_a_busy_model_ends_its_requests_before_it_leaves() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    let manifest = "vram = \"18GiB\"\ndevice = \"cuda:0\"";
    let held = Behaviour { hold_after_tokens: Some(0), ..says("alpha") };
    let mut alpha = sandbox.fake_model_with("alpha", manifest, held);
    let _beta = sandbox.fake_model_with("beta", manifest, says("beta"));
    let boss = sandbox.start().await;
    let running = boss.ask(at(5, "alpha"));
    let mut worker = alpha.worker().await;
    worker.held().await;
    let important = boss.ask(at(2, "beta"));
    let entries = views::waiting(&boss, 1).await;
    assert_eq!(entries[0]["wait"]["reason"], "reclaiming", "{entries:?}");
    assert_eq!(decisions(&boss, "drain").await.len(), 1);
    worker.decode();
    assert_eq!(running.await.unwrap().text(), "alpha");
    assert_eq!(important.await.unwrap().text(), "beta");
    worker.terminating().await;
    boss.finish().await;
}

#[tokio::test]
async fn rc_13_a_budget_too_short_for_the_load_is_refused_at_once_and_the_load_begins() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    let mut model = sandbox.fake_model_with("alpha", "vram = \"2GiB\"", Behaviour { load_ms: 1_500, ..says("yes") });
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    assert!(boss.client().post("/api/v1/unload", &json!({ "model_name": "alpha" })).await.status.is_success());
    let mut body = question("alpha", "?");
    body["x_budget_s"] = 0.3.into();
    let refused = boss.client().post("/v1/chat/completions", &body).await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (503, "cold_start_exceeds_budget"));
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    for _ in 0..2 {
        model.worker().await.ready().await;
    }
    let served = async || (boss.client().post("/v1/chat/completions", &body).await.status == 200).then_some(());
    until(PATIENCE, "the retry succeeds", served).await;
    boss.finish().await;
}

#[tokio::test]
async fn rc_20_what_a_model_really_takes_is_learned_and_kept() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    // The manifest has no size, so the estimate comes from the files, which are empty.
    let behaviour = Behaviour { holds: Some(model_boss_protocol::ByteCount::gib(6)), ..says("yes") };
    let _model = sandbox.fake_model_with("alpha", "device = \"cuda:0\"", behaviour);
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    let charged = async || {
        let slot = slot(&boss, "alpha").await?;
        (slot["parts"][0][1].as_u64()? == 6 * GIB).then_some(())
    };
    until(PATIENCE, "what it takes is charged", charged).await;
    boss.finish().await;
    let boss = sandbox.start().await;
    let shown = boss.client().post("/api/v1/load", &json!({ "model_name": "alpha" })).await;
    assert!(shown.status.is_success(), "{shown:?}");
    let [load] = &decisions(&boss, "load").await[..] else { panic!("one load") };
    assert!(load["reasons"].to_string().contains("learned"), "{load}");
    boss.finish().await;
}

#[tokio::test]
async fn rc_22_a_model_larger_than_one_gpu_is_split() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate("[cpu]\nmemory = \"8GiB\"\n[[gpu]]\nmemory = \"24GiB\"\n[[gpu]]\nmemory = \"12GiB\"\n");
    let mut model = sandbox.fake_model_with("alpha", "vram = \"30GiB\"", says("yes"));
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    let worker = model.worker().await;
    let parts: Vec<(String, u64)> = serde_json::from_value(worker.spec["parts"].clone()).unwrap();
    let (first, second) = match &parts[..] {
        [(a, first), (b, second)] if (a.as_str(), b.as_str()) == ("cuda:0", "cuda:1") => (*first, *second),
        other => panic!("two parts expected: {other:?}"),
    };
    assert!(first + second >= 30 * GIB && first > second, "{parts:?}");
    assert_eq!(worker.env["CUDA_VISIBLE_DEVICES"].split(',').count(), 2);
    // DM-4: both devices are named wherever the model is shown.
    let both = serde_json::json!(["cuda:0", "cuda:1"]);
    assert_eq!(boss.read("/v1/models/alpha").await["devices"], both);
    assert_eq!(boss.read("/api/v1/health").await["all_models_loaded"][0]["devices"], both);
    boss.finish().await;
}

#[tokio::test]
async fn a_plan_tells_what_is_done_then() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    let manifest = "vram = \"18GiB\"\ndevice = \"cuda:0\"";
    let _models = ["alpha", "beta"].map(|name| sandbox.fake_model_with(name, manifest, says(name)));
    let boss = sandbox.start().await;
    let plan = async |body: Value| boss.client().post("/api/v1/plan", &body).await;
    let first = plan(json!({ "model": "alpha" })).await.json();
    assert_eq!((&first["step"], &first["size_rule"]), (&"load".into(), &"manifest".into()), "{first}");
    assert_eq!(first["parts"], json!([["cuda:0", 18 * GIB]]));
    assert!(slot(&boss, "alpha").await.is_none(), "a plan loads nothing");
    assert_eq!(boss.chat("alpha", "?").await.text(), "alpha");
    let second = plan(json!({ "model": "beta", "priority": 2 })).await.json();
    assert_eq!((&second["step"], &second["evictions"][0]["model"]), (&"evict".into(), &"alpha".into()), "{second}");
    assert_eq!(boss.ask(at(2, "beta")).await.unwrap().text(), "beta");
    assert!(slot(&boss, "alpha").await.is_none());
    for (body, status, param) in [
        (json!({}), 400, "model"),
        (json!({ "model": "nobody" }), 404, "model"),
        (json!({ "model": "alpha", "device": "cuda:x" }), 400, "device"),
        (json!({ "model": "alpha", "ctx_size": 0 }), 400, "ctx_size"),
    ] {
        let refused = plan(body.clone()).await;
        assert_eq!(refused.status.as_u16(), status, "{body}: {refused:?}");
        assert_eq!(refused.json()["error"]["param"], param, "{body}: {refused:?}");
    }
    boss.finish().await;
}
