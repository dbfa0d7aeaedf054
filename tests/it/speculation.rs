//! Tokens that are evaluated ahead change no answer of a real worker (EN-8).

use http::StatusCode;
use model_boss_protocol::{ByteCount, DraftSpec, Speculation};
use model_boss_tests::{Behaviour, LoneWorker, Sandbox, question};
use serde_json::{Value, json};

use crate::real_model::{copy_of_guide, guide};

/// Answers that repeat themselves, one by one and then together.
async fn answers(speculation: Speculation, draft: Option<DraftSpec>) -> Vec<Value> {
    let mut worker = LoneWorker::spawn("model-boss-worker");
    worker.open_gate_with(&guide(), |spec| {
        spec.speculation = speculation;
        spec.draft = draft;
    });
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
    let (plain, drafted) = (answers(Speculation::Off, None).await, answers(Speculation::Lookup, None).await);
    assert_same(&plain, &drafted);
}

#[tokio::test]
async fn en_8_a_draft_model_changes_no_answer() {
    // The model is its own draft model: all that it writes is right, where it is chosen at no temperature.
    let draft = DraftSpec { source: guide(), bytes: ByteCount::mib(64) };
    let (plain, drafted) = (answers(Speculation::Off, None).await, answers(Speculation::Lookup, Some(draft)).await);
    assert_same(&plain, &drafted);
}

fn assert_same(plain: &[Value], drafted: &[Value]) {
    for (plain, drafted) in plain.iter().zip(drafted) {
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
async fn en_8_a_draft_model_of_another_vocabulary_ends_the_load_and_is_named() {
    let sandbox = Sandbox::new();
    let other = copy_of_guide(&sandbox, "other");
    // One token is spelled in another way.
    let tokenizer = other.join("tokenizer.json");
    let mut read: Value = serde_json::from_str(&std::fs::read_to_string(&tokenizer).unwrap()).unwrap();
    let vocabulary = read["model"]["vocab"].as_object_mut().unwrap();
    let long = vocabulary.iter().find(|(word, _)| word.chars().count() > 3);
    let (word, id) = long.map(|(word, id)| (word.clone(), id.clone())).unwrap();
    vocabulary.remove(&word);
    vocabulary.insert("#another#".to_owned(), id);
    read["model"]["merges"] = json!([]);
    std::fs::write(&tokenizer, read.to_string()).unwrap();
    let mut worker = LoneWorker::spawn("model-boss-worker");
    worker.open_gate_with(&guide(), |spec| {
        spec.draft = Some(DraftSpec { source: other, bytes: ByteCount::mib(64) });
    });
    let (_, said) = worker.end().await;
    assert!(said.contains("draft model's vocabulary is another one: its token"), "{said}");
}

#[tokio::test]
async fn en_8_a_manifests_draft_model_is_leased_with_its_model() {
    let sandbox = Sandbox::new();
    sandbox.model("alone", &guide(), "");
    sandbox.model("drafted", &guide(), &format!("draft = {{ path = \"{}\" }}", guide().display()));
    let boss = sandbox.start_with_real_worker().await;
    let models = boss.read("/v1/models").await;
    let size = |name: &str| {
        let mut all = models["data"].as_array().unwrap().iter();
        all.find(|model| model["id"] == name).unwrap()["size"].as_u64().unwrap()
    };
    let (alone, drafted) = (size("alone"), size("drafted"));
    assert!(drafted > alone + alone / 2, "{alone} {drafted}");
    let mut said = Vec::new();
    for name in ["alone", "drafted"] {
        let mut body = question(name, "What is a lease?");
        (body["temperature"], body["max_tokens"]) = (0.into(), 60.into());
        let answer = boss.client().post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        said.push(answer.json()["choices"][0]["message"]["content"].clone());
    }
    assert_eq!(said[0], said[1]);
    boss.finish().await;
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
