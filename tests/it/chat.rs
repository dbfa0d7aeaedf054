//! RC-1: a question and its answer, streamed and whole, through both processes.

use http::{Method, StatusCode, header};
use model_boss_tests::{Behaviour, Event, FakeError, Malformed, Sandbox, question, text_of_events};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn says(reply: &str) -> Behaviour {
    Behaviour { reply: Some(reply.to_owned()), ..Behaviour::default() }
}

/// The reasons in a stream's chunks, in their order.
fn finish_reasons(events: &[Event]) -> Vec<&str> {
    let chunks = events.iter().filter_map(|event| if let Event::Data(chunk) = event { Some(chunk) } else { None });
    chunks.filter_map(|chunk| chunk["choices"][0]["finish_reason"].as_str()).collect()
}

#[tokio::test]
async fn rc_1_a_whole_answer() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", says("good day to you"));
    let boss = sandbox.start().await;
    let answer = boss.chat("alpha", "hello there").await;
    assert_eq!(answer.text(), "good day to you");
    let json = answer.json();
    assert_eq!(json["object"], "chat.completion");
    assert_eq!(json["model"], "alpha");
    assert_eq!(json["choices"][0]["finish_reason"], "stop");
    assert_eq!(json["usage"]["prompt_tokens"], 2);
    assert_eq!(json["usage"]["completion_tokens"], 4);
    assert_eq!(json["usage"]["total_tokens"], 6);
    assert_eq!(answer.header("x-served-model"), Some("alpha"));
    assert!(answer.header("x-request-id").is_some_and(|id| !id.is_empty()));
    for name in ["x-queue-ms", "x-load-ms"] {
        let value = answer.header(name).unwrap_or_else(|| panic!("{name} in {:?}", answer.headers));
        assert!(value.parse::<f64>().is_ok(), "{name}: {value}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn rc_1_a_streamed_answer() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", says("good day to you"));
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("alpha", "hello").await;
    assert_eq!(stream.status, StatusCode::OK);
    assert!(stream.headers[header::CONTENT_TYPE].to_str().unwrap().starts_with("text/event-stream"));
    assert_eq!(stream.headers[header::CACHE_CONTROL], "no-cache");
    assert_eq!(stream.headers["x-accel-buffering"], "no");
    let events = stream.rest().await;
    let Event::Data(first) = &events[0] else { panic!("{events:?}") };
    assert_eq!(first["object"], "chat.completion.chunk");
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(text_of_events(&events), "good day to you");
    assert_eq!(finish_reasons(&events), ["stop"]);
    assert_eq!(events.last(), Some(&Event::Done));
    boss.finish().await;
}

#[tokio::test]
async fn the_usage_chunk_comes_when_asked_for() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", says("good day"));
    let boss = sandbox.start().await;
    let mut body = question("alpha", "hello");
    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    let events = boss.client().stream(CHAT, &body).await.rest().await;
    let Event::Data(usage) = &events[events.len() - 2] else { panic!("{events:?}") };
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 2);

    let events = boss.chat_streamed("alpha", "hello").await.rest().await;
    let empty = |event: &Event| matches!(event, Event::Data(chunk) if chunk["choices"] == json!([]));
    assert!(!events.iter().any(empty), "{events:?}");
    boss.finish().await;
}

#[tokio::test]
async fn plain_completions_streamed_and_not() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", says("and so on"));
    let boss = sandbox.start().await;
    let mut body = json!({ "model": "alpha", "prompt": "Once upon a time", "max_tokens": 2 });
    let answer = boss.client().post("/v1/completions", &body).await;
    assert_eq!(answer.text(), "and so ");
    assert_eq!(answer.json()["object"], "text_completion");
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
    body["stream"] = true.into();
    let events = boss.client().stream("/v1/completions", &body).await.rest().await;
    assert_eq!(text_of_events(&events), "and so ");
    assert_eq!(finish_reasons(&events), ["length"]);
    boss.finish().await;
}

#[tokio::test]
async fn every_inference_route_is_also_under_api_v1() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", says("yes"));
    let boss = sandbox.start().await;
    assert_eq!(boss.client().post("/api/v1/chat/completions", &question("alpha", "?")).await.text(), "yes");
    assert_eq!(boss.read("/api/v1/models").await, boss.read("/v1/models").await);
    boss.finish().await;
}

#[tokio::test]
async fn a_request_id_is_echoed_and_passed_on() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", says("yes"));
    let boss = sandbox.start().await;
    let client = boss.client();
    let mut request = client.request(Method::POST, CHAT, question("alpha", "?").to_string());
    request.headers_mut().insert("x-request-id", "order-66".parse().unwrap());
    assert_eq!(client.send(request).await.header("x-request-id"), Some("order-66"));
    assert_eq!(model.worker().await.request().await.headers["x-request-id"], "order-66");
    boss.finish().await;
}

#[tokio::test]
async fn aliases_and_names_with_slashes() {
    let sandbox = Sandbox::new();
    let folder = sandbox.path("models/x");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("fake.json"), r#"{"reply": "yes"}"#).unwrap();
    let manifest = format!(
        "name = \"team/model:7b\"\naliases = [\"default\", \"seven\"]\nvram = \"64MiB\"\nsource = {{ path = \"{}\" }}\n",
        folder.display()
    );
    std::fs::write(sandbox.path("manifests/x.toml"), manifest).unwrap();
    let boss = sandbox.start().await;
    for name in ["team/model:7b", "seven", "default"] {
        let answer = boss.chat(name, "?").await;
        assert_eq!(answer.text(), "yes");
        assert_eq!(answer.header("x-served-model"), Some("team/model:7b"));
    }
    // RC-2: a request without a model means the alias `default`.
    let answer = boss.client().post(CHAT, &json!({ "messages": [{ "role": "user", "content": "?" }] })).await;
    assert_eq!(answer.text(), "yes");
    for path in ["/v1/models/team/model:7b", "/v1/models/team%2Fmodel%3A7b"] {
        assert_eq!(boss.read(path).await["id"], "team/model:7b", "{path}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn a_workers_error_comes_through_as_it_is() {
    let sandbox = Sandbox::new();
    let refusal = FakeError {
        status: 400,
        code: "context_length_exceeded".to_owned(),
        message: "9 tokens are too many".to_owned(),
    };
    let _model = sandbox.fake_model("alpha", Behaviour { refuse: Some(refusal), ..Behaviour::default() });
    let boss = sandbox.start().await;
    let whole = boss.chat("alpha", "hello").await;
    let streamed = boss.chat_streamed("alpha", "hello").await.into_answer().await;
    for answer in [whole, streamed] {
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert_eq!(answer.error_code(), "context_length_exceeded");
        assert_eq!(answer.error_message(), "9 tokens are too many");
        assert_eq!(answer.json()["source"], "worker");
    }
    boss.finish().await;
}

#[tokio::test]
async fn a_worker_that_answers_nonsense_is_a_backend_error() {
    let sandbox = Sandbox::new();
    let malformed = Some(Malformed::NotHttp);
    let _bad = sandbox.fake_model("bad", Behaviour { malformed, ..Behaviour::default() });
    let _good = sandbox.fake_model("good", says("still here"));
    let boss = sandbox.start().await;
    let answer = boss.chat("bad", "hello").await;
    assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (502, "backend_error"), "{answer:?}");
    assert_eq!(boss.chat("good", "hello").await.text(), "still here");
    boss.finish().await;
}

#[tokio::test]
async fn a_living_worker_that_breaks_its_answers_off_is_asked_again_but_not_for_ever() {
    for malformed in [Malformed::CutBody, Malformed::Hangup] {
        let sandbox = Sandbox::new();
        let bad = sandbox.fake_model("bad", Behaviour { malformed: Some(malformed), ..Behaviour::default() });
        let _good = sandbox.fake_model("good", says("still here"));
        let boss = sandbox.start().await;
        let answer = boss.chat("bad", "hello").await;
        assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (502, "backend_error"), "{answer:?}");
        assert_eq!(bad.spawns(), 1, "{malformed:?}: the worker lives");
        assert_eq!(boss.chat("good", "hello").await.text(), "still here");
        boss.finish().await;
    }
}

#[tokio::test]
async fn a_model_works_on_as_many_requests_as_its_manifest_says() {
    let sandbox = Sandbox::new();
    let behaviour = Behaviour { hold_after_tokens: Some(1), ..says("one two") };
    let mut model = sandbox.fake_model_with("alpha", "vram = \"64MiB\"\nmax_concurrent = 2", behaviour);
    let boss = sandbox.start().await;
    let answers: Vec<_> = (0..5).map(|_| boss.ask(question("alpha", "?"))).collect();
    let mut worker = model.worker().await;
    worker.held().await;
    worker.held().await;
    crate::views::waiting(&boss, 3).await;
    let stats: Value = boss.read("/v1/models/alpha").await;
    assert_eq!(stats["status"]["value"], "loaded", "{stats}");
    worker.decode();
    for answer in answers {
        assert_eq!(answer.await.unwrap().text(), "one two");
    }
    let numbers: Vec<_> = {
        let mut numbers = Vec::new();
        for _ in 0..5 {
            numbers.push(worker.request().await.number);
        }
        numbers
    };
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    boss.finish().await;
    assert_eq!(model.spawns(), 1);
}
