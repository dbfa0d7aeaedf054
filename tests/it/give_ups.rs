//! RC-11 under load: clients close their connections at every moment, above all when their turn comes. After any number
//! of them no place, no queue entry and no count is left, and the process can end.
//!
//! The tests run a fixed number. For more: `MODEL_BOSS_CHAOS_GIVE_UPS=100000 MODEL_BOSS_CHAOS_SEED=7 cargo nextest run
//! -P chaos -p model-boss-tests give_ups`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model_boss_tests::{Boss, Client, Dice, PATIENCE, Sandbox, amount, question, until};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cloud::{Stub, message, start};

const CHAT: &str = "/v1/chat/completions";
/// The abandoned requests of both tests together.
const GIVE_UPS: u64 = 1_000;
/// The time that a worker takes for an answer.
const ANSWER: Duration = Duration::from_millis(20);
/// The number of requests that wait for the running one.
const QUEUED: u64 = 8;
/// The range around the running request's end in which waiting clients disconnect.
const AROUND: Duration = Duration::from_millis(3);
/// The clients of the mixed test.
const CROWD: u64 = 40;

/// A model whose worker takes [`ANSWER`] for each request, with `at_once` in parallel.
fn model(sandbox: &Sandbox, name: &str, at_once: u32, more: &str) {
    let text = format!(
        "vram = \"64MiB\"\nmax_concurrent = {at_once}\n[custom.fake]\ntokens = 2\nfirst_token_ms = {}\n{more}",
        ANSWER.as_millis()
    );
    sandbox.model(name, &sandbox.path("models").join(name), &text);
}

fn asked_by(model: &str, client: u64) -> Value {
    let mut body = question(model, "?");
    body["x_client_id"] = format!("client-{client}").into();
    body
}

/// Sends a request, and closes the connection after `patience`; returns whether it did.
async fn impatient(client: Client, path: &'static str, body: Value, patience: Duration) -> bool {
    timeout(patience, client.post(path, &body)).await.is_err()
}

/// Checks that every place and count is released, as far as the API shows.
pub(crate) async fn nothing_is_left(boss: &Boss) {
    let quiet = async || {
        let (stats, clients) = (boss.read("/api/v1/stats").await, boss.read("/api/v1/clients").await);
        let slots = boss.read("/api/v1/slots").await;
        let counts =
            |view: &Value, names: &[&str]| -> u64 { names.iter().filter_map(|name| view[*name].as_u64()).sum() };
        let each = |views: &Value| views.as_array().cloned().unwrap_or_default();
        let mut left = counts(&stats, &["queued", "running"]);
        left += each(&clients["clients"]).iter().map(|client| counts(client, &["queued", "running"])).sum::<u64>();
        left += each(&slots).iter().chain(&each(&slots["slots"])).map(|slot| counts(slot, &["running"])).sum::<u64>();
        if left == 0 { Some(()) } else { None }
    };
    until(PATIENCE, "every count of waiting and running requests is 0", quiet).await;
}

/// Checks that places are free, models are unloaded, and the process ends without its grace.
async fn all_goes_on(boss: Boss, models: &[&str]) {
    nothing_is_left(&boss).await;
    for model in models {
        assert_eq!(boss.chat(model, "?").await.status, 200, "'{model}' answers");
    }
    let unloaded = boss.client().post("/api/v1/unload", &json!({})).await;
    assert_eq!(unloaded.status, 200, "{unloaded:?}");
    let output = boss.output().clone();
    boss.finish().await;
    assert!(!output.text().contains("drain_grace"), "the end waited for requests that are gone:\n{}", output.text());
}

/// A model with one place, a running request, and waiting clients that disconnect just as the place becomes free.
#[tokio::test]
async fn rc_11_who_leaves_as_the_turn_comes_takes_no_place_along() {
    let sandbox = Sandbox::new();
    model(&sandbox, "one", 1, "");
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("one", "?").await.status, 200);
    let mut dice = Dice::new(amount("MODEL_BOSS_CHAOS_SEED", 1));
    let rounds = amount("MODEL_BOSS_CHAOS_GIVE_UPS", GIVE_UPS).div_ceil(2 * QUEUED);
    for round in 0..rounds {
        let running = boss.ask(asked_by("one", QUEUED));
        let mut leaving = JoinSet::new();
        let spread = 2 * u64::try_from(AROUND.as_micros()).unwrap();
        for client in 0..QUEUED {
            let patience = ANSWER - AROUND + Duration::from_micros(dice.below(spread));
            leaving.spawn(impatient(boss.client(), CHAT, asked_by("one", client), patience));
        }
        leaving.join_all().await;
        let answer = running.await.unwrap();
        assert_eq!(answer.status, 200, "round {round}: {answer:?}");
    }
    all_goes_on(boss, &["one"]).await;
}

/// Clients of every kind of request disconnect at any moment. There are requests to workers, to a provider and to a
/// rung after one that fails, and orders of operators.
#[tokio::test]
async fn rc_11_give_ups_at_every_moment_leave_nothing_behind() {
    let stub = Stub::start("application/json", message("four")).await;
    let providers = format!(
        "[providers.claude]\nbase_url = \"http://{}\"\nmodels = {{ opus = \"claude-opus-x\" }}\n\
         prices = {{ claude-opus = {{ input = 0, output = 0 }} }}",
        stub.address
    );
    let sandbox = Sandbox::new().with_config(&providers);
    model(&sandbox, "one", 1, "");
    model(&sandbox, "many", 4, "");
    model(&sandbox, "garbled", 2, "malformed = \"not_http\"\n");
    std::fs::write(sandbox.path("tasks.yaml"), "tasks: {climbs: {ladder: [garbled, one, many]}}\n").unwrap();
    let boss = start(&sandbox).await;
    for model in ["one", "many"] {
        assert_eq!(boss.chat(model, "?").await.status, 200);
    }
    let wanted = amount("MODEL_BOSS_CHAOS_GIVE_UPS", GIVE_UPS) / 2;
    let given_up = Arc::new(AtomicU64::new(0));
    let mut crowd = JoinSet::new();
    for number in 0..CROWD {
        let mut dice = Dice::new(amount("MODEL_BOSS_CHAOS_SEED", 1) + number * 1_000_003);
        let (client, given_up) = (boss.client(), Arc::clone(&given_up));
        crowd.spawn(async move {
            while given_up.load(Ordering::Relaxed) < wanted {
                let (path, body) = ask(&mut dice, number);
                let patience = Duration::from_micros(dice.below(60_000));
                let gave_up = impatient(client, path, body, patience).await;
                given_up.fetch_add(u64::from(gave_up), Ordering::Relaxed);
            }
        });
    }
    crowd.join_all().await;
    all_goes_on(boss, &["one", "many", "task:climbs", "claude:opus"]).await;
}

/// A random request with its path.
fn ask(dice: &mut Dice, client: u64) -> (&'static str, Value) {
    let model = *dice.one_of(&["one", "many", "task:climbs", "claude:opus"]);
    let mut body = asked_by(model, client % 8);
    match dice.below(100) {
        0..=54 => (CHAT, body),
        55..=74 => {
            body["stream"] = true.into();
            (CHAT, body)
        }
        75..=84 => {
            body["max_tokens"] = 5.into();
            ("/v1/messages", body)
        }
        85..=92 => ("/api/chat", body),
        93..=94 => ("/api/v1/load", json!({ "model_name": "many" })),
        95..=96 => ("/api/v1/load", json!({ "model_name": "one", "wait": false })),
        97 => ("/api/v1/unload", json!({ "model_name": "many" })),
        98 => ("/api/v1/models/one/pin", json!({ "pinned": null })),
        _ => ("/api/v1/models/many/device", json!({ "device": "cpu" })),
    }
}
