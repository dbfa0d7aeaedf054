//! EN-7: programs that were written for llama-server find its routes, fields and shapes, with the built-in model.

use http::StatusCode;
use model_boss_tests::{Behaviour, Boss, Event, Sandbox};
use serde_json::{Value, json};

use crate::real_model::{copy_of_guide, guide};

async fn with_guide(manifest: &str) -> Boss {
    let sandbox = Sandbox::new();
    sandbox.model("guide", &guide(), manifest);
    sandbox.start_with_real_worker().await
}

const QUESTION: &str = "<|user|> Which port does model-boss listen on?<|end|><|assistant|>";

fn chunks(events: &[Event]) -> Vec<&Value> {
    events.iter().filter_map(|event| if let Event::Data(chunk) = event { Some(chunk) } else { None }).collect()
}

#[tokio::test]
async fn en_7_a_native_completion_has_llama_servers_shape_whole_and_streamed() {
    let boss = with_guide("").await;
    let asked = json!({ "prompt": QUESTION, "temperature": 0, "n_predict": 6, "return_tokens": true, "n_probs": 3 });
    // No request names a model: there is one.
    let answer = boss.client().post("/completion", &asked).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let whole = answer.json();
    assert_eq!((&whole["stop"], &whole["stop_type"], &whole["index"]), (&json!(true), &json!("limit"), &json!(0)));
    assert_eq!(whole["tokens"].as_array().unwrap().len(), 6, "{whole}");
    assert_eq!((&whole["tokens_predicted"], &whole["timings"]["predicted_n"]), (&json!(6), &json!(6)));
    assert_eq!(whole["generation_settings"]["n_predict"], 6);
    assert_eq!(whole["generation_settings"]["top_k"], 40, "llama-server's default");
    assert!(whole["prompt"].as_str().unwrap().contains("Which port"), "{whole}");
    let probabilities = whole["completion_probabilities"].as_array().unwrap();
    assert_eq!(probabilities.len(), 6);
    for (token, id) in probabilities.iter().zip(whole["tokens"].as_array().unwrap()) {
        assert_eq!((&token["id"], token["top_logprobs"].as_array().unwrap().len()), (id, 3), "{token}");
        assert_eq!(token["top_logprobs"][0]["id"], *id, "the likeliest is chosen");
    }
    let mut streamed = asked.clone();
    streamed["stream"] = json!(true);
    streamed["return_progress"] = json!(true);
    let events = boss.client().stream("/completion", &streamed).await.rest().await;
    let all = chunks(&events);
    assert!(!events.contains(&Event::Done), "llama-server sends no such event here");
    let (last, pieces) = all.split_last().unwrap();
    assert_eq!((&last["stop"], &last["content"]), (&json!(true), &json!("")));
    assert!(pieces.iter().all(|piece| piece["stop"] == false), "{pieces:?}");
    let progress: Vec<&Value> =
        pieces.iter().map(|piece| &piece["prompt_progress"]).filter(|p| p.is_object()).collect();
    assert_eq!(progress.last().unwrap()["processed"], progress[0]["total"]);
    assert_eq!(progress[0]["processed"], progress[0]["cache"]);
    let text: String = pieces.iter().map(|piece| piece["content"].as_str().unwrap()).collect();
    assert_eq!(text, whole["content"].as_str().unwrap());
    let tokens: Vec<&Value> = pieces.iter().flat_map(|piece| piece["tokens"].as_array().unwrap()).collect();
    assert_eq!(json!(tokens), whole["tokens"]);
    boss.finish().await;
}

#[tokio::test]
async fn en_7_prompts_mix_texts_and_tokens_and_fields_are_selected() {
    let boss = with_guide("[params]\ntemperature = 0\n").await;
    let client = boss.client();
    let tokens = client.post("/tokenize", &json!({ "content": QUESTION, "add_special": true })).await.json();
    let tokens = &tokens["tokens"];
    let ask = async |prompt: Value| {
        let answer = client.post("/completion", &json!({ "prompt": prompt, "n_predict": 4 })).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        answer.json()
    };
    let text = ask(json!(QUESTION)).await["content"].clone();
    assert_eq!(ask(tokens.clone()).await["content"], text);
    let several = ask(json!([tokens, QUESTION, { "prompt_string": QUESTION }])).await;
    let contents: Vec<&Value> = several.as_array().unwrap().iter().map(|answer| &answer["content"]).collect();
    assert_eq!(contents, [&text; 3]);
    let (head, tail) = tokens.as_array().unwrap().split_at(3);
    let rest = client.post("/detokenize", &json!({ "tokens": tail })).await.json();
    let mixed: Vec<Value> = head.iter().cloned().chain([rest["content"].clone()]).collect();
    assert_eq!(ask(json!(mixed)).await["content"], text);
    let selected =
        json!({ "prompt": QUESTION, "n_predict": 4, "response_fields": ["content", "generation_settings/seed"] });
    let selected = client.post("/completion", &selected).await.json();
    assert_eq!(selected.as_object().unwrap().len(), 2, "{selected}");
    assert_eq!(selected["content"], text);
    // An answer counts as a whole, however little of it the client selects.
    let stats = boss.read("/api/v1/stats").await;
    let models = stats["models"].as_array().unwrap();
    let counted = &models.iter().find(|model| model["model_name"] == "guide").unwrap()["requests"];
    assert!(counted.as_u64().is_some_and(|count| count >= 5), "{stats}");
    for (prompt, field) in [
        (json!({ "prompt_string": "x", "multimodal_data": ["aGk="] }), "multimodal_data"),
        (json!([]), "prompt"),
        (json!(7), "prompt"),
        (json!([["a", -1]]), "prompt"),
    ] {
        let refused = client.post("/completion", &json!({ "prompt": prompt })).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{prompt} {refused:?}");
        assert!(refused.json()["error"]["param"].as_str().unwrap().contains(field), "{prompt} {refused:?}");
    }
    for (field, value) in [("post_sampling_probs", json!(true)), ("t_max_predict_ms", json!(5)), ("mirostat", json!(2))]
    {
        let refused = client.post("/completion", &json!({ "prompt": "a", field: value })).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)));
    }
    boss.finish().await;
}

#[tokio::test]
async fn en_7_completions_without_a_prefix_are_llama_servers_or_openais() {
    let boss = with_guide("aliases = [\"default\"]\n").await;
    let client = boss.client();
    let ask = async |path: &str, body: Value| client.post(path, &body).await.json();
    let native = ask("/completions", json!({ "prompt": "Hello", "max_tokens": 2 })).await;
    assert!(native["content"].is_string() && native["choices"].is_null(), "{native}");
    let native = ask("/completions", json!({ "model": "guide", "prompt": "Hello", "n_predict": 2 })).await;
    assert!(native["content"].is_string(), "{native}");
    let openai = ask("/completions", json!({ "model": "guide", "prompt": "Hello", "max_tokens": 2 })).await;
    assert!(openai["choices"][0]["text"].is_string() && openai["content"].is_null(), "{openai}");
    let openai = ask("/v1/completions", json!({ "prompt": "Hello", "max_tokens": 2 })).await;
    assert!(openai["choices"][0]["text"].is_string(), "{openai}");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_properties_slots_counts_and_templates_are_told() {
    let boss = with_guide("max_concurrent = 3\n[params]\nseed = 7\n").await;
    let client = boss.client();
    let props = boss.read("/props").await;
    assert_eq!((&props["is_sleeping"], &props["total_slots"]), (&json!(true), &json!(3)), "{props}");
    assert_eq!(props["default_generation_settings"]["params"]["seed"], 7);
    assert!(props["chat_template"].as_str().unwrap().contains("messages"), "{props}");
    let messages = json!([{ "role": "user", "content": "Which port?" }]);
    let rendered = client.post("/apply-template", &json!({ "messages": messages })).await.json();
    assert!(rendered["prompt"].as_str().unwrap().contains("which port"), "{rendered}");
    let tokens = json!({ "content": rendered["prompt"], "add_special": false });
    let tokens = client.post("/tokenize", &tokens).await.json()["count"].clone();
    for (path, body) in [
        ("/chat/completions/input_tokens", json!({ "messages": messages })),
        ("/v1/responses/input_tokens", json!({ "input": "Which port?" })),
    ] {
        assert_eq!(client.post(path, &body).await.json()["input_tokens"], tokens, "{path}");
    }
    let props = boss.read("/props?model=guide").await;
    assert_eq!(props["is_sleeping"], false, "a question for its template loaded it");
    let slots = boss.read("/slots").await;
    assert_eq!(slots.as_array().unwrap().len(), 3);
    assert_eq!(slots[0]["n_ctx"], props["default_generation_settings"]["n_ctx"]);
    assert!(slots.as_array().unwrap().iter().all(|slot| slot["is_processing"] == false), "{slots}");
    assert_eq!(client.get("/props?model=nobody").await.status, StatusCode::NOT_FOUND);
    let answer = client.post("/completion", &json!({ "prompt": "Hello there", "n_predict": 3 })).await.json();
    let page = client.get("/metrics?model=guide").await;
    let page = String::from_utf8(page.body.to_vec()).unwrap();
    let figure = |name: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("llamacpp:{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {page}")).to_owned()
    };
    assert_eq!(figure("tokens_predicted_total"), answer["timings"]["predicted_n"].to_string());
    boss.finish().await;
}

#[tokio::test]
async fn en_7_a_route_without_a_model_needs_one_that_is_meant() {
    let sandbox = Sandbox::new();
    let _one = sandbox.fake_model("one", Behaviour::default());
    let _two = sandbox.fake_model("two", Behaviour::default());
    let boss = sandbox.start().await;
    for path in ["/completion", "/infill", "/apply-template"] {
        let refused = boss.client().post(path, &json!({ "prompt": "x", "messages": [] })).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("model")));
        assert!(refused.error_message().contains("2 models"), "{refused:?}");
    }
    assert_eq!(boss.client().get("/props").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(boss.read("/props?model=two").await["model_alias"], "two");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_samplers_work_and_a_gap_needs_a_vocabulary_for_it() {
    let boss = with_guide("").await;
    let client = boss.client();
    let ask = async |more: Value| {
        let mut body = json!({ "model": "guide", "prompt": QUESTION, "max_tokens": 24, "seed": 3 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = client.post("/v1/completions", &body).await;
        assert_eq!(answer.status, StatusCode::OK, "{more} {answer:?}");
        answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let greedy = ask(json!({ "temperature": 0 })).await;
    // The narrowest filters leave the likeliest token.
    for narrow in [json!({ "top_n_sigma": 0.0001 }), json!({ "top_k": 1, "typical_p": 0.1 })] {
        assert_eq!(ask(narrow.clone()).await, greedy, "{narrow}");
    }
    let excluded = ask(json!({ "xtc_probability": 1, "xtc_threshold": 0.0, "temperature": 0.01 })).await;
    assert_ne!(excluded, greedy, "the likeliest tokens were removed");
    // Asked again, the model says the same, unless no run of two tokens may come again.
    let again = format!("{QUESTION}{greedy}<|end|>{QUESTION}");
    let penalised = json!({ "prompt": again, "temperature": 0, "dry_multiplier": 50.0, "dry_allowed_length": 1 });
    assert_ne!(ask(penalised.clone()).await, ask(json!({ "prompt": again, "temperature": 0 })).await);
    let mut broken = penalised;
    broken["dry_sequence_breakers"] = json!(["a", "e", "i", "o", " "]);
    ask(broken).await;
    for (field, value) in
        [("dry_sequence_breakers", json!([""])), ("xtc_threshold", json!(2)), ("typical_p", json!("x"))]
    {
        let refused = client.post("/v1/completions", &json!({ "model": "guide", "prompt": "a", field: value })).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(field)));
    }
    let gap = json!({ "model": "guide", "prompt": "def f(", "suffix": "return 1" });
    let refused = client.post("/v1/completions", &gap).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("suffix")));
    let refused = client.post("/infill", &json!({ "input_prefix": "a", "input_suffix": "b" })).await;
    assert_eq!(refused.error_code(), "unsupported_by_model", "{refused:?}");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_a_chat_tells_its_prompt_and_its_times_to_those_who_ask() {
    let boss = with_guide("").await;
    let messages = json!([{ "role": "user", "content": "Which port?" }]);
    let asked = json!({ "model": "guide", "messages": messages, "max_tokens": 4, "temperature": 0, "verbose": true });
    let answer = boss.client().post("/v1/chat/completions", &asked).await.json();
    assert!(answer["__verbose"]["prompt"].as_str().unwrap().contains("which port"), "{answer}");
    let mut streamed = asked;
    (streamed["stream"], streamed["timings_per_token"], streamed["return_progress"]) =
        (true.into(), true.into(), true.into());
    let events = boss.client().stream("/v1/chat/completions", &streamed).await.rest().await;
    let all = chunks(&events);
    assert_eq!(all[0]["choices"][0]["delta"]["role"], "assistant");
    let progress = all.iter().filter(|chunk| chunk["prompt_progress"].is_object()).count();
    assert!(progress >= 2, "{all:?}");
    assert!(all.iter().any(|chunk| chunk["__verbose"]["prompt"].is_string()), "{all:?}");
    let texts =
        all.iter().filter(|chunk| chunk["choices"][0]["delta"]["content"].as_str().is_some_and(|t| !t.is_empty()));
    let predicted: Vec<u64> = texts.map(|chunk| chunk["timings"]["predicted_n"].as_u64().unwrap()).collect();
    assert!(!predicted.is_empty() && predicted.is_sorted(), "{predicted:?}");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_a_gap_is_filled_by_a_model_whose_vocabulary_has_its_edges() {
    let sandbox = Sandbox::new();
    let folder = copy_of_guide(&sandbox, "coder");
    // Three special tokens get the names of a gap's edges.
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let mut text = std::fs::read_to_string(folder.join(file)).unwrap();
        for (own, edge) in
            [("<|pad|>", "<|fim_prefix|>"), ("<|user|>", "<|fim_suffix|>"), ("<|assistant|>", "<|fim_middle|>")]
        {
            text = text.replace(own, edge);
        }
        std::fs::write(folder.join(file), text).unwrap();
    }
    let boss = sandbox.start_with_real_worker().await;
    let gap = json!({ "input_prefix": "before", "prompt": " begun", "input_suffix": "behind", "n_predict": 3 });
    let answer = boss.client().post("/infill", &gap).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let edges = "<|fim_prefix|>before begun<|fim_suffix|>behind<|fim_middle|>";
    assert_eq!(answer.json()["prompt"], edges);
    let mut with_files = gap.clone();
    with_files["input_extra"] = json!([{ "filename": "a.rs", "text": "fn a() {}" }]);
    let prompt = boss.client().post("/infill", &with_files).await.json()["prompt"].clone();
    assert!(prompt.as_str().unwrap().contains("a.rs\nfn a() {}"), "{prompt}");
    with_files["input_extra"] = json!([{ "filename": 1, "text": "x" }]);
    let refused = boss.client().post("/infill", &with_files).await;
    assert_eq!(refused.json()["error"]["param"], "input_extra[0].filename", "{refused:?}");
    let suffix =
        json!({ "model": "coder", "prompt": "before begun", "suffix": "behind", "max_tokens": 2, "verbose": true });
    let answer = boss.client().post("/v1/completions", &suffix).await.json();
    assert_eq!(answer["__verbose"]["prompt"], edges, "{answer}");
    boss.finish().await;
}
