use super::rig::{Setup, chat};

use model_boss_engine::fake::Script;
use model_boss_protocol::Thinking;
use serde_json::{Value, json};

fn joined(events: &[Value], index: usize) -> String {
    let of_choice = |event: &&Value| event["choices"][0]["index"] == index;
    let text = |event: &Value| event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned();
    events.iter().filter(of_choice).map(text).collect()
}

/// The words by which a model learns the format of calls, where its template lists the tools in a format of its own.
const FORMAT: &str = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nFor each function call, \
    return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": \
    \"<function-name>\", \"arguments\": <args-json-object>}\n</tool_call>";

#[tokio::test]
async fn rc_1_a_chat_answer_has_openais_shape() {
    let rig = Setup::default().start().await;
    let body = chat(json!({})).to_string();
    let answer = rig.send("POST", "/v1/chat/completions", "x-request-id: r-1\r\n", body.as_bytes()).await;
    assert_eq!((answer.status, answer.headers["x-request-id"].as_str()), (200, "r-1"));
    let body = answer.json();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!((body["object"].as_str(), body["model"].as_str()), (Some("chat.completion"), Some("test/tiny")));
    assert_eq!(
        body["choices"],
        json!([{"index": 0, "message": {"role": "assistant", "content": "hello", "refusal": null}, "logprobs": null,
                "finish_reason": "stop"}])
    );
    // <|im_start|>, "user\nhi", <|im_end|>, "\n", <|im_start|>, "assistant\n".
    let prompt = 1 + 7 + 1 + 1 + 1 + 10;
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": prompt, "completion_tokens": 6, "total_tokens": prompt + 6,
               "prompt_tokens_details": {"cached_tokens": 0}})
    );
    assert_eq!((body["timings"]["prompt_n"].as_u64(), body["timings"]["predicted_n"].as_u64()), (Some(21), Some(6)));
}

#[tokio::test]
async fn a_stream_begins_with_the_role_and_ends_with_done() {
    let rig = Setup::saying("né!").start().await;
    let answer = rig.chat(json!({"stream": true})).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    assert_eq!(
        (answer.headers["cache-control"].as_str(), answer.headers["x-accel-buffering"].as_str()),
        ("no-cache", "no")
    );
    let events = answer.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
    let pieces: Vec<_> =
        events[1..4].iter().map(|event| event["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(pieces, ["n", "é", "!"]);
    assert_eq!(events[4]["choices"], json!([{"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop"}]));
    assert_eq!((events.len(), events[4]["timings"]["predicted_n"].as_u64()), (5, Some(5)));
    for event in &events {
        assert_eq!((&event["id"], &event["created"]), (&events[0]["id"], &events[0]["created"]));
        assert_eq!(event["object"], "chat.completion.chunk");
        assert!(event.get("usage").is_none(), "nobody asked for it");
    }
}

#[tokio::test]
async fn usage_comes_in_a_stream_when_asked_for() {
    let rig = Setup::default().start().await;
    let events = rig.chat(json!({"stream": true, "stream_options": {"include_usage": true}})).await.events();
    let (last, others) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["total_tokens"], 27);
    assert_eq!(last["timings"]["prompt_n"], 21);
    assert!(others.iter().all(|event| event["usage"].is_null() && event.get("usage").is_some()));
    assert_eq!(others.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn limits_and_stops_end_answers() {
    let rig = Setup::saying("one two three").start().await;
    let said = async |extra| {
        let body = rig.chat(extra).await.json();
        let choice = &body["choices"][0];
        (
            choice["message"]["content"].as_str().unwrap().to_owned(),
            choice["finish_reason"].as_str().unwrap().to_owned(),
        )
    };
    let said_by = |text: &str, reason: &str| (text.to_owned(), reason.to_owned());
    assert_eq!(said(json!({"max_tokens": 5})).await, said_by("one t", "length"));
    assert_eq!(said(json!({"max_tokens": 5, "max_completion_tokens": 3})).await, said_by("one", "length"));
    assert_eq!(said(json!({"stop": " t"})).await, said_by("one", "stop"));
    assert_eq!(said(json!({"stop": ["xx", "o th"], "max_tokens": null})).await, said_by("one tw", "stop"));
    assert_eq!(said(json!({"logit_bias": {"65": 100}, "max_tokens": 2})).await, said_by("AA", "length"));
}

#[tokio::test]
async fn en_7_the_stop_string_that_came_is_told() {
    let rig = Setup::saying("one two three").start().await;
    for (stop, came) in [(json!(["xx", " t"]), json!(" t")), (json!("four"), Value::Null)] {
        let choice = rig.chat(json!({"stop": stop})).await.json()["choices"][0].take();
        assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &came));
        let text = rig.chat(json!({"stop": stop, "stream": true})).await.text();
        let last = text.lines().filter_map(|line| line.strip_prefix("data: {")).next_back().unwrap();
        let last: Value = serde_json::from_str(&format!("{{{last}")).unwrap();
        assert_eq!((&last["choices"][0]["finish_reason"], &last["choices"][0]["stop_reason"]), (&json!("stop"), &came));
    }
}

#[tokio::test]
async fn several_choices_have_their_own_random_numbers_and_seeds_repeat() {
    let rig = Setup { script: Script::Hash(128), ..Setup::default() }.start().await;
    let ask = json!({"n": 3, "seed": -7, "temperature": 1.5, "max_tokens": 12});
    let texts = async |ask: &Value| {
        let body = rig.chat(ask.clone()).await.json();
        assert_eq!(body["usage"]["prompt_tokens"], 21, "one prompt counts once");
        assert_eq!(body["usage"]["completion_tokens"], 36);
        let choices = body["choices"].as_array().unwrap().iter();
        choices.map(|choice| choice["message"]["content"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = texts(&ask).await;
    assert!(first[0] != first[1] && first[1] != first[2]);
    assert_eq!(texts(&ask).await, first);
    let mut streamed = ask.clone();
    streamed["stream"] = json!(true);
    let events = rig.chat(streamed).await.events();
    assert_eq!((0..3).map(|index| joined(&events, index)).collect::<Vec<_>>(), first, "streamed or not is the same");
    let mut other = ask;
    other["seed"] = json!(8);
    assert_ne!(texts(&other).await, first);
}

#[tokio::test]
async fn chat_logprobs_list_bytes_and_alternatives() {
    let rig = Setup::saying("é").start().await;
    let body = rig.chat(json!({"logprobs": true, "top_logprobs": 2})).await.json();
    let tokens = body["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!((tokens.len(), &tokens[0]["bytes"], &tokens[1]["bytes"]), (2, &json!([195]), &json!([169])));
    assert_eq!(tokens[0]["top_logprobs"].as_array().unwrap().len(), 2);
    let events = rig.chat(json!({"logprobs": true, "stream": true})).await.events();
    assert_eq!(events[1]["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn completions_take_texts_tokens_and_lists_of_them() {
    let rig = Setup::saying("yes").start().await;
    let ask = async |body: Value| rig.post("/v1/completions", &body).await.json();
    let one = ask(json!({"prompt": "so?"})).await;
    assert!(one["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(one["object"], "text_completion");
    assert_eq!(one["choices"], json!([{"index": 0, "text": "yes", "logprobs": null, "finish_reason": "stop"}]));
    assert_eq!(ask(json!({"prompt": [115, 111, 63]})).await["choices"], one["choices"]);
    let two = ask(json!({"prompt": ["ab", "c"], "n": 2, "echo": true})).await;
    let texts: Vec<_> = two["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["abyes", "abyes", "cyes", "cyes"]);
    assert_eq!(two["usage"]["prompt_tokens"], 3);
    let lists = ask(json!({"prompt": [[97], [98, 99]], "max_tokens": 1})).await;
    assert_eq!(lists["choices"][1]["finish_reason"], "length");
}

#[tokio::test]
async fn completions_report_the_prompt_when_echoed() {
    let rig = Setup { script: Script::Hash(100), ..Setup::default() }.start().await;
    let ask = json!({"prompt": "abc", "echo": true, "logprobs": 1, "max_tokens": 0});
    let body = rig.post("/v1/completions", &ask).await.json();
    let choice = &body["choices"][0];
    assert_eq!((choice["text"].as_str(), choice["finish_reason"].as_str()), (Some("abc"), Some("length")));
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b", "c"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2]));
    assert!(logprobs["token_logprobs"][0].is_null() && logprobs["token_logprobs"][1].as_f64().unwrap() < 0.0);
    assert!(logprobs["top_logprobs"][0].is_null() && logprobs["top_logprobs"][2]["c"].is_number());
    let ask = json!({"prompt": "abc", "echo": true, "logprobs": 0, "max_tokens": 2, "stream": true});
    let events = rig.post("/v1/completions", &ask).await.events();
    assert_eq!(events[0]["choices"][0]["text"], "abc");
    let offsets =
        events.iter().flat_map(|e| e["choices"][0]["logprobs"]["text_offset"].as_array().cloned().unwrap_or_default());
    assert_eq!(json!(offsets.collect::<Vec<_>>()), json!([0, 1, 2, 3, 4]));
}

#[tokio::test]
async fn a_manifest_speaks_where_the_request_is_silent() {
    let rig = Setup { params: json!({"temperature": 0, "max_tokens": 2, "stop": ["x"]}), ..Setup::saying("abxc") };
    let rig = rig.start().await;
    assert_eq!(rig.chat(json!({})).await.json()["choices"][0]["message"]["content"], "ab");
    assert_eq!(rig.chat(json!({"max_tokens": null})).await.json()["usage"]["completion_tokens"], 2);
    let more = rig.chat(json!({"max_tokens": 9, "stop": []})).await.json();
    assert_eq!(more["choices"][0]["message"]["content"], "abxc");
}

#[tokio::test]
async fn templates_see_roles_parts_and_tools() {
    let rig = Setup::default().start().await;
    // As text, because the order of keys matters to models and `json!` sorts them.
    let body = r#"{"messages": [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "4"}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d"}}]}"#;
    let prompt = rig.send("POST", "/apply-template", "", body.as_bytes()).await.json();
    let turn = |role: &str, content: &str| format!("<|im_start|>{role}\n{content}<|im_end|>\n");
    let turns = [
        turn("system", &format!("be brief\n\n{FORMAT}")),
        turn("user", "a\nb"),
        turn("assistant", "no"),
        turn("assistant", "C:{\"b\": 1, \"a\": 2}"),
        turn("tool", "4"),
    ]
    .concat();
    let tools = r#"T:[{"type": "function", "function": {"name": "f", "description": "d"}}]"#;
    assert_eq!(prompt["prompt"], format!("{turns}{tools}<|im_start|>assistant\n"));
}

#[tokio::test]
async fn rc_23_a_model_without_a_template_gets_a_plain_transcript() {
    let rig = Setup { template: None, ..Setup::saying("fine\nuser: and you?") }.start().await;
    let prompt = rig.post("/apply-template", &chat(json!({}))).await.json();
    assert_eq!(prompt["prompt"], "user: hi\nassistant:");
    assert_eq!(rig.chat(json!({})).await.json()["choices"][0]["message"]["content"], "fine");
}

#[tokio::test]
async fn en_7_tokens_go_both_ways() {
    let rig = Setup::default().start().await;
    let tokens = rig.post("/tokenize", &json!({"content": "hé<s>"})).await.json();
    assert_eq!(tokens, json!({"tokens": [104, 195, 169, 256], "count": 4, "max_model_len": 400}));
    let text = rig.post("/v1/detokenize", &json!({"tokens": tokens["tokens"]})).await.json();
    assert_eq!(text["content"], "hé<s>");
    assert_eq!(rig.post("/v1/tokenize", &chat(json!({}))).await.json()["count"], 21);
}

#[tokio::test]
async fn it_tells_about_itself() {
    let rig = Setup::default().start().await;
    rig.chat(json!({})).await;
    assert_eq!(rig.get("/v1/models").await.json()["data"][0]["id"], "test/tiny");
    assert_eq!(rig.get("/v1/models/test/tiny").await.json()["context_length"], 400);
    assert_eq!(rig.get("/v1/models/test%2Ftiny").await.status, 200);
    assert_eq!(rig.get("/v1/models/other").await.error().1, "model_not_found");
    // The counts of a step are taken when it has ended, which is after its tokens were sent.
    rig.until(|rig| rig.worker.activity.totals().finished == 1 && rig.worker.activity.stats().active == 0).await;
    let stats = rig.get("/stats").await.json();
    assert_eq!((&stats["totals"]["completion_tokens"], &stats["totals"]["finished"]), (&json!(6), &json!(1)));
    assert_eq!((&stats["cpu_features"], &stats["threads"]), (&json!("portable"), &json!(3)));
    assert_eq!(stats["cpu_share"], json!(null));
    let share = json!({ "threads": 2, "nice": 0, "group_nice": 0 });
    rig.share.send_replace(Some(serde_json::from_value(share.clone()).unwrap()));
    assert_eq!(rig.get("/stats").await.json()["cpu_share"], share);
    assert_eq!(rig.get("/health").await.json()["cores"], json!({ "threads": 3, "cores": 3 }));
    let metrics = rig.get("/metrics").await.text();
    for line in [
        "model_boss_worker_completion_tokens_total 6",
        "model_boss_worker_first_token_seconds_count 1",
        "model_boss_worker_token_seconds_count 5",
        "model_boss_worker_sequences_active 0",
        "model_boss_worker_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

/// A script in which `{` and `}` are the tags of thinking, and the turn ends after the text.
fn thinks(text: &str) -> Script {
    let token = |byte| match byte {
        b'{' => 260,
        b'}' => 261,
        byte => u32::from(byte),
    };
    Script::Answer(text.bytes().map(token).chain([259]).collect())
}

#[tokio::test]
async fn rc_23_what_is_thought_comes_as_reasoning_content() {
    let rig = Setup { script: thinks("{\nhm, é\n}\n\nyes"), ..Setup::default() }.start().await;
    let whole = rig.chat(json!({})).await.json();
    let message = json!({"role": "assistant", "content": "yes", "reasoning_content": "hm, é", "refusal": null});
    assert_eq!(whole["choices"][0]["message"], message);
    assert_eq!(whole["usage"]["completion_tokens_details"], json!({"reasoning_tokens": 8}));
    let events = rig.chat(json!({"stream": true})).await.events();
    let delta = |event: &Value, field: &str| event["choices"][0]["delta"][field].as_str().map(str::to_owned);
    let thoughts: String = events.iter().filter_map(|event| delta(event, "reasoning_content")).collect();
    assert_eq!((thoughts.as_str(), joined(&events, 0).as_str()), ("hm, é", "yes"));
    let first_said = events.iter().position(|event| delta(event, "content").is_some_and(|text| !text.is_empty()));
    let last_thought = events.iter().rposition(|event| delta(event, "reasoning_content").is_some());
    assert!(last_thought < first_said, "{events:?}");
    // A text completion is all text.
    let plain = rig.post("/v1/completions", &json!({"prompt": "hi", "max_tokens": 20})).await.json();
    assert_eq!(plain["choices"][0]["text"], "<think>\nhm, é\n</think>\n\nyes");
}

#[tokio::test]
async fn rc_23_a_budget_ends_the_thoughts_streamed_or_not_by_request_or_manifest() {
    // While the end of thinking is forced, the script continues for four tokens.
    let setup = |thinking| Setup { script: thinks("{abcdefgh"), thinking, ..Setup::default() };
    let of = async |rig: &super::rig::Rig, extra: Value| {
        let whole = rig.chat(extra.clone()).await.json();
        let message = &whole["choices"][0]["message"];
        let mut streamed = extra;
        streamed["stream"] = true.into();
        let events = rig.chat(streamed).await.events();
        let thought = |event: &Value| event["choices"][0]["delta"]["reasoning_content"].as_str().map(str::to_owned);
        let thoughts: String = events.iter().filter_map(thought).collect();
        assert_eq!(message["content"], joined(&events, 0), "{whole}");
        assert_eq!(message["reasoning_content"].as_str().unwrap_or_default(), thoughts, "{whole}");
        (thoughts, message["content"].as_str().unwrap().to_owned())
    };
    let told = |thoughts: &str, answer: &str| (thoughts.to_owned(), answer.to_owned());
    let rig = setup(None).start().await;
    assert_eq!(of(&rig, json!({})).await, told("abcdefgh", ""), "no limit");
    for field in [json!(2), json!("2"), json!({"type": "enabled", "budget_tokens": 2})] {
        assert_eq!(of(&rig, json!({"thinking": field})).await, told("ab", "gh"), "{field}");
    }
    for name in ["thinking_budget_tokens", "thinking_token_budget", "reasoning_budget_tokens", "reasoning_budget"] {
        assert_eq!(of(&rig, json!({ name: 2 })).await, told("ab", "gh"), "{name}");
        assert_eq!(of(&rig, json!({ name: -1 })).await, told("abcdefgh", ""), "{name}");
    }
    for off in [json!({"thinking": "off"}), json!({"reasoning_effort": "none"})] {
        assert_eq!(of(&rig, off).await, told("", "efgh"));
    }
    let rig = setup(Some(Thinking::Budget(1))).start().await;
    assert_eq!(of(&rig, json!({})).await, told("a", "fgh"));
    assert_eq!(of(&rig, json!({"thinking": 2})).await, told("ab", "gh"), "the request goes before the manifest");
    assert_eq!(of(&rig, json!({"chat_template_kwargs": {"enable_thinking": true}})).await, told("a", "fgh"));
    let refused = rig.chat(json!({"thinking": "perhaps"})).await;
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("thinking")));
}

#[tokio::test]
async fn rc_23_templates_hear_whether_and_how_long_the_model_thinks() {
    let template = "{{ enable_thinking }} {{ thinking }} {{ thinking_budget }} {{ reasoning_effort }}";
    let rig = Setup { template: Some(template), thinking: Some(Thinking::Budget(9)), ..Setup::default() }.start().await;
    let prompt = async |extra: Value| {
        rig.post("/apply-template", &chat(extra)).await.json()["prompt"].as_str().unwrap().to_owned()
    };
    assert_eq!(prompt(json!({})).await, "True True 9 ");
    assert_eq!(prompt(json!({"thinking": false})).await, "False False 0 ");
    assert_eq!(prompt(json!({"reasoning_effort": "low"})).await, "True True 2048 low");
    let own = json!({"chat_template_kwargs": {"enable_thinking": false, "thinking_budget": 3}});
    assert_eq!(prompt(own).await, "False False 3 ");
}

#[tokio::test]
async fn en_4_a_last_answer_goes_on_unless_the_request_says_otherwise() {
    let rig = Setup::default().start().await;
    let user = json!({"role": "user", "content": "hi"});
    let prompt = async |last: Value, more: Value| {
        let mut body = json!({"messages": [user.clone(), last]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rig.post("/apply-template", &body).await.json()["prompt"].as_str().unwrap_or_default().to_owned()
    };
    let begun = json!({"role": "assistant", "content": "One, "});
    let start = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    for flag in [json!({}), json!({"continue_final_message": true, "add_generation_prompt": false})] {
        assert_eq!(prompt(begun.clone(), flag).await, format!("{start}One, "));
    }
    let parts = json!({"role": "assistant", "content": [{"type": "text", "text": "One, "}]});
    assert_eq!(prompt(parts, json!({})).await, format!("{start}One, "));
    let closed = format!("{start}One, <|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(prompt(begun.clone(), json!({"continue_final_message": false})).await, closed);
    for other in [json!({"role": "assistant", "content": ""}), json!({"role": "user", "content": "and?"})] {
        assert!(prompt(other, json!({})).await.ends_with("<|im_end|>\n<|im_start|>assistant\n"));
    }
    let call =
        json!({"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]});
    assert!(prompt(call, json!({})).await.ends_with("<|im_end|>\n<|im_start|>assistant\n"));
    let alone = json!({"messages": [begun]});
    assert!(rig.post("/apply-template", &alone).await.text().contains("<|im_end|>"));
}

#[tokio::test]
async fn en_4_a_message_without_content_reaches_the_template_as_nothing() {
    let template = "{% for m in messages %}{{ m.role }}:{% if m.content is none %}(none){% else %}{{ m.content }}{% endif %};{% endfor %}";
    let calls = json!([{"function": {"name": "f", "arguments": "{}"}}]);
    let body = json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null},
        {"role": "assistant", "content": null, "tool_calls": calls}, {"role": "tool", "content": "r"}]});
    for (template, expected) in [
        (template, "user:hi;assistant:(none);assistant:(none);tool:r;"),
        ("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", "user:hi;assistant:;assistant:;tool:r;"),
        (
            "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}",
            "user:hi;assistant:;assistant:;tool:r;",
        ),
        ("{% for m in messages %}{{ m.content | trim }};{% endfor %}", "hi;;;r;"),
        ("{% for m in messages %}{% if m.content == none %}(none){% endif %};{% endfor %}", ";(none);(none);;"),
    ] {
        // A template that writes calls gets them as they are.
        let template = format!("{template}{{# tool_calls #}}").leak() as &'static str;
        let rig = Setup { template: Some(template), ..Setup::default() }.start().await;
        let answer = rig.post("/apply-template", &body).await;
        assert_eq!(answer.json()["prompt"], expected, "{template}: {}", answer.text());
    }
}

#[tokio::test]
async fn en_7_no_limit_and_no_stop_are_said_in_the_ways_of_other_servers() {
    let rig = Setup::saying("one two three four five six seven eight nine ten").start().await;
    for body in
        [json!({"max_tokens": -1}), json!({"max_completion_tokens": -1, "stop": ""}), json!({"stop": ["", "xyz"]})]
    {
        let answer = rig.chat(body).await.json();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    }
    let long = rig.post("/v1/completions", &json!({"prompt": "p", "max_tokens": -1})).await.json();
    assert_eq!(long["choices"][0]["finish_reason"], "stop", "{long}");
    let short = rig.post("/v1/completions", &json!({"prompt": "p"})).await.json();
    assert_eq!(
        (&short["choices"][0]["finish_reason"], &short["usage"]["completion_tokens"]),
        (&json!("length"), &json!(16))
    );
}

#[tokio::test]
async fn en_7_a_stream_counts_from_its_first_chunk_on_where_that_is_asked_for() {
    let rig = Setup::saying("one two three").start().await;
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = rig.chat(json!({"stream": true, "stream_options": options})).await.events();
    let count = |event: &Value, name: &str| event["usage"][name].as_u64().unwrap();
    let prompt = count(&events[0], "prompt_tokens");
    assert!(prompt > 0, "{events:?}");
    assert!(events.iter().all(|event| count(event, "prompt_tokens") == prompt), "{events:?}");
    let counts: Vec<u64> = events.iter().map(|event| count(event, "completion_tokens")).collect();
    assert_eq!(counts[0], 0);
    assert!(counts.is_sorted() && counts[counts.len() - 1] > 2, "{counts:?}");
    assert_eq!(counts[counts.len() - 1], counts[counts.len() - 2]);
}

#[tokio::test]
async fn en_1_a_prompt_is_shared_between_requests_of_one_caller_unless_they_say_no() {
    let rig = Setup::default().start().await;
    let ask = async |caller: &str, extra: Value| {
        let body = chat(extra).to_string();
        let answer = rig.send("POST", "/v1/chat/completions", caller, body.as_bytes()).await;
        assert_eq!((answer.status, &answer.json()["choices"][0]["message"]["content"]), (200, &json!("hello")));
        answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let (me, you) = ("x-caller: 6d65\r\n", "x-caller: 796f75\r\n");
    assert_eq!(ask(me, json!({})).await, 0);
    assert_eq!(ask(me, json!({})).await, 20, "all but the last token");
    assert_eq!(ask(you, json!({})).await, 0);
    assert_eq!(ask("", json!({})).await, 0, "callers without a name are another one");
    assert_eq!(ask(me, json!({"cache_prompt": false})).await, 0);
    assert_eq!(ask(me, json!({"cache_salt": "apart"})).await, 0);
    assert_eq!(ask(me, json!({"cache_prompt": null, "cache_salt": "apart"})).await, 20);
    let wrong = rig.chat(json!({"cache_prompt": "no"})).await;
    assert_eq!((wrong.error().0, wrong.error().2.as_str()), (400, "cache_prompt"));
    let long = rig.chat(json!({"cache_salt": "x".repeat(257)})).await;
    assert_eq!((long.error().0, long.error().2.as_str()), (400, "cache_salt"));
    // A stream that counts says so from its first chunk on.
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = rig.chat(json!({"stream": true, "stream_options": options})).await.events();
    let cached = |event: &Value| event["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(events.iter().all(|event| cached(event) == 20), "{events:?}");
    let metrics = rig.get("/metrics").await.chunks.concat();
    assert!(metrics.contains("model_boss_worker_cached_tokens_total 60"), "{metrics}");
}

#[tokio::test]
async fn en_7_an_answer_goes_on_behind_the_context_where_the_coordinator_says_so() {
    let rig = Setup::default().start().await;
    let body = chat(json!({"ignore_eos": true, "max_tokens": 500})).to_string();
    let ask = async |headers: &str| rig.send("POST", "/v1/chat/completions", headers, body.as_bytes()).await;
    let context = ask("").await.json()["usage"]["total_tokens"].as_u64().unwrap();
    assert!(context < 500, "{context}");
    let answer = ask("x-context-shift: 4\r\n").await.json();
    assert_eq!(answer["usage"]["completion_tokens"], 500, "{answer}");
    let wrong = ask("x-context-shift: some\r\n").await;
    assert_eq!((wrong.error().0, wrong.error().2.as_str()), (400, "x-context-shift"));
}
