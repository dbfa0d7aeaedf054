//! Translates OpenAI's answers into Ollama's lines of JSON.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::EmbedShape;
use crate::error::DialectError;
use model_boss_protocol::ErrorCode;

use crate::names::message_with_field;
use crate::sse::{SseItem, SseReader};
use crate::{Names, Reshape, Stamp, nonsense};

/// Returns the time since the request arrived, and the part of it that loading the model took.
pub type Elapsed = Box<dyn Fn() -> (Duration, Duration) + Send>;

/// The shape of Ollama's answer, by its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerShape {
    /// `/api/chat`: the text is in `message`.
    Chat,
    /// `/api/generate`: the text is in `response`.
    Generate,
}

/// Turns the answer of a chat or a completion into Ollama's.
pub struct OllamaFromChat {
    shape: AnswerShape,
    stamp: Stamp,
    names: Names,
    elapsed: Elapsed,
    reader: SseReader,
    /// Name and arguments of each tool call so far. OpenAI's streams cut calls into pieces; Ollama's clients get them
    /// whole.
    calls: Vec<(Value, String)>,
    finish: Option<String>,
    usage: Value,
    timings: Value,
    failed: bool,
}

impl OllamaFromChat {
    /// Prepares for an answer with this stamp, to a request whose fields the client called by `names`.
    pub fn new(shape: AnswerShape, stamp: Stamp, names: Names, elapsed: Elapsed) -> Self {
        Self {
            shape,
            stamp,
            names,
            elapsed,
            reader: SseReader::default(),
            calls: Vec::new(),
            finish: None,
            usage: Value::Null,
            timings: Value::Null,
            failed: false,
        }
    }

    fn line(&self, text: &str, thoughts: &str, calls: &[Value]) -> Value {
        let mut line = json!({ "model": self.stamp.model, "created_at": timestamp(self.stamp.created), "done": false });
        match self.shape {
            AnswerShape::Chat => {
                let mut message = json!({ "role": "assistant", "content": text });
                if !thoughts.is_empty() {
                    message["thinking"] = json!(thoughts);
                }
                if !calls.is_empty() {
                    message["tool_calls"] = json!(calls);
                }
                line["message"] = message;
            }
            AnswerShape::Generate => {
                line["response"] = json!(text);
                if !thoughts.is_empty() {
                    line["thinking"] = json!(thoughts);
                }
            }
        }
        line
    }

    /// A call; none if it was cut. Arguments are an object in Ollama's API, and a string in OpenAI's: clients would run
    /// a part of them.
    fn tool_call(&self, name: &Value, arguments: &str) -> Option<Value> {
        let arguments = match serde_json::from_str(arguments) {
            Ok(arguments) => arguments,
            Err(_) if self.finish.as_deref() == Some("length") => return None,
            Err(_) => json!({ "arguments": arguments }),
        };
        Some(json!({ "function": { "name": name, "arguments": arguments } }))
    }

    /// Adds the fields of the last line: the reason of the end, token counts and durations.
    fn close(&self, line: &mut Value) {
        let (total, load) = (self.elapsed)();
        let nanoseconds = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let count = |pointer: &str| self.usage.pointer(pointer).and_then(Value::as_u64);
        let spent = |name: &str| self.timings[name].as_f64().map(|ms| (ms * 1e6) as u64);
        line["done"] = json!(true);
        line["done_reason"] = json!(if self.finish.as_deref() == Some("length") { "length" } else { "stop" });
        line["total_duration"] = json!(nanoseconds(total));
        line["load_duration"] = json!(nanoseconds(load));
        if let Some(tokens) = count("/prompt_tokens") {
            line["prompt_eval_count"] = json!(tokens);
        }
        if let Some(tokens) = count("/completion_tokens") {
            line["eval_count"] = json!(tokens);
        }
        // Without the engine's own times, the duration of the whole answer is the best estimate.
        line["prompt_eval_duration"] = json!(spent("prompt_ms").unwrap_or(0));
        line["eval_duration"] = json!(spent("predicted_ms").unwrap_or_else(|| nanoseconds(total.saturating_sub(load))));
    }

    fn event(&mut self, data: &str, out: &mut Vec<u8>) {
        let Ok(chunk) = serde_json::from_str::<Value>(data) else { return };
        if chunk.get("error").is_some() {
            self.failed = true;
            return push(out, &error_line(&self.names, chunk));
        }
        for (known, name) in [(&mut self.usage, "usage"), (&mut self.timings, "timings")] {
            if chunk[name].is_object() {
                *known = chunk[name].clone();
            }
        }
        let choice = &chunk["choices"][0];
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.to_owned());
        }
        let delta = &choice["delta"];
        let text = delta["content"].as_str().or_else(|| choice["text"].as_str()).unwrap_or_default();
        let thoughts = delta["reasoning_content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
            if index >= self.calls.len() && index < 1_024 {
                self.calls.resize(index + 1, (Value::Null, String::new()));
            }
            if let Some((name, arguments)) = self.calls.get_mut(index) {
                if call["function"]["name"].is_string() {
                    *name = call["function"]["name"].clone();
                }
                *arguments += call["function"]["arguments"].as_str().unwrap_or_default();
            }
        }
        if !text.is_empty() || !thoughts.is_empty() {
            let mut line = self.line(text, thoughts, &[]);
            if let Some(told) = logprobs(&choice["logprobs"]) {
                line["logprobs"] = told;
            }
            push(out, &line);
        }
    }
}

impl Reshape for OllamaFromChat {
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, DialectError> {
        if status >= 400 {
            let error: Value = serde_json::from_slice(body).unwrap_or_default();
            return Ok(Bytes::from(error_line(&self.names, error).to_string()));
        }
        let answer: Value = serde_json::from_slice(body).map_err(nonsense)?;
        let choice = &answer["choices"][0];
        let said = &choice["message"];
        if !said.is_object() && !choice["text"].is_string() {
            return Err(nonsense("it has no message"));
        }
        let text = said["content"].as_str().or_else(|| choice["text"].as_str()).unwrap_or_default();
        (self.usage, self.timings) = (answer["usage"].clone(), answer["timings"].clone());
        self.finish = choice["finish_reason"].as_str().map(str::to_owned);
        let calls = said["tool_calls"].as_array().into_iter().flatten().map(|call| &call["function"]);
        let calls =
            calls.filter_map(|call| self.tool_call(&call["name"], call["arguments"].as_str().unwrap_or_default()));
        let calls: Vec<Value> = calls.collect();
        let mut line = self.line(text, said["reasoning_content"].as_str().unwrap_or_default(), &calls);
        if let Some(told) = logprobs(&choice["logprobs"]) {
            line["logprobs"] = told;
        }
        self.close(&mut line);
        Ok(Bytes::from(line.to_string()))
    }

    fn piece(&mut self, bytes: &[u8]) -> Bytes {
        let mut out = Vec::new();
        for item in self.reader.push(bytes) {
            // Ollama's streams have no comments.
            if let SseItem::Event { data, .. } = item
                && !self.failed
            {
                self.event(&data, &mut out);
            }
        }
        Bytes::from(out)
    }

    fn end(&mut self) -> Bytes {
        let mut out = Vec::new();
        if self.failed {
            return Bytes::new();
        }
        let calls: Vec<Value> = std::mem::take(&mut self.calls)
            .iter()
            .filter_map(|(name, arguments)| self.tool_call(name, arguments))
            .collect();
        if !calls.is_empty() {
            push(&mut out, &self.line("", "", &calls));
        }
        let mut last = self.line("", "", &[]);
        self.close(&mut last);
        push(&mut out, &last);
        Bytes::from(out)
    }
}

/// Log probabilities in Ollama's shape: those of a chat are copied, those of a completion are regrouped by token.
fn logprobs(given: &Value) -> Option<Value> {
    if let Some(content) = given["content"].as_array() {
        return (!content.is_empty()).then(|| json!(content));
    }
    let (tokens, likely) = (given["tokens"].as_array()?, &given["token_logprobs"]);
    let told = tokens.iter().enumerate().map(|(index, token)| {
        let top = given["top_logprobs"][index].as_object().into_iter().flatten();
        let top: Vec<Value> = top.map(|(token, logprob)| json!({ "token": token, "logprob": logprob })).collect();
        json!({ "token": token, "logprob": likely[index], "top_logprobs": top })
    });
    Some(told.collect::<Vec<Value>>()).filter(|told| !told.is_empty()).map(Value::from)
}

fn push(out: &mut Vec<u8>, line: &Value) {
    out.extend_from_slice(line.to_string().as_bytes());
    out.push(b'\n');
}

/// Turns an answer of `/v1/embeddings` into Ollama's. Vectors keep their bytes.
pub struct OllamaFromEmbeddings {
    shape: EmbedShape,
    model: String,
    names: Names,
    elapsed: Elapsed,
}

impl OllamaFromEmbeddings {
    /// Prepares for an answer of this model, to a request whose fields the client called by `names`.
    pub fn new(shape: EmbedShape, model: String, names: Names, elapsed: Elapsed) -> Self {
        Self { shape, model, names, elapsed }
    }
}

/// The fields of OpenAI's answer that Ollama's has too.
#[derive(Deserialize)]
struct Embeddings<'a> {
    #[serde(borrow)]
    data: Vec<OllamaEmbedding<'a>>,
    usage: Option<EmbeddingsUsage>,
}

#[derive(Deserialize)]
struct OllamaEmbedding<'a> {
    #[serde(borrow)]
    embedding: &'a RawValue,
}

#[derive(Deserialize)]
struct EmbeddingsUsage {
    prompt_tokens: Option<u64>,
}

#[derive(Serialize)]
struct EmbedAnswer<'a> {
    model: &'a str,
    embeddings: Vec<&'a RawValue>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: Option<u64>,
}

#[derive(Serialize)]
struct EmbeddingAnswer<'a> {
    embedding: Option<&'a RawValue>,
}

impl Reshape for OllamaFromEmbeddings {
    fn whole(&mut self, status: u16, body: &Bytes) -> Result<Bytes, DialectError> {
        if status >= 400 {
            let error: Value = serde_json::from_slice(body).unwrap_or_default();
            return Ok(Bytes::from(error_line(&self.names, error).to_string()));
        }
        let answer: Embeddings<'_> = serde_json::from_slice(body).map_err(nonsense)?;
        let mut vectors = answer.data.iter().map(|one| one.embedding);
        let said = if self.shape == EmbedShape::One {
            serde_json::to_vec(&EmbeddingAnswer { embedding: vectors.next() })
        } else {
            let (total, load) = (self.elapsed)();
            let nanoseconds = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
            serde_json::to_vec(&EmbedAnswer {
                model: &self.model,
                embeddings: vectors.collect(),
                total_duration: nanoseconds(total),
                load_duration: nanoseconds(load),
                prompt_eval_count: answer.usage.and_then(|usage| usage.prompt_tokens),
            })
        };
        said.map(Bytes::from).map_err(nonsense)
    }

    fn piece(&mut self, _: &[u8]) -> Bytes {
        Bytes::new()
    }

    fn end(&mut self) -> Bytes {
        Bytes::new()
    }

    fn is_document(&self) -> bool {
        false
    }
}

fn error_line(names: &Names, error: Value) -> Value {
    json!({ "error": error_text(&names.put_back_body(error)) })
}

/// The message of an error of model-boss; Ollama's clients read no other field. A prompt that is too long is named in
/// Ollama's own words, which its clients search for.
pub fn error_text(ours: &Value) -> String {
    let error = &ours["error"];
    let text = error.as_str().map_or_else(|| message_with_field(error), str::to_owned);
    let is_too_long = error["code"] == ErrorCode::ContextLengthExceeded.as_str();
    if is_too_long { format!("the input length exceeds the context length: {text}") } else { text }
}

/// Formats seconds since 1970 as RFC 3339, in UTC. The date follows Howard Hinnant's "chrono-compatible low-level date
/// algorithms" (civil from days).
pub fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Answers to requests without a prompt, which only load or unload the model.
impl OllamaFromChat {
    /// The one line of the answer; `reason` is `load` or `unload`.
    pub fn nothing_asked(shape: AnswerShape, stamp: &Stamp, reason: &str) -> Value {
        let mut line = Map::new();
        line.insert("model".to_owned(), json!(stamp.model));
        line.insert("created_at".to_owned(), json!(timestamp(stamp.created)));
        match shape {
            AnswerShape::Chat => line.insert("message".to_owned(), json!({ "role": "assistant", "content": "" })),
            AnswerShape::Generate => line.insert("response".to_owned(), json!("")),
        };
        line.insert("done".to_owned(), json!(true));
        line.insert("done_reason".to_owned(), json!(reason));
        Value::Object(line)
    }
}
