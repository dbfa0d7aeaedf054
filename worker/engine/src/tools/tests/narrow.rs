//! Arguments of tools that are not `strict` beside the crate `jsonschema`, which holds to all keywords.

use std::sync::LazyLock;

use jsonschema::Validator;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{ToolFormat, allows, arguments_read, random_call, without_json};
use crate::tools::{Tool, ToolChoice, ToolPlan};

/// A schema of arguments with keywords that the library of grammars does not know, and arguments that a call should
/// still be able to have.
pub(super) struct Case {
    pub(super) schema: Value,
    pub(super) wanted: Vec<Value>,
}

pub(super) fn case(schema: Value, wanted: Vec<Value>) -> Case {
    Case { schema, wanted }
}

static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let object = |properties: Value, others: Value| {
        let mut schema = json!({ "type": "object", "properties": properties });
        if let (Value::Object(schema), Value::Object(others)) = (&mut schema, others) {
            schema.extend(others);
        }
        schema
    };
    let day = || json!({ "type": "integer", "minimum": 1, "maximum": 31 });
    vec![
        case(
            object(
                json!({"x": {"type": "array", "uniqueItems": true, "items": {"enum": ["red", "green", "blue"]}}}),
                json!({"required": ["x"]}),
            ),
            vec![json!({"x": []}), json!({"x": ["blue", "red"]}), json!({"x": ["red", "green", "blue"]})],
        ),
        case(
            object(
                json!({"x": {
                    "type": "array", "uniqueItems": true, "minItems": 2, "maxItems": 4,
                    "items": {"type": "integer", "minimum": 0, "maximum": 6},
                }}),
                json!({"required": ["x"]}),
            ),
            vec![json!({"x": [1, 4]}), json!({"x": [0, 2, 5, 6]})],
        ),
        case(
            object(
                json!({"x": {"type": ["array", "null"], "uniqueItems": true, "items": {"type": "boolean"}}}),
                json!({"required": ["x"]}),
            ),
            vec![json!({"x": null}), json!({"x": [false, true]})],
        ),
        case(
            object(json!({"x": {"type": "string", "not": {"enum": ["no", "none", ""]}}}), json!({"required": ["x"]})),
            vec![json!({"x": "nothing"}), json!({"x": "n"}), json!({"x": "yes"})],
        ),
        case(
            object(json!({"x": {"type": "integer", "not": {"const": 0}}}), json!({"required": ["x"]})),
            vec![json!({"x": 7}), json!({"x": -3})],
        ),
        case(
            object(json!({"x": {"not": {"type": ["object", "array", "null"]}}}), json!({"required": ["x"]})),
            vec![json!({"x": 7}), json!({"x": "a"}), json!({"x": true})],
        ),
        case(
            object(json!({"x": day(), "y": day()}), json!({"not": {"required": ["x", "y"]}})),
            vec![json!({"x": 7}), json!({"y": 3}), json!({})],
        ),
        case(
            object(
                json!({"card": {"type": "integer"}, "address": {"type": "string"}, "name": {"type": "string"}}),
                json!({"dependentRequired": {"card": ["address"]}}),
            ),
            vec![json!({"name": "a"}), json!({"card": 7, "address": "b"}), json!({"address": "b"})],
        ),
        case(
            object(
                json!({"x": {"type": "boolean"}}),
                json!({"dependencies": {"x": {"required": ["y"], "properties": {"y": {"type": "integer"}}}}}),
            ),
            vec![json!({"x": true, "y": 3})],
        ),
        case(
            object(
                json!({"country": {"enum": ["US", "NL"]}, "zip": {"type": "string"}}),
                json!({
                    "required": ["country", "zip"],
                    "if": {"properties": {"country": {"const": "US"}}},
                    "then": {"properties": {"zip": {"pattern": "^[0-9]{5}$"}}},
                    "else": {"properties": {"zip": {"pattern": "^[0-9]{4} [A-Z]{2}$"}}},
                }),
            ),
            vec![json!({"country": "US", "zip": "12345"}), json!({"country": "NL", "zip": "1234 AB"})],
        ),
        case(
            object(
                json!({"kind": {"type": "string"}, "x": {"type": "integer"}}),
                json!({
                    "required": ["kind"],
                    "if": {"required": ["kind"], "properties": {"kind": {"const": "number"}}}, "then": {"required": ["x"]},
                }),
            ),
            vec![json!({"kind": "number", "x": 7}), json!({"kind": "other"})],
        ),
        case(
            object(json!({"x": day(), "y": day()}), json!({"oneOf": [{"required": ["x"]}, {"required": ["y"]}]})),
            vec![json!({"x": 7}), json!({"y": 3})],
        ),
        case(
            object(json!({"x": day(), "y": day()}), json!({"anyOf": [{"required": ["x"]}, {"required": ["y"]}]})),
            vec![json!({"x": 7}), json!({"y": 3}), json!({"x": 7, "y": 3})],
        ),
        case(
            object(
                json!({"x": {"oneOf": [{"type": "number", "minimum": 5}, {"type": "integer", "maximum": 9}]}}),
                json!({"required": ["x"]}),
            ),
            vec![json!({"x": 3}), json!({"x": 12})],
        ),
        case(
            object(
                json!({"x": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}}),
                json!({"required": ["x"]}),
            ),
            vec![json!({"x": {"a": 3}}), json!({"x": {}})],
        ),
        case(
            object(
                json!({"x": {
                    "type": "object", "propertyNames": {"enum": ["one", "two"]},
                    "additionalProperties": {"type": "integer"}, "minProperties": 1,
                }}),
                json!({"required": ["x"]}),
            ),
            vec![json!({"x": {"one": 3}}), json!({"x": {"one": 3, "two": 4}})],
        ),
        case(
            object(
                json!({"x": {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 10}, "maxItems": 4}}),
                json!({"required": ["x"]}),
            ),
            vec![json!({"x": [11]}), json!({"x": [11, 3]})],
        ),
        case(
            object(
                json!({"x": {
                    "type": "array", "items": {"enum": ["a", "b"]}, "contains": {"const": "a"},
                    "minContains": 2, "maxContains": 2, "maxItems": 4,
                }}),
                json!({"required": ["x"]}),
            ),
            vec![json!({"x": ["a", "a"]}), json!({"x": ["a", "a", "b"]})],
        ),
        case(
            object(
                json!({"x": {
                    "type": "array", "uniqueItems": true, "minItems": 3, "maxItems": 5,
                    "items": {"type": "integer", "minimum": 0, "maximum": 30},
                }}),
                json!({"required": ["x"]}),
            ),
            vec![json!({"x": [3, 12, 22, 7]})],
        ),
        case(
            object(
                json!({"x": {"type": "integer", "minimum": 0, "maximum": 20, "not": {"multipleOf": 2}}}),
                json!({"required": ["x", "ghost"]}),
            ),
            vec![json!({"x": 7, "ghost": "any"})],
        ),
        case(
            object(
                json!({"x": {
                    "type": "string",
                    "pattern": r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
                }}),
                json!({"required": ["x"]}),
            ),
            vec![json!({"x": "ann.lee@mail.example.org"})],
        ),
        case(
            object(
                json!({"x": {"type": "string", "pattern": r"^(?!no)(?!-)(?!.*--)[a-z-]{2,}$"}}),
                json!({"required": ["x"]}),
            ),
            vec![json!({"x": "yes-no"})],
        ),
        case(
            object(
                json!({"x": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.1}, "y": {"type": "number", "maximum": 3.4e38}}),
                json!({"required": ["x"]}),
            ),
            vec![json!({"x": 0.05, "y": 2.5})],
        ),
        case(
            json!({
                "type": "object", "required": ["x"], "properties": {"x": {"$ref": "#/definitions/List%3Cstring%3E"}},
                "definitions": {"List<string>": {"type": "array", "minItems": 1.0, "maxItems": 2, "items": {"type": "string"}}},
            }),
            vec![json!({"x": ["a", "b"]})],
        ),
        case(
            object(json!({"x": day(), "y": day(), "z": day()}), json!({"minProperties": 1, "maxProperties": 2})),
            vec![json!({"x": 7}), json!({"y": 3, "z": 4})],
        ),
        case(
            json!({
                "type": "object", "unevaluatedProperties": false, "properties": {"x": day()},
                "allOf": [{"properties": {"y": {"type": "integer"}}, "required": ["y"]}],
            }),
            vec![json!({"y": 3}), json!({"x": 7, "y": 3})],
        ),
        case(
            object(
                json!({"x": {
                    "type": "object", "properties": {"a": day(), "b": day()},
                    "required": ["a"], "dependentSchemas": {"b": {"properties": {"a": {"minimum": 9}}}},
                }}),
                json!({"required": ["x"]}),
            ),
            vec![json!({"x": {"a": 3}}), json!({"x": {"a": 9, "b": 3}})],
        ),
        case(
            json!({
                "type": "object", "required": ["x"], "properties": {"x": {"$ref": "#/$defs/node"}},
                "$defs": {"node": {
                    "type": "object", "required": ["v"], "additionalProperties": false,
                    "properties": {"v": {"type": "integer", "not": {"const": 3}}, "next": {"$ref": "#/$defs/node"}},
                }},
            }),
            vec![json!({"x": {"v": 4}}), json!({"x": {"v": 4, "next": {"v": 5}}})],
        ),
    ]
});

pub(super) fn plan(format: ToolFormat, schema: &Value) -> ToolPlan {
    let tool = Tool { name: "f".to_owned(), parameters: schema.clone(), strict: false };
    ToolPlan {
        format,
        tools: vec![tool],
        choice: ToolChoice::Required,
        parallel: false,
        answer: None,
        spells_thoughts: false,
    }
}

/// Formats without JSON, and one with it.
pub(super) fn formats() -> Vec<ToolFormat> {
    let mut all = without_json();
    all.push(ToolFormat::MistralNamed);
    all
}

#[test]
fn en_5_keywords_that_grammars_do_not_know_leave_room_for_calls() {
    for Case { schema, wanted } in &*CASES {
        let validator = Validator::new(schema).unwrap();
        for arguments in wanted {
            assert!(validator.is_valid(arguments), "{schema}: {arguments}");
            let call = format!("[TOOL_CALLS]f[ARGS]{}", spaced(arguments));
            assert!(allows(&plan(ToolFormat::MistralNamed, schema), &call), "{schema}: {call}");
        }
    }
}

/// JSON as models write it.
pub(super) fn spaced(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("[{}]", values.iter().map(spaced).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| format!("{}: {}", json!(key), spaced(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Numbers keep to their bounds, however near those are.
    #[test]
    fn en_5_numbers_keep_to_near_bounds(
        format in prop::sample::select(formats()), lower in -40_i32..40, width in 1_i32..40, digits in 0_u32..8,
        excludes in prop::array::uniform2(any::<bool>()), choices in proptest::collection::vec(any::<u16>(), 20..60),
    ) {
        let scaled = |number: i32| f64::from(number) / 10_f64.powi(digits as i32);
        let names = [["minimum", "exclusiveMinimum"][usize::from(excludes[0])], ["maximum", "exclusiveMaximum"][usize::from(excludes[1])]];
        let number = json!({"type": "number", names[0]: scaled(lower), names[1]: scaled(lower + width)});
        let schema = json!({"type": "object", "required": ["x"], "properties": {"x": number}});
        let plan = plan(format, &schema);
        let Some(call) = random_call(&plan, &choices) else { return Ok(()) };
        let value: Value = serde_json::from_str(&arguments_read(&plan, &call)).unwrap();
        prop_assert!(Validator::new(&schema).unwrap().is_valid(&value), "{:?} {}: {}", format, schema, value);
    }

    /// The arguments of a call are valid, whatever a model writes.
    #[test]
    fn en_5_arguments_keep_to_keywords_that_grammars_do_not_know(
        case in any::<prop::sample::Index>(), format in prop::sample::select(formats()),
        choices in proptest::collection::vec(any::<u16>(), 20..60),
    ) {
        let schema = &CASES[case.index(CASES.len())].schema;
        let plan = plan(format, schema);
        let Some(call) = random_call(&plan, &choices) else { return Ok(()) };
        let arguments = arguments_read(&plan, &call);
        let value: Value = serde_json::from_str(&arguments).unwrap();
        let validator = Validator::new(schema).unwrap();
        prop_assert!(validator.is_valid(&value), "{:?} {}: {} from {}", format, schema, arguments, call);
    }
}

/// Schemas that would grow with each level stay within bounds.
#[test]
fn en_5_a_hostile_schema_of_a_tool_does_not_grow_without_bounds() {
    let nested = |wrap: fn(Value) -> Value| (0..24).fold(json!({"type": "integer"}), |inside, _| wrap(inside));
    let names: Vec<String> = (0..40).map(|number| format!("k{number}")).collect();
    let named = (0..24).fold(
        json!({"type": "integer"}),
        |inside, _| json!({"type": "object", "propertyNames": {"enum": names}, "additionalProperties": inside}),
    );
    let selves: Vec<Value> =
        (0..12).map(|_| json!({"$ref": "#/$defs/self"})).chain([json!({"type": "null"})]).collect();
    for schema in [
        named,
        nested(|inside| json!({"type": "array", "contains": inside, "minContains": 9})),
        nested(|inside| json!({"if": {"minimum": 1}, "then": inside, "else": {"pattern": "a"}})),
        nested(|inside| json!({"oneOf": [inside.clone(), {"required": ["a"]}, {"minItems": 2}]})),
        json!({"$ref": "#/$defs/self"}),
    ] {
        let schema = json!({
            "type": "object", "properties": {"x": schema}, "required": ["x"], "uniqueItems": true,
            "$defs": {"self": {"anyOf": selves}},
        });
        for format in [ToolFormat::QwenCoder, ToolFormat::Gemma, ToolFormat::MistralNamed] {
            let plan = plan(format, &schema);
            let size =
                plan.grammar(&crate::tools::ToolMarkers::default()).map_or(0, |grammar| format!("{grammar:?}").len());
            assert!(size < 8 << 20, "{format:?}: {size} bytes of {schema}");
        }
        let read = arguments_read(&plan(ToolFormat::MistralNamed, &schema), "[TOOL_CALLS]f[ARGS]{\"x\": {\"x\": []}}");
        assert_eq!(read, "{\"x\": {\"x\": []}}");
    }
}
