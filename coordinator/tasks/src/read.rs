//! Reading of a tasks file: its sections, then the checks beyond the types.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::file::TasksFile;
use crate::tree::{ParsedTasks, Problem};
use crate::{Providers, check};

impl TasksFile {
    /// Reads a file, or returns all its problems in the order of its lines.
    pub fn read(text: &str, providers: &Providers) -> Result<Self, Vec<Problem>> {
        let document = ParsedTasks::read(text).map_err(|problem| vec![problem])?;
        let mut problems = Vec::new();
        let mut file = Self::default();
        match &document.value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match name.as_str() {
                        "tasks" | "clients" | "defaults" if value.is_null() => {
                            let message =
                                format!("'{name}' has nothing behind it; write '{name}: {{}}' or leave it out");
                            problems.push(document.problem(name, message));
                        }
                        "tasks" => file.tasks = entries(&document, "tasks", value, &mut problems),
                        "clients" => file.clients = entries(&document, "clients", value, &mut problems),
                        "defaults" => file.defaults = document.decode(value.clone(), "defaults", &mut problems),
                        _ => problems.push(document.problem(name, check::unknown_section(name))),
                    }
                }
            }
            Value::Null => {
                let message = "the file is empty; for no tasks write 'tasks: {}'";
                problems.push(Problem { line: Some(1), field: String::new(), message: message.to_owned() });
            }
            _ => problems.push(Problem {
                line: Some(1),
                field: String::new(),
                message: "must be a map with 'tasks', 'clients' and 'defaults'".into(),
            }),
        }
        check::check(&file, &document, providers, &mut problems);
        if problems.is_empty() {
            return Ok(file);
        }
        problems.sort();
        problems.dedup();
        Err(problems)
    }
}

fn entries<T: Default + serde::de::DeserializeOwned>(
    document: &ParsedTasks,
    section: &str,
    value: &Value,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, T> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| {
                let path = format!("{section}.{name}");
                // A name without a value has an empty one.
                let value = if value.is_null() { Value::Object(serde_json::Map::new()) } else { value.clone() };
                (name.clone(), document.decode(value, &path, problems))
            })
            .collect(),
        _ => {
            problems.push(document.problem(section, format!("'{section}' must be a map of names")));
            BTreeMap::new()
        }
    }
}
