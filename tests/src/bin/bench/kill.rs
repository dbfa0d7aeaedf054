//! Ten thousand requests while every worker is killed every two seconds, and the result of each request.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use model_boss_tests::{Behaviour, Boss, Client, Event, Sandbox, question, text_of_events};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The default number of requests.
const REQUESTS: usize = 10_000;
/// The number of clients, each of which sends one request after another.
const CLIENTS: usize = 48;
/// The time between two kills.
const EVERY: Duration = Duration::from_secs(2);
const MODELS: [&str; 3] = ["alpha", "beta", "gamma"];
const TOKENS: u64 = 16;

/// Runs the measurement; fails when a request got no final answer, or a process is left.
pub(crate) async fn run(requests: Option<String>) -> ExitCode {
    let requests = requests.and_then(|number| number.parse().ok()).unwrap_or(REQUESTS);
    let config = "back_off_first = \"10ms\"\nback_off_limit = \"200ms\"\nmax_load_attempts = 50\nmin_hold = \"100ms\"";
    let sandbox = Sandbox::new().with_config(config);
    for name in MODELS {
        // The workers' behaviour comes from a file: reports over the control socket would cost more than the answers.
        let folder = sandbox.path("models").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let behaviour = Behaviour { load_ms: 30, tokens: TOKENS, tokens_per_s: 200.0, ..Behaviour::default() };
        std::fs::write(folder.join("fake.json"), serde_json::to_string(&behaviour).unwrap()).unwrap();
        sandbox.model(name, &folder, "vram = \"64MiB\"\nmax_concurrent = 8");
    }
    let boss = sandbox.start().await;
    let started = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| tokio::spawn(ask_all(boss.client(), Arc::clone(&next), requests))).collect();
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    let mut killed = 0;
    let mut ticks = tokio::time::interval(EVERY);
    ticks.tick().await;
    let mut answered = tokio::spawn(async move {
        let mut all = Vec::new();
        for client in clients {
            // The requests of a client that panicked are missing in the sum, which shows them.
            all.extend(client.await.unwrap_or_default());
        }
        all
    });
    let all = loop {
        tokio::select! {
            all = &mut answered => break all.unwrap(),
            _ = ticks.tick() => killed += kill_workers(&boss).await,
        }
    };
    for outcome in all {
        *outcomes.entry(outcome).or_default() += 1;
    }
    let told: usize = outcomes.values().sum();
    println!(
        "{requests} requests, {CLIENTS} clients, {} models, {killed} workers killed with SIGKILL in {:.1} s",
        MODELS.len(),
        started.elapsed().as_secs_f64()
    );
    for (outcome, count) in &outcomes {
        println!("  {count:>6}  {outcome}");
    }
    let lost = requests - told;
    println!("  {lost:>6}  without a final answer");
    boss.finish().await;
    println!("  nothing stays behind: no process, no lease");
    if lost == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn ask_all(client: Client, next: Arc<AtomicUsize>, requests: usize) -> Vec<String> {
    let mut outcomes = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= requests {
            return outcomes;
        }
        outcomes.push(ask(client, number).await);
    }
}

/// Sends one request; returns its result in words.
async fn ask(client: Client, number: usize) -> String {
    let mut body = question(MODELS[number % MODELS.len()], "?");
    body["stream"] = number.is_multiple_of(2).into();
    body["x_client_id"] = format!("client-{}", number % 7).into();
    let mut answer = client.stream("/v1/chat/completions", &body).await;
    if answer.status != StatusCode::OK || body["stream"] == false {
        let answer = answer.into_answer().await;
        if answer.status == StatusCode::OK {
            assert_eq!(answer.json()["usage"]["completion_tokens"], TOKENS, "{answer:?}");
            return "answered whole".to_owned();
        }
        return format!("told: {} {}", answer.status.as_u16(), answer.error_code());
    }
    let events = answer.rest().await;
    match events.last() {
        Some(Event::Done) => {
            assert_eq!(text_of_events(&events).split(' ').count() as u64, TOKENS, "{events:?}");
            "answered whole, streamed".to_owned()
        }
        Some(Event::Data(last)) if last["error"]["code"].is_string() => {
            format!("told in the stream: {}", last["error"]["code"].as_str().unwrap_or_default())
        }
        other => panic!("a stream ended with {other:?}"),
    }
}

async fn kill_workers(boss: &Boss) -> usize {
    let slots = boss.read("/api/v1/slots").await;
    let pids = slots["slots"].as_array().into_iter().flatten().filter_map(|slot| slot["pid"].as_u64());
    let mut killed = 0;
    for pid in pids.filter_map(|pid| i32::try_from(pid).ok()) {
        // A signal to a process that has already ended fails, which does no harm.
        killed += usize::from(kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok());
    }
    killed
}
