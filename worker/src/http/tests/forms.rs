//! Answers that are held to a form, and calls of tools, from the request to the last chunk.

use model_boss_engine::fake::{Script, words};
use serde_json::{Value, json};

use super::rig::{Answer, Setup};

/// A script that never ends an answer by itself: the form has to.
fn talkative() -> Setup {
    Setup { context: 2_000, ..Setup::saying("{}[]\":,0123456789 a quick brown fox jumps over the lazy dog") }
}

fn person() -> Value {
    json!({
        "type": "object", "required": ["name", "ok"], "additionalProperties": false,
        "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}},
    })
}

fn strict(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "person", "strict": true, "schema": schema}})
}

fn content(answer: &Answer) -> String {
    answer.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

fn assert_is_person(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let fields = value.as_object().unwrap();
    assert!(fields.len() == 2 && fields["ok"].is_boolean(), "{text}");
    assert!(fields["name"].as_str().unwrap().chars().count() <= 8, "{text}");
    assert!(!text.contains("\": ") && !text.contains(", \""), "no optional white space: {text}");
}

#[tokio::test]
async fn en_6_every_answer_to_a_strict_schema_is_valid_streamed_and_not_with_several_choices_and_logprobs() {
    let rig = talkative().start().await;
    for temperature in [0.0, 1.5] {
        let body = json!({"response_format": strict(&person()), "n": 3, "temperature": temperature, "logprobs": true,
            "top_logprobs": 3, "seed": 7, "presence_penalty": 1.5, "logit_bias": {"33": 100}});
        let answer = rig.chat(body.clone()).await;
        let choices = answer.json()["choices"].as_array().cloned().unwrap_or_else(|| panic!("{answer:?}"));
        assert_eq!(choices.len(), 3);
        for choice in &choices {
            assert_eq!(choice["finish_reason"], "stop", "{choice}");
            assert_is_person(choice["message"]["content"].as_str().unwrap());
            let told = choice["logprobs"]["content"].as_array().unwrap();
            let text: String = told.iter().map(|token| token["token"].as_str().unwrap()).collect();
            assert_eq!(text, choice["message"]["content"], "every token of the answer is reported");
            assert!(told.iter().all(|token| token["logprob"].as_f64().unwrap() > -9_000.0), "{told:?}");
        }
        let mut streamed = body;
        streamed["stream"] = json!(true);
        let mut texts = vec![String::new(); 3];
        for event in rig.chat(streamed).await.events() {
            for choice in event["choices"].as_array().unwrap() {
                let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
                texts[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
            }
        }
        for (text, choice) in texts.iter().zip(&choices) {
            assert_eq!(text, choice["message"]["content"].as_str().unwrap(), "a seed gives the same answers");
        }
    }
}

#[tokio::test]
async fn en_6_every_spelling_of_a_form_binds_the_answer() {
    let rig = talkative().start().await;
    let schema = person();
    for field in [
        json!({"response_format": strict(&schema)}),
        json!({"response_format": {"type": "json_object", "schema": schema}}),
        json!({"json_schema": schema}),
        json!({"guided_json": schema}),
        json!({"guided_json": schema.to_string()}),
        json!({"structured_outputs": {"json": schema}}),
    ] {
        let answer = rig.chat(field.clone()).await;
        assert_eq!(answer.status, 200, "{field}: {answer:?}");
        assert_is_person(&content(&answer));
    }
    for field in [
        json!({"response_format": {"type": "regex", "pattern": "[xy]{3}"}}),
        json!({"response_format": {"type": "grammar", "grammar": "root ::= [xy] [xy] [xy]"}}),
        json!({"guided_regex": "[xy]{3}"}),
        json!({"regex": "[xy]{3}"}),
        json!({"regex_pattern": "[xy]{3}"}),
        json!({"structured_outputs": {"regex": "[xy]{3}"}}),
        json!({"grammar": "root ::= [xy]{3}"}),
        json!({"grammar": "start: /[xy]{3}/"}),
        json!({"guided_grammar": "root ::= [xy]{3}"}),
        json!({"ebnf": "root ::= [xy]{3}"}),
        json!({"grammar_string": "root ::= [xy]{3}"}),
        json!({"structured_outputs": {"grammar": "root ::= [xy]{3}"}}),
        json!({"guided_choice": ["xyx", "yyy"]}),
        json!({"structured_outputs": {"choice": ["xyx", "yyy"]}}),
    ] {
        let answer = rig.chat(field.clone()).await;
        assert_eq!(answer.status, 200, "{field}: {answer:?}");
        let text = content(&answer);
        assert!(text.len() == 3 && text.chars().all(|c| "xy".contains(c)), "{field}: {text}");
    }
    let completion = rig.post("/v1/completions", &json!({"prompt": "a", "guided_choice": ["yes", "no"]})).await.json();
    assert!(["yes", "no"].contains(&completion["choices"][0]["text"].as_str().unwrap()), "{completion}");
    let cut = rig.chat(json!({"response_format": strict(&schema), "max_tokens": 4})).await.json();
    assert_eq!(cut["choices"][0]["finish_reason"], "length", "{cut}");
    assert_eq!(cut["choices"][0]["message"]["content"], "{\"na", "{cut}");
}

#[tokio::test]
async fn en_6_a_form_that_cannot_be_had_is_refused_by_its_field_and_keyword() {
    let rig = talkative().start().await;
    let schema = |schema: Value| json!({"response_format": strict(&schema)});
    const SCHEMA: &str = "response_format.json_schema.schema";
    for (body, field, word) in [
        (schema(json!({"type": "array", "uniqueItems": true})), SCHEMA, "uniqueItems"),
        (schema(json!({"type": "string", "minLength": 3, "maxLength": 1})), SCHEMA, "minLength"),
        (schema(json!({"enum": []})), SCHEMA, "enum"),
        (schema(json!(7)), SCHEMA, "schema"),
        (json!({"response_format": {"type": "json_schema"}}), SCHEMA, "missing"),
        (json!({"guided_regex": "("}), "guided_regex", "unclosed"),
        (json!({"grammar": "root ::= nothing"}), "grammar", "nothing"),
        (json!({"guided_regex": 7}), "guided_regex", "string"),
        (json!({"structured_outputs": {"json": {}, "regex": "a"}}), "structured_outputs", "one of"),
        (json!({"guided_regex": "a", "response_format": {"type": "json_object"}}), "guided_regex", "both"),
        (json!({"response_format": []}), "response_format", "object"),
        (json!({"response_format": {"type": 7}}), "response_format.type", "string"),
    ] {
        let answer = rig.chat(body.clone()).await;
        let (status, _, param) = answer.error();
        assert_eq!((status, param.as_str()), (400, field), "{body}: {answer:?}");
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains(word), "{body}: {answer:?}");
    }
    for harmless in [json!({"response_format": {"type": "text"}}), json!({"response_format": null, "grammar": ""})] {
        assert_eq!(rig.chat(harmless).await.status, 200);
    }
}

#[tokio::test]
async fn en_6_a_schema_that_is_not_strict_is_narrowed_and_never_refused_for_its_keywords() {
    let rig = talkative().start().await;
    let schema = json!({"type": "object", "required": ["word"], "additionalProperties": false, "dependentRequired": {"a": ["word"]},
        "properties": {"word": {"enum": ["a", "b"], "not": {"const": "a"}}, "a": {"type": "string", "pattern": "^(?!x)[xy]{2}$"}}});
    let lenient = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": false, "schema": schema}});
    for extra in [json!({}), json!({"tools": tools()})] {
        let mut body = json!({"response_format": lenient, "max_tokens": 300});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let answer = rig.chat(body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let message = &answer.json()["choices"][0]["message"];
        if let Some(text) = message["content"].as_str() {
            let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert_eq!(value["word"], "b", "{text}");
            assert!(value["a"].as_str().is_none_or(|text| text.starts_with('y')), "{text}");
        }
    }
    let (status, _, field) = rig.chat(json!({"response_format": strict(&schema)})).await.error();
    assert_eq!((status, field.as_str()), (400, "response_format.json_schema.schema"));
}

#[tokio::test]
async fn en_6_a_hostile_schema_ends_in_a_refusal_within_bounds() {
    let rig = talkative().start().await;
    let properties: serde_json::Map<String, Value> =
        (0..12).map(|index| (format!("p{index}"), json!({"anyOf": [{"type": "string"}, {"type": "null"}]}))).collect();
    let wide: Vec<Value> = (0..14)
        .map(|_| json!({"anyOf": [{"properties": properties}, {"type": "array"}, {"maxProperties": 3}]}))
        .collect();
    for body in [
        json!({"guided_json": {"allOf": wide}}),
        json!({"guided_regex": "((a{1,1000}){1,1000}){1,1000}b"}),
        json!({"guided_json": {"type": "string", "pattern": "^(.*a.*b.*c.*){50}$", "minLength": 100_000}}),
    ] {
        let answer = rig.chat(body.clone()).await;
        // It is refused, or it is none too large after all: then it is held to.
        assert!(answer.status == 200 || answer.error().0 == 400, "{body}: {answer:?}");
    }
    assert_is_person(&content(&rig.chat(json!({"response_format": strict(&person())})).await));
}

#[tokio::test]
async fn en_6_an_answer_that_the_client_began_keeps_its_form() {
    let rig = talkative().start().await;
    let begun = |text: &str| {
        json!({"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}],
        "response_format": strict(&person())})
    };
    let answer = rig.post("/v1/chat/completions", &begun("{\"name\": \"Ada\",")).await;
    let whole = format!("{{\"name\": \"Ada\",{}", content(&answer));
    let value: Value = serde_json::from_str(&whole).unwrap_or_else(|error| panic!("{error}: {whole}"));
    assert_eq!(value["name"], "Ada");
    let refused = rig.post("/v1/chat/completions", &begun("Sure! ")).await;
    assert_eq!(refused.error(), (400, "invalid_request".to_owned(), "messages".to_owned()));
}

#[tokio::test]
async fn en_6_a_form_binds_the_answer_and_not_the_thought() {
    // The tags are tokens of their own.
    let thoughts = [260].into_iter().chain("let me see".bytes().map(u32::from)).chain([261]);
    let script = Script::Answer(thoughts.chain(words("no form at all")).collect());
    let rig = Setup { script, context: 2_000, ..Setup::default() }.start().await;
    let answer = rig.chat(json!({"response_format": strict(&person())})).await.json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "let me see", "{answer}");
    assert_is_person(message["content"].as_str().unwrap());
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "required": ["city"], "additionalProperties": false,
        "properties": {"city": {"type": "string", "maxLength": 6}, "unit": {"enum": ["c", "f"]}}});
    let weather =
        json!({"type": "function", "function": {"name": "weather", "parameters": parameters, "strict": true}});
    json!([weather, {"type": "function", "function": {"name": "clock"}}])
}

fn assert_is_weather(call: &Value) {
    assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("weather")), "{call}");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["city"].as_str().unwrap().len() <= 24, "{call}");
}

#[tokio::test]
async fn en_5_a_forced_call_is_valid_streamed_and_not() {
    let rig = talkative().start().await;
    let named = json!({"type": "function", "function": {"name": "weather"}});
    let body = json!({"tools": tools(), "tool_choice": named, "parallel_tool_calls": false});
    let answer = rig.chat(body.clone()).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null),
        "{answer}"
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 1, "{answer}");
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call_") && calls[0].get("index").is_none(), "{answer}");
    assert_is_weather(&calls[0]);

    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = rig.chat(streamed).await.events();
    let mut whole = json!({"type": null, "function": {"name": null, "arguments": ""}});
    let mut arguments = String::new();
    for event in &events {
        let delta = &event["choices"][0]["delta"];
        assert!(delta["content"].as_str().is_none_or(str::is_empty), "{event}");
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            assert_eq!(call["index"], 0);
            if call["id"].is_string() {
                (whole["type"], whole["function"]["name"]) = (call["type"].clone(), call["function"]["name"].clone());
            }
            arguments.push_str(call["function"]["arguments"].as_str().unwrap());
        }
    }
    whole["function"]["arguments"] = json!(arguments);
    assert_is_weather(&whole);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    assert!(events.len() > 6, "arguments come in pieces");

    let required = json!({"tools": tools(), "tool_choice": "required", "max_tokens": 200});
    let answer = rig.chat(required).await.json();
    assert!(!answer["choices"][0]["message"]["tool_calls"].as_array().unwrap().is_empty(), "{answer}");
}

#[tokio::test]
async fn en_5_a_model_calls_tools_of_itself_and_text_stays_text() {
    let says = "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    let rig = Setup { context: 2_000, ..Setup::saying(says) }.start().await;
    let answer = rig.chat(json!({"tools": tools(), "stop": ["city"]})).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!("I look."), &json!("tool_calls")),
        "{answer}"
    );
    assert_is_weather(&choice["message"]["tool_calls"][0]);
    let none = rig.chat(json!({"tools": tools(), "tool_choice": "none"})).await.json();
    assert_eq!(none["choices"][0]["message"]["content"], says, "a call that nobody may make is text");
    let plain = Setup { context: 2_000, ..Setup::saying("just text") }.start().await;
    let answer = plain.chat(json!({"tools": tools()})).await.json();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!("just text"), &json!("stop")));
    assert!(choice["message"].get("tool_calls").is_none());
}

#[tokio::test]
async fn en_5_a_template_without_tools_gets_them_in_words() {
    let template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    let rig = Setup { template: Some(template), ..Setup::default() }.start().await;
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Rome\"}"}});
    let body = json!({"tools": tools(), "messages": [{"role": "user", "content": "?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"}]});
    let prompt = rig.post("/apply-template", &body).await.json()["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.starts_with("[system]# Tools"), "{prompt}");
    assert!(prompt.contains("\"name\":\"weather\"") && prompt.contains("\"maxLength\":6"), "{prompt}");
    let turns = "[user]?[assistant]<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\
        [user]<tool_response>\nsunny\n</tool_response>";
    assert!(prompt.ends_with(turns), "{prompt}");
}

#[tokio::test]
async fn en_5_tools_that_cannot_be_used_are_refused_by_their_place() {
    let rig = talkative().start().await;
    let tool = |function: Value| json!([{"type": "function", "function": function}]);
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    for (body, param) in [
        (json!({"tools": [{"type": "web"}]}), "tools[0]"),
        (json!({"tools": tool(json!({"name": ""}))}), "tools[0].function.name"),
        (json!({"tools": tool(json!({"name": "a b"}))}), "tools[0].function.name"),
        (json!({"tools": [named("a"), named("a")]}), "tools[1].function.name"),
        (
            json!({"tools": tool(json!({"name": "f", "parameters": {"type": "string"}}))}),
            "tools[0].function.parameters",
        ),
        (
            json!({"tools": tool(json!({"name": "f", "strict": true, "parameters": {"type": "object",
                "properties": {"a": {"type": "array", "uniqueItems": true}}}}))}),
            "tools[0].function.parameters",
        ),
        (json!({"tools": tools(), "tool_choice": named("other")}), "tool_choice"),
        (json!({"tools": tools(), "tool_choice": "perhaps"}), "tool_choice"),
        (json!({"tool_choice": "required"}), "tool_choice"),
    ] {
        let answer = rig.chat(body.clone()).await;
        let (status, _, place) = answer.error();
        assert!(status == 400 && place.starts_with(param), "{body}: {answer:?}");
    }
    // A keyword that cannot be held to is left out where a tool is not strict.
    let loose = tool(
        json!({"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}}}),
    );
    let body = json!({"tools": loose, "tool_choice": "required", "max_tokens": 30});
    assert_eq!(rig.chat(body).await.status, 200);
}
