use serde_json::{Map, Value, json};

use super::*;
use crate::error::{DialectFault, ProviderFault};
use crate::names::tests::check_every_place;
use crate::sse::{SseItem, SseReader};
use crate::{Names, Reshape, Stamp};

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn stamp() -> Stamp {
    Stamp { id: "id-1".into(), model: "m".into(), created: 7 }
}

/// All events of a stream that was translated in pieces of seven bytes.
fn through(reshape: &mut dyn Reshape, stream: &str) -> (Vec<(String, Value)>, String) {
    let mut out = Vec::new();
    for piece in stream.as_bytes().chunks(7) {
        out.extend_from_slice(&reshape.piece(piece));
    }
    out.extend_from_slice(&reshape.end());
    let events = SseReader::default().push(&out).into_iter().filter_map(|item| match item {
        SseItem::Event { name, data } => Some((name, serde_json::from_str(&data).ok()?)),
        SseItem::Comment(_) => None,
    });
    (events.collect(), String::from_utf8(out).unwrap())
}

#[test]
fn rc_27_a_chat_with_everything_becomes_a_messages_request() {
    let chat = object(json!({
        "messages": [
            { "role": "system", "content": "Be brief." },
            { "role": "developer", "content": [{ "type": "text", "text": "Be kind." }] },
            { "role": "user", "content": [
                { "type": "text", "text": "What is this?" },
                { "type": "image_url", "image_url": { "url": "data:image/png;base64,AAAA" } },
            ] },
            { "role": "assistant", "content": null, "tool_calls": [
                { "id": "c1", "type": "function", "function": { "name": "look", "arguments": "{\"x\":1}" } },
                { "id": "c2", "type": "function", "function": { "name": "look", "arguments": "" } },
            ] },
            { "role": "tool", "tool_call_id": "c1", "content": "a cat" },
            { "role": "tool", "tool_call_id": "c2", "content": "a dog" },
            { "role": "user", "content": "So?" },
        ],
        "tools": [{ "type": "function", "function": { "name": "look", "description": "d", "parameters": { "type": "object" } } }],
        "tool_choice": "required", "parallel_tool_calls": false,
        "temperature": 1.5, "stop": "x", "stream": true, "user": "u", "seed": 1,
    }));
    assert_eq!(
        to_messages_request(&chat, "claude-x").unwrap(),
        json!({
            "model": "claude-x", "max_tokens": 8192, "system": "Be brief.\n\nBe kind.", "temperature": 1.0,
            "stop_sequences": ["x"], "stream": true, "metadata": { "user_id": "u" },
            "messages": [
                { "role": "user", "content": [
                    { "type": "text", "text": "What is this?" },
                    { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } },
                ] },
                { "role": "assistant", "content": [
                    { "type": "tool_use", "id": "c1", "name": "look", "input": { "x": 1 } },
                    { "type": "tool_use", "id": "c2", "name": "look", "input": {} },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "c1", "content": "a cat" },
                    { "type": "tool_result", "tool_use_id": "c2", "content": "a dog" },
                    { "type": "text", "text": "So?" },
                ] },
            ],
            "tools": [{ "name": "look", "description": "d", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
        })
    );
}

#[test]
fn rc_27_thinking_leaves_room_for_the_answer() {
    let chat = object(json!({ "messages": [], "reasoning_effort": "medium", "max_tokens": 100, "temperature": 0 }));
    let request = to_messages_request(&chat, "m").unwrap();
    assert_eq!(request["thinking"], json!({ "type": "enabled", "budget_tokens": 8192 }));
    assert!(request["max_tokens"].as_u64().unwrap() > 8192 && request.get("temperature").is_none());
}

#[test]
fn rc_23_a_budget_below_claudes_least_is_no_thinking_and_it_says_so() {
    for (wish, budget, noted) in [
        (json!(1_024), Some(1_024), false),
        (json!({ "type": "enabled", "budget_tokens": 1_023 }), None, true),
        (json!(1), None, true),
        (json!(0), None, false),
        (json!("off"), None, false),
        (json!("on"), Some(4_096), false),
    ] {
        let chat = object(json!({ "messages": [], "thinking": wish }));
        let request = to_messages_request(&chat, "m").unwrap();
        assert_eq!(request["thinking"]["budget_tokens"].as_u64(), budget, "{wish}");
        assert_eq!(thinking_note(&chat).is_some(), noted, "{wish}");
    }
    let wrong = object(json!({ "messages": [], "thinking": "a little" }));
    assert_eq!(to_messages_request(&wrong, "m").unwrap_err().field.as_deref(), Some("thinking"));
}

#[test]
fn rc_27_what_the_messages_api_cannot_do_is_named() {
    for (body, param) in [
        (json!({}), "messages"),
        (json!({ "messages": [], "n": 2 }), "n"),
        (json!({ "messages": [], "logprobs": true }), "logprobs"),
        (json!({ "messages": [], "response_format": { "type": "json_object" } }), "response_format"),
        (json!({ "messages": [], "grammar": "root ::= x" }), "grammar"),
        (json!({ "messages": [], "functions": [{ "name": "f" }] }), "functions"),
        (json!({ "messages": [{ "role": "x", "content": "" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "tool", "content": "" }] }), "messages[0].tool_call_id"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "https://x" } }] }] }),
            "messages[0].content[0].image_url",
        ),
    ] {
        assert_eq!(to_messages_request(&object(body), "m").unwrap_err().field.as_deref(), Some(param));
    }
}

#[test]
fn en_7_a_message_starts_with_the_tokens_of_its_prompt() {
    let asked = json!({ "model": "m", "max_tokens": 9, "stream": true, "messages": [] });
    let chat = object(from_messages_request(&object(asked)).unwrap().0);
    assert_eq!(chat["stream_options"], json!({ "include_usage": true, "continuous_usage_stats": true }));
    let stamp = || Stamp { id: "msg_1".into(), model: "m".into(), created: 0 };
    let start = |chunk: &str| -> Value {
        let text = MessagesFromChat::new(stamp(), Names::default()).piece(chunk.as_bytes());
        let text = String::from_utf8(text.to_vec()).unwrap();
        let data = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        serde_json::from_str(data).unwrap()
    };
    let chunk = json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }],
        "usage": { "prompt_tokens": 12, "completion_tokens": 0, "total_tokens": 12 } });
    let begun = start(&format!("data: {chunk}\n\n"));
    assert_eq!((&begun["type"], &begun["message"]["usage"]["input_tokens"]), (&json!("message_start"), &json!(12)));
    // llama-server's count of a prompt, before or amid its prefill.
    let chunk = json!({ "choices": [{ "delta": { "role": "assistant", "content": null } }],
        "prompt_progress": { "total": 12, "cache": 5, "processed": 5, "time_ms": 0 } });
    let begun = start(&format!("data: {chunk}\n\n"));
    assert_eq!(begun["message"]["usage"]["input_tokens"], 7, "{begun}");
    assert_eq!(begun["message"]["usage"]["cache_read_input_tokens"], 5, "{begun}");
    // A Claude model's own count survives the translation into a chat and back.
    let claude =
        json!({ "type": "message_start", "message": { "usage": { "input_tokens": 7, "cache_read_input_tokens": 5 } } });
    let between =
        ChatFromMessages::new(stamp(), &chat).piece(format!("event: message_start\ndata: {claude}\n\n").as_bytes());
    let begun = start(std::str::from_utf8(&between).unwrap());
    assert_eq!(begun["message"]["usage"]["input_tokens"], 7, "{begun}");
    assert_eq!(begun["message"]["usage"]["cache_read_input_tokens"], 5, "{begun}");
}

#[test]
fn en_7_an_overflow_is_told_in_the_words_that_anthropics_clients_look_for() {
    let ours = json!({ "error": { "type": "invalid_request_error", "code": "context_length_exceeded", "message": "too many" } });
    let told = messages_error(&ours);
    assert_eq!(told["error"]["message"], "prompt is too long: too many");
}

#[test]
fn en_7_an_overflow_at_a_provider_has_the_words_of_both_apis() {
    let body =
        json!({ "error": { "type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum" } });
    let error = cloud_error(400, body.to_string().as_bytes(), None);
    assert_eq!(
        error.message,
        "prompt is too long: 9 tokens > 8 maximum. This model's maximum context length is 8 tokens"
    );
    let ours = json!({ "error": { "type": "invalid_request_error", "code": "context_length_exceeded", "message": error.message } });
    let told = messages_error(&ours);
    assert_eq!(told["error"]["message"], error.message);
}

#[test]
fn en_6_samplers_and_strict_tools_reach_whoever_serves_the_request() {
    let asked = json!({ "model": "m", "max_tokens": 9, "messages": [], "mirostat": 2, "mirostat_tau": 4.0,
        "tools": [{ "name": "f", "input_schema": {}, "strict": true }] });
    let (chat, _) = from_messages_request(&object(asked)).unwrap();
    assert_eq!((&chat["mirostat"], &chat["mirostat_tau"]), (&json!(2), &json!(4.0)));
    assert_eq!(chat["tools"][0]["function"]["strict"], true);
}

#[test]
fn en_6_a_form_that_is_wished_for_is_passed_on_there_and_back() {
    let schema = json!({ "type": "object" });
    let format = json!({ "type": "json_schema", "schema": schema });
    for asked in [json!({ "output_config": { "format": format } }), json!({ "output_format": format })] {
        let mut asked = object(asked);
        asked.extend(object(json!({ "model": "m", "max_tokens": 9, "messages": [] })));
        let chat = object(from_messages_request(&asked).unwrap().0);
        assert_eq!(chat["response_format"]["json_schema"]["schema"], schema);
        assert_eq!(to_messages_request(&chat, "m").unwrap()["output_config"]["format"], format);
        assert_eq!(command_question(&chat).unwrap_err().field.as_deref(), Some("response_format"));
    }
    for (asked, param) in [
        (json!({ "output_config": { "format": { "type": "grammar" } } }), "output_config.format"),
        (json!({ "output_format": 7 }), "output_format"),
        (json!({ "mcp_servers": [{ "url": "x" }] }), "mcp_servers"),
        (json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] }), "tools[0]"),
    ] {
        let mut asked = object(asked);
        asked.extend(object(json!({ "model": "m", "max_tokens": 9, "messages": [] })));
        assert_eq!(from_messages_request(&asked).unwrap_err().field.as_deref(), Some(param));
    }
    let demanding =
        json!({ "model": "m", "max_tokens": 9, "messages": [], "grammar": "x", "output_config": { "effort": "low" } });
    let (chat, _) = from_messages_request(&object(demanding)).unwrap();
    assert_eq!((&chat["grammar"], chat.get("response_format")), (&json!("x"), None));
}

#[test]
fn en_6_a_form_in_the_field_of_chats_is_taken_unless_there_are_two() {
    let form = json!({ "type": "json_object" });
    let mut asked = object(json!({ "model": "m", "max_tokens": 9, "messages": [], "response_format": form }));
    let (chat, names) = from_messages_request(&asked).unwrap();
    assert_eq!((&chat["response_format"], names.place("response_format").as_ref()), (&form, "response_format"));
    let own = json!({ "type": "json_schema", "schema": { "type": "object" } });
    asked.insert("output_config".to_owned(), json!({ "format": own }));
    let error = from_messages_request(&asked).unwrap_err();
    assert_eq!((error.fault, error.field.as_deref()), (DialectFault::Invalid, Some("response_format")));
    assert!(error.message.contains("send 'output_config.format' alone"), "{error}");
}

#[test]
fn rc_23_an_effort_is_heard_unless_the_thinking_is_set() {
    let effort = json!({ "effort": "low" });
    for (thinking, config, expected) in [
        (json!(null), effort.clone(), (None, Some("low"))),
        (json!({ "type": "adaptive" }), effort.clone(), (None, Some("low"))),
        (json!({ "type": "adaptive" }), json!({}), (Some("adaptive"), None)),
        (json!({ "type": "enabled", "budget_tokens": 9 }), effort.clone(), (Some("enabled"), Some("low"))),
        (json!({ "type": "disabled" }), effort, (Some("disabled"), Some("low"))),
    ] {
        let asked =
            json!({ "model": "m", "max_tokens": 9, "messages": [], "thinking": thinking, "output_config": config });
        let (chat, _) = from_messages_request(&object(asked)).unwrap();
        assert_eq!((chat["thinking"]["type"].as_str(), chat["reasoning_effort"].as_str()), expected, "{thinking}");
    }
}

#[test]
fn rc_23_a_claude_model_hears_a_budget_in_a_peers_field() {
    let chat = object(json!({ "messages": [], "thinking_token_budget": 2_048 }));
    assert_eq!(to_messages_request(&chat, "m").unwrap()["thinking"]["budget_tokens"], 2_048);
}

#[test]
fn rc_27_a_whole_answer_comes_back_as_a_chat() {
    let message = json!({
        "type": "message", "content": [
            { "type": "thinking", "thinking": "hm" }, { "type": "text", "text": "Yes." },
            { "type": "tool_use", "id": "t", "name": "look", "input": { "x": 1 } },
        ],
        "stop_reason": "tool_use",
        "usage": { "input_tokens": 5, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 1, "output_tokens": 3 },
    });
    let mut reshape = ChatFromMessages::new(stamp(), &Map::new());
    let chat: Value = serde_json::from_slice(&reshape.whole(200, &message.to_string().into()).unwrap()).unwrap();
    let said = &chat["choices"][0]["message"];
    assert_eq!((&said["content"], &said["reasoning_content"]), (&json!("Yes."), &json!("hm")));
    assert_eq!(said["tool_calls"][0]["function"]["arguments"], "{\"x\":1}");
    assert_eq!(chat["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!((&chat["usage"]["prompt_tokens"], &chat["usage"]["completion_tokens"]), (&json!(8), &json!(3)));
    assert_eq!(reshape.tokens(), Some((8, 3)));
}

const STREAM: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":4,\"output_tokens\":1}}}\n\n\
event: ping\ndata: {\"type\":\"ping\"}\n\n\
event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n\
event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Let\"}}\n\n\
event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n\
event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"look\",\"input\":{}}}\n\n\
event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"x\\\"\"}}\n\n\
event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\":1}\"}}\n\n\
event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"},\"usage\":{\"output_tokens\":9}}\n\n\
event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

#[test]
fn rc_27_a_stream_comes_back_as_a_chat_stream_and_back_again() {
    let chat = object(json!({ "stream_options": { "include_usage": true } }));
    let (events, text) = through(&mut ChatFromMessages::new(stamp(), &chat), STREAM);
    assert!(text.ends_with("data: [DONE]\n\n") && text.contains(": ping\n\n"), "{text}");
    let arguments: String = events
        .iter()
        .filter_map(|(_, event)| event.pointer("/choices/0/delta/tool_calls/0/function/arguments")?.as_str())
        .collect();
    assert_eq!(arguments, "{\"x\":1}");
    let finish: Vec<_> = events.iter().filter_map(|(_, e)| e.pointer("/choices/0/finish_reason")?.as_str()).collect();
    assert_eq!(finish, ["tool_calls"]);
    assert_eq!(events.last().unwrap().1["usage"]["total_tokens"], 13);

    let (back, _) = through(&mut MessagesFromChat::new(stamp(), Names::default()), &text);
    let names: Vec<&str> = back.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "ping").collect();
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let last = &back[back.len() - 2].1;
    assert_eq!((&last["delta"]["stop_reason"], &last["usage"]["output_tokens"]), (&json!("tool_use"), &json!(9)));
}

#[test]
fn rc_27_a_stream_that_is_cut_or_fails_is_an_error() {
    let mut cut = ChatFromMessages::new(stamp(), &Map::new());
    through(&mut cut, &STREAM[..STREAM.len() / 2]);
    assert!(cut.failure().unwrap().message.contains("middle"));
    assert_eq!(cut.failure(), None, "an error is told once");
    let failed = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    let mut broken = ChatFromMessages::new(stamp(), &Map::new());
    let (events, text) = through(&mut broken, failed);
    assert_eq!(broken.failure().unwrap().fault, DialectFault::Provider(ProviderFault::Overloaded));
    assert_eq!((events.len(), text.as_str()), (0, ""));
}

#[test]
fn rc_27_errors_say_who_is_to_blame_and_when_to_come_back() {
    let body = |kind: &str, message: &str| {
        json!({ "type": "error", "error": { "type": kind, "message": message } }).to_string()
    };
    for (status, kind, message, fault, comes_back) in [
        (429, "rate_limit_error", "slow down", ProviderFault::RateLimited, true),
        (529, "overloaded_error", "busy", ProviderFault::Overloaded, true),
        (401, "authentication_error", "bad key", ProviderFault::KeyRefused, false),
        (404, "not_found_error", "model: x", ProviderFault::UnknownModel, false),
        (400, "invalid_request_error", "prompt is too long: 9 > 8", ProviderFault::PromptTooLong, false),
        (400, "invalid_request_error", "no", ProviderFault::InvalidRequest, false),
        (500, "api_error", "oops", ProviderFault::Failed, false),
    ] {
        let error = cloud_error(status, body(kind, message).as_bytes(), None);
        assert_eq!((error.fault, error.retry_after.is_some()), (DialectFault::Provider(fault), comes_back));
        assert!(error.message.contains(message), "{error}");
    }
}

#[test]
fn en_7_a_messages_request_becomes_a_chat() {
    let (chat, _) = from_messages_request(&object(json!({
        "model": "m", "max_tokens": 9, "system": [{ "type": "text", "text": "S" }], "x_priority": 3,
        "stop_sequences": ["x"], "stream": true, "metadata": { "user_id": "u" },
        "messages": [
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "s" },
                { "type": "tool_use", "id": "t", "name": "look", "input": { "x": 1 } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t", "content": [{ "type": "text", "text": "cat" }] },
                { "type": "text", "text": "So?" },
                { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AA" } },
            ] },
        ],
        "tools": [{ "name": "look", "input_schema": { "type": "object" } }], "tool_choice": { "type": "tool", "name": "look" },
    })))
    .unwrap();
    assert_eq!(
        chat["messages"],
        json!([
            { "role": "system", "content": "S" },
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": null, "tool_calls": [
                { "id": "t", "type": "function", "function": { "name": "look", "arguments": "{\"x\":1}" } },
            ] },
            { "role": "tool", "tool_call_id": "t", "content": "cat" },
            { "role": "user", "content": [
                { "type": "text", "text": "So?" },
                { "type": "image_url", "image_url": { "url": "data:image/png;base64,AA" } },
            ] },
        ])
    );
    assert_eq!((&chat["x_priority"], &chat["stop"], &chat["user"]), (&json!(3), &json!(["x"]), &json!("u")));
    assert_eq!(chat["tool_choice"]["function"]["name"], "look");
    for (body, param) in [
        (json!({ "messages": [] }), "max_tokens"),
        (json!({ "max_tokens": 1 }), "messages"),
        (json!({ "max_tokens": 1, "messages": [{ "role": "system", "content": "" }] }), "messages[0].role"),
        (
            json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": [{ "type": "document" }] }] }),
            "messages[0].content[0]",
        ),
    ] {
        assert_eq!(from_messages_request(&object(body)).unwrap_err().field.as_deref(), Some(param));
    }
}

#[test]
fn en_7_thoughts_of_models_here_come_back_to_them_and_those_of_other_providers_do_not() {
    let thought =
        |text: &str, signature: Value| json!({ "type": "thinking", "thinking": text, "signature": signature });
    let said = |blocks: Value| {
        let asked = json!({ "model": "m", "max_tokens": 9, "messages": [
            { "role": "user", "content": "hi" }, { "role": "assistant", "content": blocks }, { "role": "user", "content": "So?" },
        ] });
        let (chat, names) = from_messages_request(&object(asked.clone())).unwrap();
        check_every_place(&names, &chat, &asked);
        (chat, names)
    };
    let text = json!({ "type": "text", "text": "I look." });
    let call = json!({ "type": "tool_use", "id": "t", "name": "look", "input": {} });
    let redacted = json!({ "type": "redacted_thinking", "data": "x" });
    for (blocks, expected) in [
        (json!([thought("hm", json!("")), text, call]), Some("hm")),
        (json!([{ "type": "thinking", "thinking": "hm" }, call]), Some("hm")),
        (json!([redacted, thought("hm", json!("")), text, thought("then", json!(null)), call]), Some("hm\nthen")),
        (json!([thought("theirs", json!("s")), thought("hm", json!("")), text]), Some("hm")),
        (json!([thought("theirs", json!("s")), redacted, text]), None),
        (json!([thought("", json!("")), text]), None),
    ] {
        let (chat, _) = said(blocks.clone());
        let message = &chat["messages"][1];
        assert_eq!(message.get("reasoning_content").and_then(Value::as_str), expected, "{blocks}");
        // A Claude model takes no thoughts without its own signature.
        let request = to_messages_request(&object(chat.clone()), "claude").unwrap().to_string();
        assert!(!request.contains("hm"), "{request}");
    }
    let (chat, names) = said(json!([text, thought("hm", json!("")), call]));
    assert_eq!(
        (&chat["messages"][1]["role"], &chat["messages"][1]["content"]),
        (&json!("assistant"), &json!("I look."))
    );
    assert_eq!(names.place("messages[1].reasoning_content"), "messages[1].content[1].thinking");
    // An answer that was cut amid its thoughts says nothing.
    let (chat, _) = said(json!([thought("hm", json!(""))]));
    assert_eq!(chat["messages"].as_array().unwrap().len(), 2);
}

#[test]
fn en_7_images_in_results_of_tools_come_in_the_users_message_behind_them() {
    let image = |data: &str| json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": data } });
    let part =
        |data: &str| json!({ "type": "image_url", "image_url": { "url": format!("data:image/png;base64,{data}") } });
    let text = |text: &str| json!({ "type": "text", "text": text });
    let call = |id: &str| json!({ "type": "tool_use", "id": id, "name": "look", "input": {} });
    let result = |id: &str, content: Value| json!({ "type": "tool_result", "tool_use_id": id, "content": content });
    let tool = |id: &str, text: &str| json!({ "role": "tool", "tool_call_id": id, "content": text });
    let user = |content: Value| json!({ "role": "user", "content": content });
    let behind_calls = |turns: Vec<Value>| {
        let mut messages = vec![user(json!("hi")), json!({ "role": "assistant", "content": [call("a"), call("b")] })];
        messages.extend(turns);
        let asked = json!({ "model": "m", "max_tokens": 9, "system": "S", "messages": messages });
        let (chat, names) = from_messages_request(&object(asked.clone())).unwrap();
        check_every_place(&names, &chat, &asked);
        (json!(chat["messages"].as_array().unwrap()[3..]), names)
    };
    let (a, b) = (result("a", json!([text("cat"), image("AA")])), result("b", json!([image("BB"), image("CC")])));
    let tools = [tool("a", "cat"), tool("b", "(image below)")];
    let below = [part("AA"), part("BB"), part("CC")];
    let (chat, names) = behind_calls(vec![user(json!([a, b]))]);
    assert_eq!(chat, json!([tools[0], tools[1], user(json!(below))]));
    let url = names.place("messages[5].content[2].image_url.url");
    assert_eq!(url, "messages[2].content[1].content[1].source.data");
    // Other content of the user's follows the images, and results in several messages are one run.
    let so = json!([below[0], below[1], below[2], text("So?")]);
    for turns in [
        vec![user(json!([a, b, text("So?")]))],
        vec![user(json!([a])), user(json!([b, text("So?")]))],
        vec![user(json!([text("So?"), a, b]))],
    ] {
        assert_eq!(behind_calls(turns).0, json!([tools[0], tools[1], user(so.clone())]));
    }
    let (chat, _) = behind_calls(vec![user(json!([a, b])), user(json!("So?"))]);
    assert_eq!(chat, json!([tools[0], tools[1], user(json!(below)), user(json!("So?"))]));
    let (chat, _) =
        behind_calls(vec![user(json!([a])), json!({ "role": "assistant", "content": [call("b")] }), user(json!([b]))]);
    let roles: Vec<&str> = chat.as_array().unwrap().iter().map(|said| said["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["tool", "user", "assistant", "tool", "user"]);
    for (content, field) in [
        (json!([{ "type": "image", "source": { "type": "url", "url": "https://x" } }]), "content[0].source"),
        (json!([text("x"), { "type": "document" }, image("AA")]), "content"),
        (json!(7), "content"),
    ] {
        let asked = json!({ "max_tokens": 9, "messages": [user(json!([result("a", content)]))] });
        let error = from_messages_request(&object(asked)).unwrap_err();
        assert_eq!(error.field, Some(format!("messages[0].content[0].{field}")), "{error}");
    }
}

#[test]
fn en_7_a_whole_chat_answer_and_an_error_in_the_messages_shape() {
    let chat = json!({
        "choices": [{ "message": { "content": "Yes.", "tool_calls": [{ "id": "t", "function": { "name": "look", "arguments": "{}" } }] },
            "finish_reason": "length" }],
        "usage": { "prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": { "cached_tokens": 1 } },
    });
    let message: Value = serde_json::from_slice(
        &MessagesFromChat::new(stamp(), Names::default()).whole(200, &chat.to_string().into()).unwrap(),
    )
    .unwrap();
    assert_eq!(message["content"][0], json!({ "type": "text", "text": "Yes." }));
    assert_eq!((&message["stop_reason"], &message["usage"]["input_tokens"]), (&json!("max_tokens"), &json!(4)));
    let error = json!({ "error": { "message": "no", "type": "not_found_error", "code": "model_not_found" } });
    let error: Value = serde_json::from_slice(
        &MessagesFromChat::new(stamp(), Names::default()).whole(404, &error.to_string().into()).unwrap(),
    )
    .unwrap();
    assert_eq!(error, json!({ "type": "error", "error": { "type": "not_found_error", "message": "no" } }));
}

#[test]
fn en_5_a_call_that_was_cut_has_no_invented_input() {
    let calls = json!([{ "id": "c", "function": { "name": "look", "arguments": "{\"x\"" } }]);
    for (reason, input) in [("length", json!({})), ("tool_calls", json!({ "arguments": "{\"x\"" }))] {
        let chat = json!({ "choices": [{ "message": { "tool_calls": calls }, "finish_reason": reason }] });
        let whole = MessagesFromChat::new(stamp(), Names::default()).whole(200, &chat.to_string().into()).unwrap();
        let message: Value = serde_json::from_slice(&whole).unwrap();
        assert_eq!(message["content"][0]["input"], input, "{message}");
    }
}

/// The content of a streamed message, as clients read it: block after block, each with its beginning, deltas and end.
fn read_content(stream: &[Value]) -> Vec<Value> {
    let (mut stream_of_chunks, mut reshape) = (String::new(), MessagesFromChat::new(stamp(), Names::default()));
    for delta in stream {
        stream_of_chunks += &format!("data: {}\n\n", json!({ "choices": [{ "delta": delta }] }));
    }
    let (events, _) = through(&mut reshape, &stream_of_chunks);
    let (mut content, mut open) = (Vec::<Value>::new(), None);
    for (name, event) in events {
        let index = event["index"].as_u64();
        match name.as_str() {
            "content_block_start" => {
                assert_eq!((open, index), (None, Some(content.len() as u64)), "{event}");
                open = index;
                content.push(json!([event["content_block"], ""]));
            }
            "content_block_delta" => {
                assert_eq!(open, index, "{event}");
                let delta = &event["delta"];
                let texts = [&delta["text"], &delta["thinking"], &delta["partial_json"]];
                let said = content.last().unwrap()[1].as_str().unwrap().to_owned();
                let more = texts.into_iter().find_map(Value::as_str).unwrap();
                content.last_mut().unwrap()[1] = json!(said + more);
            }
            "content_block_stop" => {
                assert_eq!(open.take(), index, "{event}");
            }
            _ => {}
        }
    }
    assert_eq!(open, None);
    content.iter().map(|block| json!([block[0]["type"], block[0]["id"], block[0]["name"], block[1]])).collect()
}

#[test]
fn en_5_calls_whose_pieces_come_in_turns_are_one_block_each() {
    let begun = |index: u64, id: &str, arguments: &str| {
        let function = json!({ "name": "look", "arguments": arguments });
        json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] })
    };
    let more = |index: u64, arguments: &str| json!({ "tool_calls": [{ "index": index, "function": { "arguments": arguments } }] });
    let block = |id: &str, arguments: &str| json!(["tool_use", id, "look", arguments]);
    let text = |text: &str| json!(["text", null, null, text]);
    let (a, b) = (block("a", "{\"x\":1}"), block("b", "{\"y\":2}"));
    let content = |text: &str| json!({ "content": text });
    for (stream, expected) in [
        (vec![begun(0, "a", "{\"x\""), more(0, ":1}"), begun(1, "b", "{\"y\":2}")], vec![a.clone(), b.clone()]),
        (
            vec![begun(0, "a", "{\"x\""), begun(1, "b", "{\"y\""), more(0, ":1}"), more(1, ":2}")],
            vec![a.clone(), b.clone()],
        ),
        (
            vec![begun(0, "a", ""), begun(1, "b", ""), begun(2, "c", "{}"), more(1, "{\"y\":2}"), more(0, "{\"x\":1}")],
            vec![a.clone(), b.clone(), block("c", "{}")],
        ),
        // White space behind the arguments, and calls that an engine gives the same index.
        (
            vec![begun(0, "a", "{\"x\":1}"), begun(1, "b", "{\"y\""), more(0, " \n"), more(1, ":2}")],
            vec![a.clone(), b.clone()],
        ),
        (vec![begun(0, "a", "{\"x\":1}"), begun(0, "b", "{\"y\""), more(0, ":2}")], vec![a.clone(), b.clone()]),
        (vec![begun(0, "a", "{\"x\""), begun(0, "", ":1}")], vec![a.clone()]),
        // A call without arguments, and one that was cut.
        (vec![begun(0, "a", ""), begun(1, "b", "{\"y\"")], vec![block("a", ""), block("b", "{\"y\"")]),
        // Text amid a call waits for its end.
        (
            vec![
                content("I"),
                content(" look."),
                begun(0, "a", "{\"x\""),
                content("A"),
                content("h"),
                more(0, ":1}"),
                content("!"),
            ],
            vec![text("I look."), a, text("Ah!")],
        ),
        (
            vec![json!({ "tool_calls": [{ "function": { "name": "look", "arguments": "{}" } }] })],
            vec![block("call_0", "{}")],
        ),
    ] {
        assert_eq!(read_content(&stream), expected, "{stream:?}");
    }
}

#[test]
fn rc_27_a_stream_that_is_cut_counts_what_it_told_and_what_had_come() {
    let start =
        "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":9,\"output_tokens\":1}}}\n\n";
    let delta = |field: &str| {
        format!(
            "data: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"{field}\":\"{}\"}}}}\n\n",
            "x".repeat(20)
        )
    };
    let mut reshape = ChatFromMessages::new(stamp(), &Map::new());
    assert_eq!(reshape.tokens(), None);
    reshape.piece(start.as_bytes());
    assert_eq!(reshape.tokens(), Some((9, 1)));
    for field in ["text", "thinking", "partial_json"] {
        reshape.piece(delta(field).as_bytes());
    }
    assert_eq!(reshape.tokens(), Some((9, 15)), "four bytes for a token");
    reshape.piece(b"data: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":6}}\n\n");
    assert_eq!(reshape.tokens(), Some((9, 6)), "what is told goes before what is guessed");
}

#[test]
fn en_6_en_7_every_field_of_a_translation_is_named_as_the_client_named_it() {
    let everything = |format: &str| {
        let mut asked = json!({
            "model": "m", "max_tokens": 9, "system": [{ "type": "text", "text": "S" }], "keep_alive": "5m", "temperature": 1,
            "top_p": 0.5, "top_k": 4, "stream": true, "thinking": { "type": "enabled", "budget_tokens": 9 },
            "stop_sequences": ["x"], "metadata": { "user_id": "u" }, "continue_final_message": false, "grammar": "x",
            "cache_prompt": false, "cache_salt": "s", "thinking_token_budget": 7,
            "messages": [
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "s" },
                    { "type": "text", "text": "I look." },
                    { "type": "tool_use", "id": "t", "name": "look", "input": { "x": 1 } },
                    { "type": "tool_use", "id": "u", "name": "look", "input": {} },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t", "content": [{ "type": "text", "text": "cat" }] },
                    { "type": "tool_result", "tool_use_id": "u", "content": "dog" },
                    { "type": "text", "text": "So?" },
                    { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AA" } },
                ] },
            ],
            "tools": [{ "name": "look", "description": "d", "strict": true, "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "tool", "name": "look", "disable_parallel_tool_use": true },
        });
        let wanted = json!({ "type": "json_schema", "schema": { "type": "object", "properties": {} } });
        asked["output_config"] = json!({ "effort": "low" });
        if format == "output_config" {
            asked["output_config"]["format"] = wanted.clone();
        }
        asked["output_format"] = if format == "output_format" { wanted } else { Value::Null };
        asked
    };
    for format in ["output_config", "output_format"] {
        let asked = everything(format);
        let (chat, names) = from_messages_request(&object(asked.clone())).unwrap();
        check_every_place(&names, &chat, &asked);
        for (ours, _) in super::from_messages_request::FIELDS {
            assert!(chat.get(ours).is_some(), "'{ours}' is not tried");
        }
    }
    let (_, names) = from_messages_request(&object(everything("output_config"))).unwrap();
    for (ours, theirs) in [
        ("response_format", "output_config.format"),
        ("response_format.json_schema.schema.properties", "output_config.format.schema.properties"),
        ("stop", "stop_sequences"),
        ("user", "metadata.user_id"),
        ("messages[0].content", "system"),
        ("messages[1].content", "messages[0].content"),
        ("messages[2].tool_calls[1].function.arguments", "messages[1].content[3].input"),
        ("messages[4].tool_call_id", "messages[2].content[1].tool_use_id"),
        ("messages[5].content[1].image_url.url", "messages[2].content[3].source.data"),
        ("tools[0].function.parameters.type", "tools[0].input_schema.type"),
        ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
        ("thinking", "thinking"),
        ("reasoning_effort", "output_config.effort"),
    ] {
        assert_eq!(names.place(ours), theirs);
    }
    let refused = json!({ "error": { "message": "cannot force 'response_format'", "type": "invalid_request_error" } });
    let mut whole = MessagesFromChat::new(stamp(), names.clone());
    let said: Value = serde_json::from_slice(&whole.whole(400, &refused.to_string().into()).unwrap()).unwrap();
    assert_eq!(said["error"]["message"], "cannot force 'output_config.format'");
    let (events, _) = through(&mut MessagesFromChat::new(stamp(), names), &format!("data: {refused}\n\n"));
    assert_eq!(events[0].1["error"]["message"], "cannot force 'output_config.format'");
}

#[test]
fn en_7_a_messages_request_of_the_wrong_form_is_refused_by_name() {
    let user = |content: Value| json!([{ "role": "user", "content": content }]);
    for (asked, param) in [
        (json!({ "stop_sequences": "x" }), "stop_sequences"),
        (json!({ "tools": {} }), "tools"),
        (json!({ "tools": [{ "name": "f" }], "tool_choice": { "type": "required" } }), "tool_choice.type"),
        (json!({ "tools": [{ "name": "f" }], "tool_choice": "auto" }), "tool_choice.type"),
        (json!({ "messages": user(json!([{ "type": "text", "text": 7 }])) }), "messages[0].content[0].text"),
        (json!({ "messages": user(json!([{ "type": "text" }])) }), "messages[0].content[0].text"),
        (json!({ "messages": user(json!([{ "type": "thinking" }])) }), "messages[0].content[0].thinking"),
    ] {
        let mut body = object(json!({ "model": "m", "max_tokens": 9, "messages": user(json!("?")) }));
        body.extend(object(asked));
        let error = from_messages_request(&body).unwrap_err();
        assert_eq!(error.field.as_deref(), Some(param), "{error}");
        assert!(error.message.contains(&format!("'{param}'")), "{error}");
    }
}

#[test]
fn en_7_a_stop_sequence_that_came_is_told_there_and_back() {
    for stop in [Some("END"), None] {
        let reason = if stop.is_some() { "stop_sequence" } else { "end_turn" };
        let message = json!({ "type": "message", "content": [], "stop_reason": reason, "stop_sequence": stop });
        let chat = ChatFromMessages::new(stamp(), &Map::new()).whole(200, &message.to_string().into()).unwrap();
        let choice: Value = serde_json::from_slice(&chat).unwrap();
        assert_eq!(choice["choices"][0].get("stop_reason").and_then(Value::as_str), stop);
        let back = MessagesFromChat::new(stamp(), Names::default()).whole(200, &chat).unwrap();
        let back: Value = serde_json::from_slice(&back).unwrap();
        assert_eq!((&back["stop_reason"], back["stop_sequence"].as_str()), (&json!(reason), stop));

        let delta = json!({ "type": "message_delta", "delta": { "stop_reason": reason, "stop_sequence": stop } });
        let stream = format!(
            "event: message_delta\ndata: {delta}\n\nevent: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n"
        );
        let mut claude = ChatFromMessages::new(stamp(), &Map::new());
        let mut chat = claude.piece(stream.as_bytes()).to_vec();
        chat.extend_from_slice(&claude.end());
        let mut ours = MessagesFromChat::new(stamp(), Names::default());
        let (events, _) = through(&mut ours, std::str::from_utf8(&chat).unwrap());
        let (_, told) = events.iter().find(|(name, _)| name == "message_delta").unwrap();
        assert_eq!((&told["delta"]["stop_reason"], told["delta"]["stop_sequence"].as_str()), (&json!(reason), stop));
    }
    // vLLM puts a stop token's number into `stop_reason`.
    let chat = json!({ "choices": [{ "message": { "content": "x" }, "finish_reason": "stop", "stop_reason": 7 }] });
    let back = MessagesFromChat::new(stamp(), Names::default()).whole(200, &chat.to_string().into()).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&back).unwrap()["stop_reason"], "end_turn");
}

#[test]
fn en_7_thoughts_of_models_here_have_a_signature_whole_and_streamed() {
    let stamp = || Stamp { id: "msg_1".into(), model: "m".into(), created: 0 };
    let message = json!({ "role": "assistant", "content": "four", "reasoning_content": "hm" });
    let chat = json!({ "choices": [{ "message": message, "finish_reason": "stop" }], "usage": {} });
    let mut whole = MessagesFromChat::new(stamp(), Names::default());
    let answer: Value = serde_json::from_slice(&whole.whole(200, &chat.to_string().into()).unwrap()).unwrap();
    let thought = answer["content"][0].clone();
    assert!(thought["signature"].as_str().is_some_and(|signature| !signature.is_empty()), "{answer}");
    let mut stream = MessagesFromChat::new(stamp(), Names::default());
    let chunk = |delta: Value| format!("data: {}\n\n", json!({ "choices": [{ "delta": delta }] }));
    let mut out = stream.piece(chunk(json!({ "reasoning_content": "hm" })).as_bytes()).to_vec();
    out.extend(stream.piece(chunk(json!({ "content": "four" })).as_bytes()));
    let text = String::from_utf8(out).unwrap();
    let delta = json!({ "type": "signature_delta", "signature": thought["signature"] });
    let event = json!({ "type": "content_block_delta", "index": 0, "delta": delta }).to_string();
    let (before, behind) = text.split_once(&event).unwrap_or_else(|| panic!("{text}"));
    assert!(before.contains("thinking_delta") && behind.contains("content_block_stop"), "{text}");
    // The thought goes back to a model here, and would not to Anthropic.
    let asked = json!({ "model": "m", "max_tokens": 9, "messages": [
        { "role": "user", "content": "?" }, { "role": "assistant", "content": answer["content"] } ] });
    let (chat, _) = from_messages_request(&object(asked)).unwrap();
    assert_eq!(chat["messages"][1]["reasoning_content"], "hm");
}

#[test]
fn en_7_a_stream_of_anthropics_own_passes_and_an_error_of_ours_ends_it() {
    let mut stream =
        MessagesFromChat::new(Stamp { id: String::new(), model: "m".into(), created: 0 }, Names::default());
    let own = "event: ping\ndata: {\"type\":\"ping\"}\n\nevent: message_start\ndata: {\"type\":\"message_start\"}\n\n\
               event: new\ndata: {\"type\":\"new\",\"choices\":[]}\n\n";
    assert_eq!(stream.piece(own.as_bytes()), own);
    assert_eq!(stream.piece(b": working\n\n"), "event: ping\ndata: {\"type\":\"ping\"}\n\n");
    let error = stream
        .piece(b"data: {\"error\":{\"message\":\"cut\",\"type\":\"server_error\",\"code\":\"backend_error\"}}\n\n");
    assert!(error.starts_with(b"event: error\n"), "{error:?}");
    assert_eq!(stream.end(), "");
}
