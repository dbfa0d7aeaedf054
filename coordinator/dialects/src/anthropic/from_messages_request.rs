//! Translates a Messages request into an OpenAI chat request, for any model that answers chats here.

use model_boss_protocol::{DEMANDS, Demand, THINKING_BUDGETS};
use serde_json::{Map, Value, json};

use super::signature::is_ours;
use crate::error::DialectError;
use crate::tool_results::SEE_BELOW;
use crate::{Names, response_format};

/// Fields of a chat, each with the field of a Messages request that holds the same value.
pub(super) const FIELDS: [(&str, &str); 14] = [
    ("model", "model"),
    ("keep_alive", "keep_alive"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("stream", "stream"),
    ("thinking", "thinking"),
    ("reasoning_effort", "output_config.effort"),
    ("max_tokens", "max_tokens"),
    ("stop", "stop_sequences"),
    ("user", "metadata.user_id"),
    // An addition of model-boss: Anthropic's models always continue a last message of the assistant.
    ("continue_final_message", "continue_final_message"),
    // Fields of llama-server and vLLM about the prefix cache.
    ("cache_prompt", "cache_prompt"),
    ("cache_salt", "cache_salt"),
];

/// Translates a Messages request; returns the chat and the client's names of its fields. model-boss's own fields
/// (`x_…`) are copied.
pub fn from_messages_request(messages: &Map<String, Value>) -> Result<(Value, Names), DialectError> {
    let (mut chat, mut names) = (Map::new(), Names::default());
    if !messages.get("max_tokens").is_some_and(Value::is_u64) {
        return Err(DialectError::invalid("max_tokens", "'max_tokens' is missing, or no whole number"));
    }
    if messages.get("stop_sequences").is_some_and(|stop| !stop.is_null() && !stop.is_array()) {
        return Err(DialectError::invalid("stop_sequences", "'stop_sequences' must be a list of texts"));
    }
    for (ours, theirs) in FIELDS.into_iter().chain(THINKING_BUDGETS.map(|name| (name, name))) {
        let mut path = theirs.split('.');
        let first = path.next().and_then(|name| messages.get(name));
        let value = path.fold(first, |value, name| value?.get(name));
        if let Some(value) = value.filter(|value| !value.is_null()) {
            chat.insert(ours.to_owned(), value.clone());
            names.moved(ours, theirs);
        }
    }
    // Adaptive thinking leaves its amount to the effort. Any other wish about thinking goes before the effort.
    if chat.get("thinking").is_some_and(|wish| wish["type"] == "adaptive" && wish["budget_tokens"].is_null())
        && chat.contains_key("reasoning_effort")
    {
        chat.shift_remove("thinking");
    }
    for (name, value) in messages.iter().filter(|(name, _)| name.starts_with("x_")) {
        chat.insert(name.clone(), value.clone());
    }
    if messages.get("stream") == Some(&json!(true)) {
        chat.insert("stream_options".to_owned(), json!({ "include_usage": true, "continuous_usage_stats": true }));
        names.made("stream_options", "stream");
    }
    form(messages, &mut chat, &mut names)?;
    // Demands in another API's fields are copied: the engine or provider that serves the request meets or refuses them.
    for name in DEMANDS.into_iter().flat_map(Demand::fields) {
        if let Some(value) = messages.get(name) {
            chat.insert(name.to_owned(), value.clone());
        }
    }
    for name in ["mcp_servers", "container"] {
        let given = messages.get(name).filter(|value| !value.is_null() && **value != json!([]));
        if given.is_some() {
            let message = format!("'{name}' is a service of Anthropic's own; leave it out, or ask Anthropic's API");
            return Err(DialectError::unsupported(name, message));
        }
    }
    let mut said = TranslatedMessages { messages: Vec::new(), names, shown: Vec::new() };
    if let Some(system) = messages.get("system").filter(|system| !system.is_null()) {
        let ours = said.push(json!({ "role": "system", "content": texts("system", system)? }));
        said.names.made(ours, "system");
    }
    let given = messages.get("messages").and_then(Value::as_array);
    let given = given.ok_or_else(|| DialectError::invalid("messages", "'messages' is missing, or no list"))?;
    for (index, message) in given.iter().enumerate() {
        one(&format!("messages[{index}]"), message, &mut said)?;
    }
    said.show_images();
    let TranslatedMessages { messages: said, mut names, .. } = said;
    chat.insert("messages".to_owned(), Value::Array(said));
    tools(messages, &mut chat, &mut names)?;
    Ok((Value::Object(chat), names))
}

/// The messages translated so far, and the client's names of their fields.
struct TranslatedMessages {
    messages: Vec<Value>,
    names: Names,
    /// Images in the last results of tools. Messages of tools are texts, so the user's next message shows the images.
    shown: Vec<PlacedPart>,
}

/// A part of a message, or a call of it.
struct PlacedPart {
    /// The client's place of the block.
    theirs: String,
    part: Value,
}

impl PlacedPart {
    fn is_image(&self) -> bool {
        self.part["type"] == "image_url"
    }
}

impl TranslatedMessages {
    /// Adds a message; returns its place in the chat, such as `messages[1]`.
    fn push(&mut self, message: Value) -> String {
        self.messages.push(message);
        format!("messages[{}]", self.messages.len() - 1)
    }

    /// Adds a message of the user's with the images of results, where no message of the user's has shown them.
    fn show_images(&mut self) {
        let shown = std::mem::take(&mut self.shown);
        if let Some(first) = shown.first() {
            let theirs = first.theirs.clone();
            let ours = self.push(json!({ "role": "user", "content": null }));
            self.names.made(ours.as_str(), theirs);
            self.fill(&ours, shown);
        }
    }

    /// Sets the content of the last message, `ours`: a text, or parts if an image is among them.
    fn fill(&mut self, ours: &str, parts: Vec<PlacedPart>) {
        let content = if parts.iter().any(PlacedPart::is_image) {
            for (index, PlacedPart { theirs, part }) in parts.iter().enumerate() {
                let ours = format!("{ours}.content[{index}]");
                if part["type"] == "text" {
                    self.names.moved_if_elsewhere(&ours, theirs);
                } else {
                    self.names.made(format!("{ours}.image_url.url"), format!("{theirs}.source.data"));
                    self.names.made(ours, theirs.as_str());
                }
            }
            Value::Array(parts.into_iter().map(|placed| placed.part).collect())
        } else {
            let texts: Vec<&str> = parts.iter().filter_map(|placed| placed.part["text"].as_str()).collect();
            if texts.is_empty() { Value::Null } else { json!(texts.join("\n")) }
        };
        if let Some(message) = self.messages.last_mut() {
            message["content"] = content;
        }
    }
}

/// Translates the wanted form of the answer, from `output_config` or the beta's `output_format`, or takes a
/// `response_format` in their place.
fn form(messages: &Map<String, Value>, chat: &mut Map<String, Value>, names: &mut Names) -> Result<(), DialectError> {
    let present = messages.get("output_config").and_then(|config| config.get("format"));
    let given = present.or_else(|| messages.get("output_format")).filter(|format| !format.is_null());
    let place = if present.is_some() { "output_config.format" } else { "output_format" };
    let other = response_format::demanded(messages, given.map(|_| place));
    if let Some(other) = other.map_err(|message| DialectError::invalid(response_format::FIELD, message))? {
        chat.insert(response_format::FIELD.to_owned(), other.clone());
    }
    let Some(format) = given else { return Ok(()) };
    match (format["type"].as_str(), &format["schema"]) {
        (Some("json_schema"), schema @ Value::Object(_)) => {
            let schema = json!({ "name": "format", "schema": schema, "strict": true });
            let format = json!({ "type": "json_schema", "json_schema": schema });
            chat.insert(response_format::FIELD.to_owned(), format);
            names.made("response_format", place);
            names.moved("response_format.type", format!("{place}.type"));
            names.moved("response_format.json_schema.schema", format!("{place}.schema"));
            Ok(())
        }
        _ => Err(DialectError::invalid(place, format!("'{place}' must be of type json_schema, with a 'schema'"))),
    }
}

fn texts(place: &str, content: &Value) -> Result<String, DialectError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let texts: Option<Vec<&str>> = blocks.iter().map(|block| block.get("text")?.as_str()).collect();
            texts
                .map(|texts| texts.join("\n"))
                .ok_or_else(|| DialectError::invalid(place, format!("'{place}' may hold only text")))
        }
        Value::Null => Ok(String::new()),
        _ => Err(DialectError::invalid(place, format!("'{place}' must be a text, or a list of blocks"))),
    }
}

/// Translates one message. Results of tools become messages of their own, before the user's other content.
fn one(place: &str, message: &Value, said: &mut TranslatedMessages) -> Result<(), DialectError> {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    if !["user", "assistant"].contains(&role) {
        return Err(DialectError::invalid(
            format!("{place}.role"),
            format!("'role' must be user or assistant, not '{role}'"),
        ));
    }
    let content = message.get("content").unwrap_or(&Value::Null);
    let Value::Array(blocks) = content else {
        let text = texts(&format!("{place}.content"), content)?;
        said.show_images();
        let ours = said.push(json!({ "role": role, "content": text }));
        said.names.moved_if_elsewhere(&ours, place);
        return Ok(());
    };
    let (mut parts, mut calls, mut thoughts) = (Vec::new(), Vec::new(), Vec::new());
    for (number, block) in blocks.iter().enumerate() {
        let theirs = format!("{place}.content[{number}]");
        match block.get("type").and_then(Value::as_str) {
            Some("text") if block["text"].is_string() => {
                parts.push(PlacedPart { theirs, part: json!({ "type": "text", "text": block["text"] }) });
            }
            Some("text") => {
                let place = format!("{theirs}.text");
                return Err(DialectError::invalid(place.as_str(), format!("'{place}' is missing, or no text")));
            }
            Some("image") => {
                let part = image(&theirs, block)?;
                parts.push(PlacedPart { theirs, part });
            }
            Some("tool_use") => {
                let function = json!({ "name": block["name"], "arguments": block["input"].to_string() });
                let part = json!({ "id": block["id"], "type": "function", "function": function });
                calls.push(PlacedPart { theirs, part });
            }
            Some("tool_result") => result(&theirs, block, said)?,
            // Thoughts of other providers are signed, and no model here reads them.
            Some("thinking") if !is_ours(&block["signature"]) => {}
            Some("redacted_thinking") => {}
            Some("thinking") => {
                let place = format!("{theirs}.thinking");
                let thought = block["thinking"].as_str().ok_or_else(|| {
                    DialectError::invalid(place.as_str(), format!("'{place}' is missing, or no text"))
                })?;
                thoughts.push((place, thought));
            }
            other => {
                let kind = other.unwrap_or_default();
                return Err(DialectError::invalid(theirs, format!("a block of type '{kind}' cannot be read here")));
            }
        }
    }
    // Thoughts alone are those of an answer that was cut.
    if parts.is_empty() && calls.is_empty() {
        return Ok(());
    }
    if role == "user" {
        parts.splice(0..0, said.shown.drain(..));
    } else {
        said.show_images();
    }
    let ours = said.push(json!({ "role": role, "content": null }));
    said.names.moved_if_elsewhere(&ours, place);
    said.fill(&ours, parts);
    let names = &mut said.names;
    thoughts.retain(|(_, thought)| role == "assistant" && !thought.is_empty());
    if let Some((theirs, _)) = thoughts.first() {
        names.made(format!("{ours}.reasoning_content"), theirs.as_str());
    }
    if !calls.is_empty() {
        names.made(format!("{ours}.tool_calls"), format!("{place}.content"));
    }
    for (index, PlacedPart { theirs, .. }) in calls.iter().enumerate() {
        let ours = format!("{ours}.tool_calls[{index}]");
        names.made(format!("{ours}.id"), format!("{theirs}.id"));
        names.made(format!("{ours}.function.name"), format!("{theirs}.name"));
        names.made(format!("{ours}.function.arguments"), format!("{theirs}.input"));
        names.made(ours, theirs.as_str());
    }
    if let Some(message) = said.messages.last_mut() {
        if !thoughts.is_empty() {
            let thoughts: Vec<&str> = thoughts.into_iter().map(|(_, thought)| thought).collect();
            message["reasoning_content"] = json!(thoughts.join("\n"));
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into_iter().map(|call| call.part).collect();
        }
    }
    Ok(())
}

/// Translates the result of a tool. Its images wait for the user's next message.
fn result(place: &str, block: &Value, said: &mut TranslatedMessages) -> Result<(), DialectError> {
    let content = block.get("content").unwrap_or(&Value::Null);
    let is_image = |block: &&Value| block["type"] == "image";
    let blocks = content.as_array().map_or(&[][..], Vec::as_slice);
    let (images, others): (Vec<_>, Vec<_>) = blocks.iter().enumerate().partition(|(_, block)| is_image(block));
    let text = match images.as_slice() {
        [] => texts(&format!("{place}.content"), content)?,
        _ if others.is_empty() => SEE_BELOW.to_owned(),
        _ => texts(&format!("{place}.content"), &others.into_iter().map(|(_, block)| block.clone()).collect())?,
    };
    for (number, block) in images {
        let theirs = format!("{place}.content[{number}]");
        let part = image(&theirs, block)?;
        said.shown.push(PlacedPart { theirs, part });
    }
    let ours = said.push(json!({ "role": "tool", "tool_call_id": block["tool_use_id"], "content": text }));
    said.names.made(ours.as_str(), place);
    said.names.made(format!("{ours}.tool_call_id"), format!("{place}.tool_use_id"));
    Ok(())
}

fn image(place: &str, block: &Value) -> Result<Value, DialectError> {
    let source = &block["source"];
    let (Some("base64"), Some(media_type), Some(data)) =
        (source["type"].as_str(), source["media_type"].as_str(), source["data"].as_str())
    else {
        let message = "an image must have a 'source' of type base64; links are not followed";
        return Err(DialectError::invalid(format!("{place}.source"), message));
    };
    Ok(json!({ "type": "image_url", "image_url": { "url": format!("data:{media_type};base64,{data}") } }))
}

fn tools(messages: &Map<String, Value>, chat: &mut Map<String, Value>, names: &mut Names) -> Result<(), DialectError> {
    let given = match messages.get("tools") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(tools)) if tools.is_empty() => return Ok(()),
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(DialectError::invalid("tools", "'tools' must be a list")),
    };
    let mut functions = Vec::new();
    for (index, tool) in given.iter().enumerate() {
        let place = format!("tools[{index}]");
        if let Some(kind) = tool["type"].as_str().filter(|kind| *kind != "custom") {
            let message = format!("a tool of type '{kind}' is Anthropic's own; leave it out, or ask Anthropic's API");
            return Err(DialectError::unsupported(place, message));
        }
        let mut function = json!({ "name": tool["name"], "parameters": tool["input_schema"] });
        names.made(place.as_str(), place.as_str());
        names.moved(format!("{place}.function.parameters"), format!("{place}.input_schema"));
        names.moved(format!("{place}.function.name"), format!("{place}.name"));
        for name in ["description", "strict"] {
            if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
                function[name] = value.clone();
                names.moved(format!("{place}.function.{name}"), format!("{place}.{name}"));
            }
        }
        functions.push(json!({ "type": "function", "function": function }));
    }
    chat.insert("tools".to_owned(), Value::Array(functions));
    let Some(choice) = messages.get("tool_choice").filter(|choice| !choice.is_null()) else { return Ok(()) };
    let choice_word = match choice["type"].as_str() {
        Some("none") => json!("none"),
        Some("auto") => json!("auto"),
        Some("any") => json!("required"),
        Some("tool") => json!({ "type": "function", "function": { "name": choice["name"] } }),
        _ => {
            let message = "'tool_choice.type' must be auto, any, tool or none";
            return Err(DialectError::invalid("tool_choice.type", message));
        }
    };
    chat.insert("tool_choice".to_owned(), choice_word);
    names.made("tool_choice", "tool_choice");
    names.made("tool_choice.function.name", "tool_choice.name");
    if choice.get("disable_parallel_tool_use") == Some(&json!(true)) {
        chat.insert("parallel_tool_calls".to_owned(), json!(false));
        names.made("parallel_tool_calls", "tool_choice.disable_parallel_tool_use");
    }
    Ok(())
}
