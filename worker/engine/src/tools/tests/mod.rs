mod narrow;
mod narrow_cases;

use crate::constraint::Grammar;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::constraint::{CompiledGrammar, Constraint, GrammarCompiler, MaskThreads, NextToken};
use crate::text::fixture;

fn schemas() -> Arc<BTreeMap<String, Value>> {
    let weather = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    Arc::new([("weather".to_owned(), weather)].into())
}

type Call = (String, String);

/// The text for the reader and the calls that the pieces of a text give.
fn read(format: ToolFormat, pieces: &[&str]) -> (String, Vec<Call>) {
    let mut parser = ToolParser::new(format, schemas());
    let mut events: Vec<ToolEvent> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    events.extend(parser.finish());
    let (mut text, mut calls) = (String::new(), Vec::<Call>::new());
    for event in events {
        match event {
            ToolEvent::Text(more) => text.push_str(&more),
            ToolEvent::Thought(_) => {}
            ToolEvent::Begin { index, name } => {
                assert_eq!(index, calls.len(), "calls are numbered in order");
                calls.push((name, String::new()));
            }
            ToolEvent::Arguments { index, piece } => calls[index].1.push_str(&piece),
        }
    }
    (text, calls)
}

/// Answers with two calls in each format, as their models write them, with the text around them.
fn samples() -> Vec<(ToolFormat, &'static str, &'static str, usize)> {
    use ToolFormat::*;
    vec![
        (
            Hermes,
            "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}\n</tool_call>\n\
             <tool_call>\n{\"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}, \"name\": \"weather\"}\n</tool_call>",
            "I look.",
            2,
        ),
        (
            Generic,
            "<tool_call>{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"arguments\":\"{\\\"city\\\": \\\"Köln <b>\\\", \
             \\\"days\\\": 2}\"}}</tool_call>",
            "",
            1,
        ),
        (
            QwenCoder,
            "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln <b>\n</parameter>\n<parameter=days>\n2\n\
             </parameter>\n</function>\n</tool_call>",
            "I look.",
            1,
        ),
        (Llama, "{\"name\": \"weather\", \"parameters\": {\"city\": \"Köln <b>\", \"days\": 2}}", "", 1),
        (Llama, "<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Köln <b>\", \"days\": 2}}", "", 1),
        (
            MistralList,
            "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}, {\"name\": \
             \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}, \"id\": \"123456789\"}]",
            "",
            2,
        ),
        (
            MistralNamed,
            "[TOOL_CALLS]weather[ARGS]{\"city\": \"Köln <b>\", \"days\": 2}[TOOL_CALLS]weather[CALL_ID]123456789[ARGS]{\"city\": \
             \"Köln <b>\", \"days\": 2}",
            "",
            2,
        ),
        (
            Phi,
            "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}]<|/tool_call|>",
            "",
            1,
        ),
        (
            DeepSeekFenced,
            "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Köln <b>\", \
             \"days\": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Köln <b>\", \
             \"days\": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "I look.",
            2,
        ),
        (
            DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Köln <b>\", \"days\": 2}<｜tool▁call▁end｜>\
             <｜tool▁calls▁end｜>",
            "",
            1,
        ),
        (
            Glm,
            "I look.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Köln <b></arg_value>\n<arg_key>days</arg_key>\n\
             <arg_value>2</arg_value>\n</tool_call>",
            "I look.",
            1,
        ),
        (
            Harmony,
            "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant<|channel|>commentary to=functions.weather \
             <|constrain|>json<|message|>{\"city\": \"Köln <b>\", \"days\": 2}<|call|>",
            "",
            1,
        ),
        (
            Harmony,
            "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant<|channel|>final<|message|>It rains.",
            "It rains.",
            0,
        ),
        (
            Granite,
            "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}]",
            "",
            1,
        ),
        (
            Command,
            "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Köln <b>\", \
             \"days\": 2}}\n]<|END_ACTION|>",
            "",
            1,
        ),
        (
            CommandFenced,
            "Plan: I look.\nAction: ```json\n[\n    {\n        \"tool_name\": \"weather\",\n        \"parameters\": {\n            \
             \"city\": \"Köln <b>\",\n            \"days\": 2\n        }\n    },\n    {\n        \"tool_name\": \"weather\",\n        \
             \"parameters\": {\"city\": \"Köln <b>\", \"days\": 2}\n    }\n]```",
            "Plan: I look.",
            2,
        ),
        (
            CommandFenced,
            "Action: ```json\n[{\"tool_name\": \"weather\", \"parameters\": {\"city\": \"Köln <b>\", \"days\": 2}}]\n```",
            "",
            1,
        ),
        (
            Kimi,
            "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>\
             {\"city\": \"Köln <b>\", \"days\": 2}<|tool_call_end|><|tool_call_begin|>functions.weather:12\
             <|tool_call_argument_begin|>{\"city\": \"Köln <b>\", \"days\": 2}<|tool_call_end|><|tool_calls_section_end|>",
            "I look.",
            2,
        ),
        (
            MiniMax,
            "I look.\n\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Köln <b></parameter>\n\
             <parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"weather\">\n<parameter name=\"city\">Köln <b>\
             </parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n</minimax:tool_call>",
            "I look.",
            2,
        ),
        (
            Seed,
            "I look.\n<seed:tool_call>\n<function=weather>\n<parameter=city>Köln <b></parameter>\n<parameter=days>2\
             </parameter>\n</function>\n</seed:tool_call>",
            "I look.",
            1,
        ),
        (
            FunctionGemma,
            "<start_function_call>call:weather{city:<escape>Köln <b><escape>,days:2}<end_function_call>\
             <start_function_call>call:weather{city:<escape>Köln <b><escape>,days:2}<end_function_call>",
            "",
            2,
        ),
        (Gemma, "I look.<|tool_call>call:weather{city:<|\"|>Köln <b><|\"|>,days:2}<tool_call|>", "I look.", 1),
        (
            Lfm,
            "I look.<|tool_call_start|>[weather(city=\"Köln <b>\", days=2), weather(city='Köln <b>', days=2)]<|tool_call_end|>",
            "I look.",
            2,
        ),
        (
            LfmList,
            "<|tool_call_start|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}, \"id\": \"a-1\"}]\
             <|tool_call_end|>",
            "",
            1,
        ),
        (
            Nemotron,
            "<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}]</TOOLCALL>",
            "",
            1,
        ),
        (
            GlmTight,
            "I look.<tool_call>weather<arg_key>city</arg_key><arg_value>Köln <b></arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>weather<arg_key>city</arg_key><arg_value>Köln <b></arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
            "I look.",
            2,
        ),
        (
            MistralIds,
            "I look.[TOOL_CALLS]weather[CALL_ID]123456789[ARGS]{\"city\": \"Köln <b>\", \"days\": 2}[TOOL_CALLS]weather[CALL_ID]aBcDeFgHi[ARGS]{\"city\": \"Köln <b>\", \"days\": 2}",
            "I look.",
            2,
        ),
        (
            DeepSeekMarkup,
            "I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Köln <b></｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Köln <b></｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            "I look.",
            2,
        ),
        (
            DeepSeekMarkup4,
            "I look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Köln <b></｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Köln <b></｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "I look.",
            2,
        ),
        (
            FireFunction,
            " functools[{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}]",
            "",
            2,
        ),
        (
            Functionary,
            "I look.<function=weather>{\"city\": \"Köln <b>\", \"days\": 2}</function><function=weather>{\"city\": \"Köln <b>\", \"days\": 2}</function>",
            "I look.",
            2,
        ),
        (
            Apertus,
            "I look.<|tools_prefix|>[{\"weather\": {\"city\": \"Köln <b>\", \"days\": 2}}, {\"weather\": {\"city\": \"Köln <b>\", \"days\": 2}}]<|tools_suffix|>",
            "I look.",
            2,
        ),
        (
            GigaChat,
            "I look.<|function_call|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}",
            "I look.",
            1,
        ),
        (
            ToolCallsList,
            "I look.\n<tool_calls>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}, \"id\": \"call-1\"}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}]</tool_calls>",
            "I look.",
            2,
        ),
        (
            ToolCallsList,
            "<tool_calls>[\n    {\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}},\n    {\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}\n]</tool_calls>",
            "",
            2,
        ),
        (
            ToolCallsLines,
            "I look.<tool_calls>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}\n</tool_calls>",
            "I look.",
            2,
        ),
        (
            JsonList,
            "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}, {\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}}]",
            "",
            2,
        ),
        (PythonList, "[weather(city=\"Köln <b>\", days=2), weather(city='Köln <b>', days=2)]", "", 2),
    ]
}

/// Answers that only look like calls, all of which is text.
const NO_CALLS: [(ToolFormat, &str); 24] = [
    (ToolFormat::Hermes, "a < b, <tool, and {\"name\": 1}"),
    (ToolFormat::Hermes, "<tool_call> is a tag"),
    (ToolFormat::Hermes, "<tool_call>{\"city\": 1}"),
    (ToolFormat::Llama, "{\"city\": \"Köln\"}"),
    (ToolFormat::Llama, "{\"name\" is no call"),
    (ToolFormat::MistralNamed, "[TOOL_CALLS]two words {"),
    (ToolFormat::MistralList, "[TOOL_CALLS] [1, 2]"),
    (ToolFormat::QwenCoder, "<function= a b>"),
    (ToolFormat::Glm, "  "),
    (ToolFormat::MiniMax, "<invoke name=\"a b\">"),
    (ToolFormat::Kimi, "<|tool_call_begin|>two words {"),
    (ToolFormat::CommandFenced, "Action: ```json\n{\"x\": 1}\n```"),
    (ToolFormat::Lfm, "<|tool_call_start|>[two words(a=1)]"),
    (ToolFormat::Gemma, "<|tool_call>call: {a:1}"),
    (ToolFormat::Gemma, "<|tool_call>call:f"),
    (ToolFormat::Apertus, "<|tools_prefix|>[{}]"),
    (ToolFormat::FireFunction, "import functools"),
    (ToolFormat::FireFunction, "functools[0]"),
    (ToolFormat::Functionary, "<function=two words>{"),
    (ToolFormat::JsonList, "[1, 2]"),
    (ToolFormat::JsonList, "No [{\"name\": \"f\"}]"),
    (ToolFormat::PythonList, "[1] says that"),
    (ToolFormat::ToolCallsLines, "<tool_calls> are tags"),
    (ToolFormat::DeepSeekMarkup, "<｜DSML｜invoke name=\"a b\">"),
];

#[test]
fn en_5_calls_of_every_format_are_read() {
    for (format, answer, text, count) in samples() {
        let (said, calls) = read(format, &[answer]);
        assert_eq!(said, text, "{format:?}");
        assert_eq!(calls.len(), count, "{format:?}: {calls:?}");
        for (name, arguments) in calls {
            let arguments: Value =
                serde_json::from_str(&arguments).unwrap_or_else(|_| panic!("{format:?}: {arguments}"));
            assert_eq!((name.as_str(), arguments), ("weather", json!({"city": "Köln <b>", "days": 2})), "{format:?}");
        }
    }
}

#[test]
fn en_5_text_that_only_looks_like_a_call_is_not_lost() {
    for (format, answer) in NO_CALLS {
        assert_eq!(read(format, &[answer]), (answer.to_owned(), Vec::new()), "{format:?}");
    }
    let (text, calls) = read(ToolFormat::Hermes, &["<tool_call>{\"name\": \"f\"}</tool_call>\nDone, <tool"]);
    assert_eq!((text.as_str(), calls), ("Done, <tool", vec![("f".to_owned(), "{}".to_owned())]));
    // A second object of a list that is no call comes out as text.
    let (text, calls) =
        read(ToolFormat::MistralList, &["[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"x\": 1}]"]);
    assert_eq!((calls.len(), text.contains("{\"x\"")), (1, true), "{text}");
}

#[test]
fn en_5_a_call_that_is_cut_in_front_of_its_name_is_no_text() {
    for (format, answer, text) in [
        (ToolFormat::Hermes, "Well.\n<tool_call>\n{\"na", "Well."),
        (ToolFormat::Llama, "{\"name\": \"wea", ""),
        (ToolFormat::MistralNamed, "[TOOL_CALLS]weath", ""),
        (ToolFormat::QwenCoder, "<tool_call>\n<function=wea", ""),
        (ToolFormat::Gemma, "So<|tool_call>call:wea", "So"),
        (ToolFormat::Hermes, "a <too", "a <too"),
        (ToolFormat::Hermes, "a <tool", "a"),
        (ToolFormat::QwenCoder, "<tool_call>\n<function", ""),
    ] {
        let mut parser = ToolParser::new(format, schemas());
        let mut events = parser.push(answer);
        events.extend(parser.cut());
        let texts = events.into_iter().map(|event| match event {
            ToolEvent::Text(text) => text,
            other => panic!("{format:?}: {other:?}"),
        });
        assert_eq!(texts.collect::<String>(), text, "{format:?}");
    }
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</to";
    let mut parser = ToolParser::new(ToolFormat::Hermes, schemas());
    parser.push(call);
    assert_eq!(parser.cut(), [], "a mark behind a call");
    let mut parser = ToolParser::new(ToolFormat::Hermes, schemas()).of_calls_only();
    assert_eq!(parser.push("\n<to").into_iter().chain(parser.cut()).collect::<Vec<_>>(), [], "no text is allowed");
}

#[test]
fn en_5_arguments_are_passed_on_as_they_come() {
    let mut parser = ToolParser::new(ToolFormat::Hermes, schemas());
    let begun = parser.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x");
    let name = ToolEvent::Begin { index: 0, name: "f".to_owned() };
    assert_eq!(begun, [name, ToolEvent::Arguments { index: 0, piece: "{\"a\": \"x".to_owned() }]);
    assert_eq!(parser.push("y"), [ToolEvent::Arguments { index: 0, piece: "y".to_owned() }]);
    assert!(!parser.is_in_text());
}

#[test]
fn en_5_formats_are_recognised_by_their_templates() {
    for (template, format) in [
        ("{% if tools %}<tool_call>", ToolFormat::Hermes),
        ("<tool_call> <function=x> <parameter=y>", ToolFormat::QwenCoder),
        ("{{ tools }} <tool_call> <arg_key>", ToolFormat::Glm),
        ("[TOOL_CALLS]", ToolFormat::MistralList),
        ("[TOOL_CALLS] [ARGS]", ToolFormat::MistralNamed),
        ("<｜tool▁call▁begin｜> ```json", ToolFormat::DeepSeekFenced),
        ("<｜tool▁call▁begin｜>", ToolFormat::DeepSeek),
        ("<|channel|>commentary", ToolFormat::Harmony),
        ("<|tool_call|>", ToolFormat::Granite),
        ("<|tool|>{{ message.tools }}", ToolFormat::Phi),
        ("<|START_ACTION|>", ToolFormat::Command),
        ("<|python_tag|>", ToolFormat::Llama),
        ("<seed:tool_call>\\n<function=x>\\n<parameter=y>", ToolFormat::Seed),
        ("{% set begin = '<minimax:tool_call>' %}", ToolFormat::MiniMax),
        ("{{ tools }}<|tool_calls_section_begin|><|tool_call_begin|>", ToolFormat::Kimi),
        ("{{ '<|im_system|>tool_declare<|im_middle|>' }}", ToolFormat::Kimi),
        ("Write 'Action:' ... ```json\\n[{\"tool_name\": title}]```", ToolFormat::CommandFenced),
        ("{{ tools }}<start_function_call>call:", ToolFormat::FunctionGemma),
        ("{{ tools }}<|tool_call>call:<tool_call|>", ToolFormat::Gemma),
        ("{{ tools }}<|tool_list_start|>", ToolFormat::Lfm),
        ("{{ tools }}<|tool_call_start|>[", ToolFormat::Lfm),
        ("{{ tools }}<|tool_call_start|>[{\"name\": ", ToolFormat::LfmList),
        ("{{ tools }}<TOOLCALL>", ToolFormat::Nemotron),
        ("{{ tools }}<tool_call><arg_key>k</arg_key><arg_value>v</arg_value>", ToolFormat::GlmTight),
        ("[TOOL_CALLS] [CALL_ID] [ARGS]", ToolFormat::MistralIds),
        ("{% set token = '｜DSML｜' %}{{ '<' + token + 'function_calls>' }}", ToolFormat::DeepSeekMarkup),
        ("{% set token = '｜DSML｜' %}{{ '<' + token + 'tool_calls>' }}", ToolFormat::DeepSeekMarkup4),
        ("formatted as functools[{\"name\": ", ToolFormat::FireFunction),
        ("{{ '<function=' + name + '>' }}{{ '</function>' }}<|python_tag|>", ToolFormat::Functionary),
        ("{{ '<|tools_prefix|>' }}", ToolFormat::Apertus),
        ("{{ '<|function_call|>' }}", ToolFormat::GigaChat),
        ("{{ tools }}<tool_calls>[{}]</tool_calls> <tool_call>", ToolFormat::ToolCallsList),
        ("{{ tools }}<tool_calls>\\n{}\\n</tool_calls>", ToolFormat::ToolCallsLines),
        ("make calls in a single JSON array: <|python_tag|>", ToolFormat::JsonList),
        ("in the format of [func_name1(params_name1=params_value1)]", ToolFormat::PythonList),
        ("List of tools: [", ToolFormat::Lfm),
        ("{% set mark = ']<]minimax[>[' %}{{ tools }}{{ mark + '<tool_call>' }}", ToolFormat::Generic),
        ("{{ messages }}", ToolFormat::Generic),
    ] {
        assert_eq!(ToolFormat::of_template(template), format, "{template}");
    }
}

/// Whether a vocabulary has a format's marks as special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marks {
    Text,
    Tokens,
}

static THREADS: LazyLock<Arc<MaskThreads>> = LazyLock::new(|| Arc::new(MaskThreads::start().unwrap()));

/// The grammar of a plan, over a vocabulary of bytes and perhaps of marks.
struct Allowed {
    grammar: CompiledGrammar,
    marks: Vec<&'static str>,
}

/// The end of an answer, and the first mark, in these vocabularies.
const END: u32 = 256;
const FIRST_MARK: u32 = 257;

impl Allowed {
    fn by(plan: &ToolPlan, marks: Marks) -> Self {
        let marks: Vec<&str> = if marks == Marks::Tokens { plan.format.marks().collect() } else { Vec::new() };
        let vocabulary = fixture::pieces(&[&["<|end_of_turn|>"], &*marks].concat(), &[]);
        let compiler = GrammarCompiler::new(&vocabulary, Arc::clone(&THREADS)).unwrap();
        let grammar = plan.grammar(&ToolMarkers::of(plan.format, &vocabulary)).unwrap();
        let grammar = compiler.compile(&grammar).unwrap_or_else(|error| panic!("{grammar:?}: {error}"));
        Self { grammar, marks }
    }

    /// The tokens of a text: its marks, and bytes.
    fn tokens(&self, text: &str) -> Vec<u32> {
        let (mut tokens, mut rest) = (Vec::new(), text.as_bytes());
        while let Some(byte) = rest.first() {
            let marks = (FIRST_MARK..).zip(&self.marks).filter(|(_, mark)| rest.starts_with(mark.as_bytes()));
            let mark = marks.max_by_key(|(_, mark)| mark.len());
            let (token, length) = mark.map_or((u32::from(*byte), 1), |(token, mark)| (token, mark.len()));
            tokens.push(token);
            rest = &rest[length..];
        }
        tokens
    }

    /// Whether each token of an answer is allowed in turn, and then its end.
    fn has(&self, answer: &str) -> bool {
        let mut constraint = Constraint::begin(self.grammar.clone());
        for token in self.tokens(answer) {
            match next(&mut constraint) {
                NextToken::OneOf(mask) if mask.allows(token) => constraint.accept(token),
                NextToken::OneOf(_) | NextToken::End => return false,
            }
        }
        match next(&mut constraint) {
            NextToken::End => true,
            NextToken::OneOf(mask) => mask.allows(END),
        }
    }
}

fn next(constraint: &mut Constraint) -> NextToken {
    loop {
        let seen = THREADS.done();
        match constraint.next_token() {
            Some(next) => return next.unwrap(),
            None => THREADS.wait_beyond(seen, std::time::Duration::from_secs(30)),
        }
    }
}

/// Whether an answer is allowed. The vocabulary has no mark as a special token.
fn allows(plan: &ToolPlan, answer: &str) -> bool {
    Allowed::by(plan, Marks::Text).has(answer)
}

fn offered(format: ToolFormat) -> ToolPlan {
    let weather = Tool {
        name: "weather".to_owned(),
        parameters: json!({
            "type": "object", "required": ["city"], "additionalProperties": false,
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 9}},
        }),
        strict: true,
    };
    let clock = Tool { name: "clock".to_owned(), parameters: json!({"type": "object"}), strict: true };
    ToolPlan {
        format,
        tools: vec![weather, clock],
        choice: ToolChoice::Auto,
        parallel: true,
        answer: None,
        spells_thoughts: false,
    }
}

#[test]
fn en_5_a_call_that_has_begun_is_valid_whatever_the_format() {
    for (format, answer, _, count) in samples() {
        // Samples in another spelling than the template's own are for the parser alone.
        let others = [
            answer.starts_with("<tool_call>{"),
            answer.contains("\"arguments\": {\"city\": \"Köln <b>\", \"days\": 2}, \"name\""),
            format == ToolFormat::MistralNamed && answer.contains("[CALL_ID]"),
            answer.contains("[TOOL_CALLS] "),
            answer.contains("{\"arguments\""),
        ];
        let own = others.iter().all(|other| !other);
        if !own {
            continue;
        }
        // This mark ends gpt-oss' turn.
        let answer = answer.trim_end_matches("<|call|>");
        let plan = offered(format);
        for marks in [Marks::Text, Marks::Tokens] {
            // Where the mark is no special token, any text may spell it.
            if marks == Marks::Text && answer.starts_with("<|python_tag|>") {
                continue;
            }
            let allowed = Allowed::by(&plan, marks);
            assert!(allowed.has(answer), "{format:?}, {marks:?}: {answer}");
            if count == 0 {
                continue;
            }
            let wrong = answer
                .replace("Köln <b>\", \"days\": 2", "\", \"days\": 10")
                .replace("\"days\": 2\n", "\"days\": 10\n")
                .replace("\n2\n", "\n10\n")
                .replace(">2<", ">10<")
                .replace("days:2", "days:10")
                .replace("days=2", "days=10");
            assert!(!allowed.has(&wrong), "{format:?}, {marks:?}");
            assert!(!allowed.has(&answer.replace("weather", "wether")), "{format:?}, {marks:?}");
            let cut = answer.rfind("Köln").unwrap();
            assert!(!allowed.has(&answer[..cut]), "{format:?}, {marks:?}: an answer ends with its call");
        }
    }
}

#[test]
fn en_5_no_text_begins_a_call_that_is_not_held_to_its_schema() {
    for format in ToolFormat::ALL.iter().copied() {
        let row = format.row();
        // Calls of the others begin with their answer.
        let Some(first) = row.first.filter(|_| format != ToolFormat::Harmony) else { continue };
        for open in row.open.iter().filter(|open| **open != first) {
            assert!(!allows(&offered(format), &format!("I look. {open}")), "{format:?}: {open}");
        }
    }
}

#[test]
fn en_5_a_prompt_has_calls_as_the_grammar_allows_them() {
    for format in ToolFormat::ALL.iter().copied() {
        let calls = [("weather", r#"{"city":"Köln","days":2}"#), ("clock", "{}"), ("weather", r#"{"city":"a b"}"#)];
        let calls = if format.may_call_several() { &calls[..] } else { &calls[..1] };
        let written = format.calls(calls);
        let required = ToolPlan { choice: ToolChoice::Required, ..offered(format) };
        for marks in [Marks::Text, Marks::Tokens] {
            assert!(Allowed::by(&required, marks).has(&written), "{format:?}, {marks:?}: {written}");
        }
        let (text, read) = read(format, &[&written]);
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let read: Vec<_> = read.iter().map(|(name, arguments)| (name.as_str(), value(arguments))).collect();
        let calls: Vec<_> = calls.iter().map(|(name, arguments)| (*name, value(arguments))).collect();
        assert_eq!((text.as_str(), read), ("", calls), "{format:?}: {written}");
    }
}

/// A schema, values that it allows, and values that it does not.
type ValueCase = (Value, Vec<Value>, Vec<Value>);

fn value_cases() -> Vec<ValueCase> {
    let integers = json!({"type": "array", "items": {"type": "integer"}});
    let person = json!({
        "type": "object", "required": ["name"], "additionalProperties": false,
        "properties": {
            "age": {"type": "number", "minimum": 0}, "name": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}}, "Zip": {"type": "integer"},
        },
    });
    vec![
        (
            json!({"type": "string"}),
            ["", "42", "null", "two\nlines", "it's \"q\" \\n <b> {x} [1], y=1: 'z'", "日本 🦀"].map(Value::from).into(),
            vec![],
        ),
        (
            json!({"type": "string", "minLength": 2, "maxLength": 3}),
            vec![json!("ab"), json!("日本語")],
            vec![json!("a"), json!("abcd")],
        ),
        (
            json!({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}),
            vec![json!("AB-1")],
            vec![json!("ab-1"), json!("xAB-1")],
        ),
        (json!({"type": "string", "format": "date"}), vec![json!("2024-02-28")], vec![json!("today")]),
        (
            json!({"enum": ["a", "b c", 3, true, null]}),
            vec![json!("b c"), json!(3), json!(true), json!(null)],
            vec![json!("b"), json!(false), json!(4)],
        ),
        (
            json!({"enum": [[1, 2], {"a": "t"}]}),
            vec![json!([1, 2]), json!({"a": "t"})],
            vec![json!([1]), json!({"a": "u"})],
        ),
        (
            json!({"type": "integer", "minimum": -3, "maximum": 12}),
            vec![json!(-3), json!(0), json!(12)],
            vec![json!(-4), json!(13), json!(1.5)],
        ),
        (json!({"type": "number", "exclusiveMinimum": 0}), vec![json!(0.5), json!(7)], vec![json!(0), json!(-1)]),
        (json!({"type": "boolean"}), vec![json!(true), json!(false)], vec![json!(null), json!(1)]),
        (json!({"type": ["integer", "null"]}), vec![json!(1), json!(null)], vec![json!(true)]),
        (
            json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3}),
            vec![json!(["a"]), json!(["a, b", "]", "c"])],
            vec![json!([]), json!(["a", "b", "c", "d"]), json!([1])],
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": {"type": "boolean"}, "minItems": 1}),
            vec![json!(["a"]), json!(["a", 1]), json!(["a", 1, true, false])],
            vec![json!([]), json!([1]), json!(["a", true])],
        ),
        (json!({"type": "array", "items": false}), vec![json!([])], vec![json!([1])]),
        (
            person.clone(),
            vec![
                json!({"name": "A"}),
                json!({"name": "A", "Zip": 1}),
                json!({"age": 1.5, "name": "A", "tags": ["x", "y"]}),
            ],
            vec![json!({}), json!({"Zip": 1}), json!({"age": -1, "name": "A"}), json!({"name": "A", "other": 1})],
        ),
        (
            json!({"type": "array", "items": person}),
            vec![json!([]), json!([{"name": "A"}, {"name": "B"}])],
            vec![json!([{}])],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "additionalProperties": false}),
            vec![json!({}), json!({"a": null}), json!({"b": null}), json!({"a": null, "b": null})],
            vec![json!({"c": null})],
        ),
        (json!({"type": "object"}), vec![json!({}), json!({"k": [1, {"z": "t"}], "l": null})], vec![json!([])]),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}),
            vec![json!({"a": "t"}), json!({"a": "t", "b": 1, "c": 2}), json!({"b": 1})],
            vec![json!({"a": 1}), json!({"b": "t"})],
        ),
        (json!({"anyOf": [{"type": "string"}, integers]}), vec![json!("t"), json!([1, 2])], vec![json!(["t"])]),
        (
            json!({"$ref": "#/$defs/tree"}),
            vec![json!({"of": []}), json!({"of": [{"of": []}, {"of": [{"of": []}]}]})],
            vec![json!({}), json!({"of": [1]}), json!({"of": {"of": []}})],
        ),
    ]
}

#[test]
fn en_5_arguments_of_every_format_keep_to_their_schema() {
    let cases: Vec<_> = ('a'..='z').map(String::from).zip(value_cases()).collect();
    for format in ToolFormat::ALL.iter().copied() {
        // One tool for each case.
        let mut plan = plan_of_one(format, &json!({}), true);
        let of_case =
            |(name, (schema, ..)): &(String, ValueCase)| Tool { name: name.clone(), ..tool_of_one(schema, true) };
        plan.tools = cases.iter().map(of_case).collect();
        // No mark is inside of arguments in JSON.
        let all_marks = if format.has_json_arguments() { &[Marks::Text][..] } else { &[Marks::Text, Marks::Tokens] };
        for marks in all_marks.iter().copied() {
            let allowed = Allowed::by(&plan, marks);
            for (name, (schema, yes, no)) in &cases {
                let call = |value: &Value| format.calls(&[(name, &json!({"x": value}).to_string())]);
                for value in yes {
                    let call = call(value);
                    assert!(allowed.has(&call), "{format:?}, {marks:?}, {schema}: {call}");
                    assert_eq!(value_read(&plan, &call), *value, "{format:?}, {schema}: {call}");
                }
                for value in no {
                    let call = call(value);
                    assert!(!allowed.has(&call), "{format:?}, {marks:?}, {schema}: {call}");
                }
            }
        }
    }
}

#[test]
fn en_5_keys_come_in_the_order_of_the_templates_of_a_format() {
    let schema = json!({"type": "object", "required": ["b", "A", "c"], "properties": {"b": {}, "A": {}, "c": {}}});
    for (format, sorted) in [(ToolFormat::Gemma, true), (ToolFormat::FunctionGemma, true), (ToolFormat::Lfm, false)] {
        let plan = plan_of_one(format, &schema, true);
        let [alphabet, schema] = [r#"{"x": {"A": 1, "b": 2, "c": 3}}"#, r#"{"x": {"b": 2, "A": 1, "c": 3}}"#];
        let call = format.calls(&[("f", schema)]);
        assert!(allows(&plan, &call), "{format:?}: {call}");
        assert_eq!(arguments_read(&plan, &call), if sorted { alphabet } else { schema }, "{format:?}");
    }
}

#[test]
fn en_5_a_choice_of_tools_binds_the_answer() {
    use ToolFormat::{Generic, Hermes, Llama};
    let call = |name: &str, arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let (clock, weather) = (call("clock", "{}"), call("weather", "{\"city\": \"Rome\"}"));
    for format in [Hermes, Generic] {
        let auto = offered(format);
        for answer in
            ["", "Hello <b>", "a <tool_cal", &clock, &format!("Well.\n{clock}\n{weather}\nDone."), "{\"a\":1}"]
        {
            assert!(allows(&auto, answer), "{answer}");
        }
        assert!(!allows(&auto, &clock.replace("{}", "{\"x\": 1}")));
        assert!(!allows(&auto, &format!("{clock}<tool_call>")));
        let required = ToolPlan { choice: ToolChoice::Required, ..auto.clone() };
        assert!(allows(&required, &clock) && allows(&required, &format!("{clock}\n{weather}")));
        assert!(!allows(&required, "") && !allows(&required, "Hello") && !allows(&required, &format!("Well. {clock}")));
        let named = ToolPlan { choice: ToolChoice::Named("weather".into()), ..auto.clone() };
        assert!(allows(&named, &weather) && !allows(&named, &clock));
        let single = ToolPlan { parallel: false, ..auto.clone() };
        assert!(allows(&single, &clock) && allows(&single, "Hello") && !allows(&single, &format!("{clock}\n{clock}")));
        let formed = ToolPlan {
            answer: Some(Grammar::JsonSchema(json!({"type": "array", "items": {"type": "null"}}).to_string())),
            ..auto
        };
        assert!(allows(&formed, "[null]") && allows(&formed, &clock) && !allows(&formed, "Hello"));
        for plan in [formed, required] {
            let thinking = ToolPlan { spells_thoughts: true, ..plan.clone() };
            let thought = format!("<think>A call? {clock}</think>\n\n{clock}");
            assert!(allows(&thinking, &thought) && allows(&thinking, &clock) && !allows(&plan, &thought));
            assert!(!allows(&thinking, "<think>Only a thought.</think>") && !allows(&thinking, "Hello"));
        }
    }
    let llama = offered(Llama);
    for answer in ["", "Hello {", "{\"name\": \"clock\", \"parameters\": {}}"] {
        assert!(allows(&llama, answer), "{answer}");
    }
    assert!(!allows(&llama, "{\"a\": 1}"));
}

#[test]
fn en_5_arguments_have_no_field_that_the_schema_does_not_name_unless_it_says_so() {
    let plan = |parameters: Value| {
        let tools = vec![Tool { name: "f".to_owned(), parameters, strict: false }];
        ToolPlan { tools, choice: ToolChoice::Required, ..offered(ToolFormat::Hermes) }
    };
    let call = |arguments: &str| format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>");
    let inner = json!({"type": "object", "properties": {"b": {"type": "null"}}});
    let parameters = |more: Value| {
        let mut schema =
            json!({"type": "object", "properties": {"a": inner, "list": {"type": "array", "items": inner}}});
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        plan(schema)
    };
    let said = parameters(json!({}));
    assert!(allows(&said, &call(r#"{"a": {"b": null}, "list": [{"b": null}]}"#)));
    for surplus in [r#"{"x": 1}"#, r#"{"a": {"x": 1}}"#, r#"{"list": [{"x": 1}]}"#] {
        assert!(!allows(&said, &call(surplus)), "{surplus}");
    }
    assert!(allows(&parameters(json!({"additionalProperties": true})), &call(r#"{"x": 1}"#)));
    // Schemas that are joined may name each other's fields.
    let joined = plan(json!({"allOf": [{"type": "object", "properties": {"a": {"type": "null"}}},
        {"type": "object", "properties": {"b": {"type": "null"}}}]}));
    assert!(allows(&joined, &call(r#"{"a": null, "b": null}"#)));
}

#[test]
fn en_5_numbers_of_arguments_end() {
    let schema = json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}});
    let long = "9".repeat(21);
    for (format, before, behind) in [
        (ToolFormat::Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": ", "}}\n</tool_call>"),
        (
            ToolFormat::CommandFenced,
            "Action: ```json\n[\n    {\n        \"tool_name\": \"f\",\n        \"parameters\": { \"x\": ",
            " }\n    }\n]```",
        ),
        (
            ToolFormat::Kimi,
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"x\": ",
            "}<|tool_call_end|><|tool_calls_section_end|>",
        ),
        (
            ToolFormat::QwenCoder,
            "<tool_call>\n<function=f>\n<parameter=x>\n",
            "\n</parameter>\n</function>\n</tool_call>",
        ),
        (ToolFormat::Lfm, "<|tool_call_start|>[f(x=", ")]<|tool_call_end|>"),
        (ToolFormat::FunctionGemma, "<start_function_call>call:f{x:", "}<end_function_call>"),
    ] {
        let tools = vec![Tool { name: "f".to_owned(), parameters: schema.clone(), strict: false }];
        let plan = ToolPlan { tools, choice: ToolChoice::Required, ..offered(format) };
        for number in ["18446744073709551615", "-9223372036854775808", "0"] {
            assert!(allows(&plan, &format!("{before}{number}{behind}")), "{format:?}: {number}");
        }
        assert!(!allows(&plan, &format!("{before}{long}{behind}")), "{format:?}");
    }
}

/// A call of the tool `f` with one parameter `x`.
fn call_between_tags(format: ToolFormat, value: &str) -> String {
    match format {
        ToolFormat::Glm => {
            format!("<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>")
        }
        ToolFormat::GlmTight => {
            format!("<tool_call>f<arg_key>x</arg_key><arg_value>{value}</arg_value></tool_call>")
        }
        ToolFormat::MiniMax => format!(
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"x\">{value}</parameter>\n</invoke>\n</minimax:tool_call>"
        ),
        ToolFormat::Seed => {
            format!("<seed:tool_call>\n<function=f>\n<parameter=x>{value}</parameter>\n</function>\n</seed:tool_call>")
        }
        _ => format!("<tool_call>\n<function=f>\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"),
    }
}

fn tool_of_one(schema: &Value, strict: bool) -> Tool {
    let parameters = json!({
        "type": "object", "required": ["x"], "properties": {"x": schema},
        "$defs": {
            "short": {"type": "string", "maxLength": 2}, "self": {"$ref": "#/$defs/self"},
            "tree": {
                "type": "object", "required": ["of"], "additionalProperties": false,
                "properties": {"of": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
            },
        },
    });
    Tool { name: "f".to_owned(), parameters, strict }
}

fn plan_of_one(format: ToolFormat, schema: &Value, strict: bool) -> ToolPlan {
    let tools = vec![tool_of_one(schema, strict)];
    ToolPlan { format, tools, choice: ToolChoice::Required, parallel: false, answer: None, spells_thoughts: false }
}

#[test]
fn en_5_a_call_without_parameters_may_have_an_empty_line() {
    for (format, call) in [
        (ToolFormat::Glm, "<tool_call>clock\n\n</tool_call>"),
        (
            ToolFormat::DeepSeekMarkup4,
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"clock\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        ),
    ] {
        let plan = offered(format);
        assert!(allows(&plan, call) && allows(&plan, &call.replace("\n\n", "\n")), "{format:?}");
        let calls = vec![("clock".to_owned(), "{}".to_owned())];
        assert_eq!(read(format, &[call]), (String::new(), calls), "{format:?}");
    }
}

/// The arguments of a call as a reader has them.
fn arguments_read(plan: &ToolPlan, call: &str) -> String {
    let mut parser = plan.parser();
    let mut events = parser.push(call);
    events.extend(parser.finish());
    let pieces = events.into_iter().map(|event| match event {
        ToolEvent::Arguments { piece, .. } => piece,
        ToolEvent::Begin { .. } => String::new(),
        other => panic!("{call}: {other:?}"),
    });
    pieces.collect()
}

/// The value of `x` as a reader of a call has it.
fn value_read(plan: &ToolPlan, call: &str) -> Value {
    let arguments: Value = serde_json::from_str(&arguments_read(plan, call)).unwrap_or_else(|e| panic!("{call}: {e}"));
    arguments["x"].clone()
}

/// A schema, spellings of values that it allows with those values, and spellings that it does not allow.
type TaggedCase = (Value, Vec<(&'static str, Value)>, Vec<&'static str>);

fn tagged_cases() -> Vec<TaggedCase> {
    let texts = |texts: &[&'static str]| texts.iter().map(|text| (*text, json!(text))).collect::<Vec<_>>();
    let and = |mut some: Vec<(&'static str, Value)>, more: &[(&'static str, Value)]| {
        some.extend_from_slice(more);
        some
    };
    vec![
        (json!({"type": "string"}), texts(&["", "42", "null", "\"q\"", "<b> & </p", "two\nlines", "[1]"]), vec![]),
        (json!({"type": "string", "minLength": 2, "maxLength": 3}), texts(&["ab", "日本語"]), vec!["", "a", "abcd"]),
        (json!({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}), texts(&["AB-1"]), vec!["ab-1", "AB-", "xAB-1"]),
        (json!({"type": "string", "pattern": "b/", "maxLength": 4}), texts(&["ab/c", "b/"]), vec!["b", "aab/c"]),
        (json!({"type": "string", "format": "date"}), texts(&["2024-02-28"]), vec!["2024-02-30", "today"]),
        (json!({"type": "string", "format": "ipv4"}), texts(&["127.0.0.1"]), vec!["256.0.0.1", "1.2.3"]),
        (json!({"type": "string", "enum": ["a", "b c", ""]}), texts(&["a", "b c", ""]), vec!["b", "ab"]),
        (json!({"const": "only"}), texts(&["only"]), vec!["on", "\"only\""]),
        (json!({"$ref": "#/$defs/short"}), texts(&["", "ab"]), vec!["abc"]),
        (json!({"allOf": [{"type": "string"}, {"minLength": 2}]}), texts(&["ab"]), vec!["a"]),
        (
            json!({"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 3}]}),
            texts(&["ab", "abcd"]),
            vec!["abc"],
        ),
        (
            json!({"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]}),
            and(texts(&["", "42", "true", "[1]", "no"]), &[("null", json!(null))]),
            vec!["null ", "fives"],
        ),
        (
            json!({"type": ["string", "integer"], "maxLength": 4}),
            and(texts(&["abc", "1a", "null", "2-1"]), &[("12345", json!(12_345)), ("-7", json!(-7))]),
            vec!["abcde", "1.5", "07"],
        ),
        (
            json!({"anyOf": [{"type": "integer", "minimum": -2, "maximum": 10}, {"type": "string", "maxLength": 4}]}),
            and(texts(&["abc", "1a"]), &[("10", json!(10)), ("-2", json!(-2)), ("0", json!(0))]),
            vec!["11", "-3", "100", "1.5", "abcde"],
        ),
        (
            json!({"type": ["string", "number"], "exclusiveMinimum": 0, "maximum": 1.5}),
            and(texts(&["abc"]), &[("0.01", json!(0.01)), ("1.5", json!(1.5)), ("1", json!(1))]),
            vec!["0", "1.51", "-1", "2"],
        ),
        (
            json!({"anyOf": [{"type": "integer", "multipleOf": 5, "minimum": 0}, {"type": "null"}, {"const": "all"}]}),
            and(texts(&["all"]), &[("5", json!(5)), ("120", json!(120)), ("null", json!(null))]),
            vec!["7", "-5", "some"],
        ),
        (
            json!({"enum": [1, "a", null, true]}),
            and(texts(&["a"]), &[("1", json!(1)), ("null", json!(null)), ("true", json!(true))]),
            vec!["2", "b", "\"a\"", "false"],
        ),
        (
            json!({"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "integer"}}]}),
            and(texts(&["a", "42", "{}"]), &[("[1, 2]", json!([1, 2]))]),
            vec!["", "[a]", "[\"a\"]"],
        ),
        (json!({"type": "integer", "maximum": 9}), vec![("7", json!(7))], vec!["10", "seven", ""]),
        (json!({"type": "array", "items": {"type": "string"}}), vec![("[\"a\"]", json!(["a"]))], vec!["a"]),
    ]
}

const TAGGED: [ToolFormat; 5] =
    [ToolFormat::QwenCoder, ToolFormat::Glm, ToolFormat::GlmTight, ToolFormat::MiniMax, ToolFormat::Seed];

#[test]
fn en_5_values_between_tags_keep_to_their_schema() {
    for format in TAGGED {
        for (schema, yes, no) in tagged_cases() {
            let plan = plan_of_one(format, &schema, true);
            for (spelled, value) in yes {
                let call = call_between_tags(format, spelled);
                assert!(allows(&plan, &call), "{format:?}, {schema}: {spelled:?}");
                assert_eq!(value_read(&plan, &call), value, "{format:?}, {schema}: {spelled:?}");
            }
            for spelled in no {
                assert!(!allows(&plan, &call_between_tags(format, spelled)), "{format:?}, {schema}: {spelled:?}");
            }
        }
        // A reader would end the value at its first tag.
        let plan = plan_of_one(format, &json!({"type": "string"}), true);
        for tag in ["</parameter>", "</arg_value>"] {
            let call = call_between_tags(format, &format!("a{tag}b"));
            assert_eq!(allows(&plan, &call), value_read_is(&plan, &call, &format!("a{tag}b")), "{format:?}, {tag}");
        }
    }
}

/// A text within an object or a list may have the tag that ends values. What only begins like one ends at the tag.
#[test]
fn en_5_an_object_between_tags_may_have_the_closing_tag_in_its_texts() {
    let object = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    let list = json!({"type": "array", "items": {"type": "string"}});
    for format in TAGGED {
        for tag in ["</parameter>", "</arg_value>"] {
            let text = format!("a \"{tag}\" b{tag}");
            for (schema, value) in [(&object, json!({"name": text})), (&list, json!([text, "c"]))] {
                let plan = plan_of_one(format, schema, true);
                let call = call_between_tags(format, &value.to_string());
                assert_eq!(value_read(&plan, &call), value, "{format:?}: {call}");
            }
        }
        let plan = plan_of_one(format, &json!({}), false);
        for text in ["[draft] \"no list", "{not json}"] {
            assert_eq!(value_read(&plan, &call_between_tags(format, text)), json!(text), "{format:?}: {text}");
        }
    }
}

/// Whether a call is read as it was meant.
fn value_read_is(plan: &ToolPlan, call: &str, value: &str) -> bool {
    let (mut parser, mut read) = (plan.parser(), String::new());
    for event in parser.push(call).into_iter().chain(parser.finish()) {
        if let ToolEvent::Arguments { piece, .. } = event {
            read.push_str(&piece);
        }
    }
    serde_json::from_str::<Value>(&read).is_ok_and(|arguments| arguments == json!({"x": value}))
}

#[test]
fn en_5_a_keyword_that_values_between_tags_cannot_be_held_to_is_refused_by_name() {
    for format in TAGGED {
        let refusal = |schema: Value, strict: bool| {
            plan_of_one(format, &schema, strict).grammar(&ToolMarkers::default()).err().map(|error| error.message)
        };
        for (schema, word) in [
            (json!({"type": "string", "not": {"const": "a"}}), "not"),
            (json!({"type": "string", "format": "frob"}), "frob"),
            (json!({"type": "string", "pattern": "("}), "pattern"),
        ] {
            assert!(refusal(schema.clone(), true).is_some_and(|why| why.contains(word)), "{schema}");
            assert_eq!(refusal(schema, false), None);
        }
        for (schema, word) in [
            (json!({"type": "string", "minLength": 3, "maxLength": 2}), "minLength"),
            (json!({"type": "string", "minLength": "3"}), "minLength"),
            (json!({"type": "string", "pattern": "^a{3}$", "maxLength": 2}), "'x'"),
            (json!({"type": "string", "enum": []}), "'x'"),
            (json!({"$ref": "#/$defs/none"}), "#/$defs/none"),
            (json!({"$ref": "#/$defs/self"}), "$ref"),
            (json!(false), "'x'"),
        ] {
            for strict in [true, false] {
                assert!(refusal(schema.clone(), strict).is_some_and(|why| why.contains(word)), "{schema}");
            }
        }
        let mut plan = plan_of_one(format, &json!({"type": "string"}), true);
        plan.tools[0].parameters["minProperties"] = json!(1);
        assert!(plan.grammar(&ToolMarkers::default()).unwrap_err().message.contains("minProperties"));
    }
}

const NOTATIONS: [ToolFormat; 3] = [ToolFormat::FunctionGemma, ToolFormat::Gemma, ToolFormat::Lfm];

#[test]
fn en_5_a_keyword_that_a_notation_cannot_be_held_to_is_refused_by_name() {
    for format in NOTATIONS {
        let refusal = |schema: Value, strict: bool| {
            plan_of_one(format, &schema, strict).grammar(&ToolMarkers::default()).err().map(|error| error.message)
        };
        for (schema, word) in [
            (json!({"type": "string", "not": {"const": "a"}}), "not"),
            (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
            (json!({"type": "string", "pattern": "("}), "pattern"),
            (json!({"type": "object", "patternProperties": {"a": {}}}), "patternProperties"),
            (json!({"allOf": [{"type": "object"}, {"type": "object"}]}), "allOf"),
        ] {
            assert!(refusal(schema.clone(), true).is_some_and(|why| why.contains(word)), "{format:?}, {schema}");
            assert_eq!(refusal(schema, false), None, "{format:?}");
        }
        for (schema, word) in [
            (json!({"type": "array", "minItems": 3, "maxItems": 2}), "minItems"),
            (json!({"type": "array", "items": false, "minItems": 1}), "items"),
            (json!({"type": "object", "required": ["a"], "additionalProperties": false}), "'a'"),
            (json!({"$ref": "#/$defs/none"}), "#/$defs/none"),
            (json!(false), "'x'"),
        ] {
            for strict in [true, false] {
                assert!(refusal(schema.clone(), strict).is_some_and(|why| why.contains(word)), "{format:?}, {schema}");
            }
        }
    }
}

#[test]
fn en_5_values_in_a_notation_are_read_in_all_their_spellings() {
    for (format, call, arguments) in [
        (ToolFormat::Lfm, r#"f(x='it\'s', y=-1.50)"#, r#"{"x": "it's", "y": -1.50}"#),
        (ToolFormat::Lfm, r#"f(x="a\n\u00e9\ud83e\udd80\x41\q", y=None)"#, r#"{"x": "a\né🦀A\\q", "y": null}"#),
        (
            ToolFormat::Lfm,
            "f(x=['a, b', {'k': True}], y=12345678901234567890123)",
            r#"{"x": ["a, b", {"k": true}], "y": 12345678901234567890123}"#,
        ),
        (ToolFormat::Lfm, r#"f(x={"k:1": [], 'l': {}}, y=Rome)"#, r#"{"x": {"k:1": [], "l": {}}, "y": "Rome"}"#),
        (
            ToolFormat::Gemma,
            "call:f{x:<|\"|>a, {b}: [\"c\"]<|\"|>,y:{k:[1,true]}}",
            r#"{"x": "a, {b}: [\"c\"]", "y": {"k": [1, true]}}"#,
        ),
        (ToolFormat::Gemma, "call:f{ <|\"|>x<|\"|> : <|\"|><|\"|> , y: word }", r#"{"x": "", "y": "word"}"#),
        (ToolFormat::FunctionGemma, "call:f{x:<escape>5 < 6<escape>,y:[]}", r#"{"x": "5 < 6", "y": []}"#),
        (ToolFormat::FunctionGemma, "call:f{}", "{}"),
    ] {
        let row = format.row();
        let answer = [row.all.0[0], row.each.0[0], call, row.each.1[0], row.all.1[0]].concat();
        let calls = vec![("f".to_owned(), arguments.to_owned())];
        assert_eq!(read(format, &[&answer]), (String::new(), calls), "{format:?}: {answer}");
    }
}

/// The formats whose models write no JSON.
fn without_json() -> Vec<ToolFormat> {
    ToolFormat::ALL.iter().copied().filter(|format| !format.has_json_arguments()).collect()
}

/// A call with any values that the grammar allows, one byte after the other as the choices say.
fn random_call(plan: &ToolPlan, choices: &[u16]) -> Option<String> {
    let mut constraint = Constraint::begin(Allowed::by(plan, Marks::Text).grammar);
    let mut answer = Vec::new();
    // The ends of calls behind a text, and behind another value.
    let end = |value: Value| {
        let call = plan.format.calls(&[("f", &json!({"x": value}).to_string())]);
        call.rsplit('7').next().unwrap_or_default().as_bytes().to_vec()
    };
    let ends = [end(json!("7")), end(json!(7))];
    for choice in choices.iter().cycle().take(900) {
        let NextToken::OneOf(mask) = next(&mut constraint) else { return String::from_utf8(answer).ok() };
        let allowed: Vec<u8> = (0..=255).filter(|byte| mask.allows(u32::from(*byte))).collect();
        if allowed.is_empty() {
            return String::from_utf8(answer).ok();
        }
        // Mostly towards the end of the value.
        let begun = |end: &Vec<u8>| (0..end.len()).rev().find(|length| answer.ends_with(&end[..*length])).unwrap_or(0);
        let ending =
            ends.iter().find_map(|end| allowed.iter().find(|byte| Some(**byte) == end.get(begun(end)).copied()));
        let byte = *ending.filter(|_| choice % 4 != 0).unwrap_or(&allowed[usize::from(*choice) % allowed.len()]);
        answer.push(byte);
        constraint.accept(u32::from(byte));
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A call that the grammar allows is read as a value that the grammar for the same schema in JSON has.
    #[test]
    fn en_5_any_value_is_valid_when_it_is_read(
        case in any::<prop::sample::Index>(), format in prop::sample::select(without_json()),
        choices in proptest::collection::vec(any::<u16>(), 20..60),
    ) {
        let cases = tagged_cases().into_iter().map(|(schema, ..)| schema);
        let cases: Vec<Value> = cases.chain(value_cases().into_iter().map(|(schema, ..)| schema)).collect();
        let schema = &cases[case.index(cases.len())];
        // The grammar of JSON knows no texts in exactly one of two sets.
        prop_assume!(schema.get("oneOf").is_none());
        let plan = plan_of_one(format, schema, true);
        let Some(call) = random_call(&plan, &choices) else { return Ok(()) };
        let arguments = arguments_read(&plan, &call);
        let in_json = plan_of_one(ToolFormat::MistralNamed, schema, true);
        // The grammar of JSON has this character as an escape only.
        let spelled = arguments.replace('\u{7f}', "\\u007f");
        prop_assert!(allows(&in_json, &format!("[TOOL_CALLS]f[ARGS]{spelled}")), "{}: {} from {}", schema, arguments, call);
    }
}

/// Found by the fuzzer: a header at the limit of its length was one or none, by the pieces that it came in.
#[test]
fn en_5_a_long_header_of_a_channel_is_one_or_none_whatever_the_pieces() {
    for length in 480..530 {
        let answer = format!("<|channel|>{}<|message|>text", "x".repeat(length));
        let whole = read(ToolFormat::Harmony, &[&answer]);
        let characters: Vec<&str> = (0..answer.len()).map(|at| &answer[at..=at]).collect();
        assert_eq!(read(ToolFormat::Harmony, &characters), whole, "{length}");
        for cut in [500, 511, 512, 513, answer.len() - 5] {
            assert_eq!(
                read(ToolFormat::Harmony, &[&answer[..cut.min(answer.len())], &answer[cut.min(answer.len())..]]),
                whole
            );
        }
    }
}

proptest! {
    #[test]
    fn en_5_calls_do_not_depend_on_the_pieces(
        which in any::<prop::sample::Index>(), cuts in proptest::collection::vec(0_usize..400, 0..12),
    ) {
        let (samples, texts) = (samples(), NO_CALLS);
        let all: Vec<_> = samples.iter().map(|(format, answer, ..)| (*format, *answer)).chain(texts).collect();
        let (format, answer) = all[which.index(all.len())];
        let mut places: Vec<usize> = cuts.into_iter().filter(|cut| answer.is_char_boundary(*cut)).collect();
        places.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for to in places {
            pieces.push(&answer[from..to]);
            from = to;
        }
        pieces.push(&answer[from..]);
        prop_assert_eq!(read(format, &pieces), read(format, &[answer]));
    }

    #[test]
    fn en_5_any_text_is_read_without_loss_or_panic(
        parts in proptest::collection::vec(prop_oneof![
            Just("<tool_call>"), Just("</tool_call>"), Just("{\"name\": \"f\""), Just(", \"arguments\": {"), Just("}"), Just("["),
            Just("<function=f>"), Just("<parameter=a>"), Just("</parameter>"), Just("<arg_key>"), Just("[TOOL_CALLS]"), Just("[ARGS]"),
            Just("<|channel|>"), Just("<|message|>"), Just("é"), Just("\""), Just("\\"), Just(" "), Just("word"), Just("<|tool_call|>"),
            Just("<｜tool▁call▁begin｜>"), Just("<｜tool▁sep｜>"), Just("```"), Just("]"), Just("]"), Just("{"), Just("<|start|>"),
            Just("<invoke name=\"f\">"), Just("<parameter name=\"a\">"), Just("</invoke>"), Just("<|tool_call_begin|>"),
            Just("functions.f:0"), Just("Action: ```json"), Just("<|tool_call>call:f{"), Just("<start_function_call>call:f{"),
            Just("<|\"|>"), Just("<escape>"), Just("a:"), Just("a="), Just(","), Just("'"), Just("<|tool_call_start|>"), Just("f("),
            Just(")"), Just("<TOOLCALL>"),
        ], 0..14),
        format in prop::sample::select(ToolFormat::ALL),
    ) {
        let whole = parts.concat();
        let at_once = read(format, &[&whole]);
        prop_assert_eq!(&at_once, &read(format, &parts), "in pieces");
        let characters: Vec<String> = whole.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        prop_assert_eq!(&at_once, &read(format, &characters), "in characters");
        for (name, arguments) in at_once.1.iter().filter(|_| !format.has_json_arguments()) {
            let is_json = |text: &str| serde_json::from_str::<serde_json::Map<String, Value>>(text).is_ok();
            prop_assert!(is_json(arguments) || is_json(&format!("{arguments}}}")), "{}: {}", name, arguments);
        }
        if at_once.1.is_empty() && whole.contains("word") && format != ToolFormat::Harmony {
            prop_assert!(at_once.0.contains("word"), "{} became {}", whole, at_once.0);
        }
    }
}

#[test]
fn en_5_calls_begin_with_special_tokens_where_the_vocabulary_has_them() {
    let marks = |format: ToolFormat, spelled: &[&str]| {
        let vocabulary = fixture::pieces(spelled, &[]);
        let ids = format.call_marks(&ToolMarkers::of(format, &vocabulary));
        ids.into_iter().map(|id| String::from_utf8_lossy(vocabulary.bytes(id)).into_owned()).collect::<BTreeSet<_>>()
    };
    let special = ["<|end_of_turn|>", "<tool_call>", "<|channel|>", "[TOOL_CALLS]"];
    assert_eq!(marks(ToolFormat::Hermes, &special), BTreeSet::from(["<tool_call>".to_owned()]));
    assert_eq!(marks(ToolFormat::MistralList, &special), BTreeSet::from(["[TOOL_CALLS]".to_owned()]));
    assert_eq!(marks(ToolFormat::Hermes, &special[..1]), BTreeSet::new());
    assert_eq!(marks(ToolFormat::Harmony, &special), BTreeSet::new(), "the mark begins every message");
}
