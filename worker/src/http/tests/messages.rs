//! Messages as chat templates get them: parts, thoughts and roles.

use model_boss_engine::fake::{Script, words};
use serde_json::{Value, json};

use super::rig::{Rig, Setup};

/// Joins the parts of what users and tools say without a line between, and knows one role more.
const IN_PARTS: &str = "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant', 'tool', 'document'] %}\
{{ raise_exception('an odd role') }}{% endif %}[{{ m.role }}]{% if m.role in ['user', 'tool'] and m.content is not string %}\
{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% else %}{{ m.content }}\
{% endif %}{% endfor %}";

/// Takes texts only, of any role.
const IN_TEXTS: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";

/// Writes what was thought by Cohere's name of it.
const PLANS: &str = "{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}<{{ m.tool_plan }}>{% else %}({{ m.thinking }}){% endif %}{{ m.content }}{% endfor %}";

async fn with(template: &'static str) -> Rig {
    let script = Script::Answer(words("x"));
    Setup { script, template: Some(template), context: 4_000, ..Setup::default() }.start().await
}

async fn prompt(rig: &Rig, messages: Value) -> String {
    let answer = rig.post("/apply-template", &json!({"messages": messages})).await;
    answer.json()["prompt"].as_str().map(str::to_owned).unwrap_or_else(|| panic!("{messages}: {answer:?}"))
}

fn parts(texts: &[&str]) -> Value {
    texts.iter().map(|text| json!({"type": "text", "text": text})).collect()
}

#[tokio::test]
async fn en_4_a_template_that_reads_parts_joins_them_itself() {
    let said = json!([
        {"role": "system", "content": parts(&["a", "b"])}, {"role": "user", "content": parts(&["c", "d"])},
        {"role": "assistant", "content": parts(&["e", "f"])}, {"role": "user", "content": "g"},
    ]);
    assert_eq!(prompt(&with(IN_PARTS).await, said.clone()).await, "[system]a\nb[user]cd[assistant]e\nf[user]g");
    assert_eq!(prompt(&with(IN_TEXTS).await, said).await, "[system]a\nb[user]c\nd[assistant]e\nf[user]g");
}

#[tokio::test]
async fn en_4_a_role_of_the_templates_own_is_shown_and_any_other_is_refused_by_name() {
    let asked = |role: &str| json!([{"role": role, "content": "x"}, {"role": "user", "content": "?"}]);
    let rig = with(IN_PARTS).await;
    assert_eq!(prompt(&rig, asked("document")).await, "[document]x[user]?");
    let answer = rig.post("/v1/chat/completions", &json!({"messages": asked("robot")})).await;
    assert_eq!(answer.error().2, "messages[0].role", "{answer:?}");
    assert!(answer.text().contains("unknown role 'robot'"), "{answer:?}");
    assert!(answer.text().contains("knows 'system', 'user', 'assistant' and 'tool', 'document'\""), "{answer:?}");
    assert_eq!(prompt(&with(IN_TEXTS).await, asked("robot")).await, "[robot]x[user]?");
}

#[tokio::test]
async fn en_7_a_thought_among_the_parts_is_the_messages_thought() {
    let call = json!([{"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]);
    let with_thought =
        |thought: Value| json!([{"type": "thinking", "thinking": thought}, {"type": "text", "text": "b"}]);
    let said = |message: Value| json!([{"role": "user", "content": "?"}, message, {"role": "user", "content": "!"}]);
    let rig = with(PLANS).await;
    for thought in [json!("hm"), parts(&["h", "m"])] {
        let message = json!({"role": "assistant", "content": with_thought(thought)});
        assert_eq!(prompt(&rig, said(message)).await, "[user]()?[assistant](hm)b[user]()!");
    }
    for name in ["tool_plan", "reasoning_content", "reasoning"] {
        let message = json!({"role": "assistant", "content": "b", "tool_calls": call, name: "hm"});
        assert_eq!(prompt(&rig, said(message)).await, "[user]()?[assistant]<hm>b[user]()!");
    }
}

#[tokio::test]
async fn en_5_a_call_that_was_cut_off_comes_back_as_one_without_arguments_where_only_objects_are_read() {
    const ITEMS: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}<{% for k, v in c.function.arguments | items %}{{ k }}\
                         {% endfor %}>{% endfor %}{{ m.content }}{% endfor %}";
    const ANY: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}<{{ c.function.arguments }}>{% endfor %}{{ m.content }}{% endfor %}";
    let call = json!([{"id": "1", "type": "function", "function": {"name": "now", "arguments": "{\"a\": 1"}}]);
    let said = json!([{"role": "user", "content": "?"}, {"role": "assistant", "content": "b", "tool_calls": call}]);
    assert_eq!(prompt(&with(ITEMS).await, said.clone()).await, "?<>b");
    assert_eq!(prompt(&with(ANY).await, said).await, "?<{\"a\": 1>b");
}
