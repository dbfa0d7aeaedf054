//! Calls whose arguments are no JSON, read parameter by parameter. Each parameter comes out as JSON when it has ended.

use std::collections::BTreeMap;

use serde_json::Value;

use super::holds::is_found;
use super::notation::{Notation, ValueScan};
use super::xml_call::{Tags, ValueSpelling};

/// Longer texts in front of arguments name no tool, and longer ones in front of a value no parameter.
pub(super) const LONGEST_HEAD: usize = 512;

/// Reads calls of one answer.
#[derive(Clone, Debug)]
pub(super) struct CallReader {
    spelling: CallSpelling,
    /// Whether a parameter of the call has been read.
    has_parameters: bool,
}

#[derive(Clone, Debug)]
enum CallSpelling {
    Tags { tags: &'static Tags, tool: String, key: Option<(String, ValueSpelling)> },
    Notation { notation: &'static Notation, is_listed: bool, key: Option<(String, ValueScan)> },
}

/// The text in front of arguments.
pub(super) enum HeadRead {
    /// It may go on.
    More,
    /// It names no tool.
    NoName,
    /// It names a tool, and arguments come behind this length.
    Name(String, usize),
    /// The list of calls ends at this length.
    Over(usize),
}

/// A step inside of arguments.
pub(super) enum ArgumentsRead {
    /// It takes more text.
    More,
    /// Some text was read: a piece of the arguments.
    Piece(String),
    /// The arguments end with this piece.
    End(String),
}

/// The end of arguments.
const CLOSE: &str = "}";

impl CallReader {
    pub(super) fn of_tags(tags: &'static Tags) -> Self {
        Self { spelling: CallSpelling::Tags { tags, tool: String::new(), key: None }, has_parameters: false }
    }

    pub(super) fn of_notation(notation: &'static Notation, is_listed: bool) -> Self {
        Self { spelling: CallSpelling::Notation { notation, is_listed, key: None }, has_parameters: false }
    }

    /// Whether another call may follow in the same list.
    pub(super) fn is_listed(&self) -> bool {
        matches!(self.spelling, CallSpelling::Notation { is_listed: true, .. })
    }

    /// Looks for a tool's name, behind the opening mark or behind another call of the list.
    pub(super) fn head(&mut self, text: &str, is_behind_call: bool) -> HeadRead {
        self.has_parameters = false;
        match &mut self.spelling {
            CallSpelling::Tags { tags, tool, .. } => {
                let read = tag_head(tags, text);
                if let HeadRead::Name(name, _) = &read {
                    name.clone_into(tool);
                }
                read
            }
            CallSpelling::Notation { notation, is_listed, .. } => {
                let body = text.trim_start();
                match (is_behind_call, body.chars().next()) {
                    (true, None) => HeadRead::More,
                    (true, Some(',')) => notation_head(notation, text, &body[1..]),
                    (true, Some(next)) => HeadRead::Over(text.len() - body.len() + usize::from(next == ']')),
                    (false, _) if *is_listed => notation_head(notation, text, body.strip_prefix('[').unwrap_or(body)),
                    (false, _) => notation_head(notation, text, body),
                }
            }
        }
    }

    /// Takes a parameter, a part of one, or the end of the arguments from a text. `schemas` are those of the tools.
    pub(super) fn step(&mut self, text: &mut String, schemas: &BTreeMap<String, Value>) -> ArgumentsRead {
        let between = if self.has_parameters { ", " } else { "" };
        let progress = match &mut self.spelling {
            CallSpelling::Tags { tags, tool, key: place @ Some(_) } => {
                let Some((key, spelling)) = place.clone() else { return ArgumentsRead::More };
                let root = schemas.get(tool).unwrap_or(&Value::Null);
                let schema = schema_of(&key, root);
                let Some(end) = tags.end_of_value(schema, root, spelling, text) else { return ArgumentsRead::More };
                let (value, rest) = (&text[..end], text[end + tags.value.1.len()..].to_owned());
                let value = tags.value(schema, root, spelling, tags.without_open(value));
                let piece = format!("{between}{}: {value}", Value::String(key));
                *place = None;
                *text = rest;
                ArgumentsRead::Piece(piece)
            }
            CallSpelling::Tags { tags, key, .. } => return tag_key(tags, key, text),
            CallSpelling::Notation { notation, key: place, .. } => {
                let Some((key, scan)) = place else { return notation_key(notation, place, text) };
                let Some(length) = scan.length(notation, text) else { return ArgumentsRead::More };
                let key = Value::String(std::mem::take(key));
                *place = None;
                let rest = text.split_off(length);
                let value = notation.read(&std::mem::replace(text, rest));
                ArgumentsRead::Piece(format!("{between}{key}: {value}"))
            }
        };
        self.has_parameters = true;
        progress
    }
}

/// The schema of a parameter: by its name, by a pattern of names, or that of all others.
fn schema_of<'s>(key: &str, root: &'s Value) -> Option<&'s Value> {
    let named = root.get("properties").and_then(|properties| properties.get(key));
    let mut patterns = root.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
    let by_pattern = |(pattern, schema): (&String, &'s Value)| (is_found(pattern, key) == Some(true)).then_some(schema);
    named.or_else(|| patterns.find_map(by_pattern)).or_else(|| root.get("additionalProperties"))
}

fn tag_head(tags: &Tags, text: &str) -> HeadRead {
    let leading = text.len() - text.trim_start().len();
    let body = &text[leading..];
    let end = body.find(tags.head_end).filter(|_| !tags.head_end.is_empty()).into_iter().chain(body.find('<')).min();
    let Some(end) = end else {
        return if text.len() > LONGEST_HEAD { HeadRead::NoName } else { HeadRead::More };
    };
    let name = body[..end].trim();
    if name.is_empty() || name.contains(char::is_whitespace) || name.len() > LONGEST_HEAD {
        return HeadRead::NoName;
    }
    let has_end = body[end..].starts_with(tags.head_end);
    HeadRead::Name(name.to_owned(), leading + end + if has_end { tags.head_end.len() } else { 0 })
}

fn tag_key(tags: &Tags, key: &mut Option<(String, ValueSpelling)>, text: &mut String) -> ArgumentsRead {
    text.drain(..text.len() - text.trim_start().len());
    if let Some(end) = tags.ends.iter().find(|end| text.starts_with(**end)) {
        text.drain(..end.len());
        return ArgumentsRead::End(CLOSE.to_owned());
    }
    if let Some(rest) = text.strip_prefix(tags.key.0) {
        let Some(at) = rest.find(tags.key.1) else { return ArgumentsRead::More };
        let behind = &rest[at + tags.key.1.len()..];
        let Some((spelling, length)) = tags.spelling_behind_key(behind) else { return ArgumentsRead::More };
        *key = Some((rest[..at].trim().to_owned(), spelling));
        *text = behind[length..].to_owned();
        return ArgumentsRead::Piece(String::new());
    }
    let may_be = |mark: &str| mark.starts_with(text.as_str());
    if text.is_empty() || may_be(tags.key.0) || tags.ends.iter().any(|end| may_be(end)) {
        return ArgumentsRead::More;
    }
    // Something else: the call ends here, as JSON.
    ArgumentsRead::End(CLOSE.to_owned())
}

/// `body` is the rest of `text` from the name on.
fn notation_head(notation: &Notation, text: &str, body: &str) -> HeadRead {
    let (open, _) = notation.arguments;
    let at = match body.find(open) {
        None if body.len() <= LONGEST_HEAD => return HeadRead::More,
        Some(at) if at <= LONGEST_HEAD => at,
        _ => return HeadRead::NoName,
    };
    let name = body[..at].trim();
    let name = name.strip_prefix(notation.prefix).unwrap_or(name).trim();
    if notation.is_bare(name) {
        HeadRead::Name(name.to_owned(), text.len() - body.len() + at + open.len())
    } else {
        HeadRead::NoName
    }
}

fn notation_key(notation: &Notation, key: &mut Option<(String, ValueScan)>, text: &mut String) -> ArgumentsRead {
    let rest = text.trim_start_matches(|c: char| c.is_whitespace() || c == ',').len();
    text.drain(..text.len() - rest);
    let (_, close) = notation.arguments;
    if let Some(rest) = text.strip_prefix(close) {
        *text = rest.to_owned();
        return ArgumentsRead::End(CLOSE.to_owned());
    }
    let at = match text.find(notation.pair) {
        None if text.len() <= LONGEST_HEAD && !text.contains(close) => return ArgumentsRead::More,
        Some(at) if at <= LONGEST_HEAD && !text[..at].contains(close) => at,
        // Something else: the call ends here, as JSON.
        _ => return ArgumentsRead::End(CLOSE.to_owned()),
    };
    *key = Some((notation.read_key(&text[..at]), ValueScan::default()));
    text.drain(..at + notation.pair.len());
    ArgumentsRead::Piece(String::new())
}
