//! Translates Ollama's requests into OpenAI's.

use model_boss_protocol::{DEMANDS, Demand, KeepAlive, THINKING_BUDGETS};
use serde_json::{Map, Value, json};

use crate::error::DialectError;
use crate::links::is_picture;
use crate::{ContextWish, Names, response_format};

/// A translated request of Ollama's API.
#[derive(Clone, Debug, PartialEq)]
pub enum OllamaRequest {
    /// An OpenAI chat request, and the client's names of its fields.
    Chat(Value, Names),
    /// An OpenAI completion request for the unchanged prompt, and the client's names of its fields.
    Completion(Value, Names),
    /// A request without a prompt: the model is loaded.
    Load,
    /// A request without a prompt and with `keep_alive` 0: the model is unloaded at once.
    Unload,
}

/// One of Ollama's two embedding routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbedShape {
    /// `/api/embed`, for one text or several.
    Several,
    /// `/api/embeddings`, the older route, for one text.
    One,
}

/// The request's `keep_alive`: the time for which the model stays loaded. `None` if the request has none.
pub fn keep_alive_of(body: &Map<String, Value>) -> Result<Option<KeepAlive>, DialectError> {
    match body.get("keep_alive") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => serde_json::from_value(value.clone()).map(Some).map_err(|error| {
            let message = format!("'keep_alive' must be seconds as a number, or a duration such as \"5m\": {error}");
            DialectError::invalid("keep_alive", message)
        }),
    }
}

/// The request's wish about a context that is too small. Unlike all other APIs, Ollama's shortens prompts and goes on
/// behind the end of the context unless a request says otherwise.
pub fn context_wish(body: &Map<String, Value>) -> Result<ContextWish, DialectError> {
    let keep = match body.get("options").and_then(|options| options.get("num_keep")) {
        None | Some(Value::Null) => None,
        Some(value) => Some(value.as_i64().ok_or_else(|| {
            DialectError::invalid("options.num_keep", "'options.num_keep' must be a whole number of tokens")
        })?),
    };
    Ok(ContextWish { shortens: flag(body, "truncate")?, keep, shifts: flag(body, "shift")? })
}

/// The context that a request wants of its model, in tokens.
pub fn num_ctx(body: &Map<String, Value>) -> Result<Option<u64>, DialectError> {
    match body.get("options").and_then(|options| options.get("num_ctx")) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            // Clients send 0 for the usual context.
            Some(0) => Ok(None),
            Some(tokens) => Ok(Some(tokens)),
            None => {
                let message = "'options.num_ctx' must be a whole number of tokens";
                Err(DialectError::invalid("options.num_ctx", message))
            }
        },
    }
}

/// The names of a request's options that have no effect: those about loading, which the manifest and the operator
/// decide, and those that no one knows.
pub fn ignored_options(body: &Map<String, Value>) -> Vec<&str> {
    let known = |name: &str| {
        OPTIONS.iter().any(|(_, theirs)| *theirs == name)
            || ["num_ctx", "num_keep"].contains(&name)
            || DEMANDS.into_iter().flat_map(Demand::fields).any(|field| field == name)
    };
    let given = body.get("options").and_then(Value::as_object).into_iter().flatten();
    given.filter(|(name, value)| !value.is_null() && !known(name)).map(|(name, _)| name.as_str()).collect()
}

/// A field that is true unless the request says otherwise.
fn flag(body: &Map<String, Value>, name: &str) -> Result<bool, DialectError> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(true),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(DialectError::invalid(name, format!("'{name}' must be true or false"))),
    }
}

/// Translates a request of `POST /api/chat`.
pub fn from_chat(body: &Map<String, Value>) -> Result<OllamaRequest, DialectError> {
    let empty = Vec::new();
    let messages = match body.get("messages") {
        None | Some(Value::Null) => &empty,
        Some(Value::Array(messages)) => messages,
        Some(_) => return Err(DialectError::invalid("messages", "'messages' must be a list")),
    };
    if messages.is_empty() {
        return nothing_asked(body);
    }
    // Ollama's tool calls may lack ids, while OpenAI's tool results name the call that they answer.
    let mut calls = Vec::new();
    let mut said = Vec::new();
    let mut asked = Translation::begin(body)?;
    for (index, message) in messages.iter().enumerate() {
        let place = format!("messages[{index}]");
        let (ours, content, images) = (place.clone(), format!("{place}.content"), format!("{place}.images"));
        let at = At { index, ours, content, images };
        said.push(chat_message(&place, message, &at, &mut calls, &mut asked.names)?);
    }
    asked.request["messages"] = Value::Array(said);
    match body.get("tools") {
        None | Some(Value::Null) => {}
        Some(Value::Array(tools)) if tools.is_empty() => {}
        Some(tools @ Value::Array(_)) => asked.request["tools"] = tools.clone(),
        Some(_) => return Err(DialectError::invalid("tools", "'tools' must be a list")),
    }
    // Ollama has no such fields; those of OpenAI mean the same here.
    for field in ["tool_choice", "parallel_tool_calls"] {
        if let Some(given) = body.get(field).filter(|given| !given.is_null()) {
            asked.set(field, given.clone(), field);
        }
    }
    Ok(OllamaRequest::Chat(asked.request, asked.names))
}

/// Translates a request of `POST /api/generate`.
pub fn from_generate(body: &Map<String, Value>) -> Result<OllamaRequest, DialectError> {
    let text = |name: &str| match body.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(DialectError::invalid(name, format!("'{name}' must be a text"))),
    };
    if !text("template")?.is_empty() {
        let message = "'template' is in Ollama's own language, which no engine here reads; leave it out, set \
                       'chat_template' in the model's manifest, or send the whole text with \"raw\": true";
        return Err(DialectError::unsupported("template", message));
    }
    if body.get("context").and_then(Value::as_array).is_some_and(|tokens| !tokens.is_empty()) {
        let message = "'context' cannot be read here; send what was said before as messages to /api/chat";
        return Err(DialectError::unsupported("context", message));
    }
    let (prompt, suffix) = (text("prompt")?, text("suffix")?);
    let has_images = match body.get("images") {
        None | Some(Value::Null) => false,
        Some(Value::Array(images)) => !images.is_empty(),
        Some(_) => return Err(DialectError::invalid("images", "'images' must be a list")),
    };
    if prompt.is_empty() && suffix.is_empty() && !has_images {
        return nothing_asked(body);
    }
    let mut asked = Translation::begin(body)?;
    if body.get("raw") == Some(&json!(true)) || !suffix.is_empty() {
        if has_images {
            let message = "'images' are read in a conversation only; leave out 'raw' and 'suffix'";
            return Err(DialectError::invalid("images", message));
        }
        asked.set("prompt", json!(prompt), "prompt");
        // The `suffix` is passed on: the engine or provider that serves the request meets or refuses it.
        if !suffix.is_empty() {
            asked.set("suffix", json!(suffix), "suffix");
        }
        // Completions end after 16 tokens by default; Ollama's have no limit.
        if asked.request.get("max_tokens").is_none() {
            asked.make("max_tokens", json!(-1), "options.num_predict");
        }
        // In a completion, `logprobs` is the number of alternatives, not a flag.
        if let Some(fields) = asked.request.as_object_mut() {
            let (wanted, top) = (fields.remove("logprobs"), fields.remove("top_logprobs"));
            if wanted == Some(json!(true)) {
                let name = if top.is_some() { "top_logprobs" } else { "logprobs" };
                asked.set("logprobs", top.unwrap_or_else(|| json!(0)), name);
            }
        }
        return Ok(OllamaRequest::Completion(asked.request, asked.names));
    }
    let mut messages = Vec::new();
    let system = text("system")?;
    if !system.is_empty() {
        messages.push(json!({ "role": "system", "content": system }));
        asked.names.made("messages[0]", "system");
    }
    let said = json!({ "role": "user", "content": prompt, "images": body.get("images") });
    let index = messages.len();
    let at = At { index, ours: format!("messages[{index}]"), content: "prompt".into(), images: "images".into() };
    asked.names.made(at.ours.as_str(), "prompt");
    messages.push(chat_message("prompt", &said, &at, &mut Vec::new(), &mut asked.names)?);
    asked.request["messages"] = Value::Array(messages);
    asked.names.made("messages", "prompt");
    Ok(OllamaRequest::Chat(asked.request, asked.names))
}

/// Translates a request of `POST /api/embed` or `/api/embeddings`. Returns OpenAI's request, and the client's names of
/// its fields.
pub fn from_embed(body: &Map<String, Value>, shape: EmbedShape) -> Result<(Value, Names), DialectError> {
    let field = if shape == EmbedShape::One { "prompt" } else { "input" };
    let input = match body.get(field) {
        Some(text @ Value::String(_)) => text.clone(),
        Some(Value::Array(texts)) if shape == EmbedShape::Several && texts.iter().all(Value::is_string) => json!(texts),
        _ => return Err(DialectError::invalid(field, format!("'{field}' is missing, or no text"))),
    };
    let mut names = Names::default();
    names.moved("input", field);
    let mut request = json!({ "model": model(body)?, "input": input });
    for (name, value) in body.iter().filter(|(_, value)| !value.is_null()) {
        if name == "keep_alive" || name == "dimensions" || name.starts_with("x_") {
            request[name] = value.clone();
        }
    }
    Ok((request, names))
}

fn nothing_asked(body: &Map<String, Value>) -> Result<OllamaRequest, DialectError> {
    model(body)?;
    let leaves = keep_alive_of(body)? == Some(KeepAlive::For(std::time::Duration::ZERO));
    Ok(if leaves { OllamaRequest::Unload } else { OllamaRequest::Load })
}

fn model(body: &Map<String, Value>) -> Result<&str, DialectError> {
    model_name(body).ok_or_else(|| DialectError::invalid("model", "'model' is missing"))
}

/// The model that a request names. Ollama's command line still uses the older field `name`, beside an empty `model`.
pub fn model_name(body: &Map<String, Value>) -> Option<&str> {
    ["model", "name"].into_iter().filter_map(|field| body.get(field)?.as_str()).find(|name| !name.is_empty())
}

/// Fields of OpenAI's API or the candle worker's additions, each with Ollama's option that holds the same value.
pub(super) const OPTIONS: [(&str, &str); 12] = [
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("seed", "seed"),
    ("stop", "stop"),
    ("max_tokens", "num_predict"),
    ("repeat_penalty", "repeat_penalty"),
    ("repeat_last_n", "repeat_last_n"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("logit_bias", "logit_bias"),
];

/// Fields with the same name and meaning in both APIs, and fields of other servers that the candle worker reads.
const SAME: [&str; 6] =
    ["keep_alive", "logprobs", "top_logprobs", "continue_final_message", "cache_prompt", "cache_salt"];

/// A request under translation into OpenAI's fields.
struct Translation {
    request: Value,
    names: Names,
}

impl Translation {
    /// Translates everything but the messages: model, options, form of the answer. Options that would load the model
    /// differently (`num_gpu`, …) have no effect: the manifest and the operator decide about them. [`num_ctx`] is read
    /// apart.
    fn begin(body: &Map<String, Value>) -> Result<Self, DialectError> {
        let mut asked = Self { request: json!({ "model": model(body)? }), names: Names::default() };
        let given = match body.get("options") {
            None | Some(Value::Null) => None,
            Some(Value::Object(options)) => Some(options),
            Some(_) => return Err(DialectError::invalid("options", "'options' must be an object")),
        };
        let option = |name: &str| given.and_then(|options| options.get(name)).filter(|value| !value.is_null());
        for (ours, theirs) in OPTIONS {
            let Some(value) = option(theirs) else { continue };
            // A negative length means no limit.
            if theirs != "num_predict" || value.as_i64().is_none_or(|limit| limit >= 0) {
                asked.set(ours, value.clone(), &format!("options.{theirs}"));
            }
        }
        keep_alive_of(body)?;
        for (name, value) in body.iter().filter(|(_, value)| !value.is_null()) {
            if name.starts_with("x_") || SAME.contains(&name.as_str()) || THINKING_BUDGETS.contains(&name.as_str()) {
                asked.set(name, value.clone(), name);
            }
        }
        asked.form(body)?;
        // Demands in another API's fields are copied: the engine or provider that serves the request meets or refuses
        // them.
        for name in DEMANDS.into_iter().flat_map(Demand::fields) {
            if let Some(value) = body.get(name).filter(|value| !value.is_null() && **value != json!("")) {
                asked.set(name, value.clone(), name);
            } else if let Some(value) = option(name) {
                asked.set(name, value.clone(), &format!("options.{name}"));
            }
        }
        match body.get("think") {
            None | Some(Value::Null) => {}
            Some(Value::Bool(think)) => {
                asked.make("chat_template_kwargs", json!({ "enable_thinking": think }), "think")
            }
            Some(Value::String(effort)) => asked.make("reasoning_effort", json!(effort), "think"),
            Some(_) => {
                return Err(DialectError::invalid("think", "'think' must be true, false, or low, medium or high"));
            }
        }
        if flag(body, "stream")? {
            asked.make("stream", json!(true), "stream");
            asked.make("stream_options", json!({ "include_usage": true }), "stream");
        }
        Ok(asked)
    }

    /// Sets a field to the value of the request's `theirs`.
    fn set(&mut self, ours: &str, value: Value, theirs: &str) {
        self.request[ours] = value;
        self.names.moved(ours, theirs);
    }

    /// Sets a field to a value computed from the request's `theirs`.
    fn make(&mut self, ours: &str, value: Value, theirs: &str) {
        self.request[ours] = value;
        self.names.made(ours, theirs);
    }

    /// Translates the wanted form of the answer, or takes a `response_format` in its place.
    fn form(&mut self, body: &Map<String, Value>) -> Result<(), DialectError> {
        let own = body.get("format").filter(|format| !format.is_null() && **format != json!(""));
        let other = response_format::demanded(body, own.map(|_| "format"));
        if let Some(other) = other.map_err(|message| DialectError::invalid(response_format::FIELD, message))? {
            self.set(response_format::FIELD, other.clone(), response_format::FIELD);
        }
        match own {
            None => {}
            Some(Value::String(word)) if word == "json" => {
                self.make("response_format", json!({ "type": "json_object" }), "format");
            }
            Some(schema @ Value::Object(_)) => {
                let schema = json!({ "name": "format", "schema": schema, "strict": true });
                self.make("response_format", json!({ "type": "json_schema", "json_schema": schema }), "format");
                self.names.moved("response_format.json_schema.schema", "format");
            }
            Some(_) => return Err(DialectError::invalid("format", "'format' must be \"json\" or a JSON schema")),
        }
        Ok(())
    }
}

/// Places of one message: its index and place in the translation, and the places of its text and images in the request.
struct At {
    index: usize,
    ours: String,
    content: String,
    images: String,
}

/// A tool call that has no result yet.
struct UnansweredCall {
    id: String,
    name: String,
}

fn chat_message(
    place: &str,
    message: &Value,
    at: &At,
    calls: &mut Vec<UnansweredCall>,
    names: &mut Names,
) -> Result<Value, DialectError> {
    let ours = &at.ours;
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    if !["system", "user", "assistant", "tool"].contains(&role) {
        let message = format!("'role' must be system, user, assistant or tool, not '{role}'");
        return Err(DialectError::invalid(format!("{place}.role"), message));
    }
    let text = match message.get("content") {
        None | Some(Value::Null) => "",
        Some(Value::String(text)) => text.as_str(),
        Some(_) => return Err(DialectError::invalid(at.content.as_str(), "'content' must be a text")),
    };
    let mut said = json!({ "role": role, "content": text });
    let images: &[Value] = match message.get("images") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(images)) => images,
        Some(_) => return Err(DialectError::invalid(at.images.as_str(), "'images' must be a list")),
    };
    if !images.is_empty() {
        // Ollama puts a message's images in front of its text.
        let mut parts = Vec::with_capacity(images.len() + 1);
        names.made(format!("{ours}.content"), at.content.as_str());
        for (index, image) in images.iter().enumerate() {
            let theirs = format!("{}[{index}]", at.images);
            let data = image.as_str().filter(|data| is_picture(data)).ok_or_else(|| {
                DialectError::invalid(theirs.as_str(), "an image must be a text in base64; links are not followed")
            })?;
            let url = format!("data:{};base64,{data}", media_type(data));
            names.made(format!("{ours}.content[{}]", parts.len()), theirs);
            parts.push(json!({ "type": "image_url", "image_url": { "url": url } }));
        }
        parts.push(json!({ "type": "text", "text": text }));
        said["content"] = Value::Array(parts);
    }
    match message.get("thinking") {
        None | Some(Value::Null) => {}
        Some(Value::String(thoughts)) => {
            if role == "assistant" && !thoughts.is_empty() {
                said["reasoning_content"] = json!(thoughts);
                names.moved(format!("{ours}.reasoning_content"), format!("{place}.thinking"));
            }
        }
        Some(_) => {
            let place = format!("{place}.thinking");
            return Err(DialectError::invalid(place.as_str(), format!("'{place}' must be a text")));
        }
    }
    let made: &[Value] = match message.get("tool_calls") {
        None | Some(Value::Null) => &[],
        Some(Value::Array(made)) => made,
        Some(_) => {
            let place = format!("{place}.tool_calls");
            return Err(DialectError::invalid(place.as_str(), format!("'{place}' must be a list")));
        }
    };
    if !made.is_empty() {
        calls.clear();
        let mut translated = Vec::new();
        for (number, call) in made.iter().enumerate() {
            let function = &call["function"];
            let theirs = format!("{place}.tool_calls[{number}]");
            let id = call["id"].as_str().map_or_else(|| format!("call_{}_{number}", at.index), str::to_owned);
            calls.push(UnansweredCall {
                id: id.clone(),
                name: function["name"].as_str().unwrap_or_default().to_owned(),
            });
            let arguments = match &function["arguments"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            names.made(format!("{ours}.tool_calls[{number}]"), theirs.as_str());
            for field in ["name", "arguments"] {
                let field = format!("function.{field}");
                names.made(format!("{ours}.tool_calls[{number}].{field}"), format!("{theirs}.{field}"));
            }
            translated.push(json!({
                "id": id, "type": "function", "function": { "name": function["name"], "arguments": arguments },
            }));
        }
        said["tool_calls"] = Value::Array(translated);
    }
    if role == "tool" {
        let own = message.get("tool_call_id").and_then(Value::as_str).map(str::to_owned);
        // A result has only the name of its function. Results of one function are in the order of its calls.
        let name = message.get("tool_name").and_then(Value::as_str);
        let next = calls.iter().position(|call| Some(call.name.as_str()) == name).unwrap_or(0);
        let next = if calls.is_empty() { format!("call_{}", at.index) } else { calls.remove(next).id };
        if own.is_none() {
            names.made(format!("{ours}.tool_call_id"), place);
        }
        said["tool_call_id"] = json!(own.unwrap_or(next));
    }
    Ok(said)
}

/// The media type of an image, by its first bytes in base64; PNG if unknown.
fn media_type(data: &str) -> &'static str {
    match () {
        () if data.starts_with("/9j/") => "image/jpeg",
        () if data.starts_with("R0lGOD") => "image/gif",
        () if data.starts_with("UklGR") => "image/webp",
        () => "image/png",
    }
}
