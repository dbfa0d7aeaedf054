//! EN-7: requests of Anthropic's API to its provider, which get there as they are.

use http::{Method, StatusCode};
use model_boss_tests::{Answer, Behaviour, Boss, Sandbox};
use serde_json::{Value, json};

use crate::cloud::{Stub, claude_at, message, start};

/// A request with fields of every kind that a translation into another API loses.
fn full(model: &str) -> Value {
    json!({
        "model": model,
        "max_tokens": 3_000,
        "system": [{ "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral", "ttl": "1h" } }],
        "messages": [
            { "role": "user", "content": [
                { "type": "document", "title": "a paper", "citations": { "enabled": true }, "cache_control": null,
                  "source": { "type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQK".repeat(8) } },
                { "type": "text", "text": "Search, and tell.", "unknown": { "deep": [1, 2.5, null, true] } },
            ] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "I search.", "signature": "EqQBCkYIBxgC" },
                { "type": "redacted_thinking", "data": "EmwKAhgBEgy3" },
                { "type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": { "query": "x" } },
                { "type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [] },
                { "type": "tool_use", "id": "toolu_1", "name": "run", "input": { "big": 18_446_744_073_709_551_615_u64 } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "toolu_1", "is_error": true, "content": [
                    { "type": "text", "text": "no such file" },
                    { "type": "search_result", "source": "s", "title": "t", "content": [] },
                ] },
            ] },
        ],
        "tools": [
            { "type": "web_search_20250305", "name": "web_search", "max_uses": 2 },
            { "name": "run", "input_schema": { "type": "object" }, "cache_control": { "type": "ephemeral" } },
        ],
        "tool_choice": { "type": "auto", "disable_parallel_tool_use": true },
        "thinking": { "type": "enabled", "budget_tokens": 2_000 },
        "container": { "id": "container_1", "skills": [{ "type": "anthropic", "skill_id": "pptx" }] },
        "context_management": { "edits": [{ "type": "clear_tool_uses_20250919" }] },
        "mcp_servers": [{ "type": "url", "url": "https://mcp.example", "name": "m" }],
        "service_tier": "auto",
        "metadata": { "user_id": "u" },
        "a_field_of_tomorrow": [{ "x": "y" }],
    })
}

fn at_provider(mut asked: Value) -> Value {
    asked["model"] = json!("claude-opus-x");
    asked
}

fn text_of(answer: &Answer) -> String {
    String::from_utf8(answer.body.to_vec()).unwrap()
}

async fn post(boss: &Boss, path: &str, body: &Value, headers: &[(&'static str, &'static str)]) -> Answer {
    let mut request = boss.client().request(Method::POST, path, body.to_string());
    for (name, value) in headers {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    boss.client().send(request).await
}

#[tokio::test]
async fn en_7_anthropics_requests_reach_its_provider_as_they_are_and_so_does_the_answer() {
    let said = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-x-20990101",
        "content": [
            { "type": "thinking", "thinking": "so", "signature": "EqQBCk" },
            { "type": "text", "text": "four", "citations": [{ "type": "page_location", "start_page_number": 1 }] },
            { "type": "block_of_tomorrow", "model": "another", "x": 1e30 },
        ],
        "stop_reason": "pause_turn", "stop_sequence": null, "container": { "id": "container_1" },
        "context_management": { "applied_edits": [] },
        "usage": { "input_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 7,
            "cache_creation": { "ephemeral_1h_input_tokens": 7 }, "output_tokens": 5,
            "server_tool_use": { "web_search_requests": 1 }, "service_tier": "standard" },
    });
    let stub = Stub::start("application/json", said.to_string()).await;
    let sandbox = Sandbox::new().with_config(&claude_at(&stub));
    let boss = start(&sandbox).await;
    let mut asked = full("claude:opus");
    asked["x_client_id"] = json!("me");
    asked["keep_alive"] = json!("5m");
    let betas = [
        ("anthropic-version", "2099-01-01"),
        ("anthropic-beta", "one-2025-01-01"),
        ("anthropic-beta", "two-2025-01-01"),
    ];
    let answer = post(&boss, "/v1/messages", &asked, &betas).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let mut expected = said.clone();
    expected["model"] = json!("claude:opus");
    assert_eq!(answer.json(), expected);
    // Apart from the name of the model, the bytes are the provider's.
    assert_eq!(text_of(&answer), said.to_string().replace("claude-opus-x-20990101", "claude:opus"));
    assert_eq!(answer.header("request-id"), Some("req_stub"));
    assert_eq!(answer.header("x-served-model"), Some("claude:opus"));

    let got = stub.asked().remove(0);
    assert_eq!((got.path.as_str(), &got.body), ("/v1/messages", &at_provider(full("claude:opus"))));
    let betas: Vec<_> = got.headers.get_all("anthropic-beta").iter().collect();
    assert_eq!(betas, ["one-2025-01-01", "two-2025-01-01"]);
    assert_eq!(got.headers["anthropic-version"], "2099-01-01");
    assert_eq!(got.headers["x-api-key"], crate::cloud::KEY);

    let shown = boss.read("/api/v1/providers").await;
    let today = &shown["providers"][0]["today"];
    assert_eq!((&today["input_tokens"], &today["output_tokens"]), (&json!(117), &json!(5)), "{shown}");
    let spent = today["spent_usd"].as_f64().unwrap();
    assert!((spent - (117.0 * 5.0 + 5.0 * 25.0) / 1e6).abs() < 1e-9, "{spent}");
    let stats = boss.read("/api/v1/stats").await;
    assert_eq!((&stats["input_tokens"], &stats["output_tokens"]), (&json!(117), &json!(5)), "{stats}");
    boss.finish().await;
}

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

#[tokio::test]
async fn en_7_anthropics_events_reach_the_client_as_they_are_the_unknown_ones_too() {
    let usage = json!({ "input_tokens": 4, "cache_read_input_tokens": 30, "output_tokens": 1 });
    let start_of = |model: &str| {
        json!({ "type": "message_start", "message": { "id": "msg_1", "type": "message", "role": "assistant",
            "model": model, "content": [], "usage": usage, "new": 1e30 } })
    };
    let rest = [
        ("ping", json!({ "type": "ping" })),
        (
            "content_block_start",
            json!({ "type": "content_block_start", "index": 0,
            "content_block": { "type": "thinking", "thinking": "", "signature": "" } }),
        ),
        (
            "content_block_delta",
            json!({ "type": "content_block_delta", "index": 0,
            "delta": { "type": "signature_delta", "signature": "EqQB" } }),
        ),
        (
            "content_block_delta",
            json!({ "type": "content_block_delta", "index": 1,
            "delta": { "type": "delta_of_tomorrow", "x": [1] } }),
        ),
        ("event_of_tomorrow", json!({ "type": "event_of_tomorrow", "model": "claude-opus-x-20990101" })),
        (
            "message_delta",
            json!({ "type": "message_delta", "delta": { "stop_reason": "refusal" },
            "usage": { "output_tokens": 9 }, "context_management": {} }),
        ),
        ("message_stop", json!({ "type": "message_stop" })),
    ];
    let rest: String = rest.iter().map(|(name, data)| event(name, data)).collect();
    let stream = event("message_start", &start_of("claude-opus-x-20990101")) + &rest;
    let stub = Stub::start("text/event-stream", stream).await;
    let sandbox = Sandbox::new().with_config(&claude_at(&stub));
    let boss = start(&sandbox).await;
    let mut asked = full("claude:opus");
    asked["stream"] = json!(true);
    let answer = post(&boss, "/v1/messages", &asked, &[]).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    assert_eq!(text_of(&answer), event("message_start", &start_of("claude:opus")) + &rest);
    assert_eq!(stub.asked()[0].body, at_provider(asked.clone()));
    assert_eq!(stub.asked()[0].headers["anthropic-version"], "2023-06-01");
    let stats = boss.read("/api/v1/stats").await;
    assert_eq!((&stats["input_tokens"], &stats["output_tokens"]), (&json!(34), &json!(9)), "{stats}");
    let shown = boss.read("/api/v1/providers").await;
    assert_eq!(shown["providers"][0]["today"]["input_tokens"], 34);

    // An error in the middle is the provider's, and a stream that is cut ends in an error of Anthropic's shape.
    let overloaded =
        event("error", &json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } }));
    let begun = event("message_start", &start_of("claude:opus"));
    stub.answers(200, &(begun.clone() + &overloaded));
    assert_eq!(text_of(&post(&boss, "/v1/messages", &asked, &[]).await), begun.clone() + &overloaded);
    stub.answers(200, &begun);
    let cut = text_of(&post(&boss, "/v1/messages", &asked, &[]).await);
    let (_, error) = cut.split_once(&begun).unwrap();
    let error = error.strip_prefix("event: error\ndata: ").unwrap();
    let error: Value = serde_json::from_str(error.trim()).unwrap();
    assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("api_error")));
    boss.finish().await;
}

#[tokio::test]
async fn en_7_anthropics_errors_keep_their_status_and_words_but_for_the_key_of_the_operator() {
    for (status, kind, seen) in [
        (400, "invalid_request_error", 400),
        (404, "not_found_error", 404),
        (413, "request_too_large", 413),
        (429, "rate_limit_error", 429),
        (500, "api_error", 500),
        (529, "overloaded_error", 529),
        (401, "authentication_error", 502),
        (403, "permission_error", 502),
    ] {
        let stub = Stub::start("application/json", String::new()).await;
        let said = json!({ "type": "error", "error": { "type": kind, "message": "because" }, "request_id": "req_9" });
        stub.answers(status, &said.to_string());
        let sandbox = Sandbox::new().with_config(&claude_at(&stub));
        let boss = start(&sandbox).await;
        let asked =
            json!({ "model": "claude:opus", "max_tokens": 5, "messages": [{ "role": "user", "content": "?" }] });
        let paths: &[&str] = if status == 429 || status == 529 {
            &["/v1/messages"]
        } else {
            &["/v1/messages", "/v1/messages/count_tokens"]
        };
        for path in paths {
            let answer = post(&boss, path, &asked, &[]).await;
            assert_eq!(answer.status.as_u16(), seen, "{path}: {answer:?}");
            if seen == status {
                assert_eq!((answer.json(), answer.header("request-id")), (said.clone(), Some("req_9")), "{path}");
            } else {
                assert_eq!(answer.json()["error"]["type"], "api_error");
                assert!(text_of(&answer).contains("the key configured here"), "{answer:?}");
            }
        }
        assert_eq!(stub.asked().len(), paths.len(), "nothing is asked twice");
        if status == 429 || status == 529 {
            let again = post(&boss, "/v1/messages", &asked, &[]).await;
            assert_eq!((again.status.as_u16(), again.header("retry-after")), (status, Some("7")));
            assert_eq!(again.json()["error"]["type"], kind, "{again:?}");
        }
        boss.finish().await;
    }
}

const LADDERS: &str = "tasks:\n  say:\n    ladder: [\"claude:opus\", alpha]\n    params: { temperature: 0.5, seed: 3 }\n  \
    here:\n    ladder: [alpha, \"claude:opus\"]\n    pin_primary: true\n";

#[tokio::test]
async fn en_7_a_ladder_passes_requests_to_anthropic_and_translates_them_for_others() {
    let stub = Stub::start("application/json", message("four")).await;
    let sandbox = Sandbox::new().with_config(&claude_at(&stub));
    let _model = sandbox.fake_model("alpha", Behaviour { reply: Some("own".to_owned()), ..Behaviour::default() });
    std::fs::write(sandbox.path("tasks.yaml"), LADDERS).unwrap();
    let boss = start(&sandbox).await;
    let thought = |signature: &str| json!({ "type": "thinking", "thinking": "hm", "signature": signature });
    let asked = |model: &str, more: Value| {
        json!({ "model": model, "max_tokens": 5, "cache_salt": "s", "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "?", "cache_control": { "type": "ephemeral" } }] },
            { "role": "assistant", "content": [thought(""), thought("EqQB"), { "type": "text", "text": "so" }] },
            { "role": "user", "content": [more] },
        ] })
    };
    let text = json!({ "type": "text", "text": "!" });
    let answer = post(&boss, "/v1/messages", &asked("task:say", text.clone()), &[]).await;
    assert_eq!((answer.status, &answer.json()["content"][0]["text"]), (StatusCode::OK, &json!("four")), "{answer:?}");
    let expected = json!({
        "model": "claude-opus-x", "max_tokens": 5, "temperature": 0.5, "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "?", "cache_control": { "type": "ephemeral" } }] },
            { "role": "assistant", "content": [thought("EqQB"), { "type": "text", "text": "so" }] },
            { "role": "user", "content": [text] },
        ],
    });
    assert_eq!(stub.asked()[0].body, expected);

    // The provider is busy, so the request goes to the next rung, which gets its translation.
    stub.answers(529, "{}");
    let answer = post(&boss, "/v1/messages", &asked("task:say", text.clone()), &[]).await;
    assert_eq!(answer.json()["content"], json!([{ "type": "text", "text": "own" }]), "{answer:?}");
    assert_eq!((answer.header("x-rung"), stub.asked().len()), (Some("1"), 2));
    // A request without a translation stays with the provider.
    let document = json!({ "type": "document", "source": { "type": "text", "media_type": "text/plain", "data": "x" } });
    let answer = post(&boss, "/v1/messages", &asked("task:say", document.clone()), &[]).await;
    assert_eq!(answer.status.as_u16(), 529, "{answer:?}");
    assert_eq!(answer.json()["error"]["type"], "overloaded_error");
    // The first rung decides: a model of this machine reads no documents.
    let answer = post(&boss, "/v1/messages", &asked("task:here", document), &[]).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
    assert!(text_of(&answer).contains("messages[2].content[0]"), "{answer:?}");
    let answer = post(&boss, "/v1/messages", &asked("task:here", text), &[]).await;
    assert_eq!(answer.json()["content"][0]["text"], "own", "{answer:?}");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_links_go_to_clouds_and_fields_of_other_apis_are_translated() {
    let stub = Stub::start("application/json", message("four")).await;
    let near = format!("\n[providers.near]\nkind = \"anthropic\"\nbase_url = \"http://{}\"\n", stub.address);
    let config = claude_at(&stub).replace("key_env", "cloud = true\nkey_env") + &near;
    let sandbox = Sandbox::new().with_config(&config);
    let boss = start(&sandbox).await;
    let asked = |model: &str, source: Value| {
        json!({ "model": model, "max_tokens": 5, "messages": [
            { "role": "user", "content": [{ "type": "image", "source": source }] }] })
    };
    let link = json!({ "type": "url", "url": "https://pictures.example/cat.png" });
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        stub.answers(
            200,
            &if path == "/v1/messages" { message("four") } else { json!({ "input_tokens": 3 }).to_string() },
        );
        let answer = post(&boss, path, &asked("claude:opus", link.clone()), &[]).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {answer:?}");
        assert_eq!(stub.asked().pop().unwrap().body["messages"], asked("claude:opus", link.clone())["messages"]);
        let before = stub.asked().len();
        let refused = post(&boss, path, &asked("near:m", link.clone()), &[]).await;
        assert_eq!((refused.status, stub.asked().len()), (StatusCode::BAD_REQUEST, before), "{path}: {refused:?}");
        assert!(text_of(&refused).contains("links are not followed"), "{refused:?}");
    }
    stub.answers(200, &message("{}"));
    let mut form = asked("claude:opus", json!({ "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo=" }));
    form["response_format"] =
        json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": { "type": "object" } } });
    assert_eq!(post(&boss, "/v1/messages", &form, &[]).await.status, StatusCode::OK);
    let got = stub.asked().pop().unwrap().body;
    assert_eq!(got["output_config"]["format"]["type"], "json_schema", "{got}");
    boss.finish().await;
}

#[tokio::test]
async fn en_7_counts_of_tokens_are_asked_and_answered_in_anthropics_own_shape() {
    let said = json!({ "input_tokens": 14, "context_management": { "original_input_tokens": 20 } });
    let stub = Stub::start("application/json", said.to_string()).await;
    let sandbox = Sandbox::new().with_config(&claude_at(&stub));
    let boss = start(&sandbox).await;
    let answer = post(&boss, "/v1/messages/count_tokens", &full("claude:opus"), &[("anthropic-beta", "b-1")]).await;
    assert_eq!((answer.status, answer.json()), (StatusCode::OK, said), "{answer:?}");
    assert_eq!(answer.header("request-id"), Some("req_stub"));
    let mut expected = at_provider(full("claude:opus"));
    for name in ["max_tokens", "metadata", "service_tier"] {
        expected.as_object_mut().unwrap().remove(name);
    }
    let got = stub.asked().remove(0);
    assert_eq!((&got.body, &got.headers["anthropic-beta"]), (&expected, &"b-1".parse().unwrap()));
    boss.finish().await;
}

#[tokio::test]
async fn en_7_a_request_that_waits_for_anthropic_hears_pings_and_limits_of_spending_hold() {
    let stub = Stub::start("text/event-stream", String::new()).await;
    stub.never_ends();
    let sandbox = Sandbox::new().with_config(&format!("sse.first_comment = \"50ms\"\n{}", claude_at(&stub)));
    std::fs::write(sandbox.path("tasks.yaml"), "clients:\n  poor:\n    daily_spend_usd: 0\n").unwrap();
    let boss = start(&sandbox).await;
    let mut asked = full("claude:opus");
    asked["x_client_id"] = json!("poor");
    let refused = post(&boss, "/v1/messages", &asked, &[]).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
    assert_eq!((&refused.json()["error"]["type"], stub.asked().len()), (&json!("permission_error"), 0));
    asked["x_client_id"] = json!("me");
    asked["stream"] = json!(true);
    let mut stream = boss.client().stream("/v1/messages", &asked).await;
    let first = stream.piece().await.unwrap();
    assert_eq!(first, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
    drop(stream);
    boss.finish().await;
}
