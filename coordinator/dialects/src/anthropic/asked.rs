//! A Messages request as an OpenAI chat request, for whatever model answers chats here.

use model_boss_protocol::{ApiError, DEMANDS, Demand, ErrorCode};
use serde_json::{Map, Value, json};

/// The same request as a chat. Our own fields (`x_…`, `keep_alive`) stay as they are.
pub fn chat_request(messages: &Map<String, Value>) -> Result<Value, ApiError> {
    let mut chat = Map::new();
    for (name, value) in messages {
        if name.starts_with("x_")
            || ["model", "keep_alive", "temperature", "top_p", "top_k", "stream", "thinking"].contains(&name.as_str())
        {
            chat.insert(name.clone(), value.clone());
        }
    }
    if !messages.get("max_tokens").is_some_and(Value::is_u64) {
        return Err(ApiError::invalid("max_tokens", "'max_tokens' is missing, or no whole number"));
    }
    chat.insert("max_tokens".to_owned(), messages["max_tokens"].clone());
    if let Some(stop) = messages.get("stop_sequences").filter(|stop| stop.is_array()) {
        chat.insert("stop".to_owned(), stop.clone());
    }
    if let Some(user) =
        messages.get("metadata").and_then(|metadata| metadata.get("user_id")).filter(|id| id.is_string())
    {
        chat.insert("user".to_owned(), user.clone());
    }
    if messages.get("stream") == Some(&json!(true)) {
        chat.insert("stream_options".to_owned(), json!({ "include_usage": true, "continuous_usage_stats": true }));
    }
    form(messages, &mut chat)?;
    // A demand in another API's words is for who serves the request to meet or to refuse.
    for name in DEMANDS.into_iter().flat_map(Demand::fields) {
        if let Some(value) = messages.get(name) {
            chat.insert(name.to_owned(), value.clone());
        }
    }
    for name in ["mcp_servers", "container"] {
        let given = messages.get(name).filter(|value| !value.is_null() && **value != json!([]));
        if given.is_some() {
            let message = format!("'{name}' is a service of Anthropic's own; leave it out, or ask Anthropic's API");
            return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param(name));
        }
    }
    let mut said = Vec::new();
    if let Some(system) = messages.get("system") {
        said.push(json!({ "role": "system", "content": texts("system", system)? }));
    }
    let given = messages.get("messages").and_then(Value::as_array);
    let given = given.ok_or_else(|| ApiError::invalid("messages", "'messages' is missing, or no list"))?;
    for (index, message) in given.iter().enumerate() {
        one(&format!("messages[{index}]"), message, &mut said)?;
    }
    chat.insert("messages".to_owned(), Value::Array(said));
    tools(messages, &mut chat)?;
    Ok(Value::Object(chat))
}

/// The form that the answer shall have, under its present name or that of the beta.
fn form(messages: &Map<String, Value>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let present = messages.get("output_config").and_then(|config| config.get("format"));
    let given = present.or_else(|| messages.get("output_format")).filter(|format| !format.is_null());
    let place = if present.is_some() { "output_config.format" } else { "output_format" };
    let Some(format) = given else { return Ok(()) };
    match (format["type"].as_str(), &format["schema"]) {
        (Some("json_schema"), schema @ Value::Object(_)) => {
            let schema = json!({ "name": "format", "schema": schema, "strict": true });
            chat.insert("response_format".to_owned(), json!({ "type": "json_schema", "json_schema": schema }));
            Ok(())
        }
        _ => Err(ApiError::invalid(place, format!("'{place}' must be of type json_schema, with a 'schema'"))),
    }
}

fn texts(place: &str, content: &Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let texts: Option<Vec<&str>> = blocks.iter().map(|block| block.get("text")?.as_str()).collect();
            texts
                .map(|texts| texts.join("\n"))
                .ok_or_else(|| ApiError::invalid(place, format!("'{place}' may hold only text")))
        }
        Value::Null => Ok(String::new()),
        _ => Err(ApiError::invalid(place, format!("'{place}' must be a text, or a list of blocks"))),
    }
}

/// One message; results of tools become messages of their own, before what else the user says.
fn one(place: &str, message: &Value, said: &mut Vec<Value>) -> Result<(), ApiError> {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    if !["user", "assistant"].contains(&role) {
        return Err(ApiError::invalid(
            format!("{place}.role"),
            format!("'role' must be user or assistant, not '{role}'"),
        ));
    }
    let content = message.get("content").unwrap_or(&Value::Null);
    let Value::Array(blocks) = content else {
        said.push(json!({ "role": role, "content": texts(&format!("{place}.content"), content)? }));
        return Ok(());
    };
    let (mut parts, mut calls, mut has_image) = (Vec::new(), Vec::new(), false);
    for (number, block) in blocks.iter().enumerate() {
        let place = format!("{place}.content[{number}]");
        match block.get("type").and_then(Value::as_str) {
            Some("text") => parts.push(json!({ "type": "text", "text": block["text"] })),
            Some("image") => {
                has_image = true;
                parts.push(image(&place, block)?);
            }
            Some("tool_use") => {
                let function = json!({ "name": block["name"], "arguments": block["input"].to_string() });
                calls.push(json!({ "id": block["id"], "type": "function", "function": function }));
            }
            Some("tool_result") => {
                let content = texts(&format!("{place}.content"), block.get("content").unwrap_or(&Value::Null))?;
                said.push(json!({ "role": "tool", "tool_call_id": block["tool_use_id"], "content": content }));
            }
            // What a model thought is not told to another.
            Some("thinking" | "redacted_thinking") => {}
            other => {
                let kind = other.unwrap_or_default();
                return Err(ApiError::invalid(place, format!("a block of type '{kind}' cannot be read here")));
            }
        }
    }
    if parts.is_empty() && calls.is_empty() {
        return Ok(());
    }
    let content = if has_image {
        Value::Array(parts)
    } else {
        let texts: Vec<&str> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        if texts.is_empty() { Value::Null } else { json!(texts.join("\n")) }
    };
    let mut message = json!({ "role": role, "content": content });
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    said.push(message);
    Ok(())
}

fn image(place: &str, block: &Value) -> Result<Value, ApiError> {
    let source = &block["source"];
    let (Some("base64"), Some(media_type), Some(data)) =
        (source["type"].as_str(), source["media_type"].as_str(), source["data"].as_str())
    else {
        let message = "an image must have a 'source' of type base64; links are not followed";
        return Err(ApiError::invalid(format!("{place}.source"), message));
    };
    Ok(json!({ "type": "image_url", "image_url": { "url": format!("data:{media_type};base64,{data}") } }))
}

fn tools(messages: &Map<String, Value>, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    let given = messages.get("tools").and_then(Value::as_array).filter(|tools| !tools.is_empty());
    let Some(given) = given else { return Ok(()) };
    for (index, tool) in given.iter().enumerate() {
        if let Some(kind) = tool["type"].as_str().filter(|kind| *kind != "custom") {
            let message = format!("a tool of type '{kind}' is Anthropic's own; leave it out, or ask Anthropic's API");
            return Err(ApiError::new(ErrorCode::UnsupportedByModel, message).with_param(format!("tools[{index}]")));
        }
    }
    let tool = |tool: &Value| {
        let mut function = json!({ "name": tool["name"], "parameters": tool["input_schema"] });
        if let Some(description) = tool.get("description") {
            function["description"] = description.clone();
        }
        if let Some(strict) = tool.get("strict").filter(|strict| !strict.is_null()) {
            function["strict"] = strict.clone();
        }
        json!({ "type": "function", "function": function })
    };
    chat.insert("tools".to_owned(), given.iter().map(tool).collect());
    let Some(choice) = messages.get("tool_choice") else { return Ok(()) };
    let choice_word = match choice["type"].as_str() {
        Some("none") => json!("none"),
        Some("any") => json!("required"),
        Some("tool") => json!({ "type": "function", "function": { "name": choice["name"] } }),
        _ => json!("auto"),
    };
    chat.insert("tool_choice".to_owned(), choice_word);
    if choice.get("disable_parallel_tool_use") == Some(&json!(true)) {
        chat.insert("parallel_tool_calls".to_owned(), json!(false));
    }
    Ok(())
}
