//! Translates an OpenAI chat request into a Messages request.

use model_boss_protocol::{DEMANDS, Demand, Thinking, wanted_form};
use serde_json::{Map, Value, json};

use crate::error::DialectError;
use crate::thinking::wish;

/// Tokens of an answer whose request sets no limit. The Messages API demands one, and every present model takes this
/// one.
const USUAL_LIMIT: u64 = 8_192;
/// The smallest thinking budget of Claude models, in tokens.
pub(super) const LEAST_THINKING: u32 = 1_024;
/// The thinking budget of requests that name none, in tokens.
pub(super) const USUAL_THINKING: u32 = 4_096;
/// Tokens reserved for the answer after the thinking.
pub(super) const AFTER_THINKING: u64 = 2_048;

/// Translates a chat request for `model`. Demands that the Messages API cannot meet are refused by name. Preferences
/// that it does not have (`seed`, penalties, `logit_bias`) are dropped.
pub fn to_messages_request(chat: &Map<String, Value>, model: &str) -> Result<Value, DialectError> {
    refuse_what_it_lacks(chat)?;
    let (system, messages) = conversation(chat)?;
    let limit = ["max_completion_tokens", "max_tokens"].iter().find_map(|name| chat.get(*name)?.as_u64());
    let mut limit = limit.unwrap_or(USUAL_LIMIT);
    let mut request = json!({ "model": model, "messages": messages });
    if !system.is_empty() {
        request["system"] = json!(system);
    }
    let thinking = thinking(chat)?;
    if let Some(budget) = thinking {
        limit = limit.max(u64::from(budget) + AFTER_THINKING);
        request["thinking"] = json!({ "type": "enabled", "budget_tokens": budget });
    } else {
        if let Some(temperature) = chat.get("temperature").and_then(Value::as_f64) {
            // OpenAI's temperature is at most 2, Anthropic's at most 1.
            request["temperature"] = json!(temperature.min(1.0));
        }
        copy(chat, "top_p", &mut request, "top_p");
        copy(chat, "top_k", &mut request, "top_k");
    }
    request["max_tokens"] = json!(limit);
    copy(chat, "stream", &mut request, "stream");
    match chat.get("stop") {
        Some(Value::String(one)) => request["stop_sequences"] = json!([one]),
        Some(Value::Array(several)) => request["stop_sequences"] = json!(several),
        _ => {}
    }
    if let Some(user) = chat.get("user").and_then(Value::as_str) {
        request["metadata"] = json!({ "user_id": user });
    }
    form(chat, &mut request)?;
    tools(chat, &mut request)?;
    Ok(request)
}

fn copy(from: &Map<String, Value>, name: &str, to: &mut Value, as_name: &str) {
    if let Some(value) = from.get(name).filter(|value| !value.is_null()) {
        to[as_name] = value.clone();
    }
}

fn refuse_what_it_lacks(chat: &Map<String, Value>) -> Result<(), DialectError> {
    let refuse = |param: &str, what: &str| Err(DialectError::invalid(param, format!("Claude models {what}")));
    if chat.get("n").and_then(Value::as_u64).is_some_and(|n| n > 1) {
        return refuse("n", "give one answer for each request; leave 'n' out");
    }
    if chat.get("logprobs") == Some(&Value::Bool(true)) {
        return refuse("logprobs", "tell no 'logprobs'; leave them out");
    }
    if let Some(demand) = DEMANDS.into_iter().find(|demand| made(chat, demand)) {
        return Err(demand.refused_by("a Claude model").into());
    }
    Ok(())
}

fn made(chat: &Map<String, Value>, demand: &Demand) -> bool {
    let text = chat.get(demand.field).map(Value::to_string);
    Demand::first_in(|name| text.as_deref().filter(|_| name == demand.field)).is_some()
}

/// Translates the wanted form of the answer, which the Messages API takes as a JSON schema.
fn form(chat: &Map<String, Value>, request: &mut Value) -> Result<(), DialectError> {
    let format = chat.get("response_format").unwrap_or(&Value::Null);
    match wanted_form(format) {
        None => Ok(()),
        Some("json_schema") if format["json_schema"]["schema"].is_object() => {
            let schema = &format["json_schema"]["schema"];
            request["output_config"] = json!({ "format": { "type": "json_schema", "schema": schema } });
            Ok(())
        }
        Some(kind) => {
            let message = format!(
                "Claude models take no 'response_format' of type '{kind}'; send a json_schema, or ask for JSON by a tool"
            );
            Err(DialectError::invalid("response_format", message))
        }
    }
}

/// The thinking budget in tokens; `None`: no thinking. A budget is a maximum, so one below [`LEAST_THINKING`] means no
/// thinking.
fn thinking(chat: &Map<String, Value>) -> Result<Option<u32>, DialectError> {
    Ok(match wish(chat, None)? {
        Some(Thinking::On) => Some(USUAL_THINKING),
        Some(Thinking::Budget(tokens)) if tokens >= LEAST_THINKING => Some(tokens),
        Some(Thinking::Budget(_) | Thinking::Off) | None => None,
    })
}

/// A note for a response header, where Claude models cannot meet the wish about thinking.
pub fn thinking_note(chat: &Map<String, Value>) -> Option<&'static str> {
    match wish(chat, None) {
        Ok(Some(Thinking::Budget(1..LEAST_THINKING))) => Some("off; Claude models think for 1024 tokens at least"),
        _ => None,
    }
}

/// The system prompt, and the messages of user and assistant. The Messages API takes results of tools as the user's.
/// All results for the calls of one answer must be in one message.
fn conversation(chat: &Map<String, Value>) -> Result<(String, Vec<Value>), DialectError> {
    let given = chat.get("messages").and_then(Value::as_array);
    let given = given.ok_or_else(|| DialectError::invalid("messages", "'messages' is missing, or no list"))?;
    let (mut system, mut messages) = (Vec::new(), Vec::<Value>::new());
    for (index, message) in given.iter().enumerate() {
        let place = format!("messages[{index}]");
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        let (role, content) = match role {
            "system" | "developer" => {
                system.push(plain_text(&place, message)?);
                continue;
            }
            "user" => ("user", user_content(&place, message)?),
            "assistant" => ("assistant", assistant_content(&place, message)?),
            "tool" | "function" => {
                let id = message.get("tool_call_id").and_then(Value::as_str);
                let id = id.ok_or_else(|| {
                    DialectError::invalid(format!("{place}.tool_call_id"), "'tool_call_id' is missing")
                })?;
                let text = plain_text(&place, message)?;
                ("user", vec![json!({ "type": "tool_result", "tool_use_id": id, "content": text })])
            }
            other => {
                let message = format!("'role' cannot be '{other}'");
                return Err(DialectError::invalid(format!("{place}.role"), message));
            }
        };
        if content.is_empty() {
            continue;
        }
        match messages.last_mut() {
            Some(last) if last["role"] == role => {
                if let Some(blocks) = last["content"].as_array_mut() {
                    blocks.extend(content);
                }
            }
            _ => messages.push(json!({ "role": role, "content": content })),
        }
    }
    Ok((system.join("\n\n"), messages))
}

fn plain_text(place: &str, message: &Value) -> Result<String, DialectError> {
    match message.get("content") {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| part.get("text").and_then(Value::as_str))
            .collect::<Option<String>>()
            .ok_or_else(|| DialectError::invalid(format!("{place}.content"), "only text can stand here")),
        Some(_) => {
            Err(DialectError::invalid(format!("{place}.content"), "'content' must be a text, or a list of parts"))
        }
    }
}

fn user_content(place: &str, message: &Value) -> Result<Vec<Value>, DialectError> {
    let Some(Value::Array(parts)) = message.get("content") else {
        let text = plain_text(place, message)?;
        return Ok(if text.is_empty() { Vec::new() } else { vec![json!({ "type": "text", "text": text })] });
    };
    let block = |(number, part): (usize, &Value)| {
        let place = format!("{place}.content[{number}]");
        match part.get("type").and_then(Value::as_str) {
            Some("text") => Ok(json!({ "type": "text", "text": part.get("text").cloned().unwrap_or_default() })),
            Some("image_url") => image(&place, part),
            other => Err(DialectError::invalid(
                place,
                format!("Claude models take no part of type '{}'", other.unwrap_or("")),
            )),
        }
    };
    parts.iter().enumerate().map(block).collect()
}

/// Translates `data:image/png;base64,…` into an image source of the Messages API. Links are refused.
fn image(place: &str, part: &Value) -> Result<Value, DialectError> {
    let url = part.get("image_url").and_then(|image| image.get("url").unwrap_or(image).as_str()).unwrap_or_default();
    let parsed = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    let Some((media_type, data)) = parsed else {
        let message = "'image_url' must be a data: URL with base64; links are not followed";
        return Err(DialectError::invalid(format!("{place}.image_url"), message));
    };
    Ok(json!({ "type": "image", "source": { "type": "base64", "media_type": media_type, "data": data } }))
}

fn assistant_content(place: &str, message: &Value) -> Result<Vec<Value>, DialectError> {
    let mut blocks = Vec::new();
    let text = plain_text(place, message)?;
    if !text.is_empty() {
        blocks.push(json!({ "type": "text", "text": text }));
    }
    let calls = message.get("tool_calls").and_then(Value::as_array).into_iter().flatten().enumerate();
    for (number, call) in calls {
        let function = call.get("function").unwrap_or(&Value::Null);
        let arguments = function.get("arguments").and_then(Value::as_str).unwrap_or("{}");
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        let input: Value = serde_json::from_str(arguments).map_err(|error| {
            let place = format!("{place}.tool_calls[{number}].function.arguments");
            DialectError::invalid(place, format!("'arguments' is not JSON: {error}"))
        })?;
        let (id, name) = (call.get("id").cloned(), function.get("name").cloned());
        blocks.push(json!({ "type": "tool_use", "id": id, "name": name, "input": input }));
    }
    Ok(blocks)
}

fn tools(chat: &Map<String, Value>, request: &mut Value) -> Result<(), DialectError> {
    let given: Vec<&Value> = chat.get("tools").and_then(Value::as_array).into_iter().flatten().collect();
    if given.is_empty() {
        return Ok(());
    }
    let tool = |(index, tool): (usize, &&Value)| {
        let function = tool.get("function").ok_or_else(|| {
            DialectError::invalid(format!("tools[{index}]"), "a tool must be of type 'function', with 'function'")
        })?;
        let schema = function.get("parameters").cloned().unwrap_or_else(|| json!({ "type": "object" }));
        let mut tool = json!({ "name": function.get("name"), "input_schema": schema });
        if let Some(description) = function.get("description") {
            tool["description"] = description.clone();
        }
        Ok(tool)
    };
    let tools: Vec<Value> = given.iter().enumerate().map(tool).collect::<Result<_, DialectError>>()?;
    request["tools"] = Value::Array(tools);
    let mut choice = match chat.get("tool_choice") {
        None | Some(Value::Null) => json!({ "type": "auto" }),
        Some(Value::String(word)) => match word.as_str() {
            "none" => json!({ "type": "none" }),
            "required" => json!({ "type": "any" }),
            _ => json!({ "type": "auto" }),
        },
        Some(named) => json!({ "type": "tool", "name": named.pointer("/function/name") }),
    };
    if chat.get("parallel_tool_calls") == Some(&Value::Bool(false)) && choice["type"] != "none" {
        choice["disable_parallel_tool_use"] = json!(true);
    }
    request["tool_choice"] = choice;
    Ok(())
}
