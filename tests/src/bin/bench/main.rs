//! Measurements with real processes. Each prints its figures and its method, so that a figure can be reproduced.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails ends with a line number")]

mod embed;
mod experts;
mod image;
mod jobs;
mod kill;
mod models;
mod overload;
mod peer;
mod proxy;
mod serving;
mod speech;
mod stream;
mod table;

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use model_boss_tests::{Behaviour, Boss, LoneWorker, Sandbox, question};
use tokio::net::TcpStream;

const BENCHES: [(&str, &str); 27] = [
    ("overload", "three times more requests than can be answered, for a minute: goodput, refusals, the important ones"),
    ("resolve", "what a request's names mean, with 1,000 models and 100 tasks (no processes)"),
    ("queue", "one event of the scheduler with 100,000 requests waiting for 1,000 models (no processes)"),
    (
        "lease",
        "one operation on the lease ledger, in Redis and embedded, with 64 leases and 8 clients (no coordinator)",
    ),
    ("build", "a build from nothing by one of cargo's profiles: serve, quick, release, dist"),
    ("swap-order", "an hour of models that take turns in memory, against first come, first served (simulated)"),
    (
        "first-byte",
        "the built-in model: from process start to listening, from a cold and a warm request to the first token",
    ),
    ("door", "what the coordinator adds: whole answers of one token from a fake worker, one and 32 clients at a time"),
    (
        "proxy",
        "CPU per request, added latency, a thousand streams: beside nginx and vllm-router where they are installed",
    ),
    (
        "kill",
        "10,000 requests (or as many as named) while every worker is killed each 2 s: fails if one gets no final answer",
    ),
    (
        "jobs",
        "a batch of 50,000 lines (or as many as named): the coordinator's memory, and chats beside it; fails beyond 1.3x",
    ),
    ("products", "one core: products of each type of weights, few rows and many (no processes)"),
    ("decode", "tokens per second of the worker, one after another: beside llama-bench where it is installed"),
    (
        "stream",
        "a model larger than its memory control group, layers read in each step: beside llama.cpp's mmap where it is installed",
    ),
    (
        "experts",
        "a mixture of experts of twice its memory, experts read on demand: beside whole layers and llama.cpp's mmap",
    ),
    (
        "swap",
        "two models and room for one, and one from a cold file: request to first token, beside llama-server's router mode",
    ),
    ("batch", "tokens per second of one and of eight clients together: beside llama-server where it is installed"),
    (
        "prefix",
        "the first token of a long prompt, and of one that begins like it: beside llama-server where it is installed",
    ),
    ("parking", "the first token of a conversation whose model left memory for another: parked, and computed again"),
    (
        "speculation",
        "answers without drafts, with drafts looked up, and with a draft model: beside llama-server where it is installed",
    ),
    (
        "agents",
        "eight conversations of fifty turns at once, each a call of a tool: beside llama-server where it is installed",
    ),
    (
        "schema",
        "answers under a JSON schema: first token, speed, gaps of another answer: beside llama-server where it is installed",
    ),
    (
        "embed",
        "vectors of texts in bulk and one at a time: beside llama-server, onnxruntime and torch where they are installed",
    ),
    ("speech", "the first sound of a text and its rate, by a VITS model: beside transformers where it is installed"),
    ("image", "a picture and its steps, by Stable Diffusion: beside diffusers where it is installed"),
    ("masks", "the tokens that may follow in an answer to a form, for the vocabulary of a GGUF file (no processes)"),
    ("prefill", "prompt tokens per second of the worker: beside llama-bench where it is installed"),
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("first-byte") => first_byte().await,
        Some("door") => door().await,
        Some("kill") => return kill::run(std::env::args().nth(2)).await,
        Some("jobs") => return jobs::run(std::env::args().nth(2), &processor(), figures).await,
        Some("overload") => return overload::run(&processor()).await,
        Some("proxy") => return proxy::run(std::env::args().skip(2), processor()).await,
        Some("decode") => return models::run(models::Part::Decode, std::env::args().skip(2), &processor()),
        Some("prefill") => return models::run(models::Part::Prefill, std::env::args().skip(2), &processor()),
        Some("swap") => return serving::run(serving::Part::Swap, std::env::args().skip(2), &processor()).await,
        Some("prefix") => return serving::run(serving::Part::Prefix, std::env::args().skip(2), &processor()).await,
        Some("parking") => return serving::run(serving::Part::Parking, std::env::args().skip(2), &processor()).await,
        Some("speculation") => {
            return serving::run(serving::Part::Speculation, std::env::args().skip(2), &processor()).await;
        }
        Some("agents") => return serving::run(serving::Part::Agents, std::env::args().skip(2), &processor()).await,
        Some("schema") => return serving::run(serving::Part::Schema, std::env::args().skip(2), &processor()).await,
        Some("batch") => return serving::run(serving::Part::Batch, std::env::args().skip(2), &processor()).await,
        Some("embed") => return embed::run(std::env::args().skip(2), &processor()).await,
        Some("speech") => return speech::run(std::env::args().skip(2), &processor()).await,
        Some("image") => return image::run(std::env::args().skip(2), &processor()).await,
        Some("experts") => return experts::run(std::env::args().skip(2), &processor()),
        Some("stream") => return stream::run(std::env::args().skip(2), &processor()),
        // The coordinator starts this program as the worker behind the gateways of `proxy`.
        Some("serve") => proxy::backend::run().await,
        None | Some("list") => BENCHES.iter().for_each(|(name, what)| println!("{name:<12} {what}")),
        Some(other) => {
            eprintln!("'{other}' is no measurement; scripts/bench list names them");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

async fn first_byte() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/guide");
    let sandbox = Sandbox::new();
    sandbox.model("guide", &guide.canonicalize().expect("the built-in model is in manifests/guide"), "");
    let (mut listening, mut cold, mut warm, mut gaps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..5 {
        let started = Instant::now();
        let boss = sandbox.start_with_real_worker().await;
        listening.push(started.elapsed());
        cold.push(time_to_first_token(&boss, &mut Vec::new()).await);
        for _ in 0..20 {
            warm.push(time_to_first_token(&boss, &mut gaps).await);
        }
        boss.finish().await;
    }
    println!("guide, release build, {}", processor());
    println!("  process start to listening   {}", figures(listening));
    println!("  cold request to first token  {}   (worker start and load included)", figures(cold));
    println!("  warm request to first token  {}", figures(warm));
    println!("  between tokens               {}", figures(gaps));
}

/// Streams one greedy answer; pushes the times between its tokens.
async fn time_to_first_token(boss: &Boss, gaps: &mut Vec<Duration>) -> Duration {
    let mut body = question("guide", "Which port does model-boss listen on?");
    body["stream"] = true.into();
    body["temperature"] = 0.into();
    let started = Instant::now();
    let mut stream = boss.client().stream("/v1/chat/completions", &body).await;
    stream.token().await;
    let first = started.elapsed();
    let mut last = Instant::now();
    while let Some(event) = stream.next().await {
        if !model_boss_tests::text_of_events(&[event]).is_empty() {
            gaps.push(last.elapsed());
            last = Instant::now();
        }
    }
    first
}

/// Measures the same requests through the coordinator and directly to a fake worker.
async fn door() {
    let sandbox = Sandbox::new();
    let behaviour = Behaviour { reply: Some("yes".to_owned()), ..Behaviour::default() };
    // The behaviour comes from a file, not over the control socket: reports would be part of the figure.
    let folder = sandbox.path("models/alpha");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("fake.json"), serde_json::to_string(&behaviour).unwrap()).unwrap();
    sandbox.model("alpha", &folder, "vram = \"64MiB\"\nmax_concurrent = 64");
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("alpha", "?").await.text(), "yes");
    let mut worker = LoneWorker::spawn("model-boss-fake-worker");
    worker.open_gate(&folder);
    worker.ready().await;

    println!("whole answers of one token, fake worker, keep-alive connections, release build, {}", processor());
    for clients in [1, 32] {
        for (where_to, address) in
            [("straight to the worker", worker.address()), ("through the door", boss.client().address())]
        {
            let started = Instant::now();
            let each = 4_000 / clients;
            let tasks: Vec<_> = (0..clients).map(|_| tokio::spawn(ask_again_and_again(address, each))).collect();
            let mut times = Vec::new();
            for task in tasks {
                times.extend(task.await.unwrap());
            }
            let rate = times.len() as f64 / started.elapsed().as_secs_f64();
            println!("  {clients:>2} clients, {where_to:<22}  {}  {rate:>7.0} requests/s", figures(times));
        }
    }
    boss.finish().await;
}

async fn ask_again_and_again(address: SocketAddr, times: usize) -> Vec<Duration> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let body: Bytes = question("alpha", "?").to_string().into();
    let mut measured = Vec::new();
    for _ in 0..times {
        let started = Instant::now();
        ask_once(&mut sender, address, body.clone()).await;
        measured.push(started.elapsed());
    }
    drop(sender);
    connection.await.unwrap().unwrap();
    measured
}

async fn ask_once(sender: &mut SendRequest<Full<Bytes>>, address: SocketAddr, body: Bytes) {
    // The coordinator needs no key here, and forwards none.
    let request = http::Request::builder()
        .method(Method::POST)
        .uri("/v1/chat/completions")
        .header(header::HOST, address.to_string())
        .header(header::AUTHORIZATION, format!("Bearer {}", LoneWorker::token().reveal()))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .unwrap();
    sender.ready().await.unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert!(answer.status().is_success());
    answer.into_body().collect().await.unwrap();
}

/// The median, the 99th percentile and the maximum, in milliseconds.
fn figures(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize].as_secs_f64() * 1e3;
    format!("p50 {:>8.2} ms   p99 {:>8.2} ms   worst {:>8.2} ms   n = {}", at(0.5), at(0.99), at(1.0), times.len())
}

/// The processor, as the system names it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} cores of {}", model.trim_start_matches([' ', '\t', ':']))
}
