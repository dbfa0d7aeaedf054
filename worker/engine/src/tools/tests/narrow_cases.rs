//! More arguments of tools that are not `strict`: patterns with looks around, numbers that are no integers, and keys
//! and items that come twice.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use jsonschema::Validator;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::narrow::{Case, case, formats, plan, spaced};
use super::{ToolFormat, allows, arguments_read, random_call, without_json};
use crate::tools::ToolMarkers;
use crate::tools::narrow::narrowed;

/// A schema of arguments with one value, which is of this schema.
fn of_value(schema: Value, wanted: &[Value]) -> Case {
    let schema = json!({"type": "object", "required": ["x"], "properties": {"x": schema}});
    case(schema, wanted.iter().map(|value| json!({ "x": value })).collect())
}

static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
    vec![
        of_value(json!({"type": "string", "not": {"pattern": "^admin"}}), &[json!("user"), json!("an admin")]),
        of_value(json!({"type": "string", "not": {"pattern": "[ \t]"}, "maxLength": 8}), &[json!("a-b"), json!("")]),
        of_value(
            json!({"type": "string", "pattern": "^[a-z]+$", "not": {"pattern": "^(root|admin)$"}, "minLength": 2}),
            &[json!("rooted"), json!("ad")],
        ),
        of_value(json!({"type": "string", "not": {"anyOf": [{"pattern": "a"}, {"pattern": "^$"}]}}), &[json!("bc")]),
        of_value(text(r"^[a-z]+(?!-)$"), &[json!("ab")]),
        of_value(text(r"^(?:(?!foo)[a-z])+$"), &[json!("food".replace("foo", "fod")), json!("bar")]),
        of_value(text(r"^[a-z]+-(?!0)[0-9]{1,3}$"), &[json!("ab-12")]),
        of_value(text(r"^[a-z0-9]+(?<!0)$"), &[json!("a01")]),
        of_value(text(r"^(?<![b-z])[a-z ]*\bto\b[a-z ]*$"), &[json!("go to it"), json!("to")]),
        of_value(text(r"^[a-z]+\B[0-9]$"), &[json!("ab1")]),
        of_value(text(r"^x?(?=[0-9]*[13579]$)[0-9]+$"), &[json!("x101"), json!("3")]),
        of_value(
            json!({
                "type": "string", "minLength": 8, "maxLength": 20,
                "pattern": "^(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])[A-Za-z0-9!@#]+$",
            }),
            &[json!("Passw0rd!")],
        ),
        of_value(
            text("^(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])(?=.*[@$!%*?&])[A-Za-z0-9@$!%*?&]{8,}$"),
            &[json!("Passw0rd!")],
        ),
        of_value(text("^(?!-)(?!.*--)[a-z0-9-]{1,40}(?<!-)$"), &[json!("my-bucket-1")]),
        of_value(text(r"^(['_])[a-z]+\1$"), &[json!("'ab'"), json!("_ab_")]),
        of_value(
            json!({"type": "string", "minLength": 4, "maxLength": 9, "pattern": r"^(?!.*(.)\1)[a-z]+$"}),
            &[json!("abcd")],
        ),
        of_value(json!({"type": ["string", "null"], "pattern": "(?!)"}), &[Value::Null]),
        of_value(
            json!({"type": "string", "oneOf": [{"pattern": "^a"}, {"pattern": "b$"}]}),
            &[json!("ax"), json!("xb"), json!("a")],
        ),
        of_value(
            json!({"oneOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "string", "pattern": "^[0-9]+$"}]}),
            &[json!("ab"), json!("12")],
        ),
        of_value(
            json!({"oneOf": [{"type": "string", "pattern": "^[a-z]*$"}, {"type": "string", "maxLength": 3}]}),
            &[json!("A"), json!("abcd")],
        ),
        case(
            json!({
                "type": "object", "required": ["kind", "id"],
                "properties": {"kind": {"type": "string", "maxLength": 6}, "id": {"type": "string"}},
                "if": {"properties": {"kind": {"pattern": "^num"}}},
                "then": {"properties": {"id": {"pattern": "^[0-9]+$"}}},
                "else": {"properties": {"id": {"pattern": "^[a-z]+$"}}},
            }),
            vec![json!({"kind": "num", "id": "12"}), json!({"kind": "word", "id": "ab"})],
        ),
        case(
            json!({"type": "object", "minProperties": 2, "maxProperties": 3, "additionalProperties": {"type": "integer"}}),
            vec![json!({"a": 1, "b": 2}), json!({"a": 1, "b": 2, "c": 3})],
        ),
        case(
            json!({
                "type": "object", "required": ["x"], "minProperties": 2, "maxProperties": 3,
                "properties": {"x": {"type": "integer"}}, "additionalProperties": {"type": ["string", "boolean"]},
            }),
            vec![json!({"x": 1, "y": "b"}), json!({"x": 1, "y": true, "z": "true or not"})],
        ),
        case(
            json!({
                "type": "object", "minProperties": 1, "additionalProperties": false,
                "patternProperties": {"^env_": {"type": "string"}, "^n_": {"type": "number"}},
            }),
            vec![json!({"env_a": "7"}), json!({"n_a": 7, "env_b": ""})],
        ),
        case(
            json!({"type": "object", "minProperties": 1, "propertyNames": {"pattern": "^[a-c]$"}}),
            vec![json!({"a": 1}), json!({"b": [], "c": "x"})],
        ),
        case(
            json!({"type": "object", "required": ["to"], "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}),
            vec![json!({"to": "b"}), json!({"a": 1, "to": "b", "more": "c"})],
        ),
        of_value(
            json!({"type": "object", "propertyNames": {"not": {"pattern": "^_"}}, "maxProperties": 3}),
            &[json!({"a": 1}), json!({"b_": 1})],
        ),
        of_value(
            json!({
                "type": "object", "propertyNames": {"pattern": "^(?!x)[a-z]+$", "maxLength": 4},
                "additionalProperties": {"type": "integer"},
            }),
            &[json!({"ax": 1}), json!({})],
        ),
        of_value(
            json!({
                "type": "object", "additionalProperties": false,
                "patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 3}},
            }),
            &[json!({"ax": 1}), json!({"xb": 4}), json!({"ab": 4})],
        ),
        of_value(
            json!({"oneOf": [{"type": "number"}, {"type": "integer"}]}),
            &[json!(0.5), json!(19.99), json!(-2.25)],
        ),
        of_value(
            json!({"type": "integer", "oneOf": [{"multipleOf": 3}, {"multipleOf": 5}]}),
            &[json!(3), json!(10), json!(99)],
        ),
        of_value(json!({"type": "integer", "not": {"multipleOf": 2}}), &[json!(7), json!(1)]),
        of_value(
            json!({"type": "number", "minimum": 1, "exclusiveMaximum": 4, "not": {"type": "integer"}}),
            &[json!(1.5), json!(3.75)],
        ),
        of_value(json!({"type": "number", "not": {"multipleOf": 0.5}}), &[json!(0.25), json!(2.3)]),
        of_value(
            json!({"oneOf": [{"type": "number", "multipleOf": 2}, {"type": "integer", "maximum": 10}]}),
            &[json!(12), json!(3)],
        ),
        of_value(
            json!({"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}}),
            &[json!({"a": 1, "b": 2})],
        ),
        of_value(
            json!({"type": "object", "minProperties": 3, "propertyNames": {"pattern": "^[a-d]$"}}),
            &[json!({"a": 1, "b": 2, "c": []})],
        ),
        of_value(
            json!({
                "type": "object", "minProperties": 3, "properties": {"a": {"type": "integer"}}, "required": ["a"],
                "additionalProperties": {"type": "boolean"},
            }),
            &[json!({"a": 1, "b": true, "c": false})],
        ),
        of_value(
            json!({
                "type": "object", "minProperties": 2, "properties": {"a": {"type": "integer"}},
                "additionalProperties": {"type": "boolean"},
            }),
            &[json!({"a": 1, "b": true})],
        ),
        of_value(
            json!({"type": "array", "uniqueItems": true, "minItems": 3, "items": {"type": "string", "maxLength": 2}}),
            &[json!(["a", "b", "c"])],
        ),
        of_value(
            json!({"type": "array", "uniqueItems": true, "minItems": 2, "items": {"type": "string", "pattern": "^[a-c]{2}$"}}),
            &[json!(["ab", "bc"])],
        ),
        of_value(
            json!({"type": "array", "uniqueItems": true, "minItems": 2, "items": {"type": "string", "format": "date"}}),
            &[json!(["2024-01-01", "2024-02-01"])],
        ),
        of_value(
            json!({
                "type": "array", "uniqueItems": true, "minItems": 2, "maxItems": 4, "items": {
                    "type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
                },
            }),
            &[json!([{"n": 1}, {"n": 2}])],
        ),
        case(
            json!({
                "type": "object", "required": ["x"], "properties": {"x": {"$ref": "#/$defs/node"}},
                "$defs": {"node": {
                    "$dynamicAnchor": "node", "type": "object", "required": ["v"], "additionalProperties": false,
                    "properties": {"v": {"type": "integer"}, "next": {"$dynamicRef": "#node"}},
                }},
            }),
            vec![json!({"x": {"v": 4}}), json!({"x": {"v": 4, "next": {"v": 5}}})],
        ),
        of_value(
            json!({"type": "array", "uniqueItems": true, "minItems": 2, "items": {"type": "number", "minimum": 0}}),
            &[json!([1, 2.5])],
        ),
    ]
});

#[test]
fn en_5_patterns_counts_and_fractions_leave_room_for_calls() {
    for Case { schema, wanted } in &*CASES {
        let validator = Validator::new(schema).unwrap();
        for arguments in wanted {
            assert!(validator.is_valid(arguments), "{schema}: {arguments}");
            let call = format!("[TOOL_CALLS]f[ARGS]{}", spaced(arguments));
            let plan = plan(ToolFormat::MistralNamed, schema);
            let narrow = || Value::Object(narrowed(schema.as_object().unwrap().clone()));
            assert!(allows(&plan, &call), "{schema} as {}: {call}", narrow());
            let read: Value = serde_json::from_str(&arguments_read(&plan, &call)).unwrap();
            assert_eq!(read, *arguments, "{schema}: it is passed on as it is");
        }
    }
}

/// Arguments whose names no schema has, in the formats that spell them one by one. They come behind those with names.
#[test]
fn en_5_parameters_without_names_in_the_schema_have_a_form_in_every_format() {
    let schema = json!({
        "type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}, "minProperties": 2,
        "maxProperties": 3, "patternProperties": {"^n_": {"type": "number"}}, "additionalProperties": {"type": "string"},
    });
    for format in without_json() {
        let plan = plan(format, &schema);
        let call = |arguments: &Value| plan.format.calls(&[("f", &arguments.to_string())]);
        for arguments in [json!({"a": 1, "n_b": 2.5}), json!({"a": 1, "b": "c"}), json!({"a": 1, "b": "7", "c": "d"})] {
            assert!(allows(&plan, &call(&arguments)), "{format:?}: {arguments}");
            let read: Value = serde_json::from_str(&arguments_read(&plan, &call(&arguments))).unwrap();
            assert_eq!(read, arguments, "{format:?}");
        }
        let many = json!({"a": 1, "b": "c", "c": "d", "d": "e"});
        for arguments in [json!({"a": 1}), json!({"a": 1, "n_b": "c"}), json!({"b": "c", "c": "d"}), many] {
            assert!(!allows(&plan, &call(&arguments)), "{format:?}: {arguments}");
        }
    }
}

#[test]
fn en_5_names_of_properties_bind_those_that_a_schema_names_too() {
    for (schema, yes, no) in [
        (
            json!({
                "type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": false,
                "propertyNames": {"pattern": "^a"},
            }),
            json!({"a": 1}),
            json!({"b": 1}),
        ),
        (
            json!({
                "type": "object", "patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": {"type": "null"},
                "propertyNames": {"maxLength": 3},
            }),
            json!({"n_a": 1, "b": null}),
            json!({"n_ab": 1}),
        ),
        (
            json!({"type": "object", "propertyNames": {"enum": ["a", "n_"]}, "patternProperties": {"^n_": {"type": "integer"}}}),
            json!({"a": "x", "n_": 1}),
            json!({"n_": "x"}),
        ),
        (
            json!({"type": "object", "minProperties": 3, "propertyNames": {"pattern": "^[a-d]$"}}),
            json!({"a": 1, "b": 2, "d": 3}),
            json!({"a": 1, "b": 2}),
        ),
    ] {
        let Case { schema, .. } = of_value(schema, &[]);
        for format in [ToolFormat::QwenCoder, ToolFormat::MistralNamed] {
            let plan = plan(format, &schema);
            let call = |value: &Value| format.calls(&[("f", &json!({ "x": value }).to_string())]);
            assert!(allows(&plan, &call(&yes)), "{format:?} {schema}: {yes}");
            assert!(!allows(&plan, &call(&no)), "{format:?} {schema}: {no}");
        }
    }
}

/// Conditions within conditions add levels: they are left out where the schema could not be read any more.
#[test]
fn en_5_conditions_deep_within_others_leave_a_schema_that_can_be_read() {
    let within = |inside: Value, number: usize| {
        json!({
            "type": "object", "properties": {"a": inside, "b": {"type": "integer"}},
            "if": {"properties": {"b": {"const": number}}, "required": ["b"]}, "then": {"required": ["a"]},
        })
    };
    let deep = (0..25).fold(json!({"type": "boolean"}), within);
    let Case { schema, .. } = of_value(deep, &[]);
    for format in [ToolFormat::QwenCoder, ToolFormat::MistralNamed] {
        let plan = plan(format, &schema);
        assert!(allows(&plan, &format.calls(&[("f", r#"{"x":{"b":1}}"#)])), "{format:?}");
    }
}

#[test]
fn en_5_arguments_that_no_schema_can_have_are_refused_by_keyword() {
    for (schema, keyword) in [
        (
            json!({"type": "object", "properties": {"a": {}}, "additionalProperties": false, "minProperties": 2}),
            "'minProperties'",
        ),
        (json!({"type": "array", "items": {"const": "a"}, "uniqueItems": true, "minItems": 2}), "'uniqueItems'"),
    ] {
        let Case { schema, .. } = of_value(schema, &[]);
        for format in [ToolFormat::QwenCoder, ToolFormat::MistralNamed, ToolFormat::Hermes] {
            let refused = plan(format, &schema).grammar(&ToolMarkers::default()).unwrap_err();
            assert!(refused.message.contains(keyword), "{format:?}: {refused}");
        }
    }
}

#[test]
fn en_5_what_a_model_repeats_is_altered_where_there_would_be_too_few() {
    for (schema, call, wanted) in [
        (
            json!({"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}}),
            r#"{"a": 1, "a": 2, "a": 3}"#,
            json!({"a": 1, "a_2": 2}),
        ),
        (
            json!({"type": "object", "minProperties": 2, "propertyNames": {"pattern": "^[a-z]$"}}),
            r#"{"a": 1, "a": 2}"#,
            json!({"a": 1, "b": 2}),
        ),
        (
            json!({"type": "array", "uniqueItems": true, "minItems": 2, "items": {"type": "string"}}),
            r#"["a", "a", "a"]"#,
            json!(["a", "a_2"]),
        ),
    ] {
        let Case { schema, .. } = of_value(schema, &[]);
        let call = format!("[TOOL_CALLS]f[ARGS]{{\"x\": {call}}}");
        let plan = plan(ToolFormat::MistralNamed, &schema);
        assert!(allows(&plan, &call), "{schema}: {call}");
        let read: Value = serde_json::from_str(&arguments_read(&plan, &call)).unwrap();
        assert_eq!(read, json!({ "x": wanted }), "{schema}");
        assert!(Validator::new(&schema).unwrap().is_valid(&read), "{schema}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The arguments of a call are valid, whatever a model writes.
    #[test]
    fn en_5_arguments_keep_to_patterns_counts_and_fractions(
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

/// Patterns whose automata have no end still have a grammar in time, whose calls are valid.
#[test]
fn en_5_hostile_patterns_of_a_tool_have_a_grammar_in_time() {
    let nested = (0..12).fold("a".to_owned(), |inside, _| format!("(?:(?!{inside})[ab])*"));
    let wide = format!("^(?!{})", (0..300).map(|number| format!("a{{{number}}}b|")).collect::<String>());
    for schema in [
        json!({"type": "string", "not": {"pattern": "^(a|b)*a(a|b){20}$"}}),
        json!({"type": "string", "pattern": "^(?=(a|b)*a(a|b){20}$)(?!(a|b)*b(a|b){15}$)"}),
        json!({"type": "string", "pattern": nested}),
        json!({"type": "string", "pattern": wide}),
        json!({"oneOf": (0..8).map(|n| json!({"type": "string", "pattern": format!("^(a|b)*a(a|b){{{}}}$", 12 + n)})).collect::<Vec<_>>()}),
        json!({"allOf": (0..40).map(|n| json!({"not": {"pattern": format!("(x|{n})*y(a|b){{30}}")}})).collect::<Vec<_>>(), "type": "string"}),
    ] {
        let Case { schema, .. } = of_value(schema, &[]);
        for format in [ToolFormat::QwenCoder, ToolFormat::MistralNamed] {
            let begun = Instant::now();
            let size = plan(format, &schema)
                .grammar(&ToolMarkers::default())
                .map_or(0, |grammar| format!("{grammar:?}").len());
            assert!(size < 1 << 20, "{size} bytes of {schema}");
            assert!(begun.elapsed() < Duration::from_secs(20), "{schema}");
        }
    }
}
