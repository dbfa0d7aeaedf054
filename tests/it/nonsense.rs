//! Backends with malformed answers, on every route and in every dialect. A client gets an error, never an empty answer,
//! and no header of the backend's own.

use http::StatusCode;
use model_boss_tests::{Answer, Behaviour, Boss, FakeModel, RawAnswer, Sandbox};
use serde_json::{Value, json};
use tokio::task::JoinSet;

fn answers(text: &str) -> Behaviour {
    let raw = RawAnswer { first: text.to_owned(), ..RawAnswer::default() };
    Behaviour { raw: Some(raw), ..Behaviour::default() }
}

fn with_head(head: &str, kind: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {head}\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}")
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const CHAT: &str =
    r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"four"},"finish_reason":"stop"}]}"#;
const CHUNK: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"four\"}}]}\n\n";

/// Whole answers that are invalid.
fn whole() -> Vec<(&'static str, String)> {
    let usage = CHAT.replacen('{', "{\"usage\":{\"prompt_tokens\":\"many\"},", 1);
    let chunked =
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    vec![
        ("a page", with_head("200 OK", "text/html", "<html>good day</html>")),
        ("a page that says it is JSON", with_head("200 OK", JSON, "<html>good day</html>")),
        ("nothing", with_head("200 OK", JSON, "")),
        ("an empty object", with_head("200 OK", JSON, "{}")),
        ("null", with_head("200 OK", JSON, "null")),
        ("no choice", with_head("200 OK", JSON, "{\"choices\":[]}")),
        ("a cut object", with_head("200 OK", JSON, &CHAT[..60])),
        ("an answer as text", with_head("200 OK", "text/plain", CHAT)),
        ("an answer with a broken usage", with_head("200 OK", JSON, &usage)),
        ("a stream", with_head("200 OK", EVENTS, CHUNK)),
        ("no content", "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n".to_owned()),
        ("a redirect", with_head("301 Moved Permanently\r\nlocation: http://127.0.0.1:9/", JSON, CHAT)),
        (
            "another protocol",
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n".to_owned(),
        ),
        ("a status of its own", with_head("999 What", JSON, CHAT)),
        ("an error that is a page", with_head("500 Internal Server Error", "text/html", "<html>oops</html>")),
        ("our key refused", with_head("401 Unauthorized", JSON, "{\"error\":\"no\"}")),
        ("broken chunks", format!("{chunked}5\r\n{{\"cho\r\nzz\r\nices\r\n")),
    ]
}

/// Streams that are invalid from their first event.
fn streamed() -> Vec<(&'static str, String)> {
    vec![
        ("a page", with_head("200 OK", "text/html", "<html>good day</html>")),
        ("an answer at once", with_head("200 OK", JSON, CHAT)),
        ("an empty stream", with_head("200 OK", EVENTS, "")),
        ("a page that says it is a stream", with_head("200 OK", EVENTS, "<html>good day</html>\n\n")),
        ("an end without a beginning", with_head("200 OK", EVENTS, "data: [DONE]\n\n")),
        ("comments", with_head("200 OK", EVENTS, ": ping\n\n: ping\n\n")),
        ("an event that is no JSON", with_head("200 OK", EVENTS, "data: {\"choices\":[\n\ndata: [DONE]\n\n")),
        ("an event that is no chunk", with_head("200 OK", EVENTS, "data: {}\n\ndata: [DONE]\n\n")),
        ("a redirect", with_head("301 Moved Permanently\r\nlocation: http://127.0.0.1:9/", EVENTS, CHUNK)),
        ("a status of its own", with_head("999 What", EVENTS, CHUNK)),
    ]
}

/// Streams that become invalid in the middle.
fn broken_off() -> Vec<(&'static str, String)> {
    vec![
        ("a page", with_head("200 OK", EVENTS, &format!("{CHUNK}<html>good day</html>\n\n"))),
        ("an event that is no JSON", with_head("200 OK", EVENTS, &format!("{CHUNK}data: {{\"cho\n\ndata: [DONE]\n\n"))),
        ("an end that says nothing", with_head("200 OK", EVENTS, CHUNK)),
        ("a broken usage", with_head("200 OK", EVENTS, &format!("{CHUNK}data: {{\"choices\":[],\"usage\":7}}\n\n"))),
    ]
}

/// Answers whose connection is closed before they are complete.
fn cut_off() -> Vec<(&'static str, String)> {
    let whole = with_head("200 OK", JSON, CHAT);
    vec![
        ("nothing at all", String::new()),
        ("half a status line", "HTTP/1.1 2".to_owned()),
        ("half a header", "HTTP/1.1 200 OK\r\ncontent-le".to_owned()),
        ("a head without an end", "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n".to_owned()),
        ("half a body", whole[..whole.len() - 20].to_owned()),
        ("half an error", with_head("500 Internal Server Error", JSON, "{\"error\":\"no\"}").replace("no\"}", "")),
        ("a greeting of another protocol", "SSH-2.0-hello\r\n".to_owned()),
    ]
}

/// Every route that a chat model answers.
fn asked(model: &str, stream: bool) -> [(&'static str, Value); 5] {
    let messages = json!([{ "role": "user", "content": "2 + 2?" }]);
    [
        ("/v1/chat/completions", json!({ "model": model, "stream": stream, "messages": messages })),
        ("/v1/completions", json!({ "model": model, "stream": stream, "prompt": "2 + 2?" })),
        ("/v1/messages", json!({ "model": model, "stream": stream, "max_tokens": 9, "messages": messages })),
        ("/api/chat", json!({ "model": model, "stream": stream, "messages": messages })),
        ("/api/generate", json!({ "model": model, "stream": stream, "prompt": "2 + 2?" })),
    ]
}

/// Makes the model's next worker give this answer.
async fn teach(boss: &Boss, model: &FakeModel, behaviour: Behaviour) {
    model.behave(behaviour);
    boss.client().post("/api/v1/unload", &json!({ "model_name": model.name() })).await;
}

fn is_backend_error(answer: &Answer, path: &str) -> bool {
    let body = answer.json();
    let shape = match path {
        "/v1/messages" => body["type"] == "error" && body["error"]["type"] == "api_error",
        "/v1/chat/completions" | "/v1/completions" => answer.error_code() == "backend_error",
        _ => body["error"].is_string(),
    };
    answer.status == StatusCode::BAD_GATEWAY && shape
}

/// An external engine and a fake worker in the role of the candle worker, each with one model.
fn models(sandbox: &mut Sandbox) -> [FakeModel; 2] {
    sandbox.llama_server();
    [
        sandbox.fake_model("own", Behaviour::default()),
        sandbox.gguf_model("engine", "backend = \"llama-server\"", Behaviour::default()),
    ]
}

#[tokio::test]
async fn nonsense_is_a_backend_error_on_every_route() {
    let mut sandbox = Sandbox::new();
    let models = models(&mut sandbox);
    let boss = sandbox.start().await;
    for (number, (what, text, stream)) in whole()
        .into_iter()
        .map(|(what, text)| (what, text, false))
        .chain(streamed().into_iter().map(|(what, text)| (what, text, true)))
        .enumerate()
    {
        // Both backends use the same code, so each answers every second request.
        let model = &models[number % 2];
        teach(&boss, model, answers(&text)).await;
        for (path, body) in asked(model.name(), stream) {
            let answer = boss.client().post(path, &body).await;
            assert!(is_backend_error(&answer, path), "{what} on {path} (stream: {stream}): {answer:?}");
        }
    }
    boss.finish().await;
}

#[tokio::test]
async fn a_stream_that_stops_being_one_ends_in_an_error() {
    let mut sandbox = Sandbox::new();
    let models = models(&mut sandbox);
    let boss = sandbox.start().await;
    for (number, (what, text)) in broken_off().into_iter().enumerate() {
        let model = &models[number % 2];
        teach(&boss, model, answers(&text)).await;
        for (path, body) in asked(model.name(), true) {
            let answer = boss.client().post(path, &body).await;
            let said = String::from_utf8(answer.body.to_vec()).unwrap();
            assert_eq!(answer.status, StatusCode::OK, "{what} on {path}: {answer:?}");
            assert!(said.contains("\"error\""), "{what} on {path}: {said}");
            for end in ["[DONE]", "message_stop", "\"done\":true", "html"] {
                assert!(!said.contains(end), "{what} on {path}: {said}");
            }
        }
    }
    boss.finish().await;
}

#[tokio::test]
async fn a_living_backend_that_closes_its_connections_is_named_with_the_reason() {
    let mut sandbox = Sandbox::new().with_config("lost_pause = \"20ms\"");
    let models = models(&mut sandbox);
    let labelled = |label: &str| format!("labels = [\"{label}\"]\nbackend = \"llama-server\"");
    let vectors = sandbox.gguf_model("vectors", &labelled("embedding"), Behaviour::default());
    let ranks = sandbox.gguf_model("ranks", &labelled("reranking"), Behaviour::default());
    let boss = sandbox.start().await;
    for (number, (what, text)) in cut_off().into_iter().enumerate() {
        for model in [&models[0], &models[1], &vectors, &ranks] {
            teach(&boss, model, answers(&text)).await;
        }
        let asked = models.iter().flat_map(|model| {
            [false, true].into_iter().flat_map(|stream| asked(model.name(), stream)).map(|asked| (model.name(), asked))
        });
        // The model `own` gets each malformed answer in only one of the ways, because there are many.
        let asked =
            asked.enumerate().filter(|(at, (name, _))| *name != "own" || at % 7 == number).map(|(_, asked)| asked);
        let others = [
            ("vectors", ("/v1/embeddings", json!({ "model": "vectors", "input": "a" }))),
            ("vectors", ("/api/embed", json!({ "model": "vectors", "input": "a" }))),
            ("ranks", ("/v1/rerank", json!({ "model": "ranks", "query": "a", "documents": ["b"] }))),
        ];
        for (name, (path, body)) in asked.chain(others) {
            let answer = boss.client().post(path, &body).await;
            let said = String::from_utf8_lossy(&answer.body).into_owned();
            let is_ours = path.starts_with("/v1/embed") || path.starts_with("/v1/rerank");
            let expected = answer.status == StatusCode::BAD_GATEWAY
                && (is_backend_error(&answer, path) || is_ours && answer.error_code() == "backend_error");
            assert!(expected, "{what} on {path} of {name}: {answer:?}");
            assert!(said.contains(&format!("'{name}'")), "{what} on {path}: {said}");
            assert!(name == "own" || said.contains("llama-server"), "{what} on {path}: {said}");
        }
        assert!(models.iter().all(|model| model.spawns() <= number + 1), "{what}: a worker that lives is not replaced");
    }
    boss.finish().await;
}

#[tokio::test]
async fn a_living_backend_that_closes_a_stream_in_the_middle_is_a_backend_error() {
    let mut sandbox = Sandbox::new();
    let models = models(&mut sandbox);
    let boss = sandbox.start().await;
    let head =
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    for model in &models {
        teach(&boss, model, answers(&format!("{head}{:x}\r\n{CHUNK}\r\n", CHUNK.len()))).await;
        let name = model.name().to_owned();
        let mut streams = JoinSet::new();
        for (path, body) in asked(&name, true) {
            let client = boss.client();
            streams.spawn(async move { (path, client.post(path, &body).await) });
        }
        for (path, answer) in streams.join_all().await {
            let said = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(said.contains("four") && said.contains(&format!("'{name}'")), "{path}: {said}");
            assert!(said.contains("backend_error") || !path.contains("completions"), "{path}: {said}");
            assert!(!said.contains("went away"), "{path}: {said}");
            assert!(name == "own" || said.contains("llama-server"), "{path}: {said}");
        }
    }
    boss.finish().await;
}

#[tokio::test]
async fn embeddings_and_rankings_that_are_none_are_errors() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let labelled = |label: &str| format!("labels = [\"{label}\"]\nbackend = \"llama-server\"");
    let vectors = sandbox.gguf_model("vectors", &labelled("embedding"), Behaviour::default());
    let ranks = sandbox.gguf_model("ranks", &labelled("reranking"), Behaviour::default());
    let boss = sandbox.start().await;
    for text in [
        with_head("200 OK", "text/html", "<html>"),
        with_head("200 OK", JSON, ""),
        with_head("200 OK", JSON, "{\"data\":[],\"object\":\"list\"}"),
        with_head("200 OK", JSON, "{\"data\":[{}],\"results\":7}"),
        with_head("302 Found\r\nlocation: /", JSON, "{}"),
    ] {
        teach(&boss, &vectors, answers(&text)).await;
        teach(&boss, &ranks, answers(&text)).await;
        for (path, body) in [
            ("/v1/embeddings", json!({ "model": "vectors", "input": "a" })),
            ("/api/embed", json!({ "model": "vectors", "input": "a" })),
            ("/api/embeddings", json!({ "model": "vectors", "prompt": "a" })),
            ("/v1/rerank", json!({ "model": "ranks", "query": "a", "documents": ["b"] })),
        ] {
            let answer = boss.client().post(path, &body).await;
            let code = answer.json()["error"]["code"].clone();
            assert_eq!(answer.status, StatusCode::BAD_GATEWAY, "{text} on {path}: {answer:?}");
            assert!(code == "backend_error" || path.starts_with("/api/"), "{answer:?}");
        }
    }
    boss.finish().await;
}

#[tokio::test]
async fn nothing_of_a_backends_head_reaches_a_client() {
    let mut sandbox = Sandbox::new();
    let models = models(&mut sandbox);
    let boss = sandbox.start().await;
    let head = "200 OK\r\nset-cookie: a=b\r\nserver: engine/1\r\nauthorization: Bearer x\r\naccess-control-allow-origin: *\r\n\
        access-control-allow-credentials: true\r\nx-of-its-own: 1\r\nwww-authenticate: Basic\r\nlocation: /x\r\n\
        content-encoding: gzip\r\nlink: </x>\r\nrefresh: 1\r\nrequest-id: theirs";
    let events = format!("{CHUNK}data: [DONE]\n\n");
    for (stream, text) in [(false, with_head(head, JSON, CHAT)), (true, with_head(head, EVENTS, &events))] {
        for model in &models {
            teach(&boss, model, answers(&text)).await;
            for (path, body) in asked(model.name(), stream).into_iter().filter(|(path, _)| *path != "/v1/completions") {
                let answer = boss.client().post(path, &body).await;
                assert_eq!(answer.status, StatusCode::OK, "{path}: {answer:?}");
                assert!(String::from_utf8_lossy(&answer.body).contains("four"), "{path}: {answer:?}");
                assert!(answer.headers.get("request-id").is_none_or(|id| id != "theirs"), "{path}: {answer:?}");
                let ours = |name: &str| {
                    let known =
                        ["content-type", "content-length", "transfer-encoding", "date", "connection", "cache-control"];
                    // Anthropic's clients read this header.
                    let known = known.into_iter().chain((path == "/v1/messages").then_some("request-id"));
                    let prefixes =
                        ["x-request-id", "x-served-model", "x-rung", "x-queue-ms", "x-load-ms", "x-accel-buffering"];
                    known.into_iter().any(|known| known == name)
                        || prefixes.iter().any(|prefix| name.starts_with(prefix))
                };
                let foreign: Vec<_> = answer.headers.keys().filter(|name| !ours(name.as_str())).collect();
                assert!(foreign.is_empty(), "{path}: {foreign:?}");
            }
        }
    }
    boss.finish().await;
}
