//! RC-12: comments keep a stream alive while its model loads, and headers are sent late, so that early failures keep
//! their real status.

use http::StatusCode;
use model_boss_tests::{Behaviour, Event, Sandbox, text_of_events};

const QUICK: &str = "sse.first_comment = \"50ms\"\nsse.interval = \"50ms\"";
const LATE: &str = "sse.first_comment = \"1h\"";

fn loading() -> Behaviour {
    Behaviour { hold_load: true, reply: Some("yes".to_owned()), ..Behaviour::default() }
}

#[tokio::test]
async fn rc_12_comments_say_what_the_request_waits_for() {
    let sandbox = Sandbox::new().with_config(QUICK);
    let mut model = sandbox.fake_model("alpha", loading());
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    // On a busy machine the first comment may say that the worker is only starting.
    let mut loading = 0;
    while loading < 3 {
        let Some(Event::Comment(comment)) = stream.next().await else { panic!("a comment comes first") };
        assert!(comment.contains("alpha"), "{comment}");
        loading += usize::from(comment.contains("loading"));
    }
    model.worker().await.finish_load();
    let events = stream.rest().await;
    assert_eq!(text_of_events(&events), "yes");
    assert_eq!(events.last(), Some(&Event::Done));
    boss.finish().await;
}

#[tokio::test]
async fn rc_12_a_queued_stream_says_what_it_waits_for_too() {
    let sandbox = Sandbox::new().with_config(QUICK);
    let behaviour = Behaviour { hold_after_tokens: Some(0), reply: Some("yes".to_owned()), ..Behaviour::default() };
    let mut model = sandbox.fake_model_with("alpha", "vram = \"64MiB\"\nmax_concurrent = 1", behaviour);
    let boss = sandbox.start().await;
    let mut first = boss.chat_streamed("alpha", "?").await;
    let mut worker = model.worker().await;
    worker.held().await;
    let mut second = boss.chat_streamed("alpha", "?").await;
    let Some(Event::Comment(comment)) = second.next().await else { panic!("a comment comes first") };
    assert!(!comment.is_empty());
    worker.decode();
    assert_eq!(text_of_events(&first.rest().await), "yes");
    assert_eq!(text_of_events(&second.rest().await), "yes");
    boss.finish().await;
}

#[tokio::test]
async fn a_quick_load_shows_no_comment() {
    let sandbox = Sandbox::new().with_config(LATE);
    let _model = sandbox.fake_model("alpha", Behaviour { load_ms: 100, ..Behaviour::default() });
    let boss = sandbox.start().await;
    let events = boss.chat_streamed("alpha", "?").await.rest().await;
    assert!(!events.iter().any(|event| matches!(event, Event::Comment(_))), "{events:?}");
    boss.finish().await;
}

#[tokio::test]
async fn rc_12_an_early_failure_keeps_its_status() {
    let sandbox = Sandbox::new().with_config(LATE);
    let behaviour =
        Behaviour { load_exit: Some(65), load_message: "the file is cut".to_owned(), ..Behaviour::default() };
    let _model = sandbox.fake_model("alpha", behaviour);
    let boss = sandbox.start().await;
    let answer = boss.chat_streamed("alpha", "?").await.into_answer().await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
    assert_eq!(answer.error_code(), "model_load_failed");
    boss.finish().await;
}

#[tokio::test]
async fn rc_12_a_failure_behind_a_comment_is_an_event() {
    let sandbox = Sandbox::new().with_config(QUICK);
    let behaviour = Behaviour { load_exit: Some(65), load_message: "the file is cut".to_owned(), ..loading() };
    let mut model = sandbox.fake_model("alpha", behaviour);
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    assert!(matches!(stream.next().await, Some(Event::Comment(_))));
    assert_eq!(stream.status, StatusCode::OK);
    model.worker().await.finish_load();
    let rest = stream.rest().await;
    let Some(Event::Data(error)) = rest.iter().find(|event| matches!(event, Event::Data(_))) else {
        panic!("{rest:?}")
    };
    assert_eq!(error["error"]["code"], "model_load_failed");
    boss.finish().await;
}

#[tokio::test]
async fn a_retry_behind_a_comment_goes_on_in_the_same_stream() {
    let sandbox = Sandbox::new().with_config(QUICK);
    let mut model = sandbox.fake_model("alpha", Behaviour { reply: Some("yes".to_owned()), ..Behaviour::default() });
    model.behave_next(loading());
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    assert!(matches!(stream.next().await, Some(Event::Comment(_))));
    model.worker().await.kill();
    assert_eq!(text_of_events(&stream.rest().await), "yes");
    boss.finish().await;
}
