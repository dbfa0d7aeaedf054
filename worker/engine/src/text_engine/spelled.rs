//! Thoughts that a model spells out between tags which are no tokens of its vocabulary, as Granite 3 does:
//! `<think>…</think>`, and maybe `<response>…</response>` around the answer. Knows text, no tokens.

use crate::text::Trimmed;
use crate::tools::ToolEvent;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";
const ANSWER_OPEN: &str = "<response>";
const ANSWER_CLOSE: &str = "</response>";

/// Tells thoughts from the answer in a text that comes in pieces.
#[derive(Debug, Default)]
pub(super) struct SpelledThoughts {
    phase: SpelledPhase,
    /// Text that may be the beginning of a tag.
    held: String,
    /// The thought, without the white space around it.
    thought: Trimmed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SpelledPhase {
    /// Only white space came so far, and maybe a part of the opening tag.
    #[default]
    Before,
    Thinking,
    /// Behind thoughts, in front of the answer.
    Between,
    /// In an answer between tags.
    Wrapped,
    /// A tag from here on is text.
    Answering,
}

impl SpelledThoughts {
    /// Whether a thought is being read.
    pub(super) fn is_in_thought(&self) -> bool {
        self.phase == SpelledPhase::Thinking
    }

    /// Takes more text in. Returns what is certain by now.
    pub(super) fn push(&mut self, piece: &str) -> Vec<ToolEvent> {
        self.held.push_str(piece);
        let mut parts = Vec::new();
        while let Some(next) = self.step(&mut parts) {
            self.phase = next;
        }
        parts
    }

    /// The text that was held back, when the answer ends.
    pub(super) fn finish(&mut self) -> Vec<ToolEvent> {
        let rest = std::mem::take(&mut self.held);
        let part = match self.phase {
            SpelledPhase::Thinking => ToolEvent::Thought(self.thought.push(&rest)),
            _ => ToolEvent::Text(rest),
        };
        vec![part]
    }

    /// Reads up to the next tag. Returns the phase behind it, if it came.
    fn step(&mut self, parts: &mut Vec<ToolEvent>) -> Option<SpelledPhase> {
        match self.phase {
            SpelledPhase::Before => self.opened(OPEN, SpelledPhase::Thinking),
            SpelledPhase::Between => {
                self.held = self.held.trim_start().to_owned();
                self.opened(ANSWER_OPEN, SpelledPhase::Wrapped)
            }
            SpelledPhase::Thinking => {
                let (text, came) = self.up_to(CLOSE);
                parts.push(ToolEvent::Thought(self.thought.push(&text)));
                came.then_some(SpelledPhase::Between)
            }
            SpelledPhase::Wrapped => {
                let (text, came) = self.up_to(ANSWER_CLOSE);
                parts.push(ToolEvent::Text(text));
                came.then_some(SpelledPhase::Answering)
            }
            SpelledPhase::Answering => {
                parts.push(ToolEvent::Text(std::mem::take(&mut self.held)));
                None
            }
        }
    }

    /// The phase behind an opening tag, or that of an answer without one; none as long as it may still come.
    fn opened(&mut self, tag: &str, behind: SpelledPhase) -> Option<SpelledPhase> {
        let text = self.held.trim_start();
        match text.strip_prefix(tag) {
            Some(rest) => {
                self.held = rest.to_owned();
                Some(behind)
            }
            None if tag.starts_with(text) => None,
            None => Some(SpelledPhase::Answering),
        }
    }

    /// The text up to a tag, or that is certainly before it, and whether the tag came.
    fn up_to(&mut self, tag: &str) -> (String, bool) {
        if let Some((before, behind)) = self.held.split_once(tag) {
            let (before, behind) = (before.to_owned(), behind.to_owned());
            self.held = behind;
            return (before, true);
        }
        let may_begin = |at: &usize| tag.starts_with(&self.held[*at..]);
        let at = self.held.char_indices().map(|(at, _)| at).find(may_begin).unwrap_or(self.held.len());
        let held = self.held.split_off(at);
        (std::mem::replace(&mut self.held, held), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thoughts and answer of a text that comes in pieces of this many characters.
    fn read(text: &str, size: usize) -> (String, String) {
        let mut thoughts = SpelledThoughts::default();
        let characters: Vec<char> = text.chars().collect();
        let mut parts: Vec<ToolEvent> =
            characters.chunks(size).flat_map(|piece| thoughts.push(&piece.iter().collect::<String>())).collect();
        parts.extend(thoughts.finish());
        let (mut thought, mut answer) = (String::new(), String::new());
        for part in parts {
            match part {
                ToolEvent::Thought(text) => thought += &text,
                ToolEvent::Text(text) => answer += &text,
                other => panic!("{other:?}"),
            }
        }
        (thought, answer)
    }

    #[test]
    fn rc_23_spelled_thoughts_are_told_apart_in_any_pieces() {
        for (text, thought, answer) in [
            ("<think>hm, ü <b></think><response>yes</response>", "hm, ü <b>", "yes"),
            ("\n <think>\nhm\n</think>\n\nyes < no", "hm", "yes < no"),
            ("<think>hm</think> <respond>", "hm", "<respond>"),
            ("yes <think>no</think>", "", "yes <think>no</think>"),
            (" yes", "", " yes"),
            ("<thin", "", "<thin"),
            ("<think>never </thin", "never </thin", ""),
            ("<think>hm</think><response>a</response> b", "hm", "a b"),
            ("<think></think>yes", "", "yes"),
            ("", "", ""),
        ] {
            for size in 1..=text.len().max(1) {
                assert_eq!(read(text, size), (thought.to_owned(), answer.to_owned()), "{text} by {size}");
            }
        }
    }
}
