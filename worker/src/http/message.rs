//! The messages of a chat, as clients send them and as templates see them.

use std::collections::BTreeMap;

use model_boss_engine::text::TemplateValue;
use model_boss_engine::tools::ToolFormat;
use model_boss_protocol::{ApiError, Remedy, beyond_worker};
use serde::Deserialize;

use super::images::SentImages;
use crate::text::{RoleFacts, TextFacts, ToolFacts};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub(super) enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
    /// One that some chat templates know: `ipython`, `document`, ….
    Further(String),
}

impl Role {
    /// Its name in the chat template, or what is wrong with it.
    fn shown(self, known: &RoleFacts) -> Result<String, String> {
        Ok(match self {
            Self::Developer if known.knows_developer => "developer".to_owned(),
            Self::System | Self::Developer => "system".to_owned(),
            Self::User => "user".to_owned(),
            Self::Assistant => "assistant".to_owned(),
            Self::Tool => "tool".to_owned(),
            Self::Further(role) if known.shows(&role) => role,
            Self::Further(role) => {
                return Err(format!(
                    "unknown role '{role}': the model's chat template knows 'system', 'user', 'assistant' and 'tool'{}",
                    known.further()
                ));
            }
        })
    }
}

impl From<String> for Role {
    fn from(role: String) -> Self {
        match role.as_str() {
            "system" => Self::System,
            "developer" => Self::Developer,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" => Self::Tool,
            _ => Self::Further(role),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename = "Message")]
pub(super) struct ChatMessage {
    pub(super) role: Option<Role>,
    pub(super) content: Option<MessageContent>,
    pub(super) name: Option<String>,
    reasoning_content: Option<String>,
    /// Other clients' names for it.
    thinking: Option<TemplateValue>,
    reasoning: Option<TemplateValue>,
    tool_plan: Option<TemplateValue>,
    pub(super) tool_calls: Option<Vec<ToolCall>>,
    pub(super) tool_call_id: Option<String>,
    /// Its place among the request's messages.
    #[serde(skip)]
    pub(super) place: usize,
    /// The tools, as JSON, for templates that read them here.
    #[serde(skip)]
    pub(super) tools: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of parts")]
pub(super) enum MessageContent {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Deserialize)]
#[serde(rename = "Part")]
pub(super) struct ContentPart {
    r#type: String,
    text: Option<String>,
    refusal: Option<String>,
    image_url: Option<ImageUrl>,
    /// A thought of the assistant's: a text, or parts of text.
    thinking: Option<Thought>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of parts")]
enum Thought {
    Text(String),
    Parts(Vec<ThoughtPart>),
}

#[derive(Deserialize)]
struct ThoughtPart {
    text: String,
}

/// OpenAI's form of an image, and the one of some clients.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an object with 'url'")]
enum ImageUrl {
    Object { url: String },
    Text(String),
}

#[derive(Deserialize)]
pub(super) struct ToolCall {
    pub(super) id: Option<String>,
    r#type: Option<String>,
    pub(super) function: MessageFunction,
}

#[derive(Deserialize)]
pub(super) struct MessageFunction {
    pub(super) name: String,
    arguments: Option<TemplateValue>,
}

impl MessageContent {
    /// The text that it begins with. There is an empty one where it begins with something else.
    fn start(&mut self) -> &mut String {
        match self {
            Self::Text(text) => text,
            Self::Parts(parts) => {
                if !parts.first().is_some_and(ContentPart::is_text) {
                    parts.insert(0, ContentPart::of(""));
                }
                parts[0].text.get_or_insert_default()
            }
        }
    }

    /// The text that it ends with. There is an empty one where it ends with something else.
    fn end(&mut self) -> &mut String {
        match self {
            Self::Text(text) => text,
            Self::Parts(parts) => {
                if !parts.last().is_some_and(ContentPart::is_text) {
                    parts.push(ContentPart::of(""));
                }
                let last = parts.len() - 1;
                parts[last].text.get_or_insert_default()
            }
        }
    }
}

impl ChatMessage {
    /// A message of text.
    pub(super) fn of(role: Role, text: String) -> Self {
        Self {
            role: Some(role),
            content: Some(MessageContent::Text(text)),
            name: None,
            reasoning_content: None,
            thinking: None,
            reasoning: None,
            tool_plan: None,
            tool_calls: None,
            tool_call_id: None,
            place: 0,
            tools: None,
        }
    }

    fn content(&mut self) -> &mut MessageContent {
        self.content.get_or_insert_with(|| MessageContent::Text(String::new()))
    }

    /// Puts text in front of its own.
    pub(super) fn say_first(&mut self, text: &str) {
        let start = self.content().start();
        start.insert_str(0, if start.is_empty() { "" } else { "\n\n" });
        start.insert_str(0, text);
    }

    /// Puts text behind its own.
    pub(super) fn say_more(&mut self, text: &str) {
        let end = self.content().end();
        end.push_str(if end.is_empty() { "" } else { "\n\n" });
        end.push_str(text);
    }

    /// Puts the content of another message behind its own.
    pub(super) fn append(&mut self, other: Self) {
        match (&mut self.content, other.content) {
            (_, None) => {}
            (_, Some(MessageContent::Text(text))) => self.say_more(&text),
            (Some(MessageContent::Parts(own)), Some(MessageContent::Parts(parts))) => own.extend(parts),
            (own, Some(MessageContent::Parts(parts))) => {
                let first = match own.take() {
                    Some(MessageContent::Text(text)) => vec![ContentPart::of(&text)],
                    _ => Vec::new(),
                };
                *own = Some(MessageContent::Parts([first, parts].into_iter().flatten().collect()));
            }
        }
    }

    /// Turns results of tools into text, for templates that know none.
    pub(super) fn say_results(&mut self) {
        if self.role == Some(Role::Tool) {
            self.role = Some(Role::User);
            self.name = None;
            self.content().start().insert_str(0, "<tool_response>\n");
            self.content().end().push_str("\n</tool_response>");
        }
    }

    /// Turns calls of tools into text, for templates that know none.
    pub(super) fn say_calls(&mut self, format: ToolFormat) {
        let calls: Vec<(String, String)> = self
            .tool_calls
            .take()
            .into_iter()
            .flatten()
            .map(|call| {
                let arguments =
                    call.function.arguments.map_or_else(String::new, |arguments| match arguments.as_str() {
                        Some(text) => text.to_owned(),
                        None => serde_json::to_string(&arguments).unwrap_or_default(),
                    });
                let arguments = if arguments.trim().is_empty() { "{}".to_owned() } else { arguments };
                (call.function.name, arguments)
            })
            .collect();
        if !calls.is_empty() {
            let calls: Vec<(&str, &str)> = calls.iter().map(|(name, arguments)| (&**name, &**arguments)).collect();
            self.say_more(&format.calls(&calls));
        }
    }

    /// Whether it is a text of the assistant's that an answer can go on with.
    pub(super) fn may_go_on(&self) -> bool {
        let has_text = match &self.content {
            Some(MessageContent::Text(text)) => !text.is_empty(),
            Some(MessageContent::Parts(parts)) => !parts.is_empty(),
            None => false,
        };
        self.role == Some(Role::Assistant) && has_text && self.tool_calls.as_ref().is_none_or(Vec::is_empty)
    }

    /// The message as templates see it.
    pub(super) fn value(self, facts: &TextFacts, images: &mut SentImages) -> Result<TemplateValue, ApiError> {
        let index = self.place;
        let place = |field: &str| format!("messages[{index}].{field}");
        let missing = |field: &str| ApiError::invalid(place(field), format!("'{}' is missing", place(field)));
        let role = self.role.ok_or_else(|| missing("role"))?;
        let role = role.shown(&facts.roles).map_err(|message| ApiError::invalid(place("role"), message))?;
        let calls = self.tool_calls.filter(|calls| !calls.is_empty());
        let mut thoughts = Vec::new();
        let content = match self.content {
            Some(MessageContent::Text(text)) => of_text(text, facts),
            Some(MessageContent::Parts(parts)) => {
                let parts = parts.into_iter().enumerate();
                let parts = parts.map(|(index, part)| (format!("{}[{index}]", place("content")), part));
                let mut said = Vec::new();
                for (place, part) in parts {
                    match part.thought().filter(|_| role == "assistant") {
                        Some(thought) => thoughts.push(thought),
                        None => said.push((place, part)),
                    }
                }
                of_parts(said, &role, facts, images)?
            }
            None if role == "assistant" => TemplateValue::from(()),
            // A tool that said nothing.
            None if role == "tool" => of_text(String::new(), facts),
            None => return Err(missing("content")),
        };
        let mut value: BTreeMap<&str, TemplateValue> = BTreeMap::new();
        value.insert("role", role.as_str().into());
        value.insert("content", content);
        // Templates read it by one of these names, whichever the client has.
        let others = [self.thinking, self.reasoning, self.tool_plan].into_iter().flatten();
        let others = others.filter_map(|thought| thought.as_str().map(str::to_owned));
        let in_parts = (!thoughts.is_empty()).then(|| thoughts.concat());
        if let Some(thought) = self.reasoning_content.into_iter().chain(others).chain(in_parts).next() {
            for name in ["reasoning_content", "thinking", "reasoning"] {
                value.insert(name, thought.as_str().into());
            }
            // A plan is a thought in front of calls.
            value.extend(calls.is_some().then(|| ("tool_plan", thought.into())));
            // Templates with channels refuse a text beside the thought in front of calls.
            if calls.is_some() && facts.tools.format.has_channels() {
                value.insert("content", "".into());
            }
        }
        let texts = [("name", self.name), ("tool_call_id", self.tool_call_id)];
        value.extend(self.tools.map(|tools| ("tools", tools.into())));
        value.extend(texts.into_iter().filter_map(|(name, text)| Some((name, text?.into()))));
        if let Some(calls) = calls {
            value.insert("tool_calls", calls.into_iter().map(|call| call.value(&facts.tools)).collect());
        }
        Ok(TemplateValue::from(value))
    }
}

impl ToolCall {
    fn value(self, facts: &ToolFacts) -> TemplateValue {
        let as_text = facts.arguments_as_text;
        // Clients send arguments as JSON inside a text; most templates want the object.
        let arguments = self.function.arguments.unwrap_or_else(|| TemplateValue::from(""));
        let arguments = match arguments.as_str() {
            // A call without arguments.
            Some(text) if !as_text && text.trim().is_empty() => TemplateValue::from_pairs([]),
            None if as_text => serde_json::to_string(&arguments).map_or(arguments, TemplateValue::from),
            _ => arguments,
        };
        let parsed =
            arguments.as_str().and_then(|text| serde_json::from_str::<BTreeMap<String, TemplateValue>>(text).ok());
        let arguments = match (parsed.filter(|_| !as_text), arguments.as_str()) {
            // The text is read again as a value, which keeps the order of its keys.
            (Some(_), Some(text)) => serde_json::from_str(text).unwrap_or(arguments),
            // A call that was cut off.
            (None, Some(_)) if facts.needs_object_arguments => TemplateValue::from_pairs([]),
            _ => arguments,
        };
        // Some templates write a call as it is: its fields come in the order that models know.
        let function = TemplateValue::from_pairs([("name", self.function.name.into()), ("arguments", arguments)]);
        let kind = self.r#type.unwrap_or_else(|| "function".to_owned());
        let id = self.id.map(|id| ("id", TemplateValue::from(id)));
        TemplateValue::from_pairs(id.into_iter().chain([("type", kind.into()), ("function", function)]))
    }
}

impl ContentPart {
    fn of(text: &str) -> Self {
        Self { r#type: "text".to_owned(), text: Some(text.to_owned()), refusal: None, image_url: None, thinking: None }
    }

    fn is_text(&self) -> bool {
        self.r#type == "text" && self.text.is_some()
    }

    /// The thought, if it is one.
    fn thought(&self) -> Option<String> {
        match self.thinking.as_ref().filter(|_| self.r#type == "thinking")? {
            Thought::Text(text) => Some(text.clone()),
            Thought::Parts(parts) => Some(parts.iter().map(|part| part.text.as_str()).collect()),
        }
    }

    fn is_image(&self) -> bool {
        self.r#type == "image_url"
    }

    /// Its text.
    fn said(self, place: &str) -> Result<String, ApiError> {
        let kind = self.r#type.as_str();
        match (kind, if kind == "refusal" { self.refusal } else { self.text }) {
            ("text" | "refusal", Some(text)) => Ok(text),
            ("text" | "refusal", None) => {
                let place = format!("{place}.{kind}");
                Err(ApiError::invalid(place.clone(), format!("'{place}' is missing")))
            }
            (kind, _) => {
                let act = format!("use a part of type '{kind}' here: it reads text, and images of the user's");
                Err(beyond_worker(place, &act, Remedy::AnyEngine))
            }
        }
    }
}

/// A message's text in the form that the chat template takes.
fn of_text(text: String, facts: &TextFacts) -> TemplateValue {
    if facts.needs_parts { TemplateValue::from(vec![text_part(text)]) } else { text.into() }
}

fn text_part(text: String) -> TemplateValue {
    TemplateValue::from_pairs([("type", "text".into()), ("text", text.into())])
}

/// Parts with their places: as parts where the chat template reads them, else as one text with marks for images.
fn of_parts(
    parts: Vec<(String, ContentPart)>,
    role: &str,
    facts: &TextFacts,
    images: &mut SentImages,
) -> Result<TemplateValue, ApiError> {
    let has_images = parts.iter().any(|(_, part)| part.is_image());
    let stay = if has_images { facts.shows_images } else { facts.roles.reads_parts(role) };
    let mut values = Vec::with_capacity(parts.len());
    for (place, part) in parts {
        if !part.is_image() {
            let text = part.said(&place)?;
            values.push(if stay { text_part(text) } else { text.into() });
            continue;
        }
        let (field, url) = match part.image_url {
            Some(ImageUrl::Object { url }) => ("image_url.url", url),
            Some(ImageUrl::Text(url)) => ("image_url", url),
            None => {
                let field = format!("{place}.image_url");
                return Err(ApiError::invalid(field.clone(), format!("'{field}' is missing")));
            }
        };
        values.push(images.take(format!("{place}.{field}"), url, facts)?);
    }
    if stay {
        return Ok(TemplateValue::from(values));
    }
    let texts: Vec<&str> = values.iter().filter_map(TemplateValue::as_str).collect();
    Ok(of_text(texts.join("\n"), facts))
}

/// Parts of text, one under the other.
pub(super) fn joined(parts: Vec<ContentPart>, place: &str) -> Result<String, ApiError> {
    let texts = parts.into_iter().enumerate().map(|(index, part)| part.said(&format!("{place}[{index}]")));
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}
