//! The runtime configuration: changed, stored, shared and obeyed (TR-4).

use http::{HeaderValue, Method};
use model_boss_tests::{Answer, Behaviour, Boss, PATIENCE, RedisServer, Sandbox, question, until};
use serde_json::{Value, json};

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

    // One runs, one waits, and the next is over the new limit.
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
    assert!(origin.ends_with("model-boss.toml:3"), "{origin}");
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
    // Nobody's change is lost: each writer reads, adds its own, and tries again.
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
        sandbox.play("[cpu]\nmemory = \"8GiB\"\n");
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
