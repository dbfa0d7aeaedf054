//! Tasks with real processes: the model that serves, the answer's headers about it, and edits of `tasks.yaml` while
//! requests run.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use model_boss_tests::{Answer, Behaviour, Boss, Event, PATIENCE, Sandbox, binary, question, text_of_events, until};
use serde_json::{Value, json};

fn says(reply: &str) -> Behaviour {
    Behaviour { reply: Some(reply.to_owned()), ..Behaviour::default() }
}

fn write(sandbox: &Sandbox, tasks: &str) {
    // Editors write a file in this way: a new one is renamed over the old one.
    let (new, file) = (sandbox.path("tasks.yaml.new"), sandbox.path("tasks.yaml"));
    std::fs::write(&new, tasks).unwrap();
    std::fs::rename(new, file).unwrap();
}

/// The model that served, its rung, and the reason.
fn served(answer: &Answer) -> (String, String, String) {
    let header = |name| answer.header(name).unwrap_or_default().to_owned();
    (header("x-served-model"), header("x-rung"), header("x-rung-reason"))
}

async fn ask(boss: &Boss, body: Value) -> Answer {
    boss.client().post("/v1/chat/completions", &body).await
}

#[tokio::test]
async fn tr_1_a_task_is_served_by_its_ladder_with_its_fields() {
    let sandbox = Sandbox::new();
    let mut alpha = sandbox.fake_model("alpha", says("from alpha"));
    let _beta = sandbox.fake_model("beta", says("from beta"));
    write(
        &sandbox,
        "tasks:\n  chat:\n    ladder: [alpha, beta]\n    params: {temperature: 0.25}\n    thinking: \"off\"\n\
         clients:\n  phone:\n    models: {gpt-4o: 'task:chat'}\n    allowed_models: ['task:chat']\n",
    );
    let boss = sandbox.start().await;
    let answer = boss.chat("task:chat", "?").await;
    assert_eq!(answer.text(), "from alpha", "{answer:?}");
    assert_eq!(served(&answer), ("alpha".into(), "0".into(), "preferred".into()));
    let mut worker = alpha.worker().await;
    let received = worker.request().await.body;
    assert_eq!((&received["model"], &received["temperature"]), (&json!("alpha"), &json!(0.25)), "{received}");
    assert_eq!(received["thinking"], json!({ "type": "disabled" }), "{received}");

    // The request names the task by field, has a wish for a rung, and sets a value. Fields of model-boss are not
    // forwarded.
    let mut body = question("beta", "?");
    (body["x_task"], body["temperature"], body["x_client_id"], body["x_oops"]) =
        ("chat".into(), 1.into(), "me".into(), 1.into());
    let answer = ask(&boss, body).await;
    assert_eq!((answer.text().as_str(), served(&answer).1.as_str()), ("from beta", "1"));
    assert_eq!(answer.header("x-unknown-fields"), Some("x_oops"));

    // The client has names of its own, and models that it may not use.
    let mut body = question("gpt-4o", "?");
    body["x_client_id"] = "phone".into();
    assert_eq!(ask(&boss, body.clone()).await.text(), "from alpha");
    body["model"] = "beta".into();
    let refused = ask(&boss, body).await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (403, "insufficient_scope"), "{refused:?}");
    let unknown = boss.chat("task:caht", "?").await;
    assert_eq!((unknown.status.as_u16(), unknown.error_code().as_str()), (404, "model_not_found"));
    assert!(unknown.error_message().contains("task:chat"), "{unknown:?}");

    let listed = boss.read("/v1/models").await;
    let ids: Vec<&str> = listed["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["alpha", "beta", "task:chat"]);
    assert_eq!(boss.read("/v1/models/task:chat").await["ladder"], json!(["alpha", "beta"]));
    let task = &boss.read("/api/v1/tasks").await["tasks"][0];
    assert_eq!((&task["name"], &task["ladder"][1]["model"]), (&json!("chat"), &json!("beta")), "{task}");
    boss.finish().await;
}

#[tokio::test]
async fn tr_2_a_failed_load_and_a_crash_lead_to_the_next_rung_unless_forbidden() {
    let sandbox = Sandbox::new().with_config("load_failure_policy = \"fail\"");
    let alpha = sandbox.fake_model("alpha", Behaviour { load_exit: Some(65), ..Behaviour::default() });
    let _beta = sandbox.fake_model("beta", says("from beta"));
    write(&sandbox, "tasks: {chat: {ladder: [alpha, beta], pin_primary: true}}\n");
    let boss = sandbox.start().await;
    let answer = boss.chat("task:chat", "?").await;
    assert_eq!(answer.text(), "from beta", "{answer:?}");
    let (model, rung, reason) = served(&answer);
    assert_eq!((model.as_str(), rung.as_str()), ("beta", "1"));
    assert!(reason.starts_with("fallback; alpha: model 'alpha' could not be loaded"), "{reason}");
    let decisions = boss.read("/api/v1/decisions").await;
    let rung = decisions["decisions"].as_array().unwrap().iter().find(|decision| decision["what"] == "rung").unwrap();
    assert_eq!(rung["model"], "beta", "{rung}");

    let mut strict = question("task:chat", "?");
    strict["x_fallback"] = "none".into();
    let refused = ask(&boss, strict).await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (502, "model_load_failed"), "{refused:?}");
    assert_eq!(alpha.spawns(), 1);
    boss.finish().await;
}

#[tokio::test]
async fn tr_2_a_worker_that_dies_before_any_byte_leads_to_the_next_rung() {
    let sandbox = Sandbox::new();
    let held = Behaviour { hold_after_tokens: Some(0), ..Behaviour::default() };
    let mut alpha = sandbox.fake_model("alpha", held);
    let _beta = sandbox.fake_model("beta", says("from beta"));
    write(&sandbox, "tasks: {chat: {ladder: [alpha, beta]}}\n");
    let boss = sandbox.start().await;
    let waiting = boss.ask(question("task:chat", "?"));
    let mut worker = alpha.worker().await;
    worker.held().await;
    worker.kill();
    let answer = waiting.await.unwrap();
    assert_eq!(answer.text(), "from beta", "{answer:?}");
    assert!(served(&answer).2.starts_with("fallback; alpha:"), "{answer:?}");
    boss.finish().await;
}

#[tokio::test]
async fn tr_2_a_stream_whose_headers_were_early_says_it_in_its_first_and_last_chunk() {
    let sandbox = Sandbox::new().with_config("sse.first_comment = \"50ms\"\nsse.interval = \"50ms\"");
    let mut alpha = sandbox.fake_model("alpha", Behaviour { hold_load: true, ..says("yes") });
    write(&sandbox, "tasks: {chat: {ladder: [alpha]}}\n");
    let boss = sandbox.start().await;
    let mut stream = boss.chat_streamed("task:chat", "?").await;
    assert!(stream.headers.get("x-served-model").is_none());
    assert!(matches!(stream.next().await, Some(Event::Comment(_))));
    alpha.worker().await.finish_load();
    let events = stream.rest().await;
    assert_eq!(text_of_events(&events), "yes");
    let told: Vec<&Value> = events
        .iter()
        .filter_map(|event| if let Event::Data(chunk) = event { Some(&chunk["model_boss"]) } else { None })
        .collect();
    assert!(told.len() >= 2, "{events:?}");
    for told in [told[0], told[told.len() - 1]] {
        assert_eq!((&told["served_model"], &told["rung"]), (&json!("alpha"), &json!(0)), "{events:?}");
    }
    // A stream whose headers named the model is not annotated.
    let mut events = boss.chat_streamed("task:chat", "?").await;
    assert_eq!(events.headers["x-served-model"], "alpha");
    let events = events.rest().await;
    assert!(events.iter().all(|event| !matches!(event, Event::Data(chunk) if chunk.get("model_boss").is_some())));
    boss.finish().await;
}

#[tokio::test]
async fn a_coordinator_does_not_begin_without_the_rules_of_a_broken_file() {
    let sandbox = Sandbox::new();
    let _alpha = sandbox.fake_model("alpha", says("alpha"));
    write(&sandbox, "clients:\n  guest: {allowed_models: [beta]}\n  other: {allowed_modls: [beta]}\n");
    let worker = model_boss_tests::binary("model-boss-fake-worker");
    let (status, said) = sandbox.launch(&worker).end().await;
    assert!(!status.success(), "{said}");
    for part in ["tasks.yaml:3: clients.other.allowed_modls", "model-boss tasks check"] {
        assert!(said.contains(part), "{said}");
    }
    write(&sandbox, "clients:\n  guest: {allowed_models: [beta]}\n");
    let boss = sandbox.start().await;
    let mut body = question("alpha", "?");
    body["x_client_id"] = json!("guest");
    assert_eq!(ask(&boss, body).await.status.as_u16(), 403);
    boss.finish().await;
}

#[tokio::test]
async fn tr_5_edits_count_while_requests_run_and_bad_ones_change_nothing() {
    let sandbox = Sandbox::new();
    let alpha = sandbox.fake_model("alpha", says("alpha"));
    let _beta = sandbox.fake_model("beta", says("beta"));
    write(&sandbox, "tasks: {chat: {ladder: [alpha]}}\n");
    let boss = sandbox.start().await;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let (client, stop) = (boss.client(), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let answer = client.post("/v1/chat/completions", &question("task:chat", "?")).await;
                    assert!(answer.status.is_success(), "{answer:?}");
                }
            })
        })
        .collect();
    let is_served_by = async |model: &str| {
        let by = async || (boss.chat("task:chat", "?").await.text() == model).then_some(());
        until(PATIENCE, "the edit counts", by).await;
    };
    is_served_by("alpha").await;
    for (number, model) in ["beta", "alpha", "beta"].into_iter().enumerate() {
        write(&sandbox, &format!("tasks: {{chat: {{ladder: [{model}]}}}}\n"));
        is_served_by(model).await;
        write(&sandbox, &format!("tasks:\n  chat:\n    ladder: [alpha, alpha]\n    priority: {}\n", 10 + number));
        let told = async || {
            let problems = boss.read("/api/v1/health").await["problems"].to_string();
            (problems.contains("tasks.yaml:4: tasks.chat.priority") && problems.contains("tasks.chat.ladder[1]"))
                .then_some(())
        };
        until(PATIENCE, "health names the fault", told).await;
        assert_eq!(boss.chat("task:chat", "?").await.text(), model, "the last good file stays");
    }
    let metrics = String::from_utf8_lossy(&boss.client().get("/metrics").await.body).into_owned();
    assert!(metrics.contains("model_boss_config_last_reload_successful{file=\"tasks\"} 0"), "{metrics}");
    assert!(boss.output().text().contains("tasks.yaml:4: tasks.chat.priority"), "the terminal says so");
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(alpha.spawns(), 1, "no edit of tasks reloads a model");
    boss.finish().await;
}

#[tokio::test]
async fn the_command_line_checks_explains_and_plans() {
    let sandbox = Sandbox::new();
    let _alpha = sandbox.fake_model("alpha", says("alpha"));
    let cli = |boss: Option<&Boss>, args: &[&str]| {
        let mut command = Command::new(binary("model-boss"));
        if let Some(boss) = boss {
            command.env("MODEL_BOSS_URL", format!("http://{}", boss.client().address()));
        }
        let output = command.current_dir(sandbox.path("")).args(args).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    std::fs::write(sandbox.path("bad.yaml"), "tasks:\n  chat:\n    ladder: []\n    budget: 1\n").unwrap();
    let (good, text) = cli(None, &["tasks", "check", "bad.yaml"]);
    assert!(!good && text.contains("bad.yaml:3: tasks.chat.ladder") && text.contains("bad.yaml:4"), "{text}");
    write(&sandbox, "tasks:\n  chat:\n    ladder: [alpha, beta, claude:haiku]\n");
    let (good, text) = cli(None, &["tasks", "check"]);
    assert!(good && text.contains("no manifest in manifests describes 'beta' yet"), "{text}");
    assert!(!cli(None, &["tasks", "check", "--strict"]).0, "a model that nobody describes");
    // The settings beside the file declare a provider and the folder of manifests.
    std::fs::create_dir(sandbox.path("other")).unwrap();
    std::fs::write(
        sandbox.path("other/model-boss.toml"),
        "manifests = \"../manifests\"\n[providers.lan]\nbase_url = \"http://127.0.0.1:9\"\ncloud = false\n",
    )
    .unwrap();
    std::fs::write(
        sandbox.path("other/tasks.yaml"),
        "tasks:\n  chat: {ladder: [alpha, 'lan:x', 'wan:x']}\n  here: {ladder: [alpha, 'lan:x'], local_only: true}\n",
    )
    .unwrap();
    let (good, text) = cli(None, &["tasks", "check", "other/tasks.yaml"]);
    assert!(good && !text.contains("'lan:x'") && !text.contains("'alpha'"), "{text}");
    assert!(text.contains("chat.ladder[2]") && text.contains("no provider is called 'wan'"), "{text}");
    let (good, text) = cli(None, &["tasks", "check", "other/tasks.yaml", "--provider", "lan"]);
    assert!(!good && text.contains("tasks.here.ladder[1]"), "a prefix given here is a cloud: {text}");
    let boss = sandbox.start().await;
    let (good, text) = cli(Some(&boss), &["tasks", "explain", "chat"]);
    assert!(good && text.contains("rung 1     beta: the model 'beta' was not found"), "{text}");
    assert!(text.contains("a request now: rung 0, alpha (preferred)"), "{text}");
    assert!(cli(Some(&boss), &["config", "set", "allowCloudFallback=false"]).0);
    let (good, text) = cli(Some(&boss), &["tasks", "explain", "chat"]);
    assert!(good && text.contains("rung 2     claude:haiku: not used: allowCloudFallback is off"), "{text}");
    let (good, text) = cli(Some(&boss), &["plan", "task:chat"]);
    assert!(good && text.contains("rung 0     alpha: is not loaded") && text.contains("<- preferred"), "{text}");
    let (good, text) = cli(Some(&boss), &["config", "get", "--origin"]);
    assert!(good && text.contains("allowCloudFallback") && text.contains("stored"), "{text}");
    assert_eq!(cli(Some(&boss), &["config", "get", "allowCloudFallback"]), (true, "false\n".to_owned()));
    assert!(!cli(Some(&boss), &["config", "get", "nothing"]).0);
    boss.finish().await;
}
