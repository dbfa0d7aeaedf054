//! The cost of requests in flight: bodies that swell or parse slowly, unfinished uploads, endless answers. It is
//! measured from outside, as the process's memory in the kernel's count and as the delay of other requests.

use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use model_boss_tests::{Answer, Behaviour, Boss, PATIENCE, PeakMemory, RawAnswer, Sandbox, until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MIB: usize = 1 << 20;
/// `limits.request_memory`. The next constant is the process's own need, for connections and its allocator.
const BUDGET_MIB: u64 = 256;
const SLACK_MIB: u64 = 96;

const ROUTES: [&str; 11] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
    "/api/show",
];
/// Texts that are repeated in a value up to the requested size: name, beginning, piece, end.
const SHAPES: [(&str, &str, &str, &str); 6] = [
    ("objects", "[", "{\"\":0},", "0]"),
    ("lists", "[", "[],", "0]"),
    ("keys", "{", "\"a\":0,", "\"b\":0}"),
    ("numbers", "[", "0,", "0]"),
    ("escapes", "\"", "\\u0000", "\""),
    ("depth", "", "[", ""),
];

/// Fields that some part of the coordinator might read.
const FIELDS: [&str; 9] = [
    "chat_template_kwargs",
    "thinking",
    "reasoning_effort",
    "x_thinking",
    "keep_alive",
    "x_priority",
    "x_client_id",
    "stream",
    "model",
];

fn hostile(shape: (&str, &str, &str, &str), size: usize) -> String {
    hostile_in("\"model\":\"nobody\",\"max_tokens\":1,\"messages\":[],\"x\"", shape, size)
}

fn hostile_in(fields: &str, (_, first, piece, last): (&str, &str, &str, &str), size: usize) -> String {
    let value = piece.repeat(size / piece.len());
    format!("{{{fields}:{first}{value}{last}}}")
}

/// The total time of all bodies, and the time in which no other request was answered.
#[derive(Debug, Default)]
struct Stall {
    took: Duration,
    silent: Duration,
}

impl Stall {
    /// Sends a body, and small requests at the same time.
    async fn send(&mut self, boss: &Boss, path: &str, body: String) -> Answer {
        let request = boss.client().request(Method::POST, path, body);
        let (client, other) = (boss.client(), boss.client());
        let mut sending = tokio::spawn(async move { client.send(request).await });
        let began = Instant::now();
        let (mut last, mut silent) = (began, Duration::ZERO);
        let answer = loop {
            tokio::select! {
                answer = &mut sending => break answer.unwrap(),
                small = other.get("/live") => {
                    assert_eq!(small.status, StatusCode::OK);
                    silent = silent.max(last.elapsed());
                    last = Instant::now();
                }
            }
        };
        self.took = self.took.saturating_add(began.elapsed());
        self.silent = self.silent.saturating_add(silent.max(last.elapsed()));
        answer
    }
}

async fn used(boss: &Boss) -> u64 {
    boss.read("/api/v1/stats").await["request_memory"]["used"].as_u64().unwrap()
}

async fn everything_is_given_back(boss: &Boss) {
    until(PATIENCE, "no memory is held", async || (used(boss).await == 0).then_some(())).await;
}

#[tokio::test]
async fn op_10_hostile_bodies_take_little_memory_and_nobody_elses_time() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let engine = sandbox.gguf_model("engine", "backend = \"llama-server\"", Behaviour::default());
    let boss = sandbox.start().await;
    let (mut stall, memory) = (Stall::default(), PeakMemory::of(boss.pid()));
    // With MODEL_BOSS_CHAOS_BODIES=1 every shape is sent to every route; by default each route and each shape once, and
    // the largest.
    let all = std::env::var_os("MODEL_BOSS_CHAOS_BODIES").is_some();
    let mut cases = vec![(ROUTES[4], SHAPES[0], 31 * MIB), (ROUTES[6], SHAPES[2], 31 * MIB)];
    for (number, route) in ROUTES.into_iter().enumerate() {
        let chosen = if all { &SHAPES[..] } else { &SHAPES[number % SHAPES.len()..][..1] };
        cases.extend(chosen.iter().map(|shape| (route, *shape, 8 * MIB)));
    }
    for (route, shape, size) in cases {
        let answer = stall.send(&boss, route, hostile(shape, size)).await;
        assert!(answer.status.is_client_error(), "{route} {}: {answer:?}", shape.0);
        let grown = memory.growth_mib();
        assert!(grown < 160, "{grown} MiB after {} on {route}", shape.0);
    }
    for field in FIELDS {
        let fields = format!("\"model\":\"engine\",\"messages\":[],\"{field}\"");
        let answer = stall.send(&boss, ROUTES[0], hostile_in(&fields, SHAPES[0], 4 * MIB)).await;
        assert!(answer.status.is_client_error(), "{field}: {answer:?}");
        let grown = memory.growth_mib();
        assert!(grown < 160, "{grown} MiB after {field}");
    }
    assert_eq!(engine.spawns(), 0, "all were refused before");
    let answer = stall.send(&boss, "/api/v1/load", hostile(SHAPES[0], MIB / 2)).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
    // If the work ran on the thread of sockets, nearly all of the time would be silence.
    assert!(stall.silent < stall.took.mul_f64(0.6), "{stall:?}");
    eprintln!("{stall:?}, {} MiB", memory.growth_mib());
    everything_is_given_back(&boss).await;
    boss.finish().await;
}

/// A request whose body is sent but for its end.
struct Upload {
    stream: TcpStream,
    rest: String,
}

/// Whether an upload states its length.
#[derive(Clone, Copy, PartialEq)]
enum Length {
    Told,
    /// The upload states no length: the body is sent in chunks.
    Untold,
}

impl Upload {
    /// Sends a body without its last bytes. A refusal may arrive at any moment.
    async fn begin(boss: &Boss, model: &str, size: usize, length: Length) -> Self {
        let rest = "\"}]}".to_owned();
        let first = format!("{{\"model\":\"{model}\",\"messages\":[{{\"role\":\"user\",\"content\":\"");
        let (told, rest) = match length {
            Length::Told => (format!("content-length: {}", first.len() + size + rest.len()), rest),
            Length::Untold => ("transfer-encoding: chunked".to_owned(), chunk(&rest) + "0\r\n\r\n"),
        };
        let framed = |text: String| if length == Length::Told { text } else { chunk(&text) };
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
             content-type: application/json\r\n{told}\r\n\r\n{}",
            framed(first)
        );
        let mut stream = TcpStream::connect(boss.client().address()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let piece = framed("x".repeat(64 << 10));
        for _ in 0..size / (64 << 10) {
            if stream.write_all(piece.as_bytes()).await.is_err() {
                break;
            }
        }
        Self { stream, rest }
    }

    /// Sends the end; returns the status of the answer.
    async fn end(mut self) -> u16 {
        _ = self.stream.write_all(self.rest.as_bytes()).await;
        let mut answer = Vec::new();
        _ = within(PATIENCE, "an answer to an upload", self.stream.read_to_end(&mut answer)).await;
        let text = String::from_utf8_lossy(&answer).into_owned();
        let status = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no answer: {text}"));
        assert_eq!(status == 503, text.contains("overloaded") && text.contains("retry-after: 1"), "{text}");
        status
    }
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

#[tokio::test]
async fn op_10_forty_uploads_share_one_budget_and_small_requests_go_first() {
    uploads_share_one_budget(Length::Told).await;
}

#[tokio::test]
async fn op_10_forty_uploads_of_unknown_length_share_the_same_budget() {
    uploads_share_one_budget(Length::Untold).await;
}

async fn uploads_share_one_budget(length: Length) {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour { reply: Some("yes".to_owned()), ..Behaviour::default() });
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    let memory = PeakMemory::of(boss.pid());
    let mut uploads = tokio::task::JoinSet::new();
    let boss = std::sync::Arc::new(boss);
    for _ in 0..40 {
        let boss = std::sync::Arc::clone(&boss);
        uploads.spawn(async move { Upload::begin(&boss, "nobody", 20 * MIB, length).await });
    }
    let mut begun = Vec::new();
    while let Some(upload) = uploads.join_next().await {
        begun.push(upload.unwrap());
        assert_eq!(boss.chat("alpha", "?").await.text(), "yes", "small requests are served all along");
    }
    let grown = memory.growth_mib();
    assert!(grown < BUDGET_MIB + SLACK_MIB, "{grown} MiB");
    assert!(used(&boss).await > 0, "some are held");
    let mut statuses = Vec::new();
    for upload in begun {
        statuses.push(upload.end().await);
        assert_eq!(boss.chat("alpha", "?").await.text(), "yes", "small requests are served all along");
    }
    let grown = memory.growth_mib();
    assert!(grown < BUDGET_MIB + SLACK_MIB, "{grown} MiB");
    // Each body was read whole, or refused; none of them waits.
    assert!(statuses.iter().all(|status| [404, 503].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&404), "some went through: {statuses:?}");
    everything_is_given_back(&boss).await;
    let refused = boss.read("/api/v1/stats").await["request_memory"]["refused"].as_u64().unwrap();
    assert!(refused > 0);
    std::sync::Arc::into_inner(boss).unwrap().finish().await;
}

#[tokio::test]
async fn op_10_answers_without_end_share_one_budget() {
    let sandbox = Sandbox::new().with_config("limits.request_memory = \"128MiB\"");
    let first = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n\
        {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\",\"message\":{\"role\":\"assistant\",\"content\":\"";
    let raw = |mib: u64| RawAnswer {
        first: first.to_owned(),
        piece: "x".repeat(MIB),
        times: mib,
        last: "\"}}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,\"total_tokens\":2}}".to_owned(),
    };
    let answers = |mib| Behaviour { raw: Some(raw(mib)), ..Behaviour::default() };
    let _long = sandbox.fake_model("long", answers(48));
    let _endless = sandbox.fake_model("endless", answers(400));
    let _small = sandbox.fake_model("small", Behaviour { reply: Some("yes".to_owned()), ..Behaviour::default() });
    let boss = sandbox.start().await;
    let memory = PeakMemory::of(boss.pid());
    // The answer needs more memory than one request may ever hold.
    let answer = boss.chat("endless", "?").await;
    assert_eq!((answer.status, answer.error_code().as_str()), (StatusCode::BAD_GATEWAY, "backend_error"), "{answer:?}");
    // Clients that do not read keep their answers in memory.
    let mut unread = Vec::new();
    for _ in 0..6 {
        let body = model_boss_tests::question("long", "?").to_string();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(boss.client().address()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        within(PATIENCE, "a status", stream.read_exact(&mut first)).await.unwrap();
        unread.push((String::from_utf8(first[9..].to_vec()).unwrap(), stream));
        assert_eq!(boss.chat("small", "?").await.text(), "yes", "small requests are served all along");
    }
    let statuses: Vec<&str> = unread.iter().map(|(status, _)| status.as_str()).collect();
    assert!(statuses.starts_with(&["200", "200", "503"]), "{statuses:?}");
    let grown = memory.growth_mib();
    assert!(grown < 128 + SLACK_MIB, "{grown} MiB");
    drop(unread);
    everything_is_given_back(&boss).await;
    let again = boss.chat("long", "?").await;
    assert_eq!((again.status, again.body.len() > 48 * MIB), (StatusCode::OK, true));
    boss.finish().await;
}
