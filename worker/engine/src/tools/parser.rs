//! An answer's text in, text and calls out, piece by piece. Calls do not depend on where the pieces are cut, and text
//! that only looked like a call comes out as text.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::event::{ToolEvent, joined};
use super::format::ToolFormat;
use super::head;
use super::json_call::{CallPart, JsonCall, JsonEnd, ValueEnd};
use super::xml_call;

/// Reads the calls of one answer.
#[derive(Clone, Debug)]
pub struct ToolParser {
    format: ToolFormat,
    /// The schemas of the tools' parameters, by name.
    schemas: Arc<BTreeMap<String, Value>>,
    state: State,
    /// Text that was not looked at yet, or may be the start of a mark.
    buffer: String,
    /// The text since the last mark, as long as no call of it has begun.
    block: String,
    /// White space that belongs to no text if a call follows.
    spaces: String,
    calls: usize,
    /// Whether any text has come out since the last call.
    has_spoken: bool,
}

#[derive(Clone, Debug)]
enum State {
    Text,
    /// Objects of JSON, by themselves or in a list.
    Objects {
        inside: Option<JsonCall>,
        listed: bool,
        begun: bool,
    },
    /// Text with a tool's name, in front of arguments.
    Head,
    Arguments(ValueEnd),
    /// The end of a fenced block.
    Fence,
    TagHead,
    Tags {
        tool: String,
        key: Option<String>,
        is_first: bool,
    },
    /// The header of a message in a channel.
    Channel,
    Message(Message),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Text,
    Thought,
}

/// Longer texts in front of arguments name no tool.
const LONGEST_HEAD: usize = 512;

/// The marks that end a message in a channel.
const MESSAGE_ENDS: [&str; 5] = ["<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"];

impl ToolParser {
    /// A parser for an answer in this format. `schemas` are those of the tools' parameters, by name.
    pub fn new(format: ToolFormat, schemas: Arc<BTreeMap<String, Value>>) -> Self {
        // An answer of gpt-oss begins inside of a message's header.
        let state = if format == ToolFormat::Harmony { State::Channel } else { State::Text };
        Self {
            format,
            schemas,
            state,
            buffer: String::new(),
            block: String::new(),
            spaces: String::new(),
            calls: 0,
            has_spoken: false,
        }
    }

    /// Takes the next piece of the answer.
    pub fn push(&mut self, text: &str) -> Vec<ToolEvent> {
        self.buffer.push_str(text);
        let mut out = Vec::new();
        while self.step(&mut out) {}
        joined(out)
    }

    /// The rest, when the answer has ended.
    pub fn finish(&mut self) -> Vec<ToolEvent> {
        let mut out = Vec::new();
        let rest = std::mem::take(&mut self.buffer);
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text | State::Fence => self.text(&rest, &mut out),
            State::Message(Message::Thought) => out.push(ToolEvent::Thought(rest)),
            State::Message(Message::Text) => self.text(&rest, &mut out),
            // Arguments are as long as the model wrote them.
            State::Arguments(_) | State::Tags { .. } | State::Objects { begun: true, .. } => {}
            State::Objects { .. } | State::Head | State::TagHead | State::Channel => {
                let block = std::mem::take(&mut self.block) + &rest;
                self.text(&block, &mut out);
            }
        }
        if self.calls == 0 && !self.spaces.is_empty() {
            out.push(ToolEvent::Text(std::mem::take(&mut self.spaces)));
        }
        out.retain(|event| !matches!(event, ToolEvent::Text(text) | ToolEvent::Thought(text) if text.is_empty()));
        joined(out)
    }

    /// Whether the text of the answer is being read, and no call.
    pub fn is_in_text(&self) -> bool {
        matches!(self.state, State::Text | State::Message(_))
    }

    /// The number of calls so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Looks at some of the buffer; whether there may be more to see.
    fn step(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        match self.state {
            State::Text => self.step_text(out),
            State::Objects { .. } => self.step_objects(out),
            State::Head => self.step_head(out),
            State::Arguments(_) => self.step_arguments(out),
            State::Fence => self.step_fence(),
            State::TagHead => self.step_tag_head(out),
            State::Tags { .. } => self.step_tags(out),
            State::Channel => self.step_channel(out),
            State::Message(message) => self.step_message(message, out),
        }
    }

    fn step_text(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let is_first = self.calls == 0 && !self.has_spoken;
        if self.format == ToolFormat::Llama && is_first {
            let begin = self.buffer.trim_start();
            if begin.is_empty() {
                return false;
            }
            if begin.starts_with('{') {
                self.state = State::Objects { inside: None, listed: false, begun: false };
                self.block = std::mem::take(&mut self.spaces);
                return true;
            }
        }
        let marks = self.format.marks();
        let (open, ignored) =
            (marks.open.iter().map(|mark| (*mark, true)), marks.ignored.iter().map(|mark| (*mark, false)));
        let all = open.chain(ignored);
        let found = all.clone().filter_map(|(mark, opens)| Some((self.buffer.find(mark)?, mark, opens)));
        // Of two marks at one place the longer one is meant.
        if let Some((at, mark, opens)) = found.min_by_key(|(at, mark, _)| (*at, usize::MAX - mark.len())) {
            let rest = self.buffer.split_off(at + mark.len());
            let mut text = std::mem::replace(&mut self.buffer, rest);
            text.truncate(at);
            self.text(&text, out);
            if opens {
                mark.clone_into(&mut self.block);
                self.state = self.behind_mark();
            }
            return true;
        }
        let held = all.map(|(mark, _)| longest_start(mark, &self.buffer)).max().unwrap_or(0);
        let rest = self.buffer.split_off(self.buffer.len() - held);
        let text = std::mem::replace(&mut self.buffer, rest);
        self.text(&text, out);
        false
    }

    fn behind_mark(&self) -> State {
        match self.format {
            ToolFormat::QwenCoder | ToolFormat::Glm => State::TagHead,
            ToolFormat::MistralNamed | ToolFormat::DeepSeek | ToolFormat::DeepSeekFenced => State::Head,
            ToolFormat::Harmony => State::Channel,
            ToolFormat::Hermes
            | ToolFormat::Generic
            | ToolFormat::Llama
            | ToolFormat::MistralList
            | ToolFormat::Phi
            | ToolFormat::Granite
            | ToolFormat::Command => State::Objects { inside: None, listed: false, begun: false },
        }
    }

    /// Gives out text, but for white space that may be in front of a call.
    fn text(&mut self, text: &str, out: &mut Vec<ToolEvent>) {
        if text.is_empty() {
            return;
        }
        let whole = std::mem::take(&mut self.spaces) + text;
        let is_behind_call = self.calls > 0 && !self.has_spoken;
        let from = if is_behind_call { whole.trim_start() } else { whole.as_str() };
        let shown = from.trim_end();
        self.spaces = from[shown.len()..].to_owned();
        if !shown.is_empty() {
            self.has_spoken = true;
            out.push(ToolEvent::Text(shown.to_owned()));
        }
    }

    fn begin(&mut self, name: String, out: &mut Vec<ToolEvent>) {
        self.block.clear();
        self.spaces.clear();
        self.has_spoken = false;
        out.push(ToolEvent::Begin { index: self.calls, name });
        self.calls += 1;
    }

    fn arguments(&self, piece: String, out: &mut Vec<ToolEvent>) {
        out.push(ToolEvent::Arguments { index: self.calls.saturating_sub(1), piece });
    }

    /// The block is no call: what it had is text.
    fn give_up(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        self.state = State::Text;
        let block = std::mem::take(&mut self.block);
        self.text(&block, out);
        true
    }

    fn take_first(&mut self) -> Option<char> {
        let first = self.buffer.chars().next()?;
        self.buffer.drain(..first.len_utf8());
        Some(first)
    }

    fn step_objects(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let State::Objects { mut inside, mut listed, mut begun } = std::mem::replace(&mut self.state, State::Text)
        else {
            return true;
        };
        let buffer = std::mem::take(&mut self.buffer);
        let mut parts = Vec::new();
        for (at, c) in buffer.char_indices() {
            let was_named = inside.as_ref().is_some_and(JsonCall::is_named);
            let is_between = inside.is_none();
            if !begun || !(is_between || was_named) || c == '{' && is_between {
                self.block.push(c);
            }
            let (mut over, mut failed) = (false, false);
            match &mut inside {
                Some(call) => failed = call.push(c, &mut parts).is_err(),
                None if c.is_whitespace() || (c == ',' && listed) || (c == ';' && begun) => {}
                None if c == '[' && !listed && !begun => listed = true,
                None if c == '{' => inside = Some(JsonCall::default()),
                None if c == ']' && listed => over = true,
                None => failed = true,
            }
            for part in parts.drain(..) {
                match part {
                    CallPart::Name(name) => {
                        begun = true;
                        self.begin(name, out);
                    }
                    CallPart::Arguments(piece) => self.arguments(piece, out),
                    CallPart::End => {
                        inside = None;
                        over = !listed && self.format != ToolFormat::Llama;
                    }
                }
            }
            let behind = at + c.len_utf8();
            if failed {
                // The block has the character, unless a call of it has begun.
                let from = if begun && (is_between || was_named) { at } else { behind };
                self.buffer = buffer[from..].to_owned();
                return self.give_up(out);
            }
            if over {
                self.buffer = buffer[behind..].to_owned();
                self.block.clear();
                return true;
            }
        }
        self.state = State::Objects { inside, listed, begun };
        false
    }

    fn step_head(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let Some(c) = self.take_first() else { return false };
        if c == '{' {
            let mark = self.format.marks().open.iter().find_map(|mark| self.block.strip_prefix(mark));
            let Some(name) = mark.and_then(|head| head::name(self.format, head)) else {
                self.block.push(c);
                return self.give_up(out);
            };
            self.begin(name, out);
            self.buffer.insert(0, c);
            self.state = State::Arguments(ValueEnd::default());
            return true;
        }
        self.block.push(c);
        if self.block.len() > LONGEST_HEAD { self.give_up(out) } else { true }
    }

    fn step_arguments(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let State::Arguments(end) = &mut self.state else { return true };
        let mut last = None;
        for (at, c) in self.buffer.char_indices() {
            match end.push(c) {
                JsonEnd::No => {}
                JsonEnd::With => last = Some((at + c.len_utf8(), true)),
                JsonEnd::Before => last = Some((at, true)),
            }
            if last.is_some() {
                break;
            }
        }
        let (length, is_over) = last.unwrap_or((self.buffer.len(), false));
        let rest = self.buffer.split_off(length);
        let piece = std::mem::replace(&mut self.buffer, rest);
        if !piece.is_empty() {
            self.arguments(piece, out);
        }
        if is_over {
            let is_fenced = self.format == ToolFormat::DeepSeekFenced;
            self.state = if is_fenced { State::Fence } else { State::Text };
        }
        is_over
    }

    fn step_fence(&mut self) -> bool {
        const FENCE: &str = "```";
        let rest = self.buffer.trim_start();
        if rest.len() < FENCE.len() && FENCE.starts_with(rest) {
            return false;
        }
        if let Some(behind) = rest.strip_prefix(FENCE) {
            self.buffer = behind.to_owned();
        }
        self.state = State::Text;
        true
    }

    fn step_tag_head(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let tags = xml_call::tags(self.format);
        let leading = self.buffer.len() - self.buffer.trim_start().len();
        let body = &self.buffer[leading..];
        let end = body.find(tags.head_end).into_iter().chain(body.find('<')).min();
        let Some(end) = end else {
            return if self.buffer.len() > LONGEST_HEAD { self.give_up_with_buffer(out) } else { false };
        };
        let name = body[..end].trim().to_owned();
        if name.is_empty() || name.contains(char::is_whitespace) || name.len() > LONGEST_HEAD {
            return self.give_up_with_buffer(out);
        }
        let has_end = body[end..].starts_with(tags.head_end);
        let behind = leading + end + if has_end { tags.head_end.len() } else { 0 };
        self.buffer.drain(..behind);
        self.begin(name.clone(), out);
        self.arguments("{".to_owned(), out);
        self.state = State::Tags { tool: name, key: None, is_first: true };
        true
    }

    /// The block and one more character are no call.
    fn give_up_with_buffer(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        if let Some(c) = self.take_first() {
            self.block.push(c);
        }
        self.give_up(out)
    }

    fn step_tags(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let State::Tags { tool, mut key, mut is_first } = std::mem::replace(&mut self.state, State::Text) else {
            return true;
        };
        let tags = xml_call::tags(self.format);
        let Some(known) = key.take() else {
            let leading = self.buffer.len() - self.buffer.trim_start().len();
            self.buffer.drain(..leading);
            let ends = [tags.end, "</tool_call>"];
            let may_be = |mark: &str| mark.starts_with(self.buffer.as_str());
            if let Some(end) = ends.iter().find(|end| self.buffer.starts_with(**end)) {
                self.buffer.drain(..end.len());
                self.arguments("}".to_owned(), out);
                return true;
            }
            if let Some(rest) = self.buffer.strip_prefix(tags.key.0) {
                let Some(at) = rest.find(tags.key.1) else {
                    self.state = State::Tags { tool, key: None, is_first };
                    return false;
                };
                let key = rest[..at].trim().to_owned();
                self.buffer = rest[at + tags.key.1.len()..].to_owned();
                self.state = State::Tags { tool, key: Some(key), is_first };
                return true;
            }
            if self.buffer.is_empty() || may_be(tags.key.0) || ends.iter().any(|end| may_be(end)) {
                self.state = State::Tags { tool, key: None, is_first };
                return false;
            }
            // Something else: the call ends here, as JSON.
            self.arguments("}".to_owned(), out);
            return true;
        };
        let Some(end) = self.buffer.find(tags.value.1) else {
            self.state = State::Tags { tool, key: Some(known), is_first };
            return false;
        };
        let rest = self.buffer.split_off(end + tags.value.1.len());
        let mut text = std::mem::replace(&mut self.buffer, rest);
        text.truncate(end);
        let inside = text.trim_start().strip_prefix(tags.value.0).filter(|_| !tags.value.0.is_empty()).unwrap_or(&text);
        let root = self.schemas.get(&tool).unwrap_or(&Value::Null);
        let schema = root.get("properties").and_then(|properties| properties.get(&known));
        let value = xml_call::value(schema, root, inside);
        let between = if is_first { "" } else { ", " };
        is_first = false;
        self.arguments(format!("{between}{}: {value}", Value::String(known)), out);
        self.state = State::Tags { tool, key: None, is_first };
        true
    }

    fn step_channel(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        const END: &str = "<|message|>";
        const BEGINNINGS: [&str; 3] = ["<|channel|>", "<|start|>", " to="];
        let begins = |header: &str| header.starts_with(&self.buffer) || self.buffer.starts_with(header);
        if self.block.is_empty() && !BEGINNINGS.into_iter().any(begins) {
            self.state = State::Text;
            return true;
        }
        let Some(at) = self.buffer.find(END) else {
            return if self.buffer.len() > LONGEST_HEAD { self.give_up_with_buffer(out) } else { false };
        };
        let rest = self.buffer.split_off(at + END.len());
        let mut header = std::mem::replace(&mut self.buffer, rest);
        header.truncate(at);
        let is_thought = header.contains("analysis");
        self.state = match head::name(self.format, &header) {
            Some(name) => {
                self.begin(name, out);
                State::Arguments(ValueEnd::default())
            }
            None => State::Message(if is_thought { Message::Thought } else { Message::Text }),
        };
        self.block.clear();
        true
    }

    fn step_message(&mut self, message: Message, out: &mut Vec<ToolEvent>) -> bool {
        let end = MESSAGE_ENDS.iter().filter_map(|mark| self.buffer.find(mark)).min();
        let held = MESSAGE_ENDS.iter().map(|mark| longest_start(mark, &self.buffer)).max().unwrap_or(0);
        let length = end.unwrap_or(self.buffer.len() - held);
        let rest = self.buffer.split_off(length);
        let text = std::mem::replace(&mut self.buffer, rest);
        match message {
            Message::Thought if !text.is_empty() => out.push(ToolEvent::Thought(text)),
            Message::Thought => {}
            Message::Text => self.text(&text, out),
        }
        if end.is_some() {
            // The mark is read as one between messages.
            self.state = State::Text;
        }
        end.is_some()
    }
}

/// Length in bytes of the longest proper start of `mark` that `text` ends with.
fn longest_start(mark: &str, text: &str) -> usize {
    let fits = |length: &usize| mark.is_char_boundary(*length) && text.ends_with(&mark[..*length]);
    (1..mark.len().min(text.len() + 1)).rev().find(fits).unwrap_or(0)
}
