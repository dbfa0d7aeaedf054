//! Prompts that begin as earlier ones did, through the coordinator to a real worker (EN-1), and more requests than a
//! worker has memory for (EN-2).

use http::StatusCode;
use model_boss_protocol::{DeviceId, WorkerSpec};
use model_boss_tests::{Boss, LoneWorker, Sandbox};
use serde_json::{Value, json};

use crate::real_model::guide;

const COMPLETIONS: &str = "/v1/completions";

/// A prompt of many tokens, the same for the same number.
fn long(number: usize) -> String {
    let words = ["lease", "slot", "queue", "port", "model", "worker", "device", "memory", "ladder"];
    (0..60).map(|at| words[(at * 7 + at / 9 + number) % words.len()]).collect::<Vec<_>>().join(" ")
}

fn greedy(prompt: &str, caller: &str) -> Value {
    json!({
        "model": "guide", "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": true, "x_client_id": caller
    })
}

async fn ask(boss: &Boss, body: &Value) -> (String, u64, u64) {
    let answer = boss.client().post(COMPLETIONS, body).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let json = answer.json();
    let count = |pointer: &str| json.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{json}"));
    let text = json["choices"][0]["text"].as_str().unwrap().to_owned();
    (text, count("/usage/prompt_tokens"), count("/usage/prompt_tokens_details/cached_tokens"))
}

#[tokio::test]
async fn en_1_a_second_turn_evaluates_only_what_is_new_and_answers_the_same() {
    let sandbox = Sandbox::new();
    sandbox.model("guide", &guide(), "");
    let boss = sandbox.start_with_real_worker().await;
    let (said, first_tokens, cached) = ask(&boss, &greedy(&long(0), "me")).await;
    assert_eq!(cached, 0);
    let next = format!("{}{said} {}", long(0), "and which port?");
    let (answer, tokens, cached) = ask(&boss, &greedy(&next, "me")).await;
    assert!(cached >= first_tokens - 1 && cached < tokens, "{cached} of {tokens}, after {first_tokens}");
    // The same to the token without, and for a caller that never asked before.
    let mut alone = greedy(&next, "me");
    alone["cache_prompt"] = false.into();
    assert_eq!(ask(&boss, &alone).await, (answer.clone(), tokens, 0));
    assert_eq!(ask(&boss, &greedy(&next, "you")).await, (answer.clone(), tokens, 0));
    let mut salted = greedy(&next, "me");
    salted["cache_salt"] = "another matter".into();
    assert_eq!(ask(&boss, &salted).await, (answer.clone(), tokens, 0));
    // A caller's header of that name does not make it another caller.
    let mut forged = boss.client().request(http::Method::POST, COMPLETIONS, greedy(&next, "stranger").to_string());
    forged.headers_mut().insert("x-caller", "6d65".parse().unwrap());
    let forged = boss.client().send(forged).await.json();
    assert_eq!(forged["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{forged}");
    // Several answers to one prompt count it once, and streams report it too.
    let mut several = greedy(&format!("{} now", long(3)), "me");
    several["n"] = 3.into();
    let several = boss.client().post(COMPLETIONS, &several).await.json();
    let texts: Vec<&Value> = several["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert!(texts.len() == 3 && texts.iter().all(|text| *text == texts[0]), "{several}");
    let (_, tokens, _) = ask(&boss, &greedy(&format!("{} now", long(3)), "them")).await;
    assert_eq!(several["usage"]["prompt_tokens"], tokens, "{several}");
    let (_, _, cached) = ask(&boss, &greedy(&format!("{} now", long(3)), "me")).await;
    assert!(cached >= tokens - 1, "{cached} of {tokens}: all but the token whose logits are asked for");
    let mut streamed = greedy(&next, "me");
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({ "include_usage": true });
    let events = boss.client().stream(COMPLETIONS, &streamed).await.rest().await;
    assert!(format!("{events:?}").contains("cached_tokens"), "{events:?}");
    boss.finish().await;
}

#[tokio::test]
async fn en_1_anthropics_clients_see_what_was_read_from_the_cache() {
    let sandbox = Sandbox::new();
    sandbox.model("guide", &guide(), "");
    let boss = sandbox.start_with_real_worker().await;
    let body = json!({
        "model": "guide", "max_tokens": 8, "messages": [{ "role": "user", "content": format!("{} why?", long(1)) }]
    });
    let mut usages = Vec::new();
    for _ in 0..2 {
        let answer = boss.client().post("/v1/messages", &body).await.json();
        usages.push(answer["usage"].clone());
    }
    let count = |usage: &Value, field: &str| usage[field].as_u64().unwrap_or_else(|| panic!("{usage}"));
    let whole = count(&usages[0], "input_tokens");
    assert_eq!(count(&usages[0], "cache_read_input_tokens"), 0);
    let cached = count(&usages[1], "cache_read_input_tokens");
    assert_eq!((cached, count(&usages[1], "input_tokens")), (whole - 1, 1), "all but the last token");
    boss.finish().await;
}

/// A worker of eight sequences of 512 tokens, whose lease has room for the keys and values of one.
async fn of_one_sequence() -> LoneWorker {
    let of_512 = |spec: &mut WorkerSpec| spec.context_length = Some(512);
    let lease = LoneWorker::lease_with_room(&guide(), 16, of_512).await;
    let mut worker = LoneWorker::spawn("model-boss-worker");
    worker.open_gate_with(&guide(), |spec| {
        of_512(spec);
        spec.max_concurrent = 8;
        spec.parts = vec![(DeviceId::Cpu, lease)];
    });
    worker.ready().await;
    worker
}

/// Eight requests at once to a worker whose lease has room for one sequence of full length.
#[tokio::test]
async fn en_2_more_requests_than_memory_all_end_with_their_own_tokens() {
    let worker = of_one_sequence().await;
    let body = |number: usize| {
        let messages = json!([{ "role": "user", "content": long(number) }]);
        json!({ "model": "guide", "messages": messages, "max_tokens": 140, "temperature": 0, "ignore_eos": true })
    };
    let mut alone = Vec::new();
    for number in 0..8 {
        alone.push(worker.ask(&body(number)).await.unwrap().text());
    }
    let together: Vec<_> = (0..8).map(|number| worker.ask(&body(number))).collect();
    for (answer, alone) in together.into_iter().zip(alone) {
        assert_eq!(answer.await.unwrap().text(), alone);
    }
    assert_eq!(worker.figure("model_boss_worker_kv_blocks_limit").await, 16, "one sequence of 512 tokens");
    assert!(worker.figure("model_boss_worker_preemptions_total").await > 0, "blocks were short");
    let used = worker.figure("model_boss_worker_kv_blocks_used").await;
    assert!(used + worker.figure("model_boss_worker_kv_blocks_cached").await <= 16);
    assert!(worker.figure("model_boss_worker_cached_tokens_total").await > 0);
}

/// Blocks that an idle worker keeps are within what its lease covers, and give way to sequences, the oldest first.
#[tokio::test]
async fn en_1_what_an_idle_worker_keeps_stays_within_its_lease_and_the_oldest_leaves_first() {
    let worker = of_one_sequence().await;
    let ask = async |number: usize| {
        let prompt = format!("{number} {}", long(number));
        let body = json!({ "model": "guide", "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": true });
        let answer = worker.post("/v1/completions", &body).await.json();
        let usage = &answer["usage"];
        let count =
            |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{answer}"));
        (count("/prompt_tokens"), count("/prompt_tokens_details/cached_tokens"))
    };
    let bytes = |health: &Value, field: &str| health[field][0][1].as_u64().unwrap_or_else(|| panic!("{health}"));
    let before = bytes(&worker.get("/health").await.json(), "held");
    for number in 0..12 {
        ask(number).await;
        let health = worker.get("/health").await.json();
        let held = bytes(&health, "held");
        assert!(before < held && held <= bytes(&health, "may_hold"), "{before}: {health}");
    }
    let (tokens, cached) = ask(11).await;
    assert_eq!(cached, tokens - 1, "the newest is kept");
    assert!(ask(0).await.1 < tokens / 2, "the oldest gave way");
}
