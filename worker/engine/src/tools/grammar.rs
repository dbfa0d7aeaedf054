//! Grammars of answers with calls: free text up to a call, and from its mark on a call of a known tool with valid
//! arguments.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::format::{ToolFormat, ToolMarkers};
use super::parser::ToolParser;
use super::values::{Kinds, Spelling, kinds, read_as};
use super::xml_call::{Tags, tags};
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
        let mut writer = CallWriter { markers, format: self.format, rules: String::new(), free: 0 };
        let several = self.parallel && self.format.may_call_several();
        let tools = self.tools.iter().enumerate().filter(|(_, tool)| match &self.choice {
            ToolChoice::Named(name) => tool.name == *name,
            ToolChoice::Auto | ToolChoice::Required => true,
        });
        let mut calls = Vec::new();
        for (number, tool) in tools {
            let call = writer.call(number, tool).map_err(|message| ToolGrammarError { tool: number, message })?;
            let _ = writeln!(writer.rules, "call_{number}: {call}");
            calls.push(format!("call_{number}"));
        }
        let _ = writeln!(writer.rules, "call: {}", calls.join(" | "));
        let is_free = self.choice == ToolChoice::Auto;
        let start = match &self.answer {
            Some(schema) if is_free => {
                let schema = options(schema_of(schema), &json!({ "whitespace_flexible": false }));
                let _ = writeln!(writer.rules, "answer: %json {schema}");
                format!("answer | {}", writer.forced(several))
            }
            _ if is_free => writer.lazy(several),
            _ => writer.forced(several),
        };
        Ok(Grammar::Lark(format!("start: {start}\n{}", writer.rules)))
    }
}

struct CallWriter<'a> {
    markers: &'a ToolMarkers,
    format: ToolFormat,
    rules: String,
    /// Numbers the rules of free texts.
    free: usize,
}

impl CallWriter<'_> {
    /// A mark: a special token where the vocabulary has it as one, else text.
    fn mark(&self, mark: &str) -> String {
        self.markers.id(mark).map_or_else(|| literal(mark), |id| format!("<[{id}]>"))
    }

    /// The marks around all calls of an answer, around each of them, and between two.
    fn frame(&self) -> CallFrame {
        let mark = |text: &str| self.mark(text);
        let (all, each, between) = match self.format {
            ToolFormat::Hermes | ToolFormat::Generic => (
                None,
                (mark("<tool_call>") + " \"\\n\"", format!("\"\\n\" {}", mark("</tool_call>"))),
                "\"\\n\"".to_owned(),
            ),
            ToolFormat::QwenCoder => {
                let open = format!("{} \"\\n\" {}", mark("<tool_call>"), mark("<function="));
                (None, (open, format!("\"\\n\" {}", mark("</tool_call>"))), "\"\\n\"".to_owned())
            }
            ToolFormat::Glm => (None, (mark("<tool_call>"), mark("</tool_call>")), "\"\\n\"".to_owned()),
            ToolFormat::Llama => (None, (format!("{}?", mark("<|python_tag|>")), String::new()), String::new()),
            ToolFormat::MistralList => {
                (Some((mark("[TOOL_CALLS]") + " \"[\"", "\"]\"".to_owned())), CallFrame::nothing(), "\", \"".to_owned())
            }
            ToolFormat::MistralNamed => (None, (mark("[TOOL_CALLS]"), String::new()), String::new()),
            ToolFormat::Phi => {
                let end = format!("\"]\" {}", mark("<|/tool_call|>"));
                (Some((mark("<|tool_call|>") + " \"[\"", end)), CallFrame::nothing(), "\", \"".to_owned())
            }
            ToolFormat::Granite => (
                Some((mark("<|tool_call|>") + " \"[\"", "\"]\"".to_owned())),
                CallFrame::nothing(),
                "\", \"".to_owned(),
            ),
            ToolFormat::Command => {
                // The templates give each call a line of its own.
                let open = mark("<|START_ACTION|>") + r#" "[" "\n    "?"#;
                let end = format!(r#""\n"? "]" {}"#, mark("<|END_ACTION|>"));
                (Some((open, end)), CallFrame::nothing(), r#"("," ("\n    " | " "))"#.to_owned())
            }
            ToolFormat::DeepSeekFenced | ToolFormat::DeepSeek => {
                let all = (mark("<｜tool▁calls▁begin｜>"), mark("<｜tool▁calls▁end｜>"));
                let is_fenced = self.format == ToolFormat::DeepSeekFenced;
                let between = if is_fenced { "\"\\n\"".to_owned() } else { String::new() };
                (Some(all), (mark("<｜tool▁call▁begin｜>"), mark("<｜tool▁call▁end｜>")), between)
            }
            ToolFormat::Harmony => (None, CallFrame::nothing(), String::new()),
        };
        CallFrame { all, each, between }
    }

    /// Calls and nothing else.
    fn forced(&self, several: bool) -> String {
        let CallFrame { all, each: (open, close), between } = self.frame();
        let one = format!("{open} call {close}");
        let calls = if several { format!("{one} ({between} {one})*") } else { one };
        match all {
            Some((open, close)) => format!("{open} {calls} {close}"),
            None => calls,
        }
    }

    /// Text, and calls behind it.
    fn lazy(&mut self, several: bool) -> String {
        let all = self.frame().all;
        match self.format {
            ToolFormat::Llama => {
                // An answer that does not begin as a call is text.
                let _ = writeln!(self.rules, "TEXT: /[^{{\\s](?s:.*)/");
                return format!("(TEXT)? | {}", self.forced(false));
            }
            ToolFormat::Harmony => return self.channels(),
            _ => {}
        }
        let mark = self.format.marks().open.first().copied().unwrap_or_default();
        let first = match self.format {
            ToolFormat::DeepSeek | ToolFormat::DeepSeekFenced => "<｜tool▁calls▁begin｜>",
            ToolFormat::QwenCoder => "<tool_call>",
            _ => mark,
        };
        if self.markers.id(first).is_some() {
            // Text cannot spell a special token.
            let _ = writeln!(self.rules, "TEXT: /(?s:.+)/");
            return match (all.is_some(), several) {
                (false, true) => format!("TEXT? (({}) TEXT?)*", self.forced(false)),
                _ => format!("TEXT? ({})?", self.forced(several)),
            };
        }
        // Free text ends where a mark ends, and no other text has one in it.
        let mut marks = vec![first];
        if self.format == ToolFormat::QwenCoder {
            marks.push("<function=");
        }
        let without: Vec<String> = marks.iter().map(|mark| format!("~({ANY} {} {ANY})", literal(mark))).collect();
        let _ = writeln!(self.rules, "REST: /(?s:.+)/ & {}", without.join(" & "));
        let others: Vec<String> = without.iter().skip(1).cloned().collect();
        let body = if others.is_empty() { ANY.to_owned() } else { format!("({ANY} & {})", others.join(" & ")) };
        let _ = writeln!(self.rules, "BODY: {body}");
        let _ = writeln!(self.rules, "free[suffix={}]: BODY", literal(first));
        let behind = self.forced(several && all.is_some());
        // The mark itself is the end of the free text.
        let behind = behind.strip_prefix(&self.mark(first)).unwrap_or(&behind).trim_start().to_owned();
        if several && all.is_none() { format!("(free {behind})* REST?") } else { format!("free {behind} | REST?") }
    }

    /// gpt-oss: any messages to the user, and then a call or the last message.
    fn channels(&mut self) -> String {
        let (channel, message, end, start) =
            (self.mark("<|channel|>"), self.mark("<|message|>"), self.mark("<|end|>"), self.mark("<|start|>"));
        let _ = writeln!(self.rules, "TEXT: /(?s:.+)/");
        // Text cannot spell a special token, but it would any other mark.
        let text = match self.markers.id("<|end|>") {
            Some(_) => format!("TEXT? {end}"),
            None => {
                let _ = writeln!(self.rules, "message[suffix={end}]: {ANY}");
                "message".to_owned()
            }
        };
        let _ = writeln!(
            self.rules,
            "before: {channel} (\"analysis\" | \"commentary\") {message} {text} {start} \"assistant\""
        );
        let _ = writeln!(self.rules, "last: {channel} \"final\" {message} TEXT?");
        format!("before* (last | {})", self.forced(false))
    }

    /// One call of a tool, inside of the marks around it.
    fn call(&mut self, number: usize, tool: &Tool) -> Result<String, String> {
        if tool.name.is_empty() {
            return Err("its name is empty".to_owned());
        }
        let Value::Object(_) = &tool.parameters else { return Err("its parameters are no JSON schema".to_owned()) };
        if let ToolFormat::QwenCoder | ToolFormat::Glm = self.format {
            return self.tagged(number, tool);
        }
        let options = json!({
            "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ", "lenient": !tool.strict,
            "coerce_one_of": !tool.strict,
        });
        let schema = self::options(object_schema(&tool.parameters), &options);
        let _ = writeln!(self.rules, "arguments_{number}: %json {schema}");
        let (name, arguments) = (&tool.name, format!("arguments_{number}"));
        let in_json = |text: &str| Value::String(text.to_owned()).to_string();
        let fields = |name_key: &str, arguments_key: &str| {
            let open = literal(&format!("\"{name_key}\": {}, \"{arguments_key}\": ", in_json(name)));
            format!("{open} {arguments}")
        };
        let object = |name_key: &str, arguments_key: &str| format!("\"{{\" {} \"}}\"", fields(name_key, arguments_key));
        Ok(match self.format {
            ToolFormat::Llama => object("name", "parameters"),
            // Models may number their calls.
            ToolFormat::Command => {
                let fields = fields("tool_name", "parameters");
                format!(r#""{{" (/"tool_call_id": "[0-9]{{1,3}}", /)? {fields} "}}""#)
            }
            // Models may give their calls identifiers.
            ToolFormat::MistralList => {
                let fields = fields("name", "arguments");
                format!(r#""{{" {fields} (/, "id": "[a-zA-Z0-9]{{9}}"/)? "}}""#)
            }
            ToolFormat::MistralNamed => format!("{} {} {arguments}", literal(name), self.mark("[ARGS]")),
            ToolFormat::DeepSeek => format!("{} {} {arguments}", literal(name), self.mark("<｜tool▁sep｜>")),
            ToolFormat::DeepSeekFenced => {
                let head = literal(&format!("{name}\n```json\n"));
                format!("\"function\" {} {head} {arguments} \"\\n```\"", self.mark("<｜tool▁sep｜>"))
            }
            ToolFormat::Harmony => {
                // The recipient comes before or behind the channel: the template writes the one, models both.
                let (channel, constrain, message) =
                    (self.mark("<|channel|>"), self.mark("<|constrain|>"), self.mark("<|message|>"));
                let before = format!("{} {channel} \"commentary\"", literal(&format!(" to=functions.{name}")));
                let behind = format!("{channel} {}", literal(&format!("commentary to=functions.{name}")));
                format!("({before} | {behind}) (\" \" {constrain}? \"json\")? {message} {arguments}")
            }
            _ => object("name", "arguments"),
        })
    }

    /// A call with its parameters between tags, in the order of the schema.
    fn tagged(&mut self, number: usize, tool: &Tool) -> Result<String, String> {
        let tags = tags(self.format);
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
                    let (open, before_value) = (format!("{}{key}{}", tags.key.0, tags.key.1), self.before_value());
                    let rule = format!("parameter_{number}_{index}");
                    let _ = writeln!(self.rules, "{rule}: {} {value}", literal(&(open + before_value)));
                    all.push(if is_required { rule } else { format!("{rule}?") });
                }
                None if is_required => return Err(format!("the parameter '{key}' has no value between tags")),
                None => {}
            }
        }
        if let Some(missing) = required.iter().find(|key| !properties.contains_key(**key)) {
            return Err(format!("'required' names '{missing}', which is not in 'properties'"));
        }
        let end = if self.format == ToolFormat::Glm { String::new() } else { literal(tags.end) };
        Ok(format!("{} {} {end}", literal(&format!("{}{}", tool.name, self.behind_name())), all.join(" ")))
    }

    fn behind_name(&self) -> &'static str {
        if self.format == ToolFormat::Glm { "\n" } else { ">\n" }
    }

    fn before_value(&self) -> &'static str {
        if self.format == ToolFormat::Glm { "\n<arg_value>" } else { "\n" }
    }

    /// A value and what ends it; `None` where the schema allows none.
    ///
    /// A text is spelled without quotes. It and the words and numbers that may come in its place are one terminal with
    /// the tag behind them, since the lexer cannot know before the tag which of them it reads.
    fn tagged_value(&mut self, schema: &Value, spelling: &Spelling<'_>, tags: &Tags) -> Result<Option<String>, String> {
        let number = self.free;
        self.free += 1;
        let (before_end, behind_end) = if self.format == ToolFormat::Glm { ("", "\n") } else { ("\n", "\n") };
        let end = format!("{before_end}{}{behind_end}", tags.value.1);
        let all = kinds(schema, spelling.root);
        let mut ways = Vec::new();
        let mut in_json = all;
        if all.has(Kinds::TEXT) {
            let mut texts = vec![spelling.of(schema, Kinds::TEXT)?, TextSet::but(TextSet::with(tags.value.1))];
            let others = [Kinds::NUMBER, Kinds::BOOLEAN, Kinds::NULL, Kinds::OBJECT, Kinds::ARRAY];
            let others = others.into_iter().filter(|kind| all.has(*kind));
            texts.extend(others.filter_map(read_as).map(TextSet::but));
            if self.format == ToolFormat::Glm {
                // A reader drops line feeds at both ends.
                texts.push(TextSet::Expression(r"([^\n]((?s:.*)[^\n])?)?".to_owned()));
            }
            let words = spelling.of(schema, all.and(Kinds::WORDS))?;
            let whole = TextSet::Any([TextSet::All(texts), words].into_iter().filter(|set| !set.is_empty()).collect());
            if !whole.is_empty() {
                let _ = writeln!(self.rules, "VALUE_{number}: {} {}", whole.terminal(), literal(&end));
                ways.push(format!("VALUE_{number}"));
            }
            in_json = all.without(Kinds::TEXT).without(Kinds::WORDS);
        }
        if in_json != Kinds::NONE {
            let mut schema = in_json.only(schema);
            for name in ["$defs", "definitions"] {
                if let Some(definitions) = spelling.root.get(name) {
                    schema.insert(name.to_owned(), definitions.clone());
                }
            }
            let options = json!({
                "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": ",
                "lenient": !spelling.strict, "coerce_one_of": !spelling.strict,
            });
            // Qwen3-Coder's template writes these as Python does.
            let is_python = self.format == ToolFormat::QwenCoder && !all.has(Kinds::TEXT);
            let words = if is_python { python_words(&schema) } else { Vec::new() };
            let schema = self::options(schema, &options);
            let _ = writeln!(self.rules, "value_{number}: %json {schema}");
            let words: String = words.iter().map(|word| format!(" | {}", literal(word))).collect();
            ways.push(format!("(value_{number}{words}) {}", literal(&end)));
        }
        Ok((!ways.is_empty()).then(|| format!("({})", ways.join(" | "))))
    }
}

struct CallFrame {
    all: Option<(String, String)>,
    each: (String, String),
    between: String,
}

impl CallFrame {
    fn nothing() -> (String, String) {
        (String::new(), String::new())
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

/// A schema with options of the library in it.
fn options(mut schema: Map<String, Value>, options: &Value) -> Value {
    schema.insert("x-guidance".to_owned(), options.clone());
    Value::Object(schema)
}
