//! RC-3, RC-4, RC-10: which requests wait, in which order, and when the queue is full.

use model_boss_tests::{Answer, Behaviour, Boss, FakeModel, FakeWorker, Sandbox, question};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::views;

const CHAT: &str = "/v1/chat/completions";

/// A model that serves one request at a time, and holds the first.
fn one_at_a_time(sandbox: &Sandbox) -> FakeModel {
    let behaviour = Behaviour { reply: Some("yes".to_owned()), hold_after_tokens: Some(0), ..Behaviour::default() };
    sandbox.fake_model_with("alpha", "vram = \"64MiB\"\nmax_concurrent = 1", behaviour)
}

fn ask(boss: &Boss, text: &str, fields: Value) -> JoinHandle<Answer> {
    let mut body = question("alpha", text);
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    boss.ask(body)
}

/// The text of the worker's next request.
async fn next_text(worker: &mut FakeWorker) -> String {
    worker.request().await.body["messages"][0]["content"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn rc_10_a_full_queue_refuses_with_a_time_to_come_back() {
    let sandbox = Sandbox::new().with_config("limits.queue_per_model = 2");
    let mut model = one_at_a_time(&sandbox);
    let boss = sandbox.start().await;
    let running = ask(&boss, "first", json!({}));
    let mut worker = model.worker().await;
    worker.held().await;
    let waiting = [ask(&boss, "second", json!({})), ask(&boss, "third", json!({}))];
    views::waiting(&boss, 2).await;
    let answer = boss.chat("alpha", "fourth").await;
    assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (429, "queue_full"), "{answer:?}");
    let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!(seconds >= 1);
    worker.decode();
    for answer in std::iter::once(running).chain(waiting) {
        assert_eq!(answer.await.unwrap().text(), "yes");
    }
    boss.finish().await;
}

#[tokio::test]
async fn rc_4_the_more_important_goes_first_and_equals_in_their_order() {
    let sandbox = Sandbox::new();
    let mut model = one_at_a_time(&sandbox);
    let boss = sandbox.start().await;
    let mut answers = vec![ask(&boss, "running", json!({}))];
    let mut worker = model.worker().await;
    worker.held().await;
    let order = [
        ("batch", json!("batch")),
        ("normal-1", json!(5)),
        ("normal-2", json!("normal")),
        ("urgent", json!("interactive")),
    ];
    for (already, (text, priority)) in order.into_iter().enumerate() {
        answers.push(ask(&boss, text, json!({ "x_priority": priority })));
        views::waiting(&boss, already + 1).await;
    }
    worker.decode();
    for expected in ["running", "urgent", "normal-1", "normal-2", "batch"] {
        assert_eq!(next_text(&mut worker).await, expected);
    }
    for answer in answers {
        assert_eq!(answer.await.unwrap().text(), "yes");
    }
    boss.finish().await;
}

#[tokio::test]
async fn rc_3_a_priority_by_header_counts_and_the_body_wins() {
    let sandbox = Sandbox::new();
    let mut model = one_at_a_time(&sandbox);
    let boss = sandbox.start().await;
    let mut answers = vec![ask(&boss, "running", json!({}))];
    let mut worker = model.worker().await;
    worker.held().await;
    let client = boss.client();
    let with_header = |text: &str, header: &'static str, body: Option<Value>| {
        let mut fields = question("alpha", text);
        if let Some(priority) = body {
            fields["x_priority"] = priority;
        }
        let mut request = client.request(http::Method::POST, CHAT, fields.to_string());
        request.headers_mut().insert("x-priority", http::HeaderValue::from_static(header));
        tokio::spawn(async move { client.send(request).await })
    };
    answers.push(with_header("body says batch", "interactive", Some(json!("batch"))));
    views::waiting(&boss, 1).await;
    answers.push(ask(&boss, "normal", json!({})));
    views::waiting(&boss, 2).await;
    answers.push(with_header("header says interactive", "interactive", None));
    views::waiting(&boss, 3).await;
    worker.decode();
    for expected in ["running", "header says interactive", "normal", "body says batch"] {
        assert_eq!(next_text(&mut worker).await, expected);
    }
    for answer in answers {
        assert_eq!(answer.await.unwrap().text(), "yes");
    }
    boss.finish().await;
}

#[tokio::test]
async fn a_waiting_request_can_say_what_it_waits_for() {
    let sandbox = Sandbox::new();
    let mut model = one_at_a_time(&sandbox);
    let boss = sandbox.start().await;
    let running = ask(&boss, "running", json!({}));
    let mut worker = model.worker().await;
    worker.held().await;
    let waits = ask(&boss, "waits", json!({ "x_client_id": "me", "x_priority": 7 }));
    let entries = views::waiting(&boss, 1).await;
    let entry = &entries[0];
    assert_eq!(entry["model"], "alpha", "{entry}");
    assert_eq!(entry["client"], "me", "{entry}");
    assert_eq!(entry["priority"], 7, "{entry}");
    assert_eq!(entry["wait"]["reason"], "busy", "{entry}");
    assert!(entry["message"].as_str().is_some_and(|text| text.contains("alpha")), "{entry}");
    worker.decode();
    assert_eq!(running.await.unwrap().text(), "yes");
    assert_eq!(waits.await.unwrap().text(), "yes");
    boss.finish().await;
}

#[tokio::test]
async fn rc_13_a_request_past_its_time_is_told_and_never_started() {
    let sandbox = Sandbox::new();
    let mut model = one_at_a_time(&sandbox);
    let boss = sandbox.start().await;
    let running = ask(&boss, "running", json!({}));
    let mut worker = model.worker().await;
    worker.held().await;
    let answer = ask(&boss, "late", json!({ "x_budget_s": 0.2 })).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (504, "deadline_exceeded"), "{answer:?}");
    worker.decode();
    assert_eq!(running.await.unwrap().text(), "yes");
    boss.finish().await;
    let unread = worker.gone().await;
    assert!(!format!("{unread:?}").contains("late"), "{unread:?}");
}

#[tokio::test]
async fn rc_13_an_answer_that_takes_too_long_is_ended_and_nobody_is_said_to_have_gone() {
    let sandbox = Sandbox::new();
    let mut model = one_at_a_time(&sandbox);
    let boss = sandbox.start().await;
    let late = json!({ "x_client_id": "patient", "x_budget_s": 1 });
    let mut streamed = question("alpha", "streamed");
    streamed.as_object_mut().unwrap().extend(late.as_object().unwrap().clone());
    streamed["stream"] = true.into();
    // The second request waits only for the worker.
    boss.client().post("/api/v1/load", &json!({ "model_name": "alpha" })).await;
    let whole = ask(&boss, "whole", late);
    model.worker().await.cancelled().await;
    let whole = whole.await.unwrap();
    assert_eq!((whole.status.as_u16(), whole.error_code().as_str()), (504, "deadline_exceeded"), "{whole:?}");
    let streamed = boss.client().stream(CHAT, &streamed).await.into_answer().await;
    assert!(format!("{streamed:?}").contains("deadline_exceeded"), "{streamed:?}");
    assert_eq!(views::outcomes(&boss, "patient", 2).await, ["deadline_exceeded", "deadline_exceeded"]);
    boss.finish().await;
}

#[tokio::test]
async fn rc_13_the_deadline_and_the_priority_are_carried_to_the_worker() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let urgent = ask(&boss, "?", json!({ "x_budget_s": 3_000, "x_priority": "interactive" }));
    let mut worker = model.worker().await;
    let headers = worker.request().await.headers;
    let left: u64 = headers["x-deadline-ms"].parse().unwrap();
    assert!((1..=3_000_000).contains(&left), "{left}");
    assert_eq!(headers["x-priority"], "2");
    urgent.await.unwrap();
    // A request without a deadline shows none, and its priority is limited by its client's rule.
    let plain = ask(&boss, "?", json!({ "x_priority": 0 }));
    let headers = worker.request().await.headers;
    assert_eq!((headers.get("x-deadline-ms"), headers["x-priority"].as_str()), (None, "2"));
    plain.await.unwrap();
    boss.finish().await;
}
