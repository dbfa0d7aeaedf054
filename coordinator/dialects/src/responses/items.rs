//! Items of the Responses API: from items to the messages of a chat, and lists of items in pages.

use serde_json::{Value, json};

use super::refusal::ResponsesRefusal;
use crate::Names;
use crate::tool_results::SEE_BELOW;

/// The messages of a chat, made from items one after another.
pub(super) struct MessageList<'a> {
    messages: Vec<Value>,
    names: &'a mut Names,
    /// Ids of the calls that were cut.
    cut: Vec<Value>,
    /// EarlierThoughts whose message has not come yet.
    thoughts: Option<EarlierThoughts>,
    /// Images in the last results of tools. Messages of tools are texts, so a message of the user's shows the images.
    shown: Vec<ShownImage>,
}

/// An image in a result.
struct ShownImage {
    /// Its place in the request.
    theirs: String,
    part: Value,
}

/// The thoughts of an answer, in items in front of its text and calls.
struct EarlierThoughts {
    /// The place of the first item in the request.
    theirs: String,
    text: String,
}

impl<'a> MessageList<'a> {
    pub(super) const fn new(names: &'a mut Names) -> Self {
        Self { messages: Vec::new(), names, cut: Vec::new(), thoughts: None, shown: Vec::new() }
    }

    /// The messages.
    pub(super) fn end(mut self) -> Vec<Value> {
        self.show_images();
        self.messages
    }

    /// Adds the request's instructions.
    pub(super) fn instruct(&mut self, text: &str) {
        let ours = self.add(json!({ "role": "system", "content": text }));
        self.names.made(ours, "instructions");
    }

    /// Adds a text of the user's.
    pub(super) fn push_text(&mut self, theirs: &str, text: &str) {
        self.show_images();
        let ours = self.add(json!({ "role": "user", "content": text }));
        self.names.made(ours, theirs);
    }

    /// Adds an item. `theirs` is its place in the request.
    pub(super) fn push(&mut self, theirs: &str, item: &Value) -> Result<(), ResponsesRefusal> {
        match item["type"].as_str() {
            // A message may come without its type.
            Some("message") => self.message(theirs, item),
            None if item["role"].is_string() => self.message(theirs, item),
            // Arguments that were cut are no JSON, which templates and providers need.
            Some("function_call") if item["status"] == "incomplete" => {
                self.cut.push(item["call_id"].clone());
                Ok(())
            }
            Some("function_call") => {
                self.call(theirs, item);
                Ok(())
            }
            Some("function_call_output") => self.result(theirs, item),
            Some("reasoning") => {
                self.think(theirs, item);
                Ok(())
            }
            Some("item_reference") => {
                let message = format!("'{theirs}' refers to an item by its id; send the item itself");
                Err(ResponsesRefusal::not_here(theirs, message))
            }
            Some(kind @ ("custom_tool_call" | "custom_tool_call_output")) => {
                let message = format!(
                    "'{theirs}' is an item of type '{kind}', and custom tools are not called here; give the tool as a \
                     function, and its calls as items of type 'function_call'"
                );
                Err(ResponsesRefusal::not_here(theirs, message))
            }
            Some(kind) => {
                let message = format!("'{theirs}' is an item of type '{kind}', which only OpenAI's own servers read");
                Err(ResponsesRefusal::not_here(theirs, message))
            }
            None => {
                let message = format!("'{theirs}' must be an item with a 'type', or a message with a 'role'");
                Err(ResponsesRefusal::malformed(theirs, message))
            }
        }
    }

    /// Adds a message; returns its place in the chat, such as `messages[1]`. EarlierThoughts that no message of the
    /// assistant's follows are those of an answer that was cut, and are dropped.
    fn add(&mut self, message: Value) -> String {
        let is_assistants = message["role"] == "assistant";
        self.messages.push(message);
        if is_assistants {
            self.attach_thoughts();
        } else {
            self.thoughts = None;
        }
        format!("messages[{}]", self.messages.len() - 1)
    }

    /// Keeps the thoughts of an item for the message behind it. Only models here spell them out; those of other
    /// providers are encrypted or summaries.
    fn think(&mut self, theirs: &str, item: &Value) {
        let parts = item["content"].as_array().into_iter().flatten();
        let texts = parts.filter(|part| part["type"] == "reasoning_text").filter_map(|part| part["text"].as_str());
        for text in texts.filter(|text| !text.is_empty()) {
            let none = || EarlierThoughts { theirs: theirs.to_owned(), text: String::new() };
            append(&mut self.thoughts.get_or_insert_with(none).text, text);
        }
    }

    /// Puts the thoughts in front of the last message into it.
    fn attach_thoughts(&mut self) {
        let Some(EarlierThoughts { theirs, mut text }) = self.thoughts.take() else { return };
        let index = self.messages.len().saturating_sub(1);
        let Some(last) = self.messages.last_mut() else { return };
        match last["reasoning_content"].as_str() {
            Some(before) => text = format!("{before}\n{text}"),
            None => self.names.made(format!("messages[{index}].reasoning_content"), theirs),
        }
        last["reasoning_content"] = json!(text);
    }

    fn message(&mut self, theirs: &str, item: &Value) -> Result<(), ResponsesRefusal> {
        let role = item["role"].as_str().unwrap_or_default();
        if !["user", "assistant", "system", "developer"].contains(&role) {
            let message = format!("'{theirs}.role' must be user, assistant, system or developer, not '{role}'");
            return Err(ResponsesRefusal::malformed(format!("{theirs}.role"), message));
        }
        self.show_images();
        let index = self.messages.len();
        let content = self.content(theirs, &format!("messages[{index}].content"), &item["content"])?;
        let ours = self.add(json!({ "role": role, "content": content }));
        self.names.moved_if_elsewhere(&ours, theirs);
        Ok(())
    }

    /// A message's content: a text, or the parts of a list.
    fn content(&mut self, theirs: &str, ours: &str, content: &Value) -> Result<Value, ResponsesRefusal> {
        let theirs = format!("{theirs}.content");
        let parts = match content {
            Value::String(text) => return Ok(json!(text)),
            Value::Array(parts) => parts,
            _ => {
                let message = format!("'{theirs}' must be a text, or a list of parts");
                return Err(ResponsesRefusal::malformed(theirs, message));
            }
        };
        let translated: Vec<Value> = parts
            .iter()
            .enumerate()
            .map(|(number, part)| {
                let place = format!("{theirs}[{number}]");
                self.name_part(&format!("{ours}[{number}]"), &place, part);
                Self::part(&place, part)
            })
            .collect::<Result<_, _>>()?;
        // Most templates and small engines read a text only.
        let texts: Option<Vec<&str>> = translated.iter().map(|part| part["text"].as_str()).collect();
        if let Some(texts) = texts {
            self.names.made(ours, theirs);
            return Ok(json!(texts.join("\n")));
        }
        Ok(Value::Array(translated))
    }

    /// Records the names of a part's fields.
    fn name_part(&mut self, ours: &str, theirs: &str, part: &Value) {
        self.names.made(ours, theirs);
        self.names.moved(format!("{ours}.type"), format!("{theirs}.type"));
        if part["type"] == "input_image" {
            self.names.moved(format!("{ours}.image_url.url"), format!("{theirs}.image_url"));
        }
    }

    fn part(theirs: &str, part: &Value) -> Result<Value, ResponsesRefusal> {
        let text = |name: &str| {
            part[name].as_str().map(|text| json!({ "type": "text", "text": text })).ok_or_else(|| {
                let place = format!("{theirs}.{name}");
                let message = format!("'{place}' is missing, or no text");
                ResponsesRefusal::malformed(place, message)
            })
        };
        match part["type"].as_str() {
            Some("input_text" | "output_text" | "text") => text("text"),
            Some("refusal") => text("refusal"),
            Some("input_image") if part["image_url"].is_string() => {
                let mut image = json!({ "url": part["image_url"] });
                if let Some(detail) = part["detail"].as_str() {
                    image["detail"] = json!(detail);
                }
                Ok(json!({ "type": "image_url", "image_url": image }))
            }
            Some("input_image" | "input_file") => {
                let message = format!("'{theirs}' is a file at OpenAI; send an image as 'image_url' with a data: URL");
                Err(ResponsesRefusal::not_here(theirs, message))
            }
            Some("input_audio") => Ok(json!({ "type": "input_audio", "input_audio": part["input_audio"] })),
            kind => {
                let kind = kind.unwrap_or_default();
                let message = format!("'{theirs}' is a part of type '{kind}', which cannot be read here");
                Err(ResponsesRefusal::malformed(format!("{theirs}.type"), message))
            }
        }
    }

    /// Adds a tool call to the assistant's message in front of it, or to a new one.
    fn call(&mut self, theirs: &str, item: &Value) {
        let function = json!({ "name": item["name"], "arguments": item["arguments"] });
        let call = json!({ "id": item["call_id"], "type": "function", "function": function });
        self.show_images();
        let joins = self.messages.last().is_some_and(|last| last["role"] == "assistant");
        let index = if joins {
            self.attach_thoughts();
            self.messages.len() - 1
        } else {
            self.add(json!({ "role": "assistant", "content": null }));
            self.names.made(format!("messages[{}]", self.messages.len() - 1), theirs);
            self.messages.len() - 1
        };
        let message = &mut self.messages[index];
        let number = match &mut message["tool_calls"] {
            Value::Array(calls) => {
                calls.push(call);
                calls.len() - 1
            }
            none => {
                *none = json!([call]);
                self.names.made(format!("messages[{index}].tool_calls"), theirs);
                0
            }
        };
        let ours = format!("messages[{index}].tool_calls[{number}]");
        self.names.made(ours.as_str(), theirs);
        self.names.moved(format!("{ours}.id"), format!("{theirs}.call_id"));
        self.names.moved(format!("{ours}.function.name"), format!("{theirs}.name"));
        self.names.moved(format!("{ours}.function.arguments"), format!("{theirs}.arguments"));
    }

    fn result(&mut self, theirs: &str, item: &Value) -> Result<(), ResponsesRefusal> {
        if self.cut.contains(&item["call_id"]) {
            let place = format!("{theirs}.call_id");
            let message = format!(
                "'{place}' names a call that was cut before the end of its arguments; the model is not shown it, so \
                 leave its result out"
            );
            return Err(ResponsesRefusal::malformed(place, message));
        }
        let place = format!("{theirs}.output");
        let output = match &item["output"] {
            Value::String(text) => text.clone(),
            Value::Array(parts) => self.parts_of_result(&place, parts)?,
            _ => {
                let message = format!("'{place}' must be a text, or a list of parts");
                return Err(ResponsesRefusal::malformed(place, message));
            }
        };
        let ours = self.add(json!({ "role": "tool", "tool_call_id": item["call_id"], "content": output }));
        self.names.made(ours.as_str(), theirs);
        self.names.moved(format!("{ours}.tool_call_id"), format!("{theirs}.call_id"));
        self.names.made(format!("{ours}.content"), place);
        Ok(())
    }

    /// The text of a result. Its images wait for a message of the user's.
    fn parts_of_result(&mut self, theirs: &str, parts: &[Value]) -> Result<String, ResponsesRefusal> {
        let (mut texts, mut has_image) = (Vec::new(), false);
        for (number, part) in parts.iter().enumerate() {
            if let Some(text) = part["text"].as_str() {
                texts.push(text);
                continue;
            }
            let place = format!("{theirs}[{number}]");
            if part["type"] != "input_image" {
                let message = format!("'{theirs}' may hold only texts and images");
                return Err(ResponsesRefusal::malformed(theirs, message));
            }
            let image = Self::part(&place, part)?;
            self.shown.push(ShownImage { theirs: place, part: image });
            has_image = true;
        }
        Ok(if has_image && texts.is_empty() { SEE_BELOW.to_owned() } else { texts.join("\n") })
    }

    /// Adds a message of the user's with the images of the results in front of it.
    fn show_images(&mut self) {
        let shown = std::mem::take(&mut self.shown);
        let Some(first) = shown.first() else { return };
        let ours = format!("messages[{}]", self.messages.len());
        self.names.made(ours.as_str(), first.theirs.as_str());
        for (number, ShownImage { theirs, .. }) in shown.iter().enumerate() {
            let ours = format!("{ours}.content[{number}]");
            self.names.made(ours.as_str(), theirs.as_str());
            self.names.moved(format!("{ours}.image_url.url"), format!("{theirs}.image_url"));
        }
        let parts: Vec<Value> = shown.into_iter().map(|image| image.part).collect();
        // EarlierThoughts may stand between the results and the text that follows them.
        let thoughts = self.thoughts.take();
        self.add(json!({ "role": "user", "content": parts }));
        self.thoughts = thoughts;
    }
}

fn append(texts: &mut String, text: &str) {
    if !texts.is_empty() {
        texts.push('\n');
    }
    texts.push_str(text);
}

/// Items in the form of a list, each with a type and an id.
pub(super) fn with_ids(items: Vec<Value>, id: &str) -> Vec<Value> {
    let named = |(index, mut item): (usize, Value)| {
        if !item["type"].is_string() {
            item["type"] = json!("message");
        }
        if item["type"] == "message"
            && let Some(text) = item["content"].as_str()
        {
            let kind = if item["role"] == "assistant" { "output_text" } else { "input_text" };
            item["content"] = json!([{ "type": kind, "text": text }]);
        }
        if !item["id"].is_string() {
            let prefix = match item["type"].as_str() {
                Some("function_call") => "fc",
                Some("function_call_output") => "fco",
                Some("reasoning") => "rs",
                _ => "msg",
            };
            item["id"] = json!(format!("{prefix}_{id}_i{index}"));
        }
        item
    };
    items.into_iter().enumerate().map(named).collect()
}

/// The order of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ItemOrder {
    /// The oldest first.
    Ascending,
    /// The newest first, as OpenAI lists them where the request does not say.
    #[default]
    Descending,
}

/// The wanted part of a list of items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemPage {
    /// The order.
    pub order: ItemOrder,
    /// The most items.
    pub limit: usize,
    /// The item behind which the page begins.
    pub after: Option<String>,
}

impl Default for ItemPage {
    fn default() -> Self {
        Self { order: ItemOrder::default(), limit: 20, after: None }
    }
}

/// A page of items in OpenAI's shape.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemList(pub Value);

impl ItemList {
    /// A page of these items, which are in ascending order.
    pub fn page(mut items: Vec<Value>, page: &ItemPage) -> Self {
        if page.order == ItemOrder::Descending {
            items.reverse();
        }
        let after = page.after.as_ref().and_then(|after| items.iter().position(|item| item["id"] == after.as_str()));
        items.drain(..after.map_or(0, |after| after + 1));
        let has_more = items.len() > page.limit;
        items.truncate(page.limit);
        let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
        let (first, last) = (id(items.first()), id(items.last()));
        Self(json!({ "object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more }))
    }
}
