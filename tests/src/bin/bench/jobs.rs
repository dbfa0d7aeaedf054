//! A batch of 50,000 lines: the coordinator's memory, and what a person who chats meanwhile feels.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use http::Method;
use http::header::CONTENT_TYPE;
use model_boss_tests::{Behaviour, Boss, Sandbox, question};
use serde_json::{Value, json};

const ENDPOINT: &str = "/v1/chat/completions";
/// Lines of a batch, where the command does not say.
const LINES: usize = 50_000;
/// Chats of each measurement.
const CHATS: usize = 200;
/// The pause between two chats of a person.
const PAUSE: Duration = Duration::from_millis(50);
/// The largest p99 beside a batch, as a multiple of that without.
const LIMIT: f64 = 1.3;
/// The most that memory may grow while a batch runs, in bytes.
const GROWTH: u64 = 64 << 20;

/// Runs both measurements. Fails if memory grows, a line is lost, or chats are slowed too much.
pub(crate) async fn run(lines: Option<String>, processor: &str, figures: fn(Vec<Duration>) -> String) -> ExitCode {
    let lines = lines.and_then(|text| text.parse().ok()).unwrap_or(LINES);
    println!("batch of {lines} lines, {processor}");
    let is_flat = memory(lines).await;
    let is_quick = beside_chats(lines, figures).await;
    if is_flat && is_quick { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A batch by a fake worker that answers at once, to its end.
async fn memory(lines: usize) -> bool {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour { tokens: 64, ..Behaviour::default() });
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let before = resident(&boss);
    let began = Instant::now();
    let id = start(&boss, lines, "alpha").await;
    let accepted = began.elapsed();
    let (mut most, mut batch) = (before, Value::Null);
    while batch["status"] != "completed" {
        tokio::time::sleep(Duration::from_millis(200)).await;
        most = most.max(resident(&boss));
        batch = boss.read(&format!("/v1/batches/{id}")).await;
        assert!(batch["status"] != "failed" && batch["status"] != "expired", "{batch}");
    }
    let took = began.elapsed();
    assert_eq!(batch["request_counts"], json!({ "total": lines, "completed": lines, "failed": 0 }));
    let grown = most.saturating_sub(before);
    println!(
        "  fake worker: uploaded and accepted in {accepted:.1?}, answered in {took:.1?} ({:.0} lines a second)",
        lines as f64 / took.as_secs_f64()
    );
    println!("  memory of the coordinator: {} MiB before, {} MiB at most", before >> 20, most >> 20);
    boss.finish().await;
    if grown > GROWTH {
        println!("  FAILED: it grew by {} MiB, and may grow by {}", grown >> 20, GROWTH >> 20);
    }
    grown <= GROWTH
}

/// Chats with the built-in model, without a batch and beside one for the same model.
async fn beside_chats(lines: usize, figures: fn(Vec<Duration>) -> String) -> bool {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/guide");
    let sandbox = Sandbox::new();
    sandbox.model("guide", &guide.canonicalize().expect("the built-in model is in manifests/guide"), "");
    let boss = sandbox.start_with_real_worker().await;
    chats(&boss, 20).await;
    let alone = chats(&boss, CHATS).await;
    let id = start(&boss, lines, "guide").await;
    loop {
        let batch = boss.read(&format!("/v1/batches/{id}")).await;
        if batch["request_counts"]["completed"].as_u64() > Some(20) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let before = answered(&boss, &id).await;
    let began = Instant::now();
    let beside = chats(&boss, CHATS).await;
    let rate = (answered(&boss, &id).await - before) as f64 / began.elapsed().as_secs_f64();
    boss.client().post(&format!("/v1/batches/{id}/cancel"), &json!({})).await;
    let slower = p99(&beside).as_secs_f64() / p99(&alone).as_secs_f64();
    println!("  guide, one person who chats, alone         {}", figures(alone));
    println!("  the same beside the batch                  {}", figures(beside));
    println!("  p99: {slower:.2} times that without; the batch went on with {rate:.1} lines a second");
    boss.finish().await;
    if slower > LIMIT {
        println!("  FAILED: it may be {LIMIT} times");
    }
    slower <= LIMIT
}

/// The times of whole answers, one chat after another.
async fn chats(boss: &Boss, number: usize) -> Vec<Duration> {
    let mut times = Vec::new();
    for chat in 0..number {
        let mut body = question("guide", &format!("Which port does model-boss listen on? {chat}"));
        (body["temperature"], body["max_tokens"], body["x_priority"]) = (0.into(), 24.into(), "interactive".into());
        let began = Instant::now();
        let answer = boss.client().post(ENDPOINT, &body).await;
        assert!(answer.status.is_success(), "{answer:?}");
        times.push(began.elapsed());
        tokio::time::sleep(PAUSE).await;
    }
    times
}

fn p99(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() * 99 / 100).min(sorted.len() - 1)]
}

async fn answered(boss: &Boss, id: &str) -> u64 {
    boss.read(&format!("/v1/batches/{id}")).await["request_counts"]["completed"].as_u64().unwrap_or(0)
}

/// Uploads the lines, and starts a batch of them.
async fn start(boss: &Boss, lines: usize, model: &str) -> String {
    let mut form = "--edge\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\n\
         content-disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n"
        .to_owned();
    for number in 0..lines {
        let mut body = question(model, &format!("Say something about the number {number}."));
        body["max_tokens"] = 32.into();
        let line = json!({ "custom_id": format!("line-{number}"), "method": "POST", "url": ENDPOINT, "body": body });
        form += &format!("{line}\n");
    }
    form += "\r\n--edge--\r\n";
    let client = boss.client();
    let mut request = client.request(Method::POST, "/v1/files", form);
    request.headers_mut().insert(CONTENT_TYPE, "multipart/form-data; boundary=edge".parse().expect("a header"));
    let file = client.send(request).await;
    assert!(file.status.is_success(), "{file:?}");
    let wish = json!({ "input_file_id": file.json()["id"], "endpoint": ENDPOINT, "completion_window": "24h" });
    let batch = client.post("/v1/batches", &wish).await;
    batch.json()["id"].as_str().expect("a batch has a name").to_owned()
}

/// The memory of the coordinator's process, in bytes.
fn resident(boss: &Boss) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", boss.pid())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}
