use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::*;
use crate::names::tests::check_every_place;
use crate::sse::{SseItem, SseReader};
use crate::{Names, Reshape, Stamp};

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn translated(request: Value) -> ResponsesRequest {
    from_responses_request(&object(request.clone()), &[], "1").unwrap_or_else(|error| panic!("{request}: {error}"))
}

fn stamp() -> Stamp {
    Stamp { id: "resp_1".into(), model: "m".into(), created: 7 }
}

fn tool(name: &str) -> Value {
    json!({ "type": "function", "name": name, "description": "d", "strict": true,
        "parameters": { "type": "object", "properties": {} } })
}

/// A request with every field that is translated.
fn everything() -> Value {
    json!({
        "model": "m", "stream": true, "instructions": "Be brief.", "max_output_tokens": 9, "temperature": 0.5,
        "top_p": 0.9, "top_logprobs": 2, "parallel_tool_calls": false, "user": "u", "x_priority": 3, "seed": 1,
        "reasoning": { "effort": "low", "summary": "auto" }, "include": ["message.output_text.logprobs"],
        "text": { "verbosity": "low", "format": { "type": "json_schema", "name": "n", "strict": true, "description": "d",
            "schema": { "type": "object", "properties": {} } } },
        "tools": [tool("look"), tool("listen")], "tool_choice": { "type": "function", "name": "look" },
        "grammar": "x", "truncation": "auto", "metadata": { "a": "b" }, "cache_prompt": false, "cache_salt": "s",
        "reasoning_budget": 7,
        "input": [
            { "role": "user", "content": "What?" },
            { "type": "message", "role": "user", "content": [
                { "type": "input_text", "text": "This" },
                { "type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low" } ] },
            { "type": "reasoning", "id": "rs_0", "summary": [] },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "I look." }] },
            { "type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}" },
            { "type": "function_call", "call_id": "c2", "name": "listen", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c1", "output": "a cat" },
            { "type": "function_call_output", "call_id": "c2", "output": [{ "type": "input_text", "text": "purr" }] },
        ],
    })
}

#[test]
fn en_7_a_request_with_everything_becomes_a_chat() {
    let request = translated(everything());
    let function = |name: &str| {
        json!({ "type": "function", "function": { "name": name, "description": "d", "strict": true,
            "parameters": { "type": "object", "properties": {} } } })
    };
    let call =
        |id: &str, name: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": "{}" } });
    assert_eq!(
        request.chat,
        json!({
            "model": "m", "stream": true, "stream_options": { "include_usage": true }, "max_tokens": 9, "temperature": 0.5,
            "top_p": 0.9, "logprobs": true, "top_logprobs": 2, "parallel_tool_calls": false, "user": "u", "x_priority": 3,
            "seed": 1, "reasoning_effort": "low", "verbosity": "low", "grammar": "x", "cache_prompt": false,
            "cache_salt": "s", "reasoning_budget": 7,
            "response_format": { "type": "json_schema", "json_schema": { "name": "n", "strict": true, "description": "d",
                "schema": { "type": "object", "properties": {} } } },
            "tools": [function("look"), function("listen")],
            "tool_choice": { "type": "function", "function": { "name": "look" } },
            "messages": [
                { "role": "system", "content": "Be brief." },
                { "role": "user", "content": "What?" },
                { "role": "user", "content": [{ "type": "text", "text": "This" },
                    { "type": "image_url", "image_url": { "url": "data:image/png;base64,AA", "detail": "low" } }] },
                { "role": "assistant", "content": "I look.", "tool_calls": [call("c1", "look"), call("c2", "listen")] },
                { "role": "tool", "tool_call_id": "c1", "content": "a cat" },
                { "role": "tool", "tool_call_id": "c2", "content": "purr" },
            ],
        })
    );
    assert!(request.store && request.context.shortens);
    let ids: Vec<&str> = request.items.iter().map(|item| item["id"].as_str().unwrap()).collect();
    assert_eq!(ids[..3], ["msg_1_i0", "msg_1_i1", "rs_0"]);
    assert_eq!(request.items[0]["content"], json!([{ "type": "input_text", "text": "What?" }]));
    assert_eq!(request.echoed["reasoning"], json!({ "effort": "low", "summary": "auto" }));
    assert_eq!(request.echoed["text"]["format"]["name"], "n");
}

#[test]
fn en_7_every_field_of_a_translation_is_named_as_the_client_named_it() {
    let asked = everything();
    let ResponsesRequest { chat, names, .. } = translated(asked.clone());
    check_every_place(&names, &chat, &asked);
    for (ours, theirs) in [
        ("max_tokens", "max_output_tokens"),
        ("reasoning_effort", "reasoning.effort"),
        ("response_format", "text.format"),
        ("response_format.json_schema.schema.properties.x", "text.format.schema.properties.x"),
        ("messages[0].content", "instructions"),
        ("messages[2].content[1].image_url.url", "input[1].content[1].image_url"),
        ("messages[3].tool_calls[1].function.arguments", "input[5].arguments"),
        ("tools[1].function.parameters.type", "tools[1].parameters.type"),
        ("messages", "input"),
    ] {
        assert_eq!(names.place(ours), theirs);
    }
    for asked in [
        json!({ "model": "m", "input": "What?" }),
        json!({ "model": "m", "input": [{ "role": "user", "content": "?" }] }),
    ] {
        let ResponsesRequest { chat, names, .. } = translated(asked.clone());
        check_every_place(&names, &chat, &asked);
    }
}

#[test]
fn an_earlier_response_comes_first_but_for_its_instructions() {
    let earlier = [
        json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "1" }] }),
        json!({ "type": "reasoning", "content": [{ "type": "reasoning_text", "text": "hm" }] }),
        json!({ "type": "function_call", "call_id": "c", "name": "look", "arguments": "{}" }),
    ];
    let asked = json!({ "model": "m", "instructions": "new", "previous_response_id": "resp_0", "store": false,
        "input": [{ "type": "function_call_output", "call_id": "c", "output": "cat" }] });
    let request = from_responses_request(&object(asked.clone()), &earlier, "1").unwrap();
    let roles: Vec<&str> =
        request.chat["messages"].as_array().unwrap().iter().map(|said| said["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool"]);
    assert_eq!(request.chat["messages"][2]["reasoning_content"], "hm");
    assert_eq!(request.names.place("messages[2].reasoning_content"), "previous_response_id");
    assert_eq!(request.items.len(), 1, "only its own");
    assert!(!request.store);
    assert_eq!(request.names.place("messages[2].tool_calls[0].function.name"), "previous_response_id.name");
    assert_eq!(previous_response(&object(asked)), Ok(Some("resp_0")));
}

#[test]
fn en_7_thoughts_come_back_with_the_text_and_the_calls_that_followed_them() {
    let user = json!({ "role": "user", "content": "?" });
    let thought = |text: &str| {
        json!({ "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": null,
            "content": [{ "type": "reasoning_text", "text": text }] })
    };
    let theirs = json!({ "type": "reasoning", "summary": [{ "type": "summary_text", "text": "x" }],
        "encrypted_content": "AAAA", "content": null });
    let text =
        json!({ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "I look." }] });
    let call = |id: &str| json!({ "type": "function_call", "call_id": id, "name": "look", "arguments": "{}" });
    let result = |id: &str| json!({ "type": "function_call_output", "call_id": id, "output": "cat" });
    for (items, expected) in [
        (json!([user, thought("a"), text, call("1"), result("1")]), json!([null, "a", null])),
        (json!([user, thought("a"), call("1"), call("2"), result("1"), result("2")]), json!([null, "a", null, null])),
        (json!([user, thought("a"), thought("b"), text]), json!([null, "a\nb"])),
        (json!([user, thought("a"), text, thought("b"), call("1"), result("1")]), json!([null, "a\nb", null])),
        (json!([user, thought("a"), call("1"), result("1"), thought("b"), text]), json!([null, "a", null, "b"])),
        (json!([user, theirs, text]), json!([null, null])),
        (json!([user, { "type": "reasoning" }, thought(""), text]), json!([null, null])),
        // An answer that was cut amid its thoughts says nothing.
        (json!([user, thought("a"), user, text]), json!([null, null, null])),
        (json!([user, thought("a")]), json!([null])),
    ] {
        let asked = json!({ "model": "m", "input": items });
        let ResponsesRequest { chat, names, .. } = translated(asked.clone());
        check_every_place(&names, &chat, &asked);
        let thoughts: Vec<Value> = chat["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|said| said.get("reasoning_content").cloned().unwrap_or_default())
            .collect();
        assert_eq!(json!(thoughts), expected, "{items}");
    }
    let asked = json!({ "model": "m", "input": [user, theirs, thought("a"), call("1"), result("1")] });
    assert_eq!(translated(asked).names.place("messages[1].reasoning_content"), "input[2]");
}

#[test]
fn en_7_images_in_results_of_tools_come_in_a_message_behind_them() {
    let user = json!({ "role": "user", "content": "?" });
    let image = |data: &str| json!({ "type": "input_image", "image_url": format!("data:image/png;base64,{data}"), "detail": "low" });
    let part = |data: &str| json!({ "type": "image_url", "image_url": { "url": format!("data:image/png;base64,{data}"), "detail": "low" } });
    let call = |id: &str| json!({ "type": "function_call", "call_id": id, "name": "look", "arguments": "{}" });
    let result = |id: &str, output: Value| json!({ "type": "function_call_output", "call_id": id, "output": output });
    let thought = json!({ "type": "reasoning", "content": [{ "type": "reasoning_text", "text": "hm" }] });
    let text = json!({ "type": "input_text", "text": "cat" });
    let (a, b) = (result("a", json!([text, image("AA")])), result("b", json!([image("BB")])));
    let tools = [
        json!({ "role": "tool", "tool_call_id": "a", "content": "cat" }),
        json!({ "role": "tool", "tool_call_id": "b", "content": "(image below)" }),
    ];
    let below = json!({ "role": "user", "content": [part("AA"), part("BB")] });
    let said = json!({ "role": "assistant", "content": "Cats." });
    let thoughtful = json!({ "role": "assistant", "content": "Cats.", "reasoning_content": "hm" });
    for (more, behind) in [
        (json!([]), json!([])),
        (json!([user]), json!([user])),
        (json!([thought, said, user]), json!([thoughtful, user])),
    ] {
        let mut items = vec![user.clone(), call("a"), call("b"), a.clone(), b.clone()];
        items.extend(more.as_array().unwrap().clone());
        let asked = json!({ "model": "m", "instructions": "S", "input": items });
        let ResponsesRequest { chat, names, .. } = translated(asked.clone());
        check_every_place(&names, &chat, &asked);
        let mut expected = vec![tools[0].clone(), tools[1].clone(), below.clone()];
        expected.extend(behind.as_array().unwrap().clone());
        assert_eq!(chat["messages"].as_array().unwrap()[3..], expected, "{more}");
        assert_eq!(names.place("messages[5].content[1].image_url.url"), "input[4].output[0].image_url");
    }
    let earlier = [user.clone(), call("a"), a];
    let asked = object(json!({ "model": "m", "input": "So?", "previous_response_id": "resp_0" }));
    let request = from_responses_request(&asked, &earlier, "1").unwrap();
    let roles: Vec<&str> =
        request.chat["messages"].as_array().unwrap().iter().map(|said| said["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "user", "user"]);
}

#[test]
fn en_7_what_only_openais_servers_have_is_refused_by_name() {
    let with = |more: Value| {
        let mut request = object(json!({ "model": "m", "input": "?" }));
        request.extend(object(more));
        request
    };
    for (more, field) in [
        (json!({ "background": true }), "background"),
        (json!({ "conversation": "conv_1" }), "conversation"),
        (json!({ "prompt": { "id": "pmpt_1" } }), "prompt"),
        (json!({ "tools": [tool("look"), { "type": "web_search" }] }), "tools[1]"),
        (json!({ "tools": [{ "type": "custom", "name": "x" }] }), "tools[0]"),
        (json!({ "tool_choice": { "type": "file_search" } }), "tool_choice"),
        (json!({ "tool_choice": { "type": "custom", "name": "x" } }), "tool_choice"),
        (
            json!({ "tool_choice": { "type": "allowed_tools", "tools": [{ "type": "web_search" }] } }),
            "tool_choice.tools[0]",
        ),
        (json!({ "input": [{ "type": "web_search_call" }] }), "input[0]"),
        (json!({ "input": [{ "type": "custom_tool_call", "name": "x", "input": "?" }] }), "input[0]"),
        (json!({ "input": [{ "type": "item_reference", "id": "x" }] }), "input[0]"),
        (
            json!({ "input": [{ "type": "function_call_output", "output": [{ "type": "input_image", "file_id": "f" }] }] }),
            "input[0].output[0]",
        ),
        (
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_file", "file_id": "f" }] }] }),
            "input[0].content[0]",
        ),
    ] {
        match from_responses_request(&with(more.clone()), &[], "1") {
            Err(ResponsesRefusal::NotHere { field: named, message }) => {
                assert_eq!(named, field, "{more}");
                assert!(message.contains(field), "{message}");
            }
            other => panic!("{more}: {other:?}"),
        }
    }
    for (more, field) in [
        (json!({ "input": null }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": [7] }), "input[0]"),
        (json!({ "input": [{ "role": "robot", "content": "x" }] }), "input[0].role"),
        (json!({ "input": [{ "role": "user", "content": 7 }] }), "input[0].content"),
        (json!({ "input": [{ "role": "user", "content": [{ "type": "input_text" }] }] }), "input[0].content[0].text"),
        (json!({ "input": [{ "role": "user", "content": [{ "type": "odd" }] }] }), "input[0].content[0].type"),
        (json!({ "input": [{ "type": "function_call_output", "output": 7 }] }), "input[0].output"),
        (
            json!({ "input": [{ "type": "function_call_output", "output": [{ "type": "input_audio" }] }] }),
            "input[0].output",
        ),
        (json!({ "instructions": 7 }), "instructions"),
        (json!({ "tools": {} }), "tools"),
        (json!({ "tool_choice": { "type": "allowed_tools" } }), "tool_choice.tools"),
        (json!({ "include": "x" }), "include"),
        (json!({ "store": "no" }), "store"),
        (json!({ "truncation": "yes" }), "truncation"),
        (json!({ "text": { "format": { "type": "xml" } } }), "text.format.type"),
        (json!({ "text": { "format": { "type": "json_schema" } } }), "text.format.schema"),
    ] {
        match from_responses_request(&with(more.clone()), &[], "1") {
            Err(ResponsesRefusal::Malformed { field: named, .. }) => assert_eq!(named, field, "{more}"),
            other => panic!("{more}: {other:?}"),
        }
    }
    let custom = from_responses_request(&with(json!({ "tools": [{ "type": "custom", "name": "x" }] })), &[], "1");
    let message = custom.unwrap_err().to_string();
    assert!(message.contains("free text") && message.contains("function"), "{message}");
}

#[test]
fn en_7_a_choice_among_some_tools_leaves_all_in_the_prompt() {
    for (mode, ours) in [(json!("required"), "required"), (json!("auto"), "auto"), (json!(null), "auto")] {
        let mut allowed = json!({ "type": "allowed_tools", "tools": [{ "type": "function", "name": "b" }] });
        if !mode.is_null() {
            allowed["mode"] = mode;
        }
        let asked = json!({ "model": "m", "input": "?", "tools": [tool("a"), tool("b")], "tool_choice": allowed });
        let ResponsesRequest { chat, names, .. } = translated(asked.clone());
        let offered: Vec<&str> =
            chat["tools"].as_array().unwrap().iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
        assert_eq!(offered, ["a", "b"]);
        let only = json!({ "mode": ours, "tools": [{ "type": "function", "function": { "name": "b" } }] });
        assert_eq!(chat["tool_choice"], json!({ "type": "allowed_tools", "allowed_tools": only }));
        assert_eq!(names.place("tool_choice.allowed_tools.tools[0].function.name"), "tool_choice.tools[0]");
        if !asked["tool_choice"]["mode"].is_null() {
            check_every_place(&names, &chat, &asked);
        }
    }
}

#[test]
fn en_7_log_probabilities_come_where_they_are_included_or_alternatives_are_wanted() {
    let included = json!(["message.output_text.logprobs"]);
    for (include, top, expected, place) in [
        (json!(null), json!(3), (json!(true), json!(3)), "top_logprobs"),
        (json!([]), json!(3), (json!(true), json!(3)), "top_logprobs"),
        (json!(null), json!(0), (json!(null), json!(null)), "logprobs"),
        (json!(null), json!(null), (json!(null), json!(null)), "logprobs"),
        (included.clone(), json!(null), (json!(true), json!(null)), "include"),
        (included, json!(0), (json!(true), json!(0)), "include"),
        // As Codex asks each model, with `store: false`.
        (json!(["reasoning.encrypted_content"]), json!(null), (json!(null), json!(null)), "logprobs"),
    ] {
        let asked = json!({ "model": "m", "input": "?", "store": false, "include": include, "top_logprobs": top });
        let ResponsesRequest { chat, names, .. } = translated(asked);
        assert_eq!((chat["logprobs"].clone(), chat["top_logprobs"].clone()), expected, "{include} {top}");
        assert_eq!(names.place("logprobs"), place);
    }
}

#[test]
fn en_6_a_form_in_the_field_of_chats_is_taken_unless_there_are_two() {
    let form = json!({ "type": "regex", "pattern": "[0-9]+" });
    let asked = |text: Value| json!({ "model": "m", "input": "?", "response_format": form, "text": text });
    for text in [json!(null), json!({ "verbosity": "low" }), json!({ "format": { "type": "text" } })] {
        let ResponsesRequest { chat, names, echoed, .. } = translated(asked(text));
        assert_eq!((&chat["response_format"], names.place("response_format").as_ref()), (&form, "response_format"));
        assert_eq!(echoed["text"]["format"], form);
    }
    let two = asked(json!({ "format": { "type": "json_object" } }));
    match from_responses_request(&object(two), &[], "1") {
        Err(ResponsesRefusal::Malformed { field, message }) => {
            assert_eq!(field, "response_format");
            assert!(message.contains("send 'text.format' alone"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

fn reshape(on_end: Option<OnResponse>) -> ResponsesFromChat {
    ResponsesFromChat::new(stamp(), Names::default(), translated(json!({ "model": "m", "input": "?" })).echoed, on_end)
}

/// The events of a stream, each checked for its name and number.
fn events(bytes: &[u8]) -> Vec<Value> {
    let mut numbered = Vec::new();
    for item in SseReader::default().push(bytes) {
        if let SseItem::Event { name, data } = item {
            let event: Value = serde_json::from_str(&data).unwrap();
            assert_eq!(event["type"], name.as_str());
            assert_eq!(event["sequence_number"], numbered.len());
            numbered.push(event);
        }
    }
    numbered
}

const STREAM: &str = ": loading\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
    data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"h\"}}]}\n\n\
    data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"m\"}}]}\n\n\
    data: {\"choices\":[{\"delta\":{\"content\":\"Yes\"},\"logprobs\":{\"content\":[{\"token\":\"Yes\"}]}}]}\n\n\
    data: {\"choices\":[{\"delta\":{\"content\":\"!\"}}]}\n\n\
    data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"look\",\"arguments\":\"{\\\"x\\\"\"}}]}}]}\n\n\
    data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":1,\"id\":\"b\",\"function\":{\"name\":\"listen\",\"arguments\":\"{}\"}}]}}]}\n\n\
    data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\":1}\"}}]}}]}\n\n\
    data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":1}}}\n\n\
    data: [DONE]\n\n";

#[test]
fn en_7_a_stream_comes_as_typed_events_however_it_is_cut() {
    let mut whole: Option<Vec<Value>> = None;
    for size in [1, 7, 50, STREAM.len()] {
        let (kept, keep) = std::sync::mpsc::channel();
        let mut reshape = reshape(Some(Box::new(move |response: &Value| kept.send(response.clone()).unwrap())));
        let mut out = Vec::new();
        for piece in STREAM.as_bytes().chunks(size) {
            out.extend_from_slice(&reshape.piece(piece));
        }
        out.extend_from_slice(&reshape.end());
        assert!(out.starts_with(b": loading\n\n"), "comments keep the connection alive");
        let events = events(&out);
        assert_eq!(keep.recv().unwrap(), events.last().unwrap()["response"]);
        assert_eq!(*whole.get_or_insert_with(|| events.clone()), events, "in pieces of {size}");
    }
    let events = whole.unwrap();
    let names: Vec<&str> =
        events.iter().map(|event| event["type"].as_str().unwrap().strip_prefix("response.").unwrap()).collect();
    assert_eq!(
        names,
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ]
    );
    let response = &events.last().unwrap()["response"];
    assert_eq!((&response["id"], &response["status"]), (&json!("resp_1"), &json!("completed")));
    let output = response["output"].as_array().unwrap();
    assert_eq!(output[0]["content"], json!([{ "type": "reasoning_text", "text": "hm" }]));
    assert_eq!(output[1]["content"][0]["text"], "Yes!");
    assert_eq!(output[1]["content"][0]["logprobs"], json!([{ "token": "Yes" }]));
    assert_eq!((&output[2]["arguments"], &output[2]["call_id"]), (&json!("{\"x\":1}"), &json!("a")));
    assert_eq!((&output[3]["name"], &output[3]["status"]), (&json!("listen"), &json!("completed")));
    assert_eq!((&events[2]["item"]["id"], &events[4]["item_id"]), (&output[0]["id"], &output[0]["id"]));
    let usage = json!({ "input_tokens": 3, "input_tokens_details": { "cached_tokens": 1 }, "output_tokens": 2,
        "output_tokens_details": { "reasoning_tokens": 0 }, "total_tokens": 5 });
    assert_eq!(response["usage"], usage);
}

#[test]
fn en_7_a_whole_answer_has_the_output_of_its_stream() {
    let answer = json!({ "choices": [{ "finish_reason": "length", "message": {
        "reasoning_content": "hm", "content": "Yes!",
        "tool_calls": [{ "id": "a", "function": { "name": "look", "arguments": "{}" } },
            { "id": "b", "function": { "name": "look", "arguments": "{}" } }] } }],
        "usage": { "prompt_tokens": 3, "completion_tokens": 2 } });
    let whole: Value = serde_json::from_slice(&reshape(None).whole(200, &answer.to_string().into()).unwrap()).unwrap();
    let kinds: Vec<&str> =
        whole["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"]);
    assert_eq!(
        (&whole["status"], &whole["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(
        (&whole["object"], &whole["created_at"], &whole["error"]),
        (&json!("response"), &json!(7), &json!(null))
    );
    assert_eq!((&whole["tools"], &whole["tool_choice"], &whole["store"]), (&json!([]), &json!("auto"), &json!(true)));
    assert!(reshape(None).whole(200, &Bytes::from_static(b"{}")).is_err());
}

/// The events of a stream with these pieces of calls, and the response that is kept.
fn calls(pieces: &[Value], finish: &str) -> (Vec<Value>, Value) {
    let (kept, keep) = std::sync::mpsc::channel();
    let mut reshape = reshape(Some(Box::new(move |response: &Value| kept.send(response.clone()).unwrap())));
    let mut out = Vec::new();
    for piece in pieces {
        let chunk = json!({ "choices": [{ "delta": { "tool_calls": [piece] } }] });
        out.extend_from_slice(&reshape.piece(format!("data: {chunk}\n\n").as_bytes()));
    }
    let last = json!({ "choices": [{ "delta": {}, "finish_reason": finish }] });
    out.extend_from_slice(&reshape.piece(format!("data: {last}\n\n").as_bytes()));
    out.extend_from_slice(&reshape.end());
    (events(&out), keep.recv().unwrap())
}

fn begun(index: u64, id: &str, arguments: &str) -> Value {
    json!({ "index": index, "id": id, "function": { "name": "look", "arguments": arguments } })
}

fn more(index: u64, arguments: &str) -> Value {
    json!({ "index": index, "function": { "arguments": arguments } })
}

/// The events' names, each with the index of its item.
fn told(events: &[Value]) -> Vec<String> {
    let of_items = events.iter().filter(|event| event["output_index"].is_u64());
    let short = |event: &Value| event["type"].as_str().unwrap().rsplit('.').take(2).collect::<Vec<_>>().join(" ");
    of_items.map(|event| format!("{} {}", event["output_index"], short(event))).collect()
}

#[test]
fn en_7_a_call_is_done_when_the_next_one_begins() {
    let (events, response) =
        calls(&[begun(0, "a", "{\"x\""), more(0, ":1}"), begun(1, "b", ""), more(0, " "), more(1, "{}")], "tool_calls");
    assert_eq!(
        told(&events),
        [
            "0 added output_item",
            "0 delta function_call_arguments",
            "0 delta function_call_arguments",
            "0 done function_call_arguments",
            "0 done output_item",
            "1 added output_item",
            "1 delta function_call_arguments",
            "1 done function_call_arguments",
            "1 done output_item",
        ]
    );
    let arguments = |index: usize| response["output"][index]["arguments"].as_str().unwrap();
    assert_eq!((arguments(0), arguments(1)), ("{\"x\":1}", "{}"));
}

#[test]
fn en_7_a_call_that_was_cut_is_incomplete_wherever_it_is_told() {
    let (events, kept) = calls(&[begun(0, "a", "{}"), begun(1, "b", "{\"x"), more(1, "\": 1")], "length");
    let told = told(&events);
    assert_eq!(told[told.len() - 2..], ["1 delta function_call_arguments", "1 done output_item"], "it is never run");
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]), (&json!("response.incomplete"), &kept));
    let done: Vec<&Value> = events.iter().filter(|event| event["type"] == "response.output_item.done").collect();
    for (index, (status, arguments)) in [("completed", "{}"), ("incomplete", "{\"x\": 1")].into_iter().enumerate() {
        for item in [&done[index]["item"], &kept["output"][index]] {
            assert_eq!((&item["status"], &item["arguments"]), (&json!(status), &json!(arguments)));
        }
    }
    let calls = json!([{ "id": "a", "function": { "name": "look", "arguments": "{}" } },
        { "id": "b", "function": { "name": "look", "arguments": "{\"x\": 1" } }]);
    for (reason, statuses) in [("length", ["completed", "incomplete"]), ("tool_calls", ["completed", "completed"])] {
        let answer = json!({ "choices": [{ "finish_reason": reason, "message": { "tool_calls": calls } }] });
        let whole = reshape(None).whole(200, &answer.to_string().into()).unwrap();
        let whole: Value = serde_json::from_slice(&whole).unwrap();
        let said: Vec<&str> =
            whole["output"].as_array().unwrap().iter().map(|item| item["status"].as_str().unwrap()).collect();
        assert_eq!(said, statuses, "{reason}");
    }
    let (_, kept) = self::calls(&[begun(0, "a", "{\"x\": 1}")], "length");
    assert_eq!(kept["output"][0]["status"], "completed", "the limit came behind its arguments");
    // A text that was cut is the last item.
    let answer = json!({ "choices": [{ "finish_reason": "length", "message": { "content": "It is" } }] });
    let whole = reshape(None).whole(200, &answer.to_string().into()).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&whole).unwrap()["output"][0]["status"], "incomplete");
}

#[test]
fn en_7_a_conversation_goes_on_without_a_call_that_was_cut() {
    let call = |id: &str, status: &str| {
        let (kind, arguments) = ("function_call", "{");
        json!({ "type": kind, "call_id": id, "name": "look", "arguments": arguments, "status": status })
    };
    let result = |id: &str| json!({ "type": "function_call_output", "call_id": id, "output": "cat" });
    let user = json!({ "type": "message", "role": "user", "content": "?" });
    let earlier = [user.clone(), call("a", "completed"), call("b", "incomplete")];
    let ask = |input: Value| from_responses_request(&object(json!({ "model": "m", "input": input })), &earlier, "1");
    let chat = ask(json!([result("a")])).unwrap().chat;
    assert_eq!(chat["messages"][1]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&chat["messages"][1]["tool_calls"][0]["id"], &chat["messages"][2]["role"]),
        (&json!("a"), &json!("tool"))
    );
    match ask(json!([result("a"), result("b")])) {
        Err(ResponsesRefusal::Malformed { field, message }) => {
            assert_eq!(field, "input[1].call_id");
            assert!(message.contains("was cut"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let own = json!({ "model": "m", "input": [user, call("b", "incomplete")] });
    assert_eq!(translated(own).chat["messages"].as_array().unwrap().len(), 1, "a client may send it itself");
}

#[test]
fn an_error_keeps_its_shape_before_the_stream_and_ends_it_inside() {
    let ResponsesRequest { names, echoed, .. } = translated(everything());
    let error =
        json!({ "error": { "message": "'max_tokens' is wrong", "param": "max_tokens", "code": "invalid_request" } });
    let mut reshape = ResponsesFromChat::new(stamp(), names, echoed, Some(Box::new(|_| panic!("it failed"))));
    let whole: Value = serde_json::from_slice(&reshape.whole(400, &error.to_string().into()).unwrap()).unwrap();
    assert_eq!(whole["error"]["param"], "max_output_tokens");
    let mut out = reshape.piece(b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n").to_vec();
    out.extend_from_slice(&reshape.piece(format!("data: {error}\n\n").as_bytes()));
    out.extend_from_slice(&reshape.piece(b"data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n"));
    out.extend_from_slice(&reshape.end());
    let events = events(&out);
    let failed = events.last().unwrap();
    assert_eq!((&failed["type"], &failed["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(
        failed["response"]["error"],
        json!({ "code": "invalid_request", "message": "'max_output_tokens' is wrong" })
    );
}

#[test]
fn an_answer_without_end_is_given_up() {
    let mut reshape = reshape(None);
    let chunk = format!("data: {}\n\n", json!({ "choices": [{ "delta": { "content": "x".repeat(1 << 20) } }] }));
    let mut last = Bytes::new();
    for _ in 0..17 {
        last = reshape.piece(chunk.as_bytes());
    }
    assert!(String::from_utf8_lossy(&last).contains("response.failed"));
    assert!(reshape.piece(chunk.as_bytes()).is_empty() && reshape.end().is_empty());
}

#[test]
fn items_come_in_pages() {
    let items: Vec<Value> = (0..5).map(|number| json!({ "id": format!("i{number}") })).collect();
    let ids = |page: ItemPage| {
        let ItemList(list) = ItemList::page(items.clone(), &page);
        let ids: Vec<String> =
            list["data"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
        (ids.join(" "), list["has_more"].as_bool().unwrap())
    };
    assert_eq!(ids(ItemPage::default()), ("i4 i3 i2 i1 i0".to_owned(), false));
    let page = ItemPage { order: ItemOrder::Ascending, limit: 2, after: Some("i1".into()) };
    assert_eq!(ids(page), ("i2 i3".to_owned(), true));
}
