//! The backend of every gateway: the same 1 KB answer to every request, or one frame of a stream each 20 ms. It follows
//! the contract of a worker, so that the coordinator can start it. For the other gateways it is started by hand.

use std::fs;
use std::io::BufRead;
use std::time::Duration;

use model_boss_protocol::{Later, Readiness, WorkerHealth, WorkerSpec};
use nix::unistd::{getppid, setsid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};

use super::wire::{Head, Length, clock, number_after, position};

/// The time between two frames of a stream.
pub(super) const PACE: Duration = Duration::from_millis(20);
/// The field of a frame with the time at which it was written, in nanoseconds of [`clock`].
pub(super) const SENT: &[u8] = b"\"sent\":";
/// The size of a whole answer's body.
const ANSWER: usize = 1024;

/// Runs as a worker: it reads the start line from standard input, and ends when that input ends. It prints its address,
/// in case the port was 0.
pub(crate) async fn run() {
    share_alike();
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    let spec = WorkerSpec::from_line(&line).unwrap();
    std::thread::spawn(|| {
        _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        std::process::exit(0);
    });
    let listener = TcpListener::bind(("127.0.0.1", spec.port)).await.unwrap();
    println!("http://{}", listener.local_addr().unwrap());
    let health = message("application/json", &serde_json::to_vec(&health(&spec)).unwrap());
    let models = message(
        "application/json",
        br#"{"object":"list","data":[{"id":"mock","object":"model","created":1,"owned_by":"bench"}]}"#,
    );
    let answers: &'static Answers = Box::leak(Box::new(Answers { health, models, whole: whole_answer() }));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        // A broken connection is no fault of the backend.
        tokio::spawn(async move { _ = connection(stream, answers).await });
    }
}

/// Gives this process a session and an equal share of the CPUs. The coordinator gives each worker a session, and Linux
/// gives each session its own share of the CPUs. So every backend gets both, with the weight of its parent.
fn share_alike() {
    let group = fs::read_to_string(format!("/proc/{}/autogroup", getppid())).unwrap_or_default();
    // The call fails where the process leads a session already, or the kernel has no such groups: neither is a fault.
    _ = setsid();
    if let Some((_, nice)) = group.trim().rsplit_once(' ') {
        _ = fs::write("/proc/self/autogroup", nice);
    }
}

struct Answers {
    health: Vec<u8>,
    models: Vec<u8>,
    whole: Vec<u8>,
}

fn health(spec: &WorkerSpec) -> WorkerHealth {
    WorkerHealth {
        status: Readiness::Ok,
        generation: spec.generation,
        proof: spec.proof.clone(),
        progress: 1.0,
        context_length: Some(8192),
        weight_bytes: Some(0),
        held: Vec::new(),
        may_hold: Vec::new(),
        engine: Default::default(),
        cores: None,
        streaming: None,
        sandbox: None,
    }
}

fn message(kind: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes =
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn whole_answer() -> Vec<u8> {
    let head = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"mock","choices":[{"index":0,"message":{"role":"assistant","content":""#;
    let tail = r#""},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20}}"#;
    let filling = "x".repeat(ANSWER - head.len() - tail.len());
    message("application/json", format!("{head}{filling}{tail}").as_bytes())
}

async fn connection(mut stream: TcpStream, answers: &Answers) -> std::io::Result<()> {
    let mut received = Vec::with_capacity(16 * 1024);
    loop {
        let (head, end) = loop {
            if let Some(found) = request(&received) {
                break found;
            }
            if stream.read_buf(&mut received).await? == 0 {
                return Ok(());
            }
        };
        let body = &received[head.len..end];
        if received.starts_with(b"GET /health") {
            stream.write_all(&answers.health).await?;
        } else if received.starts_with(b"GET ") {
            stream.write_all(&answers.models).await?;
        } else if position(body, b"\"stream\":true").is_some() {
            let frames = number_after(body, b"\"max_tokens\":").unwrap_or(1);
            stream_frames(&mut stream, frames).await?;
        } else {
            stream.write_all(&answers.whole).await?;
        }
        received.drain(..end);
    }
}

/// The request at the beginning of `received`, when all of it has arrived, and its length.
fn request(received: &[u8]) -> Option<(Head, usize)> {
    let head = Head::find(received)?;
    let end = match head.body {
        Length::Known(size) => head.len + size,
        Length::Chunked => head.len + position(&received[head.len..], b"0\r\n\r\n")? + 5,
    };
    (received.len() >= end).then_some((head, end))
}

/// Sends the first frame at once, together with the head, as an engine with a warm prefix would.
async fn stream_frames(stream: &mut TcpStream, frames: u64) -> std::io::Result<()> {
    let begun = Instant::now();
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n\
          transfer-encoding: chunked\r\n\r\n",
    );
    for number in 0..frames {
        if number > 0 {
            let due = PACE.saturating_mul(u32::try_from(number).unwrap());
            sleep_until(Instant::from_std(begun.into_std().later(due))).await;
        }
        let frame = format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"mock\",\
             \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" word\"}},\"logprobs\":null,\
             \"finish_reason\":null}}],\"n\":{number},\"sent\":{}}}\n\n",
            clock().as_nanos()
        );
        push_chunk(&mut out, frame.as_bytes());
        stream.write_all(&out).await?;
        out.clear();
    }
    push_chunk(&mut out, b"data: [DONE]\n\n");
    out.extend_from_slice(b"0\r\n\r\n");
    stream.write_all(&out).await
}

fn push_chunk(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}
