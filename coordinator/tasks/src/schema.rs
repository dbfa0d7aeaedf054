//! JSON Schemas of the configuration files, for editors (TR-6). They are generated from the types; `docs/schema` has
//! copies.

use model_boss_protocol::Manifest;
use schemars::schema_for;

use crate::TasksFile;

/// The schema of `tasks.yaml`, as text that ends in a line break.
pub fn tasks_schema() -> String {
    text(&schema_for!(TasksFile))
}

/// The schema of a manifest.
pub fn manifest_schema() -> String {
    text(&schema_for!(Manifest))
}

fn text(schema: &schemars::Schema) -> String {
    // A build in which serde_json keeps the order of keys prints the same text as one in which it sorts them.
    let mut value = schema.as_value().clone();
    value.sort_all_objects();
    let schema = schemars::Schema::try_from(value).unwrap_or_else(|_| schema.clone());
    // A schema is a JSON value: it cannot fail to be written.
    serde_json::to_string_pretty(&schema).map(|text| text + "\n").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tr_6_the_committed_schemas_are_those_of_the_types() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema");
        for (name, now) in [("tasks", tasks_schema()), ("manifest", manifest_schema())] {
            let committed = std::fs::read_to_string(format!("{folder}/{name}.json")).unwrap_or_default();
            assert!(
                committed == now,
                "docs/schema/{name}.json is out of date: model-boss tasks schema {name} prints it"
            );
        }
    }
}
