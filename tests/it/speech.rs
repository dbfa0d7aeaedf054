//! RC-28: speech through the coordinator, by fake workers: queue, formats, streams, disconnects, deaths.

use http::StatusCode;
use model_boss_tests::{Behaviour, Event, Sandbox};
use serde_json::{Value, json};

use crate::views;

const SPEECH: &str = "/v1/audio/speech";

fn asked(model: &str) -> Value {
    json!({ "model": model, "input": "one two three", "voice": "any" })
}

const TTS: &str = "vram = \"64MiB\"\ncategory = \"tts\"";

#[tokio::test]
async fn rc_28_sound_comes_in_the_format_that_was_asked_for() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model_with("voice", TTS, Behaviour::default());
    let boss = sandbox.start().await;
    let answer = boss.client().post(SPEECH, &asked("voice")).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.headers["content-type"], "audio/wav");
    assert_eq!(answer.headers["x-served-model"], "voice");
    assert!(answer.headers.contains_key("x-request-id") && answer.headers.contains_key("x-queue-ms"));
    assert!(answer.body.starts_with(b"RIFF"));
    // A head, and a quarter of a second for each word.
    assert_eq!(answer.body.len(), 44 + 3 * 6_000 * 2);
    let mut raw = asked("voice");
    raw["response_format"] = "pcm".into();
    // The only model that speaks needs no name.
    raw.as_object_mut().unwrap().remove("model");
    let answer = boss.client().post("/api/v1/audio/speech", &raw).await;
    assert_eq!((answer.status, answer.body.len()), (StatusCode::OK, 3 * 6_000 * 2));
    assert_eq!(answer.headers["content-type"], "audio/pcm;rate=24000");
    raw["response_format"] = "flac".into();
    let refused = boss.client().post(SPEECH, &raw).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("response_format"))
    );
    let mut worker = model.worker().await;
    let received = worker.request().await;
    assert_eq!((received.path.as_str(), &received.body), (SPEECH, &asked("voice")));
    boss.finish().await;
}

#[tokio::test]
async fn rc_28_events_have_pieces_of_sound_and_their_tokens_are_counted() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model_with("voice", TTS, Behaviour::default());
    let boss = sandbox.start().await;
    let mut body = asked("voice");
    body["stream_format"] = "sse".into();
    let mut stream = boss.client().stream(SPEECH, &body).await;
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    let events: Vec<Value> = stream
        .rest()
        .await
        .into_iter()
        .map(|event| if let Event::Data(data) = event { data } else { panic!("{event:?}") })
        .collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["speech.audio.delta"; 4].into_iter().chain(["speech.audio.done"]).collect::<Vec<_>>());
    assert_eq!(events[4]["usage"], json!({ "input_tokens": 3, "output_tokens": 3, "total_tokens": 6 }));
    let metrics = boss.client().get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(
        metrics.lines().any(|line| line.contains("voice") && line.contains("tokens") && line.ends_with(" 3")),
        "{metrics}"
    );
    body["stream_format"] = "mp3".into();
    let refused = boss.client().post(SPEECH, &body).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("stream_format")));
    boss.finish().await;
}

#[tokio::test]
async fn rc_28_sound_is_passed_on_while_it_is_made_and_ends_with_its_client() {
    let sandbox = Sandbox::new();
    let mut model =
        sandbox.fake_model_with("voice", TTS, Behaviour { hold_after_tokens: Some(2), ..Behaviour::default() });
    let boss = sandbox.start().await;
    let mut stream = boss.client().stream(SPEECH, &asked("voice")).await;
    assert_eq!(stream.status, StatusCode::OK);
    let mut bytes = 0;
    while bytes < 44 + 2 * 12_000 {
        bytes += stream.piece().await.unwrap().len();
    }
    let mut worker = model.worker().await;
    worker.held().await;
    drop(stream);
    assert_eq!(worker.cancelled().await, 1);
    worker.decode();
    let whole = boss.client().post(SPEECH, &asked("voice")).await;
    assert_eq!(whole.body.len(), 44 + 3 * 12_000);
    boss.finish().await;
    assert_eq!(model.spawns(), 1);
}

#[tokio::test]
async fn rc_28_a_worker_that_dies_before_the_first_sound_costs_only_time_and_later_cuts_it() {
    let sandbox = Sandbox::new();
    let model = sandbox.fake_model_with("voice", TTS, Behaviour::default());
    model.behave_next(Behaviour { crash_at_request: Some(1), ..Behaviour::default() });
    model.behave_next(Behaviour { crash_after_tokens: Some(2), tokens_per_s: 5.0, ..Behaviour::default() });
    let boss = sandbox.start().await;
    let stream = boss.client().stream(SPEECH, &asked("voice")).await;
    assert_eq!(stream.status, StatusCode::OK, "the request went to another worker");
    let cut = stream.until_broken().await;
    assert!(cut.len() >= 44 && cut.len() < 44 + 3 * 12_000, "{} bytes and no end", cut.len());
    let whole = boss.client().post(SPEECH, &asked("voice")).await;
    assert_eq!(whole.body.len(), 44 + 3 * 12_000);
    boss.finish().await;
}

#[tokio::test]
async fn rc_28_requests_wait_in_the_queue_have_deadlines_and_the_right_category() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model_with(
        "voice",
        "vram = \"64MiB\"\ncategory = \"tts\"\nmax_concurrent = 1",
        Behaviour { hold_after_tokens: Some(1), ..Behaviour::default() },
    );
    let _chat = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let mut first = boss.client().stream(SPEECH, &asked("voice")).await;
    first.piece().await.unwrap();
    let mut worker = model.worker().await;
    worker.held().await;
    let client = boss.client();
    let second = tokio::spawn(async move { client.post(SPEECH, &asked("voice")).await });
    views::waiting(&boss, 1).await;
    let mut late = asked("voice");
    late["x_budget_s"] = json!(0.05);
    let late = boss.client().post(SPEECH, &late).await;
    assert_eq!(
        (late.status, late.json()["error"]["code"].as_str()),
        (StatusCode::GATEWAY_TIMEOUT, Some("deadline_exceeded"))
    );
    worker.decode();
    assert_eq!(second.await.unwrap().status, StatusCode::OK);
    drop(first);
    let wrong = boss.client().post(SPEECH, &asked("alpha")).await;
    assert_eq!(
        (wrong.status, wrong.json()["error"]["code"].as_str()),
        (StatusCode::BAD_REQUEST, Some("unsupported_by_model"))
    );
    let chat = boss.chat("voice", "?").await;
    assert_eq!(chat.json()["error"]["code"], "unsupported_by_model");
    let unknown = boss.client().post(SPEECH, &asked("nobody")).await;
    assert_eq!(unknown.json()["error"]["code"], "model_not_found");
    boss.finish().await;
}

#[tokio::test]
async fn rc_28_voices_are_listed_for_those_who_may_use_them_and_a_task_may_speak() {
    let sandbox = Sandbox::new();
    let tasks = "tasks:\n  announce: {ladder: [voice, other]}\nclients:\n  narrow: {allowed_models: [other]}\n";
    std::fs::write(sandbox.path("tasks.yaml"), tasks).unwrap();
    let more = format!("{TTS}\nparams = {{ speed = 1.5 }}\nvoices = {{ alloy = \"1\" }}");
    let mut model = sandbox.fake_model_with("voice", &more, Behaviour::default());
    let config = json!({ "model_type": "vits", "num_speakers": 2, "speaker_embedding_size": 4 });
    std::fs::write(sandbox.path("models/voice/config.json"), config.to_string()).unwrap();
    let _other = sandbox.fake_model_with("other", TTS, Behaviour::default());
    let _chat = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let voices = async |query: &str, client: &str| -> Vec<String> {
        let path = format!("/v1/audio/voices{query}");
        let mut request = boss.client().request(http::Method::GET, &path, "");
        request.headers_mut().insert("x-client-id", client.parse().unwrap());
        let list = boss.client().send(request).await.json();
        let name = |voice: &Value| format!("{}/{}", voice["model"].as_str().unwrap(), voice["id"].as_str().unwrap());
        list["voices"].as_array().unwrap().iter().map(name).collect()
    };
    assert_eq!(voices("", "wide").await, ["voice/0", "voice/1", "voice/alloy"]);
    assert_eq!(voices("?model=voice", "wide").await.len(), 3);
    assert!(voices("", "narrow").await.is_empty());
    let none = boss.client().get("/v1/audio/voices?model=nobody").await;
    assert_eq!(none.error_code(), "model_not_found");
    let shown = boss.read("/v1/models/voice").await;
    assert_eq!((&shown["category"], &shown["voices"][2]["id"]), (&json!("tts"), &json!("alloy")));
    let answer = boss.client().post(SPEECH, &asked("task:announce")).await;
    assert_eq!((answer.status, answer.header("x-served-model")), (StatusCode::OK, Some("voice")));
    let spec = model.worker().await.spec.clone();
    assert_eq!((&spec["voices"]["alloy"], &spec["params"]["speed"]), (&json!("1"), &json!(1.5)));
    boss.finish().await;
}
