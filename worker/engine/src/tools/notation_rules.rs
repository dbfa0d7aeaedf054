//! Grammars of calls in a notation of their own, which `notation` reads.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value};

use super::branches::variants;
use super::notation::{Notation, TextSpelling};
use super::rules::RuleWriter;
use super::values::{Kinds, Spelling, kinds, values_of};
use crate::constraint::{TextSet, literal};

/// Writes the rules of one call.
pub(super) struct NotationRules<'a, 'b> {
    pub(super) writer: &'a mut RuleWriter<'b>,
    pub(super) notation: &'static Notation,
    pub(super) spelling: Spelling<'a>,
    /// The rules of schemas that references name.
    pub(super) named: BTreeMap<(String, Kinds), String>,
    /// Schemas that may still be written as several: those that refer to themselves have no end.
    pub(super) merges: usize,
}

/// Schemas of which each is written as several.
pub(super) const MOST_MERGES: usize = 64;

/// Keywords that lists and objects are held to, and those of other values.
const HELD: [&str; 22] = [
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "multipleOf",
    "oneOf",
    "pattern",
    "prefixItems",
    "properties",
    "required",
];

const JSON_WORDS: [&str; 3] = ["true", "false", "null"];

/// An expression of keys that no schema names.
const KEY: &str = "[A-Za-z_][A-Za-z0-9_-]{0,63}";

/// TextSpelling between single quotes are those that need no escape.
const WITHOUT_ESCAPES: &str = r"[^'\\\x00-\x1f]*";

/// The place of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Arguments,
    Inner,
}

/// The most keys that an object may have beside so many.
pub(super) fn more_at_most(fields: &Map<String, Value>, named: usize) -> Option<usize> {
    let most = fields.get("maxProperties").and_then(Value::as_u64)?;
    Some((most as usize).saturating_sub(named))
}

/// How often a rule is repeated.
pub(super) fn repeated(least: usize, most: Option<usize>) -> String {
    match most {
        Some(most) => format!("{{{least},{}}}", most.max(least)),
        None => format!("{{{least},}}"),
    }
}

/// The keys beside the named ones with the schemas of their values: by each pattern of keys, and by none of them.
pub(super) fn unnamed_keys<'s>(
    patterns: Option<&'s Map<String, Value>>,
    named: TextSet,
    other: &'s Value,
) -> Result<Vec<(TextSet, &'s Value)>, String> {
    let plain = || vec![TextSet::Expression(KEY.to_owned()), TextSet::but(named.clone())];
    let (mut ways, mut all) = (Vec::new(), plain());
    for (pattern, schema) in patterns.into_iter().flatten() {
        let matching = TextSet::with_pattern(pattern)?;
        all.push(TextSet::but(matching.clone()));
        ways.push((TextSet::All([plain(), vec![matching]].concat()), schema));
    }
    let has_patterns = !ways.is_empty();
    ways.push((TextSet::All(all), other));
    ways.retain(|(keys, schema)| **schema != Value::Bool(false) && (!has_patterns || !keys.is_empty()));
    Ok(ways)
}

impl NotationRules<'_, '_> {
    /// The call, inside of the marks around it.
    pub(super) fn call(mut self, name: &str, parameters: &Map<String, Value>) -> Result<String, String> {
        if !self.notation.is_bare(name) {
            return Err("its name cannot be written in the format of this model's calls".to_owned());
        }
        let is_held = |name: &str| ["additionalProperties", "properties", "required", "type"].contains(&name);
        self.spelling.refuse(parameters, is_held)?;
        // A strict schema with branches is refused by name.
        let variants = if self.spelling.strict { None } else { variants(parameters, self.spelling.root) };
        let variants = variants.unwrap_or_else(|| vec![parameters.clone()]);
        let ways: Result<Vec<String>, String> =
            variants.iter().map(|parameters| self.object(parameters, Level::Arguments)).collect();
        let ways = ways?;
        if ways.is_empty() {
            return Err("the keywords of its parameters allow no value together".to_owned());
        }
        let arguments = format!("({})", ways.join(" | "));
        Ok(format!("{} {arguments}", literal(&[self.notation.prefix, name].concat())))
    }

    /// A new rule with this body.
    fn rule(&mut self, body: &str) -> String {
        let rule = format!("part_{}", self.writer.next());
        let _ = writeln!(self.writer.text, "{rule}: {body}");
        rule
    }

    /// A new terminal that has these texts between two others.
    fn terminal(&mut self, before: &str, texts: &TextSet, behind: &str) -> String {
        let terminal = format!("PART_{}", self.writer.next());
        let around = |text: &str| if text.is_empty() { String::new() } else { literal(text) };
        let _ = writeln!(self.writer.text, "{terminal}: {} {} {}", around(before), texts.terminal(), around(behind));
        terminal
    }

    /// The values of a schema; `None` where it allows none.
    fn value(&mut self, schema: &Value) -> Result<Option<String>, String> {
        if matches!(schema, Value::Bool(true)) || schema.as_object().is_some_and(Map::is_empty) {
            return Ok(Some(self.anything()));
        }
        let all = kinds(schema, self.spelling.root);
        let mut ways = Vec::new();
        if all.has(Kinds::TEXT) {
            ways.extend(self.text(schema)?);
        }
        if all.has(Kinds::NUMBER) {
            ways.push(self.writer.json_value(Kinds::NUMBER.only(schema), &self.spelling));
        }
        let words = self.spelling.of(schema, all.and(Kinds::BOOLEAN.or(Kinds::NULL)))?;
        ways.extend(self.words(&words));
        ways.extend(self.compound(schema, all.and(Kinds::ARRAY.or(Kinds::OBJECT)))?);
        Ok((!ways.is_empty()).then(|| format!("({})", ways.join(" | "))))
    }

    /// The words of a set of JSON's words.
    fn words(&self, among: &TextSet) -> Vec<String> {
        let has = |word: &str| !TextSet::All(vec![among.clone(), TextSet::Literal(word.to_owned())]).is_empty();
        let both = JSON_WORDS.into_iter().zip(self.notation.words).filter(|(word, _)| has(word));
        both.flat_map(|(word, spelled)| [Some(spelled), (word != spelled).then_some(word)])
            .flatten()
            .map(literal)
            .collect()
    }

    /// The texts of a schema.
    fn text(&mut self, schema: &Value) -> Result<Vec<String>, String> {
        let texts = self.spelling.of(schema, Kinds::TEXT)?;
        let also = |set: TextSet| TextSet::All(vec![texts.clone(), set]);
        let mut ways = Vec::new();
        match self.notation.texts {
            TextSpelling::Marked([mark]) => match self.writer.markers.id(mark) {
                // Text cannot spell a special token.
                Some(id) => {
                    let some = also(TextSet::Expression("(?s:.+)".to_owned()));
                    if !also(TextSet::Literal(String::new())).is_empty() {
                        ways.push(format!("(<[{id}]> <[{id}]>)"));
                    }
                    if !some.is_empty() {
                        ways.push(format!("(<[{id}]> {} <[{id}]>)", self.terminal("", &some, "")));
                    }
                }
                None => {
                    let inside = also(TextSet::but(TextSet::with(mark)));
                    if !inside.is_empty() {
                        ways.push(self.terminal(mark, &inside, mark));
                    }
                }
            },
            TextSpelling::Quoted => {
                if !texts.is_empty() {
                    ways.push(self.writer.json_value(Kinds::TEXT.only(schema), &self.spelling));
                }
                let plain = also(TextSet::Expression(WITHOUT_ESCAPES.to_owned()));
                if !plain.is_empty() {
                    ways.push(self.terminal("'", &plain, "'"));
                }
            }
        }
        Ok(ways)
    }

    /// The lists and objects of a schema.
    fn compound(&mut self, schema: &Value, among: Kinds) -> Result<Option<String>, String> {
        if among == Kinds::NONE {
            return Ok(None);
        }
        let empty = Map::new();
        let fields = schema.as_object().unwrap_or(&empty);
        self.spelling.refuse(fields, |name| name == "type" || HELD.contains(&name))?;
        let branches = |name: &str| fields.get(name).and_then(Value::as_array);
        let joined = ["$ref", "allOf", "anyOf", "oneOf"].into_iter().filter(|name| fields.contains_key(*name)).count();
        let has_own = ["properties", "items", "prefixItems"].iter().any(|name| fields.contains_key(*name));
        if self.spelling.strict
            && (joined > 1 || (joined == 1 && has_own) || branches("allOf").is_some_and(|all| all.len() > 1))
        {
            return Err(
                "these keywords cannot be held to together: '$ref', 'allOf', 'anyOf', 'oneOf', 'properties' and \
                        'items'"
                    .to_owned(),
            );
        }
        let mut ways = Vec::new();
        if let Some(values) = values_of(fields) {
            for value in values.into_iter().filter(|value| among.has(Kinds::of(value))) {
                ways.push(self.writer.spelled(&self.notation.value(value)));
            }
        } else if let Some(variants) = self.merged(fields, joined, has_own) {
            for variant in variants {
                let among = among.and(kinds(&Value::Object(variant.clone()), self.spelling.root));
                ways.extend(self.compound(&Value::Object(variant), among)?);
            }
        } else if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
            ways.push(self.referred(reference, fields, among)?);
        } else if let Some(branches) = branches("anyOf").or_else(|| branches("oneOf")).or_else(|| branches("allOf")) {
            for branch in branches {
                let among = among.and(kinds(branch, self.spelling.root));
                ways.extend(self.compound(branch, among)?);
            }
        } else {
            if among.has(Kinds::ARRAY) {
                ways.push(self.list(fields)?);
            }
            if among.has(Kinds::OBJECT) {
                ways.push(self.object(fields, Level::Inner)?);
            }
        }
        Ok((!ways.is_empty()).then(|| format!("({})", ways.join(" | "))))
    }

    /// A schema of which several parts hold at once, as schemas of one part each. A strict one is refused before.
    fn merged(&mut self, fields: &Map<String, Value>, joined: usize, has_own: bool) -> Option<Vec<Map<String, Value>>> {
        let several = fields.get("allOf").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
        let has_own = has_own || fields.contains_key("required");
        if !(joined > 1 || several || (joined == 1 && has_own)) {
            return None;
        }
        self.merges = self.merges.checked_sub(1)?;
        variants(fields, self.spelling.root)
    }

    /// The rule of a schema that a reference names. Schemas may refer to themselves.
    fn referred(&mut self, reference: &str, fields: &Map<String, Value>, among: Kinds) -> Result<String, String> {
        let key = (reference.to_owned(), among);
        if let Some(rule) = self.named.get(&key) {
            return Ok(rule.clone());
        }
        let rule = format!("part_{}", self.writer.next());
        self.named.insert(key, rule.clone());
        let schema = super::values::referred(fields, self.spelling.root);
        let schema = schema.ok_or_else(|| format!("the '$ref' {reference:?} leads nowhere"))?.clone();
        let body = self.compound(&schema, among)?.ok_or_else(|| format!("{reference:?} allows no value"))?;
        let _ = writeln!(self.writer.text, "{rule}: {body}");
        Ok(rule)
    }

    fn list(&mut self, fields: &Map<String, Value>) -> Result<String, String> {
        let bound = |name: &str| {
            fields.get(name).and_then(Value::as_u64).map(|bound| usize::try_from(bound).unwrap_or(usize::MAX))
        };
        let (least, most) = (bound("minItems").unwrap_or(0), bound("maxItems").unwrap_or(usize::MAX));
        if least > most {
            return Err(format!("minItems ({least}) is greater than maxItems ({most})"));
        }
        let mut first = Vec::new();
        for schema in fields.get("prefixItems").and_then(Value::as_array).into_iter().flatten() {
            first.push(self.value(schema)?);
        }
        let other = match fields.get("items") {
            Some(items) => self.value(items)?,
            None => Some(self.anything()),
        };
        if first.is_empty() {
            first.push(other.clone());
        }
        // A list ends in front of an item that has no value.
        let first: Vec<String> = first.into_iter().map_while(|item| item).take(most).collect();
        let between = literal(self.notation.between);
        let (at_least, at_most) = (least.saturating_sub(first.len()), most - first.len());
        let mut behind = match other.filter(|_| at_most > 0 && !first.is_empty()) {
            Some(other) if most == usize::MAX => format!("({between} {other}){{{at_least},}}"),
            Some(other) => format!("({between} {other}){{{at_least},{at_most}}}"),
            None if at_least > 0 => return Err(format!("no list has {least} items")),
            None => String::new(),
        };
        for (index, item) in first.iter().enumerate().rev() {
            let before = if index == 0 { "" } else { between.as_str() };
            behind = format!("({before} {item} {behind}){}", if index < least { "" } else { "?" });
        }
        Ok(self.rule(&format!("\"[\" {behind} \"]\"")))
    }

    /// Objects: their keys in order, with commas between those that are there.
    fn object(&mut self, fields: &Map<String, Value>, level: Level) -> Result<String, String> {
        let required: Vec<String> = fields
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|key| key.as_str().map(str::to_owned))
            .collect();
        let (always, any) = (Map::new(), Value::Bool(true));
        let properties = fields.get("properties").and_then(Value::as_object).unwrap_or(&always);
        let other = fields.get("additionalProperties").unwrap_or(&any);
        let least = fields.get("minProperties").and_then(Value::as_u64).unwrap_or(0) as usize;
        let mut all: Vec<(String, &Value)> = properties.iter().map(|(key, schema)| (key.clone(), schema)).collect();
        for key in required.iter().filter(|key| !properties.contains_key(*key)) {
            if *other == Value::Bool(false) {
                return Err(format!("'required' names '{key}', which is not in 'properties'"));
            }
            all.push((key.clone(), other));
        }
        self.notation.sort(&mut all);
        let between = literal(self.notation.between);
        let others = self.others(fields, &all, level)?;
        // From the last key to the first: the object from that key on, and all that may come behind another key.
        let (mut first, mut behind) = match others {
            // Counts of keys that schemas name are in other schemas already.
            Some(field) if all.is_empty() => {
                let behind = repeated(least.saturating_sub(1), more_at_most(fields, 1));
                let some = format!("({field} ({between} {field}){behind})");
                match more_at_most(fields, 0) {
                    Some(0) => (String::new(), String::new()),
                    _ => (if least > 0 { some } else { format!("{some}?") }, String::new()),
                }
            }
            // Of objects that need more keys than those that have names, all of these are there.
            Some(field) => {
                let are_there = all.iter().all(|(key, _)| required.contains(key));
                let more = if are_there { least.saturating_sub(all.len()) } else { 0 };
                let behind = repeated(more, more_at_most(fields, all.len()));
                (format!("({field} ({between} {field})*)?"), format!("({between} {field}){behind}"))
            }
            None => (String::new(), String::new()),
        };
        for (key, schema) in all.iter().rev() {
            let is_required = required.contains(key);
            let value = self.value(schema).map_err(|why| format!("the parameter '{key}': {why}"))?;
            let is_readable = self.notation.is_bare(key)
                || (level == Level::Inner && matches!(self.notation.texts, TextSpelling::Quoted));
            let Some(value) = value.filter(|_| is_readable) else {
                if is_required {
                    return Err(format!("the parameter '{key}' has no value in the format of this model's calls"));
                }
                continue;
            };
            let spelled = self.spelled_key(key, level);
            let field = self.rule(&format!("{spelled} {value} {behind}"));
            (first, behind) = if is_required {
                (field.clone(), format!("{between} {field}"))
            } else {
                let either = |a: &str, b: &str| if b.is_empty() { format!("({a})?") } else { format!("({a} | {b})") };
                (either(&field, &first), either(&format!("{between} {field}"), &behind))
            };
            behind = self.rule(&behind);
        }
        let (open, close) = if level == Level::Arguments { self.notation.arguments } else { ("{", "}") };
        Ok(self.rule(&format!("{} {first} {}", literal(open), literal(close))))
    }

    /// The rule of a field that no schema names: by each pattern of keys, and by none of them.
    fn others(
        &mut self,
        fields: &Map<String, Value>,
        named: &[(String, &Value)],
        level: Level,
    ) -> Result<Option<String>, String> {
        let any = Value::Bool(true);
        let patterns = fields.get("patternProperties").and_then(Value::as_object);
        let names = TextSet::Any(named.iter().map(|(key, _)| TextSet::Literal(key.clone())).collect());
        let (before, behind) = self.around_key(level);
        let mut rules = Vec::new();
        for (keys, schema) in unnamed_keys(patterns, names, fields.get("additionalProperties").unwrap_or(&any))? {
            if let Some(value) = self.value(schema)? {
                let key = self.terminal(before, &keys, &behind);
                rules.push(format!("{key} {value}"));
            }
        }
        Ok((!rules.is_empty()).then(|| self.rule(&rules.join(" | "))))
    }

    /// The texts around a key.
    fn around_key(&self, level: Level) -> (&'static str, String) {
        let Notation { pair, inner_pair, texts, .. } = self.notation;
        match (level, texts) {
            (Level::Arguments, _) => ("", (*pair).to_owned()),
            (Level::Inner, TextSpelling::Marked(_)) => ("", (*inner_pair).to_owned()),
            (Level::Inner, TextSpelling::Quoted) => ("\"", format!("\"{inner_pair}")),
        }
    }

    /// A key with what is between it and its value.
    fn spelled_key(&self, key: &str, level: Level) -> String {
        if level == Level::Arguments {
            return literal(&[key, self.notation.pair].concat());
        }
        let spelled = literal(&[&self.notation.key(key), self.notation.inner_pair].concat());
        match self.notation.texts {
            TextSpelling::Quoted if self.notation.is_bare(key) => {
                format!("({spelled} | {})", literal(&format!("'{key}'{}", self.notation.inner_pair)))
            }
            _ => spelled,
        }
    }

    /// The rule of all values.
    fn anything(&mut self) -> String {
        let key = (String::new(), Kinds::ALL);
        if let Some(rule) = self.named.get(&key) {
            return rule.clone();
        }
        let rule = format!("part_{}", self.writer.next());
        self.named.insert(key, rule.clone());
        let (before, behind) = self.around_key(Level::Inner);
        let field = self.terminal(before, &TextSet::Expression(KEY.to_owned()), &behind);
        let mut ways = self.text(&Value::Bool(true)).unwrap_or_default();
        ways.push(self.writer.json_value(Kinds::NUMBER.only(&Value::Bool(true)), &self.spelling));
        ways.extend(self.words(&TextSet::every()));
        let between = literal(self.notation.between);
        ways.push(format!("\"[\" ({rule} ({between} {rule})*)? \"]\""));
        ways.push(format!("\"{{\" ({field} {rule} ({between} {field} {rule})*)? \"}}\""));
        let _ = writeln!(self.writer.text, "{rule}: {}", ways.join(" | "));
        rule
    }
}
