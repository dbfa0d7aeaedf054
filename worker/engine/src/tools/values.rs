//! The values that a schema allows, as they are spelled between tags: texts without quotes, and all else as JSON.

use std::cell::Cell;

use serde_json::{Map, Value};

use super::numbers;
use crate::constraint::TextSet;

/// Kinds of JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kinds(u8);

/// A schema, and how deep its references may lead.
const MOST_DEPTH: usize = 24;

/// Schemas that are looked at for their kinds. References that lead to each other would have no end.
const MOST_STEPS: usize = 2_000;

/// Keywords that only describe, or that are read elsewhere.
const DESCRIBING: [&str; 18] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "deprecated",
    "description",
    "example",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
    "x-guidance",
];

/// Keywords that texts are held to.
const OF_TEXTS: [&str; 10] =
    ["$ref", "allOf", "anyOf", "const", "enum", "format", "maxLength", "minLength", "oneOf", "pattern"];

/// Keywords that say nothing about texts.
const OF_OTHERS: [&str; 22] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "dependentRequired",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "items",
    "maxContains",
    "maxItems",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minProperties",
    "minimum",
    "multipleOf",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "uniqueItems",
];

/// Keywords of the schema of arguments whose parameters are between tags.
const OF_ARGUMENTS: [&str; 4] = ["additionalProperties", "properties", "required", "type"];

impl Kinds {
    pub(super) const NONE: Self = Self(0);
    pub(super) const TEXT: Self = Self(1);
    pub(super) const NUMBER: Self = Self(2);
    pub(super) const BOOLEAN: Self = Self(4);
    pub(super) const NULL: Self = Self(8);
    pub(super) const OBJECT: Self = Self(16);
    pub(super) const ARRAY: Self = Self(32);
    pub(super) const ALL: Self = Self(63);
    /// Numbers, and words such as `true`.
    pub(super) const WORDS: Self = Self(2 | 4 | 8);

    /// The kind of a value.
    pub(super) fn of(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::TEXT,
            Value::Number(_) => Self::NUMBER,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Null => Self::NULL,
            Value::Object(_) => Self::OBJECT,
            Value::Array(_) => Self::ARRAY,
        }
    }

    pub(super) fn has(self, kind: Self) -> bool {
        self.0 & kind.0 != 0
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// A schema that allows no other kinds of values.
    pub(super) fn only(self, schema: &Value) -> Map<String, Value> {
        let mut schema = schema.as_object().cloned().unwrap_or_default();
        if self == Self::ALL {
            return schema;
        }
        if let Some(Value::Array(values)) = schema.get_mut("enum") {
            values.retain(|value| self.has(Self::of(value)));
        }
        let names = match schema.get("type") {
            Some(Value::Array(names)) => names.clone(),
            Some(name) => vec![name.clone()],
            None => ["number", "boolean", "null", "object", "array", "string"].map(Value::from).to_vec(),
        };
        let names: Vec<_> = names.into_iter().filter(|name| self.has(Self::named(name))).collect();
        schema.insert("type".to_owned(), Value::Array(names));
        schema
    }

    /// The kinds of a schema's `type`.
    fn named(kind: &Value) -> Self {
        match kind {
            Value::Array(kinds) => kinds.iter().map(Self::named).fold(Self::NONE, Self::or),
            Value::String(name) => match name.as_str() {
                "string" => Self::TEXT,
                "number" | "integer" => Self::NUMBER,
                "boolean" => Self::BOOLEAN,
                "null" => Self::NULL,
                "object" => Self::OBJECT,
                "array" => Self::ARRAY,
                _ => Self::NONE,
            },
            _ => Self::ALL,
        }
    }
}

/// The kinds of values that a schema may allow. `root` has what its references name.
pub(super) fn kinds(schema: &Value, root: &Value) -> Kinds {
    kinds_within(schema, root, MOST_DEPTH, &Cell::new(MOST_STEPS))
}

fn kinds_within(schema: &Value, root: &Value, depth: usize, left: &Cell<usize>) -> Kinds {
    let steps = left.get();
    left.set(steps.saturating_sub(1));
    let (Value::Object(fields), Some(depth), 1..) = (schema, depth.checked_sub(1), steps) else {
        return if *schema == Value::Bool(false) { Kinds::NONE } else { Kinds::ALL };
    };
    let inside = |schema: &Value| kinds_within(schema, root, depth, left);
    let mut all = fields.get("type").map_or(Kinds::ALL, Kinds::named);
    if let Some(values) = values_of(fields) {
        all = all.and(values.iter().map(|value| Kinds::of(value)).fold(Kinds::NONE, Kinds::or));
    }
    for branches in ["anyOf", "oneOf"].into_iter().filter_map(|name| fields.get(name)?.as_array()) {
        all = all.and(branches.iter().map(inside).fold(Kinds::NONE, Kinds::or));
    }
    let joined = fields.get("allOf").and_then(Value::as_array).into_iter().flatten();
    joined.chain(referred(fields, root)).map(inside).fold(all, Kinds::and)
}

/// The schema that a schema refers to.
pub(super) fn referred<'a>(fields: &Map<String, Value>, root: &'a Value) -> Option<&'a Value> {
    root.pointer(fields.get("$ref")?.as_str()?.strip_prefix('#')?)
}

/// The values that a schema lists.
pub(super) fn values_of(fields: &Map<String, Value>) -> Option<Vec<&Value>> {
    let listed = fields.get("enum").and_then(Value::as_array).map(|values| values.iter().collect::<Vec<_>>());
    match (fields.get("const"), listed) {
        (Some(only), Some(values)) => Some(values.into_iter().filter(|value| *value == only).collect()),
        (Some(only), None) => Some(vec![only]),
        (None, listed) => listed,
    }
}

/// The spellings that a schema allows.
pub(super) struct Spelling<'a> {
    /// Has what references name.
    pub(super) root: &'a Value,
    /// Whether a keyword that cannot be held to is a fault.
    pub(super) strict: bool,
}

impl Spelling<'_> {
    /// The spellings of a schema's values: texts alone, or numbers and words of some kinds.
    pub(super) fn of(&self, schema: &Value, kinds: Kinds) -> Result<TextSet, String> {
        self.within(schema, kinds, MOST_DEPTH)
    }

    /// Refuses keywords of the schema of arguments that cannot be held to.
    pub(super) fn check_arguments(&self, schema: &Map<String, Value>) -> Result<(), String> {
        self.refuse(schema, |name| OF_ARGUMENTS.contains(&name))
    }

    /// Refuses keywords that cannot be held to.
    pub(super) fn refuse(&self, schema: &Map<String, Value>, is_known: impl Fn(&str) -> bool) -> Result<(), String> {
        let unknown: Vec<_> =
            schema.keys().map(String::as_str).filter(|name| !is_known(name) && !DESCRIBING.contains(name)).collect();
        if self.strict && !unknown.is_empty() {
            return Err(format!("these keywords cannot be held to: {unknown:?}"));
        }
        Ok(())
    }

    fn within(&self, schema: &Value, kinds: Kinds, depth: usize) -> Result<TextSet, String> {
        let Value::Object(fields) = schema else {
            return Ok(if *schema == Value::Bool(false) {
                TextSet::none()
            } else {
                plain(kinds, numbers::of_schema(&Map::new(), false))
            });
        };
        let Some(depth) = depth.checked_sub(1) else { return Err("a '$ref' leads back to itself".to_owned()) };
        if kinds.has(Kinds::TEXT) {
            self.refuse(fields, |name| name == "type" || OF_TEXTS.contains(&name) || OF_OTHERS.contains(&name))?;
        }
        let kinds = fields.get("type").map_or(kinds, |kind| kinds.and(Kinds::named(kind)));
        let mut all = Vec::new();
        match values_of(fields) {
            Some(values) => {
                let values = values.into_iter().filter(|value| kinds.has(Kinds::of(value)));
                all.push(TextSet::Any(values.map(|value| TextSet::Literal(spelled(value))).collect()));
            }
            None => {
                let is_integer = fields.get("type").is_some_and(|kind| {
                    let is = |name: &str| {
                        *kind == *name || kind.as_array().is_some_and(|kinds| kinds.iter().any(|k| *k == *name))
                    };
                    is("integer") && !is("number")
                });
                all.push(plain(kinds, numbers::of_schema(fields, is_integer)));
            }
        }
        if kinds.has(Kinds::TEXT) {
            all.extend(self.limits(fields)?);
        }
        let branches = |name: &str| -> Result<Option<Vec<TextSet>>, String> {
            let branches = fields.get(name).and_then(Value::as_array);
            branches.map(|all| all.iter().map(|branch| self.within(branch, kinds, depth)).collect()).transpose()
        };
        if let Some(branches) = branches("anyOf")? {
            all.push(TextSet::Any(branches));
        }
        if let Some(branches) = branches("oneOf")? {
            all.push(if self.strict { only_one(&branches) } else { TextSet::Any(branches) });
        }
        all.extend(branches("allOf")?.into_iter().flatten());
        match (fields.get("$ref"), referred(fields, self.root)) {
            (_, Some(schema)) => all.push(self.within(schema, kinds, depth)?),
            (Some(reference), None) => return Err(format!("the '$ref' {reference} leads nowhere")),
            (None, None) => {}
        }
        Ok(TextSet::All(all))
    }

    /// The limits of a schema on texts.
    fn limits(&self, fields: &Map<String, Value>) -> Result<Vec<TextSet>, String> {
        let number = |name: &str| match fields.get(name) {
            Some(value) => {
                value.as_u64().map(Some).ok_or_else(|| format!("'{name}' must be a whole number, not {value}"))
            }
            None => Ok(None),
        };
        let word = |name: &str| match fields.get(name) {
            Some(value) => value.as_str().map(Some).ok_or_else(|| format!("'{name}' must be a text, not {value}")),
            None => Ok(None),
        };
        let mut limits = Vec::new();
        match (number("minLength")?, number("maxLength")?) {
            (None, None) => {}
            (Some(least), Some(most)) if least > most => {
                return Err(format!("minLength ({least}) is greater than maxLength ({most})"));
            }
            (least, most) => limits.push(TextSet::of_length(least.unwrap_or(0), most)),
        }
        if let Some(pattern) = word("pattern")? {
            limits.push(TextSet::with_pattern(pattern)?);
        }
        if let Some(name) = word("format")? {
            match self::format(name) {
                Some(expression) => limits.push(TextSet::Expression(expression)),
                None if self.strict => return Err(format!("Unknown format: {name}")),
                None => {}
            }
        }
        Ok(limits)
    }
}

/// A value between tags.
fn spelled(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// All values of some kinds.
fn plain(kinds: Kinds, numbers: TextSet) -> TextSet {
    let mut all = Vec::new();
    if kinds.has(Kinds::TEXT) {
        all.push(TextSet::every());
    }
    if kinds.has(Kinds::NUMBER) {
        all.push(numbers);
    }
    if kinds.has(Kinds::BOOLEAN) {
        all.push(TextSet::Expression("true|false".to_owned()));
    }
    if kinds.has(Kinds::NULL) {
        all.push(TextSet::Literal("null".to_owned()));
    }
    TextSet::Any(all)
}

/// The texts that exactly one of the sets has.
fn only_one(sets: &[TextSet]) -> TextSet {
    let alone = sets.iter().enumerate().map(|(at, set)| {
        let others = sets.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, set)| set.clone());
        TextSet::All(vec![set.clone(), TextSet::but(TextSet::Any(others.collect()))])
    });
    TextSet::Any(alone.collect())
}

/// The texts that a reader takes for a value of this kind.
pub(super) fn read_as(kind: Kinds) -> Option<TextSet> {
    let expression = match kind {
        Kinds::NULL => r"\s*(null|None)\s*",
        Kinds::BOOLEAN => r"\s*(true|false|True|False)\s*",
        Kinds::NUMBER => r"\s*-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\s*",
        // The grammar has to know which of both it is at the first character.
        Kinds::OBJECT => r"\s*\{(?s:.*)",
        Kinds::ARRAY => r"\s*\[(?s:.*)",
        _ => return None,
    };
    Some(TextSet::Expression(expression.to_owned()))
}

/// An expression of texts that have a format. Some formats have more texts than these.
pub(super) fn format(name: &str) -> Option<String> {
    const DATE: &str = "[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|\
                        02-(0[1-9]|1[0-9]|2[0-8]))";
    const TIME: &str = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
    const LABEL: &str = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?";
    const BYTE: &str = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    const IN_URI: &str = "([a-zA-Z0-9._~!$&'()*+,;=:@/?-]|%[0-9a-fA-F]{2})*";
    let hexadecimal = |digits: &str| format!("[0-9a-fA-F]{{{digits}}}");
    let host = format!(r"{LABEL}(\.{LABEL}){{0,4}}");
    Some(match name {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}T{TIME}"),
        "duration" => "P([1-9][0-9]{0,5}[YMWD]|T[1-9][0-9]{0,5}[HMS])".to_owned(),
        "email" => format!(r"[a-zA-Z0-9_+-]{{1,32}}(\.[a-zA-Z0-9_+-]{{1,16}})?@{LABEL}(\.{LABEL}){{1,4}}"),
        "hostname" => host,
        "ipv4" => format!(r"({BYTE}\.){{3}}{BYTE}"),
        "ipv6" => {
            let part = hexadecimal("1,4");
            format!("({part}:){{7}}{part}|({part}:){{1,5}}:({part})?|::({part})?")
        }
        "uuid" => [8, 4, 4, 4, 12].map(|digits: u8| hexadecimal(&digits.to_string())).join("-"),
        "uri" => format!(
            r"[a-zA-Z][a-zA-Z0-9+.-]{{0,15}}:(//{host}(:[0-9]{{1,5}})?(/{IN_URI})?|[a-zA-Z0-9]{IN_URI})(#{IN_URI})?"
        ),
        _ => return None,
    })
}
