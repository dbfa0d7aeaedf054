//! Jobs, files and batches belong to their senders (RC-26).

use model_boss_access::{KeyDigest, KeyLimits, KeyRecord, KeyScope, KeySecret};

use super::*;

const JOBS: &str = "/api/v1/jobs";

fn key(name: &str, scope: KeyScope) -> String {
    let secret = KeySecret { sha256: KeyDigest::of(&format!("{name}-secret")), created: 0, expires: None };
    let record = KeyRecord::new(name.into(), [scope].into(), KeyLimits::default(), secret);
    serde_json::to_string(&record).unwrap()
}

fn keys() -> String {
    [key("anna", KeyScope::Inference), key("bert", KeyScope::Inference), key("boss", KeyScope::Admin)].join("\n")
}

impl Fixture {
    async fn by(&self, name: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {name}-secret"));
        let (status, _, body) = self.send(request, body).await;
        (status.as_u16(), body)
    }
}

fn order() -> String {
    json!({ "kind": "chat", "body": { "model": "guide", "messages": [] } }).to_string()
}

#[tokio::test]
async fn rc_26_a_key_sees_its_own_jobs_and_an_operator_all() {
    let api = fixture_with(Some(&keys())).await;
    let (status, job) = api.by("anna", "POST", JOBS, &order()).await;
    assert_eq!((status, &job["client"]), (202, &json!("anna")), "{job}");
    let place = format!("{JOBS}/{}", job["id"].as_str().unwrap());
    for (name, seen) in [("anna", true), ("bert", false), ("boss", true)] {
        let (status, body) = api.by(name, "GET", &place, "").await;
        assert_eq!(status, if seen { 200 } else { 404 }, "{name}: {body}");
        let (_, list) = api.by(name, "GET", JOBS, "").await;
        assert_eq!(list["data"].as_array().unwrap().len(), usize::from(seen), "{name}: {list}");
    }
    for method in ["GET", "DELETE"] {
        let path = if method == "GET" { format!("{place}/result") } else { place.clone() };
        let (status, body) = api.by("bert", method, &path, "").await;
        assert_eq!((status, code(&body)), (404, "job_not_found"), "{body}");
    }
    // Limits of names hold at once: anna is no one else, and the model must exist.
    let named = json!({ "kind": "chat", "body": { "model": "guide", "messages": [], "x_client_id": "bert" } });
    assert_eq!(api.by("anna", "POST", JOBS, &named.to_string()).await.0, 403);
    let (status, body) = api.by("anna", "POST", JOBS, &order().replace("guide", "nobody")).await;
    assert_eq!((status, code(&body)), (404, "model_not_found"));
}

#[tokio::test]
async fn rc_26_the_jobs_of_a_revoked_key_do_not_run() {
    let api = fixture_with(Some(&keys())).await;
    // The first job finds out that the worker cannot be started; the second one is to be tried again later.
    let ended = async |id: &str| api.by("boss", "GET", &format!("{JOBS}/{id}?wait=30s"), "").await.1;
    let submit = async || api.by("anna", "POST", JOBS, &order()).await.1["id"].as_str().unwrap().to_owned();
    let first = ended(&submit().await).await;
    assert_eq!(first["state"], "failed", "{first}");
    let second = submit().await;
    let file = api.folder.path().join("keys");
    std::fs::write(&file, key("boss", KeyScope::Admin)).unwrap();
    api.context.keys.look();
    api.context.keys.look();
    let job = ended(&second).await;
    assert_eq!((&job["state"], &job["error"]["code"]), (&json!("failed"), &json!("invalid_api_key")), "{job}");
}

#[tokio::test]
async fn rc_26_orders_that_make_no_sense_name_the_field() {
    let api = fixture().await;
    for (body, field) in [
        ("{}", "body"),
        ("{\"kind\":\"chat\",\"body\":[]}", "body"),
        ("{\"body\":{}}", "kind"),
        ("{\"kind\":\"dance\",\"body\":{}}", "kind"),
        ("{\"kind\":\"chat\",\"endpoint\":\"/v1/completions\",\"body\":{}}", "endpoint"),
        ("{\"endpoint\":\"/api/v1/jobs\",\"body\":{}}", "endpoint"),
        ("{\"endpoint\":\"/v1/files\",\"body\":{}}", "endpoint"),
        ("{\"kind\":\"chat\",\"body\":{},\"deadline\":\"soon\"}", "deadline"),
        ("{\"kind\":\"chat\",\"body\":{},\"webhook\":\"https://x/\"}", "webhook"),
        ("{\"kind\":\"chat\",\"body\":{\"model\":7}}", "model"),
        ("{\"kind\":\"chat\",\"body\":{},\"size\":1}", "size"),
    ] {
        let (status, _, answer) = api.post(JOBS, body).await;
        assert!(matches!(status.as_u16(), 400 | 403), "{body}: {status} {answer}");
        assert_eq!(answer["error"]["param"], field, "{body}: {answer}");
    }
    for (path, field) in
        [("?state=asleep", "state"), ("?limit=0", "limit"), ("?order=up", "order"), ("?kind=x", "kind")]
    {
        let (status, _, answer) = api.get(&format!("{JOBS}{path}")).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(field)), "{path}: {answer}");
    }
}
