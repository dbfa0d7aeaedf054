//! Keys, their scopes and their limits, at every route (OP-5).

use model_boss_access::{KeyDigest, KeyLimits, KeyRecord, KeyScope, KeySecret};

use super::*;

/// A file with a key for each scope, which is also the client's name and, with `-secret` behind it, the key.
fn keys_by_scope() -> String {
    let record = |scope: KeyScope| {
        let sha256 = KeyDigest::of(&format!("{scope}-secret"));
        let secret = KeySecret { sha256, created: 0, expires: None };
        KeyRecord::new(scope.as_str().into(), [scope].into(), KeyLimits::default(), secret)
    };
    let lines = KeyScope::ALL.map(|scope| serde_json::to_string(&record(scope)).unwrap());
    lines.join("\n")
}

/// The file with one key `guest-secret` of the client `guest`.
fn guest(limits: KeyLimits, scopes: &[KeyScope]) -> String {
    let secret = KeySecret { sha256: KeyDigest::of("guest-secret"), created: 0, expires: None };
    let record = KeyRecord::new("guest".into(), scopes.iter().copied().collect(), limits, secret);
    serde_json::to_string(&record).unwrap()
}

fn with_key(method: &str, path: &str, key: &str) -> http::request::Builder {
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {key}"))
}

/// The scopes of which one is needed, for each route, as docs/keys.md lists them.
fn needed(method: &str, path: &str) -> Vec<KeyScope> {
    use KeyScope::{Admin, Inference, Lease, Manage, Read};
    match (method, path) {
        (_, "/" | "/dashboard/{*id}" | "/live" | "/ready" | "/health" | "/openapi.json") => vec![],
        ("GET", "/v1/audio/voices") => vec![Inference, Read],
        ("GET", "/props" | "/slots") => vec![Inference, Read],
        ("GET", "/v1/models" | "/v1/models/{*id}" | "/api/tags" | "/api/ps" | "/api/version") => vec![Inference, Read],
        ("POST", "/api/show") => vec![Inference, Read],
        (_, path) if path.starts_with("/v1/responses") => vec![Inference],
        (_, path) if ["/api/v1/jobs", "/v1/files", "/v1/batches"].iter().any(|root| path.starts_with(root)) => {
            vec![Inference]
        }
        ("POST", "/v1/load_lora_adapter" | "/v1/unload_lora_adapter") => vec![Manage],
        ("POST", path) if !path.starts_with("/api/v1/") => vec![Inference],
        ("GET", "/api/v1/leases" | "/api/v1/leases/{*id}") => vec![Lease, Read],
        (_, "/api/v1/leases" | "/api/v1/leases/{*id}") => vec![Lease],
        ("GET", "/api/v1/keys") => vec![Admin],
        ("GET", "/api/v1/access") => KeyScope::ALL.to_vec(),
        ("GET", _) => vec![Read],
        _ => vec![Manage],
    }
}

/// An id for a path, with a verb that the route has where ids have verbs of their own.
fn id_of(method: &str, path: &str) -> &'static str {
    match (method, path) {
        ("POST", "/api/v1/models/{*id}") => "nobody/pin",
        ("POST", "/api/v1/devices/{*id}") => "cpu/reserve",
        ("POST", "/api/v1/leases/{*id}") => "nobody/attach",
        ("POST", "/v1/responses/{*id}" | "/v1/batches/{*id}") => "nobody/cancel",
        _ => "nobody",
    }
}

#[tokio::test]
async fn op_5_each_route_needs_a_scope_and_says_which() {
    let api = fixture_with(Some(&keys_by_scope())).await;
    let table = routes(Arc::clone(&api.context)).table;
    assert!(table.len() > 50);
    for route in table {
        let (method, path) = (route.method, route.path);
        let needed = needed(method, &path);
        let target = path.replace("{*id}", id_of(method, &path)).replace("{*name}", "nobody");
        // Events go on for ever.
        let endless = target == "/api/v1/events";
        for scope in KeyScope::ALL {
            let allowed = needed.is_empty() || needed.contains(&scope) || scope == KeyScope::Admin;
            if allowed && endless {
                continue;
            }
            let request = with_key(method, &target, &format!("{scope}-secret"));
            let (status, _, body) = api.send(request, "[]").await;
            let told = body["error"]["message"].as_str().or(body["error"].as_str()).unwrap_or_default();
            let refused = status == 403 && told.contains("lacks the scope");
            assert_eq!(refused, !allowed, "{method} {path} with {scope}: {status} {body}");
            if refused {
                assert!(told.contains(needed[0].as_str()) && told.contains(scope.as_str()), "{told}");
            }
            assert_ne!(status, 401, "{method} {path} with {scope}");
        }
    }
}

#[tokio::test]
async fn op_5_a_key_is_the_client_on_every_route() {
    let api = fixture_with(Some(&guest(KeyLimits::default(), &[KeyScope::Inference, KeyScope::Manage]))).await;
    // The client `guest` may ask for `task:chat` only, as tasks.yaml says.
    let ask = async |path: &str, body: Value, header: Option<&str>| {
        let mut request = with_key("POST", path, "guest-secret");
        if let Some(name) = header {
            request = request.header("x-client-id", name);
        }
        let (status, _, body) = api.send(request, &body.to_string()).await;
        let error = &body["error"];
        (status.as_u16(), error["param"].as_str().unwrap_or_default().to_owned())
    };
    let chat = |client: Option<&str>| json!({ "model": "guide", "messages": [], "x_client_id": client });
    assert_eq!(ask("/v1/chat/completions", chat(None), None).await, (403, "model".to_owned()));
    assert_eq!(ask("/v1/chat/completions", chat(Some("other")), None).await, (403, "x_client_id".to_owned()));
    assert_eq!(ask("/v1/chat/completions", chat(None), Some("other")).await, (403, "x_client_id".to_owned()));
    assert_eq!(ask("/api/v1/load", json!({ "model_name": "guide" }), None).await, (403, "model".to_owned()));
    assert_eq!(ask("/api/v1/load", json!({ "model_name": "guide" }), Some("other")).await.1, "x_client_id");
    assert_eq!(ask("/api/v1/plan", json!({ "model": "guide", "client": "other" }), None).await.1, "x_client_id");
    assert_eq!(ask("/api/v1/plan", json!({ "model": "guide" }), None).await, (403, "model".to_owned()));
    assert_eq!(ask("/api/show", json!({ "model": "guide" }), Some("other")).await.0, 403);
    assert_eq!(ask("/v1/responses", json!({ "model": "guide", "input": "?" }), Some("other")).await.1, "x_client_id");
}

#[tokio::test]
async fn op_5_limits_of_a_key_hold_beside_those_of_its_client() {
    let models = |list: &[&str]| Some(list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    let ids = |body: &Value| -> Vec<String> {
        body["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
    };
    // The key permits more than tasks.yaml, and nothing of it.
    for (listed, expected) in [(models(&["guide", "task:*"]), vec!["task:chat"]), (models(&["other"]), vec![])] {
        let limits = KeyLimits { allowed_models: listed, ..KeyLimits::default() };
        let api = fixture_with(Some(&guest(limits, &[KeyScope::Inference]))).await;
        let (_, _, body) = api.send(with_key("GET", "/v1/models", "guest-secret"), "").await;
        assert_eq!(ids(&body), expected, "{body}");
        let (status, _, body) = api
            .send(with_key("POST", "/v1/chat/completions", "guest-secret"), r#"{"model":"guide","messages":[]}"#)
            .await;
        assert_eq!((status.as_u16(), code(&body)), (403, "insufficient_scope"), "{body}");
    }
    let limits = KeyLimits { daily_tokens: Some(10), ..KeyLimits::default() };
    let api = fixture_with(Some(&guest(limits, &[KeyScope::Inference, KeyScope::Admin]))).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let ask = async || {
        let body = r#"{"model":"task:chat","messages":[]}"#;
        let (status, headers, body) = api.send(with_key("POST", "/v1/chat/completions", "guest-secret"), body).await;
        (status.as_u16(), headers.contains_key("retry-after"), body)
    };
    api.context.clouds.use_tokens(&"guest".into(), 9, now);
    // The worker program does not exist, so a request that is admitted fails behind the limit.
    assert_ne!(ask().await.0, 429);
    api.context.clouds.use_tokens(&"guest".into(), 1, now);
    let (status, again, body) = ask().await;
    assert_eq!((status, again, code(&body)), (429, true, "client_limit"), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("10 of 10 tokens"), "{body}");
    let (_, _, keys) = api.send(with_key("GET", "/api/v1/keys", "guest-secret"), "").await;
    assert_eq!(keys["clients"][0]["tokens_today"], 10, "{keys}");
    assert_eq!(keys["clients"][0]["limits"], json!({ "daily_tokens": 10 }), "{keys}");
    assert!(!keys.to_string().contains("sha256"), "{keys}");
}

#[tokio::test]
async fn op_5_keys_are_made_and_revoked_while_requests_are_served() {
    let api = fixture().await;
    let file = api.folder.path().join("keys");
    let keys = Arc::clone(&api.context.keys);
    // A version counts after two equal reads.
    let look = || {
        keys.look();
        keys.look();
    };
    assert_eq!(api.get("/v1/models").await.0, 200, "no keys");
    std::fs::write(&file, guest(KeyLimits::default(), &[KeyScope::Inference])).unwrap();
    look();
    assert!(keys.current().needed);
    assert_eq!(api.get("/v1/models").await.0, 401);
    assert_eq!(api.send(with_key("GET", "/v1/models", "guest-secret"), "").await.0, 200);
    std::fs::write(&file, "{ half").unwrap();
    look();
    assert!(keys.current().problem.is_some());
    assert_eq!(api.send(with_key("GET", "/v1/models", "guest-secret"), "").await.0, 200, "the last good version");
    std::fs::remove_file(&file).unwrap();
    look();
    assert!(keys.current().problem.is_none());
    assert_eq!(api.send(with_key("GET", "/v1/models", "guest-secret"), "").await.0, 401);
    assert_eq!(api.get("/v1/models").await.0, 401, "a lost file opens no door");
}
