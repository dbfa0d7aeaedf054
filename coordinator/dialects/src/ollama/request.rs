//! Ollama's requests as OpenAI's.

use model_boss_protocol::{ApiError, DEMANDS, Demand, KeepAlive};
use serde_json::{Map, Value, json};

use crate::links::is_picture;

/// What a request comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// A chat, as OpenAI has it, and whether the answer is streamed. Ollama streams unless told otherwise.
    Chat(Value, bool),
    /// A completion of a text as it stands.
    Completion(Value, bool),
    /// Nothing is asked: the model is to be loaded.
    Load,
    /// Nothing is asked, and the model is to leave at once.
    Unload,
}

/// Which of Ollama's two embedding routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbedShape {
    /// `/api/embed`: several texts.
    Several,
    /// `/api/embeddings`: one, the older route.
    One,
}

/// How long the model shall stay, if the request says.
pub fn keep_alive_of(body: &Map<String, Value>) -> Result<Option<KeepAlive>, ApiError> {
    match body.get("keep_alive") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => serde_json::from_value(value.clone()).map(Some).map_err(|error| {
            let message = format!("'keep_alive' must be seconds as a number, or a duration such as \"5m\": {error}");
            ApiError::invalid("keep_alive", message)
        }),
    }
}

/// `POST /api/chat`.
pub fn chat(body: &Map<String, Value>) -> Result<Asked, ApiError> {
    let empty = Vec::new();
    let messages = match body.get("messages") {
        None | Some(Value::Null) => &empty,
        Some(Value::Array(messages)) => messages,
        Some(_) => return Err(ApiError::invalid("messages", "'messages' must be a list")),
    };
    if messages.is_empty() {
        return nothing_asked(body);
    }
    // Ollama's calls have no ids; OpenAI's results name the call they answer.
    let mut calls: Vec<String> = Vec::new();
    let mut said = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        said.push(chat_message(index, message, &mut calls)?);
    }
    let mut chat = options(body)?;
    chat["messages"] = Value::Array(said);
    if let Some(tools) = body.get("tools").filter(|tools| tools.as_array().is_some_and(|tools| !tools.is_empty())) {
        chat["tools"] = tools.clone();
    }
    Ok(Asked::Chat(chat, streams(body)?))
}

/// `POST /api/generate`.
pub fn generate(body: &Map<String, Value>) -> Result<Asked, ApiError> {
    let text = |name: &str| match body.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(ApiError::invalid(name, format!("'{name}' must be a text"))),
    };
    for name in ["suffix", "template"] {
        if !text(name)?.is_empty() {
            return Err(ApiError::invalid(name, format!("'{name}' is not supported here; leave it out")));
        }
    }
    let prompt = text("prompt")?;
    let has_images = body.get("images").and_then(Value::as_array).is_some_and(|images| !images.is_empty());
    if prompt.is_empty() && !has_images {
        return nothing_asked(body);
    }
    let mut request = options(body)?;
    if body.get("raw") == Some(&json!(true)) {
        request["prompt"] = json!(prompt);
        // A completion's field is the number of alternatives.
        if let Some(fields) = request.as_object_mut() {
            let (wanted, top) = (fields.remove("logprobs"), fields.remove("top_logprobs"));
            if wanted == Some(json!(true)) {
                fields.insert("logprobs".to_owned(), top.unwrap_or_else(|| json!(0)));
            }
        }
        return Ok(Asked::Completion(request, streams(body)?));
    }
    let mut messages = Vec::new();
    let system = text("system")?;
    if !system.is_empty() {
        messages.push(json!({ "role": "system", "content": system }));
    }
    let asked = json!({ "role": "user", "content": prompt, "images": body.get("images") });
    messages.push(chat_message(0, &asked, &mut Vec::new())?);
    request["messages"] = Value::Array(messages);
    Ok(Asked::Chat(request, streams(body)?))
}

/// `POST /api/embed` and `/api/embeddings`.
pub fn embed(body: &Map<String, Value>, shape: EmbedShape) -> Result<Value, ApiError> {
    let field = if shape == EmbedShape::One { "prompt" } else { "input" };
    let input = match body.get(field) {
        Some(text @ Value::String(_)) => text.clone(),
        Some(Value::Array(texts)) if shape == EmbedShape::Several && texts.iter().all(Value::is_string) => json!(texts),
        _ => return Err(ApiError::invalid(field, format!("'{field}' is missing, or no text"))),
    };
    let mut request = json!({ "model": model(body)?, "input": input });
    for (name, value) in body.iter().filter(|(_, value)| !value.is_null()) {
        if name == "keep_alive" || name == "dimensions" || name.starts_with("x_") {
            request[name] = value.clone();
        }
    }
    Ok(request)
}

fn nothing_asked(body: &Map<String, Value>) -> Result<Asked, ApiError> {
    model(body)?;
    let leaves = keep_alive_of(body)? == Some(KeepAlive::For(std::time::Duration::ZERO));
    Ok(if leaves { Asked::Unload } else { Asked::Load })
}

fn model(body: &Map<String, Value>) -> Result<&str, ApiError> {
    let name = body.get("model").or_else(|| body.get("name")).and_then(Value::as_str).filter(|name| !name.is_empty());
    name.ok_or_else(|| ApiError::invalid("model", "'model' is missing"))
}

fn streams(body: &Map<String, Value>) -> Result<bool, ApiError> {
    match body.get("stream") {
        None | Some(Value::Null) => Ok(true),
        Some(Value::Bool(stream)) => Ok(*stream),
        Some(_) => Err(ApiError::invalid("stream", "'stream' must be true or false")),
    }
}

/// The options with the names that OpenAI's API, or our worker's additions to it, have for them.
const OPTIONS: [(&str, &str); 12] = [
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("seed", "seed"),
    ("stop", "stop"),
    ("num_predict", "max_tokens"),
    ("repeat_penalty", "repeat_penalty"),
    ("repeat_last_n", "repeat_last_n"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("logit_bias", "logit_bias"),
];

/// Everything but what is said: model, options, form of the answer. Options that would load the model otherwise (`num_ctx`,
/// `num_gpu`, …) are the manifest's and the operator's here, and passed over.
fn options(body: &Map<String, Value>) -> Result<Value, ApiError> {
    let mut request = json!({ "model": model(body)? });
    let given = match body.get("options") {
        None | Some(Value::Null) => None,
        Some(Value::Object(options)) => Some(options),
        Some(_) => return Err(ApiError::invalid("options", "'options' must be an object")),
    };
    for (theirs, ours) in OPTIONS {
        let Some(value) = given.and_then(|options| options.get(theirs)).filter(|value| !value.is_null()) else {
            continue;
        };
        // A negative length is no limit.
        let is_no_limit = theirs == "num_predict" && value.as_i64().is_some_and(|limit| limit < 0);
        if !is_no_limit {
            request[ours] = value.clone();
        }
    }
    if let Some(keep_alive) = body.get("keep_alive").filter(|value| !value.is_null()) {
        keep_alive_of(body)?;
        request["keep_alive"] = keep_alive.clone();
    }
    for (name, value) in body.iter().filter(|(name, _)| name.starts_with("x_")) {
        request[name] = value.clone();
    }
    match body.get("format") {
        None | Some(Value::Null) => {}
        Some(Value::String(word)) if word.is_empty() => {}
        Some(Value::String(word)) if word == "json" => request["response_format"] = json!({ "type": "json_object" }),
        Some(schema @ Value::Object(_)) => {
            let schema = json!({ "name": "format", "schema": schema, "strict": true });
            request["response_format"] = json!({ "type": "json_schema", "json_schema": schema });
        }
        Some(_) => return Err(ApiError::invalid("format", "'format' must be \"json\" or a JSON schema")),
    }
    for name in ["logprobs", "top_logprobs"] {
        if let Some(value) = body.get(name).filter(|value| !value.is_null()) {
            request[name] = value.clone();
        }
    }
    // A demand in another API's words is for who serves the request to meet or to refuse.
    for name in DEMANDS.into_iter().flat_map(Demand::fields) {
        if let Some(value) = body.get(name).or_else(|| given?.get(name)) {
            request[name] = value.clone();
        }
    }
    match body.get("think") {
        None | Some(Value::Null) => {}
        Some(Value::Bool(think)) => request["chat_template_kwargs"] = json!({ "enable_thinking": think }),
        Some(Value::String(effort)) => request["reasoning_effort"] = json!(effort),
        Some(_) => return Err(ApiError::invalid("think", "'think' must be true, false, or low, medium or high")),
    }
    if streams(body)? {
        request["stream"] = json!(true);
        request["stream_options"] = json!({ "include_usage": true });
    }
    Ok(request)
}

fn chat_message(index: usize, message: &Value, calls: &mut Vec<String>) -> Result<Value, ApiError> {
    let place = |field: &str| format!("messages[{index}].{field}");
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    if !["system", "user", "assistant", "tool"].contains(&role) {
        let message = format!("'role' must be system, user, assistant or tool, not '{role}'");
        return Err(ApiError::invalid(place("role"), message));
    }
    let text = match message.get("content") {
        None | Some(Value::Null) => "",
        Some(Value::String(text)) => text.as_str(),
        Some(_) => return Err(ApiError::invalid(place("content"), "'content' must be a text")),
    };
    let mut said = json!({ "role": role, "content": text });
    let images = message.get("images").and_then(Value::as_array).filter(|images| !images.is_empty());
    if let Some(images) = images {
        let mut parts = vec![json!({ "type": "text", "text": text })];
        for image in images {
            let data = image.as_str().filter(|data| is_picture(data)).ok_or_else(|| {
                ApiError::invalid(place("images"), "an image must be a text in base64; links are not followed")
            })?;
            let url = format!("data:{};base64,{data}", media_type(data));
            parts.push(json!({ "type": "image_url", "image_url": { "url": url } }));
        }
        said["content"] = Value::Array(parts);
    }
    if let Some(made) = message.get("tool_calls").and_then(Value::as_array).filter(|made| !made.is_empty()) {
        calls.clear();
        let call = |(number, call): (usize, &Value)| {
            let function = &call["function"];
            let id = call["id"].as_str().map_or_else(|| format!("call_{index}_{number}"), str::to_owned);
            calls.push(id.clone());
            let arguments = match &function["arguments"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            json!({ "id": id, "type": "function", "function": { "name": function["name"], "arguments": arguments } })
        };
        said["tool_calls"] = made.iter().enumerate().map(call).collect();
    }
    if role == "tool" {
        let own = message.get("tool_call_id").and_then(Value::as_str).map(str::to_owned);
        // Results come in the order of the calls.
        let next = if calls.is_empty() { format!("call_{index}") } else { calls.remove(0) };
        said["tool_call_id"] = json!(own.unwrap_or(next));
    }
    Ok(said)
}

/// What an image is, by its first bytes in base64.
fn media_type(data: &str) -> &'static str {
    match () {
        () if data.starts_with("/9j/") => "image/jpeg",
        () if data.starts_with("R0lGOD") => "image/gif",
        () if data.starts_with("UklGR") => "image/webp",
        () => "image/png",
    }
}
