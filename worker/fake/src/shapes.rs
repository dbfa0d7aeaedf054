//! OpenAI's shapes for chat and plain completions, streamed and not, and the fields read from a request.

use bytes::Bytes;
use model_boss_protocol::ModelId;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::decode::{Cost, Finish};

/// The route of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionRoute {
    Chat,
    Completion,
    /// llama.cpp's own route.
    LlamaCompletion,
}

/// The fields of a request's body that the fake worker reads.
#[derive(Debug, Deserialize)]
pub(crate) struct Body {
    #[serde(default)]
    messages: Option<Vec<FakeMessage>>,
    #[serde(default)]
    prompt: Option<Value>,
    #[serde(default)]
    pub(crate) stream: bool,
    #[serde(default)]
    stream_options: Option<RequestedStream>,
    /// llama.cpp's field: whether to report the progress of prefill.
    #[serde(default)]
    return_progress: bool,
    #[serde(default)]
    max_tokens: Option<i64>,
    #[serde(default)]
    max_completion_tokens: Option<i64>,
    #[serde(default)]
    n_predict: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct FakeMessage {
    #[serde(default)]
    content: Value,
}

#[derive(Debug, Deserialize)]
struct RequestedStream {
    #[serde(default)]
    include_usage: bool,
    #[serde(default)]
    continuous_usage_stats: bool,
}

impl Body {
    /// The number of words in the prompt, in place of its tokens; `None` when the route's field is missing.
    pub(crate) fn prompt_tokens(&self, route: CompletionRoute) -> Option<u64> {
        let words = |value: &Value| value.as_str().map_or(1, |text| text.split_whitespace().count() as u64);
        match route {
            CompletionRoute::Chat => self.messages.as_ref().map(|all| all.iter().map(|m| words(&m.content)).sum()),
            CompletionRoute::Completion | CompletionRoute::LlamaCompletion => self.prompt.as_ref().map(words),
        }
    }

    /// The requested limit of the answer in tokens; -1 is no limit.
    pub(crate) fn limit(&self) -> Option<u64> {
        let limit = self.max_completion_tokens.or(self.max_tokens).or(self.n_predict);
        limit.and_then(|limit| u64::try_from(limit).ok())
    }

    /// Whether a usage chunk was requested.
    pub(crate) fn wants_usage(&self) -> bool {
        self.stream_options.as_ref().is_some_and(|options| options.include_usage)
    }
}

/// The shapes of one answer. Parts that are the same in all chunks are formatted once.
pub(crate) struct FakeShape {
    route: CompletionRoute,
    head: String,
    /// The usage in each chunk: absent, `null`, or the tokens of the prompt.
    usage: String,
    /// llama-server's progress of prefill in its first chunk; empty unless requested.
    progress: String,
}

impl FakeShape {
    /// The shapes of answer `id`.
    pub(crate) fn new(
        (manner, route): (Manner, CompletionRoute),
        id: &str,
        model: &ModelId,
        created: u64,
        body: &Body,
        prompt_tokens: u64,
    ) -> Self {
        let (prefix, object) = match (route, body.stream) {
            (CompletionRoute::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
            (CompletionRoute::Chat, false) => ("chatcmpl", "chat.completion"),
            (CompletionRoute::Completion | CompletionRoute::LlamaCompletion, _) => ("cmpl", "text_completion"),
        };
        let head = format!(
            r#"{{"id":"{prefix}-{id}","object":"{object}","created":{created},"model":{}"#,
            Value::from(model.as_str())
        );
        let continuous = manner == Manner::Worker
            && body.stream_options.as_ref().is_some_and(|options| options.continuous_usage_stats);
        let usage = match (body.wants_usage(), continuous) {
            (true, true) => format!(
                r#","usage":{{"prompt_tokens":{prompt_tokens},"completion_tokens":0,"total_tokens":{prompt_tokens}}}"#
            ),
            (true, false) => r#","usage":null"#.to_owned(),
            (false, _) => String::new(),
        };
        let progress = match (manner, body.return_progress) {
            (Manner::LlamaServer, true) => {
                format!(r#","prompt_progress":{{"total":{prompt_tokens},"cache":0,"processed":0,"time_ms":0}}"#)
            }
            _ => String::new(),
        };
        Self { route, head, usage, progress }
    }

    /// The first chunk with the role, and with the prompt's length if that was requested.
    pub(crate) fn first_chunk(&self) -> Option<Bytes> {
        match self.route {
            CompletionRoute::Chat => Some(self.chunk(r#""delta":{"role":"assistant","content":""}"#, &self.progress)),
            CompletionRoute::LlamaCompletion if !self.progress.is_empty() => {
                Some(format!("data: {{\"content\":\"\",\"stop\":false{}}}\n\n", self.progress).into())
            }
            CompletionRoute::Completion | CompletionRoute::LlamaCompletion => None,
        }
    }

    /// A chunk with one token.
    pub(crate) fn token_chunk(&self, token: &str) -> Bytes {
        let text = Value::from(token);
        match self.route {
            CompletionRoute::Chat => self.chunk(&format!(r#""delta":{{"content":{text}}}"#), ""),
            CompletionRoute::Completion => self.chunk(&format!(r#""text":{text}"#), ""),
            CompletionRoute::LlamaCompletion => format!("data: {{\"content\":{text},\"stop\":false}}\n\n").into(),
        }
    }

    /// The chunks after the last token: the reason with timings, the usage if requested, and the end.
    pub(crate) fn last_chunks(&self, finish: Finish, cost: Cost, with_usage: bool) -> Bytes {
        let said = match self.route {
            CompletionRoute::Chat => r#""delta":{}"#,
            CompletionRoute::Completion => r#""text":"""#,
            CompletionRoute::LlamaCompletion => {
                return format!("data: {}\n\n", llama_completion("", finish, cost)).into();
            }
        };
        let (head, reason, timings) = (&self.head, word(finish), timings(cost));
        let mut text = format!(
            "data: {head},\"choices\":[{{\"index\":0,{said},\"logprobs\":null,\"finish_reason\":\"{reason}\"}}]{},\
             \"timings\":{timings}}}\n\n",
            self.usage
        );
        if with_usage {
            text += &format!("data: {head},\"choices\":[],\"usage\":{},\"timings\":{timings}}}\n\n", usage(cost));
        }
        text += "data: [DONE]\n\n";
        text.into()
    }

    /// The whole answer at once.
    pub(crate) fn whole(&self, text: &str, finish: Finish, cost: Cost) -> Bytes {
        let text = Value::from(text);
        let said = match self.route {
            CompletionRoute::Chat => format!(r#""message":{{"role":"assistant","content":{text}}}"#),
            CompletionRoute::Completion => format!(r#""text":{text}"#),
            CompletionRoute::LlamaCompletion => {
                return llama_completion(text.as_str().unwrap_or_default(), finish, cost).to_string().into();
            }
        };
        format!(
            r#"{},"choices":[{{"index":0,{said},"logprobs":null,"finish_reason":"{}"}}],"usage":{},"timings":{}}}"#,
            self.head,
            word(finish),
            usage(cost),
            timings(cost)
        )
        .into()
    }

    fn chunk(&self, said: &str, more: &str) -> Bytes {
        let (head, usage) = (&self.head, &self.usage);
        format!(
            "data: {head},\"choices\":[{{\"index\":0,{said},\"logprobs\":null,\"finish_reason\":null}}]{usage}{more}}}\n\n"
        )
        .into()
    }
}

const fn word(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

fn llama_completion(text: &str, finish: Finish, cost: Cost) -> Value {
    let kind = if finish == Finish::Length { "limit" } else { "eos" };
    json!({
        "content": text, "stop": true, "stop_type": kind, "tokens_evaluated": cost.prompt_tokens,
        "tokens_predicted": cost.completion_tokens, "tokens_cached": 0, "timings": timings(cost),
    })
}

fn usage(cost: Cost) -> Value {
    json!({
        "prompt_tokens": cost.prompt_tokens,
        "completion_tokens": cost.completion_tokens,
        "total_tokens": cost.prompt_tokens + cost.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": 0 },
    })
}

fn timings(cost: Cost) -> Value {
    let each = |span: std::time::Duration, n: u64| span.as_secs_f64() * 1e3 / (n.max(1) as f64);
    let rate = |span: std::time::Duration, n: u64| n as f64 / span.as_secs_f64().max(1e-9);
    json!({
        "cache_n": 0,
        "prompt_n": cost.prompt_tokens,
        "prompt_ms": cost.prompt.as_secs_f64() * 1e3,
        "prompt_per_token_ms": each(cost.prompt, cost.prompt_tokens),
        "prompt_per_second": rate(cost.prompt, cost.prompt_tokens),
        "predicted_n": cost.completion_tokens,
        "predicted_ms": cost.predicted.as_secs_f64() * 1e3,
        "predicted_per_token_ms": each(cost.predicted, cost.completion_tokens),
        "predicted_per_second": rate(cost.predicted, cost.completion_tokens),
    })
}

/// The kind of engine that is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The answers of this project's own worker.
    Worker,
    /// The server of llama.cpp.
    LlamaServer,
}
