//! The coordinator with a real Redis server that is absent, disappears, returns, or must not be used.

use model_boss_protocol::ByteCount;
use model_boss_tests::{Behaviour, Boss, Event, PATIENCE, RedisServer, Sandbox, binary, until};
use serde_json::{Value, json};

const ONE: &str = "[cpu]\nmemory = \"8GiB\"\n[[gpu]]\nmemory = \"24GiB\"\n";
/// Leases so short that a recovery window is over in a second and a half.
const SHORT: &str = "[leases]\nterm = \"1s\"\nheartbeat = \"200ms\"\npatience = \"500ms\"";
/// Settings with which streams report soon what their requests wait for.
const TALKATIVE: &str = "[sse]\nfirst_comment = \"50ms\"\ninterval = \"50ms\"";

fn sandbox(url: &str) -> Sandbox {
    let mut sandbox = Sandbox::new();
    sandbox.simulate(ONE);
    sandbox.with_config(&format!("redis_url = \"{url}\"\n{SHORT}"))
}

async fn condition(boss: &Boss) -> (u16, String) {
    let answer = boss.client().get("/ready").await;
    (answer.status.as_u16(), answer.json()["status"].as_str().unwrap_or_default().to_owned())
}

async fn is(boss: &Boss, status: u16, word: &str) {
    until(PATIENCE, word, async || (condition(boss).await == (status, word.to_owned())).then_some(())).await;
}

fn leases(server: &RedisServer) -> Vec<Value> {
    let ledger = server.ledger().unwrap_or_default();
    ledger["leases"].as_object().into_iter().flatten().map(|(_, lease)| lease.clone()).collect()
}

#[tokio::test]
async fn le_1_without_redis_loaded_models_serve_on_and_nothing_is_loaded() {
    let Some(mut server) = RedisServer::start() else { return };
    let sandbox = sandbox(&server.url());
    let manifest = "vram = \"10GiB\"\ndevice = \"cuda:0\"";
    let mut alpha = sandbox.fake_model_with("alpha", manifest, Behaviour::default());
    let beta = sandbox.fake_model_with("beta", manifest, Behaviour::default());
    let boss = sandbox.start().await;
    boss.output().line("names the store", |line| line.contains("Redis") && line.contains("redis.sock")).await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let worker = alpha.worker().await;
    let [lease] = &leases(&server)[..] else { panic!("one lease") };
    assert_eq!((&lease["owner"]["label"], &lease["state"]), (&"alpha".into(), &"ACTIVE".into()));

    server.kill();
    is(&boss, 200, "lease_store_unavailable").await;
    assert!(boss.chat("alpha", "?").await.status.is_success(), "what is loaded serves on");
    let refused = boss.chat("beta", "?").await;
    assert_eq!((refused.status.as_u16(), refused.error_code()), (503, "lease_store_unavailable".to_owned()));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(boss.read("/api/v1/health").await["leases"]["state"], "away");
    let metrics = boss.client().get("/metrics").await.body;
    let metrics = String::from_utf8_lossy(&metrics);
    assert!(metrics.contains("model_boss_lease_store_available 0"), "{metrics}");
    assert_eq!(beta.spawns(), 0);

    server.start_again();
    // The recovery window is reported, and after it the queued model is loaded.
    until(PATIENCE, "beta is served", async || boss.chat("beta", "?").await.status.is_success().then_some(())).await;
    is(&boss, 200, "ok").await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    assert_eq!(alpha.spawns(), 1, "it was never ended");
    drop(worker);
    boss.finish().await;
    assert_eq!(leases(&server), Vec::<Value>::new());
}

/// A request for a cold model is answered within its patience, a stream reports why it waits, and the state is stable.
async fn cold_requests_are_told(boss: &Boss) {
    is(boss, 200, "lease_store_unavailable").await;
    let mut stream = boss.chat_streamed("alpha", "?").await;
    let Some(Event::Comment(comment)) = stream.next().await else { panic!("a comment comes first") };
    assert!(comment.contains("no memory can be leased"), "{comment}");
    let rest = stream.rest().await;
    let error = rest.iter().find_map(|event| if let Event::Data(data) = event { Some(data) } else { None });
    assert_eq!(error.expect("an error ends it")["error"]["code"], "lease_store_unavailable");
    let refused = boss.chat("alpha", "?").await;
    assert_eq!((refused.status.as_u16(), refused.error_code()), (503, "lease_store_unavailable".to_owned()));
    assert!(refused.header("retry-after").is_some());
    let refused = boss.client().post("/api/v1/load", &json!({ "model_name": "alpha" })).await;
    assert_eq!((refused.status.as_u16(), refused.error_code()), (503, "lease_store_unavailable".to_owned()));
    let text = boss.output().text();
    assert_eq!(text.matches("memory can be leased").count(), 1, "only at the start: {text}");
}

#[tokio::test]
async fn le_1_without_redis_a_request_for_a_cold_model_is_told_also_when_nothing_is_held() {
    let Some(mut server) = RedisServer::start() else { return };
    let sandbox = sandbox(&server.url()).with_config(TALKATIVE);
    let alpha = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    is(&boss, 200, "ok").await;
    server.kill();
    cold_requests_are_told(&boss).await;
    assert_eq!(alpha.spawns(), 0);
    server.start_again();
    until(PATIENCE, "alpha is served", async || boss.chat("alpha", "?").await.status.is_success().then_some(())).await;
    boss.finish().await;
}

#[tokio::test]
async fn le_1_a_redis_that_reads_and_does_not_write_is_as_good_as_away() {
    let Some(server) = RedisServer::start() else { return };
    let sandbox = sandbox(&server.url()).with_config(TALKATIVE);
    let alpha = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    is(&boss, 200, "ok").await;
    // The server is full: with noeviction every write fails.
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    cold_requests_are_told(&boss).await;
    assert_eq!(alpha.spawns(), 0);
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    is(&boss, 200, "ok").await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    boss.finish().await;
}

#[tokio::test]
async fn le_1_a_server_that_comes_later_is_waited_for() {
    let Some(mut server) = RedisServer::start() else { return };
    server.kill();
    let sandbox = sandbox(&server.url());
    let _alpha = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    boss.output().line("says that it waits", |line| line.contains("tried until it is reached")).await;
    assert_eq!(condition(&boss).await, (503, "lease_store_unavailable".to_owned()));
    let refused = boss.chat("alpha", "?").await;
    assert_eq!(refused.error_code(), "lease_store_unavailable", "{refused:?}");
    server.start_again();
    is(&boss, 200, "ok").await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    boss.finish().await;
}

#[tokio::test]
async fn le_1_a_server_that_would_forget_is_refused_and_no_password_is_shown() {
    let Some(server) = RedisServer::start() else { return };
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).unwrap();
    let refused = sandbox(&server.url());
    let (status, output) = refused.launch(&binary("model-boss-fake-worker")).end().await;
    assert!(!status.success());
    assert!(output.contains("noeviction") && output.contains("allkeys-lru"), "{output}");

    let mut launch = Sandbox::new().launch(&binary("model-boss-fake-worker"));
    launch.command.args(["--redis", "redis://me:sesame@127.0.0.1:notaport"]);
    let (status, output) = launch.end().await;
    assert!(!status.success());
    assert!(output.contains("no address of a Redis server") && !output.contains("sesame"), "{output}");
}

#[tokio::test]
async fn rc_20_what_is_learned_is_kept_in_the_same_store() {
    let Some(server) = RedisServer::start() else { return };
    let sandbox = sandbox(&server.url());
    let holds = Behaviour { holds: Some("6GiB".parse().unwrap()), ..Behaviour::default() };
    let _alpha = sandbox.fake_model_with("alpha", "device = \"cuda:0\"", holds);
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let learned = async || {
        let text = server.ask(&["HGET", "mb:document:footprints", "document"])?;
        text.contains("alpha").then_some(text)
    };
    let text = until(PATIENCE, "the footprint is in Redis", learned).await;
    assert!(text.contains(&(6_u64 << 30).to_string()), "{text}");
    boss.finish().await;
}

#[tokio::test]
async fn le_4_a_worker_whose_lease_is_lost_is_ended() {
    let Some(server) = RedisServer::start() else { return };
    let sandbox = sandbox(&server.url());
    // The worker holds no memory yet that could be counted as its own.
    let nothing = Behaviour { holds: Some(ByteCount::ZERO), ..Behaviour::default() };
    // The model is pinned, so only the loss of its lease ends it.
    let manifest = "vram = \"10GiB\"\ndevice = \"cuda:0\"\npin = true";
    let mut alpha = sandbox.fake_model_with("alpha", manifest, nothing);
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let mut worker = alpha.worker().await;

    // The lease's record is replaced by one of this process that leaves no free memory.
    let mut ledger = server.ledger().unwrap();
    let leases = ledger["leases"].as_object_mut().unwrap();
    let (_, mut lease) = std::mem::take(leases).into_iter().next().unwrap();
    let token = lease["token"].as_u64().unwrap() + 1;
    lease["token"] = token.into();
    lease["request_id"] = "by hand".into();
    lease["parts"][0]["bytes"] = (23_u64 << 30).into();
    lease["pids"] = json!([]);
    leases.insert(format!("lease-{token}"), lease);
    ledger["fence"] = token.into();
    server.put_ledger(&ledger);

    boss.output().line("says so", |line| line.contains("a lease is lost, its worker is ended")).await;
    worker.gone().await;
    boss.kill().await;
}
