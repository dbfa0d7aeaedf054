//! Loads that fail: the client learns the reason, the coordinator still answers, and loads are not retried without
//! limit.

use std::time::Duration;

use http::StatusCode;
use model_boss_protocol::WorkerExit;
use model_boss_tests::{Answer, Behaviour, Sandbox, binary, until};

fn fails(exit: i32, message: &str) -> Behaviour {
    Behaviour { load_exit: Some(exit), load_message: message.to_owned(), ..Behaviour::default() }
}

fn is_load_failure(answer: &Answer) {
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY, "{answer:?}");
    assert_eq!(answer.error_code(), "model_load_failed", "{answer:?}");
}

#[tokio::test]
async fn a_bad_file_is_reported_in_the_workers_words_and_not_tried_twice() {
    let sandbox = Sandbox::new();
    let message = "model.safetensors: tensor 'x' ends behind the end of the file";
    let model = sandbox.fake_model("alpha", fails(WorkerExit::BadModel.code(), message));
    let boss = sandbox.start().await;
    let answer = boss.chat("alpha", "?").await;
    is_load_failure(&answer);
    assert!(answer.error_message().contains(message), "{answer:?}");
    assert_eq!(model.spawns(), 1, "the same file gives the same failure");
    crate::views::model_state(&boss, "alpha", "failed").await;
    boss.finish().await;
}

#[tokio::test]
async fn a_crash_loop_backs_off_and_says_why() {
    let sandbox = Sandbox::new();
    let model = sandbox.fake_model("alpha", fails(1, "segmentation fault, as told"));
    let boss = sandbox.start().await;
    // However often the model is requested, the number of processes stays small and every answer has the reason.
    for _ in 0..20 {
        let answer = boss.chat("alpha", "?").await;
        match (answer.status.as_u16(), answer.error_code().as_str()) {
            (502, "model_load_failed") => {}
            (503, "model_backing_off") => assert!(answer.header("retry-after").is_some(), "{answer:?}"),
            _ => panic!("{answer:?}"),
        }
        assert!(answer.error_message().contains("segmentation fault, as told"), "{answer:?}");
    }
    assert!(model.spawns() <= 8, "{} spawns for 20 requests", model.spawns());
    boss.finish().await;
}

#[tokio::test]
async fn a_load_without_end_is_given_up() {
    let sandbox = Sandbox::new().with_config("load_timeout = \"300ms\"");
    let mut model =
        sandbox.fake_model("alpha", Behaviour { hold_load: true, ignore_sigterm: true, ..Behaviour::default() });
    let boss = sandbox.start().await;
    let answer = boss.chat("alpha", "?").await;
    is_load_failure(&answer);
    assert!(answer.error_message().contains("0.3 s") || answer.error_message().contains("300"), "{answer:?}");
    model.worker().await.gone().await;
    boss.finish().await;
}

#[tokio::test]
async fn an_answer_without_this_spawns_proof_is_not_readiness() {
    let sandbox = Sandbox::new().with_config("load_timeout = \"500ms\"");
    let mut model = sandbox.fake_model("alpha", Behaviour { wrong_proof: true, ..Behaviour::default() });
    let boss = sandbox.start().await;
    let answer = boss.chat("alpha", "?").await;
    is_load_failure(&answer);
    let unread = model.worker().await.gone().await;
    assert!(!unread.iter().any(|report| format!("{report:?}").starts_with("Request")), "{unread:?}");
    boss.finish().await;
}

#[tokio::test]
async fn a_slow_health_answer_is_waited_for() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour { health_ms: 300, ..Behaviour::default() });
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    boss.finish().await;
}

#[tokio::test]
async fn a_model_that_takes_no_orders_is_killed_after_its_grace() {
    let sandbox = Sandbox::new().with_config("stop_grace = \"200ms\"");
    let mut model = sandbox.fake_model("alpha", Behaviour { ignore_sigterm: true, ..Behaviour::default() });
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let answer = boss.client().post("/api/v1/unload", &serde_json::json!({ "model_name": "alpha" })).await;
    assert!(answer.status.is_success(), "{answer:?}");
    let mut worker = model.worker().await;
    worker.terminating().await;
    worker.gone().await;
    boss.finish().await;
}

#[tokio::test]
async fn a_worker_program_that_is_not_there_is_named_at_the_start() {
    let sandbox = Sandbox::new();
    let (status, output) = sandbox.launch(&sandbox.path("no-such-worker")).end().await;
    assert!(!status.success(), "{output}");
    assert!(output.contains("no-such-worker"), "{output}");
}

#[tokio::test]
async fn a_worker_program_that_went_away_is_named() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let program = sandbox.path("worker");
    std::fs::copy(binary("model-boss-fake-worker"), &program).unwrap();
    let boss = sandbox.launch(&program).start().await;
    std::fs::remove_file(&program).unwrap();
    let answer = boss.chat("alpha", "?").await;
    is_load_failure(&answer);
    assert!(answer.error_message().contains(program.to_str().unwrap()), "{answer:?}");
    boss.finish().await;
}

#[tokio::test]
async fn a_worker_out_of_memory_says_so() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", fails(WorkerExit::OutOfMemory.code(), "no room for 18 GiB of weights"));
    let boss = sandbox.start().await;
    let answer = boss.chat("alpha", "?").await;
    is_load_failure(&answer);
    assert!(answer.error_message().contains("no room for 18 GiB of weights"), "{answer:?}");
    boss.finish().await;
}

#[tokio::test]
async fn a_model_that_failed_is_tried_again_later() {
    let sandbox = Sandbox::new();
    let model = sandbox.fake_model("alpha", Behaviour::default());
    model.behave_next(fails(1, "bad luck"));
    let boss = sandbox.start().await;
    let again = async || boss.chat("alpha", "?").await.status.is_success().then_some(());
    until(Duration::from_secs(60), "the model loads after all", again).await;
    boss.finish().await;
}
