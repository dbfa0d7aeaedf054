//! Anthropic's and Ollama's APIs for the same models: shapes, streams, errors, and the effect of `keep_alive`.

use http::StatusCode;
use model_boss_tests::{Answer, Behaviour, Boss, PATIENCE, Sandbox, until};
use serde_json::{Value, json};

fn reply(text: &str) -> Behaviour {
    Behaviour { reply: Some(text.to_owned()), ..Behaviour::default() }
}

/// The lines of a stream in Ollama's API.
async fn lines(boss: &Boss, path: &str, body: &Value) -> Vec<Value> {
    let answer = boss.client().post(path, body).await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (StatusCode::OK, Some("application/x-ndjson")),
        "{answer:?}"
    );
    text_of(&answer).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text_of(answer: &Answer) -> String {
    String::from_utf8(answer.body.to_vec()).unwrap()
}

async fn loaded(boss: &Boss) -> Vec<Value> {
    boss.read("/api/ps").await["models"].as_array().unwrap().clone()
}

#[tokio::test]
async fn en_7_ollamas_chat_and_generate_answer_in_lines() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", reply("four and more"));
    let boss = sandbox.start().await;
    let asked = json!({ "model": "alpha:latest", "messages": [{ "role": "user", "content": "2 + 2?" }], "options": { "num_predict": 2 } });
    let said = lines(&boss, "/api/chat", &asked).await;
    let text: String = said.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    assert!(text.starts_with("four"), "{said:?}");
    let last = said.last().unwrap();
    assert_eq!(
        (&last["model"], &last["done"], &last["done_reason"]),
        (&json!("alpha:latest"), &json!(true), &json!("length"))
    );
    assert!(last["total_duration"].as_u64().unwrap() > 0 && last["eval_count"] == 2, "{last}");
    let request = model.worker().await.request().await;
    assert_eq!((&request.body["max_tokens"], &request.body["model"]), (&json!(2), &json!("alpha")));

    let whole = json!({ "model": "alpha", "prompt": "2 + 2?", "stream": false });
    let answer = boss.client().post("/api/generate", &whole).await.json();
    assert_eq!((&answer["response"], &answer["done"]), (&json!("four and more"), &json!(true)), "{answer}");
    boss.finish().await;
}

#[tokio::test]
async fn ollamas_empty_prompt_loads_and_keep_alive_0_unloads() {
    let sandbox = Sandbox::new();
    let model = sandbox.fake_model("alpha", reply("x"));
    let boss = sandbox.start().await;
    let ask = async |body: Value| boss.client().post("/api/generate", &body).await.json();
    assert_eq!(ask(json!({ "model": "alpha", "keep_alive": -1 })).await["done_reason"], "load");
    let running = loaded(&boss).await;
    assert_eq!(running[0]["name"], "alpha");
    assert!(running[0]["expires_at"].as_str().unwrap().ends_with('Z'), "{running:?}");
    assert_eq!(ask(json!({ "model": "alpha", "keep_alive": 0 })).await["done_reason"], "unload");
    assert!(loaded(&boss).await.is_empty());
    assert_eq!(ask(json!({ "model": "alpha", "keep_alive": 0 })).await["done_reason"], "unload", "gone is gone");
    let asked = json!({ "model": "alpha", "prompt": "?", "stream": false, "keep_alive": 0 });
    assert_eq!(ask(asked).await["response"], "x");
    until(PATIENCE, "the model leaves after its answer", async || loaded(&boss).await.is_empty().then_some(())).await;
    assert_eq!(model.spawns(), 2);
    boss.finish().await;
}

#[tokio::test]
async fn en_7_ollamas_lists_and_errors() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let _chat = sandbox.fake_model("alpha", reply("x"));
    let _vectors =
        sandbox.gguf_model("vectors", "labels = [\"embedding\"]\nbackend = \"llama-server\"", Behaviour::default());
    let boss = sandbox.start().await;
    let tags = boss.read("/api/tags").await;
    let names: Vec<&str> =
        tags["models"].as_array().unwrap().iter().filter_map(|model| model["name"].as_str()).collect();
    assert_eq!(names, ["alpha", "vectors"]);
    let digest = |index: usize| tags["models"][index]["digest"].as_str().unwrap();
    assert_eq!((digest(0).len(), digest(1).len()), (64, 64));
    assert_ne!(digest(0)[..12], digest(1)[..12], "what `ollama list` shows of them");
    assert!(boss.read("/api/version").await["version"].is_string());
    let shown = boss.client().post("/api/show", &json!({ "model": "vectors" })).await.json();
    assert_eq!((&shown["capabilities"], &shown["details"]["format"]), (&json!(["embedding"]), &json!("gguf")));

    let embedded = boss.client().post("/api/embed", &json!({ "model": "vectors", "input": ["a", "b c"] })).await.json();
    assert_eq!(embedded["embeddings"][1][0], 2.0, "{embedded}");
    let one = boss.client().post("/api/embeddings", &json!({ "model": "vectors", "prompt": "a b c" })).await.json();
    assert_eq!(one["embedding"][0], 3.0, "{one}");

    for (path, body, status, word) in [
        ("/api/chat", json!({ "model": "nobody", "messages": [{ "role": "user", "content": "?" }] }), 404, "nobody"),
        ("/api/generate", json!({ "model": "nobody" }), 404, "nobody"),
        ("/api/generate", json!({ "prompt": "?" }), 400, "'model'"),
        ("/api/show", json!({ "model": "nobody" }), 404, "nobody"),
        ("/api/embed", json!({ "model": "vectors" }), 400, "'input'"),
        ("/api/chat", json!({ "model": "alpha", "messages": 7 }), 400, "'messages'"),
    ] {
        let answer = boss.client().post(path, &body).await;
        assert_eq!(answer.status.as_u16(), status, "{path}: {answer:?}");
        assert!(answer.json()["error"].as_str().unwrap().contains(word), "{path}: {answer:?}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn en_7_anthropics_messages_are_answered_by_any_model() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model("alpha", reply("four"));
    let boss = sandbox.start().await;
    let asked = json!({ "model": "alpha", "max_tokens": 9, "system": "Be brief.", "messages": [{ "role": "user", "content": "2 + 2?" }] });
    let answer = boss.client().post("/v1/messages", &asked).await;
    let message = answer.json();
    assert_eq!((&message["type"], &message["content"][0]["text"]), (&json!("message"), &json!("four")), "{message}");
    assert_eq!(message["stop_reason"], "end_turn");
    assert_eq!(answer.header("x-served-model"), Some("alpha"));
    assert_eq!(model.worker().await.request().await.body["messages"][0]["role"], "system");

    let mut streamed = asked.clone();
    streamed["stream"] = json!(true);
    let text = text_of(&boss.client().post("/v1/messages", &streamed).await);
    for name in ["message_start", "content_block_delta", "message_delta", "message_stop"] {
        assert!(text.contains(&format!("event: {name}\n")), "{name}: {text}");
    }
    assert!(!text.contains("[DONE]"), "{text}");
    let started = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let started: Value = serde_json::from_str(started).unwrap();
    let counted = boss.client().post("/v1/messages/count_tokens", &asked).await.json();
    assert_eq!(started["message"]["usage"]["input_tokens"], counted["input_tokens"], "{started}");

    let counted = boss.client().post("/v1/messages/count_tokens", &asked).await.json();
    assert!(counted["input_tokens"].as_u64().unwrap() > 0, "{counted}");
    let error = boss.client().post("/v1/messages", &json!({ "model": "alpha", "messages": [] })).await;
    assert_eq!((error.status, &error.json()["type"]), (StatusCode::BAD_REQUEST, &json!("error")));
    let error =
        boss.client().post("/v1/messages", &json!({ "model": "nobody", "max_tokens": 1, "messages": [] })).await;
    assert_eq!(error.json()["error"]["type"], "not_found_error", "{error:?}");
    boss.finish().await;
}

#[tokio::test]
async fn en_6_rc_17_a_demand_that_our_worker_does_not_meet_is_refused_by_name_in_every_dialect_and_passed_to_engines() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let mut models = [
        sandbox.fake_model("own", reply("four")),
        sandbox.gguf_model("engine", "backend = \"llama-server\"", reply("four")),
    ];
    let boss = sandbox.start().await;
    let said = json!([{ "role": "user", "content": "?" }]);
    let schema = json!({ "type": "object" });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let messages = json!({ "type": "json_schema", "schema": schema });
    let wishes = [
        ("/v1/chat/completions", json!({ "messages": said, "grammar": "root ::= x" }), ["grammar"; 2]),
        ("/v1/chat/completions", json!({ "messages": said, "response_format": format }), ["response_format"; 2]),
        ("/v1/completions", json!({ "prompt": "?", "json_schema": schema }), ["json_schema"; 2]),
        (
            "/v1/messages",
            json!({ "messages": said, "max_tokens": 1, "output_config": { "format": messages } }),
            ["output_config.format", "response_format"],
        ),
        ("/api/chat", json!({ "messages": said, "stream": false, "format": "json" }), ["format", "response_format"]),
        ("/api/generate", json!({ "prompt": "?", "format": schema }), ["format", "response_format"]),
        (
            "/api/chat",
            json!({ "messages": said, "stream": false, "options": { "grammar": "root ::= x" } }),
            ["options.grammar", "grammar"],
        ),
    ];
    let mut engine = None;
    for (path, mut body, [said, field]) in wishes {
        body["model"] = "own".into();
        let refused = boss.client().post(path, &body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path} {body}: {refused:?}");
        let text = text_of(&refused);
        assert!(text.contains(&format!("'{said}'")) && text.contains("llama-server"), "{path}: {text}");
        body["model"] = "engine".into();
        let passed = boss.client().post(path, &body).await;
        assert_eq!(passed.status, StatusCode::OK, "{path} {body}: {passed:?}");
        if engine.is_none() {
            engine = Some(models[1].worker().await);
        }
        let request = engine.as_mut().unwrap().request().await;
        assert!(request.body.get(field).is_some(), "{path}: {:?}", request.body);
    }
    let body = json!({ "model": "engine", "messages": said, "guided_regex": "x" });
    let refused = boss.client().post("/v1/chat/completions", &body).await.json();
    assert_eq!(refused["error"]["param"], "guided_regex", "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("vLLM"), "{refused}");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_ollamas_num_ctx_loads_a_model_with_more_context_and_never_with_less() {
    let sandbox = Sandbox::new();
    let mut model = sandbox.fake_model_with("alpha", "vram = \"64MiB\"\ncontext_length = 1024", reply("yes"));
    let boss = sandbox.start().await;
    let ask = async |options: Value| {
        let body = json!({ "model": "alpha", "stream": false, "options": options,
            "messages": [{ "role": "user", "content": "?" }] });
        boss.client().post("/api/chat", &body).await
    };
    // A smaller context than that of the manifest changes nothing, whether the model is loaded or not.
    for _ in 0..2 {
        let answer = ask(json!({ "num_ctx": 512, "num_gpu": 99, "temprature": 1 })).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        assert_eq!(answer.header("x-ignored-options"), Some("num_gpu, temprature"));
    }
    assert_eq!((model.worker().await.spec["context_length"].clone(), model.spawns()), (json!(1024), 1));
    let answer = ask(json!({ "num_ctx": 4_096 })).await;
    assert_eq!((answer.status, answer.header("x-ignored-options")), (StatusCode::OK, None), "{answer:?}");
    assert!(answer.json()["load_duration"].as_u64() > Some(0), "{answer:?}");
    assert_eq!((model.worker().await.spec["context_length"].clone(), model.spawns()), (json!(4_096), 2));
    // Later requests for less, for as much, or for nothing in particular find it loaded.
    for options in [json!({}), json!({ "num_ctx": 0 }), json!({ "num_ctx": 2_048 }), json!({ "num_ctx": 4_096 })] {
        assert_eq!(ask(options).await.status, StatusCode::OK);
    }
    assert_eq!(model.spawns(), 2);
    for wrong in [json!("much"), json!(-1), json!(1.5)] {
        let refused = ask(json!({ "num_ctx": wrong })).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
        assert!(refused.json()["error"].as_str().unwrap().contains("options.num_ctx"), "{refused:?}");
    }
    // A load alone takes the context too.
    let load = json!({ "model": "alpha", "options": { "num_ctx": 5_000 } });
    assert_eq!(boss.client().post("/api/generate", &load).await.status, StatusCode::OK);
    assert_eq!((model.worker().await.spec["context_length"].clone(), model.spawns()), (json!(5_000), 3));
    boss.finish().await;
}
