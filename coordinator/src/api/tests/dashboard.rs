//! The page at `/`, and the routes that it needs (OP-2).

use model_boss_core::{Event, LedgerState};

use super::*;

fn page(path: &str) -> http::request::Builder {
    Request::get(path).header("host", "localhost").header("accept", "text/html,*/*;q=0.8")
}

#[tokio::test]
async fn op_2_browsers_get_the_page_and_may_keep_it_while_it_is_the_same() {
    let api = fixture_with(Some("a-key-of-sixteen-or-more")).await;
    for path in ["/", "/dashboard/app.js", "/dashboard/base.css"] {
        let (status, headers, _) = api.send(page(path), "").await;
        assert_eq!((status.as_u16(), headers["cache-control"].to_str().unwrap()), (200, "no-cache"), "{path}");
        assert!(headers["content-security-policy"].to_str().unwrap().contains("frame-ancestors 'none'"));
        assert_eq!(headers["x-content-type-options"], "nosniff");
        let tag = headers["etag"].to_str().unwrap().to_owned();
        for (known, expected) in
            [(tag.clone(), 304), (format!("\"x\", W/{tag}"), 304), ("*".to_owned(), 304), ("\"x\"".to_owned(), 200)]
        {
            let (status, headers, _) = api.send(page(path).header("if-none-match", &known), "").await;
            assert_eq!((status.as_u16(), headers["etag"].to_str().unwrap()), (expected, &*tag), "{path} {known}");
        }
    }
    assert_eq!(api.send(page("/"), "").await.1["vary"], "Accept");
    for path in ["/dashboard/nobody.js", "/dashboard/", "/dashboard/a/../app.js", "/dashboard/%2e%2e/app.js"] {
        assert_eq!(api.send(page(path), "").await.0, 404, "{path}");
    }
}

#[tokio::test]
async fn op_2_a_key_learns_what_it_permits() {
    let api = fixture().await;
    let all = json!(["inference", "read", "manage", "lease", "admin"]);
    let (_, _, body) = api.get("/api/v1/access").await;
    assert_eq!(body, json!({ "needs_key": false, "client": null, "scopes": all }));
    let api = fixture_with(Some("a-key-of-sixteen-or-more")).await;
    assert_eq!(api.get("/api/v1/access").await.0, 401);
    let request = Request::get("/api/v1/access").header("host", "localhost");
    let (_, _, body) = api.send(request.header("x-api-key", "a-key-of-sixteen-or-more"), "").await;
    assert_eq!(body, json!({ "needs_key": true, "client": null, "scopes": all }));
}

#[tokio::test]
async fn op_2_the_history_is_given_in_columns_of_equal_length() {
    let api = fixture().await;
    let (status, _, body) = api.get("/api/v1/history").await;
    assert_eq!((status.as_u16(), body["interval_s"].as_f64()), (200, Some(10.0)), "{body}");
    let length = body["tokens_per_s"].as_array().unwrap().len();
    assert!(length >= 1);
    for column in ["requests", "first_token_p50_s", "first_token_p95_s", "loads", "swaps", "queued", "running"] {
        assert_eq!(body[column].as_array().unwrap().len(), length, "{column}");
    }
    for last in ["0", "361", "x", "-1"] {
        let (status, _, body) = api.get(&format!("/api/v1/history?last={last}")).await;
        assert_eq!((status.as_u16(), body["error"]["param"].as_str()), (400, Some("last")), "{last}");
    }
    assert_eq!(api.get("/api/v1/history?last=360").await.0, 200);
}

#[tokio::test]
async fn op_2_a_waiting_request_is_cancelled_and_its_client_is_told() {
    let api = fixture().await;
    api.context.scheduling.news().event(Event::Ledger(LedgerState::Away { detail: "no store".to_owned() }));
    let cancel = async |id: &str, client: Option<&str>| {
        let mut request = Request::delete(format!("/api/v1/queue/{id}"))
            .header("host", "localhost")
            .header("content-type", "application/json");
        if let Some(client) = client {
            request = request.header("x-client-id", client);
        }
        let (status, _, body) = api.send(request, "").await;
        (status.as_u16(), body)
    };
    let chat = Request::post("/v1/chat/completions")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("x-client-id", "anna");
    let asked = api.send(chat, r#"{"model":"guide","messages":[]}"#);
    let orders = async {
        let id = loop {
            let (_, _, body) = api.get("/api/v1/queue").await;
            assert_eq!(body["running"], json!([]));
            if let Some(waiting) = body["queue"].as_array().unwrap().first() {
                assert!(!waiting["message"].as_str().unwrap().is_empty(), "{waiting}");
                break waiting["id"].to_string();
            }
            tokio::task::yield_now().await;
        };
        let (status, body) = cancel(&id, Some("bert")).await;
        assert_eq!((status, code(&body)), (403, "insufficient_scope"), "{body}");
        assert_eq!(cancel(&id, Some("anna")).await, (200, json!({ "status": "cancelled", "id": 1 })));
        id
    };
    let ((status, _, body), id) = tokio::join!(asked, orders);
    assert_eq!((status.as_u16(), code(&body)), (410, "request_cancelled"), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("client 'anna' cancelled"), "{body}");
    for id in [&*id, "99", "x", "-1", "18446744073709551616"] {
        let (status, body) = cancel(id, None).await;
        assert_eq!((status, code(&body)), (404, "request_not_found"), "{id}: {body}");
    }
}
