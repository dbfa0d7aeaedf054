//! Chats for models without a chat template: the conversation as one text, and its completion as a chat answer.
//!
//! The Alpaca format follows the README of Stanford Alpaca; `/completion` follows the README of llama.cpp's server.

use bytes::Bytes;
use model_boss_protocol::sse::DONE;
use model_boss_protocol::{PromptFormat, THINKING_BUDGETS};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::DialectError;
use crate::sse::{self, SseItem, SseReader};
use crate::{Reshape, Stamp, nonsense};

/// The completion route of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionKind {
    LlamaServer,
    OpenAi,
}

impl CompletionKind {
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::LlamaServer => "/completion",
            Self::OpenAi => "/v1/completions",
        }
    }
}

/// The stop string of an Alpaca answer, after which the model would write the next question itself.
const ALPACA_STOP: &str = "\n### Instruction:";

/// Fields that only chats have, as all budgets of thinking, or that are translated; others are passed on unchanged.
const OF_CHATS: [&str; 16] = [
    "messages",
    "model",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "add_generation_prompt",
    "continue_final_message",
    "logprobs",
    "top_logprobs",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "stream_options",
    "thinking",
    "chat_template_kwargs",
    "reasoning_effort",
];

/// Translates a chat request into a completion request.
pub(crate) fn completion_request(
    format: PromptFormat,
    kind: CompletionKind,
    served_name: &str,
    chat: &Map<String, Value>,
) -> Result<Value, DialectError> {
    let messages = chat.get("messages").and_then(Value::as_array);
    let messages = messages.ok_or_else(|| DialectError::invalid("messages", "'messages' is missing, or no list"))?;
    if chat.get("tools").and_then(Value::as_array).is_some_and(|tools| !tools.is_empty()) {
        let message = "this model has no chat template, so it cannot be told of 'tools'";
        return Err(DialectError::invalid("tools", message));
    }
    if chat.get("logprobs") == Some(&json!(true)) {
        let message = "this model has no chat template, so its chats have no 'logprobs'; ask /v1/completions for them";
        return Err(DialectError::invalid("logprobs", message));
    }
    let may_go_on = chat.get("continue_final_message") != Some(&json!(false));
    let prompt = prompt_of(format, messages, may_go_on)?;
    let mut request = json!({ "model": served_name, "prompt": prompt });
    let is_of_chats = |name: &str| OF_CHATS.contains(&name) || THINKING_BUDGETS.contains(&name);
    for (name, value) in chat.iter().filter(|(name, _)| !is_of_chats(name.as_str())) {
        request[name] = value.clone();
    }
    let limit = ["max_completion_tokens", "max_tokens"].iter().find_map(|name| chat.get(*name)).cloned();
    let mut stop = match chat.get("stop") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(several)) => several.clone(),
        Some(one) => vec![one.clone()],
    };
    if format == PromptFormat::Alpaca {
        stop.push(json!(ALPACA_STOP));
    }
    request["stop"] = Value::Array(stop);
    match kind {
        CompletionKind::LlamaServer => {
            if let Some(limit) = limit {
                request["n_predict"] = limit;
            }
            if chat.get("cache_prompt").is_none_or(Value::is_null) {
                request["cache_prompt"] = json!(true);
            }
        }
        CompletionKind::OpenAi => {
            if let Some(limit) = limit {
                request["max_tokens"] = limit;
            }
            if chat.get("stream") == Some(&json!(true)) {
                let continuous = chat.get("stream_options").and_then(|o| o.get("continuous_usage_stats"));
                request["stream_options"] = match continuous {
                    Some(wanted) => json!({ "include_usage": true, "continuous_usage_stats": wanted }),
                    None => json!({ "include_usage": true }),
                };
            }
        }
    }
    Ok(request)
}

/// The conversation as one text, ending where the answer begins.
fn prompt_of(format: PromptFormat, messages: &[Value], may_go_on: bool) -> Result<String, DialectError> {
    let mut prompt = String::new();
    for (index, message) in messages.iter().enumerate() {
        let text = text_of(index, message)?;
        // The model continues a last message of the assistant.
        let is_assistants = message.get("role").and_then(Value::as_str) == Some("assistant");
        if format == PromptFormat::Alpaca && may_go_on && index + 1 == messages.len() && is_assistants {
            return Ok(prompt + "### Response:\n" + &text);
        }
        match format {
            PromptFormat::Raw => prompt.push_str(&text),
            PromptFormat::Alpaca => match message.get("role").and_then(Value::as_str) {
                Some("system" | "developer") => prompt += &format!("{text}\n\n"),
                Some("assistant") => prompt += &format!("### Response:\n{text}\n\n"),
                _ => prompt += &format!("### Instruction:\n{text}\n\n"),
            },
        }
    }
    if format == PromptFormat::Alpaca {
        prompt += "### Response:\n";
    }
    Ok(prompt)
}

fn text_of(index: usize, message: &Value) -> Result<String, DialectError> {
    let wrong = |what: &str| DialectError::invalid(format!("messages[{index}].content"), what.to_owned());
    match message.get("content") {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| part.get("text").and_then(Value::as_str));
            texts.collect::<Option<String>>().ok_or_else(|| wrong("this model takes only text in 'content'"))
        }
        Some(_) => Err(wrong("'content' must be a text, or a list of parts")),
    }
}

/// An answer of llama.cpp's `/completion`, whole or as one event of a stream.
#[derive(Deserialize)]
struct LlamaCompletion {
    content: String,
    stop: Option<bool>,
    #[serde(default)]
    stop_type: String,
    #[serde(default)]
    stopped_limit: bool,
    #[serde(default)]
    tokens_evaluated: u64,
    #[serde(default)]
    tokens_predicted: u64,
    timings: Option<Value>,
    prompt_progress: Option<PromptProgress>,
}

/// Progress of a streamed request's prefill (`return_progress`), in tokens.
#[derive(Deserialize)]
struct PromptProgress {
    total: u64,
    cache: u64,
}

/// Turns the answer of a completion into that of a chat.
pub struct CompletionToChat {
    kind: CompletionKind,
    stamp: Stamp,
    wants_usage: bool,
    /// Whether every chunk carries the usage so far (`continuous_usage_stats`).
    continuous_usage: bool,
    /// The newest usage, in OpenAI's shape.
    so_far: Option<Value>,
    reader: SseReader,
    begun: bool,
    /// Whether a finish reason has arrived.
    finished: bool,
    ended: bool,
    /// The error that ended the stream, until the caller takes it.
    failure: Option<DialectError>,
}

/// One event of the engine: a piece of text, and with the last one the reason of the end.
struct Step {
    text: String,
    end: Option<&'static str>,
    usage: Option<Value>,
    timings: Option<Value>,
}

impl CompletionToChat {
    pub(crate) fn new(kind: CompletionKind, stamp: Stamp, chat: &Map<String, Value>) -> Self {
        let option = |name: &str| chat.get("stream_options").and_then(|o| o.get(name)) == Some(&json!(true));
        let wants_usage = option("include_usage");
        Self {
            kind,
            stamp,
            wants_usage,
            continuous_usage: wants_usage && option("continuous_usage_stats"),
            so_far: None,
            reader: SseReader::default(),
            begun: false,
            finished: false,
            ended: false,
            failure: None,
        }
    }

    fn step(&self, json: &Value) -> Option<Step> {
        match self.kind {
            CompletionKind::LlamaServer => {
                let said: LlamaCompletion = serde_json::from_value(json.clone()).ok()?;
                let cut = said.stop_type == "limit" || said.stopped_limit;
                let end = if cut { "length" } else { "stop" };
                // llama.cpp's `tokens_cached` counts the whole sequence; the cached part of the prompt is in `timings`
                // or the progress.
                let in_timings = said.timings.as_ref().and_then(|timings| timings["cache_n"].as_u64());
                let progress = said.prompt_progress.as_ref();
                let cached = in_timings.or(progress.map(|progress| progress.cache)).unwrap_or(0);
                let prompt = progress.map_or(said.tokens_evaluated, |progress| progress.total);
                let usage = usage(prompt, said.tokens_predicted, cached);
                // Whole answers of older builds lack `stop`; the events of a stream have it.
                let ended = said.stop.unwrap_or(said.timings.is_some());
                Some(Step {
                    text: said.content,
                    end: ended.then_some(end),
                    usage: (ended || prompt > 0).then_some(usage),
                    timings: said.timings,
                })
            }
            CompletionKind::OpenAi => {
                let choices = json.get("choices")?.as_array()?;
                let choice = choices.first();
                let end = choice.and_then(|choice| choice.get("finish_reason")).and_then(Value::as_str);
                let text = choice.and_then(|choice| choice.get("text")).and_then(Value::as_str).unwrap_or_default();
                Some(Step {
                    text: text.to_owned(),
                    end: end.map(|end| if end == "length" { "length" } else { "stop" }),
                    usage: json.get("usage").filter(|usage| usage.is_object()).cloned(),
                    timings: json.get("timings").cloned(),
                })
            }
        }
    }

    /// Ends the stream with an error.
    fn fail(&mut self, error: DialectError) {
        self.ended = true;
        self.failure = Some(error);
    }

    fn chunk(&self, delta: &Value, end: Option<&str>) -> Value {
        let mut chunk = json!({
            "id": self.stamp.id, "object": "chat.completion.chunk", "created": self.stamp.created,
            "model": self.stamp.model,
            "choices": [{ "index": 0, "delta": delta, "finish_reason": end, "logprobs": null }],
        });
        if let (Some(usage), true) = (&self.so_far, self.continuous_usage) {
            chunk["usage"] = usage.clone();
        }
        chunk
    }

    fn event(&mut self, data: &str, out: &mut Vec<u8>) {
        if data == "[DONE]" {
            return;
        }
        if self.ended {
            return;
        }
        let json = match serde_json::from_str::<Value>(data) {
            Ok(json) => json,
            Err(error) => return self.fail(nonsense(error)),
        };
        if json.get("error").is_some() {
            self.ended = true;
            sse::data(out, &json);
            return;
        }
        let Some(step) = self.step(&json) else { return self.fail(nonsense("it is no completion")) };
        self.so_far = step.usage.or(self.so_far.take());
        if !self.begun {
            self.begun = true;
            sse::data(out, &self.chunk(&json!({ "role": "assistant", "content": "" }), None));
        }
        if !step.text.is_empty() {
            sse::data(out, &self.chunk(&json!({ "content": step.text }), None));
        }
        if let Some(end) = step.end {
            self.finished = true;
            let mut last = self.chunk(&json!({}), Some(end));
            if let Some(timings) = step.timings {
                last["timings"] = timings;
            }
            sse::data(out, &last);
        }
    }

    /// Writes the last chunk of a stream, with the usage of the whole answer.
    fn tell_usage(&self, out: &mut Vec<u8>) {
        if let (Some(usage), true) = (&self.so_far, self.wants_usage) {
            let mut chunk = self.chunk(&json!({}), None);
            chunk["choices"] = json!([]);
            chunk["usage"] = usage.clone();
            sse::data(out, &chunk);
        }
    }
}

fn usage(prompt: u64, answer: u64, cached: u64) -> Value {
    json!({
        "prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt.saturating_add(answer),
        "prompt_tokens_details": { "cached_tokens": cached.min(prompt) },
    })
}

impl Reshape for CompletionToChat {
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, DialectError> {
        if status >= 400 {
            return Ok(body.clone());
        }
        let json = serde_json::from_slice(body).map_err(nonsense)?;
        let step = self.step(&json).ok_or_else(|| nonsense("it is no completion"))?;
        let mut answer = json!({
            "id": self.stamp.id, "object": "chat.completion", "created": self.stamp.created, "model": self.stamp.model,
            "choices": [{
                "index": 0, "message": { "role": "assistant", "content": step.text },
                "finish_reason": step.end.unwrap_or("stop"), "logprobs": null,
            }],
        });
        if let Some(usage) = step.usage {
            answer["usage"] = usage;
        }
        if let Some(timings) = step.timings {
            answer["timings"] = timings;
        }
        Ok(Bytes::from(answer.to_string()))
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        let mut out = Vec::new();
        for item in self.reader.push(bytes) {
            if let SseItem::Event { data, .. } = item {
                self.event(&data, &mut out);
            }
        }
        Bytes::from(out)
    }

    fn end(&mut self) -> Bytes {
        let mut out = Vec::new();
        match (self.ended, self.finished) {
            (true, _) => {}
            (false, true) => {
                self.tell_usage(&mut out);
                out.extend_from_slice(DONE.as_bytes());
            }
            (false, false) => self.fail(nonsense("its stream ended in the middle")),
        }
        Bytes::from(out)
    }

    fn failure(&mut self) -> Option<DialectError> {
        self.failure.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: Value) -> Map<String, Value> {
        body.as_object().unwrap().clone()
    }

    fn conversation() -> Map<String, Value> {
        chat(json!({
            "messages": [
                { "role": "system", "content": "Be brief." },
                { "role": "user", "content": [{ "type": "text", "text": "One?" }] },
                { "role": "assistant", "content": "1" },
                { "role": "user", "content": "Two?" },
            ],
            "max_tokens": 5, "stop": "x", "temperature": 0,
        }))
    }

    #[test]
    fn rc_23_a_conversation_in_alpacas_words() {
        let request =
            completion_request(PromptFormat::Alpaca, CompletionKind::LlamaServer, "m", &conversation()).unwrap();
        assert_eq!(
            request["prompt"],
            "Be brief.\n\n### Instruction:\nOne?\n\n### Response:\n1\n\n### Instruction:\nTwo?\n\n### Response:\n"
        );
        assert_eq!(request["stop"], json!(["x", ALPACA_STOP]));
        assert_eq!((&request["n_predict"], &request["temperature"]), (&json!(5), &json!(0)));
        let raw = completion_request(PromptFormat::Raw, CompletionKind::OpenAi, "m", &conversation()).unwrap();
        assert_eq!((&raw["prompt"], &raw["max_tokens"]), (&json!("Be brief.One?1Two?"), &json!(5)));
    }

    #[test]
    fn en_1_a_llama_server_keeps_a_prompt_unless_the_request_says_no() {
        for (wish, kept) in
            [(None, true), (Some(json!(null)), true), (Some(json!(true)), true), (Some(json!(false)), false)]
        {
            let mut body = conversation();
            body.extend(wish.map(|wish| ("cache_prompt".to_owned(), wish)));
            let request = completion_request(PromptFormat::Raw, CompletionKind::LlamaServer, "m", &body).unwrap();
            assert_eq!(request["cache_prompt"], kept);
        }
    }

    #[test]
    fn rc_23_en_4_a_last_answer_goes_on_unless_the_request_says_otherwise() {
        let asked = |flag: Value| {
            let mut body = conversation();
            body["messages"].as_array_mut().unwrap().push(json!({ "role": "assistant", "content": "2, 3" }));
            body.insert("continue_final_message".to_owned(), flag);
            let request = completion_request(PromptFormat::Alpaca, CompletionKind::LlamaServer, "m", &body).unwrap();
            assert_eq!(request.get("continue_final_message"), None);
            request["prompt"].as_str().unwrap().to_owned()
        };
        assert!(asked(json!(null)).ends_with("### Instruction:\nTwo?\n\n### Response:\n2, 3"));
        assert!(asked(json!(false)).ends_with("### Response:\n2, 3\n\n### Response:\n"));
    }

    #[test]
    fn rc_23_what_a_text_cannot_say_is_named() {
        for (body, param) in [
            (json!({}), "messages"),
            (json!({ "messages": [], "tools": [{}] }), "tools"),
            (json!({ "messages": [{ "content": [{ "type": "image_url" }] }] }), "messages[0].content"),
            (json!({ "messages": [{ "content": 7 }] }), "messages[0].content"),
        ] {
            let error = completion_request(PromptFormat::Raw, CompletionKind::OpenAi, "m", &chat(body)).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(param));
        }
    }

    fn reshape(kind: CompletionKind, body: Value) -> CompletionToChat {
        let stamp = Stamp { id: "id-1".into(), model: "m".into(), created: 7 };
        CompletionToChat::new(kind, stamp, &chat(body))
    }

    #[test]
    fn rc_17_a_whole_completion_comes_back_in_the_chat_shape() {
        let answer = json!({
            "content": "four", "stop": true, "stop_type": "limit", "tokens_evaluated": 9, "tokens_predicted": 1,
            "tokens_cached": 3, "timings": { "prompt_n": 6 },
        });
        let mut reshape = reshape(CompletionKind::LlamaServer, json!({}));
        let chat: Value = serde_json::from_slice(&reshape.whole(200, &answer.to_string().into()).unwrap()).unwrap();
        assert_eq!(chat["choices"][0]["message"], json!({ "role": "assistant", "content": "four" }));
        assert_eq!(chat["choices"][0]["finish_reason"], "length");
        assert_eq!((&chat["usage"]["total_tokens"], &chat["timings"]["prompt_n"]), (&json!(10), &json!(6)));
        assert_eq!(reshape.whole(400, &Bytes::from("{\"error\":1}")).unwrap(), "{\"error\":1}");
    }

    #[test]
    fn rc_17_en_7_tokens_of_a_prompt_are_told_from_the_start_and_cached_ones_are_those_of_the_prompt() {
        let stream = "data: {\"content\":\"\",\"stop\":false,\"tokens_evaluated\":9,\
            \"prompt_progress\":{\"total\":9,\"cache\":4,\"processed\":4,\"time_ms\":0},\"timings\":{\"cache_n\":4}}\n\n\
            data: {\"content\":\"four\",\"stop\":false,\"tokens_evaluated\":9,\"tokens_predicted\":1}\n\n\
            data: {\"content\":\"\",\"stop\":true,\"stop_type\":\"eos\",\"tokens_evaluated\":9,\"tokens_predicted\":2,\
            \"tokens_cached\":11,\"timings\":{\"cache_n\":4}}\n\n";
        let options = json!({ "include_usage": true, "continuous_usage_stats": true });
        let mut reshape = reshape(CompletionKind::LlamaServer, json!({ "stream_options": options }));
        let mut out = reshape.piece(stream.as_bytes()).to_vec();
        out.extend_from_slice(&reshape.end());
        let events = events(&out);
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        assert_eq!(events[0]["usage"], usage(9, 0, 4));
        assert_eq!(events.last().unwrap()["usage"], usage(9, 2, 4));
        let ends = events.iter().filter(|event| event["choices"][0]["finish_reason"].is_string()).count();
        assert_eq!((ends, events.iter().filter(|event| event["choices"] == json!([])).count()), (1, 1));
    }

    fn events(out: &[u8]) -> Vec<Value> {
        let data = |item| match item {
            SseItem::Event { data, .. } => serde_json::from_str(&data).ok(),
            SseItem::Comment(_) => None,
        };
        SseReader::default().push(out).into_iter().filter_map(data).collect()
    }

    #[test]
    fn rc_17_a_streamed_completion_comes_back_in_the_chat_shape() {
        let stream = "data: {\"content\":\"fo\",\"stop\":false}\n\ndata: {\"content\":\"ur\",\"stop\":false}\n\n\
            data: {\"content\":\"\",\"stop\":true,\"stop_type\":\"eos\",\"tokens_evaluated\":2,\"tokens_predicted\":2}\n\n";
        let mut reshape = reshape(CompletionKind::LlamaServer, json!({ "stream_options": { "include_usage": true } }));
        let mut out = Vec::new();
        for piece in stream.as_bytes().chunks(7) {
            out.extend_from_slice(&reshape.piece(piece));
        }
        out.extend_from_slice(&reshape.end());
        let events = events(&out);
        let text: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!((text.as_str(), &events[0]["choices"][0]["delta"]["role"]), ("four", &json!("assistant")));
        assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "stop");
        assert_eq!(events[events.len() - 1]["usage"]["total_tokens"], 4);
        assert!(out.ends_with(DONE.as_bytes()));
    }
}
