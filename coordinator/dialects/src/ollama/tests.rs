use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::*;
use crate::names::tests::check_every_place;
use crate::{Names, Reshape, Stamp};

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn stamp() -> Stamp {
    Stamp { id: "1".into(), model: "m".into(), created: 1_720_660_440 }
}

fn elapsed() -> Elapsed {
    Box::new(|| (Duration::from_millis(30), Duration::from_millis(10)))
}

#[test]
fn en_7_a_chat_with_everything_becomes_openais() {
    let body = object(json!({
        "model": "m", "keep_alive": "5m", "think": false, "format": "json",
        "options": { "temperature": 0, "num_predict": 9, "stop": ["x"], "num_ctx": 4096, "seed": null },
        "messages": [
            { "role": "user", "content": "What?", "images": ["/9j/AA"] },
            { "role": "assistant", "content": "", "thinking": "hm", "tool_calls": [{ "function": { "name": "look", "arguments": { "x": 1 } } }] },
            { "role": "tool", "content": "cat" },
        ],
        "tools": [{ "type": "function", "function": { "name": "look" } }],
    }));
    let OllamaRequest::Chat(chat, _) = from_chat(&body).unwrap() else { panic!() };
    assert_eq!(
        chat,
        json!({
            "model": "m", "keep_alive": "5m", "temperature": 0, "max_tokens": 9, "stop": ["x"],
            "stream": true, "stream_options": { "include_usage": true }, "response_format": { "type": "json_object" },
            "chat_template_kwargs": { "enable_thinking": false },
            "messages": [
                { "role": "user", "content": [
                    { "type": "image_url", "image_url": { "url": "data:image/jpeg;base64,/9j/AA" } },
                    { "type": "text", "text": "What?" },
                ] },
                { "role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
                    { "id": "call_1_0", "type": "function", "function": { "name": "look", "arguments": "{\"x\":1}" } },
                ] },
                { "role": "tool", "content": "cat", "tool_call_id": "call_1_0" },
            ],
            "tools": [{ "type": "function", "function": { "name": "look" } }],
        })
    );
}

#[test]
fn en_7_logprobs_and_demands_are_passed_on_and_logprobs_come_back() {
    let asked = json!({ "model": "m", "messages": [{ "role": "user", "content": "?" }], "stream": false,
        "logprobs": true, "top_logprobs": 2, "grammar": "x", "options": { "guided_regex": "y" },
        "tool_choice": "required", "parallel_tool_calls": false });
    let OllamaRequest::Chat(asked, _) = from_chat(&object(asked)).unwrap() else { panic!() };
    assert_eq!((&asked["tool_choice"], &asked["parallel_tool_calls"]), (&json!("required"), &json!(false)));
    assert_eq!((&asked["logprobs"], &asked["top_logprobs"]), (&json!(true), &json!(2)));
    assert_eq!((&asked["grammar"], &asked["guided_regex"]), (&json!("x"), &json!("y")));
    for (given, number) in [(json!({ "logprobs": true }), 0), (json!({ "logprobs": true, "top_logprobs": 3 }), 3)] {
        let mut raw = object(json!({ "model": "m", "prompt": "?", "raw": true }));
        raw.extend(object(given));
        let OllamaRequest::Completion(asked, _) = from_generate(&raw).unwrap() else { panic!() };
        assert_eq!((&asked["logprobs"], asked.get("top_logprobs")), (&json!(number), None));
    }
    let told = json!([{ "token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [] }]);
    let answer = json!({ "choices": [{ "message": { "content": "a" }, "logprobs": { "content": told } }] });
    let mut reshape = OllamaFromChat::new(AnswerShape::Chat, stamp(), Names::default(), elapsed());
    let whole: Value = serde_json::from_slice(&reshape.whole(200, &answer.to_string().into()).unwrap()).unwrap();
    assert_eq!(whole["logprobs"], told);
    let chunk = json!({ "choices": [{ "text": "a", "logprobs": {
        "tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{ "a": -0.5, "b": -1.0 }] } }] });
    let mut reshape = OllamaFromChat::new(AnswerShape::Generate, stamp(), Names::default(), elapsed());
    let line: Value = serde_json::from_slice(&reshape.piece(format!("data: {chunk}\n\n").as_bytes())).unwrap();
    assert_eq!(
        (&line["logprobs"][0]["logprob"], line["logprobs"][0]["top_logprobs"][1]["token"].as_str()),
        (&json!(-0.5), Some("b"))
    );
}

#[test]
fn en_6_a_form_in_the_field_of_chats_is_taken_unless_there_are_two() {
    let form = json!({ "type": "json_object" });
    let asked = |format: Value| {
        object(json!({ "model": "m", "prompt": "p", "messages": [{ "role": "user", "content": "?" }],
            "response_format": form, "format": format, "cache_prompt": false, "cache_salt": "s" }))
    };
    for read in [from_chat as fn(&Map<String, Value>) -> _, from_generate] {
        for nothing in [json!(null), json!("")] {
            let OllamaRequest::Chat(chat, names) = read(&asked(nothing)).unwrap() else { panic!() };
            assert_eq!((&chat["response_format"], names.place("response_format").as_ref()), (&form, "response_format"));
            assert_eq!((&chat["cache_prompt"], &chat["cache_salt"]), (&json!(false), &json!("s")));
        }
        let error = read(&asked(json!("json"))).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("response_format"));
        assert!(error.message.contains("send 'format' alone"), "{error}");
    }
}

#[test]
fn an_empty_prompt_loads_and_keep_alive_0_unloads() {
    for (body, expected) in [
        (json!({ "model": "m" }), OllamaRequest::Load),
        (json!({ "model": "m", "prompt": "" }), OllamaRequest::Load),
        (json!({ "model": "m", "keep_alive": 0 }), OllamaRequest::Unload),
        (json!({ "model": "m", "keep_alive": "0" }), OllamaRequest::Unload),
        (json!({ "model": "m", "keep_alive": -1 }), OllamaRequest::Load),
    ] {
        assert_eq!(from_generate(&object(body.clone())), Ok(expected.clone()), "{body}");
        assert_eq!(from_chat(&object(body.clone())), Ok(expected), "{body}");
    }
}

#[test]
fn generate_is_a_chat_unless_it_is_raw() {
    let OllamaRequest::Chat(chat, _) =
        from_generate(&object(json!({ "model": "m", "prompt": "p", "system": "s", "stream": false }))).unwrap()
    else {
        panic!()
    };
    assert_eq!(chat["messages"], json!([{ "role": "system", "content": "s" }, { "role": "user", "content": "p" }]));
    for (field, value) in [("raw", json!(true)), ("suffix", json!("s"))] {
        let asked = json!({ "model": "m", "prompt": "p", "stream": false, field: value });
        let Ok(OllamaRequest::Completion(asked, _)) = from_generate(&object(asked)) else { panic!() };
        let mut expected = json!({ "model": "m", "prompt": "p", "max_tokens": -1 });
        if field == "suffix" {
            expected["suffix"] = value;
        }
        assert_eq!(asked, expected);
    }
}

#[test]
fn mistakes_are_named() {
    for (body, param) in [
        (json!({}), "model"),
        (json!({ "model": "m", "prompt": 7 }), "prompt"),
        (json!({ "model": "m", "prompt": "p", "suffix": 7 }), "suffix"),
        (json!({ "model": "m", "prompt": "p", "template": "{{ .Prompt }}" }), "template"),
        (json!({ "model": "m", "prompt": "p", "context": [1, 2] }), "context"),
        (json!({ "model": "m", "prompt": "p", "images": "AAAA" }), "images"),
        (json!({ "model": "m", "prompt": "p", "images": ["http://x.example/a.png"] }), "images[0]"),
        (json!({ "model": "m", "prompt": "p", "images": ["AAAA"], "raw": true }), "images"),
        (json!({ "model": "m", "prompt": "p", "format": 7 }), "format"),
        (json!({ "model": "m", "prompt": "p", "options": [] }), "options"),
        (json!({ "model": "m", "prompt": "p", "keep_alive": "soon" }), "keep_alive"),
        (json!({ "model": "m", "prompt": "p", "stream": 1 }), "stream"),
    ] {
        assert_eq!(from_generate(&object(body.clone())).unwrap_err().field.as_deref(), Some(param), "{body}");
    }
    for (message, param) in [
        (json!({ "role": "assistant", "tool_calls": {} }), "messages[0].tool_calls"),
        (json!({ "role": "assistant", "thinking": 7 }), "messages[0].thinking"),
        (json!({ "role": "user", "images": "AAAA" }), "messages[0].images"),
        (json!({ "role": "user", "content": 7 }), "messages[0].content"),
        (json!({ "content": "x" }), "messages[0].role"),
    ] {
        let error = from_chat(&object(json!({ "model": "m", "messages": [message] }))).unwrap_err();
        assert_eq!(error.field.as_deref(), Some(param));
    }
    assert_eq!(
        from_chat(&object(json!({ "model": "m", "messages": [{ "role": "user" }], "tools": {} })))
            .unwrap_err()
            .field
            .as_deref(),
        Some("tools")
    );
    assert!(from_embed(&object(json!({ "model": "m" })), EmbedShape::Several).is_err());
}

#[test]
fn a_stream_comes_as_lines_and_ends_with_what_it_cost() {
    let stream = ": loading\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"Yes\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"look\",\"arguments\":\"{\\\"x\\\"\"}}]}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\":1}\"}}]}}]}\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}],\"timings\":{\"prompt_ms\":2,\"predicted_ms\":4.5}}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
    let mut reshape = OllamaFromChat::new(AnswerShape::Chat, stamp(), Names::default(), elapsed());
    let mut out = Vec::new();
    for piece in stream.as_bytes().chunks(9) {
        out.extend_from_slice(&reshape.piece(piece));
    }
    out.extend_from_slice(&reshape.end());
    let lines: Vec<Value> =
        String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["message"]["thinking"], "hm");
    assert_eq!((&lines[1]["message"]["content"], &lines[1]["done"]), (&json!("Yes"), &json!(false)));
    assert_eq!(lines[2]["message"]["tool_calls"][0]["function"], json!({ "name": "look", "arguments": { "x": 1 } }));
    let last = &lines[3];
    assert_eq!(
        (&last["done"], &last["done_reason"], &last["created_at"]),
        (&json!(true), &json!("length"), &json!("2024-07-11T01:14:00Z"))
    );
    assert_eq!((&last["total_duration"], &last["load_duration"]), (&json!(30_000_000), &json!(10_000_000)));
    assert_eq!((&last["prompt_eval_count"], &last["eval_count"]), (&json!(3), &json!(2)));
    assert_eq!((&last["prompt_eval_duration"], &last["eval_duration"]), (&json!(2_000_000), &json!(4_500_000)));
}

#[test]
fn en_5_a_call_that_was_cut_is_left_out() {
    let call = |arguments: &str| json!({ "function": { "name": "look", "arguments": arguments } });
    let calls = json!([call("{\"x\":1}"), call("{\"x\"")]);
    for (reason, expected) in [("length", 1), ("tool_calls", 2)] {
        let answer = json!({ "choices": [{ "message": { "tool_calls": calls }, "finish_reason": reason }] });
        let mut reshape = OllamaFromChat::new(AnswerShape::Chat, stamp(), Names::default(), elapsed());
        let line: Value = serde_json::from_slice(&reshape.whole(200, &answer.to_string().into()).unwrap()).unwrap();
        assert_eq!(line["message"]["tool_calls"].as_array().map(Vec::len), Some(expected), "{line}");
    }
}

#[test]
fn a_whole_answer_and_an_error() {
    let answer = json!({ "choices": [{ "message": { "content": "Yes" }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 3, "completion_tokens": 1 } });
    let mut reshape = OllamaFromChat::new(AnswerShape::Generate, stamp(), Names::default(), elapsed());
    let line: Value = serde_json::from_slice(&reshape.whole(200, &answer.to_string().into()).unwrap()).unwrap();
    assert_eq!(
        (&line["response"], &line["done"], &line["eval_duration"]),
        (&json!("Yes"), &json!(true), &json!(20_000_000))
    );
    let error = reshape.whole(404, &Bytes::from_static(br#"{"error":{"message":"there is no model 'x'"}}"#)).unwrap();
    assert_eq!(error, r#"{"error":"there is no model 'x'"}"#);
    let mut reshape = OllamaFromChat::new(AnswerShape::Chat, stamp(), Names::default(), elapsed());
    assert_eq!(reshape.piece(b"data: {\"error\":{\"message\":\"gone\"}}\n\n"), "{\"error\":\"gone\"}\n");
    assert_eq!(reshape.end(), "");
}

#[test]
fn moments_are_written_as_rfc_3339_has_them() {
    for (seconds, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_399, "2000-02-28T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (4_102_444_800, "2100-01-01T00:00:00Z"),
    ] {
        assert_eq!(timestamp(seconds), text);
    }
}

#[test]
fn en_6_en_7_every_field_of_a_translation_is_named_as_the_client_named_it() {
    let options = json!({
        "temperature": 1, "top_p": 0.5, "top_k": 4, "min_p": 0.1, "seed": 1, "stop": ["x"], "num_predict": 9,
        "repeat_penalty": 1.1, "repeat_last_n": 9, "presence_penalty": 1, "frequency_penalty": 1, "logit_bias": { "1": 2 },
        "mirostat": 1,
    });
    for (ours, theirs) in super::from_ollama_request::OPTIONS {
        let asked = json!({ "model": "m", "prompt": "p", "options": options });
        let OllamaRequest::Chat(chat, names) = from_generate(&object(asked)).unwrap() else { panic!() };
        assert!(chat.get(ours).is_some(), "'{ours}' is not tried");
        assert_eq!(names.place(ours), format!("options.{theirs}"));
    }
    let schema = json!({ "type": "object", "properties": {} });
    let common = json!({
        "model": "m", "options": options, "stream": true, "keep_alive": "5m", "logprobs": true, "top_logprobs": 2,
        "grammar": "x", "format": schema, "x_priority": 3, "think": "low", "cache_prompt": false, "cache_salt": "s",
        "reasoning_budget": 7,
    });
    let with = |more: Value| {
        let mut body = object(common.clone());
        body.extend(object(more));
        Value::Object(body)
    };
    let image = "/9j/AA";
    let conversation = json!({
        "messages": [
            { "role": "user", "content": "What?", "images": [image, image] },
            { "role": "assistant", "content": "", "thinking": "hm", "tool_calls": [{ "function": { "name": "look", "arguments": { "x": 1 } } }] },
            { "role": "tool", "content": "cat" },
        ],
        "tools": [{ "type": "function", "function": { "name": "look", "parameters": { "type": "object" } } }],
    });
    for (read, asked) in [
        (from_chat as fn(&Map<String, Value>) -> _, with(conversation.clone())),
        (from_chat, with(json!({ "messages": conversation["messages"], "think": true }))),
        (from_generate, with(json!({ "prompt": "p", "system": "s", "images": [image] }))),
        (from_generate, with(json!({ "prompt": "p" }))),
        (from_generate, with(json!({ "prompt": "p", "suffix": "s" }))),
        (from_generate, with(json!({ "prompt": "p", "raw": true, "top_logprobs": null }))),
    ] {
        let (OllamaRequest::Chat(ours, names) | OllamaRequest::Completion(ours, names)) =
            read(&object(asked.clone())).unwrap()
        else {
            panic!()
        };
        check_every_place(&names, &ours, &asked);
        let schema = names.place("response_format.json_schema.schema.properties");
        assert_eq!((names.place("response_format").as_ref(), schema.as_ref()), ("format", "format.properties"));
        assert_eq!(names.place("stop[2]"), "options.stop[2]");
        let refused = json!({ "error": { "message": "'max_tokens' is wrong", "param": "max_tokens" } });
        let mut reshape = OllamaFromChat::new(AnswerShape::Chat, stamp(), names.clone(), elapsed());
        let expected = json!({ "error": "'options.num_predict' is wrong" });
        let said: Value = serde_json::from_slice(&reshape.whole(400, &refused.to_string().into()).unwrap()).unwrap();
        assert_eq!(said, expected);
        let line: Value = serde_json::from_slice(&reshape.piece(format!("data: {refused}\n\n").as_bytes())).unwrap();
        assert_eq!(line, expected);
    }
    for (shape, asked) in [
        (EmbedShape::One, json!({ "model": "m", "prompt": "p", "dimensions": 4 })),
        (EmbedShape::Several, json!({ "model": "m", "input": ["p", "q"], "x_priority": 1 })),
    ] {
        let (ours, names) = from_embed(&object(asked.clone()), shape).unwrap();
        check_every_place(&names, &ours, &asked);
    }
}

#[test]
fn en_7_a_result_of_a_tool_belongs_to_the_call_of_its_name() {
    let call = |name: &str| json!({ "function": { "name": name, "arguments": {} } });
    let result = |name: &str| json!({ "role": "tool", "content": "x", "tool_name": name });
    let asked = json!({ "model": "m", "messages": [
        { "role": "assistant", "tool_calls": [call("look"), call("listen"), call("look")] },
        result("listen"), result("look"), result("look"), { "role": "tool", "content": "x" },
    ] });
    let OllamaRequest::Chat(chat, _) = from_chat(&object(asked)).unwrap() else { panic!() };
    let ids: Vec<&str> = (1..5).map(|index| chat["messages"][index]["tool_call_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["call_0_1", "call_0_0", "call_0_2", "call_4"]);
}
