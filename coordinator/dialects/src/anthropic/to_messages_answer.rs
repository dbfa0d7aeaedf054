//! Translates a chat answer, whole or streamed, into one of the Messages API.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::error::DialectError;
use crate::names::message_with_field;
use crate::sse::{self, SseItem, SseReader};
use crate::{Names, Reshape, Stamp, nonsense};

/// Turns a chat answer into one of the Messages API.
pub struct MessagesFromChat {
    stamp: Stamp,
    names: Names,
    reader: SseReader,
    begun: bool,
    /// The open content block: its index and its kind.
    block: Option<(u64, Kind)>,
    blocks: u64,
    stop_reason: Option<&'static str>,
    /// The stop sequence that ended the answer, where the backend names it.
    stop_sequence: Option<String>,
    usage: Value,
    ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    /// A tool call, by its index in OpenAI's stream.
    Tool(u64),
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
            block: None,
            blocks: 0,
            stop_reason: None,
            stop_sequence: None,
            usage,
            ended: false,
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

    fn enter(&mut self, kind: Kind, block: &Value, out: &mut Vec<u8>) -> u64 {
        match self.block {
            Some((index, current)) if current == kind => index,
            _ => {
                self.leave(out);
                let index = self.blocks;
                self.blocks += 1;
                self.block = Some((index, kind));
                let event = json!({ "type": "content_block_start", "index": index, "content_block": block });
                sse::named(out, "content_block_start", &event);
                index
            }
        }
    }

    fn leave(&mut self, out: &mut Vec<u8>) {
        if let Some((index, _)) = self.block.take() {
            sse::named(out, "content_block_stop", &json!({ "type": "content_block_stop", "index": index }));
        }
    }

    fn delta(index: u64, delta: &Value, out: &mut Vec<u8>) {
        let event = json!({ "type": "content_block_delta", "index": index, "delta": delta });
        sse::named(out, "content_block_delta", &event);
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
        let filled = |text: &Value| text.as_str().is_some_and(|text| !text.is_empty());
        if filled(&delta["reasoning_content"]) {
            let index =
                self.enter(Kind::Thinking, &json!({ "type": "thinking", "thinking": "", "signature": "" }), out);
            Self::delta(index, &json!({ "type": "thinking_delta", "thinking": delta["reasoning_content"] }), out);
        }
        if filled(&delta["content"]) {
            let index = self.enter(Kind::Text, &json!({ "type": "text", "text": "" }), out);
            Self::delta(index, &json!({ "type": "text_delta", "text": delta["content"] }), out);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let kind = Kind::Tool(call["index"].as_u64().unwrap_or(0));
            let block = json!({ "type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": {} });
            let index = self.enter(kind, &block, out);
            if filled(&call["function"]["arguments"]) {
                let delta = json!({ "type": "input_json_delta", "partial_json": call["function"]["arguments"] });
                Self::delta(index, &delta, out);
            }
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
            content.push(json!({ "type": "thinking", "thinking": thoughts, "signature": "" }));
        }
        if let Some(text) = said["content"].as_str().filter(|text| !text.is_empty()) {
            content.push(json!({ "type": "text", "text": text }));
        }
        for call in said["tool_calls"].as_array().into_iter().flatten() {
            let arguments = call["function"]["arguments"].as_str().unwrap_or("{}");
            let input = serde_json::from_str(arguments).unwrap_or_else(|_| match choice["finish_reason"].as_str() {
                // A call that was cut: `stop_reason` says so.
                Some("length") => json!({}),
                // Other arguments that are no JSON are passed on as a string.
                _ => json!({ "arguments": arguments }),
            });
            content.push(
                json!({ "type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": input }),
            );
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
