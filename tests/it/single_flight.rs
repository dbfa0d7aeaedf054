//! RC-7: any number of requests for a cold model cause one load.

use model_boss_tests::{Behaviour, Sandbox, question};

use crate::views;

#[tokio::test]
async fn rc_7_twenty_cold_requests_cause_one_load() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", Behaviour { hold_load: true, ..Behaviour::default() });
    let boss = sandbox.start().await;
    let answers: Vec<_> = (0..20).map(|_| boss.ask(question("alpha", "?"))).collect();
    let worker = model.worker().await;
    views::waiting(&boss, 20).await;
    worker.finish_load();
    for answer in answers {
        assert!(answer.await.unwrap().status.is_success());
    }
    boss.finish().await;
    assert_eq!(model.spawns(), 1);
}

#[tokio::test]
async fn models_load_beside_one_another() {
    let sandbox = Sandbox::new();
    let mut slow = sandbox.fake_model("slow", Behaviour { hold_load: true, ..Behaviour::default() });
    let _quick = sandbox.fake_model("quick", Behaviour::default());
    let boss = sandbox.start().await;
    let answer = boss.ask(question("slow", "?"));
    let worker = slow.worker().await;
    worker.finish_load();
    assert!(boss.chat("quick", "?").await.status.is_success());
    assert!(answer.await.unwrap().status.is_success());
    boss.finish().await;
}
