//! Faults of schemas that the library does not find, or finds without the keyword.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::malformed::malformed;
use super::normal::DATA;

/// A fault of a schema, as words: it allows no value, or has a keyword that answers cannot be held to. The latter is
/// none where such keywords are left out.
pub(super) fn schema_fault(schema: &Map<String, Value>, is_lenient: bool) -> Option<String> {
    if let Some(fault) = malformed(schema) {
        return Some(fault);
    }
    if has_empty_enum(schema) {
        return Some("an 'enum' without values allows no answer".to_owned());
    }
    if !is_lenient && let Some(keys) = uncounted_keys(schema) {
        return Some(format!(
            "'minProperties': {keys} cannot be held to where any key is allowed, since a key may come twice; name the \
             properties in 'required', or forbid others by 'additionalProperties': false"
        ));
    }
    endless(schema)
}

/// The fault of a schema that no value meets: it demands itself within itself, so that its values have no end, or more
/// keys or different items than there are.
pub(crate) fn endless(schema: &Map<String, Value>) -> Option<String> {
    let mut search = ValueSearch { root: schema, inside: Vec::new(), steps: 0, blamed: None };
    let ends = search.ends(schema);
    (!ends).then(|| search.blamed.unwrap_or_else(|| without_end("#")))
}

fn without_end(reference: &str) -> String {
    format!("'$ref': {reference:?} demands itself without an end, so that no value meets it")
}

/// Whether a list of allowed values is empty: the library names another keyword for it.
fn has_empty_enum(schema: &Map<String, Value>) -> bool {
    schema.iter().any(|(name, value)| match value {
        Value::Array(values) => {
            (name == "enum" && values.is_empty()) || values.iter().filter_map(Value::as_object).any(has_empty_enum)
        }
        Value::Object(inside) => has_empty_enum(inside),
        _ => false,
    })
}

/// A least number of properties that equal keys could make up: the library counts them by their places.
fn uncounted_keys(schema: &Map<String, Value>) -> Option<u64> {
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let required = required.filter_map(Value::as_str).collect::<HashSet<_>>().len() as u64;
    let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    let is_open = !is_closed || schema.contains_key("patternProperties");
    let least = schema.get("minProperties").and_then(Value::as_u64);
    let is_object = schema.get("type").is_none_or(|kind| kind == "object");
    if let Some(least) = least.filter(|least| is_object && is_open && *least > required.max(1)) {
        return Some(least);
    }
    schema.iter().filter(|(name, _)| !DATA.contains(&name.as_str())).find_map(|(_, value)| match value {
        Value::Array(values) => values.iter().filter_map(Value::as_object).find_map(uncounted_keys),
        Value::Object(inside) => uncounted_keys(inside),
        _ => None,
    })
}

/// The search for a value of a schema that has an end.
struct ValueSearch<'a> {
    root: &'a Map<String, Value>,
    /// The references that are followed at the moment: one of them within itself has no end.
    inside: Vec<&'a str>,
    steps: usize,
    blamed: Option<String>,
}

/// A schema with more parts is taken at its word.
const MOST_STEPS: usize = 20_000;

impl<'a> ValueSearch<'a> {
    fn ends(&mut self, schema: &'a Map<String, Value>) -> bool {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return true;
        }
        let list = |name: &str| schema.get(name).and_then(Value::as_array).map(Vec::as_slice);
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str)
            && !self.reference_ends(reference)
        {
            return false;
        }
        if list("allOf").is_some_and(|parts| !parts.iter().all(|part| self.value_ends(part))) {
            return false;
        }
        for name in ["anyOf", "oneOf"] {
            if list(name).is_some_and(|parts| !parts.is_empty() && !parts.iter().any(|part| self.value_ends(part))) {
                return false;
            }
        }
        // A value of another type ends at once.
        let is_only = |kind: &str| schema.get("type").is_some_and(|given| given == kind);
        if is_only("object") && !self.object_ends(schema) {
            return false;
        }
        !is_only("array") || self.array_ends(schema)
    }

    fn object_ends(&mut self, schema: &'a Map<String, Value>) -> bool {
        let has_other_keys =
            schema.get("additionalProperties") != Some(&Value::Bool(false)) || schema.contains_key("patternProperties");
        let named = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        let named = named.filter(|(_, schema)| **schema != Value::Bool(false)).count() as u64;
        let least = schema.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
        if !has_other_keys && least > named {
            self.blamed = Some(format!(
                "'minProperties': {least} are more than the {named} that 'properties' has, and 'additionalProperties' \
                 allows no others"
            ));
            return false;
        }
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        let of_key = |key: &Value| schema.get("properties")?.get(key.as_str()?).or(schema.get("additionalProperties"));
        let needed: Vec<&Value> = required.filter_map(of_key).collect();
        needed.into_iter().all(|value| self.value_ends(value))
    }

    fn array_ends(&mut self, schema: &'a Map<String, Value>) -> bool {
        let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
        let first = schema.get("prefixItems").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let begun = first.iter().take(least).all(|item| self.value_ends(item));
        let rest = schema.get("items").filter(|_| least > first.len());
        let is_of_different = schema.get("uniqueItems") == Some(&Value::Bool(true)) && first.is_empty();
        let values = rest.filter(|_| is_of_different).and_then(|items| self.values(items));
        if let Some(values) = values.filter(|values| *values < least) {
            self.blamed = Some(format!(
                "'uniqueItems': {least} different items are demanded by 'minItems', and 'items' allows {values}"
            ));
            return false;
        }
        begun && rest.is_none_or(|items| self.value_ends(items))
    }

    /// The values that a schema allows, where it lists them.
    fn values(&self, schema: &'a Value) -> Option<usize> {
        let fields = schema.as_object()?;
        let target = fields.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix('#'));
        let fields = match target {
            Some(pointer) => self.pointed_at(pointer)?,
            None => fields,
        };
        match (fields.get("const"), fields.get("enum").and_then(Value::as_array), fields.get("type")) {
            (Some(_), _, _) => Some(1),
            (_, Some(values), _) => Some(values.iter().map(Value::to_string).collect::<HashSet<_>>().len()),
            (_, _, Some(kind)) if kind == "null" => Some(1),
            (_, _, Some(kind)) if kind == "boolean" => Some(2),
            _ => None,
        }
    }

    fn value_ends(&mut self, schema: &'a Value) -> bool {
        schema.as_object().is_none_or(|schema| self.ends(schema))
    }

    fn reference_ends(&mut self, reference: &'a str) -> bool {
        if self.inside.contains(&reference) {
            self.blamed = Some(without_end(reference));
            return false;
        }
        let target = match reference.strip_prefix('#') {
            Some("") => Some(self.root),
            // Others are the library's to find, or to refuse.
            Some(pointer) => self.pointed_at(pointer),
            None => None,
        };
        let Some(target) = target else { return true };
        self.inside.push(reference);
        let ends = self.ends(target);
        self.inside.pop();
        ends
    }

    /// The schema at a place of the root, which a JSON pointer (RFC 6901) names.
    fn pointed_at(&self, pointer: &str) -> Option<&'a Map<String, Value>> {
        let mut steps = pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~"));
        let first = self.root.get(&steps.next()?)?;
        let found = steps.try_fold(first, |at, step| match at {
            Value::Array(values) => values.get(step.parse::<usize>().ok()?),
            other => other.get(&step),
        });
        found?.as_object()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fault(schema: Value) -> Option<String> {
        schema_fault(schema.as_object().unwrap(), false)
    }

    #[test]
    fn en_6_a_schema_whose_values_have_no_end_is_at_fault() {
        let node = |required: Value| {
            json!({"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "required": required,
                "properties": {"next": {"$ref": "#/$defs/N"}, "value": {"type": "integer"}}}}})
        };
        assert!(fault(node(json!(["next"]))).unwrap().contains("'$ref': \"#/$defs/N\""));
        assert_eq!(fault(node(json!(["value"]))), None);
        for endless in [
            json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
            json!({"$ref": "#"}),
            json!({"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}),
            json!({"type": "object", "required": ["a"], "properties": {"a": {"anyOf": [{"$ref": "#"}]}}}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}),
        ] {
            assert!(fault(endless.clone()).is_some_and(|fault| fault.contains("$ref")), "{endless}");
        }
        for ends in [
            json!({"type": "array", "items": {"$ref": "#"}}),
            json!({"type": "object", "required": ["a"], "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}),
            json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#/$defs/x"}},
                "$defs": {"x": {"type": "string"}}}),
            json!({"type": ["object", "null"], "required": ["a"], "properties": {"a": {"$ref": "#"}}}),
            json!({"$ref": "https://example.org/schema"}),
        ] {
            assert_eq!(fault(ends.clone()), None, "{ends}");
        }
    }

    #[test]
    fn en_6_equal_keys_are_not_counted_as_properties() {
        let named =
            json!({"type": "object", "minProperties": 2, "required": ["a", "b"], "properties": {"a": {}, "b": {}}});
        let open = json!({"items": {"type": "object", "minProperties": 2}});
        assert!(fault(open.clone()).unwrap().contains("'minProperties': 2"));
        assert_eq!(schema_fault(open.as_object().unwrap(), true), None, "it is left out");
        for kept in [
            named,
            json!({"type": "object", "minProperties": 1}),
            json!({"type": "object", "minProperties": 2, "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": false}),
            json!({"const": {"minProperties": 5}}),
        ] {
            assert_eq!(fault(kept.clone()), None, "{kept}");
        }
    }
}
