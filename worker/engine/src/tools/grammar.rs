//! Grammars of answers with calls: free text up to a call, and from its mark on a call of a known tool with valid
//! arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::format::ToolFormat;
use super::head::HeadShape;
use super::markers::ToolMarkers;
use super::narrow::{make_plain, narrowed};
use super::notation_rules::{MOST_MERGES, NotationRules};
use super::parser::ToolParser;
use super::rules::{RuleWriter, options_in};
use super::schemas::{object_schema, schema_of};
use super::shape::{Around, CallFormat, CallShape, ObjectShape, Spellings};
use super::values::Spelling;
use crate::constraint::{Grammar, endless, literal, normalised};

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The schema of its arguments, an object.
    pub parameters: Value,
    /// Whether a keyword of the schema that cannot be held to is a fault. Otherwise it is left out.
    pub strict: bool,
}

/// Whether an answer must call a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// It may.
    Auto,
    /// It must call some tool.
    Required,
    /// It must call this tool.
    Named(String),
}

/// The tools of one request, and their use.
#[derive(Clone, Debug)]
pub struct ToolPlan {
    /// The format of the model's calls.
    pub format: ToolFormat,
    /// The tools.
    pub tools: Vec<Tool>,
    /// Whether one must be called.
    pub choice: ToolChoice,
    /// Whether an answer may have several calls.
    pub parallel: bool,
    /// The form of an answer without calls, where the request demands one: a JSON schema, lenient or not.
    pub answer: Option<Grammar>,
    /// Whether the model may spell thoughts out in front of the answer.
    pub spells_thoughts: bool,
}

/// The tools cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ToolGrammarError {
    /// The number of the tool at fault.
    pub tool: usize,
    /// The fault.
    pub message: String,
}

/// The text of a last message without a form.
const FREE_TEXT: &str = "TEXT?";

/// Any text.
const ANY: &str = "/(?s:.*)/";

/// A thought that a model may spell out, and the rules of its parts.
const SPELLED_THOUGHT: &str = r#"("<think>" thought BLANK? ("<response>" BLANK?)?)?"#;
const THOUGHT_RULES: &str = "thought[suffix=\"</think>\"]: /(?s:.*)/\nBLANK: /[ \\n]{1,4}/\n";

impl ToolPlan {
    /// The parser of an answer.
    pub fn parser(&self) -> ToolParser {
        let schemas: BTreeMap<_, _> =
            self.tools.iter().map(|tool| (tool.name.clone(), tool.parameters.clone())).collect();
        let parser = ToolParser::new(self.format, Arc::new(schemas));
        if self.choice == ToolChoice::Auto { parser } else { parser.of_calls_only() }
    }

    /// The grammar of an answer.
    pub fn grammar(&self, markers: &ToolMarkers) -> Result<Grammar, ToolGrammarError> {
        let format = self.format.row();
        let rules = RuleWriter { markers, is_spaced: format.is_spaced, text: String::new(), count: 0 };
        let mut writer = CallWriter { rules, format };
        let several = self.parallel && self.format.may_call_several();
        let tools = self.tools.iter().enumerate().filter(|(_, tool)| match &self.choice {
            ToolChoice::Named(name) => tool.name == *name,
            ToolChoice::Auto | ToolChoice::Required => true,
        });
        let mut calls = Vec::new();
        for (number, tool) in tools {
            let call = writer.call(number, tool).map_err(|message| ToolGrammarError { tool: number, message })?;
            let _ = writeln!(writer.rules.text, "call_{number}: {call}");
            calls.push(format!("call_{number}"));
        }
        let _ = writeln!(writer.rules.text, "call: {}", calls.join(" | "));
        let is_free = self.choice == ToolChoice::Auto;
        if let Some(Grammar::JsonSchema(schema) | Grammar::LenientJsonSchema(schema)) = &self.answer
            && is_free
        {
            let lenient = matches!(self.answer, Some(Grammar::LenientJsonSchema(_)));
            let options = json!({ "whitespace_flexible": false, "lenient": lenient, "coerce_one_of": lenient });
            let schema = options_in(schema_of(schema), &options);
            let _ = writeln!(writer.rules.text, "answer: %json {schema}");
        }
        let has_channels = self.format.has_channels();
        let start = match &self.answer {
            Some(_) if is_free && has_channels => writer.channels(&[ChannelEnd::Message("answer"), ChannelEnd::Call]),
            Some(_) if is_free => format!("answer | {}", writer.forced("", several)),
            None if is_free => writer.lazy(several),
            _ if has_channels => writer.channels(&[ChannelEnd::Call]),
            _ => writer.forced("", several),
        };
        // Free text may be a thought as it is.
        let is_bound = !is_free || self.answer.is_some();
        if self.spells_thoughts && is_bound && !has_channels {
            let text = format!("start: {SPELLED_THOUGHT} ({start})\n{THOUGHT_RULES}{}", writer.rules.text);
            return Ok(Grammar::Calls(text));
        }
        Ok(Grammar::Calls(format!("start: {start}\n{}", writer.rules.text)))
    }
}

impl Tool {
    /// The form of its arguments alone.
    pub fn arguments(&self) -> Grammar {
        // The compiler names the fault of a schema that has no other spelling.
        let schema = self.schema().unwrap_or_else(|_| object_schema(&self.parameters));
        let schema = Value::Object(schema).to_string();
        if self.strict { Grammar::JsonSchema(schema) } else { Grammar::LenientJsonSchema(schema) }
    }

    /// The schema that its arguments are held to.
    pub(super) fn schema(&self) -> Result<Map<String, Value>, String> {
        let mut parameters = self.parameters.clone();
        if !self.strict {
            make_plain(&mut parameters);
        }
        let schema = normalised(object_schema(&parameters))?;
        Ok(if self.strict { schema } else { narrowed(schema) })
    }
}

impl ToolFormat {
    /// The form of an answer without tools. Where answers are messages in channels, it binds the last message.
    pub fn answer_in(self, form: Grammar, markers: &ToolMarkers) -> Grammar {
        if !self.has_channels() {
            return form;
        }
        let rules = RuleWriter { markers, is_spaced: false, text: String::new(), count: 0 };
        let mut writer = CallWriter { rules, format: self.row() };
        let start = writer.channels(&[ChannelEnd::Message("@answer")]);
        Grammar::Around { text: format!("start: {start}\n{}", writer.rules.text), answer: Box::new(form) }
    }
}

/// The form of an answer that keeps to a schema as far as grammars know its keywords, as arguments of tools do.
pub fn lenient_form(schema: Map<String, Value>) -> Grammar {
    let mut plain = Value::Object(schema);
    make_plain(&mut plain);
    let Value::Object(plain) = plain else { return Grammar::json_object() };
    // The compiler names the fault of a schema that has no other spelling.
    let schema = normalised(plain.clone()).map_or(plain, narrowed);
    Grammar::LenientJsonSchema(Value::Object(schema).to_string())
}

/// The form of an answer behind thoughts that a model may spell out.
pub fn behind_spelled_thoughts(form: Grammar) -> Grammar {
    let text = format!("start: {SPELLED_THOUGHT} @answer\n{THOUGHT_RULES}");
    Grammar::Around { text, answer: Box::new(form) }
}

/// The end of an answer in channels.
#[derive(Clone, Copy, Debug)]
enum ChannelEnd<'a> {
    /// A last message with this text.
    Message(&'a str),
    Call,
}

/// Writes the rules of all calls.
struct CallWriter<'a> {
    rules: RuleWriter<'a>,
    format: &'static CallFormat,
}

impl CallWriter<'_> {
    /// One of several spellings, behind a start that they all have and that was written already.
    fn behind(&self, start: &str, spellings: Spellings) -> String {
        let rests = spellings.iter().map(|text| text.strip_prefix(start).unwrap_or(text));
        let (empty, all): (Vec<&str>, Vec<&str>) = rests.partition(|text| text.is_empty());
        let all: Vec<String> = all.into_iter().map(|text| self.rules.spelled(text)).collect();
        match (&*all, empty.is_empty()) {
            ([], _) => String::new(),
            ([only], true) => only.clone(),
            (_, true) => format!("({})", all.join(" | ")),
            (_, false) => format!("({})?", all.join(" | ")),
        }
    }

    fn one_of(&self, spellings: Spellings) -> String {
        self.behind("", spellings)
    }

    /// Calls and nothing else, behind a start of them that was written already.
    fn forced(&self, start: &str, several: bool) -> String {
        let CallFormat { all: Around(all_open, all_close), each: Around(open, close), between, .. } = self.format;
        let has_list = all_open.iter().any(|text| !text.is_empty());
        let one = |open: &str| format!("{open} call {}", self.one_of(close));
        let first = one(&self.behind(if has_list { "" } else { start }, open));
        let calls =
            if several { format!("{first} ({} {})*", self.one_of(between), one(&self.one_of(open))) } else { first };
        format!("{} {calls} {}", self.behind(start, all_open), self.one_of(all_close))
    }

    /// Text, and calls behind it.
    fn lazy(&mut self, several: bool) -> String {
        let Some(first) = self.format.first else {
            // An answer that does not begin as a call is text.
            let _ = writeln!(self.rules.text, "TEXT: /[^\\{}\\s](?s:.*)/", self.format.begins());
            return format!("(TEXT)? | {}", self.forced("", several));
        };
        if let CallShape::Head(HeadShape { in_channels: true, .. }) = self.format.call {
            return self.channels(&[ChannelEnd::Message(FREE_TEXT), ChannelEnd::Call]);
        }
        // Calls of some formats have no list around them, and each may have text in front of it.
        let is_listed = self.format.all.0.iter().any(|text| text.contains(first));
        // No other text has a mark in it behind which a parser reads a call. Text cannot spell a special token.
        let marks: BTreeSet<&str> = self.format.open.iter().copied().chain([first]).collect();
        let spelled = marks.into_iter().filter(|mark| self.rules.markers.id(mark).is_none() && *mark != first);
        let others: Vec<String> = spelled.map(|mark| format!("~({ANY} {} {ANY})", literal(mark))).collect();
        let and_others = |text: &str| [&[text.to_owned()], &*others].concat().join(" & ");
        if self.rules.markers.id(first).is_some() {
            let _ = writeln!(self.rules.text, "TEXT: {}", and_others("/(?s:.+)/"));
            return match (is_listed, several) {
                (false, true) => format!("TEXT? (({}) TEXT?)*", self.forced("", false)),
                _ => format!("TEXT? ({})?", self.forced("", several)),
            };
        }
        // Free text ends where a mark ends.
        let without = format!("~({ANY} {} {ANY})", literal(first));
        let _ = writeln!(self.rules.text, "REST: {}", and_others(&format!("/(?s:.+)/ & {without}")));
        let _ = writeln!(self.rules.text, "BODY: {}", and_others(ANY));
        let _ = writeln!(self.rules.text, "free[suffix={}]: BODY", literal(first));
        // The mark itself is the end of the free text.
        let behind = self.forced(first, several && is_listed);
        if several && !is_listed { format!("(free {behind})* REST?") } else { format!("free {behind} | REST?") }
    }

    /// gpt-oss: any messages to the user, and then a call or the last message.
    fn channels(&mut self, endings: &[ChannelEnd<'_>]) -> String {
        let mark = |text: &str| self.rules.spelled(text);
        let (channel, message, end, start) =
            (mark("<|channel|>"), mark("<|message|>"), mark("<|end|>"), mark("<|start|>"));
        // Models say of a message that it is JSON.
        let kind = mark(" <|constrain|>json");
        let _ = writeln!(self.rules.text, "TEXT: /(?s:.+)/");
        // Text cannot spell a special token, but it would any other mark.
        let text = match self.rules.markers.id("<|end|>") {
            Some(_) => format!("TEXT? {end}"),
            None => {
                let _ = writeln!(self.rules.text, "message[suffix={end}]: {ANY}");
                "message".to_owned()
            }
        };
        // Where a form binds the answer, there is no other text for the user: the channel of thoughts alone.
        let is_free = endings.iter().all(|ending| matches!(ending, ChannelEnd::Call | ChannelEnd::Message(FREE_TEXT)));
        let names = if is_free { r#"("analysis" | "commentary")"# } else { r#""analysis""# };
        let _ = writeln!(self.rules.text, "before: {channel} {names} {message} {text} {start} \"assistant\"");
        let ways = endings.iter().map(|ending| match ending {
            ChannelEnd::Message(text) => format!("{channel} \"final\" ({kind})? {message} {text}"),
            ChannelEnd::Call => self.forced("", false),
        });
        format!("before* ({})", ways.collect::<Vec<_>>().join(" | "))
    }

    /// One call of a tool, inside of the marks around it.
    fn call(&mut self, number: usize, tool: &Tool) -> Result<String, String> {
        if tool.name.is_empty() {
            return Err("its name is empty".to_owned());
        }
        let Value::Object(parameters) = &tool.parameters else {
            return Err("its parameters are no JSON schema".to_owned());
        };
        if let Some(fault) = endless(parameters) {
            return Err(fault);
        }
        match &self.format.call {
            CallShape::Tags(tags) => self.rules.tagged(number, tool, tags),
            CallShape::Notation(notation) => {
                let parameters = tool.schema()?;
                let root = Value::Object(parameters.clone());
                let spelling = Spelling { root: &root, strict: tool.strict };
                NotationRules {
                    writer: &mut self.rules,
                    notation,
                    spelling,
                    named: BTreeMap::new(),
                    merges: MOST_MERGES,
                }
                .call(&tool.name, &parameters)
            }
            CallShape::Head(head) => {
                let arguments = self.arguments(number, tool)?;
                let way = |(before, behind): &(&str, Spellings)| {
                    let name = self.rules.spelled(&[before, tool.name.as_str()].concat());
                    let counter = match head.id {
                        Some((mark, id)) => format!("{} /{id}/", self.rules.spelled(mark)),
                        None if head.is_numbered => r#"":" /[0-9]{1,4}/"#.to_owned(),
                        None => String::new(),
                    };
                    format!("({name} {counter} {})", self.one_of(behind))
                };
                let ways: Vec<String> = head.ways.iter().map(way).collect();
                Ok(format!("({}) {arguments} {}", ways.join(" | "), self.rules.spelled(head.close)))
            }
            CallShape::Object(ObjectShape { open, close, is_keyed: true, .. }) => {
                let key = literal(&format!("{}: ", Value::from(tool.name.as_str())));
                let arguments = self.arguments(number, tool)?;
                Ok(format!("{} {key} {arguments} {}", self.one_of(open), self.one_of(close)))
            }
            CallShape::Object(shape) => {
                let arguments = self.arguments(number, tool)?;
                let ObjectShape { open, name, between, arguments: key, close, before, behind, .. } = shape;
                let quoted = Value::from(tool.name.as_str());
                let name = literal(&format!("\"{name}\": {quoted}"));
                let key = literal(&format!("\"{key}\": "));
                let part = |part: &str| if part.is_empty() { String::new() } else { format!("/{part}/") };
                let [open, between, close] = [open, between, close].map(|spellings| self.one_of(spellings));
                Ok(format!("{open} {} {name} {between} {key} {arguments} {} {close}", part(before), part(behind)))
            }
        }
    }

    /// The rule of a call's arguments in JSON.
    fn arguments(&mut self, number: usize, tool: &Tool) -> Result<String, String> {
        let schema = self.rules.in_json(tool.schema()?, tool.strict);
        let _ = writeln!(self.rules.text, "arguments_{number}: %json {schema}");
        Ok(format!("arguments_{number}"))
    }
}
