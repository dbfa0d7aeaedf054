use super::rig::{Setup, chat};

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use model_boss_protocol::{DEMANDS, ErrorBody, SpawnToken};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::http::routes::router;

fn messages(messages: Value) -> Value {
    json!({"messages": messages})
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let rig = Setup::default().start().await;
    let user = |content: Value| json!({"role": "user", "content": content});
    let long: Vec<String> = (0..17).map(|n| n.to_string()).collect();
    for (body, param) in [
        (json!({}), "messages"),
        (messages(json!([])), "messages"),
        (messages(json!("hi")), "messages"),
        (messages(json!(["hi"])), "messages[0]"),
        (messages(json!([user(json!("a")), user(json!(7))])), "messages[1].content"),
        (messages(json!([user(json!(null))])), "messages[0].content"),
        (chat(json!({"continue_final_message": true})), "continue_final_message"),
        (messages(json!([{"content": "x"}])), "messages[0].role"),
        (messages(json!([{"role": 5, "content": "x"}])), "messages[0].role"),
        (messages(json!([user(json!([{"type": "text"}]))])), "messages[0].content[0].text"),
        (messages(json!([user(json!([{"type": "refusal", "text": "x"}]))])), "messages[0].content[0].refusal"),
        (
            messages(json!([{"role": "assistant", "tool_calls": [{"function": {}}]}])),
            "messages[0].tool_calls[0].function",
        ),
        (chat(json!({"temperature": "hot"})), "temperature"),
        (chat(json!({"temperature": -0.1})), "temperature"),
        (chat(json!({"temperature": 2.1})), "temperature"),
        (chat(json!({"top_p": 1.5})), "top_p"),
        (chat(json!({"top_k": 1.5})), "top_k"),
        (chat(json!({"min_p": -1})), "min_p"),
        (chat(json!({"n": 0})), "n"),
        (chat(json!({"n": 129})), "n"),
        (chat(json!({"max_tokens": 0})), "max_tokens"),
        (chat(json!({"max_tokens": -2})), "max_tokens"),
        (chat(json!({"max_tokens": 1.5})), "max_tokens"),
        (chat(json!({"max_completion_tokens": "9"})), "max_completion_tokens"),
        (chat(json!({"seed": "x"})), "seed"),
        (chat(json!({"stop": long})), "stop"),
        (chat(json!({"stop": [1]})), "stop"),
        (chat(json!({"presence_penalty": 3})), "presence_penalty"),
        (chat(json!({"frequency_penalty": -3})), "frequency_penalty"),
        (chat(json!({"repetition_penalty": 0})), "repetition_penalty"),
        (chat(json!({"logit_bias": [[1, true]]})), "logit_bias"),
        (chat(json!({"logit_bias": {"9999": 1}})), "logit_bias"),
        (chat(json!({"logit_bias": {"1": 101}})), "logit_bias"),
        (chat(json!({"logit_bias": {"1": "a"}})), "logit_bias.1"),
        (chat(json!({"stream": "yes"})), "stream"),
        (chat(json!({"stream_options": {"include_usage": 1}})), "stream_options.include_usage"),
        (chat(json!({"logprobs": 1})), "logprobs"),
        (chat(json!({"logprobs": true, "top_logprobs": 21})), "top_logprobs"),
        (chat(json!({"top_logprobs": 2})), "top_logprobs"),
        (chat(json!({"response_format": {"type": 7}})), "response_format.type"),
        (chat(json!({"response_format": "json"})), "response_format"),
        (chat(json!({"tools": [{"type": "function"}]})), "tools[0]"),
        (chat(json!({"tools": {}})), "tools"),
        (chat(json!({"tool_choice": "maybe"})), "tool_choice"),
    ] {
        let error = rig.post("/v1/chat/completions", &body).await.error();
        assert_eq!(error, (400, "invalid_request".to_owned(), param.to_owned()), "{body}");
    }
}

#[tokio::test]
async fn en_6_a_strict_tool_and_samplers_that_are_off_are_taken() {
    let rig = Setup { context: 2_000, ..Setup::default() }.start().await;
    // Helpers of OpenAI's SDK and its agents make every tool strict, and other clients send every sampler.
    let tool = json!({"type": "function", "function": {"name": "f", "strict": true, "parameters": {"type": "object"}}});
    for body in [
        chat(json!({"tools": [tool], "tool_choice": "auto"})),
        chat(json!({"mirostat": 0, "mirostat_tau": 5.0, "typical_p": 1.0, "tfs_z": 1, "top_n_sigma": -1.0})),
        chat(json!({"dry_multiplier": 0, "dry_base": 1.75, "xtc_probability": 0.0, "xtc_threshold": 0.1})),
    ] {
        let answer = rig.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
    }
    let refused = rig.post("/v1/completions", &json!({"prompt": "a", "mirostat": 2})).await;
    assert_eq!(refused.error(), (400, "unsupported_by_model".to_owned(), "mirostat".to_owned()));
    assert!(refused.text().contains("llama-server"), "{refused:?}");
}

#[tokio::test]
async fn what_the_model_cannot_do_is_said() {
    let rig = Setup::default().start().await;
    let image = json!([{"type": "image_url", "image_url": {"url": "data:"}}]);
    for (body, param) in [
        (chat(json!({"response_format": {"type": "structural_tag"}})), "response_format"),
        (chat(json!({"response_format": {"type": "yaml"}})), "response_format"),
        (chat(json!({"best_of": 2})), "best_of"),
        (messages(json!([{"role": "user", "content": image}])), "messages[0].content[0].image_url.url"),
    ] {
        let error = rig.post("/v1/chat/completions", &body).await.error();
        assert_eq!(error, (400, "unsupported_by_model".to_owned(), param.to_owned()), "{body}");
    }
    for demand in DEMANDS.into_iter().filter(|demand| !demand.is_met_here) {
        for (path, mut body) in [("/v1/chat/completions", chat(json!({}))), ("/v1/completions", json!({"prompt": "a"}))]
        {
            body[demand.field] = json!({"x": 1});
            let refused = rig.post(path, &body).await;
            let error = (400, "unsupported_by_model".to_owned(), demand.field.to_owned());
            assert_eq!(refused.error(), error, "{body}");
            body[demand.field] = json!(null);
            assert_eq!(rig.post(path, &body).await.status, 200, "{body}");
        }
    }
    let forced = rig.chat(json!({"response_format": {"type": "yaml"}})).await.text();
    assert!(forced.contains("llama-server") && forced.contains("vLLM"), "{forced}");
    for (body, param) in [
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": [1, 2, 262]}), "prompt"),
        (json!({"prompt": [-1]}), "prompt"),
        (json!({"prompt": {"a": 1}}), "prompt"),
        (json!({"prompt": "a", "logprobs": true}), "logprobs"),
        (json!({}), "prompt"),
    ] {
        let error = rig.post("/v1/completions", &body).await.error();
        assert_eq!(error, (400, "invalid_request".to_owned(), param.to_owned()), "{body}");
    }
    assert_eq!(rig.post("/tokenize", &json!({})).await.error().2, "content");
    assert_eq!(rig.post("/detokenize", &json!({"tokens": ["a"]})).await.error().2, "tokens[0]");
}

#[tokio::test]
async fn null_is_absent_and_unknown_fields_are_ignored() {
    let rig = Setup::default().start().await;
    let fields = [
        "temperature",
        "top_p",
        "n",
        "stop",
        "seed",
        "max_tokens",
        "logit_bias",
        "stream",
        "stream_options",
        "response_format",
        "tools",
        "tool_choice",
        "logprobs",
        "top_logprobs",
        "user",
        "presence_penalty",
    ];
    let nulls: serde_json::Map<String, Value> = fields.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
    assert_eq!(rig.chat(Value::Object(nulls)).await.status, 200);
    let unknown = json!({"frobnicate": [1], "response_format": {"type": "text"}, "tool_choice": "none", "n": 1,
                         "best_of": 1, "parallel_tool_calls": true});
    assert_eq!(rig.chat(unknown).await.status, 200);
}

#[tokio::test]
async fn a_body_that_is_no_request_is_refused() {
    let rig = Setup::default().start().await;
    for body in [
        &b""[..],
        b"{",
        b"[]",
        b"null",
        b"\"hi\"",
        b"{\"a\":1}}",
        b"\xff\xfe",
        b"{\"messages\":[{\"role\":\"\\ud800\"}]}",
    ] {
        let answer = rig.send("POST", "/v1/chat/completions", "", body).await;
        let (status, code, _) = answer.error();
        assert_eq!((status, code.as_str()), (400, "invalid_request"), "{body:?}");
    }
    let deep = format!("{{\"messages\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(rig.send("POST", "/v1/chat/completions", "", deep.as_bytes()).await.error().0, 400);
    assert_eq!(rig.get("/nowhere").await.error().1, "not_found");
    assert_eq!(rig.get("/v1/completions").await.error().1, "method_not_allowed");
}

#[tokio::test]
async fn a_prompt_over_the_context_is_told_both_numbers() {
    let rig = Setup::default().start().await;
    let long = rig.post("/v1/completions", &json!({"prompt": "p".repeat(400)})).await;
    assert_eq!(long.error(), (400, "context_length_exceeded".to_owned(), "prompt".to_owned()));
    let message = long.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("This model's maximum context length is 400 tokens. However, the prompt has 400"),
        "{message}"
    );
    let fits = rig.post("/v1/completions", &json!({"prompt": "p".repeat(399)})).await.json();
    assert_eq!(fits["choices"][0]["finish_reason"], "length", "what is left of the context is used");
    let streamed = json!({"prompt": "p".repeat(10_000_000), "stream": true});
    assert_eq!(rig.post("/v1/completions", &streamed).await.error().1, "context_length_exceeded");
    let content = "p".repeat(500);
    let chat = messages(json!([{"role": "user", "content": content}]));
    assert_eq!(rig.post("/v1/chat/completions", &chat).await.error().2, "messages");
}

#[tokio::test]
async fn a_template_that_refuses_is_a_request_that_is_wrong() {
    let template = "{{ raise_exception('Only users here') }}";
    let rig = Setup { template: Some(template), ..Setup::default() }.start().await;
    let answer = rig.chat(json!({})).await;
    assert_eq!(answer.error(), (400, "invalid_request".to_owned(), "messages".to_owned()));
    assert!(answer.text().contains("Only users here"));
}

#[tokio::test]
async fn op_5_every_route_needs_the_token_of_the_spawn() {
    let token = SpawnToken::from_bits(99);
    let rig = Setup { token: Some(token.clone()), ..Setup::default() }.start().await;
    for path in ["/health", "/v1/models", "/metrics", "/stats", "/v1/chat/completions", "/nowhere"] {
        assert_eq!(rig.get(path).await.error().0, 401, "{path}");
        let wrong = format!("authorization: Bearer {}\r\n", SpawnToken::from_bits(98).reveal());
        assert_eq!(rig.send("GET", path, &wrong, b"").await.error().1, "invalid_api_key", "{path}");
    }
    let right = format!("authorization: Bearer {}\r\n", token.reveal());
    assert_eq!(rig.send("GET", "/health", &right, b"").await.status, 200);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let rig = Setup::default().start().await;
    let request = Request::post("/v1/completions").body(Body::from(vec![b' '; (32 << 20) + 1])).unwrap();
    let response = router(Arc::clone(&rig.worker)).oneshot(request).await.unwrap();
    assert_eq!(response.status(), 413);
    let body: ErrorBody = serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
    assert_eq!(body.error.code.as_deref(), Some("request_too_large"));
}
