//! A server that is measured: one request to it, and the times of its answer.

use std::time::{Duration, Instant};

use http::StatusCode;
use model_boss_client::{Client, ClientError, StreamLine};
use model_boss_protocol::chain;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::sample::AnswerSample;

/// The longest part of a server's error that is shown.
const LONGEST_ERROR: usize = 300;

/// A server, and how it is asked.
#[derive(Clone)]
pub(crate) struct Endpoint {
    client: Client,
    /// The path in front of its routes.
    prefix: String,
    pub(crate) model: String,
    pub(crate) extras: Extras,
    patience: Duration,
}

/// Fields beyond OpenAI's that a server knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extras {
    /// The answer does not end before `max_tokens`.
    pub(crate) ignore_eos: bool,
    /// vLLM's and SGLang's other way to the same.
    pub(crate) min_tokens: bool,
    /// Whether prompts are kept and taken from the cache.
    pub(crate) cache_prompt: bool,
}

impl Extras {
    /// The combinations that are tried, most first.
    pub(crate) const TRIED: [Self; 4] = [
        Self { ignore_eos: true, min_tokens: true, cache_prompt: true },
        Self { ignore_eos: true, min_tokens: false, cache_prompt: true },
        Self { ignore_eos: true, min_tokens: false, cache_prompt: false },
        Self { ignore_eos: false, min_tokens: false, cache_prompt: false },
    ];

    /// The names of the fields, for people.
    pub(crate) fn names(self) -> Vec<&'static str> {
        let all =
            [(self.ignore_eos, "ignore_eos"), (self.min_tokens, "min_tokens"), (self.cache_prompt, "cache_prompt")];
        all.into_iter().filter_map(|(is_sent, name)| is_sent.then_some(name)).collect()
    }
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct BenchRequest {
    pub(crate) prompt: String,
    pub(crate) tokens: u32,
    pub(crate) seed: u64,
    pub(crate) is_cached: bool,
}

/// Why a request gave no measurement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    /// The server refused, with this status.
    #[error("{0}: {1}")]
    Refused(u16, String),
    /// The server cannot be reached, or its answer broke off.
    #[error("{0}")]
    Broken(String),
}

impl RequestError {
    /// Whether the server may take the request with fewer fields.
    pub(crate) fn is_about_fields(&self) -> bool {
        matches!(self, Self::Refused(400 | 422, _))
    }
}

impl Endpoint {
    pub(crate) fn new(client: Client, prefix: String, model: String, patience: Duration) -> Self {
        Self { client, prefix, model, extras: Extras::default(), patience }
    }

    /// The server's address.
    pub(crate) fn url(&self) -> String {
        format!("{}{}", self.client.url(), self.prefix)
    }

    /// The names of the models that the server lists.
    pub(crate) async fn models(&self) -> Vec<String> {
        let Ok(list) = self.client.get(&format!("{}/v1/models", self.prefix)).await else { return Vec::new() };
        let models = list["data"].as_array().into_iter().flatten();
        models.filter_map(|model| model["id"].as_str().map(str::to_owned)).collect()
    }

    /// Sends one request and follows its answer to the end. `began` is the beginning of the round.
    pub(crate) async fn measure(&self, request: &BenchRequest, began: Instant) -> Result<AnswerSample, RequestError> {
        match timeout(self.patience, self.follow(request, began)).await {
            Ok(measured) => measured,
            Err(_) => Err(RequestError::Broken(format!("no whole answer in {} s", self.patience.as_secs()))),
        }
    }

    async fn follow(&self, request: &BenchRequest, began: Instant) -> Result<AnswerSample, RequestError> {
        let mut sample = AnswerSample { sent: began.elapsed(), ..AnswerSample::default() };
        let path = format!("{}/v1/chat/completions", self.prefix);
        let opened = self.client.stream_of_server(&path, &self.body(request)).await.map_err(broken)?;
        let mut events = opened.map_err(|(status, text)| refused(status, &text))?;
        while let Some(event) = events.next().await.map_err(broken)? {
            let StreamLine::Data(text) = event else { continue };
            if text == "[DONE]" {
                break;
            }
            let chunk: Value =
                serde_json::from_str(&text).map_err(|_| RequestError::Broken("a chunk is no JSON".to_owned()))?;
            if !chunk["error"].is_null() {
                return Err(RequestError::Broken(message(&text)));
            }
            take(&mut sample, &chunk, began.elapsed());
        }
        if sample.pieces == 0 {
            return Err(RequestError::Broken("the answer had no token".to_owned()));
        }
        Ok(sample)
    }

    fn body(&self, request: &BenchRequest) -> Value {
        let mut body = json!({
            "model": self.model,
            "messages": [{ "role": "user", "content": request.prompt }],
            "max_tokens": request.tokens,
            "temperature": 0,
            "seed": request.seed,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        let mut extras = Map::new();
        if self.extras.ignore_eos {
            extras.insert("ignore_eos".to_owned(), true.into());
        }
        if self.extras.min_tokens {
            extras.insert("min_tokens".to_owned(), request.tokens.into());
        }
        if self.extras.cache_prompt {
            extras.insert("cache_prompt".to_owned(), request.is_cached.into());
        }
        if let Some(fields) = body.as_object_mut() {
            fields.append(&mut extras);
        }
        body
    }
}

/// Adds a chunk that came at this time.
fn take(sample: &mut AnswerSample, chunk: &Value, at: Duration) {
    let delta = &chunk["choices"][0]["delta"];
    let has_text = ["content", "reasoning_content", "reasoning"]
        .into_iter()
        .any(|field| delta[field].as_str().is_some_and(|text| !text.is_empty()));
    if has_text {
        if sample.pieces == 0 {
            sample.first = at;
        }
        sample.last = at;
        sample.pieces += 1;
    }
    let usage = &chunk["usage"];
    if let Some(tokens) = usage["completion_tokens"].as_u64() {
        sample.tokens = Some(tokens).filter(|tokens| *tokens > 0);
        sample.prompt_tokens = usage["prompt_tokens"].as_u64();
        sample.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    }
}

fn broken(error: ClientError) -> RequestError {
    RequestError::Broken(match error {
        ClientError::NoCoordinator(url, why) => format!("nothing answers at {url}: {why}"),
        error => chain(&error),
    })
}

fn refused(status: StatusCode, text: &str) -> RequestError {
    RequestError::Refused(status.as_u16(), message(text))
}

/// The message in an error's body, in the shapes of several servers.
fn message(text: &str) -> String {
    let body: Value = serde_json::from_str(text).unwrap_or_default();
    let places = [&body["error"]["message"], &body["error"], &body["message"], &body["detail"]];
    let found = places.into_iter().find_map(Value::as_str).unwrap_or_else(|| text.trim());
    found.chars().take(LONGEST_ERROR).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn op_1_errors_of_servers_are_read_in_their_shapes() {
        for (text, expected) in [
            (r#"{"error":{"message":"no such model"}}"#, "no such model"),
            (r#"{"error":"busy"}"#, "busy"),
            (r#"{"object":"error","message":"bad"}"#, "bad"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            ("<html>nginx</html>\n", "<html>nginx</html>"),
        ] {
            assert_eq!(message(text), expected);
        }
        assert!(refused(StatusCode::UNPROCESSABLE_ENTITY, "").is_about_fields());
        assert!(!refused(StatusCode::NOT_FOUND, "").is_about_fields());
    }

    #[test]
    fn op_1_the_first_token_is_the_first_text() {
        let mut sample = AnswerSample::default();
        let chunks = [
            json!({ "choices": [{ "delta": { "role": "assistant", "content": "" } }] }),
            json!({ "choices": [{ "delta": { "reasoning_content": "hm" } }], "usage": null }),
            json!({ "choices": [{ "delta": { "content": "yes" } }] }),
            json!({ "choices": [], "usage": { "completion_tokens": 7, "prompt_tokens": 9, "prompt_tokens_details": { "cached_tokens": 3 } } }),
        ];
        for (at, chunk) in (1..).zip(&chunks) {
            take(&mut sample, chunk, Duration::from_secs(at));
        }
        assert_eq!((sample.first, sample.last, sample.pieces), (Duration::from_secs(2), Duration::from_secs(3), 2));
        assert_eq!((sample.tokens, sample.prompt_tokens, sample.cached_tokens), (Some(7), Some(9), 3));
    }
}
