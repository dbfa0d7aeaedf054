//! RC-16, RC-17, MM-11: external engines, with the fake worker in the role of llama-server. They have the same queue,
//! leases, eviction and supervision as the candle worker.

use http::StatusCode;
use model_boss_tests::{Behaviour, FakeWorker, Sandbox, binary, question, text_of_events};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const LLAMA_SERVER: &str = "backend = \"llama-server\"";

/// The value of an option on the engine's command line.
fn option(engine: &FakeWorker, name: &str) -> Option<String> {
    let args = engine.spec["settings"]["args"].as_array().unwrap();
    let at = args.iter().rposition(|arg| arg == name)?;
    Some(args[at + 1].as_str().unwrap().to_owned())
}

fn reply(text: &str) -> Behaviour {
    Behaviour { reply: Some(text.to_owned()), ..Behaviour::default() }
}

#[tokio::test]
async fn rc_17_llama_server_answers_like_any_worker() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let manifest = "backend = \"llama-server\"\ncontext_length = 512\nmax_concurrent = 2\n[params]\ntop_k = 3";
    let mut model = sandbox.gguf_model("alpha", manifest, reply("four"));
    let boss = sandbox.start().await;

    let answer = boss.chat("alpha", "2 + 2?").await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "four");
    assert_eq!(answer.header("x-served-model"), Some("alpha"));

    let mut engine = model.worker().await;
    assert!(option(&engine, "--model").unwrap().ends_with("alpha/weights.gguf"));
    assert_eq!(option(&engine, "--ctx-size").as_deref(), Some("1024"), "each of its two sequences has 512");
    assert_eq!(option(&engine, "--n-gpu-layers").as_deref(), Some("0"));
    assert_eq!(
        (engine.env["CUDA_VISIBLE_DEVICES"].as_str(), engine.env["CUDA_DEVICE_ORDER"].as_str()),
        ("", "PCI_BUS_ID")
    );
    let key = &engine.env["LLAMA_API_KEY"];
    assert!(!engine.spec["settings"]["args"].to_string().contains(key.as_str()));
    let body = engine.request().await.body;
    assert_eq!((&body["model"], &body["top_k"]), (&json!("alpha"), &json!(3)));

    let events = boss.chat_streamed("alpha", "again").await.rest().await;
    assert_eq!(text_of_events(&events), "four");
    let status = boss.read("/api/v1/health").await;
    assert_eq!(status["all_models_loaded"][0]["backend"], "llama-server");
    let stats = boss.read("/api/v1/stats").await;
    assert!(stats["output_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{stats}");
    boss.finish().await;
}

#[tokio::test]
async fn rc_15_nobody_is_asked_before_it_says_ok() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let mut model = sandbox.gguf_model("alpha", LLAMA_SERVER, Behaviour { hold_load: true, ..reply("yes") });
    let boss = sandbox.start().await;
    let asked = boss.ask(question("alpha", "ready?"));
    let engine = model.worker().await;
    let slots = boss.read("/api/v1/slots").await;
    assert_eq!(slots["slots"][0]["state"], "loading", "{slots}");
    engine.finish_load();
    assert_eq!(asked.await.unwrap().json()["choices"][0]["message"]["content"], "yes");
    boss.finish().await;
}

#[tokio::test]
async fn a_killed_coordinator_leaves_no_engine() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let mut model = sandbox.gguf_model("alpha", LLAMA_SERVER, Behaviour { ignore_sigterm: true, ..reply("x") });
    let boss = sandbox.start().await;
    assert!(boss.chat("alpha", "?").await.status.is_success());
    let mut engine = model.worker().await;
    boss.kill().await;
    engine.gone().await;
}

#[tokio::test]
async fn an_engine_that_is_killed_is_loaded_again_and_so_is_one_whose_guard_is() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let mut model = sandbox.gguf_model("alpha", LLAMA_SERVER, reply("x"));
    let boss = sandbox.start().await;
    for _ in 0..2 {
        assert!(boss.chat("alpha", "?").await.status.is_success());
        let mut engine = model.worker().await;
        engine.kill();
        engine.gone().await;
        assert!(boss.chat("alpha", "?").await.status.is_success());
        let mut engine = model.worker().await;
        let slots = boss.read("/api/v1/slots").await;
        let guard = slots["slots"][0]["pid"].as_i64().unwrap();
        assert_ne!(guard, i64::from(engine.pid));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(guard).unwrap()), Signal::SIGKILL).unwrap();
        engine.gone().await;
    }
    boss.finish().await;
}

#[tokio::test]
async fn rc_18_engines_and_our_own_workers_evict_each_other() {
    let mut sandbox = Sandbox::new().with_config("max_loaded_models = 1");
    sandbox.llama_server();
    let mut engine_model = sandbox.gguf_model("alpha", LLAMA_SERVER, reply("engine"));
    let mut own_model = sandbox.fake_model("beta", reply("own"));
    let boss = sandbox.start().await;
    for _ in 0..2 {
        assert!(boss.chat("alpha", "?").await.status.is_success());
        let mut engine = engine_model.worker().await;
        assert!(boss.chat("beta", "?").await.status.is_success());
        engine.terminating().await;
        engine.gone().await;
        own_model.worker().await;
    }
    boss.finish().await;
}

#[tokio::test]
async fn rc_17_alpaca_goes_to_completion_and_comes_back_as_a_chat() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let manifest = "backend = \"llama-server\"\nprompt_format = \"alpaca\"";
    let mut model = sandbox.gguf_model("alpha", manifest, reply("four and more"));
    let boss = sandbox.start().await;
    let answer = boss.chat("alpha", "2 + 2?").await.json();
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["choices"][0]["message"]["content"], "four and more");
    assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() > 0);
    let request = model.worker().await.request().await;
    assert_eq!(request.path, "/completion");
    assert_eq!(request.body["prompt"], "### Instruction:\n2 + 2?\n\n### Response:\n");

    let events = boss.chat_streamed("alpha", "2 + 2?").await.rest().await;
    assert_eq!(text_of_events(&events), "four and more");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_a_message_starts_with_the_tokens_of_its_prompt_through_llama_server_too() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let _chat = sandbox.gguf_model("chat", LLAMA_SERVER, reply("four"));
    let _text = sandbox.gguf_model("text", "backend = \"llama-server\"\nprompt_format = \"raw\"", reply("four"));
    let boss = sandbox.start().await;
    for model in ["chat", "text"] {
        let mut body = question(model, "how much is two and two");
        (body["max_tokens"], body["stream"]) = (9.into(), true.into());
        let streamed = boss.client().post("/v1/messages", &body).await;
        let text = String::from_utf8(streamed.body.to_vec()).unwrap();
        let events: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
        let tokens = |kind: &str, pointer: &str| {
            let event =
                events.iter().find(|event| event["type"] == kind).unwrap_or_else(|| panic!("no {kind}: {text}"));
            event.pointer(pointer).and_then(Value::as_u64)
        };
        assert_eq!(tokens("message_start", "/message/usage/input_tokens"), Some(6), "{model}: {text}");
        assert_eq!(tokens("message_delta", "/usage/input_tokens"), Some(6), "{model}: {text}");
        assert!(text.contains("four"), "{text}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn mm_11_a_load_chooses_context_arguments_and_build() {
    let mut sandbox = Sandbox::new();
    let program = sandbox.llama_server();
    sandbox = sandbox
        .with_config(&format!("ctx_size = 256\n[backends.llama-server.builds]\nother = \"{}\"", program.display()));
    let manifest = "backend = \"llama-server\"\nmax_concurrent = 1\nllamacpp_args = \"--threads 2\"";
    let mut model = sandbox.gguf_model("alpha", manifest, reply("x"));
    let own = sandbox.fake_model("beta", reply("x"));
    let boss = sandbox.start().await;
    let load = async |body: Value| boss.client().post("/api/v1/load", &body).await;

    let answer = load(json!({ "model_name": "alpha" })).await;
    assert!(answer.status.is_success(), "{answer:?}");
    let engine = model.worker().await;
    assert_eq!(
        (option(&engine, "--threads").as_deref(), option(&engine, "--ctx-size").as_deref()),
        (Some("2"), Some("256"))
    );

    let asked =
        json!({ "model_name": "alpha", "ctx_size": 300, "llamacpp_args": "--threads 3", "llamacpp_backend": "other" });
    assert!(load(asked.clone()).await.status.is_success());
    let engine = model.worker().await;
    assert_eq!(
        (option(&engine, "--threads").as_deref(), option(&engine, "--ctx-size").as_deref()),
        (Some("3"), Some("300"))
    );
    assert!(load(asked).await.status.is_success());
    assert_eq!(model.spawns(), 2, "the same again loads nothing");

    for (body, param) in [
        (json!({ "model_name": "alpha", "llamacpp_args": "--host 0.0.0.0" }), "llamacpp_args"),
        (json!({ "model_name": "alpha", "llamacpp_args": ["--model", "/etc/passwd"] }), "llamacpp_args"),
        (json!({ "model_name": "alpha", "llamacpp_backend": "none" }), "llamacpp_backend"),
        (json!({ "model_name": "beta", "llamacpp_args": "--threads 1" }), "llamacpp_args"),
    ] {
        let answer = load(body).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!(param)),
            "{answer:?}"
        );
    }
    assert_eq!(own.spawns(), 0);
    boss.finish().await;
}

#[tokio::test]
async fn rc_17_an_engines_error_has_our_shape() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let manifest = "backend = \"llama-server\"\ncontext_length = 3\nmax_concurrent = 1";
    let _model = sandbox.gguf_model("alpha", manifest, Behaviour::default());
    let boss = sandbox.start().await;
    let answer = boss.client().post("/v1/chat/completions", &json!({ "model": "alpha" })).await;
    assert_eq!(
        (answer.status, answer.error_code().as_str()),
        (StatusCode::BAD_REQUEST, "invalid_request"),
        "{answer:?}"
    );
    assert_eq!(answer.json()["source"], "worker");
    boss.finish().await;
}

#[tokio::test]
async fn rc_17_the_category_says_what_an_engine_offers() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let mut embedding =
        sandbox.gguf_model("vectors", "labels = [\"embedding\"]\nbackend = \"llama-server\"", Behaviour::default());
    let _reranking =
        sandbox.gguf_model("ranks", "labels = [\"reranking\"]\nbackend = \"llama-server\"", Behaviour::default());
    let boss = sandbox.start().await;
    let answer =
        boss.client().post("/v1/embeddings", &json!({ "model": "vectors", "input": ["one", "two words"] })).await;
    assert_eq!(answer.json()["data"][1]["embedding"][0], 2.0, "{answer:?}");
    assert!(embedding.worker().await.spec["settings"]["args"].to_string().contains("--embeddings"));
    for path in ["/v1/rerank", "/rerank", "/v1/reranking", "/api/v1/rerank"] {
        let body = json!({ "model": "ranks", "query": "q", "documents": ["a", "bcd"] });
        let answer = boss.client().post(path, &body).await;
        assert_eq!(answer.json()["results"][1]["relevance_score"], 3.0, "{path}: {answer:?}");
    }
    let answer = boss.chat("vectors", "?").await;
    assert_eq!(answer.error_code(), "unsupported_by_model");
    boss.finish().await;
}

#[tokio::test]
async fn rc_17_any_program_with_such_a_port_runs_by_its_command_line() {
    let sandbox = Sandbox::new();
    let engine = sandbox.fake_engine();
    let line = format!(
        "[\"{}\", \"--model\", \"{{path}}/weights.gguf\", \"--alias\", \"{{model}}\", \"--port\", \"{{port}}\", \
         \"--ctx-size\", \"{{ctx}}\", \"--parallel\", \"1\"]",
        engine.display()
    );
    let env = "{ LLAMA_API_KEY = \"{token}\", EXTRA = \"a {{b}}\" }";
    let manifest =
        format!("context_length = 99\ncommand = {{ line = {line}, env = {env}, served_name = \"org/alpha\" }}");
    let mut model = sandbox.gguf_model("alpha", &manifest, reply("four"));
    let boss = sandbox.start().await;
    let answer = boss.chat("alpha", "2 + 2?").await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "four", "{answer:?}");
    let mut engine = model.worker().await;
    assert_eq!((engine.env["EXTRA"].as_str(), option(&engine, "--ctx-size").as_deref()), ("a {b}", Some("99")));
    assert_eq!(engine.request().await.body["model"], "org/alpha");

    // The part of the wish that the engine cannot follow is reported.
    assert_eq!(answer.header("x-thinking"), None);
    let mut body = question("alpha", "2 + 2?");
    body["x_thinking"] = 64.into();
    let answer = boss.ask(body).await.unwrap();
    assert_eq!(answer.header("x-thinking"), Some("on; this engine keeps no budget"), "{answer:?}");
    let body = engine.request().await.body;
    assert_eq!(body["chat_template_kwargs"], json!({ "enable_thinking": true }), "{body}");
    assert!(body.get("thinking").is_none() && body.get("x_thinking").is_none(), "{body}");
    boss.finish().await;
}

#[tokio::test]
async fn rc_23_llama_server_hears_how_long_a_model_may_think() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let mut model = sandbox.gguf_model("alpha", "backend = \"llama-server\"\nthinking = 64", reply("four"));
    std::fs::write(sandbox.path("tasks.yaml"), "tasks:\n  short: {ladder: [alpha], thinking: 8}\n").unwrap();
    let boss = sandbox.start().await;
    let mut budget = async |name: &str, engine: &mut Option<FakeWorker>, extra: Value| {
        let mut body = question(name, "2 + 2?");
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = boss.ask(body).await.unwrap();
        assert_eq!((answer.status, answer.header("x-thinking")), (StatusCode::OK, None), "{answer:?}");
        if engine.is_none() {
            *engine = Some(model.worker().await);
        }
        let body = engine.as_mut().unwrap().request().await.body;
        (body["thinking_budget_tokens"].as_u64(), body["chat_template_kwargs"]["enable_thinking"].as_bool())
    };
    let mut engine = None;
    assert_eq!(budget("alpha", &mut engine, json!({})).await, (Some(64), Some(true)), "the manifest's");
    assert_eq!(budget("task:short", &mut engine, json!({})).await, (Some(8), Some(true)), "the task's");
    assert_eq!(budget("task:short", &mut engine, json!({ "thinking": "off" })).await, (Some(0), Some(false)));
    assert_eq!(option(&engine.unwrap(), "--reasoning-budget").as_deref(), Some("64"));
    boss.finish().await;
}

#[tokio::test]
async fn op_5_a_program_of_a_model_inherits_what_is_listed_and_no_secret() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let engine = sandbox.fake_engine();
    let line = format!(
        "[\"{}\", \"--model\", \"{{path}}/weights.gguf\", \"--alias\", \"{{model}}\", \"--port\", \"{{port}}\", \
         \"--ctx-size\", \"9\", \"--parallel\", \"1\"]",
        engine.display()
    );
    let env = "{ LLAMA_API_KEY = \"{token}\", OWN = \"of the manifest\" }";
    let mut models = [
        sandbox.fake_model("own", reply("x")),
        sandbox.gguf_model("llama", LLAMA_SERVER, reply("x")),
        sandbox.gguf_model("any", &format!("command = {{ line = {line}, env = {env} }}"), reply("x")),
    ];
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    let secret = [
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "HF_TOKEN",
        "VLLM_API_KEY",
        "HTTPS_PROXY",
        "LLAMA_ARG_HOST",
        "LD_AUDIT_OF_MINE",
        "SOMETHING_ELSE",
    ];
    for name in secret {
        launch.command.env(name, "not for you");
    }
    for name in ["OMP_NUM_THREADS", "LC_TIME", "HF_HOME", "WANTED_BY_THE_OPERATOR"] {
        launch.command.env(name, "for you");
    }
    let boss = launch.start().await;
    for model in &mut models {
        assert!(boss.chat(model.name(), "?").await.status.is_success(), "{}", model.name());
        let env = model.worker().await.env;
        let leaked: Vec<_> = env.iter().filter(|(_, value)| *value == "not for you").collect();
        assert!(leaked.is_empty(), "{}: {leaked:?}", model.name());
        assert_eq!(env.values().filter(|value| *value == "for you").count(), 4, "{env:?}");
        assert!(env.contains_key("PATH"), "{env:?}");
        let own = env.get("OWN").map(String::as_str);
        assert_eq!(own, (model.name() == "any").then_some("of the manifest"));
    }
    boss.finish().await;
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_named() {
    let sandbox = Sandbox::new();
    let manifest = "command = { line = [\"/nowhere/engine\", \"{port}\"] }";
    let _model = sandbox.gguf_model("alpha", manifest, Behaviour::default());
    let boss = sandbox.start().await;
    let answer = boss.chat("alpha", "?").await;
    assert_eq!(answer.error_code(), "model_load_failed");
    assert!(answer.error_message().contains("/nowhere/engine"), "{answer:?}");
    boss.finish().await;
}

#[tokio::test]
async fn an_engine_that_ends_while_it_loads_says_why() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let behaviour = Behaviour {
        load_exit: Some(1),
        load_message: "llama_model_load: error loading model: unknown model architecture: 'x'".to_owned(),
        ..Behaviour::default()
    };
    let model = sandbox.gguf_model("alpha", LLAMA_SERVER, behaviour);
    let boss = sandbox.start().await;
    let answer = boss.chat("alpha", "?").await;
    assert_eq!(answer.error_code(), "model_load_failed");
    assert!(answer.error_message().contains("unknown model architecture"), "{answer:?}");
    assert_eq!(model.spawns(), 1, "another try would end the same way");
    boss.finish().await;
}

#[tokio::test]
async fn rc_16_without_llama_server_the_refusal_says_what_is_missing() {
    let sandbox = Sandbox::new();
    let _model = sandbox.gguf_model("alpha", LLAMA_SERVER, Behaviour::default());
    let mut launch = sandbox.launch(&binary("model-boss-fake-worker"));
    // Programs that are installed on this machine must not be found.
    launch.command.env("PATH", "");
    let boss = launch.start().await;
    let answer = boss.chat("alpha", "?").await;
    assert_eq!((answer.status, answer.error_code().as_str()), (StatusCode::BAD_GATEWAY, "model_load_failed"));
    assert!(answer.error_message().contains("MODEL_BOSS_LLAMA_SERVER"), "{answer:?}");
    boss.finish().await;
}

/// The real llama-server, from `MODEL_BOSS_LLAMA_SERVER` or PATH.
fn real_llama_server() -> Option<std::path::PathBuf> {
    let named = std::env::var_os("MODEL_BOSS_LLAMA_SERVER").map(std::path::PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("llama-server")).find(|file| file.is_file());
    named.or(found)
}

#[tokio::test]
async fn rc_17_a_real_llama_server_answers() {
    let Some(program) = real_llama_server() else {
        eprintln!("skipped: there is no llama-server; MODEL_BOSS_LLAMA_SERVER names one");
        return;
    };
    let sandbox = Sandbox::new().with_config(&format!("llama_server = \"{}\"", program.display()));
    let guide = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/guide");
    let weights = sandbox.path("models").join("guide.gguf");
    let mut convert = std::process::Command::new(binary("model-boss-worker"));
    assert!(convert.arg("convert").arg(guide).arg(&weights).status().unwrap().success());
    let manifest = "backend = \"llama-server\"\nvram = \"64MiB\"\ncontext_length = 256\nmax_concurrent = 2\n[params]\ntemperature = 0";
    sandbox.model("guide", &weights, manifest);
    let boss = sandbox.start().await;
    let answer = boss.chat("guide", "Which port does model-boss listen on?").await;
    assert!(answer.json()["choices"][0]["message"]["content"].as_str().unwrap().contains("8210"), "{answer:?}");
    let events = boss.chat_streamed("guide", "Which port does model-boss listen on?").await.rest().await;
    assert!(text_of_events(&events).contains("8210"));
    assert!(boss.read("/api/v1/stats").await["output_tokens"].as_u64().is_some_and(|tokens| tokens > 0));
    let mut body = question("guide", "Which port does model-boss listen on?");
    body["thinking"] = 5.into();
    let answer = boss.ask(body).await.unwrap();
    assert!(answer.text().contains("8210"), "a budget does not trouble a model that does not think: {answer:?}");
    // The answer to a continued message does not repeat its beginning. A message's first event has the tokens of its
    // prompt.
    let mut begun = question("guide", "Which port does model-boss listen on?");
    begun["messages"].as_array_mut().unwrap().push(json!({ "role": "assistant", "content": "model-boss listens" }));
    begun["max_tokens"] = 30.into();
    let whole = boss.ask(begun.clone()).await.unwrap().text();
    assert!(whole.starts_with(" on port 8210"), "{whole}");
    begun["stream"] = true.into();
    let streamed = boss.client().stream("/v1/chat/completions", &begun).await.rest().await;
    assert_eq!(text_of_events(&streamed), whole);
    let message = boss.client().post("/v1/messages", &begun).await;
    let text = String::from_utf8(message.body.to_vec()).unwrap();
    let mut events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let usage = events.find(|event| event["type"] == "message_start").unwrap()["message"]["usage"].clone();
    let count = |name: &str| usage[name].as_u64().unwrap();
    assert!(count("input_tokens") > 0 && count("input_tokens") + count("cache_read_input_tokens") > 10, "{usage}");
    begun["stream"] = false.into();
    begun["continue_final_message"] = false.into();
    let refused = boss.ask(begun.clone()).await.unwrap();
    assert!(refused.error_message().contains("continue_final_message"), "{refused:?}");
    let mut sampled = question("guide", "Which port does model-boss listen on?");
    (sampled["mirostat"], sampled["typical_p"], sampled["dry_multiplier"]) = (2.into(), json!(0.9), json!(0.5));
    assert_eq!(boss.ask(sampled.clone()).await.unwrap().status, StatusCode::OK);
    sampled["tfs_z"] = json!(0.5);
    assert!(boss.ask(sampled).await.unwrap().error_message().contains("tfs_z"));
    boss.finish().await;
}
