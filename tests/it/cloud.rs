//! RC-27, TR-3: models of cloud providers, with a stub that speaks their protocols.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use model_boss_tests::{Behaviour, Boss, PATIENCE, Sandbox, binary, question, text_of_events, until, within};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::views;

/// A provider that gives one answer to every request, and records the requests.
#[derive(Clone)]
pub(crate) struct Stub {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    answer: Arc<Mutex<(u16, &'static str, String)>>,
    /// Whether the provider's answers have no end.
    endless: Arc<AtomicBool>,
}

/// An answer that is sent in one piece, and may then never end.
struct Said {
    text: Option<Bytes>,
    endless: bool,
}

impl Body for Said {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.text.take() {
            Some(text) => Poll::Ready(Some(Ok(Frame::data(text)))),
            None if self.endless => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// The path, or the whole address of a request to a proxy.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Stub {
    pub(crate) async fn start(kind: &'static str, answer: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let stub = Self {
            address: listener.local_addr().unwrap(),
            asked: Arc::default(),
            answer: Arc::new(Mutex::new((200, kind, answer))),
            endless: Arc::default(),
        };
        let own = stub.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let stub = own.clone();
                let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let stub = stub.clone();
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                        let body = serde_json::from_slice(&body).unwrap_or_default();
                        let asked = Asked { path: head.uri.to_string(), headers: head.headers, body };
                        stub.asked.lock().unwrap().push(asked);
                        let (status, kind, text) = stub.answer.lock().unwrap().clone();
                        let answer = Response::builder().status(status).header("content-type", kind);
                        let said =
                            Said { text: Some(Bytes::from(text)), endless: stub.endless.load(Ordering::Relaxed) };
                        let answer = answer.header("retry-after", "7").header("request-id", "req_stub");
                        Ok::<_, Infallible>(answer.body(said).unwrap())
                    }
                });
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(async move { http.serve_connection(TokioIo::new(stream), service).await });
            }
        });
        stub
    }

    pub(crate) fn answers(&self, status: u16, text: &str) {
        let mut answer = self.answer.lock().unwrap();
        *answer = (status, answer.1, text.to_owned());
    }

    /// From now on the provider's answers have no end.
    pub(crate) fn never_ends(&self) {
        self.endless.store(true, Ordering::Relaxed);
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

pub(crate) const KEY: &str = "sk-test-not-a-key";

pub(crate) fn message(text: &str) -> String {
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "content": [{ "type": "text", "text": text }],
        "stop_reason": "end_turn", "usage": { "input_tokens": 1000, "output_tokens": 500 },
    })
    .to_string()
}

const STREAM: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":4,\"output_tokens\":1}}}\n\n\
event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"fo\"}}\n\n\
event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"ur\"}}\n\n\
event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":9}}\n\n\
event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

pub(crate) async fn start(sandbox: &Sandbox) -> Boss {
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    launch.command.env("ANTHROPIC_API_KEY", KEY);
    launch.start().await
}

pub(crate) fn claude_at(stub: &Stub) -> String {
    format!(
        "[providers.claude]\nbase_url = \"http://{}\"\nkey_env = \"ANTHROPIC_API_KEY\"\n\
         models = {{ opus = \"claude-opus-x\" }}\n\
         prices = {{ claude-opus = {{ input = 5, output = 25 }} }}",
        stub.address
    )
}

#[tokio::test]
async fn rc_27_claude_answers_chats_whole_and_streamed() {
    let stub = Stub::start("application/json", message("four")).await;
    let sandbox = Sandbox::new().with_config(&claude_at(&stub));
    let boss = start(&sandbox).await;
    let answer = boss.chat("claude:opus", "2 + 2?").await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "four");
    assert_eq!(answer.header("x-served-model"), Some("claude:opus"));
    let asked = stub.asked().remove(0);
    assert_eq!((asked.path.as_str(), &asked.body["model"]), ("/v1/messages", &json!("claude-opus-x")));
    assert_eq!(
        (&asked.headers["x-api-key"], &asked.headers["anthropic-version"]),
        (&KEY.parse().unwrap(), &"2023-06-01".parse().unwrap())
    );
    assert!(asked.body["max_tokens"].is_u64());

    let stub = Stub::start("text/event-stream", STREAM.to_owned()).await;
    boss.finish().await;
    let sandbox = Sandbox::new().with_config(&claude_at(&stub));
    let boss = start(&sandbox).await;
    let events = boss.chat_streamed("claude:opus", "2 + 2?").await.rest().await;
    assert_eq!(text_of_events(&events), "four");
    let text = boss.output().text();
    boss.finish().await;
    assert!(!text.contains(KEY), "{text}");
}

#[tokio::test]
async fn rc_27_a_busy_provider_is_asked_once_and_the_client_hears_when_to_come_back() {
    for (status, kind, code, source, seen) in [
        (429, "rate_limit_error", "cloud_rate_limited", "cloud", StatusCode::TOO_MANY_REQUESTS),
        (529, "overloaded_error", "cloud_overloaded", "cloud", StatusCode::SERVICE_UNAVAILABLE),
        (401, "authentication_error", "backend_error", "coordinator", StatusCode::BAD_GATEWAY),
        (400, "invalid_request_error", "invalid_request", "coordinator", StatusCode::BAD_REQUEST),
    ] {
        let stub = Stub::start("application/json", String::new()).await;
        stub.answers(status, &json!({ "type": "error", "error": { "type": kind, "message": "because" } }).to_string());
        let sandbox = Sandbox::new().with_config(&claude_at(&stub));
        let boss = start(&sandbox).await;
        let answer = boss.chat("claude:opus", "?").await;
        assert_eq!(
            (answer.status, answer.error_code().as_str(), &answer.json()["source"]),
            (seen, code, &json!(source))
        );
        assert!(answer.error_message().contains("because"), "{answer:?}");
        assert_eq!(stub.asked().len(), 1, "{code}: nothing is asked twice");
        if source == "cloud" {
            assert_eq!(answer.header("retry-after"), Some("7"));
            // Until the key is set, no request is sent to the provider.
            assert_eq!(boss.chat("claude:opus", "?").await.error_code(), code);
            assert_eq!(stub.asked().len(), 1);
        } else if status == 400 {
            assert_eq!(views::outcomes(&boss, "anonymous", 1).await, ["refused"], "its client did not go away");
        }
        boss.finish().await;
    }
}

#[tokio::test]
async fn rc_27_an_openai_provider_is_passed_through() {
    let chat = json!({ "id": "c", "object": "chat.completion", "choices": [{ "index": 0,
        "message": { "role": "assistant", "content": "four" }, "finish_reason": "stop" }] });
    let stub = Stub::start("application/json", chat.to_string()).await;
    let sandbox = Sandbox::new().with_config(&format!("[providers.near]\nbase_url = \"http://{}/v1\"", stub.address));
    let boss = start(&sandbox).await;
    let answer = boss.chat("near:org/m:7b", "2 + 2?").await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "four", "{answer:?}");
    let asked = stub.asked().remove(0);
    assert_eq!((asked.path.as_str(), &asked.body["model"]), ("/v1/chat/completions", &json!("org/m:7b")));
    assert!(asked.headers.get("x-api-key").is_none() && asked.headers.get("authorization").is_none());
    // The body is as large as one with images.
    let long = "word ".repeat(200_000);
    assert_eq!(boss.chat("near:org/m:7b", &long).await.status, StatusCode::OK);
    assert_eq!(stub.asked()[1].body["messages"][0]["content"], long);
    boss.finish().await;
}

#[tokio::test]
async fn rc_27_an_openai_provider_gives_vectors_and_they_are_paid_for() {
    let vectors = json!({ "object": "list", "model": "bge", "data": [{ "object": "embedding", "index": 0,
        "embedding": "AAAAPwAAoL8=" }], "usage": { "prompt_tokens": 4, "total_tokens": 4 } });
    let stub = Stub::start("application/json", vectors.to_string()).await;
    let near = format!(
        "{}\n[providers.near]\nbase_url = \"http://{}\"\nprices = {{ bge = {{ input = 250000, output = 0 }} }}",
        claude_at(&stub),
        stub.address
    );
    let sandbox = Sandbox::new().with_config(&near);
    let tasks = "tasks:\n  vectors:\n    category: embedding\n    ladder: [\"claude:opus\", \"near:bge\"]\n";
    std::fs::write(sandbox.path("tasks.yaml"), tasks).unwrap();
    let boss = start(&sandbox).await;
    let ask = async |model: &str| {
        let body = json!({ "model": model, "input": ["a", "b"], "encoding_format": "base64", "x_client_id": "me" });
        boss.client().post("/v1/embeddings", &body).await
    };
    let answer = ask("near:bge").await;
    assert_eq!((answer.status, answer.json()), (StatusCode::OK, vectors), "{answer:?}");
    let asked = stub.asked().remove(0);
    assert_eq!(asked.path, "/v1/embeddings");
    assert_eq!(asked.body, json!({ "model": "bge", "input": ["a", "b"], "encoding_format": "base64" }));
    let shown = boss.read("/api/v1/providers").await;
    assert_eq!(
        shown["clients"],
        json!([{ "id": "me", "spent_usd": 1.0, "daily_limit_usd": null, "remaining_usd": null }])
    );
    let refused = ask("claude:opus").await;
    assert_eq!((refused.status, refused.error_code().as_str()), (StatusCode::BAD_REQUEST, "unsupported_by_model"));
    assert_eq!(stub.asked().len(), 1, "Claude models are not asked for vectors");
    let plan = async |question: Value| boss.client().post("/api/v1/plan", &question).await.json()["model"].clone();
    assert_eq!(plan(json!({ "task": "vectors" })).await, "near:bge");
    assert_eq!(plan(json!({ "task": "vectors", "category": "llm" })).await, "claude:opus");
    assert_eq!(ask("task:vectors").await.header("x-served-model"), Some("near:bge"), "as planned");
    boss.finish().await;
}

#[tokio::test]
async fn rc_27_a_daily_limit_holds_and_survives_a_restart() {
    let stub = Stub::start("application/json", message("four")).await;
    let sandbox = Sandbox::new().with_config(&claude_at(&stub));
    let tasks = "clients:\n  poor:\n    daily_spend_usd: 0.01\n  none:\n    cloud: false\n";
    std::fs::write(sandbox.path("tasks.yaml"), tasks).unwrap();
    let ask = async |boss: &Boss, client: &str, model: &str| {
        let mut body = question(model, "?");
        body["x_client_id"] = json!(client);
        boss.client().post("/v1/chat/completions", &body).await
    };
    let boss = start(&sandbox).await;
    // 1,000 tokens at $5 and 500 at $25 for a million: $0.0175.
    assert!(ask(&boss, "poor", "claude:opus").await.status.is_success());
    for (client, model, word) in [
        ("poor", "claude:opus", "has spent $0.02 of $0.01"),
        ("poor", "claude:else", "has spent"),
        ("none", "claude:opus", "cloud"),
    ] {
        let answer = ask(&boss, client, model).await;
        assert_eq!(
            (answer.status, answer.error_code().as_str()),
            (StatusCode::FORBIDDEN, "cloud_not_allowed"),
            "{answer:?}"
        );
        assert!(answer.error_message().contains(word), "{answer:?}");
    }
    assert!(ask(&boss, "rich", "claude:opus").await.status.is_success());
    boss.finish().await;
    let boss = start(&sandbox).await;
    assert_eq!(ask(&boss, "poor", "claude:opus").await.error_code(), "cloud_not_allowed");
    boss.finish().await;
}

/// Rules for a client that may spend $0.10 a day. A short question with 500 tokens of answer costs $0.0126 at most.
const POOR: &str = "clients:\n  poor:\n    daily_spend_usd: 0.1\n    max_concurrent: 200\n";

#[tokio::test]
async fn rc_27_no_number_of_requests_at_once_goes_over_a_limit() {
    let stub = Stub::start("application/json", message("four")).await;
    let sandbox = Sandbox::new().with_config(&claude_at(&stub));
    std::fs::write(sandbox.path("tasks.yaml"), POOR).unwrap();
    let boss = start(&sandbox).await;
    let ask = |client: &str| {
        let mut body = question("claude:opus", "?");
        (body["x_client_id"], body["max_tokens"]) = (json!(client), json!(500));
        boss.ask(body)
    };
    // No request is answered yet, so all of them run at once.
    stub.never_ends();
    let mut all: Vec<_> = (0..100).map(|_| ask("poor")).collect();
    let mut refused = 0;
    while all.len() > 8 {
        let (answer, rest) = within(PATIENCE, "one is answered", first_of(all)).await;
        all = rest;
        assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (429, "client_limit"), "{answer:?}");
        assert!(answer.error_message().contains("under way") && answer.header("retry-after").is_some(), "{answer:?}");
        refused += 1;
    }
    assert_eq!(refused, 92);
    let sent = async || (stub.asked().len() == 8).then_some(());
    until(PATIENCE, "those that the limit has room for are sent", sent).await;
    // Other clients may still use the provider.
    stub.endless.store(false, Ordering::Relaxed);
    assert_eq!(ask("rich").await.unwrap().status, StatusCode::OK);
    // Clients that give up release their reservations, until the limit is really spent.
    for one in all {
        one.abort();
    }
    let free = async || (ask("poor").await.unwrap().status == StatusCode::OK).then_some(());
    until(PATIENCE, "there is room again", free).await;
    let mut answered = 1;
    loop {
        let answer = ask("poor").await.unwrap();
        if answer.status == StatusCode::FORBIDDEN {
            break;
        }
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        answered += 1;
    }
    // Each costs $0.0175: the sixth exceeds the limit, and no further request begins.
    assert_eq!(answered, 6);
    boss.finish().await;
}

/// The first task to end with its result, and the others.
async fn first_of<T>(mut all: Vec<JoinHandle<T>>) -> (T, Vec<JoinHandle<T>>) {
    let (at, done) = std::future::poll_fn(|context| {
        let ready = all.iter_mut().enumerate().find_map(|(at, one)| match Pin::new(one).poll(context) {
            Poll::Ready(done) => Some((at, done)),
            Poll::Pending => None,
        });
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await;
    drop(all.swap_remove(at));
    (done.unwrap(), all)
}

#[tokio::test]
async fn rc_27_what_was_spent_is_not_forgotten_with_its_file() {
    let stub = Stub::start("application/json", message("four")).await;
    let sandbox = Sandbox::new().with_config(&claude_at(&stub));
    std::fs::write(sandbox.path("tasks.yaml"), POOR).unwrap();
    std::fs::write(sandbox.path("state/spend.json"), "{\"day\":").unwrap();
    let ask = async |boss: &Boss, client: &str| {
        let mut body = question("claude:opus", "?");
        body["x_client_id"] = json!(client);
        boss.client().post("/v1/chat/completions", &body).await
    };
    // A restart changes nothing: half of the day's spending is in the file by then.
    for _ in 0..2 {
        let boss = start(&sandbox).await;
        let refused = ask(&boss, "poor").await;
        assert_eq!((refused.status, refused.error_code().as_str()), (StatusCode::FORBIDDEN, "cloud_not_allowed"));
        assert!(refused.error_message().contains("spend.json"), "{refused:?}");
        assert_eq!(ask(&boss, "rich").await.status, StatusCode::OK);
        boss.finish().await;
    }
}

#[tokio::test]
async fn rc_27_leaving_before_an_answer_begins_costs_the_prompt() {
    let provider = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let tables = format!(
        "[providers.far]\nbase_url = \"http://{}\"\ncloud = true\nprices = {{ m = {{ input = 1000000, output = 1 }} }}",
        provider.local_addr().unwrap()
    );
    let sandbox = Sandbox::new().with_config(&tables);
    std::fs::write(sandbox.path("tasks.yaml"), POOR).unwrap();
    let boss = start(&sandbox).await;
    let mut body = question("far:m", "?");
    body["x_client_id"] = json!("poor");
    let asking = boss.ask(body.clone());
    // The provider reads the request, and sends no answer.
    let (mut stream, _) = within(PATIENCE, "it is asked", provider.accept()).await.unwrap();
    within(PATIENCE, "it reads", stream.read_u8()).await.unwrap();
    asking.abort();
    let refused = async || {
        let answer = boss.client().post("/v1/chat/completions", &body).await;
        (answer.error_code() == "cloud_not_allowed").then_some(())
    };
    // A second request is refused while the first runs, and after it; otherwise it would reach the provider and hang.
    until(PATIENCE, "it is paid for", refused).await;
    boss.finish().await;
}

#[tokio::test]
async fn rc_27_a_provider_that_repeats_our_key_tells_it_to_no_client() {
    let said =
        format!(r#"{{"type":"error","error":{{"type":"authentication_error","message":"no such key: {KEY}"}}}}"#);
    let stub = Stub::start("application/json", String::new()).await;
    stub.answers(401, &said);
    let sandbox = Sandbox::new().with_config(&format!(
        "[providers.claude]\nbase_url = \"http://{}\"\nkey_env = \"ANTHROPIC_API_KEY\"",
        stub.address
    ));
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    launch.command.env("ANTHROPIC_API_KEY", KEY);
    let boss = launch.start().await;
    let answer = boss.client().post("/v1/chat/completions", &question("claude:opus", "?")).await;
    let told = answer.json().to_string();
    assert!(told.contains("no such key: ***"), "{told}");
    for path in ["/api/v1/providers", "/api/v1/decisions", "/api/v1/config?origin=1", "/api/v1/health"] {
        let shown = boss.read(path).await.to_string();
        assert!(!shown.contains(KEY), "{path}: {shown}");
    }
    assert!(!told.contains(KEY) && !boss.output().text().contains(KEY));
    boss.finish().await;
}

#[tokio::test]
async fn rc_27_the_key_for_anthropic_is_shown_to_nobody_else() {
    let stub = Stub::start("application/json", message("four")).await;
    let at = format!("base_url = \"http://{}\"", stub.address);
    for (tables, model) in [
        (format!("[providers.claude]\n{at}"), "claude:opus"),
        (format!("[providers.other]\nkind = \"anthropic\"\n{at}"), "other:opus"),
    ] {
        let sandbox = Sandbox::new().with_config(&tables);
        let boss = start(&sandbox).await;
        assert_eq!(boss.chat(model, "?").await.status, StatusCode::OK);
        let asked = stub.asked().pop().unwrap();
        let told = format!("{:?}", asked.headers);
        assert!(!told.contains(KEY) && !asked.headers.contains_key("x-api-key"), "{told}");
        boss.finish().await;
    }
    for (lines, words) in [
        ("kind = \"anthropic\"\nbase_url = \"http://10.0.0.7\"\nkey_env = \"K\"", "use https"),
        ("base_url = \"http://10.0.0.7\"\nkey_file = \"k\"", "use https"),
    ] {
        let sandbox = Sandbox::new().with_config(&format!("[providers.far]\n{lines}"));
        let (status, said) = sandbox.launch(&binary("model-boss-fake-worker")).end().await;
        assert!(!status.success() && said.contains(words), "{said}");
    }
}

#[tokio::test]
async fn tr_2_a_provider_that_fails_leads_to_the_next_rung() {
    let stub = Stub::start("application/json", String::new()).await;
    stub.answers(529, "{}");
    let sandbox = Sandbox::new().with_config(&claude_at(&stub));
    let _model = sandbox.fake_model("alpha", Behaviour { reply: Some("own".to_owned()), ..Behaviour::default() });
    std::fs::write(sandbox.path("tasks.yaml"), "tasks:\n  say:\n    ladder: [\"claude:opus\", alpha]\n").unwrap();
    let boss = start(&sandbox).await;
    let answer = boss.chat("task:say", "?").await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "own", "{answer:?}");
    assert_eq!(answer.header("x-rung"), Some("1"));
    boss.finish().await;
}

#[tokio::test]
async fn rc_27_what_was_asked_and_spent_is_shown_by_provider_model_and_client() {
    let stub = Stub::start("application/json", message("four")).await;
    let sandbox = Sandbox::new().with_config(&claude_at(&stub));
    let tasks = "clients:\n  poor:\n    daily_spend_usd: 1\n  spare:\n    daily_spend_usd: 2\n";
    std::fs::write(sandbox.path("tasks.yaml"), tasks).unwrap();
    let boss = start(&sandbox).await;
    for client in ["poor", "rich"] {
        let mut body = question("claude:opus", "?");
        body["x_client_id"] = json!(client);
        assert!(boss.client().post("/v1/chat/completions", &body).await.status.is_success());
    }
    stub.answers(401, "{}");
    assert_eq!(boss.chat("claude:made-up", "?").await.status, StatusCode::BAD_GATEWAY);

    // 1,000 tokens at $5 and 500 at $25 for a million: $0.0175.
    let shown = boss.read("/api/v1/providers").await;
    let claude = &shown["providers"][0];
    assert_eq!((&claude["name"], &claude["key"], &claude["cloud"]), (&json!("claude"), &json!("set"), &json!(true)));
    let tally = |requests, errors, times: u64, spent| {
        json!({ "requests": requests, "errors": errors, "input_tokens": 1000 * times, "output_tokens": 500 * times,
            "spent_usd": spent })
    };
    assert_eq!(claude["today"], tally(3, 1, 2, 0.035), "{claude}");
    let model = |name: &str| claude["models"].as_array().unwrap().iter().find(|m| m["model"] == name).unwrap().clone();
    assert_eq!(model("claude-opus-x")["since_start"], tally(2, 0, 2, 0.035));
    assert_eq!(model("claude-opus-x")["price"], json!({ "input": 5.0, "output": 25.0 }));
    assert_eq!(model("other")["today"], tally(1, 1, 0, 0.0), "a name that nothing answered for is no series");
    let budget = |id: &str, spent: f64, limit: Value, left: Value| json!({ "id": id, "spent_usd": spent, "daily_limit_usd": limit, "remaining_usd": left });
    assert_eq!(
        shown["clients"],
        json!([
            budget("poor", 0.0175, json!(1.0), json!(0.9825)),
            budget("rich", 0.0175, Value::Null, Value::Null),
            budget("spare", 0.0, json!(2.0), json!(2.0)),
        ])
    );
    let stats = boss.read("/api/v1/stats").await;
    assert_eq!((&stats["model_name"], &stats["input_tokens"]), (&json!("claude:opus"), &json!(1000)));
    let mut totals = tally(3, 1, 2, 0.035);
    totals["provider"] = json!("claude");
    assert_eq!(stats["providers"], json!([totals]));
    let clients = boss.read("/api/v1/clients").await;
    let poor = clients["clients"].as_array().unwrap().iter().find(|client| client["id"] == "poor").unwrap().clone();
    assert_eq!((&poor["tokens"], &poor["requests"]), (&json!(1500), &json!(1)), "{poor}");
    let decisions = boss.read("/api/v1/decisions").await;
    let refused = decisions["decisions"].as_array().unwrap().iter().find(|d| d["what"] == "refuse").unwrap().clone();
    assert_eq!(refused["model"], "claude");

    let page = boss.client().get("/metrics").await;
    let page = String::from_utf8_lossy(&page.body).into_owned();
    for line in [
        "model_boss_cloud_requests_total{provider=\"claude\",model=\"claude-opus-x\"} 2",
        "model_boss_cloud_errors_total{provider=\"claude\",model=\"other\"} 1",
        "model_boss_cloud_prompt_tokens_total{provider=\"claude\",model=\"claude-opus-x\"} 2000",
        "model_boss_cloud_completion_tokens_total{provider=\"claude\",model=\"claude-opus-x\"} 1000",
        "model_boss_cloud_spent_usd{provider=\"claude\",model=\"claude-opus-x\"} 0.035",
        "model_boss_cloud_spent_today_usd{provider=\"claude\"} 0.035",
        "model_boss_client_spent_today_usd{client=\"poor\"} 0.0175",
        "model_boss_client_daily_spend_limit_usd{client=\"spare\"} 2",
        "model_boss_requests_total{model=\"claude:*\",status=\"200\"} 2",
    ] {
        assert!(page.lines().any(|shown| shown == line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("made-up") && !page.contains("client=\"rich\""), "{page}");
    boss.finish().await;
}

#[tokio::test]
async fn rc_27_a_stream_is_counted_whole_or_given_up() {
    let stub = Stub::start("text/event-stream", STREAM.to_owned()).await;
    let sandbox = Sandbox::new().with_config(&claude_at(&stub));
    let boss = start(&sandbox).await;
    // The client does not request counts: it gets none, but they are counted.
    let events = boss.chat_streamed("claude:opus", "2 + 2?").await.rest().await;
    assert!(!format!("{events:?}").contains("usage"), "{events:?}");
    let stats = boss.read("/api/v1/stats").await;
    assert_eq!((&stats["input_tokens"], &stats["output_tokens"]), (&json!(4), &json!(9)), "{stats}");
    assert!(stats["time_to_first_token"].is_f64());

    // This answer never ends; the client disconnects after some of it.
    stub.never_ends();
    let (begun, _) = STREAM.split_once("event: message_delta").unwrap();
    stub.answers(200, begun);
    let mut stream = boss.chat_streamed("claude:opus", "2 + 2?").await;
    assert_eq!((stream.token().await, stream.token().await), ("fo".to_owned(), "ur".to_owned()));
    drop(stream);
    let counted = async || {
        let shown = boss.read("/api/v1/providers").await;
        let today = shown["providers"][0]["today"].clone();
        (today["input_tokens"] == 8).then_some(today)
    };
    let today = until(PATIENCE, "the stream that was given up is counted", counted).await;
    assert_eq!((&today["requests"], &today["output_tokens"]), (&json!(2), &json!(10)), "{today}");
    let client = async || {
        let clients = boss.read("/api/v1/clients").await;
        (clients["clients"][0]["tokens"] == 18).then_some(())
    };
    until(PATIENCE, "the client's tokens are counted", client).await;
    boss.finish().await;
}

#[tokio::test]
async fn tr_1_models_of_providers_are_listed_for_those_who_may_use_them() {
    let stub = Stub::start("application/json", message("four")).await;
    let near =
        format!("\n[providers.near]\nbase_url = \"http://{}\"\nmodels = {{ small = \"org/small\" }}\n", stub.address);
    let locked = "[providers.locked]\nbase_url = \"https://locked.example\"\nkey_env = \"NOBODY_SETS_THIS\"\nmodels = { m = \"m\" }\n";
    let sandbox = Sandbox::new().with_config(&(claude_at(&stub) + &near + locked));
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let tasks = "tasks:\n  say:\n    ladder: [alpha, \"claude:claude-x\"]\nclients:\n  here:\n    cloud: false\n  \
                 few:\n    allowed_models: [\"claude:opus\", alpha]\n  other:\n    models: {\"*\": alpha}\n";
    std::fs::write(sandbox.path("tasks.yaml"), tasks).unwrap();
    let boss = start(&sandbox).await;
    let listed = async |client: &str, path: &str| -> Vec<String> {
        let mut request = boss.client().request(http::Method::GET, path, "");
        request.headers_mut().insert("x-client-id", client.parse().unwrap());
        let answer = boss.client().send(request).await.json();
        let names = answer["data"].as_array().or(answer["models"].as_array()).unwrap().iter();
        names.filter_map(|model| model["id"].as_str().or(model["name"].as_str())).map(str::to_owned).collect()
    };
    let all = ["claude:claude-x", "claude:haiku", "claude:opus", "claude:sonnet", "near:small"];
    for path in ["/v1/models", "/api/tags"] {
        let own = ["alpha", "task:say"];
        assert_eq!(listed("anybody", path).await, [&own[..], &all].concat(), "{path}");
        assert_eq!(listed("here", path).await, [&own[..], &["near:small"]].concat(), "{path}: near is no cloud");
        assert_eq!(listed("few", path).await, [&own[..], &["claude:opus"]].concat(), "{path}");
        assert_eq!(listed("other", path).await, own, "{path}: its names mean something else");
    }
    let one = boss.read("/v1/models/claude:opus").await;
    let told = json!({ "id": "claude:opus", "object": "model", "created": 0, "owned_by": "claude", "kind": "cloud",
        "served_as": "claude-opus-x", "category": "llm", "cloud": true });
    assert_eq!(one, told);
    // A model without a short name can be requested too.
    assert_eq!(boss.read("/v1/models/claude%3Aclaude-y").await["served_as"], "claude-y");
    assert_eq!(boss.client().get("/v1/models/locked:m").await.status, StatusCode::NOT_FOUND);
    let shown = boss.client().post("/api/show", &json!({ "model": "claude:opus" })).await.json();
    assert_eq!((&shown["remote_model"], &shown["capabilities"][0]), (&json!("claude-opus-x"), &json!("completion")));
    let shown = boss.client().post("/api/show", &json!({ "model": "task:say" })).await.json();
    assert_eq!(shown["modelfile"], "# alpha > claude:claude-x\n");
    boss.finish().await;
}

#[tokio::test]
async fn rc_27_tokens_are_counted_by_the_provider_and_cost_nothing() {
    let stub = Stub::start("application/json", json!({ "input_tokens": 14 }).to_string()).await;
    let near = format!("\n[providers.near]\nbase_url = \"http://{}\"\n", stub.address);
    let sandbox = Sandbox::new().with_config(&(claude_at(&stub) + &near));
    let tasks = "clients:\n  here:\n    cloud: false\n  once:\n    rate_per_minute: 1\n";
    std::fs::write(sandbox.path("tasks.yaml"), tasks).unwrap();
    let boss = start(&sandbox).await;
    let count = async |model: &str, client: &str| {
        let body = json!({
            "model": model, "x_client_id": client, "max_tokens": 5, "system": "s", "stream": true,
            "messages": [{ "role": "user", "content": "hi" }],
        });
        boss.client().post("/v1/messages/count_tokens", &body).await
    };
    let answer = count("claude:opus", "me").await;
    assert_eq!((answer.status, answer.json()), (StatusCode::OK, json!({ "input_tokens": 14 })), "{answer:?}");
    let asked = stub.asked().remove(0);
    assert_eq!(asked.path, "/v1/messages/count_tokens");
    assert_eq!(
        asked.body,
        json!({ "model": "claude-opus-x", "system": "s", "messages": [{ "role": "user", "content": "hi" }] })
    );
    let spent = boss.read("/api/v1/providers").await;
    assert_eq!(spent["providers"][0]["today"]["spent_usd"], 0.0);
    assert_eq!(count("near:m", "me").await.status, StatusCode::BAD_REQUEST);
    let refused = count("claude:opus", "here").await;
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (StatusCode::FORBIDDEN, &json!("permission_error")));
    assert_eq!(stub.asked().len(), 1, "what may not leave does not leave");
    // Counting costs nothing, but it is a request.
    assert_eq!(count("claude:opus", "once").await.status, StatusCode::OK);
    let refused = count("claude:opus", "once").await;
    assert_eq!((refused.status, stub.asked().len()), (StatusCode::TOO_MANY_REQUESTS, 2), "{refused:?}");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(views::outcomes(&boss, "once", 1).await, ["answered"]);
    stub.answers(429, "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"because\"}}");
    let busy = count("claude:opus", "me").await;
    assert_eq!((busy.status, busy.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("7")), "{busy:?}");
    boss.finish().await;
}
