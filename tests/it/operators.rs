//! Orders of operators while requests run: load with options, move, pin, free a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use model_boss_tests::{Answer, Behaviour, Boss, FakeModel, PATIENCE, Sandbox, question, until};
use serde_json::{Value, json};

const TWO: &str = "[[gpu]]\nmemory = \"24GiB\"\ncount = 2\n";

fn says(reply: &str) -> Behaviour {
    Behaviour { reply: Some(reply.to_owned()), ..Behaviour::default() }
}

async fn order(boss: &Boss, path: &str, body: Value) -> Answer {
    boss.client().post(path, &body).await
}

/// The device on which a model is loaded.
async fn place(boss: &Boss, model: &str) -> Option<String> {
    let slots = boss.read("/api/v1/slots").await;
    let slots = slots["slots"].as_array().unwrap().clone();
    let slot = slots.into_iter().find(|slot| slot["model"] == model && slot["state"] == "ready")?;
    slot["parts"][0][0].as_str().map(str::to_owned)
}

fn on_two_gpus(sandbox: &mut Sandbox, behaviour: Behaviour) -> FakeModel {
    sandbox.simulate(TWO);
    sandbox.fake_model_with("alpha", "vram = \"10GiB\"\nmax_concurrent = 8", behaviour)
}

#[tokio::test]
async fn mm_11_a_load_says_where_and_with_which_context() {
    let mut sandbox = Sandbox::new();
    let mut model = on_two_gpus(&mut sandbox, says("yes"));
    let boss = sandbox.start().await;
    let body = json!({ "model_name": "alpha", "device": "cuda:1", "ctx_size": 2048, "keep_alive": "1h" });
    let loaded = order(&boss, "/api/v1/load", body).await;
    assert!(loaded.status.is_success(), "{loaded:?}");
    let worker = model.worker().await;
    assert_eq!(worker.spec["context_length"], 2048);
    assert_eq!(worker.spec["parts"][0][0], "cuda:1");
    assert_eq!(place(&boss, "alpha").await.as_deref(), Some("cuda:1"));
    for (body, status, code, param) in [
        (json!({ "model_name": "alpha", "device": "cuda:x" }), 400, "invalid_device", "device"),
        (json!({ "model_name": "alpha", "device": "cuda:7" }), 409, "device_not_available", "device"),
        (json!({ "model_name": "alpha", "ctx_size": 0 }), 400, "invalid_request", "ctx_size"),
        (json!({ "model_name": "alpha", "llamacpp_args": "-x" }), 400, "invalid_request", "llamacpp_args"),
        (json!({ "model_name": "nobody" }), 404, "model_not_found", "model_name"),
    ] {
        let refused = order(&boss, "/api/v1/load", body.clone()).await;
        assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (status, code), "{body}: {refused:?}");
        assert_eq!(refused.json()["error"]["param"], param, "{body}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn dm_5_a_move_under_load_fails_no_request() {
    let mut sandbox = Sandbox::new();
    let behaviour = Behaviour { tokens: 4, tokens_per_s: 200.0, load_ms: 50, ..Behaviour::default() };
    let model = on_two_gpus(&mut sandbox, behaviour);
    let boss = sandbox.start().await;
    assert!(
        order(&boss, "/api/v1/load", json!({ "model_name": "alpha", "device": "cuda:0" })).await.status.is_success()
    );
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..6)
        .map(|_| {
            let (client, stop) = (boss.client(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut answers = 0;
                while !stop.load(Ordering::Relaxed) {
                    let answer = client.post("/v1/chat/completions", &question("alpha", "?")).await;
                    assert!(answer.status.is_success(), "{answer:?}");
                    answers += 1;
                }
                answers
            })
        })
        .collect();
    for to in ["cuda:1", "cuda:0", "cuda:1"] {
        let moved = order(&boss, "/api/v1/models/alpha/device", json!({ "device": to })).await;
        assert!(moved.status.is_success(), "{moved:?}");
        assert_eq!(boss.read("/v1/models/alpha").await["device"], to);
    }
    stop.store(true, Ordering::Relaxed);
    let mut answers = 0;
    for client in clients {
        answers += client.await.unwrap();
    }
    assert!(answers > 0);
    assert_eq!(model.spawns(), 4);
    let one = async || (boss.read("/api/v1/slots").await["slots"].as_array().unwrap().len() == 1).then_some(());
    until(PATIENCE, "the old copy is gone", one).await;
    boss.finish().await;
}

#[tokio::test]
async fn dm_5_a_move_that_fails_leaves_the_old_copy_serving() {
    let mut sandbox = Sandbox::new();
    let model = on_two_gpus(&mut sandbox, says("yes"));
    let boss = sandbox.start().await;
    assert!(
        order(&boss, "/api/v1/load", json!({ "model_name": "alpha", "device": "cuda:0" })).await.status.is_success()
    );
    model.behave_next(Behaviour { load_exit: Some(65), load_message: "no such tensor".into(), ..Behaviour::default() });
    let moved = order(&boss, "/api/v1/models/alpha/device", json!({ "device": "cuda:1" })).await;
    assert_eq!(moved.error_code(), "migration_failed", "{moved:?}");
    assert!(moved.error_message().contains("cuda:0"), "{moved:?}");
    assert_eq!(moved.json()["error"]["still_on"], "cuda:0", "{moved:?}");
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    assert_eq!(place(&boss, "alpha").await.as_deref(), Some("cuda:0"));
    let gone = order(&boss, "/api/v1/models/alpha/device", json!({ "device": "cuda:5" })).await;
    assert_eq!((gone.status.as_u16(), gone.error_code().as_str()), (409, "device_not_available"), "{gone:?}");
    boss.finish().await;
}

#[tokio::test]
async fn rc_30_a_freed_device_is_empty_until_it_is_given_back() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate("[[gpu]]\nmemory = \"24GiB\"\n");
    let _alpha = sandbox.fake_model_with("alpha", "vram = \"10GiB\"\ndevice = \"cuda:0\"", says("yes"));
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    let freed = order(&boss, "/api/v1/devices/cuda:0/drain", json!({})).await;
    assert!(freed.status.is_success(), "{freed:?}");
    assert_eq!(place(&boss, "alpha").await, None);
    let waiting = boss.ask(question("alpha", "?"));
    let entries = crate::views::waiting(&boss, 1).await;
    assert_eq!(entries[0]["wait"]["reason"], "device_closed", "{entries:?}");
    let open = order(&boss, "/api/v1/devices/cuda:0/open", json!({})).await;
    assert!(open.status.is_success(), "{open:?}");
    assert_eq!(waiting.await.unwrap().text(), "yes");
    boss.finish().await;
}

#[tokio::test]
async fn rc_19_a_pin_at_run_time_keeps_a_model_and_is_named() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate("[[gpu]]\nmemory = \"24GiB\"\n");
    let manifest = "vram = \"18GiB\"\ndevice = \"cuda:0\"";
    let _models = ["alpha", "beta"].map(|name| sandbox.fake_model_with(name, manifest, says(name)));
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "alpha");
    assert!(order(&boss, "/api/v1/models/alpha/pin", json!({ "pinned": true })).await.status.is_success());
    let refused = boss.chat("beta", "?").await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (409, "slots_pinned"), "{refused:?}");
    assert!(refused.error_message().contains("alpha"));
    assert!(order(&boss, "/api/v1/models/alpha/pin", json!({ "pinned": null })).await.status.is_success());
    assert_eq!(boss.chat("beta", "?").await.text(), "beta");
    boss.finish().await;
}

#[tokio::test]
async fn mm_1_the_limit_of_a_category_makes_room_by_itself() {
    let mut sandbox = Sandbox::new().with_config("max_loaded_models = \"1\"");
    sandbox.simulate(TWO);
    let _models = ["alpha", "beta"].map(|name| sandbox.fake_model_with(name, "vram = \"2GiB\"", says(name)));
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "alpha");
    assert_eq!(boss.chat("beta", "?").await.text(), "beta");
    assert_eq!(place(&boss, "alpha").await, None);
    boss.finish().await;
}

#[tokio::test]
async fn mm_5_an_exclusive_device_has_one_user() {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(TWO);
    let sandbox = sandbox.with_config("[devices.npu]\nmemory = \"16GiB\"");
    let _models =
        ["alpha", "beta"].map(|name| sandbox.fake_model_with(name, "vram = \"2GiB\"\ndevice = \"npu\"", says(name)));
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "alpha");
    assert_eq!(place(&boss, "alpha").await.as_deref(), Some("npu"));
    assert_eq!(boss.chat("beta", "?").await.text(), "beta");
    assert_eq!(place(&boss, "alpha").await, None);
    boss.finish().await;
}

#[tokio::test]
async fn mm_4_a_load_that_fails_gets_one_try_with_everybody_gone() {
    let mut sandbox = Sandbox::new().with_config("back_off_first = \"10ms\"\nmax_load_attempts = 1");
    sandbox.simulate(TWO);
    let _alpha = sandbox.fake_model_with("alpha", "vram = \"2GiB\"\ndevice = \"cuda:0\"", says("alpha"));
    let beta = sandbox.fake_model_with("beta", "vram = \"2GiB\"\ndevice = \"cuda:0\"", says("beta"));
    beta.behave_next(Behaviour { load_exit: Some(71), load_message: "out of memory".into(), ..Behaviour::default() });
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "alpha");
    assert_eq!(boss.chat("beta", "?").await.text(), "beta");
    assert_eq!(beta.spawns(), 2);
    assert_eq!(place(&boss, "alpha").await, None);
    boss.finish().await;
}
