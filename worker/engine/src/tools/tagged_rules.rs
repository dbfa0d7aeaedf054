//! Rules of calls whose parameters are between tags.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Map, Value};

use super::branches::variants;
use super::grammar::Tool;
use super::notation_rules::{more_at_most, repeated, unnamed_keys};
use super::rules::RuleWriter;
use super::schemas::python_words;
use super::values::{Kinds, Spelling, kinds, read_as};
use super::xml_call::Tags;
use crate::constraint::{TextSet, literal};

impl RuleWriter<'_> {
    /// A call with its parameters between tags, in the order of the schema.
    pub(super) fn tagged(&mut self, number: usize, tool: &Tool, tags: &Tags) -> Result<String, String> {
        let whole = tool.schema()?;
        let root = Value::Object(whole.clone());
        let spelling = Spelling { root: &root, strict: tool.strict };
        // A strict schema with branches is refused by name.
        let variants = if tool.strict { None } else { variants(&whole, &root) };
        let mut named = BTreeMap::new();
        let mut ways = Vec::new();
        for parameters in variants.unwrap_or_else(|| vec![whole.clone()]) {
            ways.push(self.tagged_parameters(number, &parameters, &spelling, tags, &mut named)?);
        }
        if ways.is_empty() {
            return Err("the keywords of its parameters allow no value together".to_owned());
        }
        let head = [&tool.name, tags.head_end, tags.behind_head].concat();
        Ok(format!("{} ({}) {}", literal(&head), ways.join(" | "), self.spelled(tags.end())))
    }

    /// The parameters of a schema without branches. `named` has the rules of those that others have too.
    fn tagged_parameters(
        &mut self,
        number: usize,
        parameters: &Map<String, Value>,
        spelling: &Spelling<'_>,
        tags: &Tags,
        named: &mut BTreeMap<(String, String), Option<String>>,
    ) -> Result<String, String> {
        spelling.check_arguments(parameters)?;
        let required: Vec<&str> = parameters
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let (empty, any) = (Map::new(), Value::Bool(true));
        let properties = parameters.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let other = parameters.get("additionalProperties").unwrap_or(&any);
        let mut keys: Vec<(&str, &Value)> = properties.iter().map(|(key, schema)| (key.as_str(), schema)).collect();
        for key in required.iter().filter(|key| !properties.contains_key(**key)) {
            if *other == Value::Bool(false) {
                return Err(format!("'required' names '{key}', which is not in 'properties'"));
            }
            keys.push((key, other));
        }
        let mut all = Vec::new();
        for (key, schema) in &keys {
            let is_required = required.contains(key);
            let of = ((*key).to_owned(), schema.to_string());
            let rule = match named.get(&of) {
                Some(rule) => rule.clone(),
                None => {
                    let value = self
                        .tagged_value(schema, spelling, tags)
                        .map_err(|why| format!("the parameter '{key}': {why}"))?;
                    let is_readable = key.trim() == *key && !key.contains(tags.key.1);
                    let rule = value.filter(|_| is_readable).map(|value| {
                        let rule = format!("parameter_{number}_{}", named.len());
                        let _ = writeln!(self.text, "{rule}: {} {value}", literal(&tags.key(key)));
                        rule
                    });
                    named.insert(of, rule.clone());
                    rule
                }
            };
            match rule {
                Some(rule) => all.push(if is_required { rule } else { format!("{rule}?") }),
                None if is_required => return Err(format!("the parameter '{key}' has no value between tags")),
                None => {}
            }
        }
        // Of objects that need more keys than those that have names, all of these are there.
        let least = parameters.get("minProperties").and_then(Value::as_u64).unwrap_or(0) as usize;
        let more = least.saturating_sub(keys.len());
        if let Some(unnamed) = self.unnamed_parameter(parameters, &keys, more, spelling, tags)? {
            all.push(format!("{unnamed}{}", repeated(more, more_at_most(parameters, keys.len()))));
        }
        // Some templates write an empty line where there are no parameters.
        let blank = if required.is_empty() && tags.behind_value == "\n" { "\"\\n\"?" } else { "" };
        Ok(format!("{} {blank}", all.join(" ")))
    }

    /// The rule of a parameter that no schema names; `None` where the schema says nothing of such and `more` is 0, or
    /// allows none.
    fn unnamed_parameter(
        &mut self,
        parameters: &Map<String, Value>,
        named: &[(&str, &Value)],
        more: usize,
        spelling: &Spelling<'_>,
        tags: &Tags,
    ) -> Result<Option<String>, String> {
        let patterns = parameters.get("patternProperties").and_then(Value::as_object);
        // A small model goes on inventing keys, so it may where a schema speaks of them, or demands them.
        let open = Value::Bool(patterns.is_none() && more > 0);
        let other = parameters.get("additionalProperties").unwrap_or(&open);
        let names = named.iter().map(|(key, _)| TextSet::Literal((*key).to_owned())).collect();
        let mut rules = Vec::new();
        for (keys, schema) in unnamed_keys(patterns, TextSet::Any(names), other)? {
            if let Some(value) = self.tagged_value(schema, spelling, tags)? {
                let number = self.next();
                let (open, close) = (literal(tags.key.0), literal(&[tags.key.1, tags.between].concat()));
                let _ = writeln!(self.text, "KEY_{number}: {open} {} {close}", keys.terminal());
                rules.push(format!("KEY_{number} {value}"));
            }
        }
        if rules.is_empty() {
            return Ok(None);
        }
        let rule = format!("unnamed_{}", self.next());
        let _ = writeln!(self.text, "{rule}: {}", rules.join(" | "));
        Ok(Some(rule))
    }

    /// A value and what ends it; `None` where the schema allows none.
    ///
    /// A text is spelled without quotes. It and the words and numbers that may come in its place are one terminal with
    /// the tag behind them, since the lexer cannot know before the tag which of them it reads.
    fn tagged_value(&mut self, schema: &Value, spelling: &Spelling<'_>, tags: &Tags) -> Result<Option<String>, String> {
        let number = self.next();
        let end = tags.value_end();
        let all = kinds(schema, spelling.root);
        if let Some(said) = tags.kinds {
            return self.value_that_says_its_kind(schema, spelling, tags, said);
        }
        let open = tags.open();
        let before = if open.is_empty() { String::new() } else { literal(&open) };
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
                let _ = writeln!(self.text, "VALUE_{number}: {} {}", whole.terminal(), literal(&end));
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
            ways.push(format!("({}{words}) {}", self.json_value(schema, spelling), literal(&end)));
        }
        Ok((!ways.is_empty()).then(|| format!("{before} ({})", ways.join(" | "))))
    }

    /// A value between tags that say whether it is a text.
    fn value_that_says_its_kind(
        &mut self,
        schema: &Value,
        spelling: &Spelling<'_>,
        tags: &Tags,
        [as_text, as_json]: [&str; 2],
    ) -> Result<Option<String>, String> {
        let all = kinds(schema, spelling.root);
        let (open, end) = (tags.open(), literal(&tags.value_end()));
        let mut ways = Vec::new();
        if all.has(Kinds::TEXT) {
            let texts =
                TextSet::All(vec![spelling.of(schema, Kinds::TEXT)?, TextSet::but(TextSet::with(tags.value.1))]);
            if !texts.is_empty() {
                let number = self.next();
                let _ = writeln!(self.text, "VALUE_{number}: {} {end}", texts.terminal());
                ways.push(format!("{} VALUE_{number}", literal(&[as_text, &*open].concat())));
            }
        }
        let in_json = all.without(Kinds::TEXT);
        if in_json != Kinds::NONE {
            let value = self.json_value(in_json.only(schema), spelling);
            ways.push(format!("{} {value} {end}", literal(&[as_json, &*open].concat())));
        }
        Ok((!ways.is_empty()).then(|| format!("({})", ways.join(" | "))))
    }
}
