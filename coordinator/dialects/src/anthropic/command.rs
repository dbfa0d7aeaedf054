//! The `claude` command line in place of the Messages API. A chat becomes the command's prompt. Its output (`-p
//! --output-format stream-json`: one JSON object per line) becomes a stream or a message of that API. The lines wrap
//! the API's own events (`stream_event`) and messages (`assistant`); the last line (`result`) tells how the command
//! ended.

use serde_json::{Map, Value, json};

use super::to_messages_request::to_messages_request;
use crate::error::DialectError;
use crate::sse;

/// Input of one run of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandQuestion {
    /// The system prompt; empty when there is none.
    pub system: String,
    /// The text for the command's standard input.
    pub prompt: String,
    /// The answer's limit in tokens.
    pub max_tokens: u64,
    /// The thinking budget in tokens; `None`: no thinking.
    pub thinking: Option<u64>,
}

/// Translates a chat for the command. The command accepts one text, so a conversation is written into it turn by turn.
/// Content that the command does not accept is refused by name. Preferences without a flag (`temperature`, `top_p`,
/// `top_k`) are dropped.
pub fn command_question(chat: &Map<String, Value>) -> Result<CommandQuestion, DialectError> {
    let refuse = |param: &str, what: &str| {
        let message = format!("the claude command line {what}; a provider with a key and no 'transport' can");
        Err(DialectError::invalid(param, message))
    };
    let request = to_messages_request(chat, "")?;
    if request["tools"].is_array() {
        return refuse("tools", "cannot be given the tools of a request");
    }
    if request["stop_sequences"].is_array() {
        return refuse("stop", "knows no stop sequences");
    }
    if request["output_config"].is_object() {
        return refuse("response_format", "cannot be held to a schema");
    }
    let mut turns = Vec::new();
    for (index, message) in request["messages"].as_array().into_iter().flatten().enumerate() {
        let Some(text) = text_of(&message["content"]) else {
            return refuse(&format!("messages[{index}]"), "takes text only, no images and no results of tools");
        };
        turns.push((message["role"].as_str().unwrap_or_default().to_owned(), text));
    }
    let prompt = match turns.as_slice() {
        [(_, only)] => only.clone(),
        several => {
            let written = several.iter().map(|(role, text)| format!("<{role}>\n{text}\n</{role}>\n"));
            format!(
                "This is a conversation so far. Answer its last message as the assistant, with the answer alone.\n\n{}",
                written.collect::<String>()
            )
        }
    };
    Ok(CommandQuestion {
        system: request["system"].as_str().unwrap_or_default().to_owned(),
        prompt,
        max_tokens: request["max_tokens"].as_u64().unwrap_or_default(),
        thinking: request["thinking"]["budget_tokens"].as_u64(),
    })
}

fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) => {
            let texts: Option<Vec<&str>> =
                blocks.iter().map(|block| (block["type"] == "text").then(|| block["text"].as_str())?).collect();
            texts.map(|texts| texts.join("\n"))
        }
        _ => None,
    }
}

/// Parses the command's output, piece by piece.
#[derive(Debug, Default)]
pub struct CommandAnswer {
    line: Vec<u8>,
    /// Content blocks of the message so far, from `assistant` lines.
    content: Vec<Value>,
    usage: Value,
    stop_reason: Value,
    /// Whether a `stream_event` has arrived.
    streamed: bool,
    end: Option<Ended>,
}

/// The command's own report of its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The command ended with an answer.
    Well,
    /// The command failed, for this reason.
    Badly {
        /// The command's own error message.
        message: String,
        /// The status that Anthropic's API would answer with: 429, 529, 401, 400, or 500.
        status: u16,
    },
}

impl CommandAnswer {
    /// Takes the next bytes; returns the events of the Messages API that they complete.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            self.take(&line, &mut out);
        }
        self.line.extend_from_slice(bytes);
        out
    }

    /// Whether a part of an answer, or the command's end, has arrived.
    pub fn has_begun(&self) -> bool {
        self.streamed || self.end.is_some()
    }

    /// The command's end, if it has reported one.
    pub fn ended(&self) -> Option<&Ended> {
        self.end.as_ref()
    }

    /// The whole answer as one message of the Messages API.
    pub fn whole(&self) -> Value {
        let stop_reason = if self.stop_reason.is_string() { self.stop_reason.clone() } else { json!("end_turn") };
        json!({
            "type": "message", "role": "assistant", "content": self.content, "stop_reason": stop_reason,
            "usage": self.usage,
        })
    }

    fn take(&mut self, line: &[u8], out: &mut Vec<u8>) {
        // Lines without JSON are chatter.
        let Ok(said) = serde_json::from_slice::<Value>(line) else { return };
        // Output of the command's own subagents is not part of the answer.
        if said["parent_tool_use_id"].is_string() {
            return;
        }
        match said["type"].as_str() {
            Some("stream_event") => {
                let event = &said["event"];
                let Some(kind) = event["type"].as_str() else { return };
                self.streamed = true;
                if event["delta"]["stop_reason"].is_string() {
                    self.stop_reason = event["delta"]["stop_reason"].clone();
                }
                sse::named(out, kind, event);
            }
            // Each content block of a message is a line of its own.
            Some("assistant") => {
                let message = &said["message"];
                self.content.extend(message["content"].as_array().into_iter().flatten().cloned());
                if message["usage"].is_object() {
                    self.usage = message["usage"].clone();
                }
            }
            Some("result") => self.result(&said, out),
            _ => {}
        }
    }

    fn result(&mut self, said: &Value, out: &mut Vec<u8>) {
        if said["usage"].is_object() {
            self.usage = said["usage"].clone();
        }
        if said["is_error"] != true && said["subtype"] == "success" {
            self.end = Some(Ended::Well);
            if self.content.is_empty() {
                self.content = vec![json!({ "type": "text", "text": said["result"].as_str().unwrap_or_default() })];
            }
            if !self.streamed {
                self.as_stream(out);
            }
            return;
        }
        let words = said["result"].as_str().or_else(|| said["errors"][0].as_str()).or_else(|| said["subtype"].as_str());
        let message = words.unwrap_or("no reason given").to_owned();
        let (kind, status) = kind_of(&message);
        if self.streamed {
            let error = json!({ "type": "error", "error": { "type": kind, "message": message } });
            sse::named(out, "error", &error);
        }
        self.end = Some(Ended::Badly { message, status });
    }

    /// Writes a whole message as a stream, since older versions of the command write no `stream_event`.
    fn as_stream(&self, out: &mut Vec<u8>) {
        sse::named(
            out,
            "message_start",
            &json!({ "type": "message_start", "message": { "role": "assistant", "usage": self.usage } }),
        );
        for (index, block) in self.content.iter().enumerate() {
            let delta = match block["type"].as_str() {
                Some("thinking") => json!({ "type": "thinking_delta", "thinking": block["thinking"] }),
                Some("text") => json!({ "type": "text_delta", "text": block["text"] }),
                _ => continue,
            };
            let event = json!({ "type": "content_block_delta", "index": index, "delta": delta });
            sse::named(out, "content_block_delta", &event);
        }
        let stop = self.whole()["stop_reason"].clone();
        let end = json!({ "type": "message_delta", "delta": { "stop_reason": stop }, "usage": self.usage });
        sse::named(out, "message_delta", &end);
        sse::named(out, "message_stop", &json!({ "type": "message_stop" }));
    }
}

/// The kind and status of an error, guessed from its words: the command gives no code.
fn kind_of(message: &str) -> (&'static str, u16) {
    let lower = message.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if has(&["rate limit", "usage limit", "limit reached", "429"]) {
        ("rate_limit_error", 429)
    } else if has(&["overloaded", "529"]) {
        ("overloaded_error", 529)
    } else if has(&["/login", "api key", "authentication", "oauth", "401"]) {
        ("authentication_error", 401)
    } else if has(&["prompt is too long", "invalid_request_error"]) {
        ("invalid_request_error", 400)
    } else {
        ("api_error", 500)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sse::{SseItem, SseReader};

    fn question(chat: Value) -> Result<CommandQuestion, DialectError> {
        command_question(chat.as_object().unwrap())
    }

    #[test]
    fn rc_27_one_question_is_passed_as_it_is_and_a_conversation_is_written_down() {
        let asked = question(json!({ "messages": [
            { "role": "system", "content": "Be brief." }, { "role": "user", "content": "2 + 2?" } ], "max_tokens": 7 }));
        let told =
            CommandQuestion { system: "Be brief.".into(), prompt: "2 + 2?".into(), max_tokens: 7, thinking: None };
        assert_eq!(asked.unwrap(), told);
        let asked = question(json!({ "reasoning_effort": "low", "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "one" }] },
            { "role": "assistant", "content": "two" }, { "role": "user", "content": "three" } ] }))
        .unwrap();
        assert!(
            asked.prompt.ends_with("<user>\none\n</user>\n<assistant>\ntwo\n</assistant>\n<user>\nthree\n</user>\n")
        );
        assert_eq!(asked.thinking, Some(2_048));
    }

    #[test]
    fn rc_27_what_the_command_cannot_take_is_refused_by_name() {
        let user = json!([{ "role": "user", "content": "x" }]);
        let tool = json!([{ "type": "function", "function": { "name": "f" } }]);
        let image = json!([{ "role": "user", "content": [
            { "type": "image_url", "image_url": { "url": "data:image/png;base64,AAAA" } }] }]);
        for (chat, param) in [
            (json!({ "messages": user, "tools": tool }), "tools"),
            (json!({ "messages": user, "stop": "x" }), "stop"),
            (json!({ "messages": image }), "messages[0]"),
        ] {
            let error = question(chat).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(param), "{error:?}");
        }
    }

    const LINES: &str = concat!(
        r#"{"type":"system","subtype":"init","session_id":"s","tools":[]}"#,
        "\nchatter\n",
        r#"{"type":"stream_event","event":{"type":"message_start","message":{"usage":{"input_tokens":3}}},"parent_tool_use_id":null}"#,
        "\n",
        r#"{"type":"stream_event","event":{"type":"message_start"},"parent_tool_use_id":"an agent"}"#,
        "\n",
        r#"{"type":"assistant","message":{"content":[{"type":"thinking","thinking":"hm"}],"usage":{"input_tokens":3,"output_tokens":1}}}"#,
        "\n",
        r#"{"type":"assistant","message":{"content":[{"type":"text","text":"four"}],"usage":{"input_tokens":3,"output_tokens":1}}}"#,
        "\n",
        r#"{"type":"stream_event","event":{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":5}}}"#,
        "\n",
        r#"{"type":"result","subtype":"success","is_error":false,"result":"four","usage":{"input_tokens":3,"output_tokens":5}}"#,
        "\n",
    );

    fn kinds(bytes: &[u8]) -> Vec<String> {
        let items = SseReader::default().push(bytes).into_iter();
        items.filter_map(|item| if let SseItem::Event { name, .. } = item { Some(name) } else { None }).collect()
    }

    #[test]
    fn rc_27_its_lines_are_a_stream_and_a_message_wherever_they_are_cut() {
        for size in [1, 7, 10_000] {
            let mut answer = CommandAnswer::default();
            let out: Vec<u8> = LINES.as_bytes().chunks(size).flat_map(|piece| answer.push(piece)).collect();
            assert_eq!(kinds(&out), ["message_start", "message_delta"]);
            assert_eq!(answer.ended(), Some(&Ended::Well));
            let whole = answer.whole();
            assert_eq!((&whole["stop_reason"], &whole["content"][1]["text"]), (&json!("max_tokens"), &json!("four")));
            assert_eq!(whole["usage"]["output_tokens"], 5);
        }
    }

    #[test]
    fn a_command_that_writes_whole_messages_only_is_streamed_all_the_same() {
        let lines: String = LINES.split_inclusive('\n').filter(|line| !line.contains("stream_event")).collect();
        let mut answer = CommandAnswer::default();
        let out = answer.push(lines.as_bytes());
        assert_eq!(
            kinds(&out),
            ["message_start", "content_block_delta", "content_block_delta", "message_delta", "message_stop"]
        );
        let mut answer = CommandAnswer::default();
        answer.push(b"{\"type\":\"result\",\"subtype\":\"success\",\"result\":\"four\"}\n");
        assert_eq!(answer.whole()["content"][0]["text"], "four");
    }

    #[test]
    fn its_errors_have_the_status_that_the_api_would_give() {
        for (words, status) in [
            ("Claude AI usage limit reached|1700000000", 429),
            ("API Error: 529 Overloaded", 529),
            ("Invalid API key · Please run /login", 401),
            ("Prompt is too long", 400),
            ("it broke", 500),
        ] {
            let mut answer = CommandAnswer::default();
            let line = json!({ "type": "result", "subtype": "success", "is_error": true, "result": words });
            let out = answer.push(format!("{line}\n").as_bytes());
            assert!(out.is_empty(), "nothing was said yet: it is no stream");
            assert_eq!(answer.ended(), Some(&Ended::Badly { message: words.into(), status }));
        }
        let mut answer = CommandAnswer::default();
        answer.push(LINES.split_inclusive('\n').nth(2).unwrap().as_bytes());
        let out = answer.push(b"{\"type\":\"result\",\"subtype\":\"error_during_execution\",\"is_error\":true}\n");
        assert_eq!(kinds(&out), ["error"]);
    }
}
