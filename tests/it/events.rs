//! `GET /api/v1/events`: every change is an event, with a number from which a reader can continue.

use http::{HeaderValue, Method};
use model_boss_tests::{Behaviour, Boss, Event, Sandbox, Streamed};
use serde_json::Value;

async fn follow(boss: &Boss, after: Option<u64>) -> Streamed {
    let client = boss.client();
    let mut request = client.request(Method::GET, "/api/v1/events", "");
    if let Some(id) = after {
        request.headers_mut().insert("last-event-id", HeaderValue::from(id));
    }
    client.follow(request).await
}

/// The number and content of the next event that `wanted` accepts. Numbers only grow.
async fn next(stream: &mut Streamed, last: &mut u64, wanted: impl Fn(&str, &Value) -> bool) -> Value {
    loop {
        match stream.next().await {
            Some(Event::Named { id, kind, data }) => {
                assert!(id >= *last, "{id} after {last}");
                *last = id;
                if wanted(&kind, &data) {
                    return data;
                }
            }
            Some(Event::Comment(_)) => {}
            other => panic!("an event was expected, not {other:?}"),
        }
    }
}

#[tokio::test]
async fn what_changes_is_told_and_a_reader_can_go_on_where_it_was() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let mut stream = follow(&boss, None).await;
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    let mut last = 0;
    let state = next(&mut stream, &mut last, |kind, _| kind == "state").await;
    assert!(state["devices"].as_array().is_some_and(|devices| devices.iter().any(|device| device["id"] == "cpu")));
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let load = next(&mut stream, &mut last, |kind, data| kind == "decision" && data["what"] == "load").await;
    assert_eq!(load["model"], "alpha");
    let before = last;
    next(&mut stream, &mut last, |kind, data| kind == "decision" && data["what"] == "ready").await;
    drop(stream);

    let mut again = follow(&boss, Some(before)).await;
    let mut last = before;
    next(&mut again, &mut last, |kind, data| kind == "decision" && data["what"] == "ready").await;
    assert!(boss.client().post("/api/v1/unload", &serde_json::json!({})).await.status.is_success());
    next(&mut again, &mut last, |kind, data| kind == "slot" && data["gone"] == true).await;
    drop(again);

    let wrong = boss.client().request(Method::GET, "/api/v1/events", "");
    let wrong = {
        let mut request = wrong;
        request.headers_mut().insert("last-event-id", HeaderValue::from_static("soon"));
        boss.client().send(request).await
    };
    assert_eq!((wrong.status.as_u16(), wrong.error_code().as_str()), (400, "invalid_request"));
    boss.finish().await;
}
