use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::text::{Vocabulary, fixture};

const PATIENCE: Duration = Duration::from_secs(30);

fn threads() -> Arc<MaskThreads> {
    Arc::new(MaskThreads::start().unwrap())
}

fn vocabulary() -> Vocabulary {
    fixture::byte_level().vocabulary().unwrap()
}

fn compiler() -> GrammarCompiler {
    GrammarCompiler::new(&vocabulary(), threads()).unwrap()
}

pub(super) fn next(constraint: &mut Constraint) -> NextToken {
    loop {
        let seen = constraint.grammar().threads().done();
        match constraint.next_token() {
            Some(next) => return next.unwrap(),
            None => constraint.grammar().threads().wait_beyond(seen, PATIENCE),
        }
    }
}

/// Whether the whole of a text is an answer that the grammar has: every byte allowed, and the end too.
fn has(grammar: &CompiledGrammar, text: &str) -> bool {
    let mut constraint = Constraint::begin(grammar.clone());
    for byte in text.bytes() {
        match next(&mut constraint) {
            NextToken::OneOf(mask) if mask.allows(u32::from(byte)) => constraint.accept(u32::from(byte)),
            NextToken::OneOf(_) | NextToken::End => return false,
        }
    }
    match next(&mut constraint) {
        NextToken::End => true,
        NextToken::OneOf(mask) => mask.allows(257),
    }
}

fn check(grammar: &Grammar, yes: &[&str], no: &[&str]) {
    let compiled = compiler().compile(grammar).unwrap_or_else(|error| panic!("{grammar:?}: {error}"));
    for text in yes {
        assert!(has(&compiled, text), "{grammar:?} should have {text}");
    }
    for text in no {
        assert!(!has(&compiled, text), "{grammar:?} should not have {text}");
    }
}

fn schema(schema: &serde_json::Value) -> Grammar {
    Grammar::JsonSchema(schema.to_string())
}

#[test]
fn en_6_json_follows_its_schema_without_optional_white_space() {
    let person = json!({
        "type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"], "additionalProperties": false,
    });
    check(
        &schema(&person),
        &[r#"{"name":"Ada","age":36}"#, r#"{"name":"é \"x\" \n","age":0}"#],
        &[
            r#"{"name": "Ada","age":36}"#,
            r#"{"name":"Ada"}"#,
            r#"{"name":"Ada","age":-1}"#,
            r#"{"name":"Ada","age":36,"x":1}"#,
            "",
            "[]",
        ],
    );
    check(&Grammar::json_object(), &["{}", r#"{"a":[1,true,null]}"#], &["[]", "1", "{ }", r#"{"a": 1}"#]);
    check(&schema(&person).begun(), &["{\"name\": \"Ada\",\n \"age\": 36}"], &[r#"{"name":"Ada"}"#]);
}

#[test]
fn en_6_numbers_of_json_end() {
    let digits = |count: usize| "9".repeat(count);
    let of_64_bits = ["0", "-9223372036854775808", "18446744073709551615"];
    check(&schema(&json!({"type": "integer"})), &of_64_bits, &[&digits(21), "1.5", "1e3"]);
    check(&schema(&json!({"type": "integer", "minimum": 7})), &["7", &digits(20)], &["6", &digits(21)]);
    check(
        &schema(&json!({"type": "integer", "multipleOf": 5})),
        &["-15", &digits(19).replace('9', "5")],
        &["7", &digits(21).replace('9', "5")],
    );
    let number = schema(&json!({"type": "number"}));
    let exact =
        ["0.1", "-1.7976931348623157e308", "2.2250738585072014E-308", "5e-324", "1e+20", "0.00001234567890123456"];
    check(
        &number,
        &[&of_64_bits[..], &exact].concat(),
        &[&digits(21), &format!("0.{}", digits(21)), "1e309", "1e-1000", "01", ".5"],
    );
    check(&schema(&json!({"type": "number", "minimum": 0.5})), &["0.5", "17.25"], &[&format!("1.{}", digits(21))]);
    // Other kinds of values are as free beside a number as they are alone.
    let either = json!({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^[0-9]*$"}, {"type": "null"}]});
    let quoted = format!("\"{}\"", digits(40));
    check(&schema(&either), &["12", "null", "\"\"", &quoted], &[&digits(21), "\"a\"", "nul"]);
    let any = format!("{{\"a\":[1,{{\"b\":{quoted}}}],\"{}\":-2.5e-3}}", digits(40));
    check(
        &Grammar::json_object(),
        &[&any],
        &[&format!("{{\"a\":{}}}", digits(21)), &format!("{{\"a\":[0.{}]}}", digits(21))],
    );
    check(&Grammar::json_object().begun(), &["{ \"a\": 12 }"], &[&format!("{{\"a\": {}}}", digits(21))]);
    // These numbers must be longer.
    check(&schema(&json!({"enum": [1e25]})), &[&format!("1{}", "0".repeat(25))], &["1"]);
    // A client's own grammar stays as it is.
    let lark = "start: A | %json {\"type\": \"integer\"}\nA: /[0-9]+/\n";
    check(&Grammar::Lark(lark.into()), &[&digits(40)], &["a"]);
    check(&Grammar::Regex("[0-9]+".into()), &[&digits(40)], &["a"]);
}

#[test]
fn en_6_expressions_choices_and_grammars_bind_whole_answers() {
    check(&Grammar::Regex("[ab]{2,3}".into()), &["ab", "bba"], &["a", "abab", "abc", ""]);
    check(
        &Grammar::Choice(vec!["yes".into(), "yes, sir".into(), "é\"\n/".into()]),
        &["yes", "yes, sir", "é\"\n/"],
        &["no", "ye"],
    );
    check(&Grammar::Lark("start: \"a\" b+\nb: \"x\" | \"y\"\n".into()), &["axy"], &["a", "ab"]);
}

#[test]
fn en_6_gbnf_has_the_texts_that_it_describes() {
    let list = "root ::= item (\", \" item)* # a list\nitem ::= [a-z]+ | \"-\" [^a-z\\n] | \"\\\"q\\u00e9\\\"\"\n";
    check(&Grammar::Gbnf(list.into()), &["a", "abc, -X", "\"qé\", a"], &["", "a,b", "-a", "a, "]);
    let counted = "root ::= \"x\"{2} y{1,} [0-9]{0,2}\ny ::= \"y\"?\n";
    check(&Grammar::Gbnf(counted.into()), &["xx", "xxyy12"], &["x", "xxx", "xx123"]);
    // The grammar of JSON that comes with llama.cpp has this form.
    let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"#;
    check(
        &Grammar::Gbnf(json.into()),
        &["{}", "{\"a\": [1, 2.5e3, {\"b\":null}]}", "{\"a\":\"\\u00e9\"}"],
        &["[]", "{\"a\"}", "{\"a\":01}", ""],
    );
    let nested = "root ::= \"(\" root? \")\"";
    check(&Grammar::in_either_notation(nested.into()), &["()", "((()))"], &["", "(", "(()", "())"]);
    for (grammar, word) in [
        ("root ::= \"a", "line 1"),
        ("a ::= \"a\"", "root"),
        ("root ::= b", "'b'"),
        ("root ::= [z-a]", "z-a"),
        ("root ::= \"a\"\nx ::= (\"b\"", "line 2"),
        ("root ::= \"a\"{3,1}", "{3,1}"),
        ("root ::= \"\\q\"", "\\q"),
    ] {
        let error = compiler().compile(&Grammar::Gbnf(grammar.into())).unwrap_err().to_string();
        assert!(error.contains(word), "{grammar}: {error}");
    }
}

#[test]
fn en_6_a_schema_that_cannot_be_met_is_refused_by_its_keyword() {
    for (value, word) in [
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
        (json!({"type": "string", "minLength": 5, "maxLength": 2}), "minLength"),
        (json!({"type": "integer", "minimum": 5, "maximum": 2}), "minimum"),
        (json!({"type": "array", "minItems": 3, "maxItems": 1}), "minItems"),
        (json!({"type": "object", "properties": {"a": false}, "required": ["a"]}), "required"),
        (json!({"type": "frob"}), "'type' is no type of JSON: frob"),
        (json!({"enum": []}), "enum"),
        (json!({"type": "string", "pattern": "("}), "pattern"),
        (json!({"not": {"type": "string"}}), "not"),
        (json!({"$ref": "#/$defs/none"}), "'$ref': the segment '$defs' not found in '#/$defs/none'"),
        (json!({"const": "a", "anyOf": [{"type": "integer"}, {"type": "null"}]}), "'anyOf'"),
        (json!({"anyOf": [{"const": "a"}, {"const": "b"}], "const": "c"}), "'const'"),
        (json!({"anyOf": [{"const": "a"}, {"const": "b"}], "enum": ["c", "d"]}), "'enum'"),
        (json!({"type": "string", "enum": [1, null]}), "'enum'"),
        (json!({"const": 1, "enum": [2, 3]}), "'const', 'enum'"),
        (json!({"allOf": [{"enum": ["a"]}, {"enum": ["b", "c"]}]}), "'allOf'"),
        (json!({"const": null, "oneOf": [{"type": "integer"}, {"type": "string"}]}), "'oneOf'"),
        (json!({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 3}]}), "oneOf"),
        (json!({"type": "string", "const": "abc", "maxLength": 1}), "'maxLength'"),
        (
            json!({"type": "object", "properties": {"x": {"const": "a", "type": "integer"}}, "required": ["x"]}),
            "#/properties/x",
        ),
        (json!({"$ref": "#/$defs/a", "const": 1, "$defs": {"a": {"type": "string"}}}), "'$ref'"),
        (
            json!({"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/a", "const": 1}, "$defs": {"a": {"type": "string"}}}),
            "#/items",
        ),
    ] {
        let error = compiler().compile(&schema(&value)).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(word), "{value}: {error}");
    }
    for grammar in [
        Grammar::Regex("(".into()),
        Grammar::Lark("start: frob".into()),
        Grammar::Lark(String::new()),
        Grammar::Choice(Vec::new()),
        Grammar::JsonSchema("nonsense".into()),
        Grammar::JsonSchema("false".into()),
    ] {
        assert!(compiler().compile(&grammar).is_err(), "{grammar:?}");
    }
}

#[test]
fn en_6_constants_beside_other_keywords_bind_together() {
    for (value, yes, no) in [
        (json!({"const": "a", "anyOf": [{"type": "string"}, {"type": "null"}]}), "\"a\"", "null"),
        (json!({"enum": ["a", 1, null], "anyOf": [{"type": "string"}, {"type": "null"}]}), "null", "1"),
        (json!({"anyOf": [{"const": "a"}, {"const": "b"}], "const": "b"}), "\"b\"", "\"a\""),
        (json!({"anyOf": [{"const": true}, {"const": "x"}], "type": "boolean"}), "true", "\"x\""),
        (json!({"type": "string", "enum": ["a", 1, null]}), "\"a\"", "1"),
        (json!({"const": 2, "enum": [2, 3]}), "2", "3"),
        (json!({"allOf": [{"enum": ["a", "b"]}, {"enum": ["b", "c"]}]}), "\"b\"", "\"a\""),
        (json!({"const": 1, "oneOf": [{"type": "integer"}, {"type": "string"}]}), "1", "2"),
        (
            json!({"const": {"a": 1}, "type": "object", "properties": {"a": {"type": "integer"}}}),
            "{\"a\":1}",
            "{\"a\":2}",
        ),
    ] {
        check(&schema(&value), &[yes], &[no]);
    }
}

#[test]
fn en_6_an_answer_that_a_client_began_is_followed_from_there() {
    let compiler = compiler();
    let grammar = compiler.compile(&Grammar::Regex("abc*".into())).unwrap();
    let mut behind = Constraint::begin(grammar.behind("ab").unwrap());
    let NextToken::OneOf(mask) = next(&mut behind) else { panic!("it may go on") };
    assert!(mask.allows(u32::from(b'c')) && mask.allows(257) && !mask.allows(u32::from(b'a')));
    assert!(grammar.behind("x").is_none());
}

#[test]
fn en_6_special_tokens_come_only_where_a_grammar_names_them() {
    let compiler = compiler();
    let any = compiler.compile(&Grammar::Regex("(?s:.)*".into())).unwrap();
    let NextToken::OneOf(mask) = next(&mut Constraint::begin(any)) else { panic!("all texts are allowed") };
    assert!(mask.allows(257) && mask.allows(259), "both end an answer");
    assert!(!mask.allows(256) && !mask.allows(258), "special tokens are no text");
    let named = compiler.compile(&Grammar::Lark("start: <|im_start|> \"a\"".into())).unwrap();
    let NextToken::OneOf(mask) = next(&mut Constraint::begin(named)) else { panic!("a token comes first") };
    assert!(mask.allows(258) && !mask.allows(u32::from(b'a')) && !mask.allows(u32::from(b'<')));
}

#[test]
fn en_6_a_grammar_is_compiled_once_and_checked_without_a_vocabulary() {
    let compiler = compiler();
    let grammar = Grammar::Regex("a+".into());
    assert!(compiler.kept(&grammar).is_none());
    compiler.compile(&grammar).unwrap();
    assert!(compiler.kept(&grammar).is_some());
    let checker = GrammarChecker::new(&vocabulary()).unwrap();
    assert_eq!(checker.check(&grammar), Ok(()));
    assert_eq!(checker.check(&Grammar::Lark("start: <|im_start|>".into())), Ok(()));
    assert!(checker.check(&Grammar::Lark("start: <|nothing|>".into())).is_err());
}

#[test]
fn en_6_dates_are_days_that_there_are() {
    check(
        &schema(&json!({"type": "string", "format": "date"})),
        &["\"2024-02-29\"", "\"2000-02-29\"", "\"0004-02-29\"", "\"2023-12-31\"", "\"0001-01-01\""],
        &["\"2023-02-29\"", "\"1900-02-29\"", "\"0000-01-01\"", "\"0000-02-29\"", "\"2024-04-31\"", "\"2024-2-9\""],
    );
    check(
        &schema(&json!({"type": "string", "format": "date-time", "pattern": "Z$"})),
        &["\"2024-02-29T23:59:59Z\"", "\"2024-02-28T00:00:00.125Z\""],
        &["\"2023-02-29T00:00:00Z\"", "\"2024-02-28T00:00:00+01:00\"", "\"2024-02-28\""],
    );
}

#[test]
fn en_6_whole_numbers_of_a_width_keep_to_it() {
    let of = |format: &str| schema(&json!({"type": "integer", "format": format}));
    check(&of("int32"), &["2147483647", "-2147483648", "0"], &["2147483648", "-2147483649"]);
    check(&of("int64"), &["9223372036854775807", "-9223372036854774784"], &["9223372036854775808"]);
    check(&of("uint8"), &["255"], &["256", "-1"]);
    check(&schema(&json!({"type": "integer", "format": "int32", "minimum": 5})), &["5"], &["4", "2147483648"]);
}

#[test]
fn en_6_what_cannot_be_held_to_is_named() {
    for (part, words) in [
        (json!({"type": "string", "format": "my-own"}), "'format'"),
        (json!({"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2}), "'minProperties'"),
        (
            json!({"type": "object", "properties": {"a": {}}, "additionalProperties": false, "minProperties": 2}),
            "'minProperties': 2",
        ),
        (json!({"type": "array", "items": {"const": 1}, "uniqueItems": true, "minItems": 2}), "'uniqueItems'"),
        (json!({"type": "array", "items": {"enum": [1, 1]}, "uniqueItems": true, "minItems": 2}), "allows 1"),
        (json!({"type": "array", "items": 5}), "/items must be a schema"),
        (json!({"multipleOf": 0}), "'multipleOf'"),
    ] {
        let whole =
            json!({"type": "object", "properties": {"a": part}, "required": ["a"], "additionalProperties": false});
        let error = compiler().compile(&schema(&whole)).unwrap_err().to_string();
        assert!(error.contains(words), "{part}: {error}");
    }
    // One that may be left out has to have no value.
    let optional = json!({"type": "object", "properties": {"a": {"type": "object", "properties": {}, "additionalProperties": false, "minProperties": 1}}});
    check(&schema(&optional), &["{}"], &["{\"a\":{}}"]);
}
