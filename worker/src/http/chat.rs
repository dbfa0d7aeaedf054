//! `POST /v1/chat/completions`: messages to a prompt by the model's chat template, and the answer to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderMap;
use axum::response::Response;
use model_boss_engine::text::{Conversation, NoContent, TemplateValue, ThinkingPlan};
use model_boss_protocol::{ApiError, Remedy, THINKING_SWITCHES, Thinking, beyond_worker};
use serde::{Deserialize, Serialize};

use crate::state::WorkerState;
use crate::text::{ChatQuestion, ChatTokens, RenderQuestion, TextFacts};

use super::answer::ApiShape;
use super::body::reading;
use super::error::{ErrorAnswer, text_error};
use super::fields::RequestFields;
use super::generate::answer;
use super::options::{GenerateOptions, MOST_LOGPROBS};
use super::plan::AnswerPlan;

/// Answers a conversation.
pub(super) async fn complete(
    State(worker): State<Arc<WorkerState>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ErrorAnswer> {
    let plan = prepare(&worker, body?).await?.with_headers(&headers)?;
    answer(&worker, worker.serving()?, plan).await
}

/// The prompt the model would see, without answering it.
pub(super) async fn apply_template(
    State(worker): State<Arc<WorkerState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Rendered>, ErrorAnswer> {
    let question = reading(&worker, body?, |worker, body| {
        let facts = &worker.serving()?.text.facts;
        let conversation = conversation(&RequestFields::read(body, None)?, worker, facts)?;
        Ok(RenderQuestion::new(conversation).map_err(|error| text_error(error, "messages", 0))?)
    });
    let question = question.await?;
    let serving = worker.serving()?;
    let prompt = serving.text.render(question).await;
    let prompt = prompt.map_err(|error| text_error(error, "messages", serving.info.context_length))?;
    Ok(Json(Rendered { prompt }))
}

/// A rendered chat template.
#[derive(Serialize)]
pub(super) struct Rendered {
    prompt: String,
}

/// A request without its prompt.
struct ChatDraft {
    question: ChatQuestion,
    options: GenerateOptions,
    logprobs: Option<usize>,
}

/// From a body to work for the engine.
pub(super) async fn prepare(worker: &Arc<WorkerState>, body: Bytes) -> Result<AnswerPlan, ErrorAnswer> {
    let ChatDraft { question, mut options, logprobs } = reading(worker, body, draft).await?;
    let serving = worker.serving()?;
    let ChatTokens { tokens, transcript } = serving
        .text
        .chat(question)
        .await
        .map_err(|error| text_error(error, "messages", serving.info.context_length))?;
    if transcript {
        options.stop.push(NEXT_TURN.to_owned());
    }
    let prompt: Arc<[u32]> = tokens.into();
    Ok(AnswerPlan {
        works: (0..options.choices).map(|choice| options.work(Arc::clone(&prompt), choice, logprobs)).collect(),
        choices_per_prompt: options.choices,
        shape: ApiShape::Chat,
        stream: options.stream,
        usage: options.usage,
    })
}

fn draft(worker: &WorkerState, body: &[u8]) -> Result<ChatDraft, ErrorAnswer> {
    let serving = worker.serving()?;
    let fields = RequestFields::read(body, Some(&worker.defaults))?;
    let mut options = GenerateOptions::read(&fields, serving.info.vocab_size, 1)?;
    let logprobs = wanted_logprobs(&fields)?;
    let conversation = conversation(&fields, worker, &serving.text.facts)?;
    let budget = thinking(&fields, worker)?.and_then(Thinking::budget).filter(|_| conversation.begun.is_none());
    options.thinking = serving.text.facts.thinking.clone().map(|tags| ThinkingPlan { tags, budget });
    let context = serving.info.context_length;
    let question = ChatQuestion::new(conversation, context).map_err(|error| text_error(error, "messages", context))?;
    Ok(ChatDraft { question, options, logprobs })
}

fn wanted_logprobs(fields: &RequestFields<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = fields.get::<bool>("logprobs")?.unwrap_or(false);
    let top = fields.whole(&["top_logprobs"], 0..=MOST_LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(ApiError::invalid("top_logprobs", "'top_logprobs' needs 'logprobs': true"));
    }
    Ok(wanted.then(|| usize::try_from(top.unwrap_or(0)).unwrap_or(0)))
}

/// The text that ends an answer of a model without a chat template.
const NEXT_TURN: &str = "\nuser:";

/// Reads and checks the conversation of a request.
pub(super) fn conversation(
    fields: &RequestFields<'_>,
    worker: &WorkerState,
    text: &TextFacts,
) -> Result<Conversation, ApiError> {
    let messages: Vec<ChatMessage> = fields.require("messages")?;
    if messages.is_empty() {
        return Err(ApiError::invalid("messages", "'messages' is empty; at least one message is needed"));
    }
    let mut messages = messages;
    let begun = begun(fields, &mut messages)?;
    let messages = messages.into_iter().enumerate().map(|(index, message)| message.value(index, text.knows_developer));
    let mut variables: BTreeMap<String, TemplateValue> = fields.get("chat_template_kwargs")?.unwrap_or_default();
    // An answer that has begun is behind the thoughts.
    let thinking = if begun.is_some() { Some(Thinking::Off) } else { thinking(fields, worker)? };
    if let Some(thinking) = thinking {
        for name in THINKING_SWITCHES {
            variables.entry(name.to_owned()).or_insert_with(|| thinking.is_on().into());
        }
        // Seed's template reads the budget of thinking.
        if let Some(tokens) = thinking.budget() {
            variables.entry("thinking_budget".to_owned()).or_insert_with(|| tokens.into());
        }
    }
    // The variable that gpt-oss and others read.
    if let Some(effort) = fields.get::<String>("reasoning_effort")? {
        variables.entry("reasoning_effort".to_owned()).or_insert_with(|| effort.into());
    }
    Ok(Conversation {
        messages: messages.collect::<Result<_, _>>()?,
        tools: tools(fields)?,
        add_generation_prompt: begun.is_some() || fields.get("add_generation_prompt")?.unwrap_or(true),
        begun,
        variables,
        no_content: NoContent::Lenient,
    })
}

/// Removes and returns the text of a last message of the assistant. The answer continues it, as with llama-server and
/// Anthropic's API, unless `continue_final_message` forbids that.
fn begun(fields: &RequestFields<'_>, messages: &mut Vec<ChatMessage>) -> Result<Option<String>, ApiError> {
    const FLAG: &str = "continue_final_message";
    let wanted = fields.get::<bool>(FLAG)?;
    let may_go_on = messages.len() > 1 && messages.last().is_some_and(ChatMessage::may_go_on);
    match wanted {
        Some(false) => Ok(None),
        Some(true) if !may_go_on => {
            let message = format!("'{FLAG}' needs a text of the assistant as the last message, behind another");
            Err(ApiError::invalid(FLAG, message))
        }
        _ if !may_go_on => Ok(None),
        _ => {
            let place = format!("messages[{}].content", messages.len() - 1);
            match messages.pop().and_then(|message| message.content) {
                Some(MessageContent::Text(text)) => Ok(Some(text)),
                Some(MessageContent::Parts(parts)) => joined(parts, &place).map(Some),
                None => Ok(None),
            }
        }
    }
}

/// Whether the model thinks, and for how long: the request's word, else the manifest's.
fn thinking(fields: &RequestFields<'_>, worker: &WorkerState) -> Result<Option<Thinking>, ApiError> {
    let field = |name| fields.get::<serde_json::Value>(name);
    let (said, template, effort) = (field("thinking")?, field("chat_template_kwargs")?, field("reasoning_effort")?);
    Thinking::of_chat(said.as_ref(), template.as_ref(), effort.as_ref(), worker.spec.thinking)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

#[derive(Deserialize)]
#[serde(rename = "Message")]
struct ChatMessage {
    role: Option<Role>,
    content: Option<MessageContent>,
    name: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<ToolCall>>,
    tool_call_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of parts")]
enum MessageContent {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Deserialize)]
#[serde(rename = "Part")]
struct ContentPart {
    r#type: String,
    text: Option<String>,
    refusal: Option<String>,
}

#[derive(Deserialize)]
struct ToolCall {
    id: Option<String>,
    r#type: Option<String>,
    function: CalledFunction,
}

#[derive(Deserialize)]
struct CalledFunction {
    name: String,
    arguments: Option<TemplateValue>,
}

impl ChatMessage {
    /// Whether it is a text of the assistant's that an answer can go on with.
    fn may_go_on(&self) -> bool {
        let has_text = match &self.content {
            Some(MessageContent::Text(text)) => !text.is_empty(),
            Some(MessageContent::Parts(parts)) => !parts.is_empty(),
            None => false,
        };
        self.role == Some(Role::Assistant) && has_text && self.tool_calls.as_ref().is_none_or(Vec::is_empty)
    }

    /// The message as templates see it.
    fn value(self, index: usize, knows_developer: bool) -> Result<TemplateValue, ApiError> {
        let place = |field: &str| format!("messages[{index}].{field}");
        let missing = |field: &str| ApiError::invalid(place(field), format!("'{}' is missing", place(field)));
        let role = match self.role.ok_or_else(|| missing("role"))? {
            Role::Developer if knows_developer => "developer",
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        let calls = self.tool_calls.filter(|calls| !calls.is_empty());
        let content = match self.content {
            Some(MessageContent::Text(text)) => text.into(),
            Some(MessageContent::Parts(parts)) => joined(parts, &place("content"))?.into(),
            None if role == "assistant" => TemplateValue::from(()),
            None => return Err(missing("content")),
        };
        let mut value: BTreeMap<&str, TemplateValue> = BTreeMap::new();
        value.insert("role", role.into());
        value.insert("content", content);
        let texts =
            [("name", self.name), ("reasoning_content", self.reasoning_content), ("tool_call_id", self.tool_call_id)];
        value.extend(texts.into_iter().filter_map(|(name, text)| Some((name, text?.into()))));
        if let Some(calls) = calls {
            value.insert("tool_calls", calls.into_iter().map(ToolCall::value).collect());
        }
        Ok(TemplateValue::from(value))
    }
}

impl ToolCall {
    fn value(self) -> TemplateValue {
        // Clients send arguments as JSON inside a text; templates want the object.
        let arguments = self.function.arguments.unwrap_or_else(|| TemplateValue::from(""));
        let parsed =
            arguments.as_str().and_then(|text| serde_json::from_str::<BTreeMap<String, TemplateValue>>(text).ok());
        let arguments = match (parsed, arguments.as_str()) {
            // The text is read again as a value, which keeps the order of its keys.
            (Some(_), Some(text)) => serde_json::from_str(text).unwrap_or(arguments),
            _ => arguments,
        };
        let function: BTreeMap<&str, TemplateValue> =
            BTreeMap::from([("name", self.function.name.into()), ("arguments", arguments)]);
        let mut call: BTreeMap<&str, TemplateValue> = BTreeMap::from([
            ("type", self.r#type.unwrap_or_else(|| "function".to_owned()).into()),
            ("function", function.into()),
        ]);
        call.extend(self.id.map(|id| ("id", id.into())));
        call.into()
    }
}

/// Parts of text, one under the other.
fn joined(parts: Vec<ContentPart>, place: &str) -> Result<String, ApiError> {
    let said = |part: ContentPart| if part.r#type == "refusal" { part.refusal } else { part.text };
    let texts = parts.into_iter().enumerate().map(|(index, part)| match (part.r#type.clone().as_str(), said(part)) {
        ("text" | "refusal", Some(text)) => Ok(text),
        (kind @ ("text" | "refusal"), None) => {
            let place = format!("{place}[{index}].{kind}");
            Err(ApiError::invalid(place.clone(), format!("'{place}' is missing")))
        }
        (kind, _) => {
            let act = format!("use a part of type '{kind}' yet: it reads text only");
            Err(beyond_worker(&format!("{place}[{index}]"), &act, Remedy::AnyEngine))
        }
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

#[derive(Deserialize)]
struct Tool {
    r#type: String,
    #[serde(rename = "function")]
    _function: NamedFunction,
}

#[derive(Deserialize)]
struct NamedFunction {
    #[serde(rename = "name")]
    _name: String,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected 'none', 'auto', 'required' or a named function")]
enum ToolChoice {
    Word(String),
    Named { r#type: String },
}

/// The tools for the template, unless the request forbids their use.
fn tools(fields: &RequestFields<'_>) -> Result<Option<TemplateValue>, ApiError> {
    let tools: Vec<Tool> = fields.get("tools")?.unwrap_or_default();
    if let Some(index) = tools.iter().position(|tool| tool.r#type != "function") {
        let place = format!("tools[{index}].type");
        return Err(ApiError::invalid(place.clone(), format!("'{place}' must be 'function'")));
    }
    let choice = match fields.get("tool_choice")? {
        None => "auto".to_owned(),
        Some(ToolChoice::Word(word)) => word,
        Some(ToolChoice::Named { r#type }) => r#type,
    };
    match choice.as_str() {
        "none" => Ok(None),
        // The tools go to the template as they came, keys in their order.
        "auto" if !tools.is_empty() => fields.get("tools"),
        "auto" => Ok(None),
        "required" | "function" => Err(beyond_worker("tool_choice", "force a tool call", Remedy::AnyEngine)),
        _ => Err(ApiError::invalid("tool_choice", "'tool_choice' must be 'none', 'auto', 'required' or a function")),
    }
}
