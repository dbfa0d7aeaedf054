//! Messages in channels: their headers, thoughts and texts.

use super::super::event::ToolEvent;
use super::super::head::HeadShape;
use super::super::json_call::ValueEnd;
use super::super::parameters::LONGEST_HEAD;
use super::{Message, State, ToolParser, longest_start};

/// The marks that end a message in a channel.
const MESSAGE_ENDS: [&str; 5] = ["<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"];

impl ToolParser {
    pub(super) fn step_channel(&mut self, head: &'static HeadShape, out: &mut Vec<ToolEvent>) -> bool {
        const END: &str = "<|message|>";
        const BEGINNINGS: [&str; 3] = ["<|channel|>", "<|start|>", " to="];
        let begins = |header: &str| header.starts_with(&self.buffer) || self.buffer.starts_with(header);
        if self.block.is_empty() && !BEGINNINGS.into_iter().any(begins) {
            self.state = State::Text;
            return true;
        }
        // A header that comes in pieces is given up before its end, if that is too far away.
        let end = self.buffer.find(END);
        let Some(at) = end.filter(|at| at + END.len() <= LONGEST_HEAD + 1) else {
            let too_long = end.is_some() || self.buffer.len() > LONGEST_HEAD;
            return if too_long { self.give_up_with_buffer(out) } else { false };
        };
        let rest = self.buffer.split_off(at + END.len());
        let mut header = std::mem::replace(&mut self.buffer, rest);
        header.truncate(at);
        let is_thought = header.contains("analysis");
        self.has_messages = true;
        // A message to somebody who is no tool of the request is text.
        self.state = match head.name(&header).filter(|name| self.schemas.contains_key(name)) {
            Some(name) => {
                self.begin(name, out);
                State::Arguments(head, ValueEnd::default())
            }
            None => State::Message(if is_thought { Message::Thought } else { Message::Text }),
        };
        self.block.clear();
        true
    }

    pub(super) fn step_message(&mut self, message: Message, out: &mut Vec<ToolEvent>) -> bool {
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
