//! Translates answers, streams and errors of the Messages API into those of OpenAI's chat API.

use std::time::Duration;

use bytes::Bytes;
use model_boss_protocol::sse::DONE;
use serde_json::{Map, Value, json};

use super::token_count::MessageTokens;
use crate::error::{DialectError, DialectFault, ProviderFault};
use crate::overflow::{OPENAIS, Overflow, is_overflow};
use crate::sse::{self, SseItem, SseReader};
use crate::{Reshape, Stamp, nonsense};

/// The time until another try, where a busy provider names none.
const USUAL_REST: Duration = Duration::from_secs(10);

/// Turns an answer of the Messages API into a chat answer.
pub struct ChatFromMessages {
    stamp: Stamp,
    wants_usage: bool,
    /// Whether every chunk carries the usage so far (`continuous_usage_stats`).
    continuous_usage: bool,
    reader: SseReader,
    tokens: MessageTokens,
    /// The number of tool calls begun so far.
    calls: u64,
    finish: Option<&'static str>,
    /// The stop sequence that ended the answer.
    stop: Option<String>,
    ended: bool,
    failed: bool,
    /// The error that ended the stream, until the caller takes it.
    failure: Option<DialectError>,
}

impl ChatFromMessages {
    /// Prepares for the answer to the request `chat`, whose `stream_options` decide about usage.
    pub fn new(stamp: Stamp, chat: &Map<String, Value>) -> Self {
        let option = |name: &str| chat.get("stream_options").and_then(|o| o.get(name)) == Some(&json!(true));
        let wants_usage = option("include_usage");
        Self {
            stamp,
            wants_usage,
            continuous_usage: wants_usage && option("continuous_usage_stats"),
            reader: SseReader::default(),
            tokens: MessageTokens::default(),
            calls: 0,
            finish: None,
            stop: None,
            ended: false,
            failed: false,
            failure: None,
        }
    }

    fn chunk(&self, delta: &Value, finish: Option<&str>) -> Value {
        let mut chunk = json!({
            "id": self.stamp.id, "object": "chat.completion.chunk", "created": self.stamp.created,
            "model": self.stamp.model,
            "choices": [{ "index": 0, "delta": delta, "finish_reason": finish, "logprobs": null }],
        });
        if self.continuous_usage {
            chunk["usage"] = self.usage();
        }
        chunk
    }

    fn event(&mut self, name: &str, event: &Value, out: &mut Vec<u8>) {
        let kind = event["type"].as_str().unwrap_or(name);
        self.tokens.event(kind, event);
        match kind {
            "message_start" => {
                sse::data(out, &self.chunk(&json!({ "role": "assistant", "content": "" }), None));
            }
            "content_block_start" if event["content_block"]["type"] == "tool_use" => {
                let block = &event["content_block"];
                let function = json!({ "name": block["name"], "arguments": "" });
                let call = json!({ "index": self.calls, "id": block["id"], "type": "function", "function": function });
                self.calls += 1;
                sse::data(out, &self.chunk(&json!({ "tool_calls": [call] }), None));
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let delta = match delta["type"].as_str() {
                    Some("text_delta") => json!({ "content": delta["text"] }),
                    Some("thinking_delta") => json!({ "reasoning_content": delta["thinking"] }),
                    Some("input_json_delta") => {
                        let index = self.calls.saturating_sub(1);
                        json!({ "tool_calls": [{ "index": index, "function": { "arguments": delta["partial_json"] } }] })
                    }
                    _ => return,
                };
                sse::data(out, &self.chunk(&delta, None));
            }
            "message_delta" => {
                self.finish = event["delta"]["stop_reason"].as_str().map(finish_reason).or(self.finish);
                self.stop = event["delta"]["stop_sequence"].as_str().map(str::to_owned).or(self.stop.take());
            }
            "message_stop" => self.finish(out),
            "ping" => out.extend_from_slice(b": ping\n\n"),
            "error" => {
                self.ended = true;
                self.fail(cloud_error(529, event.to_string().as_bytes(), None));
            }
            _ => {}
        }
    }

    fn fail(&mut self, error: DialectError) {
        self.failed = true;
        self.failure = Some(error);
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let mut last = self.chunk(&json!({}), Some(self.finish.unwrap_or("stop")));
        if let Some(stop) = &self.stop {
            last["choices"][0]["stop_reason"] = json!(stop);
        }
        sse::data(out, &last);
        if self.wants_usage {
            let mut chunk = self.chunk(&json!({}), None);
            chunk["choices"] = json!([]);
            chunk["usage"] = self.usage();
            sse::data(out, &chunk);
        }
    }

    fn usage(&self) -> Value {
        let ((prompt, cached), answer) = (self.tokens.prompt, self.tokens.answer());
        json!({
            "prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt.saturating_add(answer),
            "prompt_tokens_details": { "cached_tokens": cached },
        })
    }
}

impl Reshape for ChatFromMessages {
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, DialectError> {
        if status >= 400 {
            return Err(cloud_error(status, body, None));
        }
        let message: Value = serde_json::from_slice(body).map_err(nonsense)?;
        if message["type"] != "message" || !message["content"].is_array() {
            return Err(nonsense("it is no message"));
        }
        self.tokens.usage(&message["usage"]);
        let (mut text, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
        for block in message["content"].as_array().into_iter().flatten() {
            match block["type"].as_str() {
                Some("text") => text += block["text"].as_str().unwrap_or_default(),
                Some("thinking") => thoughts += block["thinking"].as_str().unwrap_or_default(),
                Some("tool_use") => {
                    let function = json!({ "name": block["name"], "arguments": block["input"].to_string() });
                    calls.push(json!({ "id": block["id"], "type": "function", "function": function }));
                }
                _ => {}
            }
        }
        let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { json!(text) };
        let mut said = json!({ "role": "assistant", "content": content });
        if !thoughts.is_empty() {
            said["reasoning_content"] = json!(thoughts);
        }
        if !calls.is_empty() {
            said["tool_calls"] = json!(calls);
        }
        let finish = message["stop_reason"].as_str().map_or("stop", finish_reason);
        let mut answer = json!({
            "id": self.stamp.id, "object": "chat.completion", "created": self.stamp.created, "model": self.stamp.model,
            "choices": [{ "index": 0, "message": said, "finish_reason": finish, "logprobs": null }],
            "usage": self.usage(),
        });
        if message["stop_sequence"].is_string() {
            answer["choices"][0]["stop_reason"] = message["stop_sequence"].clone();
        }
        Ok(Bytes::from(answer.to_string()))
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        let mut out = Vec::new();
        for item in self.reader.push(bytes) {
            if let SseItem::Event { name, data } = item
                && !self.failed
            {
                match serde_json::from_str(&data) {
                    Ok(event) => self.event(&name, &event, &mut out),
                    Err(error) => self.fail(nonsense(error)),
                }
            }
        }
        Bytes::from(out)
    }

    fn end(&mut self) -> Bytes {
        if self.failed {
            return Bytes::new();
        }
        if !self.ended {
            // A stream without its last event was cut off.
            let message = "the provider's stream ended in the middle of its answer";
            self.fail(DialectError::new(DialectFault::UnusableAnswer, message));
            return Bytes::new();
        }
        Bytes::from_static(DONE.as_bytes())
    }

    fn failure(&mut self) -> Option<DialectError> {
        self.failure.take()
    }

    fn tokens(&self) -> Option<(u64, u64)> {
        self.tokens.so_far()
    }
}

fn finish_reason(stop_reason: &str) -> &'static str {
    match stop_reason {
        "max_tokens" | "model_context_window_exceeded" => "length",
        "tool_use" => "tool_calls",
        "refusal" => "content_filter",
        _ => "stop",
    }
}

/// Translates an error of the Messages API into one of the coordinator. A request to an overloaded provider is not
/// retried: its error has the time after which to send it again.
pub fn cloud_error(status: u16, body: &[u8], retry_after: Option<Duration>) -> DialectError {
    use ProviderFault as Fault;
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    // OpenAI's error shape has the same fields at these places.
    let said = json["error"]["message"].as_str().or_else(|| json["error"].as_str()).unwrap_or("no reason given");
    let kind = json["error"]["type"].as_str().unwrap_or_default();
    let (fault, message) = match (status, kind) {
        (429, _) | (_, "rate_limit_error") => {
            (Fault::RateLimited, format!("the provider has had enough requests for now: {said}"))
        }
        (529 | 503, _) | (_, "overloaded_error") => (Fault::Overloaded, format!("the provider is overloaded: {said}")),
        (400 | 422, _) if is_overflow(said) || json["error"]["code"] == "context_length_exceeded" => {
            // The provider's words come first: Anthropic's own clients read the numbers in them.
            let limit = Overflow::in_words(said).limit.filter(|_| !said.contains(OPENAIS));
            let openais = limit.map(|limit| format!(". {OPENAIS} is {limit} tokens"));
            (Fault::PromptTooLong, format!("{said}{}", openais.unwrap_or_default()))
        }
        (400 | 422, _) => (Fault::InvalidRequest, format!("the provider refused the request: {said}")),
        // The refused key is the one configured here; the provider never sees the client's.
        (401 | 403, _) => (Fault::KeyRefused, format!("the provider does not accept the key configured here: {said}")),
        (404, _) => (Fault::UnknownModel, format!("the provider has no such model: {said}")),
        (413, _) => (Fault::TooLarge, format!("the provider takes no request of this size: {said}")),
        _ => (Fault::Failed, format!("the provider answered {status}: {said}")),
    };
    let comes_back = matches!(fault, Fault::RateLimited | Fault::Overloaded);
    let retry_after = comes_back.then(|| retry_after.unwrap_or(USUAL_REST));
    DialectError { retry_after, ..DialectError::new(DialectFault::Provider(fault), message) }
}
