//! RC-11: a client that disconnects ends its generation, at every stage of the request.

use model_boss_tests::{Behaviour, Sandbox, question};

use crate::views;

const CHAT: &str = "/v1/chat/completions";

fn holding() -> Behaviour {
    Behaviour { reply: Some("one two three".to_owned()), hold_after_tokens: Some(1), ..Behaviour::default() }
}

#[tokio::test]
async fn rc_11_gone_while_streaming() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", holding());
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    stream.token().await;
    drop(stream);
    let mut worker = model.worker().await;
    assert_eq!(worker.cancelled().await, 1);
    worker.decode();
    assert_eq!(boss.chat("alpha", "?").await.text(), "one two three");
    boss.finish().await;
    assert_eq!(model.spawns(), 1);
}

#[tokio::test]
async fn rc_11_gone_while_a_whole_answer_is_made() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", holding());
    let boss = sandbox.start().await;
    let answer = boss.ask(question("alpha", "?"));
    let mut worker = model.worker().await;
    worker.held().await;
    answer.abort();
    assert_eq!(worker.cancelled().await, 1);
    worker.decode();
    assert_eq!(boss.chat("alpha", "?").await.text(), "one two three");
    boss.finish().await;
    assert_eq!(model.spawns(), 1);
}

#[tokio::test]
async fn rc_11_gone_while_queued() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model_with("alpha", "vram = \"64MiB\"\nmax_concurrent = 1", holding());
    let boss = sandbox.start().await;
    let running = boss.ask(question("alpha", "?"));
    let mut worker = model.worker().await;
    worker.held().await;
    let whole = boss.ask(question("alpha", "?"));
    views::waiting(&boss, 1).await;
    let client = boss.client();
    let streamed = tokio::spawn(async move {
        let mut body = question("alpha", "?");
        body["stream"] = true.into();
        client.stream(CHAT, &body).await.rest().await
    });
    views::waiting(&boss, 2).await;
    whole.abort();
    streamed.abort();
    views::waiting(&boss, 0).await;
    worker.decode();
    assert_eq!(running.await.unwrap().text(), "one two three");
    assert_eq!(boss.chat("alpha", "?").await.text(), "one two three");
    boss.finish().await;
    let unread = worker.gone().await;
    let requests = unread.iter().filter(|report| format!("{report:?}").starts_with("Request")).count();
    assert_eq!(requests, 2, "only two requests reached the worker: {unread:?}");
}

#[tokio::test]
async fn rc_11_gone_while_loading_the_others_get_their_model() {
    let sandbox = Sandbox::new();
    let mut model = sandbox
        .fake_model("alpha", Behaviour { hold_load: true, reply: Some("yes".to_owned()), ..Behaviour::default() });
    let boss = sandbox.start().await;
    let first = boss.ask(question("alpha", "?"));
    let worker = model.worker().await;
    let second = boss.ask(question("alpha", "?"));
    views::waiting(&boss, 2).await;
    first.abort();
    views::waiting(&boss, 1).await;
    worker.finish_load();
    assert_eq!(second.await.unwrap().text(), "yes");
    boss.finish().await;
    assert_eq!(model.spawns(), 1);
}

#[tokio::test]
async fn rc_11_a_load_that_nobody_waits_for_harms_nobody() {
    let sandbox = Sandbox::new();
    let mut model = sandbox
        .fake_model("alpha", Behaviour { hold_load: true, reply: Some("yes".to_owned()), ..Behaviour::default() });
    let boss = sandbox.start().await;
    let only = boss.ask(question("alpha", "?"));
    let worker = model.worker().await;
    only.abort();
    views::waiting(&boss, 0).await;
    let later = boss.ask(question("alpha", "?"));
    views::waiting(&boss, 1).await;
    worker.finish_load();
    assert_eq!(later.await.unwrap().text(), "yes");
    boss.finish().await;
}
