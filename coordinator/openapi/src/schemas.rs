//! The schemas that a document names. Requests and answers have generators of their own, since a type may be read in
//! more forms than it is written in.

use std::collections::BTreeSet;

use schemars::Schema;
use schemars::generate::{Contract, SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::operation::MakeSchema;

/// The place of named schemas in a document.
const PLACE: &str = "#/components/schemas/";

/// The end of the name of a type in answers, where requests have another form of it.
const WRITTEN: &str = "Answer";

/// The schemas so far.
pub(crate) struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

/// A schema that is put into the document at its end, when all names are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SchemaSide {
    /// The form that is read.
    Request,
    /// The form that is written.
    Answer,
}

impl Schemas {
    pub(crate) fn new() -> Self {
        let generator = |contract: Contract| {
            let settings = SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
                settings.contract = contract;
            });
            SchemaGenerator::new(settings)
        };
        Self { requests: generator(Contract::Deserialize), answers: generator(Contract::Serialize) }
    }

    /// The schema of a type; one of an answer is marked, so that [`Self::place`] finds it.
    pub(crate) fn of(&mut self, side: SchemaSide, schema: MakeSchema) -> Value {
        let generator = match side {
            SchemaSide::Request => &mut self.requests,
            SchemaSide::Answer => &mut self.answers,
        };
        let mut value = Schema::to_value(schema(generator));
        if side == SchemaSide::Answer {
            renamed(&mut value, &|name| format!("{ANSWERS}{name}"));
        }
        value
    }

    /// The named schemas. References in `document` get their last names.
    pub(crate) fn place(mut self, document: &mut Value) -> Map<String, Value> {
        let mut read = self.requests.take_definitions(true);
        let mut written = self.answers.take_definitions(true);
        read.values_mut().chain(written.values_mut()).for_each(tidy);
        let apart = forms_apart(&read, &written);
        let last = |name: &str| if apart.contains(name) { format!("{name}{WRITTEN}") } else { name.to_owned() };
        renamed(document, &|name| name.strip_prefix(ANSWERS).map_or_else(|| name.to_owned(), last));
        for (name, mut schema) in written {
            renamed(&mut schema, &last);
            read.entry(last(&name)).or_insert(schema);
        }
        with_named_variants(read)
    }
}

/// Gives the content of variants names of their own: generators of clients make a type for each name.
fn with_named_variants(named: Map<String, Value>) -> Map<String, Value> {
    let mut all = Map::new();
    for (name, mut schema) in named {
        let mut hoisted = Vec::new();
        let variants = schema.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten();
        for variant in variants.filter_map(|variant| variant.get_mut("properties")?.as_object_mut()) {
            for (property, content) in variant.iter_mut().filter(|(_, content)| content.get("properties").is_some()) {
                let words = property.split('_').map(|word| word[..1].to_ascii_uppercase() + &word[1..]);
                let variant_name = format!("{name}{}", words.collect::<String>());
                let reference = json!({ "$ref": format!("{PLACE}{variant_name}") });
                hoisted.push((variant_name, std::mem::replace(content, reference)));
            }
        }
        all.insert(name, schema);
        all.extend(hoisted);
    }
    all
}

/// The beginning of the names of answers' types, until all names are known.
const ANSWERS: &str = "answer:";

/// The names that mean two schemas: directly, or through a schema that they name.
fn forms_apart(read: &Map<String, Value>, written: &Map<String, Value>) -> BTreeSet<String> {
    let mut apart: BTreeSet<String> = BTreeSet::new();
    loop {
        let differs = |(name, schema): &(&String, &Value)| {
            let names_one = || {
                let mut found = false;
                references(schema, &mut |name| found |= apart.contains(name));
                found
            };
            !apart.contains(*name) && read.get(*name).is_some_and(|other| other != *schema || names_one())
        };
        let more: Vec<String> = written.iter().filter(differs).map(|(name, _)| name.clone()).collect();
        if more.is_empty() {
            return apart;
        }
        apart.extend(more);
    }
}

/// Removes formats that only Rust's numbers have, since readers of JSON Schema do not know them, and writes `true` for
/// any value as an empty schema, which more generators of clients read.
fn tidy(schema: &mut Value) {
    const OF_RUST: [&str; 8] = ["uint", "uint8", "uint16", "uint32", "uint64", "int64", "double", "float"];
    match schema {
        Value::Object(fields) => {
            if fields.get("format").and_then(Value::as_str).is_some_and(|format| OF_RUST.contains(&format)) {
                fields.shift_remove("format");
            }
            if let Some(any @ Value::Bool(true)) = fields.get_mut("items") {
                *any = json!({});
            }
            if let Some(Value::Object(properties)) = fields.get_mut("properties") {
                properties.values_mut().filter(|schema| **schema == true).for_each(|any| *any = json!({}));
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

fn references(schema: &Value, see: &mut dyn FnMut(&str)) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str().and_then(|text| text.strip_prefix(PLACE)) {
                    Some(target) if name == "$ref" => see(target),
                    _ => references(value, see),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, see)),
        _ => {}
    }
}

fn renamed(schema: &mut Value, name_of: &dyn Fn(&str) -> String) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str().and_then(|text| text.strip_prefix(PLACE)) {
                    Some(target) if name == "$ref" => *value = format!("{PLACE}{}", name_of(target)).into(),
                    _ => renamed(value, name_of),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| renamed(item, name_of)),
        _ => {}
    }
}
