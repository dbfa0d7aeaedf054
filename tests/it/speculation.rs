//! Tokens that are evaluated ahead change no answer of a real worker (EN-8).

use http::StatusCode;
use model_boss_protocol::Speculation;
use model_boss_tests::{Behaviour, LoneWorker, Sandbox};
use serde_json::{Value, json};

use crate::real_model::guide;

/// Answers that repeat themselves, one by one and then together.
async fn answers(speculation: Speculation) -> Vec<Value> {
    let mut worker = LoneWorker::spawn("model-boss-worker");
    worker.open_gate_with(&guide(), |spec| spec.speculation = speculation);
    worker.ready().await;
    let bodies: Vec<Value> = (0..6)
        .map(|number| {
            let said = "list the ports: 8210, 8211, 8210, 8211, 8210, 8211 ".repeat(1 + number % 3);
            let mut body = json!({
                "model": "guide", "messages": [{"role": "user", "content": said}], "max_tokens": 90,
                "ignore_eos": true, "seed": number, "temperature": 0.7 * (number % 2) as f64, "logprobs": number == 2,
            });
            if number >= 4 {
                body["tools"] = json!([{"type": "function", "function": {"name": "look", "parameters": {
                    "type": "object", "required": ["port", "again"], "additionalProperties": false,
                    "properties": {"port": {"enum": [8210, 8211]}, "again": {"enum": ["8210, 8211, 8210"]}},
                }}}]);
                body["tool_choice"] = "required".into();
                body["ignore_eos"] = false.into();
            }
            body
        })
        .collect();
    let mut answers = Vec::new();
    for body in &bodies {
        answers.push(worker.post("/v1/chat/completions", body).await.json());
    }
    let together: Vec<_> = bodies.iter().map(|body| worker.ask(body)).collect();
    for answer in together {
        answers.push(answer.await.unwrap().json());
    }
    answers
}

#[tokio::test]
async fn en_8_a_real_worker_says_the_same_with_drafts_and_without() {
    let (plain, drafted) = (answers(Speculation::Off).await, answers(Speculation::Lookup).await);
    for (plain, drafted) in plain.iter().zip(&drafted) {
        let choice = |answer: &Value| {
            let mut choice = answer["choices"][0].clone();
            // Ids of calls are new with each.
            for call in choice.pointer_mut("/message/tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
                call["id"].take();
            }
            (choice, answer["usage"]["completion_tokens"].clone())
        };
        assert!(plain["timings"]["predicted_n"].as_u64() > Some(0), "{plain}");
        assert_eq!(choice(plain), choice(drafted));
        assert_eq!(plain["timings"]["draft_n"], Value::Null);
    }
}

#[tokio::test]
async fn en_8_a_manifest_turns_drafts_off() {
    let sandbox = Sandbox::new();
    let mut chosen = sandbox.fake_model_with("chosen", "vram = \"64MiB\"\nspeculation = \"off\"", Behaviour::default());
    let boss = sandbox.start().await;
    assert_eq!(boss.chat("chosen", "?").await.status, StatusCode::OK);
    assert_eq!(chosen.worker().await.spec["speculation"], "off");
    boss.finish().await;
}
