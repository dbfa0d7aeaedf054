//! Tools in prompts: what clients leave out, and what templates refuse.

use model_boss_engine::fake::{Script, words};
use serde_json::{Value, json};

use super::rig::{Rig, Setup};

const HERMES: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>\n\
{{ c.function | tojson }}\n</tool_call>{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}\
{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}<|im_start|>assistant\n";

/// Turns must alternate, and there is no role but those of the two.
const ALTERNATING: &str = "{% for m in messages %}{% if m.role not in ['user', 'assistant'] or (m.role == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}";

async fn saying(template: &'static str, text: &str) -> Rig {
    let script = Script::Answer(words(text));
    Setup { script, template: Some(template), context: 4_000, ..Setup::default() }.start().await
}

fn tool(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

fn weather() -> Value {
    tool("weather", json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}))
}

async fn prompt(rig: &Rig, body: Value) -> String {
    let answer = rig.post("/apply-template", &body).await;
    answer.json()["prompt"].as_str().map(str::to_owned).unwrap_or_else(|| panic!("{body}: {answer:?}"))
}

#[tokio::test]
async fn en_5_a_template_that_reads_descriptions_gets_some() {
    const READS: &str = "{# <tool_call> #}{% for t in tools %}{{ t.function.name }}: {{ t.function.description + '.' }} \
                         {{ t.function.parameters.properties | length }}{% endfor %}{{ messages[0].content }}";
    let bare = json!({"type": "function", "function": {"name": "now"}});
    let described = json!({"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"properties": {"a": {}}}}});
    let asked = |tool: &Value| json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool]});
    let rig = saying(READS, "x").await;
    assert_eq!(prompt(&rig, asked(&bare)).await, "now: . 0hi");
    assert_eq!(prompt(&rig, asked(&described)).await, "now: The time. 1hi");
    // Others get the tools as they came.
    let rig = saying(HERMES, "x").await;
    assert!(prompt(&rig, asked(&bare)).await.contains(r#"[{"type": "function", "function": {"name": "now"}}]"#));
}

#[tokio::test]
async fn en_5_where_a_template_has_no_system_message_the_question_describes_the_tools() {
    const DROPS: &str =
        "{% for m in messages if m.role in ['user', 'assistant'] %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    for template in [ALTERNATING, DROPS] {
        let rig = saying(template, "x").await;
        let body = json!({"messages": [{"role": "user", "content": "Rain?"}], "tools": [weather()]});
        let prompt = prompt(&rig, body).await;
        assert!(
            prompt.starts_with("[user]# Tools") && prompt.contains("weather") && prompt.ends_with("Rain?"),
            "{prompt}"
        );
    }
}

#[tokio::test]
async fn en_5_results_of_parallel_calls_are_one_turn_where_turns_alternate() {
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}});
    let messages = json!([
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": null, "tool_calls": [call("1"), call("2")]},
        {"role": "tool", "tool_call_id": "1", "content": "dry"},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "wet"}]},
        {"role": "user", "content": "Thanks. And now?"},
    ]);
    let rig = saying(ALTERNATING, "x").await;
    let prompt = prompt(&rig, json!({"messages": messages, "tools": [weather()]})).await;
    let turn = prompt.split("[user]").last().unwrap();
    assert_eq!(turn.matches("<tool_response>").count(), 2, "{prompt}");
    assert!(turn.find("dry") < turn.find("wet") && turn.ends_with("And now?"), "{turn}");
    // A fault is at the place that the client knows.
    let broken =
        json!({"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}, {"role": "user"}]});
    assert_eq!(rig.post("/v1/chat/completions", &broken).await.error().2, "messages[2].content");
}

#[tokio::test]
async fn en_5_no_choice_keeps_the_tools_in_the_prompt() {
    let rig = saying(HERMES, "x").await;
    let asked = |choice: &str| json!({"messages": [{"role": "user", "content": "hi"}], "tools": [weather()], "tool_choice": choice});
    assert_eq!(prompt(&rig, asked("none")).await, prompt(&rig, asked("auto")).await);
}

#[tokio::test]
async fn en_5_a_call_without_arguments_has_an_empty_object_of_them() {
    const ITEMS: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}{{ k }}\
                         {% endfor %}<function=x><parameter=>{% endfor %}{{ m.content }}{% endfor %}";
    let rig = saying(ITEMS, "x").await;
    let call = json!({"id": "1", "type": "function", "function": {"name": "now", "arguments": ""}});
    let messages =
        json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [call]}]);
    assert_eq!(prompt(&rig, json!({"messages": messages})).await, "a<function=x><parameter=>b");
}

#[tokio::test]
async fn en_6_an_impossible_schema_is_named_beside_tools_too() {
    let rig = saying(HERMES, "x").await;
    let conflict = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 3}}});
    let endless = json!({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/properties/a"}}});
    let format =
        |schema: &Value| json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}});
    let asked = |extra: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    for (schema, keywords) in [(&conflict, &["'minimum'", "'maximum'"][..]), (&endless, &["'$ref'"])] {
        for (extra, place) in [
            (json!({"response_format": format(schema)}), "response_format.json_schema.schema"),
            (json!({"response_format": format(schema), "tools": [weather()]}), "response_format.json_schema.schema"),
            (
                json!({"response_format": format(schema), "tools": [weather()], "tool_choice": "required"}),
                "response_format.json_schema.schema",
            ),
            (json!({"tools": [weather(), tool("other", schema.clone())]}), "tools[1].function.parameters"),
        ] {
            let answer = rig.post("/v1/chat/completions", &asked(extra.clone())).await;
            assert_eq!(answer.error().2, place, "{extra}: {answer:?}");
            let text = answer.text();
            assert!(keywords.iter().all(|word| text.contains(word)), "{extra}: {text}");
            assert!(!text.contains("x-guidance") && !text.contains("%json"), "{text}");
        }
    }
}

#[tokio::test]
async fn en_7_tokens_that_the_model_does_not_have_are_no_text() {
    let rig = saying(HERMES, "x").await;
    let answer = rig.post("/v1/detokenize", &json!({"tokens": [104, 99_999_999]})).await;
    assert_eq!(answer.error(), (400, "invalid_request".to_owned(), "tokens".to_owned()), "{answer:?}");
    assert!(answer.text().contains("99999999"), "{answer:?}");
}
