//! Answers in OpenAI's shapes, whole and in chunks, for chats and for text completions.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model_boss_engine::sampling::TokenLogprob;
use model_boss_engine::{FinishReason, Finished};
use serde::Serialize;
use serde_json::Value;

use super::call_ids::short_id;
use super::logprobs::Logprobs;
use super::native_answer::NativeAnswer;
use super::options::random_bits;
use super::progress::PromptReport;
use super::tally::{TimingsObject, UsageObject};

/// The API of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiShape {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`, with the text of each prompt if it has to be repeated.
    Completion { echo: Option<Vec<String>> },
    /// llama-server's `/completion`.
    Native(Arc<NativeAnswer>),
}

impl ApiShape {
    /// The field of the request that holds the prompt.
    pub(super) const fn prompt_field(&self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Completion { .. } | Self::Native(_) => "prompt",
        }
    }

    /// The prompt that is repeated in front of this answer.
    pub(super) fn echo(&self, prompt: usize) -> &str {
        match self {
            Self::Completion { echo: Some(prompts) } => prompts.get(prompt).map_or("", String::as_str),
            Self::Chat | Self::Native(_) | Self::Completion { echo: None } => "",
        }
    }

    const fn object(&self, whole: Whole) -> &'static str {
        match (self, whole) {
            (Self::Chat, Whole::Yes) => "chat.completion",
            (Self::Chat, Whole::No) => "chat.completion.chunk",
            (Self::Completion { .. } | Self::Native(_), _) => "text_completion",
        }
    }
}

/// Whether an object is the answer or a piece of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whole {
    Yes,
    No,
}

/// The fields that are the same in every object of one answer.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    id: String,
    created: u64,
    model: String,
}

impl Envelope {
    pub(super) fn new(shape: &ApiShape, model: &str) -> Self {
        let prefix = if *shape == ApiShape::Chat { "chatcmpl" } else { "cmpl" };
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        Self { id: format!("{prefix}-{:016x}{:016x}", random_bits(), random_bits()), created, model: model.to_owned() }
    }

    /// The object around some choices.
    pub(super) fn object<'a>(&'a self, shape: &ApiShape, whole: Whole, choices: Vec<Choice>) -> Object<'a> {
        Object {
            id: &self.id,
            object: shape.object(whole),
            created: self.created,
            model: &self.model,
            system_fingerprint: concat!("model-boss-", env!("CARGO_PKG_VERSION")),
            choices,
            usage: None,
            timings: None,
            prompt_progress: None,
            verbose: None,
        }
    }
}

/// An answer or a chunk of one.
#[derive(Debug, Serialize)]
pub(super) struct Object<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<Choice>,
    /// Absent, or `null` in chunks of a stream that will end with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Option<UsageObject>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timings: Option<TimingsObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_progress: Option<PromptReport>,
    /// The request's description in llama-server's own shape.
    #[serde(rename = "__verbose", skip_serializing_if = "Option::is_none")]
    pub(super) verbose: Option<Value>,
}

/// One of the answers to a prompt.
#[derive(Debug, Serialize)]
pub(super) struct Choice {
    index: usize,
    #[serde(flatten)]
    content: AnswerContent,
    logprobs: Option<Logprobs>,
    finish_reason: Option<&'static str>,
    /// The stop string that ended it: vLLM's field, which Anthropic's clients get as `stop_sequence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum AnswerContent {
    Message(AnswerMessage),
    /// The first delta.
    #[serde(rename = "delta")]
    Begin(BeginDelta),
    Delta(Delta),
    Text(String),
}

#[derive(Debug, Serialize)]
struct AnswerMessage {
    role: &'static str,
    /// `null` where there are only calls.
    content: Option<String>,
    /// The thoughts before the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallObject>,
}

/// A call of a tool, or a piece of one.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CallObject {
    /// In pieces.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    /// In the first piece, as the two below.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: CalledFunction,
}

#[derive(Clone, Debug, Serialize)]
struct CalledFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl CallObject {
    /// A piece of a call; the first one has the name.
    pub(super) fn piece(index: usize, name: Option<String>, arguments: String, short_ids: bool) -> Self {
        let id = name.is_some().then(|| match short_ids {
            true => short_id(random_bits()),
            false => format!("call_{:016x}{:08x}", random_bits(), random_bits() >> 32),
        });
        let kind = name.is_some().then_some("function");
        Self { index: Some(index), id, r#type: kind, function: CalledFunction { name, arguments } }
    }

    /// Adds a piece to the calls that it belongs to.
    pub(super) fn add_to(mut self, calls: &mut Vec<Self>) {
        match self.index.take().and_then(|index| calls.get_mut(index)) {
            Some(call) => call.function.arguments.push_str(&self.function.arguments),
            None => calls.push(self),
        }
    }
}

/// The beginning of a message. Its content is null, as llama-server's clients expect.
#[derive(Debug, Serialize)]
struct BeginDelta {
    role: &'static str,
    content: Option<()>,
}

#[derive(Debug, Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallObject>,
}

/// The text of a whole answer and the parts beside it.
pub(super) struct Said {
    pub(super) thoughts: Option<String>,
    pub(super) text: String,
    pub(super) calls: Vec<CallObject>,
}

/// The reason of an end; `called`: whether the answer has calls of tools.
fn finish_reason(end: &Finished, called: bool) -> &'static str {
    match end.reason {
        FinishReason::Stop if called => "tool_calls",
        reason => reason.as_str(),
    }
}

impl Choice {
    /// Its number.
    pub(super) const fn index(&self) -> usize {
        self.index
    }

    /// A whole answer.
    pub(super) fn whole(
        shape: &ApiShape,
        index: usize,
        Said { thoughts, text, calls }: Said,
        logprobs: Option<Logprobs>,
        end: &Finished,
    ) -> Self {
        let called = !calls.is_empty();
        let content = match shape {
            ApiShape::Chat => AnswerContent::Message(AnswerMessage {
                role: "assistant",
                content: Some(text).filter(|text| !called || !text.is_empty()),
                reasoning_content: thoughts,
                refusal: None,
                tool_calls: calls,
            }),
            ApiShape::Completion { .. } | ApiShape::Native(_) => AnswerContent::Text(text),
        };
        let (finish_reason, stop_reason) = (Some(finish_reason(end, called)), end.stop.clone());
        Self { index, content, logprobs, finish_reason, stop_reason }
    }

    /// The first chunk of an answer, which carries the role, or the repeated prompt. A completion without one has none.
    pub(super) fn first(shape: &ApiShape, index: usize, echo: &str, logprobs: Option<Logprobs>) -> Option<Self> {
        let content = match shape {
            ApiShape::Chat => AnswerContent::Begin(BeginDelta { role: "assistant", content: None }),
            ApiShape::Completion { echo: Some(_) } => AnswerContent::Text(echo.to_owned()),
            ApiShape::Completion { echo: None } | ApiShape::Native(_) => return None,
        };
        Some(Self { index, content, logprobs, finish_reason: None, stop_reason: None })
    }

    /// A chunk without text, around a report.
    pub(super) fn silent(shape: &ApiShape, index: usize) -> Self {
        let content = match shape {
            ApiShape::Chat => AnswerContent::Delta(Delta::default()),
            ApiShape::Completion { .. } | ApiShape::Native(_) => AnswerContent::Text(String::new()),
        };
        Self { index, content, logprobs: None, finish_reason: None, stop_reason: None }
    }

    /// A chunk with text.
    pub(super) fn piece(shape: &ApiShape, index: usize, text: String, logprobs: Option<Logprobs>) -> Self {
        let content = match shape {
            ApiShape::Chat => AnswerContent::Delta(Delta { content: Some(text), ..Delta::default() }),
            ApiShape::Completion { .. } | ApiShape::Native(_) => AnswerContent::Text(text),
        };
        Self { index, content, logprobs, finish_reason: None, stop_reason: None }
    }

    /// A chunk of the thinking before the answer. Only chats separate it.
    pub(super) fn thought(index: usize, text: String) -> Self {
        let content = AnswerContent::Delta(Delta { reasoning_content: Some(text), ..Delta::default() });
        Self { index, content, logprobs: None, finish_reason: None, stop_reason: None }
    }

    /// A chunk with a piece of a call. Only chats call tools.
    pub(super) fn call(index: usize, call: CallObject) -> Self {
        let content = AnswerContent::Delta(Delta { tool_calls: vec![call], ..Delta::default() });
        Self { index, content, logprobs: None, finish_reason: None, stop_reason: None }
    }

    /// The last chunk.
    pub(super) fn last(shape: &ApiShape, index: usize, end: &Finished, called: bool) -> Self {
        let content = match shape {
            ApiShape::Chat => AnswerContent::Delta(Delta::default()),
            ApiShape::Completion { .. } | ApiShape::Native(_) => AnswerContent::Text(String::new()),
        };
        let (finish_reason, stop_reason) = (Some(finish_reason(end, called)), end.stop.clone());
        Self { index, content, logprobs: None, finish_reason, stop_reason }
    }
}

/// `logprobs` of a choice from its tokens. `offset` counts characters of the choice's text.
pub(super) fn logprobs(
    shape: &ApiShape,
    wanted: bool,
    tokens: Vec<TokenLogprob>,
    offset: &mut usize,
) -> Option<Logprobs> {
    match shape {
        _ if !wanted => None,
        ApiShape::Chat => Some(Logprobs::chat(tokens)),
        ApiShape::Completion { .. } | ApiShape::Native(_) => Some(Logprobs::completion(tokens, offset)),
    }
}
