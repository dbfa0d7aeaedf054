//! The text of sound through the coordinator: forms with files, their fields, and each form of an answer. With the fake
//! worker, and with a tiny random model in the real one.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use model_boss_tests::{Answer, Behaviour, Boss, Sandbox};
use serde_json::{Value, json};

use crate::rule::{TensorRule, safetensors};

/// A form with these fields, and a file in the middle of them.
async fn send(boss: &Boss, path: &str, fields: &[(&str, &str)], file: &[u8]) -> Answer {
    let part = |head: &str, content: &[u8]| {
        let head = format!("--limit\r\nContent-Disposition: form-data; {head}\r\n\r\n");
        [head.as_bytes(), content, b"\r\n"].concat()
    };
    let mut parts: Vec<Vec<u8>> =
        fields.iter().map(|(name, value)| part(&format!("name=\"{name}\""), value.as_bytes())).collect();
    parts.insert(parts.len() / 2, part("name=\"file\"; filename=\"speech.wav\"", file));
    parts.push(b"--limit--\r\n".to_vec());
    let mut request = boss.client().request(Method::POST, path, parts.concat());
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("multipart/form-data; boundary=limit"));
    boss.client().send(request).await
}

const ROUTE: &str = "/v1/audio/transcriptions";

#[tokio::test]
async fn rc_28_forms_reach_the_worker_with_their_file_and_without_our_fields() {
    let sandbox = Sandbox::new();
    let _control =
        sandbox.fake_model_with("ears", "vram = \"64MiB\"\ncategory = \"transcription\"", Behaviour::default());
    let _other = sandbox.fake_model("chat", Behaviour::default());
    let boss = sandbox.start().await;
    let file = b"\r\n--limi\r\n".repeat(50_000);
    let fields = [("model", "ears"), ("x_priority", "2"), ("x_client_id", "me"), ("language", "en")];
    let answer = send(&boss, ROUTE, &fields, &file).await;
    let expected = json!({ "text": format!("{} bytes of sound", file.len()), "model": "ears" });
    assert_eq!((answer.status, answer.json()), (StatusCode::OK, expected));
    assert_eq!(answer.header("x-served-model"), Some("ears"));
    let text =
        send(&boss, "/api/v1/audio/translations", &[("model", "ears"), ("response_format", "text")], b"abc").await;
    assert_eq!(text.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(text.body, "3 bytes of sound\n");
    let stream = send(&boss, ROUTE, &[("stream", "true"), ("model", "ears")], b"abcd").await;
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    let events = String::from_utf8_lossy(&stream.body);
    assert!(events.contains("transcript.text.done") && events.trim_end().ends_with("[DONE]"));

    let loaded = boss.read("/api/v1/slots").await.to_string();
    assert!(loaded.contains("ears"), "{loaded}");
    for (fields, status, code, field) in [
        (&[("model", "nobody")][..], 404, "model_not_found", "model"),
        (&[("model", "chat")], 400, "unsupported_by_model", "model"),
        (&[("model", "ears"), ("x_priority", "high")], 400, "invalid_request", "x_priority"),
        (&[("model", "ears"), ("stream", "perhaps")], 400, "invalid_request", "stream"),
    ] {
        let refused = send(&boss, ROUTE, fields, b"abc").await;
        let error = refused.json();
        assert_eq!((refused.status.as_u16(), &error["error"]["code"]), (status, &json!(code)), "{fields:?}: {error}");
        assert_eq!(error["error"]["param"], field, "{error}");
    }
    let plain = boss.client().post(ROUTE, &json!({ "model": "ears" })).await;
    assert!(plain.error_message().contains("multipart/form-data"), "{plain:?}");
}

/// A second of sound at 8 kHz.
fn wav() -> Vec<u8> {
    let samples: Vec<u8> =
        (0..8_000_i32).flat_map(|at| ((at * at * 31 % 24_001 - 12_000) as i16).to_le_bytes()).collect();
    let length = |more: usize| ((samples.len() + more) as u32).to_le_bytes();
    let format: [&[u8]; 5] =
        [&[16, 0, 0, 0, 1, 0, 1, 0], &8_000_u32.to_le_bytes(), &16_000_u32.to_le_bytes(), &[2, 0, 16, 0], b"data"];
    [b"RIFF", &length(36)[..], b"WAVEfmt ", &format.concat(), &length(0), &samples].concat()
}

#[tokio::test]
async fn rc_28_a_tiny_model_writes_in_the_real_worker() {
    let sandbox = Sandbox::new();
    let case: Value = serde_json::from_str(include_str!("../../worker/candle/tests/whisper/tiny.json")).unwrap();
    let folder = sandbox.path("tiny");
    std::fs::create_dir(&folder).unwrap();
    for (name, text) in case["files"].as_object().unwrap() {
        std::fs::write(folder.join(name), text.to_string()).unwrap();
    }
    let tensors: Vec<TensorRule> = serde_json::from_value(case["weights"]["tensors"].clone()).unwrap();
    std::fs::write(folder.join("model.safetensors"), safetensors(&tensors, 1)).unwrap();
    let words: serde_json::Map<String, Value> = (0..200).map(|id| (format!("w{id}"), json!(id))).collect();
    let tokenizer = json!({ "version": "1.0", "added_tokens": [], "pre_tokenizer": { "type": "Whitespace" },
        "model": { "type": "WordLevel", "vocab": words, "unk_token": "w0" } });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    sandbox.model("tiny", &folder, "");
    let boss = sandbox.start_with_real_worker().await;
    let shown = boss.read("/v1/models/tiny").await;
    assert_eq!(shown["category"], "transcription", "found by its files: {shown}");
    let answer = send(&boss, ROUTE, &[("model", "tiny"), ("response_format", "verbose_json")], &wav()).await;
    let told = answer.json();
    assert_eq!(answer.status, StatusCode::OK, "{told}");
    assert_eq!((&told["duration"], &told["usage"]["seconds"]), (&json!(1.0), &json!(1)), "{told}");
    assert!(["en", "de", "haw", "yue"].contains(&told["language"].as_str().unwrap()), "{told}");
    let refused = send(&boss, ROUTE, &[("model", "tiny")], b"no sound").await;
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (StatusCode::BAD_REQUEST, Some("file")));
}
