//! The messages of a chat, as clients send them and as templates see them.

use std::collections::BTreeMap;

use model_boss_engine::text::TemplateValue;
use model_boss_engine::tools::ToolFormat;
use model_boss_protocol::{ApiError, Remedy, beyond_worker};
use serde::Deserialize;

use super::images::SentImages;
use crate::text::TextFacts;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
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
            tool_calls: None,
            tool_call_id: None,
            place: 0,
            tools: None,
        }
    }

    /// Puts text in front of its own.
    pub(super) fn say_first(&mut self, text: &str) {
        match &mut self.content {
            Some(MessageContent::Parts(parts)) => parts.insert(0, ContentPart::of(text)),
            Some(MessageContent::Text(own)) => *own = format!("{text}\n\n{own}"),
            None => self.content = Some(MessageContent::Text(text.to_owned())),
        }
    }

    /// Puts text behind its own.
    pub(super) fn say_more(&mut self, text: &str) {
        match &mut self.content {
            Some(MessageContent::Parts(parts)) => parts.push(ContentPart::of(text)),
            Some(MessageContent::Text(own)) if !own.is_empty() => *own = format!("{own}\n\n{text}"),
            _ => self.content = Some(MessageContent::Text(text.to_owned())),
        }
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
            match &mut self.content {
                Some(MessageContent::Text(text)) => *text = format!("<tool_response>\n{text}\n</tool_response>"),
                _ => {
                    self.say_first("<tool_response>");
                    self.say_more("</tool_response>");
                }
            }
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
        let role = match self.role.ok_or_else(|| missing("role"))? {
            Role::Developer if facts.knows_developer => "developer",
            Role::System | Role::Developer => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        };
        let calls = self.tool_calls.filter(|calls| !calls.is_empty());
        let content = match self.content {
            Some(MessageContent::Text(text)) => of_text(text, facts),
            Some(MessageContent::Parts(parts)) if parts.iter().any(ContentPart::is_image) => {
                with_images(parts, &place("content"), facts, images)?
            }
            Some(MessageContent::Parts(parts)) => of_text(joined(parts, &place("content"))?, facts),
            None if role == "assistant" => TemplateValue::from(()),
            // A tool that said nothing.
            None if role == "tool" => of_text(String::new(), facts),
            None => return Err(missing("content")),
        };
        let mut value: BTreeMap<&str, TemplateValue> = BTreeMap::new();
        value.insert("role", role.into());
        value.insert("content", content);
        // Templates read it by one of these names, whichever the client has.
        let others = [self.thinking, self.reasoning].into_iter().flatten();
        let others = others.filter_map(|thought| thought.as_str().map(str::to_owned));
        if let Some(thought) = self.reasoning_content.into_iter().chain(others).next() {
            for name in ["reasoning_content", "thinking", "reasoning"] {
                value.insert(name, thought.as_str().into());
            }
            // Templates with channels refuse a text beside the thought in front of calls.
            if calls.is_some() && facts.tools.format.has_channels() {
                value.insert("content", "".into());
            }
        }
        let texts = [("name", self.name), ("tool_call_id", self.tool_call_id)];
        value.extend(self.tools.map(|tools| ("tools", tools.into())));
        value.extend(texts.into_iter().filter_map(|(name, text)| Some((name, text?.into()))));
        if let Some(calls) = calls {
            let as_text = facts.tools.arguments_as_text;
            value.insert("tool_calls", calls.into_iter().map(|call| call.value(as_text)).collect());
        }
        Ok(TemplateValue::from(value))
    }
}

impl ToolCall {
    fn value(self, as_text: bool) -> TemplateValue {
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
        Self { r#type: "text".to_owned(), text: Some(text.to_owned()), refusal: None, image_url: None }
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

/// Parts some of which are images: as parts, or as one text with marks for a chat template that takes no parts.
fn with_images(
    parts: Vec<ContentPart>,
    place: &str,
    facts: &TextFacts,
    images: &mut SentImages,
) -> Result<TemplateValue, ApiError> {
    let mut values = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        if !part.is_image() {
            let text = part.said(&place)?;
            values.push(if facts.shows_images { text_part(text) } else { text.into() });
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
    if facts.shows_images {
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
