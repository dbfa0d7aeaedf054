//! An answer's text in, text and calls out, piece by piece. Calls do not depend on where the pieces are cut, and text
//! that only looked like a call comes out as text.

mod channels;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::distinct::{Distinct, has_distinct_parts};
use super::event::{ToolEvent, joined};
use super::format::ToolFormat;
use super::head::HeadShape;
use super::json_call::{CallPart, JsonCall, JsonEnd, ValueEnd};
use super::parameters::{ArgumentsRead, CallReader, HeadRead, LONGEST_HEAD};
use super::shape::{CallFormat, CallShape, ObjectShape};

/// Reads the calls of one answer.
#[derive(Clone, Debug)]
pub struct ToolParser {
    format: &'static CallFormat,
    /// The schemas of the tools' parameters, by name.
    schemas: Arc<BTreeMap<String, Value>>,
    /// The lists without equal items and the keys of the present call, if its schema has such.
    lists: Option<(Value, Distinct)>,
    state: State,
    /// Text that was not looked at yet, or may be the start of a mark.
    buffer: String,
    /// The text since the last mark, as long as no call of it has begun.
    block: String,
    /// White space that belongs to no text if a call follows.
    spaces: String,
    calls: usize,
    /// Whether the answer must be calls and nothing else.
    calls_only: bool,
    /// Whether any text has come out since the last call.
    has_spoken: bool,
    /// Whether the header of a message has been read.
    has_messages: bool,
}

/// Bytes of a cut mark that texts do not end with by chance.
const LIKE_A_MARK: usize = 5;

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
    Head(&'static HeadShape),
    Arguments(&'static HeadShape, ValueEnd),
    /// Text behind arguments that is part of their call.
    Close(&'static str),
    /// A tool's name in front of parameters, or the end of a list of calls.
    CallHead {
        reader: CallReader,
        is_behind_call: bool,
    },
    Parameters(CallReader),
    /// The header of a message in a channel.
    Channel(&'static HeadShape),
    Message(Message),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Text,
    Thought,
}

impl ToolParser {
    /// A parser for an answer in this format. `schemas` are those of the tools' parameters, by name.
    pub fn new(format: ToolFormat, schemas: Arc<BTreeMap<String, Value>>) -> Self {
        // An answer of gpt-oss begins inside of a message's header.
        let format = format.row();
        let state = match &format.call {
            CallShape::Head(head) if head.in_channels => State::Channel(head),
            _ => State::Text,
        };
        Self {
            format,
            schemas,
            lists: None,
            state,
            buffer: String::new(),
            block: String::new(),
            spaces: String::new(),
            calls: 0,
            calls_only: false,
            has_spoken: false,
            has_messages: false,
        }
    }

    /// The same for an answer that must be calls and nothing else.
    #[must_use]
    pub fn of_calls_only(self) -> Self {
        Self { calls_only: true, ..self }
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
            State::Text | State::Close(_) | State::CallHead { is_behind_call: true, .. } => self.text(&rest, &mut out),
            State::Message(Message::Thought) => out.push(ToolEvent::Thought(rest)),
            State::Message(Message::Text) => self.text(&rest, &mut out),
            // Arguments are as long as the model wrote them.
            State::Arguments(..) | State::Parameters(_) | State::Objects { begun: true, .. } => {
                if let Some((_, mut lists)) = self.lists.take() {
                    self.arguments(lists.finish(), &mut out);
                }
            }
            // A header that was cut.
            State::Channel(_) if self.has_messages || !self.block.is_empty() || rest.starts_with('<') => {}
            State::Objects { .. } | State::Head(_) | State::CallHead { .. } | State::Channel(_) => {
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

    /// The rest of an answer that was held to the grammar of calls, and that a limit cut. In it nothing but a call
    /// begins like one, so what did and has no name yet is nobody's text, and neither is a mark that was cut.
    pub fn cut(&mut self) -> Vec<ToolEvent> {
        let is_behind_call = self.calls > 0 && !self.has_spoken;
        let is_dropped = match self.state {
            State::Objects { begun: false, .. } | State::Head(_) | State::CallHead { .. } | State::Close(_) => true,
            // The buffer has the start of a mark, or nothing.
            State::Text => self.calls_only || is_behind_call || self.buffer.len() >= LIKE_A_MARK,
            _ => false,
        };
        if is_dropped {
            self.block.clear();
            self.buffer.clear();
            if self.calls_only || is_behind_call || self.calls == 0 {
                self.spaces.clear();
            }
        }
        self.finish()
    }

    /// Whether the text of the answer is being read, and no call.
    pub fn is_in_text(&self) -> bool {
        matches!(self.state, State::Text | State::Message(_))
    }

    /// Whether what is being read is shown to nobody as an answer: a thought, or the header of a message.
    pub fn is_hidden(&self) -> bool {
        match self.state {
            State::Channel(_) | State::Message(Message::Thought) => true,
            // Between two messages.
            State::Text => self.has_messages,
            _ => false,
        }
    }

    /// Whether a thought is being read.
    pub fn is_in_thought(&self) -> bool {
        matches!(self.state, State::Message(Message::Thought))
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
            State::Head(head) => self.step_head(head, out),
            State::Arguments(..) => self.step_arguments(out),
            State::Close(close) => self.step_close(close),
            State::CallHead { .. } => self.step_call_head(out),
            State::Parameters(_) => self.step_parameters(out),
            State::Channel(head) => self.step_channel(head, out),
            State::Message(message) => self.step_message(message, out),
        }
    }

    fn step_text(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let is_first = self.calls == 0 && !self.has_spoken;
        if self.format.first.is_none() && is_first {
            let begin = self.buffer.trim_start();
            if begin.is_empty() {
                return false;
            }
            if begin.starts_with(self.format.begins()) {
                self.state = self.behind_mark("");
                self.block = std::mem::take(&mut self.spaces);
                return true;
            }
        }
        let (open, ignored) =
            (self.format.open.iter().map(|mark| (*mark, true)), self.format.ignored.iter().map(|mark| (*mark, false)));
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
                self.state = self.behind_mark(mark);
            }
            return true;
        }
        let held = all.map(|(mark, _)| longest_start(mark, &self.buffer)).max().unwrap_or(0);
        let rest = self.buffer.split_off(self.buffer.len() - held);
        let text = std::mem::replace(&mut self.buffer, rest);
        self.text(&text, out);
        false
    }

    fn behind_mark(&self, mark: &str) -> State {
        match &self.format.call {
            CallShape::Tags(tags) => State::CallHead { reader: CallReader::of_tags(tags), is_behind_call: false },
            CallShape::Notation(notation) => {
                let reader = CallReader::of_notation(notation, self.format.is_listed());
                State::CallHead { reader, is_behind_call: false }
            }
            CallShape::Head(head) if head.in_channels => State::Channel(head),
            CallShape::Head(head) => State::Head(head),
            CallShape::Object(_) => State::Objects { inside: None, listed: mark.ends_with('['), begun: false },
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
        let schema = self.schemas.get(&name).filter(|schema| has_distinct_parts(schema));
        self.lists = schema.map(|schema| (schema.clone(), Distinct::default()));
        out.push(ToolEvent::Begin { index: self.calls, name });
        self.calls += 1;
    }

    fn arguments(&mut self, piece: String, out: &mut Vec<ToolEvent>) {
        let piece = match &mut self.lists {
            Some((schema, lists)) => lists.push(&piece, schema),
            None => piece,
        };
        if piece.is_empty() {
            return;
        }
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
        let is_keyed = matches!(&self.format.call, CallShape::Object(shape) if shape.is_keyed);
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
                None if c == '{' => inside = Some(if is_keyed { JsonCall::keyed() } else { JsonCall::default() }),
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
                        over = !listed && self.format.has_marks_each() && self.format.first.is_some();
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
                if let CallShape::Object(ObjectShape { fence, .. }) = &self.format.call
                    && !fence.is_empty()
                {
                    self.state = State::Close(fence);
                }
                return true;
            }
        }
        self.state = State::Objects { inside, listed, begun };
        false
    }

    fn step_head(&mut self, head: &'static HeadShape, out: &mut Vec<ToolEvent>) -> bool {
        let Some(c) = self.take_first() else { return false };
        if c == '{' {
            let text = self.format.open.iter().find_map(|mark| self.block.strip_prefix(mark));
            let Some(name) = text.and_then(|text| head.name(text)) else {
                self.block.push(c);
                return self.give_up(out);
            };
            self.begin(name, out);
            self.buffer.insert(0, c);
            self.state = State::Arguments(head, ValueEnd::default());
            return true;
        }
        self.block.push(c);
        if self.block.len() > LONGEST_HEAD { self.give_up(out) } else { true }
    }

    fn step_arguments(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let State::Arguments(head, end) = &mut self.state else { return true };
        let (close, mut last) = (head.close, None);
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
            self.state = if close.is_empty() { State::Text } else { State::Close(close.trim()) };
        }
        is_over
    }

    fn step_close(&mut self, close: &'static str) -> bool {
        let rest = self.buffer.trim_start();
        if rest.len() < close.len() && close.starts_with(rest) {
            return false;
        }
        if let Some(behind) = rest.strip_prefix(close) {
            self.buffer = behind.to_owned();
        }
        self.state = State::Text;
        true
    }

    fn step_call_head(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let State::CallHead { mut reader, is_behind_call } = std::mem::replace(&mut self.state, State::Text) else {
            return true;
        };
        match reader.head(&self.buffer, is_behind_call) {
            HeadRead::More => {
                self.state = State::CallHead { reader, is_behind_call };
                return false;
            }
            HeadRead::NoName if is_behind_call => {}
            HeadRead::NoName => return self.give_up_with_buffer(out),
            HeadRead::Over(length) => drop(self.buffer.drain(..length)),
            HeadRead::Name(name, length) => {
                self.buffer.drain(..length);
                self.begin(name, out);
                self.arguments("{".to_owned(), out);
                self.state = State::Parameters(reader);
            }
        }
        true
    }

    fn step_parameters(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        let State::Parameters(mut reader) = std::mem::replace(&mut self.state, State::Text) else { return true };
        match reader.step(&mut self.buffer, &self.schemas) {
            ArgumentsRead::More => {
                self.state = State::Parameters(reader);
                return false;
            }
            ArgumentsRead::Piece(piece) => {
                self.arguments(piece, out);
                self.state = State::Parameters(reader);
            }
            ArgumentsRead::End(piece) => {
                self.arguments(piece, out);
                if reader.is_listed() {
                    self.state = State::CallHead { reader, is_behind_call: true };
                }
            }
        }
        true
    }

    /// The block and one more character are no call.
    fn give_up_with_buffer(&mut self, out: &mut Vec<ToolEvent>) -> bool {
        if let Some(c) = self.take_first() {
            self.block.push(c);
        }
        self.give_up(out)
    }
}

/// Length in bytes of the longest proper start of `mark` that `text` ends with.
fn longest_start(mark: &str, text: &str) -> usize {
    let fits = |length: &usize| mark.is_char_boundary(*length) && text.ends_with(&mark[..*length]);
    (1..mark.len().min(text.len() + 1)).rev().find(fits).unwrap_or(0)
}
