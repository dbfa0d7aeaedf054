//! Translates a chat answer, whole or streamed, into a response of the Responses API.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::error::DialectError;
use crate::sse::{self, SseItem, SseReader};
use crate::{Names, Reshape, Stamp, arguments, nonsense};

/// The most bytes of a response, since its last event repeats all of it.
const LONGEST: usize = 16 << 20;

/// The most items of a response.
const MOST_ITEMS: usize = 1_024;

/// Called with a response that ended.
pub type OnResponse = Box<dyn FnOnce(&Value) + Send>;

/// Turns a chat answer into a response.
pub struct ResponsesFromChat {
    stamp: Stamp,
    names: Names,
    /// The fields that repeat the request's.
    echoed: Map<String, Value>,
    on_end: Option<OnResponse>,
    reader: SseReader,
    /// The number of the next event.
    sequence: u64,
    begun: bool,
    output: Vec<OutputItem>,
    /// Bytes of the output so far.
    size: usize,
    finish: Option<String>,
    usage: Value,
    /// llama-server's times, as the last chunk has them.
    timings: Value,
    ended: bool,
}

/// An item of the output. Only the last one may still grow, except for calls.
struct OutputItem {
    id: String,
    kind: ItemKind,
    /// The text of a message or of thoughts, or the arguments of a call.
    text: String,
    logprobs: Vec<Value>,
    state: ItemState,
}

/// Whether an item may still grow, and its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ItemState {
    Open,
    Whole,
    /// The end of the answer cut it.
    Cut,
}

#[derive(Clone, PartialEq, Eq)]
enum ItemKind {
    Reasoning,
    Text,
    Refusal,
    /// A call, with its index in the chat's stream, its id and its name.
    Call {
        index: u64,
        call_id: String,
        name: String,
    },
}

impl ItemKind {
    /// The type of its one content part.
    const fn part(&self) -> &'static str {
        match self {
            Self::Reasoning => "reasoning_text",
            Self::Refusal => "refusal",
            Self::Text | Self::Call { .. } => "output_text",
        }
    }

    /// The beginning of the names of its events.
    const fn event(&self) -> &'static str {
        match self {
            Self::Reasoning => "response.reasoning_text",
            Self::Refusal => "response.refusal",
            Self::Text => "response.output_text",
            Self::Call { .. } => "response.function_call_arguments",
        }
    }

    const fn prefix(&self) -> &'static str {
        match self {
            Self::Reasoning => "rs",
            Self::Text | Self::Refusal => "msg",
            Self::Call { .. } => "fc",
        }
    }
}

impl OutputItem {
    fn is_open(&self) -> bool {
        self.state == ItemState::Open
    }

    fn is_call(&self) -> bool {
        matches!(self.kind, ItemKind::Call { .. })
    }

    /// Whether it is a call with all of its arguments: a whole object of JSON.
    fn is_whole_call(&self) -> bool {
        self.is_call() && arguments::is_whole(&self.text)
    }

    fn status(&self) -> &'static str {
        match self.state {
            ItemState::Open => "in_progress",
            ItemState::Whole => "completed",
            ItemState::Cut => "incomplete",
        }
    }

    fn part(&self) -> Value {
        let kind = self.kind.part();
        match self.kind {
            ItemKind::Reasoning => json!({ "type": kind, "text": self.text }),
            ItemKind::Refusal => json!({ "type": kind, "refusal": self.text }),
            _ => json!({ "type": kind, "text": self.text, "annotations": [], "logprobs": self.logprobs }),
        }
    }

    fn value(&self) -> Value {
        let content = if self.text.is_empty() && self.is_open() { json!([]) } else { json!([self.part()]) };
        match &self.kind {
            ItemKind::Reasoning => json!({
                "id": self.id, "type": "reasoning", "summary": [], "content": content, "encrypted_content": null,
                "status": self.status(),
            }),
            ItemKind::Text | ItemKind::Refusal => json!({
                "id": self.id, "type": "message", "role": "assistant", "content": content, "status": self.status(),
            }),
            ItemKind::Call { call_id, name, .. } => json!({
                "id": self.id, "type": "function_call", "call_id": call_id, "name": name, "arguments": self.text,
                "status": self.status(),
            }),
        }
    }
}

impl ResponsesFromChat {
    /// Prepares for an answer with this stamp, to a request whose fields the client called by `names`. `on_end` gets
    /// the response, unless it failed.
    pub fn new(stamp: Stamp, names: Names, echoed: Map<String, Value>, on_end: Option<OnResponse>) -> Self {
        Self {
            stamp,
            names,
            echoed,
            on_end,
            reader: SseReader::default(),
            sequence: 0,
            begun: false,
            output: Vec::new(),
            size: 0,
            finish: None,
            usage: Value::Null,
            timings: Value::Null,
            ended: false,
        }
    }

    /// The response as it is now.
    fn response(&self, status: &str) -> Value {
        let mut response = self.echoed.clone();
        let output: Vec<Value> = self.output.iter().map(OutputItem::value).collect();
        let reason = (status == "incomplete").then(|| json!({ "reason": self.incomplete_reason() }));
        for (name, value) in [
            ("id", json!(self.stamp.id)),
            ("object", json!("response")),
            ("created_at", json!(self.stamp.created)),
            ("status", json!(status)),
            ("error", Value::Null),
            ("incomplete_details", json!(reason)),
            ("model", json!(self.stamp.model)),
            ("output", json!(output)),
            ("usage", usage(&self.usage)),
        ] {
            response.insert(name.to_owned(), value);
        }
        Value::Object(response)
    }

    fn incomplete_reason(&self) -> &'static str {
        if self.finish.as_deref() == Some("content_filter") { "content_filter" } else { "max_output_tokens" }
    }

    /// Whether the answer ended before the model was done.
    fn is_incomplete(&self) -> bool {
        matches!(self.finish.as_deref(), Some("length" | "content_filter"))
    }

    fn status(&self) -> &'static str {
        if self.is_incomplete() { "incomplete" } else { "completed" }
    }

    /// The state of an item that grows no more. An answer is cut within its last item. Arguments show whether a call
    /// is whole, and several calls may have been open.
    fn state_at_end(&self, index: usize) -> ItemState {
        let item = &self.output[index];
        let is_whole = if item.is_call() { item.is_whole_call() } else { index + 1 < self.output.len() };
        if self.is_incomplete() && !is_whole { ItemState::Cut } else { ItemState::Whole }
    }

    /// Writes an event with the next number.
    fn tell(&mut self, name: &str, mut event: Value, out: &mut Vec<u8>) {
        event["type"] = json!(name);
        event["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        sse::named(out, name, &event);
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.begun, true) {
            for name in ["response.created", "response.in_progress"] {
                let response = self.response("in_progress");
                self.tell(name, json!({ "response": response }), out);
            }
        }
    }

    /// The index of the open item of this kind, which is begun if there is none.
    fn enter(&mut self, kind: ItemKind, out: &mut Vec<u8>) -> usize {
        let is_same = |item: &OutputItem| match (&item.kind, &kind) {
            (ItemKind::Call { index, .. }, ItemKind::Call { index: wanted, .. }) => index == wanted,
            (known, wanted) => known == wanted,
        };
        if let Some(index) = self.output.iter().rposition(|item| item.is_open() && is_same(item)) {
            return index;
        }
        // Pieces of several calls may come in turns: a call that is not whole stays open beside the next.
        let is_call = matches!(kind, ItemKind::Call { .. });
        let is_over = |item: &OutputItem| item.is_open() && !(is_call && item.is_call() && !item.is_whole_call());
        let over: Vec<usize> = (0..self.output.len()).filter(|index| is_over(&self.output[*index])).collect();
        self.leave(over, out);
        let (index, prefix) = (self.output.len(), kind.prefix());
        let name = self.stamp.id.strip_prefix("resp_").unwrap_or(&self.stamp.id);
        let id = format!("{prefix}_{name}_{index}");
        let item = OutputItem { id, kind, text: String::new(), logprobs: Vec::new(), state: ItemState::Open };
        let (value, part, id, has_part) = (item.value(), item.part(), item.id.clone(), !item.is_call());
        self.output.push(item);
        self.tell("response.output_item.added", json!({ "output_index": index, "item": value }), out);
        if has_part {
            let event = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part });
            self.tell("response.content_part.added", event, out);
        }
        index
    }

    /// Adds to the text of an item.
    fn add(&mut self, index: usize, delta: &str, logprobs: &Value, out: &mut Vec<u8>) {
        let item = &mut self.output[index];
        item.text.push_str(delta);
        self.size += delta.len();
        let new = logprobs.as_array().cloned().unwrap_or_default();
        item.logprobs.extend(new.iter().cloned());
        let mut event = json!({ "item_id": item.id, "output_index": index, "delta": delta });
        let name = format!("{}.delta", item.kind.event());
        if !item.is_call() {
            event["content_index"] = json!(0);
        }
        if item.kind == ItemKind::Text {
            event["logprobs"] = json!(new);
        }
        self.time(&mut event);
        self.tell(&name, event, out);
    }

    /// Adds llama-server's times to an event.
    fn time(&self, event: &mut Value) {
        if self.timings.is_object() {
            event["timings"] = self.timings.clone();
        }
    }

    /// Ends those of these items that are open.
    fn leave(&mut self, items: impl IntoIterator<Item = usize>, out: &mut Vec<u8>) {
        for index in items {
            if !self.output[index].is_open() {
                continue;
            }
            let state = self.state_at_end(index);
            self.output[index].state = state;
            let item = &self.output[index];
            let (kind, id, part, value) = (item.kind.clone(), item.id.clone(), item.part(), item.value());
            let mut event = json!({ "item_id": id, "output_index": index });
            match &kind {
                ItemKind::Call { name, .. } => {
                    event["arguments"] = json!(item.text);
                    event["name"] = json!(name);
                }
                ItemKind::Refusal => event["refusal"] = json!(item.text),
                ItemKind::Text => {
                    event["text"] = json!(item.text);
                    event["logprobs"] = json!(item.logprobs);
                }
                ItemKind::Reasoning => event["text"] = json!(item.text),
            }
            let is_call = matches!(kind, ItemKind::Call { .. });
            if !is_call {
                event["content_index"] = json!(0);
            }
            // Clients run a call when its arguments are done. Those of a call that was cut never are.
            if !is_call || state == ItemState::Whole {
                self.tell(&format!("{}.done", kind.event()), event, out);
            }
            if !is_call {
                let event = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part });
                self.tell("response.content_part.done", event, out);
            }
            self.tell("response.output_item.done", json!({ "output_index": index, "item": value }), out);
        }
    }

    /// Takes a piece of a message: the delta of a stream, or a whole message.
    fn take(&mut self, choice: &Value, said: &Value, out: &mut Vec<u8>) {
        let text = |name: &str| said[name].as_str().filter(|text| !text.is_empty());
        let logprobs = &choice["logprobs"]["content"];
        for (name, kind) in
            [("reasoning_content", ItemKind::Reasoning), ("content", ItemKind::Text), ("refusal", ItemKind::Refusal)]
        {
            if let Some(delta) = text(name) {
                let index = self.enter(kind, out);
                self.add(index, delta, if name == "content" { logprobs } else { &Value::Null }, out);
            }
        }
        for (number, call) in said["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let index = call["index"].as_u64().unwrap_or(number as u64);
            let function = &call["function"];
            let call_id = call["id"].as_str().map_or_else(|| format!("call_{index}"), str::to_owned);
            let name = function["name"].as_str().unwrap_or_default().to_owned();
            if name.is_empty() && self.has_ended(index) {
                continue;
            }
            let index = self.enter(ItemKind::Call { index, call_id, name }, out);
            if let Some(delta) = function["arguments"].as_str().filter(|delta| !delta.is_empty()) {
                self.add(index, delta, &Value::Null, out);
            }
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish = Some(reason.to_owned());
        }
    }

    /// Whether the last call of this index in the chat's stream has ended. White space may follow its arguments.
    fn has_ended(&self, wanted: u64) -> bool {
        let is_same = |item: &&OutputItem| matches!(item.kind, ItemKind::Call { index, .. } if index == wanted);
        self.output.iter().rfind(is_same).is_some_and(|item| !item.is_open())
    }

    fn event(&mut self, chunk: &Value, out: &mut Vec<u8>) {
        if chunk.get("error").is_some() {
            let error = self.names.put_back_body(chunk.clone());
            return self.fail(&error["error"], out);
        }
        if chunk["usage"].is_object() {
            self.usage = chunk["usage"].clone();
        }
        self.begin(out);
        self.timings = chunk["timings"].clone();
        if chunk["prompt_progress"].is_object() {
            let mut event = json!({ "response": self.response("in_progress") });
            event["prompt_progress"] = chunk["prompt_progress"].clone();
            self.time(&mut event);
            return self.tell("response.in_progress", event, out);
        }
        let choice = &chunk["choices"][0];
        self.take(choice, &choice["delta"], out);
        if self.size > LONGEST || self.output.len() > MOST_ITEMS {
            let error = json!({ "code": "backend_error", "message": "the model's answer is too long for a response" });
            self.fail(&error, out);
        }
    }

    /// Ends the stream with an error.
    fn fail(&mut self, error: &Value, out: &mut Vec<u8>) {
        self.begin(out);
        self.ended = true;
        let mut response = self.response("failed");
        response["error"] = json!({ "code": error["code"], "message": error["message"] });
        self.tell("response.failed", json!({ "response": response }), out);
    }

    /// The whole response, which ends here.
    fn finish(&mut self, out: &mut Vec<u8>) -> Value {
        self.leave(0..self.output.len(), out);
        let response = self.response(self.status());
        if let Some(on_end) = self.on_end.take() {
            on_end(&response);
        }
        response
    }
}

impl Reshape for ResponsesFromChat {
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, DialectError> {
        let answer: Value = match serde_json::from_slice(body) {
            Ok(answer) => answer,
            Err(_) if status >= 400 => return Ok(body.clone()),
            Err(error) => return Err(nonsense(error)),
        };
        if status >= 400 {
            return Ok(Bytes::from(self.names.put_back_body(answer).to_string()));
        }
        let choice = &answer["choices"][0];
        if !choice["message"].is_object() {
            return Err(nonsense("it has no message"));
        }
        self.usage = answer["usage"].clone();
        let mut events = Vec::new();
        self.take(choice, &choice["message"], &mut events);
        Ok(Bytes::from(self.finish(&mut events).to_string()))
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        let mut out = Vec::new();
        for item in self.reader.push(bytes) {
            match item {
                _ if self.ended => {}
                SseItem::Comment(words) => out.extend_from_slice(format!(": {words}\n\n").as_bytes()),
                SseItem::Event { data, .. } => {
                    if let Ok(chunk) = serde_json::from_str(&data) {
                        self.event(&chunk, &mut out);
                    }
                }
            }
        }
        Bytes::from(out)
    }

    fn end(&mut self) -> Bytes {
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.ended, true) {
            self.begin(&mut out);
            let response = self.finish(&mut out);
            let name = format!("response.{}", self.status());
            let mut event = json!({ "response": response });
            self.time(&mut event);
            self.tell(&name, event, &mut out);
        }
        Bytes::from(out)
    }
}

/// A chat's usage in the Responses API's fields; `null` where the engine counts nothing.
fn usage(usage: &Value) -> Value {
    if !usage.is_object() {
        return Value::Null;
    }
    let number = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let (input, output) = (number("/prompt_tokens"), number("/completion_tokens"));
    json!({
        "input_tokens": input,
        "input_tokens_details": { "cached_tokens": number("/prompt_tokens_details/cached_tokens") },
        "output_tokens": output,
        "output_tokens_details": { "reasoning_tokens": number("/completion_tokens_details/reasoning_tokens") },
        "total_tokens": input.saturating_add(output),
    })
}
