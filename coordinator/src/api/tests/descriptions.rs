//! The description of the API holds: every route is in it, what it forbids is refused, and docs/api.md has its tables.

use std::collections::BTreeSet;
use std::path::Path;

use model_boss_http::peek::OWN_HEADERS;
use model_boss_openapi::{FieldsColumn, Tag, methods_of, route_table};

use super::*;

const PAGE: &str = "docs/api.md";

/// The tables of docs/api.md: the mark in front of each, the parts of the API, and whether it lists fields.
const TABLES: [(&str, &[Tag], FieldsColumn); 5] = [
    ("models", &[Tag::Models, Tag::Anthropic, Tag::Ollama], FieldsColumn::Hidden),
    ("jobs", &[Tag::Jobs], FieldsColumn::Hidden),
    ("views", &[Tag::Views], FieldsColumn::Hidden),
    ("orders", &[Tag::Orders], FieldsColumn::Shown),
    ("leases", &[Tag::Leases], FieldsColumn::Shown),
];

#[tokio::test]
async fn op_8_the_tables_of_docs_api_md_are_made_from_the_routes() {
    let api = fixture().await;
    let routes = routes(Arc::clone(&api.context));
    let document = routes.described();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(PAGE);
    let before = std::fs::read_to_string(&file).unwrap();
    let mut now = before.clone();
    for (name, tags, fields) in TABLES {
        let (open, close) = (format!("<!-- routes: {name} -->\n"), "<!-- end of routes -->");
        let (head, rest) = now.split_once(&open).unwrap_or_else(|| panic!("{PAGE} has no {open}"));
        let (_, tail) = rest.split_once(close).unwrap();
        let table = route_table(&routes.table, &document, tags, fields);
        assert!(table.lines().count() > 6, "{table}");
        now = format!("{head}{open}\n{table}\n{close}{tail}");
    }
    if std::env::var_os("MODEL_BOSS_WRITE_DOCS").is_some() {
        std::fs::write(&file, now).unwrap();
    } else {
        assert!(before == now, "MODEL_BOSS_WRITE_DOCS=1 writes {PAGE}");
    }
}

#[tokio::test]
async fn op_8_the_document_has_every_route_once() {
    let api = fixture().await;
    let (status, headers, document) = api.get("/openapi.json").await;
    assert_eq!((status.as_u16(), headers["content-type"].to_str().unwrap()), (200, "application/json"));
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = BTreeSet::new();
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(name, _)| !name.starts_with("x-")) {
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{operation}");
            assert!(!operation["summary"].as_str().unwrap().is_empty());
            assert!(operation["responses"].as_object().unwrap().len() >= 4, "{path}: {operation}");
            described.insert((method.to_uppercase(), path.clone()));
        }
    }
    for route in routes(Arc::clone(&api.context)).table {
        let path = route.path.split("{*").next().unwrap();
        let is_it = |(method, known): &(String, String)| {
            *method == route.method
                && (known == path || (path.ends_with('/') && path != "/" && known.starts_with(path)))
        };
        assert!(described.iter().any(is_it), "{} {} is not described", route.method, route.path);
    }
    assert!(described.len() > 60, "{}", described.len());
    references(&document, &document);
}

/// Every reference leads to something.
fn references(value: &Value, document: &Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(target)) = fields.get("$ref") {
                assert!(document.pointer(target.strip_prefix('#').unwrap()).is_some(), "{target}");
            }
            fields.values().for_each(|field| references(field, document));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, document)),
        _ => {}
    }
}

#[tokio::test]
async fn op_8_a_route_needs_the_key_that_its_description_names() {
    let api = fixture_with(Some("a-key-of-sixteen-or-more")).await;
    let (_, _, document) = api.get("/openapi.json").await;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap().iter().filter(|(name, _)| !name.starts_with("x-")) {
            let target = path.replace("{id}", "guide");
            let request = Request::builder().method(method.to_uppercase().as_str()).uri(&target);
            let request = request.header("host", "localhost").header("content-type", "application/json");
            let (status, _, _) = api.send(request, "{}").await;
            let is_public = operation["security"].as_array().unwrap().is_empty();
            assert_eq!(status == 401, !is_public, "{method} {path}: {status}");
        }
    }
}

#[tokio::test]
async fn op_8_allow_names_the_methods_of_a_verb_and_not_those_of_its_id() {
    let api = fixture().await;
    let table = routes(Arc::clone(&api.context)).table;
    for (path, methods) in [
        ("/api/v1/models/guide/device", "POST"),
        ("/api/v1/models/guide", "GET,HEAD"),
        ("/v1/responses/resp_1/input_items", "GET,HEAD"),
        ("/v1/responses/resp_1/cancel", "POST"),
        ("/v1/responses/resp_1", "GET,HEAD,DELETE"),
        ("/api/v1/leases", "GET,HEAD,POST,PUT,DELETE"),
        ("/api/v1/nothing", ""),
    ] {
        assert_eq!(methods_of(&table, path).join(","), methods, "{path}");
    }
    // A verb of another method is not a part of the id.
    for (method, path, allow) in [
        ("OPTIONS", "/api/v1/models/guide/device", "POST"),
        ("PUT", "/api/v1/leases/lease-1/attach", "POST"),
        ("DELETE", "/api/v1/leases/lease-1/reassert", "POST"),
        ("POST", "/api/v1/leases/lease-1", "GET,HEAD,PUT,DELETE"),
        ("GET", "/v1/responses/resp_1/cancel", "POST"),
    ] {
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let (status, headers, _) = api.send(request.header("content-type", "application/json"), "{}").await;
        assert_eq!((status.as_u16(), headers["allow"].to_str().unwrap()), (405, allow), "{method} {path}");
    }
    // A model's name may end like a verb.
    assert_eq!(code(&api.get("/api/v1/models/team/pin").await.2), "model_not_found");
}

#[tokio::test]
async fn op_8_what_a_description_forbids_is_refused() {
    let api = fixture().await;
    for (path, body, field) in [
        // A time that is no time would otherwise be over before the request is looked at.
        ("/v1/chat/completions", r#"{"model":"guide","messages":[],"x_budget_s":5e-324}"#, "x_budget_s"),
        ("/v1/chat/completions", r#"{"model":"guide","messages":[],"x_fallback":"any"}"#, "x_fallback"),
        ("/v1/chat/completions", r#"{"model":7,"messages":[]}"#, "model"),
        ("/v1/chat/completions", r#"{"model":"guide","messages":[],"stream":"yes"}"#, "stream"),
    ] {
        let (status, _, answer) = api.post(path, body).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &field.into()), "{path} {body}: {answer}");
    }
    for (path, body, word) in [
        ("/api/show", r#"{"model":"guide","name":{}}"#, "name"),
        ("/api/pull", r#"{"model":"guide","stream":"no"}"#, "stream"),
        ("/api/chat", r#"{"model":["guide"]}"#, "model"),
    ] {
        let (status, _, answer) = api.post(path, body).await;
        assert_eq!(status.as_u16(), 400, "{path} {body}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(word), "{answer}");
    }
    for limit in ["-1", "0", "many"] {
        let (status, _, answer) = api.get(&format!("/v1/models?limit={limit}")).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &"limit".into()), "{limit}");
    }
    // Each route refuses a wrong name of a client, whether it uses it or not.
    let long = "c".repeat(129);
    let request = Request::get("/api/v1/slots").header("host", "localhost").header("x-client-id", long);
    let (status, _, answer) = api.send(request, "").await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &"x-client-id".into()));
}

#[tokio::test]
async fn op_8_fields_that_scheduling_reads_are_described_and_refused_where_they_are_wrong() {
    let api = fixture().await;
    let (_, _, document) = api.get("/openapi.json").await;
    let own: Vec<String> = OWN_HEADERS.iter().map(|header| header.replace('-', "_")).collect();
    let mut seen = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let operation = &item["post"];
        let headers = operation["parameters"].as_array().into_iter().flatten().map(|one| one["name"].as_str().unwrap());
        let headers: Vec<&str> = headers.collect();
        // An answer by a model has the model's name in a header.
        if operation["responses"]["200"]["headers"].get("x-served-model").is_none() {
            continue;
        }
        assert!(OWN_HEADERS.iter().all(|header| headers.contains(header)), "{path}: {headers:?}");
        let of = |media: &str| operation.pointer(&format!("/requestBody/content/{media}/schema/$ref"));
        let form = of("multipart~1form-data");
        let schema = form.or_else(|| of("application~1json")).unwrap();
        let schema = document.pointer(schema.as_str().unwrap().strip_prefix('#').unwrap()).unwrap();
        let fields = schema["properties"].as_object().unwrap();
        assert!(fields["model"].is_object() && fields["keep_alive"].is_object(), "{path}");
        for field in &own {
            assert!(fields.contains_key(field), "{path} lacks {field}");
            // Fields of forms are texts.
            if form.is_some() {
                continue;
            }
            // Fields that the API translates come first, so they are right.
            let mut body = json!({
                "model": "guide", "max_tokens": 1, "messages": [{ "role": "user", "content": "a" }], "input": "a",
                "inputs": "a", "prompt": "a", "query": "a", "documents": ["a"], "tokens": [1],
            });
            body[field] = json!([[]]);
            let (status, _, answer) = api.post(path, &body.to_string()).await;
            assert_eq!(status.as_u16(), 400, "{path} {field}: {answer}");
            assert!(answer.to_string().contains(field.as_str()), "{path} {field}: {answer}");
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen}");
}

#[tokio::test]
async fn op_8_events_end_where_the_reader_does_not_follow() {
    let api = fixture().await;
    let request = Request::get("/api/v1/events?follow=false").header("host", "localhost");
    let response = api.door.call(request.body(Full::new(Bytes::new())).unwrap()).await.unwrap();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    assert!(text.contains("event: state\n") && text.contains("\"models\""), "{text}");
    let (status, _, answer) = api.get("/api/v1/events?follow=perhaps").await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &"follow".into()));
}
