//! FA-5: models on the host that compute at the same time share its cores by the priorities of their requests.

use model_boss_tests::{Behaviour, Boss, Event, FakeModel, FakeWorker, PATIENCE, Sandbox, Streamed, question, until};
use serde_json::{Value, json};

/// A model that holds each answer after its first word, on a host with 8 cores.
fn model(sandbox: &Sandbox, name: &str, manifest: &str) -> FakeModel {
    let behaviour = Behaviour {
        reply: Some("one two three".to_owned()),
        hold_after_tokens: Some(1),
        cores: 8,
        ..Behaviour::default()
    };
    sandbox.fake_model_with(name, &format!("vram = \"64MiB\"\nmax_concurrent = 4\n{manifest}"), behaviour)
}

/// Begins an answer of this priority; the model computes on it from then on.
async fn begin(boss: &Boss, model: &str, priority: u8) -> Streamed {
    let mut body = question(model, "?");
    body["stream"] = true.into();
    body["x_priority"] = priority.into();
    let mut stream = boss.client().stream("/v1/chat/completions", &body).await;
    assert_eq!(stream.token().await, "one ");
    stream
}

/// The next share that a worker was given, as threads and their priority.
async fn share(worker: &mut FakeWorker) -> (u32, u8) {
    let share = worker.share().await;
    (share.threads.get(), share.nice)
}

/// The share of each model as the coordinator shows it.
async fn shown(boss: &Boss, models: [&str; 2]) -> [Value; 2] {
    let answer = boss.client().get("/api/v1/slots").await.json();
    let slots = answer["slots"].as_array().unwrap();
    models.map(|model| {
        let slot = slots.iter().find(|slot| slot["model"] == model).unwrap();
        slot["cpu_share"]["threads"].clone()
    })
}

#[tokio::test]
async fn fa_5_models_share_the_cores_by_priority_and_a_killed_one_gives_them_back() {
    let sandbox = Sandbox::new();
    let (mut alpha, mut beta) = (model(&sandbox, "alpha", ""), model(&sandbox, "beta", ""));
    let boss = sandbox.start().await;
    let mut urgent = begin(&boss, "alpha", 2).await;
    let mut first = alpha.worker().await;
    assert_eq!(shown(&boss, ["alpha", "alpha"]).await[0], json!(8), "a model alone has all cores");
    let mut normal = begin(&boss, "beta", 5).await;
    let mut second = beta.worker().await;
    assert_eq!((share(&mut first).await, share(&mut second).await), ((7, 0), (1, 0)));
    assert_eq!(shown(&boss, ["alpha", "beta"]).await, [json!(7), json!(1)]);

    let mut as_urgent = begin(&boss, "beta", 2).await;
    assert_eq!((share(&mut first).await, share(&mut second).await), ((4, 0), (4, 0)));

    second.kill();
    // The ends of its two requests are reported one by one.
    while share(&mut first).await != (8, 0) {}
    for stream in [&mut normal, &mut as_urgent] {
        let rest = stream.rest().await;
        let Some(Event::Data(error)) = rest.last() else { panic!("an error event, not {rest:?}") };
        assert_eq!(error["error"]["code"], "worker_crashed", "{error}");
    }

    let mut again = begin(&boss, "beta", 5).await;
    let mut third = beta.worker().await;
    assert_eq!((share(&mut first).await, share(&mut third).await), ((7, 0), (1, 0)));
    first.decode();
    assert!(urgent.rest().await.contains(&Event::Done));
    assert_eq!(share(&mut third).await, (8, 0), "the rest of an answer is computed with all cores");
    third.decode();
    assert!(again.rest().await.contains(&Event::Done));
    let none = [json!(null), json!(null)];
    let idle = async || (shown(&boss, ["alpha", "beta"]).await == none).then_some(());
    until(PATIENCE, "idle models have no share", idle).await;
    boss.finish().await;
}

#[tokio::test]
async fn fa_5_a_manifests_threads_bound_a_share_and_sharing_can_be_off() {
    for (config, shares) in [("", [json!(2), json!(6)]), ("share_cores = false", [json!(2), json!(8)])] {
        let sandbox = Sandbox::new().with_config(config);
        let (mut small, mut large) = (model(&sandbox, "small", "threads = 2"), model(&sandbox, "large", ""));
        let boss = sandbox.start().await;
        let mut streams = [begin(&boss, "small", 5).await, begin(&boss, "large", 5).await];
        assert_eq!(shown(&boss, ["small", "large"]).await, shares, "with '{config}'");
        small.worker().await.decode();
        large.worker().await.decode();
        for stream in &mut streams {
            assert!(stream.rest().await.contains(&Event::Done));
        }
        boss.finish().await;
    }
}
