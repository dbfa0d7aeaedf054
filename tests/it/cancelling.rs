//! OP-2: an operator cancels requests, whatever they wait for.

use http::Method;
use model_boss_tests::{Answer, Behaviour, Boss, Event, Sandbox, question};
use serde_json::Value;

use crate::views;

fn holding() -> Behaviour {
    Behaviour { reply: Some("one two three".to_owned()), hold_after_tokens: Some(1), ..Behaviour::default() }
}

async fn cancel(boss: &Boss, id: &Value) -> Answer {
    boss.client().send(boss.client().request(Method::DELETE, &format!("/api/v1/queue/{id}"), "")).await
}

/// The numbers of the running requests.
async fn running(boss: &Boss) -> Vec<Value> {
    let view = boss.read("/api/v1/queue").await;
    view["running"].as_array().unwrap().iter().map(|run| run["id"].clone()).collect()
}

#[tokio::test]
async fn op_2_a_running_stream_is_cancelled_with_an_event_and_its_worker_stops() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", holding());
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    stream.token().await;
    let ids = running(&boss).await;
    assert_eq!(ids.len(), 1);
    assert_eq!(cancel(&boss, &ids[0]).await.status, 200);
    let rest = stream.rest().await;
    let [Event::Data(error)] = &rest[..] else { panic!("one event with the error: {rest:?}") };
    assert_eq!(error["error"]["code"], "request_cancelled", "{error}");
    let mut worker = model.worker().await;
    assert_eq!(worker.cancelled().await, 1);
    worker.decode();
    // The place is free, and the worker serves on.
    assert_eq!(boss.chat("alpha", "?").await.text(), "one two three");
    assert_eq!(cancel(&boss, &ids[0]).await.error_code(), "request_not_found");
    boss.finish().await;
    assert_eq!(model.spawns(), 1);
}

#[tokio::test]
async fn op_2_a_whole_answer_in_the_making_and_one_that_waits_are_cancelled() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model_with("alpha", "vram = \"64MiB\"\nmax_concurrent = 1", holding());
    let boss = sandbox.start().await;
    let first = boss.ask(question("alpha", "?"));
    let mut worker = model.worker().await;
    worker.held().await;
    let second = boss.ask(question("alpha", "?"));
    let waiting = views::waiting(&boss, 1).await;
    assert_eq!(cancel(&boss, &waiting[0]["id"]).await.status, 200);
    let answer = second.await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (410, "request_cancelled"), "{answer:?}");
    assert_eq!(cancel(&boss, &running(&boss).await[0]).await.status, 200);
    let answer = first.await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (410, "request_cancelled"), "{answer:?}");
    assert!(answer.error_message().contains("an operator cancelled"), "{answer:?}");
    assert_eq!(worker.cancelled().await, 1);
    boss.finish().await;
}
