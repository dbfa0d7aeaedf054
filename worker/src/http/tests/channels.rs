//! Answers in gpt-oss' channels, with tools and without: no mark of a message is ever shown.

use model_boss_engine::fake::{Script, words};
use serde_json::{Value, json};

use super::rig::{Rig, Setup};

const TEMPLATE: &str = "{% for m in messages %}<|start|>{{ m.role }}{% if m.thinking is defined %}<|channel|>analysis<|message|>\
{{ m.thinking }}<|end|><|start|>assistant{% endif %}{% if m.tool_calls %}{% if m.content and m.thinking %}\
{{ raise_exception('both') }}{% endif %} to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>\
{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% else %}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}\
{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<|start|>assistant{% endif %}";

const THOUGHT: &str = "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant";

async fn saying(text: &str) -> Rig {
    let script = Script::Answer(words(text));
    Setup { script, template: Some(TEMPLATE), context: 3_000, ..Setup::default() }.start().await
}

/// The thoughts, the text and the calls of each choice, put together from a stream.
async fn streamed(rig: &Rig, mut body: Value) -> Vec<[String; 3]> {
    body["stream"] = json!(true);
    let mut said = vec![<[String; 3]>::default(); 3];
    for event in rig.chat(body).await.events() {
        for choice in event["choices"].as_array().unwrap() {
            let delta = &choice["delta"];
            let all = &mut said[usize::try_from(choice["index"].as_u64().unwrap()).unwrap()];
            all[0].push_str(delta["reasoning_content"].as_str().unwrap_or_default());
            all[1].push_str(delta["content"].as_str().unwrap_or_default());
            all[2].push_str(delta["tool_calls"][0]["function"]["arguments"].as_str().unwrap_or_default());
        }
    }
    said
}

/// The same of a whole answer.
async fn whole(rig: &Rig, body: Value) -> Vec<[String; 3]> {
    let answer = rig.chat(body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let choices = answer.json()["choices"].as_array().cloned().unwrap();
    let parts = |choice: &Value| {
        let message = &choice["message"];
        let call = &message["tool_calls"][0]["function"]["arguments"];
        [text(&message["reasoning_content"]), text(&message["content"]), text(call)]
    };
    choices.iter().map(parts).collect()
}

#[tokio::test]
async fn en_5_without_tools_channels_are_thoughts_and_text() {
    for (said, thought, text) in [
        (format!("{THOUGHT}<|channel|>final<|message|>It rains.<|return|>"), "They ask.", "It rains."),
        ("<|channel|>final<|message|>It rains.".to_owned(), "", "It rains."),
        (
            format!(
                "{THOUGHT}<|channel|>commentary<|message|>I look. <|end|><|start|>assistant<|channel|>final<|message|>Rain."
            ),
            "They ask.",
            "I look. Rain.",
        ),
        // There is no such tool.
        (format!("{THOUGHT}<|channel|>commentary to=functions.f json<|message|>{{}}<|call|>"), "They ask.", "{}"),
        (THOUGHT.to_owned(), "They ask.", ""),
        ("No marks at all.".to_owned(), "", "No marks at all."),
    ] {
        let rig = saying(&said).await;
        for extra in
            [json!({}), json!({"tools": []}), json!({"tools": tools(), "tool_choice": "none"}), json!({"n": 2})]
        {
            let parts = [thought.to_owned(), text.to_owned(), String::new()];
            let body = json!({"max_tokens": words(&said).len()}).as_object().unwrap().clone();
            let body: Value =
                body.into_iter().chain(extra.as_object().unwrap().clone()).collect::<serde_json::Map<_, _>>().into();
            assert_eq!(whole(&rig, body.clone()).await[0], parts, "{said}, {extra}");
            assert_eq!(streamed(&rig, body).await[0], parts, "{said}, {extra}");
        }
    }
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}])
}

#[tokio::test]
async fn en_6_a_form_binds_the_last_message_of_channels() {
    let rig = saying(&format!("{THOUGHT}<|channel|>final<|message|>{{\"a\": true, 12xyz no")).await;
    let schema = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "boolean"}}, "additionalProperties": false});
    let strict = json!({"type": "json_schema", "json_schema": {"name": "a", "strict": true, "schema": schema}});
    let is_kept: fn(&str) -> bool = |text| serde_json::from_str::<Value>(text).unwrap()["a"].is_boolean();
    for (body, is_kept) in [
        (json!({"response_format": strict.clone()}), is_kept),
        (json!({"response_format": strict.clone(), "tools": tools()}), is_kept),
        (json!({"regex": "[0-9]{3}"}), |text| text.parse::<u32>().is_ok()),
        (json!({"grammar": "root ::= [xyz] [xyz]"}), |text| text.len() == 2),
        (json!({"guided_choice": ["yes", "no"]}), |text| ["yes", "no"].contains(&text)),
    ] {
        let body: Value = [("max_tokens".to_owned(), json!(400)), ("n".to_owned(), json!(2))]
            .into_iter()
            .chain(body.as_object().unwrap().clone())
            .collect::<serde_json::Map<_, _>>()
            .into();
        let said = whole(&rig, body.clone()).await;
        for [thought, text, _] in &said {
            assert_eq!(thought, "They ask.", "{body}");
            assert!(is_kept(text), "{body}: {text}");
        }
        assert_eq!(streamed(&rig, body).await[..2], said, "streamed");
    }
    // A message in another channel would be text too.
    let rig = saying(&format!("{THOUGHT}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant")).await;
    let said = whole(&rig, json!({"response_format": strict, "max_tokens": 400})).await;
    assert!(!said[0][1].contains("look"), "{said:?}");
    let impossible = json!({"type": "string", "minLength": 3, "maxLength": 1});
    let impossible = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": impossible}});
    let refused = rig.chat(json!({"response_format": impossible})).await;
    assert_eq!(refused.error().2, "response_format.json_schema.schema");
    assert!(refused.text().contains("minLength"), "{refused:?}");
}

#[tokio::test]
async fn en_5_thoughts_in_channels_are_counted_and_have_no_logprobs() {
    let rig = saying(&format!("{THOUGHT}<|channel|>final<|message|>It rains.")).await;
    let length = words(&format!("{THOUGHT}<|channel|>final<|message|>It rains.")).len();
    let answer = rig.chat(json!({"logprobs": true, "max_tokens": length})).await.json();
    // The mark behind the thought is seven tokens of this vocabulary, and no end before its last one.
    let thought = "They ask.<|end|".len();
    assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], thought, "{answer}");
    let told = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    let text: String = told.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, "It rains.", "{answer}");
}

#[tokio::test]
async fn en_5_a_call_in_channels_may_have_a_thought_before_it() {
    let call = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Rome\"}";
    let rig = saying(&format!("{THOUGHT}{call}")).await;
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for choice in [json!("auto"), json!("required"), named] {
        let body = json!({"tools": tools(), "tool_choice": choice, "max_tokens": 300});
        let parts = ["They ask.".to_owned(), String::new(), "{\"city\": \"Rome\"}".to_owned()];
        assert_eq!(whole(&rig, body.clone()).await[0], parts, "{choice}");
        assert_eq!(streamed(&rig, body.clone()).await[0], parts, "{choice}");
        assert_eq!(rig.chat(body).await.json()["choices"][0]["finish_reason"], "tool_calls", "{choice}");
    }
}

#[tokio::test]
async fn en_7_a_budget_ends_thoughts_in_channels_and_the_answer_follows() {
    // The model's script goes on while the ending is forced.
    let unheard = "x".repeat("<|end|><|start|>assistant<|channel|>".len());
    let call = "commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Rome\"}";
    for (thought, fields) in [
        ("They a", json!({"thinking": {"type": "enabled", "budget_tokens": 6}})),
        ("", json!({"thinking": {"type": "disabled"}})),
        ("", json!({"reasoning_effort": "none"})),
        ("They ask whether", json!({"thinking": 16})),
    ] {
        let answers = [("final<|message|>It rains.", "It rains.", ""), (call, "", "{\"city\": \"Rome\"}")];
        for (said, text, arguments) in answers {
            let begun = format!("<|channel|>analysis<|message|>{thought}");
            let rig = saying(&format!("{begun}{unheard}{said}")).await;
            let length = begun.len() + unheard.len() + said.len();
            let mut body = json!({"max_tokens": length, "tools": tools()});
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let parts = [thought.to_owned(), text.to_owned(), arguments.to_owned()];
            assert_eq!(whole(&rig, body.clone()).await[0], parts, "{fields}, {said}");
            assert_eq!(streamed(&rig, body.clone()).await[0], parts, "{fields}, {said}");
            if arguments.is_empty() {
                body.as_object_mut().unwrap().remove("tools");
                assert_eq!(whole(&rig, body).await[0], parts, "{fields}, {said}");
            }
        }
    }
}

#[tokio::test]
async fn en_7_behind_a_used_up_budget_there_is_no_other_thought() {
    let unheard = "x".repeat("<|end|><|start|>assistant<|channel|>".len());
    let rig = saying(&format!("<|channel|>analysis<|message|>They{unheard}analysis<|message|>It rains.")).await;
    let body = json!({"max_tokens": 200, "thinking": 4, "tools": tools()});
    let [thought, text, arguments] = whole(&rig, body).await.swap_remove(0);
    assert_eq!(thought, "They", "{text} {arguments}");
}

#[tokio::test]
async fn en_4_an_answer_that_has_begun_goes_on_in_the_last_message() {
    let rig = saying(" rains.").await;
    let messages = json!([{"role": "user", "content": "Well?"}, {"role": "assistant", "content": "It"}]);
    let prompt = rig.post("/apply-template", &json!({"messages": messages})).await.json();
    let prompt = prompt["prompt"].as_str().unwrap();
    assert!(prompt.ends_with("<|start|>assistant<|channel|>final<|message|>It"), "{prompt}");
    for extra in [json!({}), json!({"tools": tools()}), json!({"regex": "It rains\\."})] {
        let mut body = json!({"messages": messages, "max_tokens": 7});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        assert_eq!(whole(&rig, body).await[0][1], " rains.", "{extra}");
    }
}

#[tokio::test]
async fn en_4_thoughts_of_earlier_answers_go_back_into_their_channel() {
    let rig = saying("x").await;
    let call =
        json!({"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}});
    // By every name that clients have for them.
    for name in ["reasoning_content", "thinking", "reasoning"] {
        let messages = json!([
            {"role": "user", "content": "Well?"},
            {"role": "assistant", "content": "I look.", name: "They ask.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": null},
        ]);
        let prompt = rig.post("/apply-template", &json!({"messages": messages, "tools": tools()})).await;
        let prompt = prompt.json()["prompt"].as_str().map(str::to_owned).unwrap_or_else(|| panic!("{prompt:?}"));
        let part = "<|channel|>analysis<|message|>They ask.<|end|>\
                    <|start|>assistant to=functions.weather<|channel|>commentary";
        assert!(prompt.contains(part), "{name}: {prompt}");
    }
}
