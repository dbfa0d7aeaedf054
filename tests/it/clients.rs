//! RC-9, RC-24: what clients may do, and what the API shows of them.

use model_boss_tests::{Behaviour, Boss, PATIENCE, Sandbox, question, until};
use serde_json::Value;

use crate::views;

fn from(client: &str, text: &str) -> Value {
    let mut body = question("alpha", text);
    body["x_client_id"] = client.into();
    body
}

async fn client(boss: &Boss, name: &str) -> Value {
    let all = boss.read("/api/v1/clients").await;
    let found = all["clients"].as_array().into_iter().flatten().find(|client| client["id"] == name);
    found.unwrap_or_else(|| panic!("no '{name}' in {all}")).clone()
}

#[tokio::test]
async fn rc_9_a_client_at_its_limit_waits_while_others_run() {
    let sandbox = Sandbox::new().with_config("[clients.greedy]\nmax_concurrent = 1\nmax_queued = 1");
    let behaviour = Behaviour { hold_after_tokens: Some(0), reply: Some("yes".into()), ..Behaviour::default() };
    let mut model = sandbox.fake_model_with("alpha", "vram = \"64MiB\"\nmax_concurrent = 4", behaviour);
    let boss = sandbox.start().await;
    let first = boss.ask(from("greedy", "first"));
    let mut worker = model.worker().await;
    worker.held().await;
    let second = boss.ask(from("greedy", "second"));
    let waiting = views::waiting(&boss, 1).await;
    assert_eq!((&waiting[0]["client"], &waiting[0]["wait"]["reason"]), (&"greedy".into(), &"client_limit".into()));
    let refused = boss.client().post("/v1/chat/completions", &from("greedy", "third")).await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (429, "client_limit"), "{refused:?}");
    assert!(refused.header("retry-after").is_some());
    let other = boss.ask(from("modest", "other"));
    worker.held().await;
    let shown = client(&boss, "greedy").await;
    assert_eq!((&shown["running"], &shown["queued"], &shown["refused"]), (&1.into(), &1.into(), &1.into()), "{shown}");
    assert_eq!(shown["held_back"]["reason"], "client_limit", "{shown}");
    worker.decode();
    for answer in [first, second, other] {
        assert_eq!(answer.await.unwrap().text(), "yes");
    }
    // What stands in tasks.yaml counts, and is told with where it stands.
    std::fs::write(sandbox.path("tasks.yaml"), "clients:\n  modest: {cloud: false, rate_per_minute: 600}\n").unwrap();
    let told = async || {
        let shown = client(&boss, "modest").await;
        let cloud = &shown["profile"]["cloud"];
        (cloud["value"] == false && cloud["origin"] == "tasks.yaml: clients.modest").then_some(())
    };
    until(PATIENCE, "the profile is shown", told).await;
    let all = boss.read("/api/v1/clients").await;
    let profiles: Vec<&str> = all["profiles"].as_array().unwrap().iter().filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(profiles, ["default", "greedy", "modest"], "{all}");
    let greedy = &client(&boss, "greedy").await["profile"]["max_concurrent"];
    assert_eq!((&greedy["value"], &greedy["origin"]), (&1.into(), &"model-boss.toml: [clients]".into()));
    let shown = client(&boss, "modest").await;
    assert_eq!((&shown["requests"], &shown["running"]), (&1.into(), &0.into()), "{shown}");
    boss.finish().await;
}
