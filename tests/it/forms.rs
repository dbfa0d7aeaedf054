//! Structured output and calls of tools with both real binaries and a real, tiny model, in every dialect.

use http::StatusCode;
use model_boss_tests::{Boss, Sandbox};
use serde_json::{Value, json};

use crate::real_model::guide;

const CHAT: &str = "/v1/chat/completions";

async fn boss() -> Boss {
    let sandbox = Sandbox::new();
    sandbox.model("guide", &guide(), "");
    sandbox.start_with_real_worker().await
}

fn person() -> Value {
    json!({
        "type": "object", "required": ["name", "age", "tags"], "additionalProperties": false,
        "properties": {
            "name": {"type": "string", "maxLength": 10},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        },
    })
}

fn assert_is_person(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(value["name"].as_str().unwrap().chars().count() <= 10, "{text}");
    assert!((0..=150).contains(&value["age"].as_i64().unwrap()), "{text}");
    assert!(value["tags"].as_array().unwrap().len() <= 2 && value.as_object().unwrap().len() == 3, "{text}");
}

fn asked(extra: Value) -> Value {
    let mut body =
        json!({"model": "guide", "max_tokens": 200, "messages": [{"role": "user", "content": "Who are you?"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn en_6_a_real_model_is_held_to_a_strict_schema_streamed_and_not() {
    let boss = boss().await;
    let format = json!({"type": "json_schema", "json_schema": {"name": "person", "strict": true, "schema": person()}});
    let body = asked(json!({"response_format": format, "n": 2, "logprobs": true, "temperature": 1.2, "seed": 3}));
    let answer = boss.client().post(CHAT, &body).await.json();
    let choices = answer["choices"].as_array().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(choices.len(), 2);
    for choice in choices {
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        let text = choice["message"]["content"].as_str().unwrap();
        assert_is_person(text);
        let told: String = choice["logprobs"]["content"]
            .as_array()
            .unwrap()
            .iter()
            .map(|token| token["token"].as_str().unwrap())
            .collect();
        assert_eq!(told, text);
    }
    let mut streamed = asked(json!({"response_format": format, "temperature": 0}));
    streamed["stream"] = json!(true);
    let events = boss.client().stream(CHAT, &streamed).await.rest().await;
    assert_is_person(&model_boss_tests::text_of_events(&events));
    boss.finish().await;
}

#[tokio::test]
async fn en_6_a_form_holds_in_every_dialect_and_an_impossible_one_is_named_as_the_client_named_it() {
    let boss = boss().await;
    let said = json!([{"role": "user", "content": "Who are you?"}]);
    let messages = json!({"model": "guide", "max_tokens": 200, "messages": said,
        "output_config": {"format": {"type": "json_schema", "schema": person()}}});
    let answer = boss.client().post("/v1/messages", &messages).await.json();
    assert_is_person(answer["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")));
    let chat = json!({"model": "guide", "messages": said, "stream": false, "format": person()});
    let answer = boss.client().post("/api/chat", &chat).await.json();
    assert_is_person(answer["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}")));
    let generate = json!({"model": "guide", "prompt": "?", "stream": false, "format": person(), "raw": true,
        "options": {"num_predict": 200}});
    let answer = boss.client().post("/api/generate", &generate).await.json();
    assert_is_person(answer["response"].as_str().unwrap_or_else(|| panic!("{answer}")));
    let completion = json!({"model": "guide", "prompt": "?", "max_tokens": 9, "guided_choice": ["yes", "no"]});
    let answer = boss.client().post("/v1/completions", &completion).await.json();
    assert!(["yes", "no"].contains(&answer["choices"][0]["text"].as_str().unwrap()), "{answer}");

    let impossible = json!({"type": "array", "uniqueItems": true});
    let mut refused = messages.clone();
    refused["output_config"]["format"]["schema"] = impossible.clone();
    let answer = boss.client().post("/v1/messages", &refused).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("uniqueItems") && message.contains("output_config.format.schema"), "{message}");
    let answer =
        boss.client().post("/api/chat", &json!({"model": "guide", "messages": said, "format": impossible})).await;
    let message = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(answer.status == StatusCode::BAD_REQUEST && message.contains("uniqueItems"), "{message}");
    boss.finish().await;
}

fn tools() -> Value {
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters, "strict": true}});
    json!([
        tool("weather", person()),
        tool("clock", json!({"type": "object", "properties": {}, "additionalProperties": false}))
    ])
}

fn named(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}

#[tokio::test]
async fn en_5_a_real_model_calls_tools_over_several_turns() {
    let boss = boss().await;
    let mut messages = json!([{"role": "user", "content": "What is the weather?"}]);
    // A function that is named is called once, whatever the request says of parallel calls.
    for (turn, tool) in ["weather", "clock", "weather"].into_iter().enumerate() {
        let body = json!({"model": "guide", "messages": messages, "tools": tools(), "tool_choice": named(tool),
            "max_tokens": 200, "temperature": 0.9, "seed": turn});
        let answer = boss.client().post(CHAT, &body).await.json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        let message = choice["message"].clone();
        let call = message["tool_calls"][0].clone();
        assert_eq!((&call["function"]["name"], message["tool_calls"].as_array().unwrap().len()), (&json!(tool), 1));
        let arguments = call["function"]["arguments"].as_str().unwrap();
        if tool == "weather" {
            assert_is_person(arguments)
        } else {
            assert_eq!(arguments, "{}")
        }
        let list = messages.as_array_mut().unwrap();
        list.push(message);
        list.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "sunny"}));
    }
    let last =
        json!({"model": "guide", "messages": messages, "tools": tools(), "tool_choice": "none", "max_tokens": 4});
    let answer = boss.client().post(CHAT, &last).await.json();
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none(), "{answer}");
    boss.finish().await;
}

#[tokio::test]
async fn en_5_calls_come_in_the_words_of_every_dialect_streamed_and_not() {
    let boss = boss().await;
    let body = json!({"model": "guide", "max_tokens": 200, "messages": [{"role": "user", "content": "Weather?"}],
        "tools": [{"name": "weather", "input_schema": person()}], "tool_choice": {"type": "any", "disable_parallel_tool_use": true}});
    let answer = boss.client().post("/v1/messages", &body).await.json();
    assert_eq!(
        (&answer["stop_reason"], &answer["content"][0]["type"]),
        (&json!("tool_use"), &json!("tool_use")),
        "{answer}"
    );
    assert_is_person(&answer["content"][0]["input"].to_string());
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let streamed = boss.client().post("/v1/messages", &streamed).await;
    let text = String::from_utf8(streamed.body.to_vec()).unwrap();
    let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
    let input: String = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_is_person(&input);
    assert!(events.iter().any(|event| event["delta"]["stop_reason"] == "tool_use"), "{text}");
    let shown = boss.client().post("/api/show", &json!({"model": "guide"})).await.json();
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("tools")), "{shown}");
    boss.finish().await;
}
