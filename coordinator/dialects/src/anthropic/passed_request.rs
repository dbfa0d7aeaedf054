//! Requests of the Messages API for a provider of the Messages API. They keep every field, whatever it is. A task's
//! defaults and model-boss's own wish about thinking are added, and thoughts of other models are left out.

use std::collections::BTreeMap;

use model_boss_protocol::{DEMANDS, Demand, THINKING_BUDGETS, Thinking};
use serde_json::{Map, Value, json};

use super::from_messages_request::FIELDS;
use super::signature::is_ours;
use super::to_messages_request::{AFTER_THINKING, LEAST_THINKING, USUAL_THINKING};

/// Fields of a request for an answer that say nothing about its prompt. Anthropic's route for counting refuses them.
const NOT_COUNTED: [&str; 9] = [
    "max_tokens",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "metadata",
    "service_tier",
    "inference_geo",
];

/// Fields of other servers that change nothing at Anthropic, whose API refuses unknown fields.
const LEFT_OUT: [&str; 3] = ["cache_prompt", "cache_salt", "continue_final_message"];

/// Whether a request has fields of other APIs that the translation into OpenAI's shape understands, and Anthropic does
/// not.
pub fn needs_translation(asked: &Map<String, Value>) -> bool {
    let demands = DEMANDS.into_iter().flat_map(Demand::fields);
    let mut others = demands.chain(THINKING_BUDGETS).chain(["response_format", "reasoning_effort"]);
    others.any(|name| asked.get(name).is_some_and(|value| !value.is_null()))
}

/// The request without the texts of documents, in which a search for links would take any text for one.
pub fn without_texts_of_documents(asked: &Map<String, Value>) -> Value {
    fn remove(value: &mut Value) {
        match value {
            Value::Array(values) => values.iter_mut().for_each(remove),
            Value::Object(fields) => {
                if let Some(source) = fields.get_mut("source").filter(|source| source["type"] == "text")
                    && let Some(source) = source.as_object_mut()
                {
                    source.shift_remove("data");
                }
                fields.values_mut().for_each(remove);
            }
            _ => {}
        }
    }
    let mut all = Value::Object(asked.clone());
    remove(&mut all);
    all
}

/// Changes that a task, or model-boss's own fields, make to a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct PassedChanges<'a> {
    /// A task's defaults, by the names of OpenAI's fields. Those that the Messages API lacks are left out.
    pub defaults: Option<&'a BTreeMap<String, Value>>,
    /// The wish about thinking.
    pub thinking: Option<Thinking>,
    /// Whether the request's own wish about thinking goes before that one.
    pub is_default: bool,
}

/// The request with these changes; `None` where nothing changes, so that its bytes can be passed on as they are.
pub fn passed_request(asked: &Map<String, Value>, changes: PassedChanges<'_>) -> Option<Value> {
    let mut request = Map::new();
    let mut is_changed = false;
    for (ours, value) in changes.defaults.into_iter().flatten() {
        // Of the fields that go into others, a task's are rare.
        let theirs =
            FIELDS.iter().find(|(name, theirs)| name == ours && !theirs.contains('.')).map(|(_, theirs)| *theirs);
        let theirs = theirs.filter(|name| SAMPLING.contains(name) && asked.get(*name).is_none_or(Value::is_null));
        if let Some(theirs) = theirs {
            let list = theirs == "stop_sequences" && value.is_string();
            request.insert(theirs.to_owned(), if list { json!([value]) } else { value.clone() });
            is_changed = true;
        }
    }
    let has_own = ["thinking", "output_config"].iter().any(|name| asked.get(*name).is_some_and(|own| !own.is_null()));
    let wish = changes.thinking.filter(|_| !(changes.is_default && has_own));
    let strange = strange_thoughts(asked);
    let has_others = LEFT_OUT.iter().any(|name| asked.contains_key(*name));
    if !is_changed && wish.is_none() && !strange && !has_others {
        return None;
    }
    let mut all = asked.clone();
    all.retain(|name, _| !LEFT_OUT.contains(&name.as_str()));
    all.retain(|name, value| !value.is_null() || !request.contains_key(name));
    all.append(&mut request);
    if strange {
        leave_out_strange_thoughts(&mut all);
    }
    if let Some(wish) = wish {
        think(&mut all, wish);
    }
    Some(Value::Object(all))
}

/// Leaves out the fields that Anthropic's route for counting refuses, and thoughts of other models.
pub fn counted_request(request: &mut Map<String, Value>) {
    request.retain(|name, _| !NOT_COUNTED.contains(&name.as_str()));
    if strange_thoughts(request) {
        leave_out_strange_thoughts(request);
    }
}

/// Fields of a task's defaults that the Messages API has, by its names.
const SAMPLING: [&str; 5] = ["temperature", "top_p", "top_k", "max_tokens", "stop_sequences"];

/// Writes a wish about thinking as the Messages API has it. An answer with thoughts needs room behind them, and allows
/// no temperature.
fn think(request: &mut Map<String, Value>, wish: Thinking) {
    let budget = match wish {
        Thinking::On => Some(USUAL_THINKING),
        Thinking::Budget(tokens) if tokens >= LEAST_THINKING => Some(tokens),
        Thinking::Budget(_) | Thinking::Off => None,
    };
    let Some(budget) = budget else {
        request.insert("thinking".to_owned(), json!({ "type": "disabled" }));
        return;
    };
    request.insert("thinking".to_owned(), json!({ "type": "enabled", "budget_tokens": budget }));
    for name in ["temperature", "top_k"] {
        request.shift_remove(name);
    }
    if let Some(limit) = request.get("max_tokens").and_then(Value::as_u64) {
        request.insert("max_tokens".to_owned(), json!(limit.max(u64::from(budget) + AFTER_THINKING)));
    }
}

/// Whether a block is a thought without a signature of Anthropic's, which its API refuses.
fn is_strange(block: &Value) -> bool {
    block["type"] == "thinking" && is_ours(&block["signature"])
}

fn strange_thoughts(request: &Map<String, Value>) -> bool {
    let messages = request.get("messages").and_then(Value::as_array).into_iter().flatten();
    messages.filter_map(|message| message["content"].as_array()).flatten().any(is_strange)
}

/// Removes the thoughts of other models, and messages that had nothing else.
fn leave_out_strange_thoughts(request: &mut Map<String, Value>) {
    let Some(messages) = request.get_mut("messages").and_then(Value::as_array_mut) else { return };
    messages.retain_mut(|message| {
        let Some(blocks) = message.get_mut("content").and_then(Value::as_array_mut) else { return true };
        let before = blocks.len();
        blocks.retain(|block| !is_strange(block));
        blocks.len() == before || !blocks.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::anthropic::signature::OUR_SIGNATURE;

    fn passed(asked: &Value, changes: PassedChanges<'_>) -> Option<Value> {
        passed_request(asked.as_object().unwrap(), changes)
    }

    #[test]
    fn en_7_a_request_that_nothing_changes_keeps_its_bytes() {
        let asked = json!({
            "model": "claude:opus", "max_tokens": 5, "container": "c", "messages": [
                { "role": "assistant", "content": [{ "type": "thinking", "thinking": "hm", "signature": "EqQB" }] },
                { "role": "user", "content": [{ "type": "new", "new": 1 }] }],
        });
        assert_eq!(passed(&asked, PassedChanges::default()), None);
        let defaults = BTreeMap::from([("max_tokens".to_owned(), json!(9)), ("seed".to_owned(), json!(1))]);
        assert_eq!(passed(&asked, PassedChanges { defaults: Some(&defaults), ..PassedChanges::default() }), None);
    }

    #[test]
    fn en_7_a_tasks_defaults_and_wishes_about_thinking_are_added_by_anthropics_names() {
        let asked = json!({ "max_tokens": 5, "temperature": null, "messages": [] });
        let defaults = BTreeMap::from([
            ("stop".to_owned(), json!("x")),
            ("temperature".to_owned(), json!(0.5)),
            ("min_p".to_owned(), json!(0.1)),
        ]);
        let changes = PassedChanges { defaults: Some(&defaults), ..PassedChanges::default() };
        let expected = json!({ "max_tokens": 5, "messages": [], "stop_sequences": ["x"], "temperature": 0.5 });
        assert_eq!(passed(&asked, changes), Some(expected));
        let changes = PassedChanges { thinking: Some(Thinking::Budget(2_000)), is_default: true, ..changes };
        let said = passed(&asked, changes).unwrap();
        assert_eq!(said["thinking"], json!({ "type": "enabled", "budget_tokens": 2_000 }));
        assert_eq!((&said["max_tokens"], &said["temperature"]), (&json!(4_048), &Value::Null));
        let own = json!({ "max_tokens": 5, "thinking": { "type": "adaptive" }, "messages": [] });
        assert_eq!(passed(&own, PassedChanges { defaults: None, ..changes }), None);
        let changes = PassedChanges { thinking: Some(Thinking::Off), ..PassedChanges::default() };
        assert_eq!(passed(&own, changes).unwrap()["thinking"], json!({ "type": "disabled" }));
    }

    #[test]
    fn en_7_thoughts_of_other_models_do_not_go_to_anthropic() {
        let thought = |signature: Value| json!({ "type": "thinking", "thinking": "hm", "signature": signature });
        let text = json!({ "type": "text", "text": "four" });
        let asked = json!({ "messages": [
            { "role": "user", "content": "2 + 2?" },
            { "role": "assistant", "content": [thought(json!("")), thought(json!(OUR_SIGNATURE)), thought(json!("EqQB")), text] },
            { "role": "assistant", "content": [thought(Value::Null)] },
            { "role": "user", "content": [] },
        ] });
        let said = passed(&asked, PassedChanges::default()).unwrap();
        let expected = json!([
            { "role": "user", "content": "2 + 2?" },
            { "role": "assistant", "content": [thought(json!("EqQB")), text] },
            { "role": "user", "content": [] },
        ]);
        assert_eq!(said["messages"], expected);
    }
}
