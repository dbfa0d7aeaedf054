//! The threads that compute on the CPU: chosen by a manifest, and passed on to the worker (FA-5).

use model_boss_tests::{Behaviour, Sandbox};
use serde_json::json;

#[tokio::test]
async fn fa_5_a_manifest_chooses_the_number_of_threads() {
    let sandbox = Sandbox::new();
    let mut chosen = sandbox.fake_model_with("chosen", "vram = \"64MiB\"\nthreads = 3", Behaviour::default());
    let mut plain = sandbox.fake_model("plain", Behaviour::default());
    let boss = sandbox.start().await;
    for (model, name, threads) in [(&mut chosen, "chosen", json!(3)), (&mut plain, "plain", json!(null))] {
        let answer = boss.client().post("/api/v1/load", &json!({ "model_name": name })).await;
        assert!(answer.status.is_success(), "{answer:?}");
        assert_eq!(model.worker().await.spec["threads"], threads);
    }
    boss.finish().await;
}
