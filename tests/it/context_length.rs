//! Prompts that are longer than a model's context: Ollama's clients get an answer to a shortened prompt, unless they
//! refuse that, and all other clients a refusal.

use http::StatusCode;
use model_boss_tests::{Answer, Behaviour, Boss, FakeModel, Sandbox};
use serde_json::{Value, json};

use crate::real_model::guide;

const CONTEXT: u64 = 100;

fn reply(text: &str) -> Behaviour {
    Behaviour { reply: Some(text.to_owned()), context_length: CONTEXT, ..Behaviour::default() }
}

fn words(count: usize, word: &str) -> String {
    vec![word; count].join(" ")
}

/// A conversation of 20 turns with 20 words each, behind the system's message.
fn conversation() -> Vec<Value> {
    let mut messages = vec![json!({ "role": "system", "content": "be brief" })];
    for turn in 0..10 {
        messages.push(json!({ "role": "user", "content": words(20, &format!("q{turn}")) }));
        messages.push(json!({ "role": "assistant", "content": words(20, &format!("a{turn}")) }));
    }
    messages.push(json!({ "role": "user", "content": "and now" }));
    messages
}

fn contents(body: &Value) -> Vec<&str> {
    body["messages"].as_array().unwrap().iter().map(|message| message["content"].as_str().unwrap()).collect()
}

/// The last request that the worker received, and the number of all.
async fn last_request(model: &mut FakeModel) -> (Value, u64) {
    let mut worker = model.worker().await;
    // The one that was answered is the last.
    let last = worker.answered().await;
    loop {
        let seen = worker.request().await;
        if seen.number == last {
            return (seen.body, last);
        }
    }
}

async fn ask(boss: &Boss, path: &str, body: &Value) -> Answer {
    boss.client().post(path, body).await
}

#[tokio::test]
async fn en_7_ollamas_chat_forgets_its_oldest_messages_with_every_engine() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let manifest = format!("backend = \"llama-server\"\ncontext_length = {CONTEXT}\nmax_concurrent = 1");
    let models = [sandbox.fake_model("own", reply("fine")), sandbox.gguf_model("engine", &manifest, reply("fine"))];
    let boss = sandbox.start().await;
    for (mut model, is_stream) in models.into_iter().zip([true, false]) {
        let name = model.name().to_owned();
        let asked = json!({ "model": name, "messages": conversation(), "stream": is_stream });
        let answer = ask(&boss, "/api/chat", &asked).await;
        assert_eq!(answer.status, StatusCode::OK, "{name}: {answer:?}");
        let last: Value =
            serde_json::from_slice(answer.body.trim_ascii().split(|b| *b == b'\n').next_back().unwrap()).unwrap();
        let (body, requests) = last_request(&mut model).await;
        let kept = contents(&body);
        assert_eq!((kept[0], kept[kept.len() - 1]), ("be brief", "and now"), "{name}");
        // 2 + 2 words and four messages of 20 fit into a context of 100, and five do not.
        assert_eq!(kept.len(), 6, "{name}: {kept:?}");
        assert!(kept[1].starts_with("q8") && kept[4].starts_with("a9"), "{name}: {kept:?}");
        assert!(requests <= 6, "{name}: {requests}");
        assert_eq!((&last["done"], &last["prompt_eval_count"]), (&json!(true), &json!(84)), "{name}: {last}");
    }
    // One request of a client is one in the statistics, whatever the worker was asked.
    let stats = boss.read("/api/v1/stats").await;
    let counted = |index: usize| (&stats["models"][index]["requests"], &stats["models"][index]["input_tokens"]);
    assert_eq!((counted(0), counted(1)), ((&json!(1), &json!(84)), (&json!(1), &json!(84))), "{stats}");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_a_prompt_that_may_not_be_shortened_is_refused_in_ollamas_words() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let manifest = "labels = [\"embedding\"]\nbackend = \"llama-server\"\ncontext_length = 100\nmax_concurrent = 1";
    let _chat = sandbox.fake_model("alpha", reply("fine"));
    let _vectors = sandbox.gguf_model("vectors", manifest, Behaviour::default());
    let boss = sandbox.start().await;
    let long = words(300, "word");
    for (path, body) in [
        ("/api/chat", json!({ "model": "alpha", "messages": conversation() })),
        ("/api/generate", json!({ "model": "alpha", "prompt": long })),
        ("/api/generate", json!({ "model": "alpha", "prompt": long, "raw": true })),
        ("/api/embed", json!({ "model": "vectors", "input": long })),
    ] {
        let mut refused = body.clone();
        refused["truncate"] = json!(false);
        let answer = ask(&boss, path, &refused).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {answer:?}");
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.starts_with("the input length exceeds the context length"), "{path}: {error}");
        assert!(error.contains("maximum context length is 100 tokens"), "{path}: {error}");
        assert_eq!(ask(&boss, path, &body).await.status, StatusCode::OK, "{path}");
        refused["truncate"] = json!("no");
        let answer = ask(&boss, path, &refused).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {answer:?}");
        assert!(answer.json()["error"].as_str().unwrap().contains("'truncate'"), "{path}");
    }
    // All other APIs refuse what is too long.
    let messages = json!({ "model": "alpha", "messages": conversation() });
    let answer = ask(&boss, "/v1/chat/completions", &messages).await;
    assert_eq!((answer.status, answer.error_code().as_str()), (StatusCode::BAD_REQUEST, "context_length_exceeded"));
    boss.finish().await;
}

#[tokio::test]
async fn en_7_ollamas_texts_to_embed_lose_their_end() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let manifest = "labels = [\"embedding\"]\nbackend = \"llama-server\"\ncontext_length = 100\nmax_concurrent = 1";
    let _vectors = sandbox.gguf_model("vectors", manifest, Behaviour::default());
    let boss = sandbox.start().await;
    let input = json!({ "model": "vectors", "input": ["a b", words(1_000, "word"), words(90, "word")] });
    let embedded = ask(&boss, "/api/embed", &input).await.json();
    // The first number of a stand-in's vector is the count of words.
    let counts: Vec<u64> =
        embedded["embeddings"].as_array().unwrap().iter().map(|vector| vector[0].as_f64().unwrap() as u64).collect();
    assert!(counts[0] == 2 && counts[2] == 90 && (95..=100).contains(&counts[1]), "{embedded}");
    let one = json!({ "model": "vectors", "prompt": words(1_000, "word") });
    let one = ask(&boss, "/api/embeddings", &one).await.json();
    assert!(one["embedding"][0].as_f64().is_some_and(|words| (95.0..=100.0).contains(&words)), "{one}");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_a_generated_answer_has_room_behind_the_end_of_a_long_prompt() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", reply("fine"));
    let boss = sandbox.start().await;
    let text: Vec<String> = (0..1_000).map(|word| format!("w{word:03}")).collect();
    let asked = json!({ "model": "alpha", "prompt": text.join(" "), "system": "be brief", "stream": false,
        "options": { "num_keep": 10 } });
    let answer = ask(&boss, "/api/generate", &asked).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let (body, _) = last_request(&mut model).await;
    let kept = contents(&body);
    assert_eq!(kept[0], "be brief");
    assert!(kept[1].starts_with("w000 w001 ") && kept[1].ends_with("w998 w999"), "{kept:?}");
    let left = kept[1].split(' ').count();
    assert!((40..=60).contains(&left), "{left} words: about half of the context");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_the_built_in_model_answers_ollamas_clients_whatever_their_length() {
    let sandbox = Sandbox::new();
    sandbox.model("guide", &guide(), "context_length = 128");
    let boss = sandbox.start_with_real_worker().await;
    let mut messages = conversation();
    *messages.last_mut().unwrap() = json!({ "role": "user", "content": "Which port does model-boss listen on?" });
    let options = json!({ "temperature": 0, "num_predict": 24 });
    let asked = json!({ "model": "guide", "messages": messages, "stream": false, "options": options });
    let answer = ask(&boss, "/api/chat", &asked).await.json();
    let read = answer["prompt_eval_count"].as_u64().unwrap_or_else(|| panic!("{answer}"));
    assert!(read < 128, "{answer}");
    let prompt = format!("{} Which port does model-boss listen on?", words(2_000, "lease"));
    let asked = json!({ "model": "guide", "prompt": prompt, "stream": false, "options": options });
    let answer = ask(&boss, "/api/generate", &asked).await.json();
    let read = answer["prompt_eval_count"].as_u64().unwrap_or_else(|| panic!("{answer}"));
    assert!((40..=90).contains(&read), "about half of the context: {answer}");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_ollamas_answers_go_on_behind_the_end_of_the_context() {
    let sandbox = Sandbox::new();
    sandbox.model("guide", &guide(), "context_length = 128");
    let boss = sandbox.start_with_real_worker().await;
    // The model's end of an answer is token 3.
    let asked = json!({ "model": "guide", "stream": false,
        "messages": [{ "role": "user", "content": "Which port does model-boss listen on?" }],
        "options": { "temperature": 0, "num_predict": 300, "logit_bias": { "3": -100 } } });
    let whole = ask(&boss, "/api/chat", &asked).await.json();
    let counts = |answer: &Value| {
        ["prompt_eval_count", "eval_count"].map(|count| answer[count].as_u64().unwrap_or_else(|| panic!("{answer}")))
    };
    assert_eq!((counts(&whole)[1], &whole["done_reason"]), (300, &json!("length")), "{whole}");
    let mut cut = asked.clone();
    cut["shift"] = json!(false);
    let cut = ask(&boss, "/api/chat", &cut).await.json();
    assert_eq!(counts(&cut).iter().sum::<u64>(), 128, "{cut}");
    assert_eq!(cut["done_reason"], "length");
    let text = |answer: &Value| answer["message"]["content"].as_str().unwrap().to_owned();
    assert!(text(&whole).starts_with(&text(&cut)), "{whole} {cut}");
    // A negative `num_predict` ends at ten contexts.
    let mut endless = json!({ "model": "guide", "prompt": "The lease", "raw": true, "stream": false });
    endless["options"] = json!({ "temperature": 0, "num_predict": -1, "num_keep": -1, "logit_bias": { "3": -100 } });
    let answer = ask(&boss, "/api/generate", &endless).await.json();
    assert_eq!(counts(&answer)[1], 1_280, "{answer}");
    let mut wrong = asked;
    wrong["shift"] = json!("no");
    let answer = ask(&boss, "/api/chat", &wrong).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
    assert!(answer.json()["error"].as_str().unwrap().contains("'shift'"), "{answer:?}");
    // Other APIs end an answer where the context ends.
    let openai = json!({ "model": "guide", "logit_bias": { "3": -100 }, "temperature": 0,
        "messages": [{ "role": "user", "content": "Which port does model-boss listen on?" }] });
    let answer = ask(&boss, "/v1/chat/completions", &openai).await.json();
    assert_eq!(answer["usage"]["total_tokens"], 128, "{answer}");
    boss.finish().await;
}
