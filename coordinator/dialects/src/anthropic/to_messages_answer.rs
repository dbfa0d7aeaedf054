//! Translates a chat answer, whole or streamed, into one of the Messages API.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde_json::{Value, json};

use super::signature::OUR_SIGNATURE;
use crate::error::DialectError;
use crate::names::message_with_field;
use crate::sse::{self, SseItem, SseReader};
use crate::{Names, Reshape, Stamp, arguments, nonsense};

/// The most blocks that wait for the end of another.
const MOST_WAITING: usize = 1_024;

/// The events that begin a stream which is one of the Messages API already.
const PASSED: [&str; 3] = ["message_start", "ping", "error"];

/// Turns a chat answer into one of the Messages API. A stream that is one already passes.
pub struct MessagesFromChat {
    stamp: Stamp,
    names: Names,
    reader: SseReader,
    begun: bool,
    open: Option<ContentBlock>,
    /// Blocks that begin when the open one, a tool call, is whole. A stream may bring the pieces of several calls in
    /// turns, while clients read one block after another.
    waiting: Vec<ContentBlock>,
    /// The indexes of calls that have ended.
    ended_calls: BTreeSet<u64>,
    /// The number of blocks begun so far.
    blocks: u64,
    stop_reason: Option<&'static str>,
    /// The stop sequence that ended the answer, where the backend names it.
    stop_sequence: Option<String>,
    usage: Value,
    ended: bool,
    /// Whether the stream has this shape already: a provider of the same API answers.
    passes: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    /// A tool call, by its index in OpenAI's stream.
    Tool(u64),
}

/// A content block as far as it has arrived.
struct ContentBlock {
    kind: Kind,
    /// The block as it begins.
    start: Value,
    /// The text, the thoughts or the arguments.
    text: String,
}

impl ContentBlock {
    fn of_call(index: u64, call: &Value) -> Self {
        let start = json!({ "type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {} });
        Self { kind: Kind::Tool(index), start, text: String::new() }
    }

    /// The block as clients see it begin. A call has an id, by which its result names it.
    fn start(&self) -> Value {
        let mut start = self.start.clone();
        if let Kind::Tool(index) = self.kind
            && !self.has("id")
        {
            start["id"] = json!(format!("call_{index}"));
        }
        start
    }

    fn has(&self, name: &str) -> bool {
        self.start[name].as_str().is_some_and(|text| !text.is_empty())
    }

    /// Whether a piece with this beginning belongs to the block. An engine may give calls one index and several ids.
    fn goes_on_with(&self, piece: &Self) -> bool {
        let is_other_call = piece.has("name") && piece.has("id") && piece.start["id"] != self.start["id"];
        self.kind == piece.kind && !is_other_call
    }

    /// Whether another block may begin.
    fn may_end(&self) -> bool {
        !matches!(self.kind, Kind::Tool(_)) || arguments::is_whole(&self.text)
    }

    fn delta(&self, text: &str) -> Value {
        match self.kind {
            Kind::Text => json!({ "type": "text_delta", "text": text }),
            Kind::Thinking => json!({ "type": "thinking_delta", "thinking": text }),
            Kind::Tool(_) => json!({ "type": "input_json_delta", "partial_json": text }),
        }
    }
}

impl MessagesFromChat {
    /// Prepares for an answer with this stamp, to a request whose fields the client called by `names`.
    pub fn new(stamp: Stamp, names: Names) -> Self {
        let reader = SseReader::default();
        let usage = json!({ "input_tokens": 0, "output_tokens": 0 });
        Self {
            stamp,
            names,
            reader,
            begun: false,
            open: None,
            waiting: Vec::new(),
            ended_calls: BTreeSet::new(),
            blocks: 0,
            stop_reason: None,
            stop_sequence: None,
            usage,
            ended: false,
            passes: false,
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let message = json!({
            "id": self.stamp.id, "type": "message", "role": "assistant", "model": self.stamp.model, "content": [],
            "stop_reason": null, "stop_sequence": null, "usage": self.usage,
        });
        sse::named(out, "message_start", &json!({ "type": "message_start", "message": message }));
    }

    /// Takes a piece of a block. `piece` is the block that begins with it, unless it goes on with another.
    fn take(&mut self, mut piece: ContentBlock, text: &str, out: &mut Vec<u8>) {
        // Text and thoughts go on only where nothing has come behind them.
        let is_call = matches!(piece.kind, Kind::Tool(_));
        let last = self.waiting.len().saturating_sub(1);
        let mut waiting = self.waiting.iter_mut().enumerate().rev();
        if let Some((_, block)) = waiting.find(|(at, block)| block.goes_on_with(&piece) && (is_call || *at == last)) {
            block.text.push_str(text);
        } else if self
            .open
            .as_ref()
            .is_some_and(|open| open.goes_on_with(&piece) && (is_call || self.waiting.is_empty()))
        {
            self.go_on(text, out);
        } else {
            // White space may follow the arguments of a call that has ended.
            let is_late = matches!(piece.kind, Kind::Tool(index) if self.ended_calls.contains(&index));
            if self.waiting.len() >= MOST_WAITING || (is_late && !piece.has("name")) {
                return;
            }
            piece.text.push_str(text);
            self.waiting.push(piece);
        }
        while !self.waiting.is_empty() && self.open.as_ref().is_none_or(ContentBlock::may_end) {
            self.begin_next(out);
        }
    }

    /// Adds to the open block.
    fn go_on(&mut self, text: &str, out: &mut Vec<u8>) {
        if let Some(open) = self.open.as_mut().filter(|_| !text.is_empty()) {
            open.text.push_str(text);
            let event = json!({ "type": "content_block_delta", "index": self.blocks - 1, "delta": open.delta(text) });
            sse::named(out, "content_block_delta", &event);
        }
    }

    /// Ends the open block and begins the one that has waited longest.
    fn begin_next(&mut self, out: &mut Vec<u8>) {
        self.leave(out);
        let mut next = self.waiting.remove(0);
        let event = json!({ "type": "content_block_start", "index": self.blocks, "content_block": next.start() });
        sse::named(out, "content_block_start", &event);
        self.blocks += 1;
        let text = std::mem::take(&mut next.text);
        self.open = Some(next);
        self.go_on(&text, out);
    }

    fn leave(&mut self, out: &mut Vec<u8>) {
        if let Some(block) = self.open.take() {
            match block.kind {
                Kind::Tool(index) => _ = self.ended_calls.insert(index),
                Kind::Thinking => {
                    let delta = json!({ "type": "signature_delta", "signature": OUR_SIGNATURE });
                    let event = json!({ "type": "content_block_delta", "index": self.blocks - 1, "delta": delta });
                    sse::named(out, "content_block_delta", &event);
                }
                Kind::Text => {}
            }
            sse::named(out, "content_block_stop", &json!({ "type": "content_block_stop", "index": self.blocks - 1 }));
        }
    }

    fn event(&mut self, chunk: &Value, out: &mut Vec<u8>) {
        if chunk.get("error").is_some() {
            self.ended = true;
            sse::named(out, "error", &messages_error(&self.names.put_back_body(chunk.clone())));
            return;
        }
        if chunk["usage"].is_object() {
            self.usage = usage(&chunk["usage"]);
        } else if chunk["prompt_progress"].is_object() {
            self.usage = usage(&usage_of_progress(&chunk["prompt_progress"]));
        }
        self.begin(out);
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        for (name, kind, start) in [
            ("reasoning_content", Kind::Thinking, json!({ "type": "thinking", "thinking": "", "signature": "" })),
            ("content", Kind::Text, json!({ "type": "text", "text": "" })),
        ] {
            if let Some(text) = delta[name].as_str().filter(|text| !text.is_empty()) {
                self.take(ContentBlock { kind, start, text: String::new() }, text, out);
            }
        }
        for (number, call) in delta["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let index = call["index"].as_u64().unwrap_or(number as u64);
            let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
            self.take(ContentBlock::of_call(index, call), arguments, out);
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.stop_sequence = stop_sequence(choice);
            self.stop_reason = Some(stop_reason(reason, self.stop_sequence.as_deref()));
        }
    }
}

impl Reshape for MessagesFromChat {
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, DialectError> {
        if status >= 400 {
            let error: Value = serde_json::from_slice(body).unwrap_or_default();
            return Ok(Bytes::from(messages_error(&self.names.put_back_body(error)).to_string()));
        }
        let chat: Value = serde_json::from_slice(body).map_err(nonsense)?;
        let (choice, mut content) = (&chat["choices"][0], Vec::new());
        let said = &choice["message"];
        if !said.is_object() {
            return Err(nonsense("it has no message"));
        }
        if let Some(thoughts) = said["reasoning_content"].as_str().filter(|thoughts| !thoughts.is_empty()) {
            content.push(json!({ "type": "thinking", "thinking": thoughts, "signature": OUR_SIGNATURE }));
        }
        if let Some(text) = said["content"].as_str().filter(|text| !text.is_empty()) {
            content.push(json!({ "type": "text", "text": text }));
        }
        for (index, call) in said["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let arguments = call["function"]["arguments"].as_str().unwrap_or("{}");
            let input = serde_json::from_str(arguments).unwrap_or_else(|_| match choice["finish_reason"].as_str() {
                // A call that was cut: `stop_reason` says so.
                Some("length") => json!({}),
                // Other arguments that are no JSON are passed on as a string.
                _ => json!({ "arguments": arguments }),
            });
            let mut block = ContentBlock::of_call(index as u64, call).start();
            block["input"] = input;
            content.push(block);
        }
        let sequence = stop_sequence(choice);
        let reason = stop_reason(choice["finish_reason"].as_str().unwrap_or_default(), sequence.as_deref());
        let message = json!({
            "id": self.stamp.id, "type": "message", "role": "assistant", "model": self.stamp.model, "content": content,
            "stop_reason": reason, "stop_sequence": sequence, "usage": usage(&chat["usage"]),
        });
        Ok(Bytes::from(message.to_string()))
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        let mut out = Vec::new();
        for item in self.reader.push(bytes) {
            match item {
                _ if self.ended => {}
                SseItem::Comment(_) => sse::named(&mut out, "ping", &json!({ "type": "ping" })),
                SseItem::Event { name, data } if self.passes && !name.is_empty() => sse::passed(&mut out, &name, &data),
                SseItem::Event { name, data } => match serde_json::from_str::<Value>(&data) {
                    Ok(event) if !self.begun && PASSED.contains(&name.as_str()) && event["type"] == name.as_str() => {
                        self.passes |= name != "ping";
                        sse::passed(&mut out, &name, &data);
                    }
                    // An error of the coordinator's may follow in its own shape.
                    Ok(chunk) if !self.passes || chunk.get("error").is_some() => self.event(&chunk, &mut out),
                    _ => {}
                },
            }
        }
        Bytes::from(out)
    }

    fn end(&mut self) -> Bytes {
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.ended, true) && !self.passes {
            self.begin(&mut out);
            while !self.waiting.is_empty() {
                self.begin_next(&mut out);
            }
            self.leave(&mut out);
            let reason = self.stop_reason.unwrap_or("end_turn");
            let delta = json!({ "stop_reason": reason, "stop_sequence": self.stop_sequence });
            let event = json!({ "type": "message_delta", "delta": delta, "usage": self.usage });
            sse::named(&mut out, "message_delta", &event);
            sse::named(&mut out, "message_stop", &json!({ "type": "message_stop" }));
        }
        Bytes::from(out)
    }
}

/// Progress of prefill in llama.cpp's server (`return_progress`) as OpenAI's usage.
fn usage_of_progress(progress: &Value) -> Value {
    json!({ "prompt_tokens": progress["total"], "prompt_tokens_details": { "cached_tokens": progress["cache"] } })
}

fn usage(usage: &Value) -> Value {
    let number = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let cached = number("/prompt_tokens_details/cached_tokens");
    json!({
        "input_tokens": number("/prompt_tokens").saturating_sub(cached),
        "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0,
        "output_tokens": number("/completion_tokens"),
    })
}

/// The stop string that ended a choice, in a field of vLLM and of the candle worker. vLLM also puts a stop token's
/// number there.
fn stop_sequence(choice: &Value) -> Option<String> {
    choice["stop_reason"].as_str().map(str::to_owned)
}

fn stop_reason(finish: &str, sequence: Option<&str>) -> &'static str {
    match finish {
        "stop" if sequence.is_some() => "stop_sequence",
        "length" => "max_tokens",
        "tool_calls" => "tool_use",
        "content_filter" => "refusal",
        _ => "end_turn",
    }
}

const TOO_LONG: &str = "prompt is too long";

/// Translates an error of model-boss into the Messages API's shape.
pub fn messages_error(ours: &Value) -> Value {
    let error = &ours["error"];
    let kind = match (error["type"].as_str(), error["code"].as_str()) {
        (_, Some("no_capacity" | "draining" | "queue_full" | "cloud_overloaded" | "overloaded")) => "overloaded_error",
        (Some("invalid_request_error"), Some("request_too_large")) => "request_too_large",
        (
            Some(
                kind @ ("invalid_request_error"
                | "authentication_error"
                | "permission_error"
                | "not_found_error"
                | "rate_limit_error"),
            ),
            _,
        ) => kind,
        _ => "api_error",
    };
    // Anthropic's clients search the error for these words before they shorten a conversation.
    let message = match (error["code"].as_str(), error["message"].as_str()) {
        (Some("context_length_exceeded"), Some(message)) if !message.starts_with(TOO_LONG) => {
            json!(format!("{TOO_LONG}: {message}"))
        }
        _ => json!(message_with_field(error)),
    };
    json!({ "type": "error", "error": { "type": kind, "message": message } })
}
