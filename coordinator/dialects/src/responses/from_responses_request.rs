//! Translates a request of the Responses API into a chat.

use model_boss_protocol::{DEMANDS, Demand, THINKING_BUDGETS};
use serde_json::{Map, Value, json};

use super::items::{self, MessageList};
use super::refusal::ResponsesRefusal;
use crate::{ContextWish, Names, response_format};

/// Fields of a chat, each with the field of a request that holds the same value.
pub(super) const FIELDS: [(&str, &str); 26] = [
    ("model", "model"),
    ("stream", "stream"),
    ("max_tokens", "max_output_tokens"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_logprobs", "top_logprobs"),
    ("parallel_tool_calls", "parallel_tool_calls"),
    ("user", "user"),
    ("reasoning_effort", "reasoning.effort"),
    ("verbosity", "text.verbosity"),
    // Fields of other servers, which clients of local models add.
    ("keep_alive", "keep_alive"),
    ("thinking", "thinking"),
    ("chat_template_kwargs", "chat_template_kwargs"),
    ("continue_final_message", "continue_final_message"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("seed", "seed"),
    ("stop", "stop"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("repetition_penalty", "repetition_penalty"),
    ("logit_bias", "logit_bias"),
    ("cache_prompt", "cache_prompt"),
    ("cache_salt", "cache_salt"),
    ("timings_per_token", "timings_per_token"),
    ("return_progress", "return_progress"),
];

/// Services of OpenAI's own servers, by the field that asks for one, with the remedy.
const ELSEWHERE: [(&str, &str); 3] = [
    ("background", "answers in the background are not kept here; leave it out, and stream the answer"),
    ("conversation", "conversations are not kept here; send 'previous_response_id', or the whole list as 'input'"),
    ("prompt", "prompts are not kept here; send their text as 'instructions' and 'input'"),
];

/// The part of `include` that asks for log probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";
const TOP_LOGPROBS: &str = "top_logprobs";

/// A translated request.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponsesRequest {
    /// The chat.
    pub chat: Value,
    /// The client's names of the chat's fields.
    pub names: Names,
    /// The client's own items, each with an id.
    pub items: Vec<Value>,
    /// Whether the response is kept for later requests.
    pub store: bool,
    /// The client's wish about a context that is too small.
    pub context: ContextWish,
    /// The fields of a response that repeat the request's.
    pub echoed: Map<String, Value>,
}

/// The field that continues an earlier response.
pub const PREVIOUS: &str = "previous_response_id";

/// The earlier response that a request continues.
pub fn previous_response(request: &Map<String, Value>) -> Result<Option<&str>, ResponsesRefusal> {
    match request.get(PREVIOUS) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) => Ok(Some(id)),
        Some(_) => Err(ResponsesRefusal::malformed(PREVIOUS, format!("'{PREVIOUS}' must be a text"))),
    }
}

/// Translates a request that continues the items `earlier`. `id` names new items, as their ids begin with it.
pub fn from_responses_request(
    request: &Map<String, Value>,
    earlier: &[Value],
    id: &str,
) -> Result<ResponsesRequest, ResponsesRefusal> {
    for (name, remedy) in ELSEWHERE {
        if request.get(name).is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false))) {
            return Err(ResponsesRefusal::not_here(name, format!("'{name}': {remedy}")));
        }
    }
    let mut asked = ChatTranslation { chat: Map::new(), names: Names::default() };
    for (ours, theirs) in FIELDS.into_iter().chain(THINKING_BUDGETS.map(|name| (name, name))) {
        if let Some(value) = at(request, theirs) {
            asked.chat.insert(ours.to_owned(), value.clone());
            asked.names.moved(ours, theirs);
        }
    }
    for (name, value) in request.iter().filter(|(name, _)| name.starts_with("x_")) {
        asked.chat.insert(name.clone(), value.clone());
    }
    // Demands in another API's fields are copied: the engine or provider that serves the request meets or refuses them.
    for name in DEMANDS.into_iter().flat_map(Demand::fields) {
        if let Some(value) = request.get(name) {
            asked.chat.insert(name.to_owned(), value.clone());
        }
    }
    if request.get("stream") == Some(&json!(true)) {
        asked.chat.insert("stream_options".to_owned(), json!({ "include_usage": true }));
        asked.names.made("stream_options", "stream");
    }
    asked.form(request)?;
    asked.logprobs(request)?;
    asked.tools(request)?;
    let store = flag(request, "store", true)?;
    let context = context_wish(request)?;
    let items = asked.messages(request, earlier, id)?;
    let ChatTranslation { chat, names } = asked;
    let echoed = echoed(request, store);
    Ok(ResponsesRequest { chat: Value::Object(chat), names, items, store, context, echoed })
}

/// A chat under translation.
struct ChatTranslation {
    chat: Map<String, Value>,
    names: Names,
}

impl ChatTranslation {
    /// Translates `text.format`, or takes a `response_format` in its place.
    fn form(&mut self, request: &Map<String, Value>) -> Result<(), ResponsesRefusal> {
        const PLACE: &str = "text.format";
        let own = at(request, PLACE).filter(|format| format["type"] != "text");
        let given = response_format::demanded(request, own.map(|_| PLACE));
        if let Some(given) = given.map_err(|message| ResponsesRefusal::malformed(response_format::FIELD, message))? {
            self.chat.insert(response_format::FIELD.to_owned(), given.clone());
        }
        let Some(format) = own else { return Ok(()) };
        let ours = match format["type"].as_str() {
            Some("json_object") => json!({ "type": "json_object" }),
            Some("json_schema") if format["schema"].is_object() => {
                let mut schema = json!({ "schema": format["schema"] });
                schema["name"] = json!(format["name"].as_str().unwrap_or("response"));
                for name in ["strict", "description"] {
                    if let Some(value) = format.get(name).filter(|value| !value.is_null()) {
                        schema[name] = value.clone();
                        self.names.moved(format!("response_format.json_schema.{name}"), format!("{PLACE}.{name}"));
                    }
                }
                json!({ "type": "json_schema", "json_schema": schema })
            }
            Some("json_schema") => {
                let place = format!("{PLACE}.schema");
                return Err(ResponsesRefusal::malformed(place.clone(), format!("'{place}' is missing, or no object")));
            }
            _ => {
                let message = format!("'{PLACE}.type' must be text, json_object or json_schema");
                return Err(ResponsesRefusal::malformed(format!("{PLACE}.type"), message));
            }
        };
        self.chat.insert(response_format::FIELD.to_owned(), ours);
        self.names.made("response_format", PLACE);
        self.names.moved("response_format.type", format!("{PLACE}.type"));
        self.names.moved("response_format.json_schema.schema", format!("{PLACE}.schema"));
        Ok(())
    }

    /// Asks for log probabilities where `include` names them, or `top_logprobs` wants alternatives. Other parts of an
    /// answer are in it unasked, or not at all: clients ask each model for `reasoning.encrypted_content`.
    fn logprobs(&mut self, request: &Map<String, Value>) -> Result<(), ResponsesRefusal> {
        let include = match request.get("include") {
            None | Some(Value::Null) => &[][..],
            Some(Value::Array(include)) => include,
            Some(_) => return Err(ResponsesRefusal::malformed("include", "'include' must be a list")),
        };
        let is_included = include.iter().any(|name| name == LOGPROBS);
        // 0 is the default, which clients repeat from a response.
        if is_included || self.chat.get(TOP_LOGPROBS).is_some_and(|top| *top != 0) {
            self.chat.insert("logprobs".to_owned(), json!(true));
            self.names.made("logprobs", if is_included { "include" } else { TOP_LOGPROBS });
        } else {
            self.chat.shift_remove(TOP_LOGPROBS);
        }
        Ok(())
    }

    /// Translates functions, and the choice among them.
    fn tools(&mut self, request: &Map<String, Value>) -> Result<(), ResponsesRefusal> {
        let given: &[Value] = match request.get("tools") {
            None | Some(Value::Null) => &[],
            Some(Value::Array(tools)) => tools,
            Some(_) => return Err(ResponsesRefusal::malformed("tools", "'tools' must be a list")),
        };
        let mut functions = Vec::new();
        for (index, tool) in given.iter().enumerate() {
            let place = format!("tools[{index}]");
            let kind = tool["type"].as_str().unwrap_or_default();
            if kind != "function" {
                let message = match kind {
                    "custom" => format!(
                        "'{place}' is of type 'custom', a tool whose input is free text; calls here have arguments in \
                         JSON: give it as a function with one text among its parameters"
                    ),
                    _ => format!(
                        "'{place}' is a tool of type '{kind}', which only OpenAI's API has; leave it out, or give your \
                         own as a function"
                    ),
                };
                return Err(ResponsesRefusal::not_here(place, message));
            }
            let mut function = json!({ "name": tool["name"] });
            self.names.made(place.as_str(), place.as_str());
            self.names.moved(format!("{place}.type"), format!("{place}.type"));
            self.names.moved(format!("{place}.function.name"), format!("{place}.name"));
            for name in ["description", "parameters", "strict"] {
                if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
                    function[name] = value.clone();
                    self.names.moved(format!("{place}.function.{name}"), format!("{place}.{name}"));
                }
            }
            functions.push(json!({ "type": "function", "function": function }));
        }
        if !functions.is_empty() {
            self.chat.insert("tools".to_owned(), Value::Array(functions));
        }
        let choice = request.get("tool_choice").filter(|choice| !choice.is_null());
        let Some(choice) = choice else { return Ok(()) };
        let ours = match (choice, choice["type"].as_str()) {
            (Value::String(word), _) => json!(word),
            (_, Some("function")) => json!({ "type": "function", "function": { "name": choice["name"] } }),
            (_, Some("allowed_tools")) => self.allowed_tools(choice)?,
            (_, kind) => {
                let kind = kind.unwrap_or_default();
                let message = format!(
                    "'tool_choice' of type '{kind}' chooses a tool that is not called here; choose a function by name"
                );
                return Err(ResponsesRefusal::not_here("tool_choice", message));
            }
        };
        self.chat.insert("tool_choice".to_owned(), ours);
        self.names.made("tool_choice", "tool_choice");
        self.names.made("tool_choice.function.name", "tool_choice.name");
        Ok(())
    }

    /// Translates a choice among some of the tools. All others stay in the request, as the prefix cache has them.
    fn allowed_tools(&mut self, choice: &Value) -> Result<Value, ResponsesRefusal> {
        const PLACE: &str = "tool_choice.tools";
        let Some(listed) = choice["tools"].as_array() else {
            return Err(ResponsesRefusal::malformed(PLACE, format!("'{PLACE}' is missing, or no list")));
        };
        let mut tools = Vec::new();
        for (index, tool) in listed.iter().enumerate() {
            let theirs = format!("{PLACE}[{index}]");
            if tool["type"] != "function" || !tool["name"].is_string() {
                let message = format!("'{theirs}' must be a function with its name: no other tools are called here");
                return Err(ResponsesRefusal::not_here(theirs, message));
            }
            self.names.made(format!("tool_choice.allowed_tools.tools[{index}]"), theirs);
            tools.push(json!({ "type": "function", "function": { "name": tool["name"] } }));
        }
        let mode = choice.get("mode").filter(|mode| !mode.is_null());
        if mode.is_some() {
            self.names.moved("tool_choice.allowed_tools.mode", "tool_choice.mode");
        }
        let mode = mode.cloned().unwrap_or_else(|| json!("auto"));
        Ok(json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": tools } }))
    }

    /// Translates instructions, earlier items and the input. Returns the input's items, each with an id.
    fn messages(
        &mut self,
        request: &Map<String, Value>,
        earlier: &[Value],
        id: &str,
    ) -> Result<Vec<Value>, ResponsesRefusal> {
        let mut said = MessageList::new(&mut self.names);
        match request.get("instructions") {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => said.instruct(text),
            Some(_) => return Err(ResponsesRefusal::malformed("instructions", "'instructions' must be a text")),
        }
        for item in earlier {
            said.push(PREVIOUS, item)?;
        }
        let own = match request.get("input") {
            Some(Value::String(text)) => {
                let content = json!([{ "type": "input_text", "text": text }]);
                let item = json!({ "type": "message", "role": "user", "content": content });
                said.push_text("input", text);
                vec![item]
            }
            Some(Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    said.push(&format!("input[{index}]"), item)?;
                }
                items.clone()
            }
            None | Some(Value::Null) if !earlier.is_empty() => Vec::new(),
            _ => {
                let message = "'input' is missing; it must be a text, or a list of items";
                return Err(ResponsesRefusal::malformed("input", message));
            }
        };
        let messages = said.end();
        if messages.is_empty() {
            return Err(ResponsesRefusal::malformed("input", "'input' is empty; at least one message is needed"));
        }
        self.chat.insert("messages".to_owned(), Value::Array(messages));
        self.names.made("messages", "input");
        Ok(items::with_ids(own, id))
    }
}

/// The value at a place such as `text.format`, unless it is absent or null.
fn at<'a>(request: &'a Map<String, Value>, place: &str) -> Option<&'a Value> {
    let mut path = place.split('.');
    let first = path.next().and_then(|name| request.get(name));
    path.fold(first, |value, name| value?.get(name)).filter(|value| !value.is_null())
}

fn flag(request: &Map<String, Value>, name: &str, default: bool) -> Result<bool, ResponsesRefusal> {
    match request.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(value)) => Ok(*value),
        Some(_) => Err(ResponsesRefusal::malformed(name, format!("'{name}' must be true or false"))),
    }
}

fn context_wish(request: &Map<String, Value>) -> Result<ContextWish, ResponsesRefusal> {
    let shortens = match request.get("truncation").map(Value::as_str) {
        None | Some(Some("disabled")) => false,
        Some(Some("auto")) => true,
        Some(None) if request["truncation"].is_null() => false,
        Some(_) => {
            let message = "'truncation' must be \"auto\" or \"disabled\"";
            return Err(ResponsesRefusal::malformed("truncation", message));
        }
    };
    Ok(ContextWish { shortens, ..ContextWish::default() })
}

/// The fields of a response that repeat the request's, with their defaults.
fn echoed(request: &Map<String, Value>, store: bool) -> Map<String, Value> {
    let given = |name: &str| request.get(name).filter(|value| !value.is_null()).cloned();
    let mut echoed = Map::new();
    for (name, default) in [
        ("background", json!(false)),
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("max_tool_calls", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", json!(true)),
        (PREVIOUS, Value::Null),
        ("service_tier", json!("default")),
        ("temperature", Value::Null),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_logprobs", json!(0)),
        ("top_p", Value::Null),
        ("truncation", json!("disabled")),
        ("user", Value::Null),
    ] {
        echoed.insert(name.to_owned(), given(name).unwrap_or(default));
    }
    let format = at(request, "text.format").filter(|format| !format.is_null() && format["type"] != "text");
    let format = format.cloned().or_else(|| chats_format(request));
    let text = json!({ "format": format.unwrap_or_else(|| json!({ "type": "text" })) });
    echoed.insert("text".to_owned(), text);
    let reasoning = json!({ "effort": at(request, "reasoning.effort"), "summary": at(request, "reasoning.summary") });
    echoed.insert("reasoning".to_owned(), reasoning);
    echoed.insert("store".to_owned(), json!(store));
    echoed
}

/// The form in the field of chats, as `text.format` has it.
fn chats_format(request: &Map<String, Value>) -> Option<Value> {
    let mut format = request.get(response_format::FIELD)?.as_object()?.clone();
    if let Some(Value::Object(schema)) = format.shift_remove("json_schema") {
        format.extend(schema);
    }
    Some(Value::Object(format))
}
