//! The instructions that products on the CPU use: chosen by an operator, shown, and without effect on answers (FA-4).

use model_boss_protocol::InstructionSet;
use model_boss_tests::{Behaviour, LoneWorker, Sandbox};
use serde_json::json;

use crate::real_model::guide;

#[tokio::test]
async fn fa_4_an_operator_chooses_the_instructions_and_sees_them() {
    for (lines, told, shown) in [
        ("", json!(null), InstructionSet::best().name()),
        ("cpu_features = \"portable\"", json!("portable"), "portable"),
    ] {
        let sandbox = Sandbox::new().with_config(lines);
        let mut model = sandbox.fake_model("m", Behaviour::default());
        let boss = sandbox.start().await;
        let devices = boss.read("/api/v1/devices").await;
        let cpu = devices["devices"].as_array().unwrap().iter().find(|device| device["id"] == "cpu");
        assert_eq!(cpu.unwrap()["cpu_features"], shown, "{devices}");
        assert!(boss.client().post("/api/v1/load", &json!({ "model_name": "m" })).await.status.is_success());
        assert_eq!(model.worker().await.spec["cpu_features"], told);
        boss.finish().await;
    }
}

#[tokio::test]
async fn fa_4_answers_are_the_same_with_every_set_of_this_machine() {
    let mut answers = Vec::new();
    for set in InstructionSet::available() {
        let mut worker = LoneWorker::spawn("model-boss-worker");
        worker.open_gate_with(&guide(), |spec| spec.cpu_features = Some(set));
        worker.ready().await;
        assert_eq!(worker.get("/stats").await.json()["cpu_features"], set.name());
        let messages = json!([{ "role": "user", "content": "What is a lease?" }]);
        let body = json!({ "model": "guide", "messages": messages, "max_tokens": 24, "temperature": 0 });
        answers.push((set, worker.ask(&body).await.unwrap().text()));
    }
    for (set, answer) in &answers {
        assert!(!answer.is_empty());
        assert_eq!(*answer, answers[0].1, "{set} beside {}", answers[0].0);
    }
}
