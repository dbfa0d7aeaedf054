//! Grammars of answers with calls: free text up to a call, and from its mark on a call of a known tool with valid
//! arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::format::ToolFormat;
use super::head::HeadShape;
use super::markers::ToolMarkers;
use super::notation_rules::NotationRules;
use super::parser::ToolParser;
use super::rules::{RuleWriter, options_in};
use super::shape::{Around, CallFormat, CallShape, ObjectShape, Spellings};
use super::values::{Kinds, Spelling, kinds, read_as};
use super::xml_call::Tags;
use crate::constraint::{Grammar, TextSet, literal};

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
    /// The schema of an answer without calls, where the request demands one.
    pub answer: Option<String>,
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

/// Any text.
const ANY: &str = "/(?s:.*)/";

impl ToolPlan {
    /// The parser of an answer.
    pub fn parser(&self) -> ToolParser {
        let schemas: BTreeMap<_, _> =
            self.tools.iter().map(|tool| (tool.name.clone(), tool.parameters.clone())).collect();
        ToolParser::new(self.format, Arc::new(schemas))
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
        let start = match &self.answer {
            Some(schema) if is_free => {
                let schema = options_in(schema_of(schema), &json!({ "whitespace_flexible": false }));
                let _ = writeln!(writer.rules.text, "answer: %json {schema}");
                format!("answer | {}", writer.forced("", several))
            }
            _ if is_free => writer.lazy(several),
            _ => writer.forced("", several),
        };
        Ok(Grammar::Calls(format!("start: {start}\n{}", writer.rules.text)))
    }
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
            let _ = writeln!(self.rules.text, "TEXT: /[^{{\\s](?s:.*)/");
            return format!("(TEXT)? | {}", self.forced("", false));
        };
        if let CallShape::Head(HeadShape { in_channels: true, .. }) = self.format.call {
            return self.channels();
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
    fn channels(&mut self) -> String {
        let mark = |text: &str| self.rules.spelled(text);
        let (channel, message, end, start) =
            (mark("<|channel|>"), mark("<|message|>"), mark("<|end|>"), mark("<|start|>"));
        let _ = writeln!(self.rules.text, "TEXT: /(?s:.+)/");
        // Text cannot spell a special token, but it would any other mark.
        let text = match self.rules.markers.id("<|end|>") {
            Some(_) => format!("TEXT? {end}"),
            None => {
                let _ = writeln!(self.rules.text, "message[suffix={end}]: {ANY}");
                "message".to_owned()
            }
        };
        let _ = writeln!(
            self.rules.text,
            "before: {channel} (\"analysis\" | \"commentary\") {message} {text} {start} \"assistant\""
        );
        let _ = writeln!(self.rules.text, "last: {channel} \"final\" {message} TEXT?");
        format!("before* (last | {})", self.forced("", false))
    }

    /// One call of a tool, inside of the marks around it.
    fn call(&mut self, number: usize, tool: &Tool) -> Result<String, String> {
        if tool.name.is_empty() {
            return Err("its name is empty".to_owned());
        }
        let Value::Object(_) = &tool.parameters else { return Err("its parameters are no JSON schema".to_owned()) };
        match &self.format.call {
            CallShape::Tags(tags) => self.tagged(number, tool, tags),
            CallShape::Notation(notation) => {
                let parameters = object_schema(&tool.parameters);
                let root = Value::Object(parameters.clone());
                let spelling = Spelling { root: &root, strict: tool.strict };
                NotationRules { writer: &mut self.rules, notation, spelling, named: BTreeMap::new() }
                    .call(&tool.name, &parameters)
            }
            CallShape::Head(head) => {
                let arguments = self.arguments(number, tool);
                let way = |(before, behind): &(&str, Spellings)| {
                    let name = self.rules.spelled(&[before, tool.name.as_str()].concat());
                    let counter = if head.is_numbered { r#"":" /[0-9]{1,4}/"# } else { "" };
                    format!("({name} {counter} {})", self.one_of(behind))
                };
                let ways: Vec<String> = head.ways.iter().map(way).collect();
                Ok(format!("({}) {arguments} {}", ways.join(" | "), self.rules.spelled(head.close)))
            }
            CallShape::Object(shape) => {
                let arguments = self.arguments(number, tool);
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
    fn arguments(&mut self, number: usize, tool: &Tool) -> String {
        let schema = self.rules.in_json(object_schema(&tool.parameters), tool.strict);
        let _ = writeln!(self.rules.text, "arguments_{number}: %json {schema}");
        format!("arguments_{number}")
    }

    /// A call with its parameters between tags, in the order of the schema.
    fn tagged(&mut self, number: usize, tool: &Tool, tags: &Tags) -> Result<String, String> {
        let parameters = object_schema(&tool.parameters);
        let root = Value::Object(parameters.clone());
        let spelling = Spelling { root: &root, strict: tool.strict };
        spelling.check_arguments(&parameters)?;
        let required: Vec<&str> = parameters
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let empty = Map::new();
        let properties = parameters.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let mut all = Vec::new();
        for (index, (key, schema)) in properties.iter().enumerate() {
            let is_required = required.contains(&key.as_str());
            let value =
                self.tagged_value(schema, &spelling, tags).map_err(|why| format!("the parameter '{key}': {why}"))?;
            let is_readable = key.trim() == key && !key.contains(tags.key.1);
            match value.filter(|_| is_readable) {
                Some(value) => {
                    let rule = format!("parameter_{number}_{index}");
                    let _ = writeln!(self.rules.text, "{rule}: {} {value}", literal(&tags.key_and_open(key)));
                    all.push(if is_required { rule } else { format!("{rule}?") });
                }
                None if is_required => return Err(format!("the parameter '{key}' has no value between tags")),
                None => {}
            }
        }
        if let Some(missing) = required.iter().find(|key| !properties.contains_key(**key)) {
            return Err(format!("'required' names '{missing}', which is not in 'properties'"));
        }
        let head = [&tool.name, tags.head_end, tags.behind_head].concat();
        Ok(format!("{} {} {}", literal(&head), all.join(" "), self.rules.spelled(tags.end())))
    }

    /// A value and what ends it; `None` where the schema allows none.
    ///
    /// A text is spelled without quotes. It and the words and numbers that may come in its place are one terminal with
    /// the tag behind them, since the lexer cannot know before the tag which of them it reads.
    fn tagged_value(&mut self, schema: &Value, spelling: &Spelling<'_>, tags: &Tags) -> Result<Option<String>, String> {
        let number = self.rules.next();
        let end = tags.value_end();
        let all = kinds(schema, spelling.root);
        let mut ways = Vec::new();
        let mut in_json = all;
        if all.has(Kinds::TEXT) {
            let mut texts = vec![spelling.of(schema, Kinds::TEXT)?, TextSet::but(TextSet::with(tags.value.1))];
            let others = [Kinds::NUMBER, Kinds::BOOLEAN, Kinds::NULL, Kinds::OBJECT, Kinds::ARRAY];
            let others = others.into_iter().filter(|kind| all.has(*kind));
            texts.extend(others.filter_map(read_as).map(TextSet::but));
            if tags.is_trimmed && tags.padding.is_empty() {
                // A reader drops line feeds at both ends.
                texts.push(TextSet::Expression(r"([^\n]((?s:.*)[^\n])?)?".to_owned()));
            }
            let words = spelling.of(schema, all.and(Kinds::WORDS))?;
            let whole = TextSet::Any([TextSet::All(texts), words].into_iter().filter(|set| !set.is_empty()).collect());
            if !whole.is_empty() {
                let _ = writeln!(self.rules.text, "VALUE_{number}: {} {}", whole.terminal(), literal(&end));
                ways.push(format!("VALUE_{number}"));
            }
            in_json = all.without(Kinds::TEXT).without(Kinds::WORDS);
        }
        if in_json != Kinds::NONE {
            let schema = in_json.only(schema);
            // Some templates write these as Python does.
            let is_python = tags.has_python_words && !all.has(Kinds::TEXT);
            let words = if is_python { python_words(&schema) } else { Vec::new() };
            let words: String = words.iter().map(|word| format!(" | {}", literal(word))).collect();
            ways.push(format!("({}{words}) {}", self.rules.json_value(schema, spelling), literal(&end)));
        }
        Ok((!ways.is_empty()).then(|| format!("({})", ways.join(" | "))))
    }
}

fn schema_of(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

/// Python's words for the values of JSON that a schema allows and that Python spells in its own way.
fn python_words(schema: &Map<String, Value>) -> Vec<&'static str> {
    if schema.contains_key("enum") || schema.contains_key("const") {
        return Vec::new();
    }
    let branches = ["anyOf", "oneOf"].into_iter().filter_map(|name| schema.get(name)?.as_array()).flatten();
    let mut words: Vec<&str> = branches.filter_map(Value::as_object).flat_map(python_words).collect();
    let kinds = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().collect(),
        kind => Vec::from_iter(kind),
    };
    for kind in kinds.into_iter().filter_map(Value::as_str) {
        match kind {
            "boolean" => words.extend(["True", "False"]),
            "null" => words.push("None"),
            _ => {}
        }
    }
    words
}

/// The schema of arguments, which are an object whatever it says.
fn object_schema(schema: &Value) -> Map<String, Value> {
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    if !schema.contains_key("properties") && schema.keys().all(|key| key == "type") {
        schema.insert("properties".to_owned(), json!({}));
        schema.insert("additionalProperties".to_owned(), json!(false));
    }
    schema.insert("type".to_owned(), json!("object"));
    let mut whole = Value::Object(schema);
    if !joins_schemas(&whole) {
        close(&mut whole);
    }
    match whole {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

/// Closes objects to fields that no schema names, where nothing is said about them: a tool has no use for them, and a
/// small model goes on inventing them. Clients leave `additionalProperties` out, and Ollama's drop it.
fn close(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    let is_joined = schema.contains_key("anyOf") || schema.contains_key("oneOf");
    if schema.contains_key("properties") && !schema.contains_key("patternProperties") && !is_joined {
        schema.entry("additionalProperties").or_insert(json!(false));
    }
    for name in ["properties", "$defs", "definitions"] {
        schema.get_mut(name).and_then(Value::as_object_mut).into_iter().flatten().for_each(|(_, inside)| close(inside));
    }
    for name in ["prefixItems", "anyOf", "oneOf"] {
        if !(is_joined && schema.contains_key("properties")) {
            schema.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten().for_each(close);
        }
    }
    schema.get_mut("items").into_iter().for_each(close);
}

/// Whether schemas are joined anywhere: each may have fields that another one does not name.
fn joins_schemas(schema: &Value) -> bool {
    const JOINS: [&str; 5] = ["allOf", "if", "dependentSchemas", "unevaluatedProperties", "$dynamicRef"];
    match schema {
        Value::Object(fields) => {
            JOINS.iter().any(|name| fields.contains_key(*name))
                || (fields.contains_key("$ref") && fields.contains_key("properties"))
                || fields.values().any(joins_schemas)
        }
        Value::Array(values) => values.iter().any(joins_schemas),
        _ => false,
    }
}
