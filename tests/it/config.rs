//! The runtime configuration: changed, stored, shared and applied (TR-4).

use http::{HeaderValue, Method};
use model_boss_tests::{Answer, Behaviour, Boss, PATIENCE, RedisServer, Sandbox, question, until};
use serde_json::{Value, json};

use crate::cloud::Stub;

const CONFIG: &str = "/api/v1/config";

async fn put(boss: &Boss, changes: Value, version: Option<&str>) -> Answer {
    let mut request = boss.client().request(Method::PUT, CONFIG, changes.to_string());
    if let Some(version) = version {
        request.headers_mut().insert("if-match", HeaderValue::from_str(version).unwrap());
    }
    boss.client().send(request).await
}

#[tokio::test]
async fn tr_4_a_change_is_obeyed_survives_a_restart_and_can_be_taken_back() {
    let sandbox = Sandbox::new().with_config("max_wait = \"5m\"");
    let mut alpha = sandbox.fake_model_with(
        "alpha",
        "vram = \"64MiB\"\nmax_concurrent = 1",
        Behaviour { hold_after_tokens: Some(0), ..Behaviour::default() },
    );
    let boss = sandbox.start().await;
    let shown = boss.read(CONFIG).await;
    assert_eq!(
        shown,
        json!({ "allowCloudFallback": true, "agingStepS": 30, "maxWaitS": 300, "modelIdleSecs": null,
            "maxLoadedModels": "auto", "maxQueue": 4096, "logLevel": "info" })
    );
    let changed = put(&boss, json!({ "maxQueue": 1, "agingStepS": 0.5 }), None).await;
    assert_eq!((changed.status.as_u16(), changed.json()["maxQueue"].clone()), (200, json!(1)), "{changed:?}");
    let version = changed.header("etag").unwrap().to_owned();

    // One request runs, one waits, and the next exceeds the new limit.
    let first = boss.ask(question("alpha", "?"));
    let mut worker = alpha.worker().await;
    worker.held().await;
    let second = boss.ask(question("alpha", "?"));
    until(PATIENCE, "one waits", async || {
        (boss.read("/api/v1/queue").await["queue"].as_array()?.len() == 1).then_some(())
    })
    .await;
    assert_eq!(boss.chat("alpha", "?").await.error_code(), "queue_full");
    worker.decode();
    assert!(first.await.unwrap().status.is_success());
    assert!(second.await.unwrap().status.is_success());
    boss.finish().await;

    let boss = sandbox.start().await;
    let origins = boss.read("/api/v1/config?origin=1").await;
    assert_eq!(origins["maxQueue"], json!({ "value": 1, "default": 4096, "origin": "stored" }));
    assert_eq!((&origins["maxWaitS"]["value"], &origins["agingStepS"]["value"]), (&json!(300), &json!(0.5)));
    let origin = origins["maxWaitS"]["origin"].as_str().unwrap();
    let file = std::fs::read_to_string(sandbox.path("model-boss.toml")).unwrap();
    let line = origin.rsplit_once("model-boss.toml:").unwrap().1.parse::<usize>().unwrap();
    assert!(file.lines().nth(line - 1).unwrap().contains("max_wait"), "{origin}");
    let back = put(&boss, json!({ "maxQueue": null }), Some(&version)).await;
    assert_eq!((back.status.as_u16(), back.json()["maxQueue"].clone()), (200, json!(4096)), "{back:?}");
    boss.finish().await;
}

#[tokio::test]
async fn tr_4_a_wrong_change_names_the_key_and_an_old_version_changes_nothing() {
    let sandbox = Sandbox::new();
    let boss = sandbox.start().await;
    for (changes, param) in [
        (json!({ "allowCloudFallbak": false }), "allowCloudFallbak"),
        (json!({ "maxQueue": "many" }), "maxQueue"),
        (json!({ "logLevel": "loud", "maxQueue": 5 }), "logLevel"),
    ] {
        let refused = put(&boss, changes.clone(), None).await;
        assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (400, "invalid_request"), "{refused:?}");
        assert_eq!(refused.json()["error"]["param"], param, "{changes}");
    }
    assert_eq!(boss.read(CONFIG).await["maxQueue"], 4096, "nothing of a wrong change is taken");
    let first = put(&boss, json!({ "maxQueue": 7 }), Some("\"0\"")).await;
    assert_eq!(first.header("etag"), Some("\"1\""), "{first:?}");
    let late = put(&boss, json!({ "maxQueue": 8 }), Some("\"0\"")).await;
    assert_eq!((late.status.as_u16(), late.error_code().as_str()), (412, "precondition_failed"), "{late:?}");
    // No writer's change is lost: each reads, adds its own, and tries again.
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let client = boss.client();
            tokio::spawn(async move {
                loop {
                    let read = client.get(CONFIG).await;
                    let next = read.json()["maxQueue"].as_u64().unwrap() + 1;
                    let mut request = client.request(Method::PUT, CONFIG, json!({ "maxQueue": next }).to_string());
                    let version = HeaderValue::from_str(read.header("etag").unwrap()).unwrap();
                    request.headers_mut().insert("if-match", version);
                    match client.send(request).await.status.as_u16() {
                        200 => return,
                        412 => {}
                        other => panic!("{other}"),
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(boss.read(CONFIG).await["maxQueue"], 15);
    boss.finish().await;
}

#[tokio::test]
async fn tr_4_the_level_of_the_log_changes_while_it_is_written() {
    let sandbox = Sandbox::new();
    let boss = sandbox.start().await;
    // Each change of the configuration is a line of the log at `info`.
    for (changes, logged) in
        [(json!({ "maxQueue": 2 }), true), (json!({ "logLevel": "off" }), true), (json!({ "maxQueue": 3 }), false)]
    {
        assert!(put(&boss, changes, None).await.status.is_success());
        let version = boss.client().get(CONFIG).await.header("etag").unwrap().trim_matches('"').to_owned();
        let line = format!("runtime configuration changed version={version}");
        if logged {
            boss.output().line("logs the change", |text| text.contains(&line)).await;
        }
    }
    assert!(put(&boss, json!({ "logLevel": null }), None).await.status.is_success());
    assert!(put(&boss, json!({ "maxQueue": null }), None).await.status.is_success());
    boss.output().line("logs again", |text| text.contains("runtime configuration changed version=5")).await;
    assert!(!boss.output().text().contains("version=3"), "it was off");
    boss.finish().await;
}

#[tokio::test]
async fn tr_4_coordinators_of_one_redis_share_it() {
    let Some(server) = RedisServer::start() else { return };
    let sandbox = || {
        let mut sandbox = Sandbox::new();
        sandbox.simulate("[cpu]\nmemory = \"8GiB\"\n");
        sandbox.with_config(&format!("redis_url = \"{}\"", server.url()))
    };
    let (one, other) = (sandbox(), sandbox());
    let (boss, second) = (one.start().await, other.start().await);
    assert!(put(&boss, json!({ "allowCloudFallback": false }), None).await.status.is_success());
    let seen = async || (second.read(CONFIG).await["allowCloudFallback"] == false).then_some(());
    until(PATIENCE, "the other coordinator sees it", seen).await;
    assert!(put(&second, json!({ "allowCloudFallback": null }), None).await.status.is_success());
    let seen = async || (boss.read(CONFIG).await["allowCloudFallback"] == true).then_some(());
    until(PATIENCE, "and the first sees that it was taken back", seen).await;
    second.finish().await;
    boss.finish().await;
}

/// A task whose first rung is an unknown model, so that it falls back to a cloud if permitted.
const FALLS_TO_A_CLOUD: &str = "tasks:\n  chat:\n    ladder: [nowhere, \"far:m\"]\n";
const DOCUMENT: &str = "mb:document:runtime-config";

fn answer() -> String {
    json!({ "id": "c", "object": "chat.completion", "choices": [{ "index": 0, "finish_reason": "stop",
        "message": { "role": "assistant", "content": "from afar" } }] })
    .to_string()
}

/// A sandbox whose store is this Redis server, with a cloud to fall back to.
fn with_a_cloud(server: &RedisServer, cloud: &Stub) -> Sandbox {
    let mut sandbox = Sandbox::new();
    sandbox.simulate("[cpu]\nmemory = \"8GiB\"\n");
    std::fs::write(sandbox.path("tasks.yaml"), FALLS_TO_A_CLOUD).unwrap();
    let far = format!("[providers.far]\nbase_url = \"http://{}\"\ncloud = true", cloud.address);
    sandbox.with_config(&format!("redis_url = \"{}\"\n{far}", server.url()))
}

async fn problems(boss: &Boss) -> String {
    boss.read("/api/v1/health").await["problems"].to_string()
}

async fn falls_back(boss: &Boss) -> bool {
    let answer = boss.chat("task:chat", "?").await;
    match answer.status.as_u16() {
        200 => true,
        404 => {
            let message = answer.error_message();
            assert!(message.contains("'far:m'") && message.contains("allowCloudFallback is not known"), "{message}");
            false
        }
        _ => panic!("{answer:?}"),
    }
}

#[tokio::test]
async fn tr_3_the_guard_is_shut_until_the_store_was_read() {
    let Some(mut server) = RedisServer::start() else { return };
    let cloud = Stub::start("application/json", answer()).await;
    let sandbox = with_a_cloud(&server, &cloud);
    server.kill();
    // The store was never reached, so its values are unknown.
    let boss = sandbox.start().await;
    assert!(!falls_back(&boss).await);
    let shown = boss.read("/api/v1/config?origin=1").await["allowCloudFallback"].clone();
    assert_eq!((&shown["value"], &shown["default"]), (&json!(false), &json!(true)), "{shown}");
    assert!(shown["origin"].as_str().unwrap().contains("not read"), "{shown}");
    assert!(problems(&boss).await.contains("allowCloudFallback is off"), "{}", problems(&boss).await);
    let refused = put(&boss, json!({ "allowCloudFallback": true }), None).await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (503, "lease_store_unavailable"));
    assert_eq!(
        put(&boss, json!({ "maxQueu": 1 }), None).await.status.as_u16(),
        400,
        "the store has nothing to do with it"
    );
    assert!(cloud.asked().is_empty());

    // The server starts, and its store forbids nothing.
    server.start_again();
    until(PATIENCE, "the store was read", async || falls_back(&boss).await.then_some(())).await;
    assert_eq!(cloud.asked().len(), 1);
    let stored = put(&boss, json!({ "allowCloudFallback": false, "maxQueue": 7 }), None).await;
    assert_eq!(stored.status.as_u16(), 200, "{stored:?}");
    // The document and the copy are written to the state folder before the process ends.
    let copy = sandbox.path("state/simulation/runtime-config.json");
    let copied = async || std::fs::read_to_string(&copy).ok()?.contains("\"maxQueue\":7").then_some(());
    until(PATIENCE, "the state folder knows it", copied).await;
    boss.finish().await;
    server.kill();

    // The copy's values apply, though another coordinator may have changed the store meanwhile.
    let boss = sandbox.start().await;
    let shown = boss.read("/api/v1/config?origin=1").await;
    assert_eq!((&shown["maxQueue"]["value"], &shown["allowCloudFallback"]["value"]), (&json!(7), &json!(false)));
    assert!(!falls_back(&boss).await);
    server.start_again();
    until(PATIENCE, "the store was read", async || {
        let shown = boss.read("/api/v1/config?origin=1").await;
        (shown["allowCloudFallback"]["origin"] == "stored" && shown["maxQueue"]["origin"] == "stored").then_some(())
    })
    .await;
    // The records of jobs are read by a task of their own.
    until(PATIENCE, "no problem is left", async || (problems(&boss).await == "[]").then_some(())).await;
    assert_eq!(boss.chat("task:chat", "?").await.status.as_u16(), 404);
    assert_eq!(cloud.asked().len(), 1, "nothing went there while it was not known");

    // A document that the server lost is written again.
    server.ask(&["FLUSHALL"]).expect("it answers");
    until(PATIENCE, "it is put back", async || {
        server.ask(&["HGET", DOCUMENT, "document"]).filter(|text| text.contains("\"maxQueue\":7")).map(drop)
    })
    .await;
    assert_eq!(boss.read(CONFIG).await["allowCloudFallback"], false);
    assert_eq!(cloud.asked().len(), 1);
    boss.finish().await;
}

#[tokio::test]
async fn tr_4_what_a_newer_version_stored_is_kept_named_and_ignored_one_by_one() {
    let Some(server) = RedisServer::start() else { return };
    let cloud = Stub::start("application/json", answer()).await;
    let sandbox = with_a_cloud(&server, &cloud);
    let write = |text: &str| server.ask(&["HSET", DOCUMENT, "document", text, "etag", &etag()]).expect("it answers");
    write(
        r#"{"version":9,"format":2,"values":
            {"cloudBudget":{"eur":5},"logLevel":"shout","maxQueue":7,"allowCloudFallback":false}}"#,
    );
    let boss = sandbox.start().await;
    let shown = boss.read(CONFIG).await;
    assert_eq!(
        (&shown["maxQueue"], &shown["allowCloudFallback"], &shown["logLevel"]),
        (&json!(7), &json!(false), &json!("info"))
    );
    let named = shown["ignored"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(named, ["cloudBudget", "logLevel"]);
    for key in named {
        assert!(problems(&boss).await.contains(&format!("'{key}'")), "{}", problems(&boss).await);
    }
    assert_eq!(boss.chat("task:chat", "?").await.status.as_u16(), 404, "the guard is shut");
    // A change takes effect, and leaves other values unchanged.
    let changed = put(&boss, json!({ "maxQueue": 8 }), Some("\"9\"")).await;
    assert_eq!((changed.status.as_u16(), &changed.json()["maxQueue"]), (200, &json!(8)), "{changed:?}");
    let stored = || serde_json::from_str::<Value>(&server.ask(&["HGET", DOCUMENT, "document"]).unwrap()).unwrap();
    assert_eq!(
        (&stored()["values"]["cloudBudget"], &stored()["format"], &stored()["version"]),
        (&json!({ "eur": 5 }), &json!(2), &json!(10))
    );
    let gone = put(&boss, json!({ "cloudBudget": null, "logLevel": null }), None).await;
    assert_eq!((gone.status.as_u16(), gone.json().get("ignored")), (200, None), "{gone:?}");
    assert_eq!(problems(&boss).await, "[]");

    // A guard is shut by an invalid value, and by an invalid document.
    let opened = put(&boss, json!({ "allowCloudFallback": null }), None).await;
    assert_eq!((opened.status.as_u16(), falls_back(&boss).await), (200, true), "{opened:?}");
    for (text, word) in
        [(r#"{"version":20,"values":{"allowCloudFallback":"ask"}}"#, "'allowCloudFallback'"), ("7", "not used")]
    {
        write(text);
        until(PATIENCE, "it is seen", async || problems(&boss).await.contains(word).then_some(())).await;
        assert!(!falls_back(&boss).await);
    }
    let refused = put(&boss, json!({ "maxQueue": 9 }), None).await;
    assert_eq!((refused.status.as_u16(), refused.error_code().as_str()), (412, "precondition_failed"), "{refused:?}");
    assert_eq!(server.ask(&["HGET", DOCUMENT, "document"]).as_deref(), Some("7"));
    let replaced = put(&boss, json!({ "maxQueue": 9, "allowCloudFallback": true }), Some("*")).await;
    assert_eq!((replaced.status.as_u16(), &replaced.json()["maxQueue"]), (200, &json!(9)), "{replaced:?}");
    assert!(falls_back(&boss).await);
    assert_eq!(problems(&boss).await, "[]");
    boss.finish().await;
}

#[tokio::test]
async fn tr_4_a_copy_that_cannot_be_written_is_named_and_changes_go_on() {
    let sandbox = Sandbox::new();
    let copy = sandbox.path("state/runtime-config.json");
    std::fs::create_dir_all(copy.join("in the way")).unwrap();
    let boss = sandbox.start().await;
    assert!(problems(&boss).await.contains("runtime-config.json"), "{}", problems(&boss).await);
    let changed = put(&boss, json!({ "maxQueue": 8 }), None).await;
    assert_eq!((changed.status.as_u16(), &changed.json()["maxQueue"]), (200, &json!(8)), "{changed:?}");
    until(PATIENCE, "it is named", async || problems(&boss).await.contains("cannot be copied").then_some(())).await;
    assert_eq!(boss.read(CONFIG).await["maxQueue"], 8);
    boss.finish().await;
}

/// An etag in the form of the store's own.
fn etag() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{:032x}", NEXT.fetch_add(1, Ordering::Relaxed))
}
