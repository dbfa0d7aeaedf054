//! Three times more requests than a machine can answer, for a minute. The command measures the rate of answers, the
//! time to refusals, and the delay of important requests.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use http::StatusCode;
use model_boss_protocol::Later;
use model_boss_tests::{Behaviour, Client, Sandbox, question};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// The requests that the model serves at once. The next constants set the time of one: this many tokens on average,
/// half as many more or less. Answers of equal length would stay in step and end together.
const AT_ONCE: u32 = 8;
const TOKENS: u64 = 20;
const SPREAD: u64 = 21;
const TOKENS_PER_S: f64 = 100.0;
/// The requests that the machine can answer in a second.
const CAPACITY: f64 = AT_ONCE as f64 * TOKENS_PER_S / TOKENS as f64;
const OVERLOAD: f64 = 3.0;
/// Important requests in a second: a tenth of the capacity.
const IMPORTANT: f64 = CAPACITY / 10.0;
const UNLOADED: Duration = Duration::from_secs(15);
/// The time until queue and clients reach a steady state.
const SETTLE: Duration = Duration::from_secs(10);
const MEASURED: Duration = Duration::from_secs(60);

/// One request and its result.
struct Told {
    important: bool,
    sent: Instant,
    took: Duration,
    status: StatusCode,
}

/// Runs the measurement; fails when an answer is neither a completion nor a refusal.
pub(crate) async fn run(processor: &str) -> ExitCode {
    let sandbox = Sandbox::new().with_config("[limits]\nqueue_per_model = 64");
    let folder = sandbox.path("models").join("model");
    std::fs::create_dir_all(&folder).unwrap();
    let behaviour = Behaviour { tokens: TOKENS + SPREAD, tokens_per_s: TOKENS_PER_S, ..Behaviour::default() };
    std::fs::write(folder.join("fake.json"), serde_json::to_string(&behaviour).unwrap()).unwrap();
    sandbox.model("model", &folder, &format!("vram = \"64MiB\"\nmax_concurrent = {AT_ONCE}"));
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("model", "?").await.status, StatusCode::OK);

    let alone = send(boss.client(), UNLOADED, &[(true, IMPORTANT)]).await;
    let crowd = [(true, IMPORTANT), (false, CAPACITY * OVERLOAD - IMPORTANT)];
    let began = Instant::now();
    let all = send(boss.client(), SETTLE.saturating_add(MEASURED), &crowd).await;
    boss.finish().await;

    let measured = |told: &&Told| {
        let end = told.sent.later(told.took).duration_since(began);
        end >= SETTLE && end < SETTLE.saturating_add(MEASURED)
    };
    let all: Vec<&Told> = all.iter().filter(measured).collect();
    let answered = |told: &&&Told| told.status == StatusCode::OK;
    let refused = |told: &&&Told| told.status == StatusCode::TOO_MANY_REQUESTS;
    let goodput = all.iter().filter(answered).count() as f64 / MEASURED.as_secs_f64();
    let times = |told: Vec<Duration>| {
        let mut told = told;
        told.sort_unstable();
        let at = |share: f64| told.get(((told.len().max(1) - 1) as f64 * share) as usize).copied().unwrap_or_default();
        format!("p50 {:.1} ms, p99 {:.1} ms, longest {:.1} ms", ms(at(0.5)), ms(at(0.99)), ms(at(1.0)))
    };
    println!(
        "{processor}; {AT_ONCE} at once, {CAPACITY:.0} answers/s at most, {:.0} requests/s sent",
        CAPACITY * OVERLOAD
    );
    println!("  goodput              {goodput:.1} answers/s = {:.1} % of capacity", 100.0 * goodput / CAPACITY);
    let refusals = all.iter().filter(refused).map(|told| told.took).collect::<Vec<_>>();
    println!("  refusals             {} ({})", refusals.len(), times(refusals.clone()));
    println!("  important, unloaded  {}", times(alone.iter().map(|told| told.took).collect()));
    let important = all.iter().filter(|told| told.important);
    println!("  important, overload  {}", times(important.clone().filter(answered).map(|told| told.took).collect()));
    println!("  important refused    {} of {}", important.clone().filter(refused).count(), important.count());
    let strange = all.iter().filter(|told| !answered(told) && !refused(told)).count();
    println!("  anything else        {strange}");
    if strange == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Sends requests of each kind at its rate for `span`, without waiting for answers; then waits for the last one.
async fn send(client: Client, span: Duration, kinds: &[(bool, f64)]) -> Vec<Told> {
    let end = Instant::now().later(span);
    let mut senders = JoinSet::new();
    for &(important, per_second) in kinds {
        senders.spawn(async move {
            let mut requests = JoinSet::new();
            let mut ticks = interval(Duration::from_secs_f64(1.0 / per_second));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            for number in 0_u64.. {
                if Instant::now() >= end {
                    break;
                }
                ticks.tick().await;
                // Every length occurs equally often, in mixed order: 8 and 21 have no common factor.
                let tokens = TOKENS - SPREAD / 2 + number * 8 % SPREAD;
                requests.spawn(ask(client, important, tokens));
            }
            requests.join_all().await
        });
    }
    senders.join_all().await.into_iter().flatten().collect()
}

async fn ask(client: Client, important: bool, tokens: u64) -> Told {
    let mut body = question("model", "?");
    body["max_tokens"] = tokens.into();
    body["x_priority"] = if important { 2 } else { 5 }.into();
    body["x_client_id"] = if important { "important" } else { "crowd" }.into();
    let sent = Instant::now();
    let answer = client.post("/v1/chat/completions", &body).await;
    Told { important, sent, took: sent.elapsed(), status: answer.status }
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
