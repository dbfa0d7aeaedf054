//! Thinking in answers: which tokens of an answer are the model's thinking, and where it has to end (RC-23).
//! Sampling, batches and requests are not known here.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::tokenizer::Tokenizer;
use super::vocabulary::Vocabulary;

/// The pairs in use, each one token of its vocabulary: DeepSeek, Qwen, GLM, SmolLM, … ; Mistral; Seed; Cohere; Gemma 4.
const SPELLINGS: [(&str, &str); 5] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    (CHANNEL, "<channel|>"),
];

/// Gemma's opening tag, and the name of its channel behind it, which is no part of a thought.
const CHANNEL: &str = "<|channel>";
const CHANNEL_NAME: &str = "thought\n";

/// The tokens between which a model thinks aloud.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThinkingTags {
    open: u32,
    close: u32,
    /// The tokens that end thoughts which are cut short, as models end them: a line break, the tag, an empty line.
    ending: Arc<[u32]>,
    /// Whether the name of a channel is behind the opening tag.
    is_named: bool,
}

impl ThinkingTags {
    /// The tags of this vocabulary, if its models think.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        SPELLINGS.iter().find_map(|(tag, close)| {
            let (open, id) = (tokenizer.id(tag)?, tokenizer.id(close)?);
            let ending = tokenizer.encode_rendered(&format!("\n{close}\n\n")).ok()?;
            // If the tag would be spelled in several tokens, none of them is the tag.
            let is_named = *tag == CHANNEL;
            ending.contains(&id).then(|| Self { open, close: id, ending: ending.into(), is_named })
        })
    }

    /// The text behind the opening tag that is no part of a thought.
    pub fn name(&self) -> &'static str {
        if self.is_named { CHANNEL_NAME } else { "" }
    }
}

/// The plan of thinking for one answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThinkingPlan {
    /// The model's tags.
    pub tags: ThinkingTags,
    /// The most tokens of thought, the tags not counted; `None` is no limit.
    pub budget: Option<u32>,
}

/// The limit of thoughts that are told apart in the text: in channels (gpt-oss), where a model may begin one in front
/// of each message, or spelled out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelPlan {
    /// The tokens that end a thought. In channels they begin a message whose channel is not named yet.
    pub ending: Arc<[u32]>,
    /// Whether the name of a channel comes next.
    pub is_named: bool,
    /// The most tokens of thought, all messages together.
    pub budget: u32,
}

/// Follows one answer: what each token is, and which one has to come next when the budget is used up.
#[derive(Debug)]
pub struct Thoughts {
    plan: ThinkingPlan,
    phase: Phase,
    /// Tokens of thought so far.
    thought: u32,
    /// Whether the prompt ends with thoughts that are over: the model is to answer at once.
    closed: bool,
}

/// The kind of token that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextPart {
    /// One that is chosen already, or one of a thought.
    NoAnswer,
    /// One of the answer, or the tag that opens the thoughts, where they may begin.
    Answer {
        /// That tag.
        opening: Option<u32>,
    },
}

/// The part of an answer that a token belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    /// The model thinks.
    Thought,
    /// A tag, or the white space around it, which is not shown.
    Tag,
    /// The model answers.
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Only white space was generated so far.
    Before,
    Thinking,
    /// The number of tokens of the forced ending given so far.
    Ending(usize),
    /// A tag from here on is text.
    Answering,
}

impl Thoughts {
    /// The state for the answer to `prompt`. Templates of models that always think end their prompts with the opening
    /// tag.
    pub fn new(plan: ThinkingPlan, prompt: &[u32], vocabulary: &Vocabulary) -> Self {
        let open = prompt.iter().rposition(|token| *token == plan.tags.open);
        let begun = open.is_some_and(|at| prompt[at + 1..].iter().all(|token| is_blank(*token, vocabulary)));
        // A prompt that also contains the closing tag makes the model answer without thinking.
        let phase = if begun { Phase::Thinking } else { Phase::Before };
        let close = prompt.iter().rposition(|token| *token == plan.tags.close);
        let closed = close.is_some_and(|at| prompt[at + 1..].iter().all(|token| is_blank(*token, vocabulary)));
        Self { plan, phase, thought: 0, closed }
    }

    /// The kind of token that comes next.
    pub fn next(&self) -> NextPart {
        match self.phase {
            Phase::Thinking | Phase::Ending(_) => NextPart::NoAnswer,
            Phase::Before if !self.closed && self.plan.budget != Some(0) => {
                NextPart::Answer { opening: Some(self.plan.tags.open) }
            }
            Phase::Before | Phase::Answering => NextPart::Answer { opening: None },
        }
    }

    /// The token that comes next whatever the model would say, when there is one.
    pub fn forced(&self) -> Option<u32> {
        match self.phase {
            Phase::Ending(given) => self.plan.tags.ending.get(given).copied(),
            Phase::Thinking if self.is_used_up() => self.plan.tags.ending.first().copied(),
            Phase::Before | Phase::Thinking | Phase::Answering => None,
        }
    }

    /// Takes the next token in: the forced one where there is one, else the model's.
    pub fn push(&mut self, token: u32, vocabulary: &Vocabulary) -> AnswerPart {
        let tags = &self.plan.tags;
        let (part, phase) = match self.phase {
            Phase::Before if token == tags.open => (AnswerPart::Tag, Phase::Thinking),
            Phase::Before if is_blank(token, vocabulary) => (AnswerPart::Answer, Phase::Before),
            Phase::Before | Phase::Answering => (AnswerPart::Answer, Phase::Answering),
            Phase::Thinking if self.is_used_up() => (AnswerPart::Tag, self.ended(1)),
            Phase::Thinking if token == tags.close => (AnswerPart::Tag, Phase::Answering),
            Phase::Thinking => {
                self.thought += 1;
                (AnswerPart::Thought, Phase::Thinking)
            }
            Phase::Ending(given) => (AnswerPart::Tag, self.ended(given + 1)),
        };
        self.phase = phase;
        part
    }

    /// Tokens of thought so far, the tags not counted.
    pub fn count(&self) -> usize {
        self.thought as usize
    }

    fn is_used_up(&self) -> bool {
        self.plan.budget.is_some_and(|budget| self.thought >= budget)
    }

    fn ended(&self, given: usize) -> Phase {
        if given < self.plan.tags.ending.len() { Phase::Ending(given) } else { Phase::Answering }
    }
}

/// A prompt for an answer that has begun already. An opening tag at its end is closed: answers follow thoughts.
pub(super) fn answer_begun(prompt: &str) -> String {
    let end = prompt.trim_end();
    match SPELLINGS.iter().find(|(open, _)| end.ends_with(open)) {
        Some((_, close)) => format!("{end}\n\n{close}\n\n"),
        None => prompt.to_owned(),
    }
}

/// Whether a chat template's model spells its thoughts out, between tags that may be no tokens.
pub fn spells_thoughts(template: &str) -> bool {
    template.contains("<think>") && template.contains("</think>")
}

/// The text that ends a thought which is spelled out.
pub const SPELLED_ENDING: &str = "\n</think>\n\n";

/// Whether a token is not shown.
fn is_blank(token: u32, vocabulary: &Vocabulary) -> bool {
    vocabulary.bytes(token).iter().all(u8::is_ascii_whitespace)
}

/// A text that comes in pieces, without the white space around it.
#[derive(Debug, Default)]
pub struct Trimmed {
    begun: bool,
    held: String,
    /// A text that is left out where the whole begins with it.
    name: &'static str,
}

impl Trimmed {
    /// Leaves out this text too, where it comes first.
    pub fn without(name: &'static str) -> Self {
        Self { name, ..Self::default() }
    }

    /// The text that is certainly inside after one more piece.
    pub fn push(&mut self, piece: &str) -> String {
        if self.name.is_empty() {
            return self.trim(piece);
        }
        let text = std::mem::take(&mut self.held) + piece;
        if self.name.starts_with(&text) && text.len() < self.name.len() {
            self.held = text;
            return String::new();
        }
        let name = std::mem::take(&mut self.name);
        self.trim(text.strip_prefix(name).unwrap_or(&text))
    }

    fn trim(&mut self, piece: &str) -> String {
        let piece = if self.begun { piece } else { piece.trim_start() };
        let end = piece.trim_end().len();
        if end == 0 {
            self.held.push_str(piece);
            return String::new();
        }
        self.begun = true;
        let text = std::mem::take(&mut self.held) + &piece[..end];
        piece[end..].clone_into(&mut self.held);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::fixture;

    /// Tokens of a text in which `{` and `}` are the tags.
    fn tokens(text: &str) -> Vec<u32> {
        let token = |byte| match byte {
            b'{' => 260,
            b'}' => 261,
            byte => u32::from(byte),
        };
        text.bytes().map(token).collect()
    }

    /// An answer that the model would give, split into thoughts and text, with forced tokens put in.
    fn follow(prompt: &str, budget: Option<u32>, says: &str) -> (String, String) {
        let tokenizer = fixture::byte_level();
        let tags = ThinkingTags::of(&tokenizer).unwrap();
        let vocabulary = tokenizer.vocabulary().unwrap();
        let mut thoughts = Thoughts::new(ThinkingPlan { tags, budget }, &tokens(prompt), &vocabulary);
        let (mut thought, mut answer) = (String::new(), String::new());
        let mut says = tokens(says).into_iter();
        while let Some(token) = thoughts.forced().or_else(|| says.next()) {
            let text = char::from(u8::try_from(token).unwrap_or(b'#'));
            match thoughts.push(token, &vocabulary) {
                AnswerPart::Thought => thought.push(text),
                AnswerPart::Answer => answer.push(text),
                AnswerPart::Tag => {}
            }
        }
        assert_eq!(thoughts.count(), thought.len());
        (thought, answer)
    }

    #[test]
    fn rc_23_thoughts_and_answer_are_told_apart_wherever_the_thinking_begins() {
        let of = |thought: &str, answer: &str| (thought.to_owned(), answer.to_owned());
        assert_eq!(follow("hi", None, "{hm}yes"), of("hm", "yes"));
        assert_eq!(follow("hi", None, "\n{hm}yes"), of("hm", "\nyes"));
        assert_eq!(follow("hi{\n", None, "hm}yes"), of("hm", "yes"), "the template began it");
        assert_eq!(follow("hi{\n\n}\n\n", None, "yes"), of("", "yes"), "the template ended it");
        assert_eq!(follow("{ask} me", None, "yes {no}"), of("", "yes #no#"), "a tag inside an answer is text");
        assert_eq!(follow("hi", None, "{a}b{c}"), of("a", "b#c#"));
        assert_eq!(follow("hi", None, "{never"), of("never", ""));
    }

    #[test]
    fn rc_23_a_budget_ends_the_thoughts_and_nothing_else() {
        let of = |thought: &str, answer: &str| (thought.to_owned(), answer.to_owned());
        assert_eq!(follow("hi", Some(3), "{abcdef"), of("abc", "def"));
        assert_eq!(follow("hi{", Some(0), "yes"), of("", "yes"));
        assert_eq!(follow("hi", Some(0), "{yes"), of("", "yes"));
        assert_eq!(follow("hi", Some(3), "{ab}c"), of("ab", "c"), "not used up");
        assert_eq!(follow("hi", Some(2), "no thoughts"), of("", "no thoughts"));
    }

    #[test]
    fn white_space_around_a_text_in_pieces_is_left_out() {
        let mut trimmed = Trimmed::default();
        let pieces: Vec<String> = [" ", "\n a", " ", "b ", "\n", "\n"].map(|piece| trimmed.push(piece)).into();
        assert_eq!(pieces, ["", "a", "", " b", "", ""]);
    }

    #[test]
    fn rc_23_the_name_of_a_channel_is_no_part_of_a_thought() {
        for (text, shown) in [("thought\nhm", "hm"), ("thoughts, hm", "thoughts, hm"), ("hm", "hm"), ("thought", "")] {
            for cut in 0..=text.len() {
                let mut trimmed = Trimmed::without(CHANNEL_NAME);
                let said = trimmed.push(&text[..cut]) + &trimmed.push(&text[cut..]);
                assert_eq!(said, shown, "{text} cut at {cut}");
            }
        }
    }

    #[test]
    fn rc_23_an_answer_that_has_begun_is_behind_the_thoughts() {
        assert_eq!(answer_begun("<|im_start|>assistant\n<think>\n"), "<|im_start|>assistant\n<think>\n\n</think>\n\n");
        assert_eq!(answer_begun("[INST]hi[/INST]"), "[INST]hi[/INST]");
        assert_eq!(answer_begun("<think>\n\n</think>\n\n"), "<think>\n\n</think>\n\n");
    }

    #[test]
    fn a_vocabulary_without_the_tags_does_not_think() {
        assert_eq!(ThinkingTags::of(&fixture::sentence_piece()), None);
    }
}
