//! Invalid requests: each fault has its status, code and field, and the next request works.

use bytes::Bytes;
use http::{Method, StatusCode, header};
use model_boss_tests::{Answer, Behaviour, Boss, Client, Sandbox};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

async fn send(client: Client, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
    let mut request = client.request(method, path, body);
    for (name, value) in headers {
        let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
        request.headers_mut().remove(&name);
        if !value.is_empty() {
            request.headers_mut().insert(name, value.parse().unwrap());
        }
    }
    client.send(request).await
}

async fn still_works(boss: &Boss) {
    assert!(boss.chat("alpha", "?").await.status.is_success(), "the next request works");
}

#[tokio::test]
async fn bodies_that_cannot_be_used() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let deep = format!("{{\"model\":\"alpha\",\"messages\":{}{}}}", "[".repeat(200), "]".repeat(200));
    let bottomless = "[".repeat(200_000);
    let table: [(&str, &str, u16, &str, Option<&str>); 17] = [
        ("nothing", "", 400, "invalid_request", None),
        ("no JSON", "good day", 400, "invalid_request", None),
        ("cut", r#"{"model": "alpha", "messages": ["#, 400, "invalid_request", None),
        ("trailing text", r#"{"model": "alpha", "messages": []} x"#, 400, "invalid_request", None),
        ("an array", "[]", 400, "invalid_request", None),
        ("a number", "5", 400, "invalid_request", None),
        ("null", "null", 400, "invalid_request", None),
        ("a model that is a number", r#"{"model": 5, "messages": []}"#, 400, "invalid_request", Some("model")),
        ("a stream that is a text", r#"{"model": "alpha", "stream": "yes"}"#, 400, "invalid_request", Some("stream")),
        (
            "a priority out of range",
            r#"{"model": "alpha", "x_priority": 12}"#,
            400,
            "invalid_request",
            Some("x_priority"),
        ),
        (
            "a priority that is a word",
            r#"{"model": "alpha", "x_priority": "urgent"}"#,
            400,
            "invalid_request",
            Some("x_priority"),
        ),
        (
            "a keep_alive without unit",
            r#"{"model": "alpha", "keep_alive": "3600"}"#,
            400,
            "invalid_request",
            Some("keep_alive"),
        ),
        ("an unknown model", r#"{"model": "beta", "messages": []}"#, 404, "model_not_found", Some("model")),
        ("an empty model", r#"{"model": "", "messages": []}"#, 404, "model_not_found", Some("model")),
        ("deep", &deep, 400, "invalid_request", None),
        ("bottomless", &bottomless, 400, "invalid_request", None),
        ("not UTF-8", "{\"model\": \"alpha\", \"messages\": [\"\\ud800\"]}", 400, "invalid_request", None),
    ];
    for (what, body, status, code, param) in table {
        let answer = send(boss.client(), Method::POST, CHAT, &[], body.to_owned()).await;
        assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (status, code), "{what}: {answer:?}");
        if param.is_some() {
            assert_eq!(answer.json()["error"]["param"].as_str(), param, "{what}: {answer:?}");
        }
    }
    still_works(&boss).await;
    boss.finish().await;
}

#[tokio::test]
async fn links_are_refused_on_every_route_before_anything_is_loaded() {
    let mut sandbox = Sandbox::new();
    sandbox.llama_server();
    let models = [
        sandbox.fake_model("own", Behaviour::default()),
        sandbox.gguf_model("engine", "backend = \"llama-server\"", Behaviour::default()),
    ];
    let boss = sandbox.start().await;
    let link = "http://169.254.169.254/latest";
    let said =
        |part: Value| json!([{ "role": "user", "content": [{ "type": "text", "text": "What is this?" }, part] }]);
    let openai = said(json!({ "type": "image_url", "image_url": { "url": link } }));
    let short = said(json!({ "type": "image_url", "image_url": link }));
    let sound = said(json!({ "type": "input_audio", "input_audio": { "data": link, "format": "wav" } }));
    let picture = json!({ "type": "image", "source": { "type": "url", "url": link } });
    let result = said(json!({ "type": "tool_result", "tool_use_id": "1", "content": [picture] }));
    let anthropic = said(picture.clone());
    let ollama = json!([{ "role": "user", "content": "?", "images": [link] }]);
    for model in ["own", "engine", "claude:opus"] {
        for (path, body, param) in [
            ("/v1/chat/completions", json!({ "messages": openai }), "messages[0].content[1].image_url.url"),
            ("/v1/chat/completions", json!({ "messages": short }), "messages[0].content[1].image_url"),
            ("/v1/chat/completions", json!({ "messages": sound }), "messages[0].content[1].input_audio.data"),
            ("/v1/embeddings", json!({ "input": [{ "image": link }] }), "input[0].image"),
            ("/v1/rerank", json!({ "query": "?", "documents": [{ "image_url": link }] }), "documents[0].image_url"),
            ("/v1/messages", json!({ "max_tokens": 1, "messages": anthropic }), ""),
            ("/v1/messages", json!({ "max_tokens": 1, "messages": result }), ""),
            ("/v1/messages/count_tokens", json!({ "messages": anthropic }), ""),
            ("/v1/messages/count_tokens", json!({ "messages": result }), ""),
            ("/api/chat", json!({ "messages": ollama }), ""),
            ("/api/generate", json!({ "prompt": "?", "images": [link] }), ""),
        ] {
            let mut body = body;
            body["model"] = model.into();
            let answer = boss.client().post(path, &body).await;
            if model == "claude:opus" && path.starts_with("/v1/messages") {
                // Anthropic follows links outside of this network. Here only its key is missing.
                assert_eq!(answer.status, StatusCode::BAD_GATEWAY, "{path} {body}: {answer:?}");
                assert!(String::from_utf8_lossy(&answer.body).contains("has no key"), "{answer:?}");
                continue;
            }
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{model} {path} {body}: {answer:?}");
            if !param.is_empty() {
                assert_eq!(answer.json()["error"]["param"], param, "{answer:?}");
            }
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(text.contains("links are not followed") || text.contains("only text"), "{path}: {text}");
        }
    }
    assert!(models.iter().all(|model| model.spawns() == 0));
    // The arguments of a tool call and the content of a text are the client's own, and are not checked.
    let call = json!({ "type": "tool_use", "id": "1", "name": "fetch", "input": { "image_url": link } });
    let mut messages = json!([{ "role": "user", "content": link }, { "role": "assistant", "content": [call] }]);
    messages.as_array_mut().unwrap().push(json!({ "role": "user", "content": [
        { "type": "tool_result", "tool_use_id": "1", "content": link } ] }));
    let body = json!({ "model": "own", "max_tokens": 1, "messages": messages });
    assert_eq!(boss.client().post("/v1/messages", &body).await.status, StatusCode::OK);
    boss.finish().await;
}

#[tokio::test]
async fn an_unknown_model_is_quoted_and_nothing_is_spawned() {
    let sandbox = Sandbox::new();
    let model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let answer = boss.chat("alhpa", "?").await;
    assert_eq!(answer.error_code(), "model_not_found");
    assert!(answer.error_message().contains("alhpa"), "{answer:?}");
    assert_eq!(boss.client().get("/v1/models/alhpa").await.error_code(), "model_not_found");
    boss.finish().await;
    assert_eq!(model.spawns(), 0);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_whether_it_says_its_length_or_not() {
    let sandbox = Sandbox::new().with_config("limits.inference_body = \"64KiB\"");
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let text = "x".repeat(100_000);
    let body = format!(r#"{{"model": "alpha", "messages": [{{"role": "user", "content": "{text}"}}]}}"#);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nconnection: close\r\n";
    let known = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    for request in [known, chunked] {
        let answer = String::from_utf8(boss.client().raw(request.as_bytes()).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        assert!(answer.contains("request_too_large"), "{answer}");
    }
    still_works(&boss).await;
    boss.finish().await;
}

#[tokio::test]
async fn op_5_host_and_origin_of_somebody_elses_site() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let body = r#"{"model": "alpha", "messages": [{"role": "user", "content": "?"}]}"#;
    for (name, value) in [
        ("host", "evil.example"),
        ("host", "evil.example:8210"),
        ("host", "127.0.0.1.evil.example"),
        ("origin", "http://evil.example"),
        ("origin", "null"),
    ] {
        for (method, path, body) in
            [(Method::POST, CHAT, body), (Method::GET, "/v1/models", ""), (Method::GET, "/metrics", "")]
        {
            let answer = send(boss.client(), method, path, &[(name, value)], body).await;
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{name}: {value} on {path}: {answer:?}");
            assert_eq!(answer.error_code(), "forbidden_origin");
        }
    }
    for (name, value) in
        [("host", "localhost"), ("host", "localhost:8210"), ("host", "[::1]:8210"), ("origin", "http://localhost:3000")]
    {
        let answer = send(boss.client(), Method::POST, CHAT, &[(name, value)], body).await;
        assert!(answer.status.is_success(), "{name}: {value}: {answer:?}");
    }
    boss.finish().await;
}

#[tokio::test]
async fn op_5_management_routes_want_json_by_content_type() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    still_works(&boss).await;
    for kind in ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let body = r#"{"model_name": "alpha"}"#;
        let answer = send(boss.client(), Method::POST, "/api/v1/unload", &[("content-type", kind)], body).await;
        assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "'{kind}': {answer:?}");
        assert_eq!(answer.error_code(), "unsupported_media_type");
    }
    crate::views::model_state(&boss, "alpha", "loaded").await;
    boss.finish().await;
}

#[tokio::test]
async fn what_is_no_object_is_no_order() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    still_works(&boss).await;
    let orders = [
        (Method::POST, "/api/v1/load"),
        (Method::POST, "/api/v1/unload"),
        (Method::POST, "/api/v1/plan"),
        (Method::POST, "/api/v1/models/alpha/pin"),
        (Method::POST, "/api/v1/models/alpha/device"),
        (Method::PUT, "/api/v1/config"),
        (Method::POST, "/api/v1/leases"),
        (Method::PUT, "/api/v1/leases"),
        (Method::DELETE, "/api/v1/leases"),
        (Method::DELETE, "/api/v1/leases/lease-1"),
    ];
    for (method, path) in orders {
        for body in ["[]", "[\"alpha\"]", "[null]", "null", "7", "\"alpha\"", "true"] {
            let answer = send(boss.client(), method.clone(), path, &[], body).await;
            let found = (answer.status.as_u16(), answer.error_code());
            assert_eq!(found, (400, "invalid_request".to_owned()), "{method} {path} {body}: {answer:?}");
        }
    }
    crate::views::model_state(&boss, "alpha", "loaded").await;
    boss.finish().await;
}

#[tokio::test]
async fn routes_and_methods_that_are_not_there() {
    let sandbox = Sandbox::new();
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let answer = boss.client().get("/v1/nothing").await;
    assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (404, "not_found"));
    let answer = boss.client().get(CHAT).await;
    assert_eq!((answer.status.as_u16(), answer.error_code().as_str()), (405, "method_not_allowed"));
    assert!(answer.headers[header::ALLOW].to_str().unwrap().contains("POST"), "{:?}", answer.headers);
    boss.finish().await;
}

#[tokio::test]
async fn bytes_that_are_not_http() {
    let sandbox = Sandbox::new().with_config("limits.header_timeout = \"300ms\"\nlimits.header_size = \"16KiB\"");
    let _model = sandbox.fake_model("alpha", Behaviour::default());
    let boss = sandbox.start().await;
    let long = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx-long: {}\r\n\r\n", "x".repeat(200_000));
    let both = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    // The server must close each connection, on which `raw` waits; the incomplete head is ended by the header timeout.
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"good day\r\n\r\n",
        b"GET /live HTTP/1.1\r\nhost: loc",
        long.as_bytes(),
        both.as_bytes(),
    ] {
        let answer = boss.client().raw(bytes).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
    }
    still_works(&boss).await;
    boss.finish().await;
}
