//! The parts of an answer: text, thinking and calls of tools.

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text for the reader.
    Text(String),
    /// Thinking, in formats that mark it as they mark calls.
    Thought(String),
    /// A call begins.
    Begin {
        /// Its number in the answer.
        index: usize,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments, which are JSON.
    Arguments {
        /// The call's number.
        index: usize,
        /// The next piece.
        piece: String,
    },
}

/// Neighbouring pieces of the same kind as one.
pub(super) fn joined(events: Vec<ToolEvent>) -> Vec<ToolEvent> {
    let mut all: Vec<ToolEvent> = Vec::with_capacity(events.len());
    for event in events {
        match (all.last_mut(), &event) {
            (Some(ToolEvent::Text(text)), ToolEvent::Text(more)) => text.push_str(more),
            (Some(ToolEvent::Thought(text)), ToolEvent::Thought(more)) => text.push_str(more),
            (Some(ToolEvent::Arguments { index, piece }), ToolEvent::Arguments { index: same, piece: more })
                if index == same =>
            {
                piece.push_str(more);
            }
            _ => all.push(event),
        }
    }
    all
}
