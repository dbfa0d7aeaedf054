//! The type that keys and values are kept in: chosen by manifests and loads, passed on to engines, and what it means
//! for memory and answers (EN-2).

use http::StatusCode;
use model_boss_protocol::{ByteCount, DeviceId, KvCacheType, WorkerSpec};
use model_boss_tests::{Behaviour, FakeWorker, LoneWorker, Sandbox};
use serde_json::{Value, json};

use crate::real_model::guide;

fn reply(text: &str) -> Behaviour {
    Behaviour { reply: Some(text.to_owned()), ..Behaviour::default() }
}

/// The type in a worker's start line; a line of earlier versions has none.
fn kept(worker: &FakeWorker) -> &str {
    worker.spec["residency"]["kv_cache_type"].as_str().unwrap_or("auto")
}

#[tokio::test]
async fn en_2_a_manifest_or_a_load_chooses_how_keys_and_values_are_kept() {
    let sandbox = Sandbox::new();
    let mut plain = sandbox.fake_model("plain", reply("x"));
    let mut chosen = sandbox.fake_model_with("chosen", "vram = \"64MiB\"\nkv_cache_type = \"q8_0\"", reply("x"));
    let boss = sandbox.start().await;
    let load = async |body: Value| boss.client().post("/api/v1/load", &body).await;
    let shown = async |name: &str| boss.read(&format!("/v1/models/{name}")).await["kv_cache_type"].clone();

    assert_eq!((shown("plain").await, shown("chosen").await), (json!("auto"), json!("q8_0")));
    assert!(load(json!({ "model_name": "chosen" })).await.status.is_success());
    assert_eq!(kept(&chosen.worker().await), "q8_0");
    assert!(load(json!({ "model_name": "plain" })).await.status.is_success());
    assert_eq!(kept(&plain.worker().await), "auto");

    // Another type loads again, the same one does not, and a load without one leaves it.
    assert!(load(json!({ "model_name": "plain", "kv_cache_type": "bf16" })).await.status.is_success());
    assert_eq!((kept(&plain.worker().await), shown("plain").await), ("bf16", json!("bf16")));
    assert!(load(json!({ "model_name": "plain", "kv_cache_type": "bf16" })).await.status.is_success());
    assert!(load(json!({ "model_name": "plain", "ctx_size": 64 })).await.status.is_success());
    assert_eq!(plain.spawns(), 2);
    let plan = boss.client().post("/api/v1/plan", &json!({ "model": "plain", "kv_cache_type": "f16" })).await;
    assert_eq!(plan.status, StatusCode::OK, "{plan:?}");

    for path in ["/api/v1/load", "/api/v1/plan"] {
        let name = if path.ends_with("load") { "model_name" } else { "model" };
        let answer = boss.client().post(path, &json!({ name: "plain", "kv_cache_type": "q4_0" })).await;
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["param"]), (StatusCode::BAD_REQUEST, &json!("kv_cache_type")), "{error}");
        assert!(error["message"].as_str().unwrap().contains("auto, f32, f16, bf16, q8_0"), "{error}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn en_2_engines_get_the_type_or_refuse_it_by_name() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let manifest = "backend = \"llama-server\"\nmax_concurrent = 1\nkv_cache_type = \"q8_0\"";
    let mut engine = sandbox.gguf_model("engine", manifest, reply("x"));
    let command = "command = { line = [\"/nowhere/engine\", \"{port}\"] }";
    let _any = sandbox.gguf_model("any", command, reply("x"));
    let _both = sandbox.gguf_model("both", &format!("{command}\nkv_cache_type = \"f16\""), reply("x"));
    let boss = sandbox.start().await;
    let load = async |body: Value| boss.client().post("/api/v1/load", &body).await;

    for (body, expected) in [
        (json!({ "model_name": "engine" }), "q8_0"),
        (json!({ "model_name": "engine", "kv_cache_type": "bf16" }), "bf16"),
    ] {
        assert!(load(body).await.status.is_success());
        let of = |args: &Value, name: &str| {
            let args = args.as_array().unwrap();
            args[args.iter().position(|arg| arg == name).unwrap() + 1].clone()
        };
        // On a slow machine a start may fail and be repeated; its worker comes before the one that is asked for.
        let mut started = engine.worker().await;
        while of(&started.spec["settings"]["args"], "--cache-type-k") != expected {
            started = engine.worker().await;
        }
        assert_eq!(of(&started.spec["settings"]["args"], "--cache-type-v"), expected);
    }
    // A program with a command line of its own: the load and the manifest are refused, each by the name of the field.
    let answer = load(json!({ "model_name": "any", "kv_cache_type": "q8_0" })).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("kv_cache_type")));
    let answer = load(json!({ "model_name": "both" })).await;
    assert!(!answer.status.is_success() && answer.json().to_string().contains("'kv_cache_type'"), "{answer:?}");
    boss.finish().await;
}

/// One worker's figures and answers.
struct Served {
    bytes_per_token: u64,
    blocks: u64,
    /// The most bytes that it will hold.
    may_hold: u64,
    answers: Vec<String>,
}

fn of_256(kind: KvCacheType) -> impl Fn(&mut WorkerSpec) {
    move |spec| {
        spec.context_length = Some(256);
        spec.residency.kv_cache_type = kind;
    }
}

/// Starts a worker with this lease. Asks it questions one by one and then together.
async fn served(kind: KvCacheType, lease: ByteCount) -> Served {
    let mut worker = LoneWorker::spawn("model-boss-worker");
    worker.open_gate_with(&guide(), |spec| {
        of_256(kind)(spec);
        spec.max_concurrent = 64;
        spec.parts = vec![(DeviceId::Cpu, lease)];
    });
    worker.ready().await;
    let body = |question: &str| {
        let messages = json!([{ "role": "user", "content": question }]);
        json!({ "model": "guide", "messages": messages, "max_tokens": 12, "temperature": 0 })
    };
    let questions = ["What is a lease?", "How do I load a model?", "What is a lease, and what is a slot?"];
    let mut alone = Vec::new();
    for question in questions {
        alone.push(worker.ask(&body(question)).await.unwrap().text());
    }
    // The second time their beginnings are found, in one batch.
    let together: Vec<_> = questions.iter().map(|question| worker.ask(&body(question))).collect();
    for (answer, alone) in together.into_iter().zip(&alone) {
        assert_eq!(&answer.await.unwrap().text(), alone, "{kind}");
    }
    let stats: Value = serde_json::from_slice(&worker.get("/stats").await.body).unwrap();
    assert_eq!(stats["kv_cache_type"], kind.as_str(), "{stats}");
    let bytes = stats["kv_bytes_per_token"].as_u64().unwrap();
    assert_eq!(worker.figure("model_boss_worker_kv_bytes_per_token").await, bytes);
    let health = worker.get("/health").await.json();
    Served {
        bytes_per_token: bytes,
        blocks: worker.figure("model_boss_worker_kv_blocks_limit").await,
        may_hold: health["may_hold"][0][1].as_u64().unwrap(),
        answers: alone,
    }
}

#[tokio::test]
async fn en_2_eight_bits_hold_nearly_twice_the_tokens_in_the_same_lease_and_say_the_same() {
    let lease_with = async |blocks| LoneWorker::lease_with_room(&guide(), blocks, of_256(KvCacheType::F16)).await;
    let least = served(KvCacheType::F16, lease_with(8).await).await;
    assert_eq!(least.blocks, 8, "one sequence");
    let lease = lease_with(200).await;
    let halves = served(KvCacheType::F16, lease).await;
    let eighths = served(KvCacheType::Q8_0, lease).await;
    assert_eq!(eighths.bytes_per_token * 32, halves.bytes_per_token * 17, "34 bytes in place of 64");
    assert_eq!((halves.blocks, eighths.blocks), (200, 200 * 32 / 17));
    assert!(halves.may_hold <= lease.0 && eighths.may_hold <= lease.0);
    assert_eq!(eighths.answers, halves.answers);
    assert_eq!(least.answers, halves.answers);
}

/// More requests than memory, prompts that begin alike, answers that lose their client, and answers longer than the
/// context: for every type an answer is the one that its request gets alone.
#[tokio::test]
async fn en_2_every_type_answers_the_same_when_memory_is_short_and_clients_leave() {
    for kind in KvCacheType::ALL {
        let lease = LoneWorker::lease_with_room(&guide(), 8, of_256(kind)).await;
        let mut worker = LoneWorker::spawn("model-boss-worker");
        worker.open_gate_with(&guide(), |spec| {
            of_256(kind)(spec);
            spec.max_concurrent = 8;
            spec.parts = vec![(DeviceId::Cpu, lease)];
        });
        worker.ready().await;
        let words = ["lease", "slot", "queue", "port", "model", "worker", "device"];
        let question = |number: usize| {
            let said: Vec<_> = (0..30).map(|at| words[(at * 3 + at / 7 * (at / 20) * number) % words.len()]).collect();
            said.join(" ")
        };
        let body = |number: usize, tokens: usize| {
            let messages = json!([{ "role": "user", "content": question(number) }]);
            json!({ "model": "guide", "messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": true })
        };
        let mut alone = Vec::new();
        for number in 0..5 {
            alone.push(worker.ask(&body(number, 100)).await.unwrap().text());
        }
        let shifted = worker.ask_shifting(&body(7, 300)).await.unwrap().text();
        // Answers of ten contexts last until their clients leave.
        let leaving = [worker.ask_shifting(&body(5, 2_500)), worker.ask_shifting(&body(6, 2_500))];
        worker.engine("one of them has begun", |engine| engine.active > 0).await;
        let mut together: Vec<_> = (0..5).map(|number| worker.ask(&body(number, 100))).collect();
        let beside = worker.ask_shifting(&body(7, 300));
        worker.engine("others wait or run beside it", |engine| engine.active + engine.waiting > 2).await;
        leaving.iter().for_each(tokio::task::JoinHandle::abort);
        for (answer, alone) in together.drain(..).zip(&alone) {
            assert_eq!(&answer.await.unwrap().text(), alone, "{kind}");
        }
        assert_eq!(beside.await.unwrap().text(), shifted, "{kind}");
        worker.engine("all have ended", |engine| engine.active + engine.waiting == 0).await;
        let metrics = String::from_utf8(worker.get("/metrics").await.body.to_vec()).unwrap();
        for (name, least) in
            [("model_boss_worker_preemptions_total", 1.0), ("model_boss_worker_cached_tokens_total", 1.0)]
        {
            let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            let value: f64 = line.unwrap_or_else(|| panic!("{metrics}")).trim().parse().unwrap();
            assert!(value >= least, "{kind} {name}: {value}");
        }
    }
}
