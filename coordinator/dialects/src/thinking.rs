//! The wish to think or not (RC-23), translated for external engines and cloud providers. The functions also report the
//! part of the wish that cannot be met. The candle worker reads the wish itself.

use model_boss_protocol::{THINKING_BUDGETS, THINKING_SWITCHES, Thinking};
use serde_json::{Map, Value, json};

use crate::error::DialectError;

/// Fields about thinking besides [`THINKING_BUDGETS`]: the wish, the variables of chat templates, and OpenAI's effort.
pub(crate) const FIELDS: [&str; 3] = [FIELD, TEMPLATE_OPTIONS, EFFORT];
/// The wish itself, in Anthropic's form or any other that [`Thinking`] reads.
pub(crate) const FIELD: &str = "thinking";
/// The field in which engines take the variables of chat templates.
const TEMPLATE_OPTIONS: &str = "chat_template_kwargs";
const EFFORT: &str = "reasoning_effort";
/// The field of a message with the thoughts in front of its content.
const THOUGHTS: &str = "reasoning_content";
/// llama.cpp's and vLLM's fields for a budget.
const LLAMA_BUDGET: &str = THINKING_BUDGETS[0];
const VLLM_BUDGET: &str = THINKING_BUDGETS[1];

/// Note for the client: the engine thinks, but enforces no budget.
const NO_BUDGET: &str = "on; this engine keeps no budget";
/// Note for the client: the wish was dropped, since a model that cannot think would refuse the whole request.
const NOT_TOLD: &str = "not passed on to this provider; it takes reasoning_effort";

/// The wish of a chat request, or `otherwise` where the request has none.
pub(crate) fn wish(chat: &Map<String, Value>, otherwise: Option<Thinking>) -> Result<Option<Thinking>, DialectError> {
    let own = chat.get(FIELD).filter(|wish| !wish.is_null());
    let budget = budget(chat)?.map(|(_, budget)| budget.to_field());
    Ok(Thinking::in_fields(own.or(budget.as_ref()), chat.get(TEMPLATE_OPTIONS), chat.get(EFFORT), otherwise)?)
}

/// The first of [`THINKING_BUDGETS`] that a chat sets, with its name.
fn budget(chat: &Map<String, Value>) -> Result<Option<(&'static str, Thinking)>, DialectError> {
    let set = |name: &'static str| Some((name, chat.get(name).filter(|tokens| !tokens.is_null())?));
    let Some((name, tokens)) = THINKING_BUDGETS.into_iter().find_map(set) else { return Ok(None) };
    let tokens = tokens
        .as_i64()
        .ok_or_else(|| DialectError::invalid(name, format!("'{name}' must be a whole number of tokens")))?;
    Ok(Some((name, u32::try_from(tokens).map_or(Thinking::On, Thinking::Budget))))
}

/// Sets the chat template's switch for thinking, unless the request sets one itself.
fn switch(chat: &mut Map<String, Value>, on: bool) {
    let options = chat.entry(TEMPLATE_OPTIONS).or_insert(Value::Null);
    if options.is_null() {
        *options = json!({});
    }
    // The engine refuses options of another type.
    if let Some(options) = options.as_object_mut()
        && THINKING_SWITCHES.iter().all(|name| !options.contains_key(*name))
    {
        // llama.cpp, vLLM and SGLang agree on this name.
        options.insert(THINKING_SWITCHES[0].to_owned(), on.into());
    }
}

/// Translates the wish of a chat, or else the manifest's, for an external engine. Returns a note for a response header
/// where the engine cannot meet the wish.
pub(crate) fn for_engine(
    chat: &mut Map<String, Value>,
    manifest: Option<Thinking>,
    is_llama_server: bool,
) -> Result<Option<&'static str>, DialectError> {
    let wish = wish(chat, manifest)?;
    let has_own = chat.remove(FIELD).is_some_and(|wish| !wish.is_null());
    if is_llama_server {
        // The server reads one of the names. A negative number stays, since its own limit holds without one.
        let set = if has_own { None } else { budget(chat)?.and_then(|(name, _)| chat.get(name).cloned()) };
        for name in THINKING_BUDGETS {
            chat.remove(name);
        }
        if let Some(tokens) = set {
            chat.insert(LLAMA_BUDGET.to_owned(), tokens);
        }
    }
    let Some(wish) = wish else { return Ok(None) };
    switch(chat, wish.is_on());
    match wish.budget() {
        Some(tokens) if is_llama_server => {
            chat.entry(LLAMA_BUDGET).or_insert_with(|| tokens.into());
            Ok(None)
        }
        // The engine may be vLLM, which keeps a budget in its own field.
        Some(1..) if !chat.contains_key(VLLM_BUDGET) => Ok(Some(NO_BUDGET)),
        Some(_) | None => Ok(None),
    }
}

/// Translates the wish of a chat for a provider of OpenAI's kind. Returns a note for a response header where the wish
/// is dropped or cannot be met.
///
/// `is_own`: the provider runs on this machine or belongs to the owner. It is then treated as an external engine.
pub fn for_provider(chat: &mut Map<String, Value>, is_own: bool) -> Result<Option<&'static str>, DialectError> {
    if chat.get(FIELD).is_none_or(Value::is_null) {
        chat.remove(FIELD);
        return Ok(None);
    }
    if is_own {
        return for_engine(chat, None, false);
    }
    wish(chat, None)?;
    chat.remove(FIELD);
    Ok(Some(NOT_TOLD))
}

/// Removes the thoughts of earlier answers from a chat that was translated for a provider of OpenAI's kind. Many
/// providers refuse the field, and the client of another API did not send it. A chat's own client knows its provider.
pub fn drop_thoughts(chat: &mut Map<String, Value>) {
    for message in chat.get_mut("messages").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(fields) = message.as_object_mut() {
            fields.shift_remove(THOUGHTS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Told = Result<Option<&'static str>, DialectError>;

    fn told(chat: Value, tell: impl Fn(&mut Map<String, Value>) -> Told) -> (Value, Option<&'static str>) {
        let Value::Object(mut chat) = chat else { panic!("{chat} is no object") };
        let note = tell(&mut chat).unwrap();
        (chat.into(), note)
    }

    #[test]
    fn rc_23_llama_server_hears_the_switch_and_the_budget() {
        let tell = |chat: Value, manifest| told(chat, |chat| for_engine(chat, manifest, true));
        let budget = json!({ "chat_template_kwargs": { "enable_thinking": true }, "thinking_budget_tokens": 9 });
        assert_eq!(tell(json!({ "thinking": 9 }), Some(Thinking::Off)), (budget.clone(), None));
        assert_eq!(tell(json!({}), Some(Thinking::Budget(9))), (budget, None));
        let off = json!({ "chat_template_kwargs": { "enable_thinking": false }, "thinking_budget_tokens": 0 });
        assert_eq!(tell(json!({ "thinking": { "type": "disabled" } }), None), (off.clone(), None));
        assert_eq!(tell(json!({ "chat_template_kwargs": null }), Some(Thinking::Off)), (off, None));
        let on = json!({ "chat_template_kwargs": { "enable_thinking": true } });
        assert_eq!(tell(json!({}), Some(Thinking::On)), (on, None));
        let own = json!({ "chat_template_kwargs": { "thinking": true, "a": 1 }, "thinking_budget_tokens": 5 });
        assert_eq!(tell(own.clone(), Some(Thinking::Budget(9))), (own, None), "what the request says stays");
        assert_eq!(tell(json!({ "temperature": 1 }), None), (json!({ "temperature": 1 }), None));
        for name in THINKING_BUDGETS {
            let (heard, note) = tell(json!({ name: 5 }), Some(Thinking::Off));
            assert_eq!(heard["chat_template_kwargs"], json!({ "enable_thinking": true }), "{name}");
            assert_eq!(
                (&heard["thinking_budget_tokens"], note, heard.as_object().unwrap().len()),
                (&json!(5), None, 2)
            );
            let (heard, _) = tell(json!({ name: -1 }), Some(Thinking::Budget(9)));
            assert_eq!(heard["thinking_budget_tokens"], -1, "{name}: no limit, whatever the manifest says");
            let (heard, _) = tell(json!({ name: 5, "thinking": 7 }), None);
            assert_eq!(heard["thinking_budget_tokens"], 7, "{name}: 'thinking' goes first");
            let wrong = for_engine(&mut Map::from_iter([(name.to_owned(), json!("few"))]), None, true);
            assert_eq!(wrong.unwrap_err().field.as_deref(), Some(name));
        }
        let effort = tell(json!({ "reasoning_effort": "low" }), None).0;
        assert_eq!((&effort["thinking_budget_tokens"], &effort["reasoning_effort"]), (&json!(2_048), &json!("low")));
    }

    #[test]
    fn rc_23_an_engine_that_keeps_no_budget_says_so() {
        let tell = |chat: Value| told(chat, |chat| for_engine(chat, None, false));
        let (chat, note) = tell(json!({ "thinking": 9 }));
        assert_eq!(chat, json!({ "chat_template_kwargs": { "enable_thinking": true } }));
        assert_eq!(note, Some("on; this engine keeps no budget"));
        assert_eq!(tell(json!({ "thinking": "off" })).1, None);
        assert_eq!(tell(json!({ "thinking": true })).1, None);
        let own = |name: &str| json!({ name: 9, "chat_template_kwargs": { "enable_thinking": true } });
        assert_eq!(tell(json!({ "thinking_token_budget": 9 })), (own("thinking_token_budget"), None), "vLLM's own");
        assert_eq!(tell(json!({ "reasoning_budget": 9 })), (own("reasoning_budget"), note));
    }

    #[test]
    fn rc_23_thoughts_of_earlier_answers_are_taken_out_of_a_chat() {
        let said = json!({ "role": "assistant", "content": "Yes.", "tool_calls": [] });
        let mut thought = said.clone();
        thought["reasoning_content"] = json!("hm");
        let mut chat = Map::from_iter([("messages".to_owned(), json!([thought, 7, said]))]);
        drop_thoughts(&mut chat);
        assert_eq!(chat["messages"], json!([said, 7, said]));
        drop_thoughts(&mut Map::new());
    }

    #[test]
    fn rc_23_a_provider_is_told_what_it_would_not_refuse() {
        let tell = |chat: Value, is_own| told(chat, |chat| for_provider(chat, is_own));
        let own = tell(json!({ "thinking": "off" }), true);
        assert_eq!(own, (json!({ "chat_template_kwargs": { "enable_thinking": false } }), None));
        let (chat, note) = tell(json!({ "thinking": "off", "seed": 1 }), false);
        assert_eq!(chat, json!({ "seed": 1 }));
        assert!(note.is_some_and(|note| note.starts_with("not passed on")));
        let untouched = json!({ "reasoning_effort": "anything", "chat_template_kwargs": 7 });
        assert_eq!(tell(untouched.clone(), false), (untouched, None));
    }
}
