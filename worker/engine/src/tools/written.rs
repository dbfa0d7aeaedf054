//! Calls as a model writes them, for prompts whose template does not.

use serde_json::Value;

use super::format::ToolFormat;
use super::shape::{CallShape, Spellings};
use super::spaced::spaced;

impl ToolFormat {
    /// Calls as the model writes them, for prompts whose template does not. Each is a name, and arguments in JSON.
    pub fn calls(self, calls: &[(&str, &str)]) -> String {
        let row = self.row();
        let one = |(index, (name, arguments)): (usize, &(&str, &str))| {
            first(row.each.0).to_owned() + &row.call.written(index, name, arguments) + first(row.each.1)
        };
        let calls: Vec<String> = calls.iter().enumerate().map(one).collect();
        first(row.all.0).to_owned() + &calls.join(first(row.between)) + first(row.all.1)
    }
}

impl CallShape {
    /// A call without the texts around it.
    fn written(&self, index: usize, name: &str, arguments: &str) -> String {
        let in_json = || serde_json::from_str(arguments).map_or_else(|_| arguments.to_owned(), |value| spaced(&value));
        match self {
            Self::Object(shape) if shape.is_keyed => {
                let [open, close] = [shape.open, shape.close].map(first);
                format!("{open}{}: {}{close}", Value::from(name), in_json())
            }
            Self::Object(shape) => {
                let [open, between, close] = [shape.open, shape.between, shape.close].map(first);
                let (name_key, arguments_key, name) = (shape.name, shape.arguments, Value::from(name));
                format!("{open}\"{name_key}\": {name}{between}\"{arguments_key}\": {}{close}", in_json())
            }
            Self::Head(head) => head.written(index, name, &in_json()),
            Self::Tags(tags) => tags.written(name, &parameters(arguments)),
            Self::Notation(notation) => notation.written(name, parameters(arguments)),
        }
    }
}

/// The spelling that prompts have.
fn first(spellings: Spellings) -> &'static str {
    spellings.first().copied().unwrap_or_default()
}

/// Arguments as keys and values. What is no object is one parameter without a name.
fn parameters(arguments: &str) -> Vec<(String, Value)> {
    match serde_json::from_str(arguments) {
        Ok(Value::Object(arguments)) => arguments.into_iter().collect(),
        _ => vec![("<name>".to_owned(), Value::from(arguments))],
    }
}
