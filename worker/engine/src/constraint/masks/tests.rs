use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use llguidance::Matcher;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::MaskLimits;
use crate::constraint::rehearsal::RehearsalLimits;
use crate::constraint::{Grammar, GrammarCompiler, MaskThreads};
use crate::text::{Text, Vocabulary, fixture};
use crate::tools::{Tool, ToolChoice, ToolFormat, ToolMarkers, ToolPlan};

/// Texts of which the vocabularies of these tests have the pieces, and which answers are drawn towards.
const TEXTS: [&str; 19] = [
    "{\"name\": \"save\", \"arguments\": {\"city\": \"Köln 日本 🦀\", \"days\": 2, \"tags\": [\"a\", \"b\"], \"ok\": true}}",
    "{\"name\":\"Ada Lovelace\",\"age\":36,\"email\":\"ada@example.org\",\"tags\":[\"poetry\"],\"city\":\"Rome\"}",
    "I look.\n<tool_call>\n{\"name\": \"save\", \"arguments\": {\"city\": \"a\\n\\u00e9\"}}\n</tool_call>",
    "<tool_call>\n<function=save>\n<parameter=city>\nKöln <b>\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>save\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
    "[TOOL_CALLS][{\"name\": \"save\", \"arguments\": {\"city\": \"x\"}}]",
    "[TOOL_CALLS]save[ARGS]{\"city\": \"x\"}",
    "<|tool_call|>[{\"name\": \"save\", \"arguments\": {}}]<|/tool_call|>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>save\n```json\n{\"city\": \"x\"}\n```<｜tool▁call▁end｜>",
    "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant<|channel|>commentary to=functions.save <|constrain|>json<|message|>{}",
    "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"save\", \"parameters\": {\"city\": \"x\"}}\n]<|END_ACTION|>",
    "Action: ```json\n[\n    {\n        \"tool_name\": \"save\",\n        \"parameters\": {\"city\": \"x\"}\n    }\n]```",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.save:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    "<minimax:tool_call>\n<invoke name=\"save\">\n<parameter name=\"city\">Köln</parameter>\n</invoke>\n</minimax:tool_call>",
    "<start_function_call>call:save{city:<escape>Köln<escape>,days:2,ok:true,tags:[<escape>a<escape>]}<end_function_call>",
    "<|tool_call>call:save{city:<|\"|>Köln<|\"|>,days:2,ok:true,tags:[<|\"|>a<|\"|>,<|\"|>b<|\"|>]}<tool_call|>",
    "<|tool_call_start|>[save(city=\"Köln\", days=2, tags=['a', \"b\"], ok=True)]<|tool_call_end|>",
    "one, two, three, four 1234-56-78 +49 (0)30 $9.99 user@example.org\n\tfn main() { println!(\"héllo wörld\"); }",
    "\"q\\\"\\\\\": [ ], }{ :,\r\n  </b> été naïve £ ß 你好，世界 ﷺ \u{200b}",
];

fn marks() -> Vec<&'static str> {
    vec![
        "<|end_of_turn|>",
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
    ]
}

fn compiler(vocabulary: &Vocabulary, limits: MaskLimits) -> GrammarCompiler {
    static THREADS: LazyLock<Arc<MaskThreads>> = LazyLock::new(|| Arc::new(MaskThreads::start().unwrap()));
    GrammarCompiler::with_limits(vocabulary, Arc::clone(&THREADS), limits).unwrap()
}

/// Every state that the library has no slice for is treated as one with many tokens.
const ALL: MaskLimits = MaskLimits { few_nodes: 0, most_bytes: 16 << 20 };

fn person() -> Value {
    json!({
        "type": "object", "required": ["name", "age"], "additionalProperties": false,
        "properties": {
            "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "email": {"type": "string", "maxLength": 20}, "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}},
            "city": {"enum": ["Rome", "Oslo"]},
        },
    })
}

/// A schema that counts characters.
fn counted() -> Value {
    json!({
        "type": "object", "required": ["name", "city"], "additionalProperties": false,
        "properties": {
            "name": {"type": "string", "minLength": 3, "maxLength": 14},
            "age": {"type": "integer"},
            "city": {"type": "string", "pattern": "^[A-Za-zé ]{2,9}([,.] ?[^0-9]{1,4}){0,3}$"},
        },
    })
}

/// A schema as pydantic writes it.
fn typed() -> Value {
    json!({
        "$defs": {
            "City": {"enum": ["Köln", "Rome", "Oslo"], "type": "string"},
            "Ada": {"type": "object", "properties": {"kind": {"const": "a"}, "name": {"type": "string"}},
                    "required": ["kind", "name"], "additionalProperties": false},
            "Other": {"type": "object", "properties": {"kind": {"const": "b"}, "days": {"type": "integer"}},
                      "required": ["kind", "days"], "additionalProperties": false},
        },
        "type": "object", "additionalProperties": false, "required": ["name", "email", "tags", "city", "days"],
        "properties": {
            "name": {"anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]},
            "email": {"type": "string", "format": "email"}, "tags": {"type": "string", "format": "date-time"},
            "city": {"$ref": "#/$defs/City"}, "days": {"anyOf": [{"$ref": "#/$defs/Ada"}, {"$ref": "#/$defs/Other"}]},
        },
    })
}

fn plan(format: ToolFormat, choice: ToolChoice) -> ToolPlan {
    let parameters = json!({
        "type": "object", "required": ["city"], "additionalProperties": false,
        "properties": {
            "city": {"type": "string"}, "days": {"type": "integer", "maximum": 9},
            "tags": {"type": "array", "items": {"type": "string"}}, "ok": {"type": "boolean"},
        },
    });
    let tools = vec![Tool { name: "save".to_owned(), parameters, strict: true }];
    ToolPlan { format, tools, choice, parallel: true, answer: None, spells_thoughts: false }
}

/// Forms of every kind.
fn grammars(markers: impl Fn(ToolFormat) -> ToolMarkers) -> Vec<Grammar> {
    let mut all = vec![
        Grammar::JsonSchema(person().to_string()),
        Grammar::SpacedJsonSchema(person().to_string()),
        Grammar::json_object(),
        Grammar::Regex("[a-z]+(, [a-z]+){0,20}".to_owned()),
        Grammar::Regex(r"[^@]{1,9}@[^@]+".to_owned()),
        Grammar::Regex(r"(?s:.{0,30})".to_owned()),
        Grammar::Regex(r"\w+( \w+)*".to_owned()),
        Grammar::JsonSchema(counted().to_string()),
        Grammar::Regex("[a-z ]{3,40}".to_owned()),
        Grammar::Regex("([A-Za-z]{1,4}[ ,.]){2,6}".to_owned()),
        Grammar::Regex(r"(\w{1,5}\W){1,4}".to_owned()),
        Grammar::Regex("(one|two|[a-t]{2}){1,8}[^a-z]{0,6}".to_owned()),
        Grammar::Lark(
            "start: (WORD | LONG | NUMBER | \" \")*\nWORD: /[a-zé]{1,3}/\nLONG: /[a-z]{2,7}!?/\nNUMBER: /[0-9]{2,3}/\n"
                .to_owned(),
        ),
        Grammar::Choice(vec!["one, two".to_owned(), "one".to_owned(), "Köln".to_owned()]),
        Grammar::Lark("start: (WORD | NUMBER | \" \")*\nWORD: /[a-zé]+/\nNUMBER: /[0-9]+/\n".to_owned()),
        Grammar::Lark("start: TEXT \"!\" rest\nTEXT: /[^!]*/\nrest[stop=/[ab]c/]: /(?s:.*)/\n".to_owned()),
        Grammar::Gbnf("root ::= item (\", \" item)*\nitem ::= [a-z]+ | \"-\" [^a-z\\n]\n".to_owned()),
        // A lexeme begins in the middle of tokens, with any byte of a class or with some of them only.
        Grammar::Gbnf(
            "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/=] ws term)*\nterm ::= ident | num | \"(\" ws expr \")\" ws\n\
             ident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*\n"
                .to_owned(),
        ),
        Grammar::Lark(
            "start: (WORD | KEY | SIGN | list)*\nlist: \"[\" start \"]\"\nWORD: /[a-zA-Z]+ */\nKEY: /if|in|one|save/\nSIGN: /[,.:;(){}]/\n"
                .to_owned(),
        ),
        Grammar::Lark("start: (A | B | C)*\nA: /[a-m]/\nB: /[n-z]+/\nC: / +/\n".to_owned()),
        Grammar::JsonSchema(typed().to_string()),
        Grammar::Choice((0..300).map(|number| format!("{} {number}", ["one", "save", "Köln", "city"][number % 4])).collect()),
    ];
    for format in ToolFormat::ALL.iter().copied() {
        for choice in [ToolChoice::Auto, ToolChoice::Required] {
            all.push(plan(format, choice).grammar(&markers(format)).unwrap());
        }
    }
    all
}

/// Follows one answer with both, and compares every mask. `choices` decide which allowed token comes next: mostly the
/// one that goes on with `text`.
fn follow_both(mut ours: Matcher, mut plain: Matcher, text: &str, choices: &[u16]) -> Result<(), TestCaseError> {
    let env = plain.tok_env().unwrap();
    let tree = env.tok_trie();
    let mut rest = text.as_bytes();
    for choice in choices {
        prop_assert_eq!(ours.is_accepting().ok(), plain.is_accepting().ok());
        let (mask, expected) = (ours.compute_mask_or_eos(), plain.compute_mask_or_eos());
        let (Ok(mask), Ok(expected)) = (&mask, &expected) else {
            prop_assert_eq!(mask.is_ok(), expected.is_ok(), "after {:?}", text);
            return Ok(());
        };
        if mask != expected {
            let differing: Vec<_> =
                (0..tree.vocab_size() as u32).filter(|id| mask.is_allowed(*id) != expected.is_allowed(*id)).collect();
            prop_assert!(false, "{}: {}", differing.len(), tree.tokens_dbg(&differing[..differing.len().min(20)]));
        }
        let allowed = mask.to_list();
        let along =
            allowed.iter().filter(|token| !tree.token(**token).is_empty() && rest.starts_with(tree.token(**token)));
        let along: Vec<u32> = along.copied().collect();
        let from = if along.is_empty() || choice % 8 == 0 { &allowed } else { &along };
        let Some(token) = from.get(usize::from(*choice / 8) % from.len().max(1)) else { return Ok(()) };
        rest = rest.strip_prefix(tree.token(*token)).unwrap_or(rest);
        let taken = (ours.consume_token(*token).is_ok(), plain.consume_token(*token).is_ok());
        prop_assert_eq!(taken.0, taken.1);
        prop_assert_eq!(ours.is_stopped(), plain.is_stopped());
        if !taken.0 || ours.is_stopped() {
            return Ok(());
        }
    }
    Ok(())
}

fn compare(compiler: &GrammarCompiler, grammar: &Grammar, text: &str, choices: &[u16]) -> Result<(), TestCaseError> {
    let compiled = compiler.compile(grammar).unwrap();
    let plain = compiler.plain(grammar).unwrap();
    follow_both(compiled.matcher(), plain, text, choices)
}

static SPELLED: LazyLock<(GrammarCompiler, Vec<Grammar>)> =
    LazyLock::new(|| (compiler(&fixture::pieces(&marks()[..1], &TEXTS), ALL), grammars(|_| ToolMarkers::default())));

static SPECIAL: LazyLock<(GrammarCompiler, Vec<Grammar>)> = LazyLock::new(|| {
    let vocabulary = fixture::pieces(&marks(), &TEXTS);
    let grammars = grammars(|format| ToolMarkers::of(format, &vocabulary));
    (compiler(&vocabulary, ALL), grammars)
});

/// Its masks are dropped all the time.
static SMALL: LazyLock<(GrammarCompiler, Vec<Grammar>)> = LazyLock::new(|| {
    let limits = MaskLimits { few_nodes: 100, most_bytes: 8 << 10 };
    (compiler(&fixture::pieces(&marks(), &TEXTS), limits), grammars(|_| ToolMarkers::default()))
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn en_6_masks_are_those_of_the_library(
        which in 0_usize..3, grammar in any::<prop::sample::Index>(), text in 0..TEXTS.len(),
        choices in proptest::collection::vec(any::<u16>(), 1..40),
    ) {
        let (compiler, grammars) = [&*SPELLED, &*SPECIAL, &*SMALL][which];
        compare(compiler, &grammars[grammar.index(grammars.len())], TEXTS[text], &choices)?;
        prop_assert!(SMALL.0.masks().kept.bytes() <= 8 << 10);
    }
}

#[test]
fn en_6_masks_over_real_vocabularies_are_those_of_the_library() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/vocab");
    if !folder.is_dir() {
        eprintln!("skipped: no ../shared/data/vocab beside the repository");
        return;
    }
    for name in ["ggml-vocab-gpt-2.gguf", "ggml-vocab-phi-3.gguf"] {
        let vocabulary = Text::load(&folder.join(name), None).unwrap().vocabulary;
        let compiler = compiler(&vocabulary, MaskLimits::default());
        for (number, grammar) in grammars(|format| ToolMarkers::of(format, &vocabulary)).iter().enumerate() {
            for round in 0..3_u16 {
                let text = TEXTS[(number + usize::from(round)) % TEXTS.len()];
                let choices: Vec<u16> =
                    (0..12_u16).map(|step| step.wrapping_mul(40_503 + round).wrapping_add(7)).collect();
                compare(&compiler, grammar, text, &choices)
                    .unwrap_or_else(|error| panic!("{name}, {grammar:?}: {error}"));
            }
        }
    }
}

/// Nodes of the tree of tokens that were looked at for each mask of an answer.
fn nodes(mut matcher: Matcher, answer: &str) -> Vec<usize> {
    let mut nodes = Vec::new();
    for byte in answer.bytes() {
        matcher.compute_mask().unwrap();
        nodes.push(matcher.last_step_stats().unwrap().trie_nodes_walked);
        matcher.consume_token(u32::from(byte)).unwrap();
    }
    nodes
}

#[test]
fn en_6_free_text_and_the_marks_in_it_need_no_walk_over_all_tokens() {
    let vocabulary = fixture::pieces(&marks()[..1], &TEXTS);
    let few = 500;
    let compiler = compiler(&vocabulary, MaskLimits { few_nodes: few, ..MaskLimits::default() });
    let all = compiler.masks().tree.len();
    assert!(all > 4_000, "{all}");
    for format in [ToolFormat::Hermes, ToolFormat::QwenCoder, ToolFormat::MistralList, ToolFormat::DeepSeek] {
        let grammar = plan(format, ToolChoice::Auto).grammar(&ToolMarkers::default()).unwrap();
        let compiled = compiler.compile(&grammar).unwrap();
        let answer = "I look. <tool_ <｜tool▁ca [TOOL_CAL or so";
        let (first, second) = (nodes(compiled.matcher(), answer), nodes(compiled.matcher(), answer));
        assert!(first.iter().all(|nodes| *nodes < all / 2), "{format:?}: {first:?} of {all}");
        let library = nodes(compiler.plain(&grammar).unwrap(), answer);
        assert!(library.iter().filter(|nodes| **nodes > all / 2).count() > 4, "{format:?}: {library:?} of {all}");
        // The library walks where a character has begun.
        assert!(second.iter().all(|nodes| *nodes <= few), "{format:?}: {second:?} of {all}");
    }
}

#[test]
fn en_6_a_state_of_a_pattern_is_computed_once_for_all_answers() {
    let vocabulary = fixture::pieces(&marks()[..1], &TEXTS);
    let compiler = compiler(&vocabulary, ALL);
    let grammar = Grammar::Regex("[a-z]+(, [a-z]+){0,20}".to_owned());
    let compiled = compiler.compile(&grammar).unwrap();
    let answer = "one, two, three";
    assert!(nodes(compiler.plain(&grammar).unwrap(), answer).iter().any(|nodes| *nodes > 1_000));
    nodes(compiled.matcher(), answer);
    // A word may end in front of each byte that does not go on with it. The parser is asked once for each of them.
    assert!(nodes(compiled.matcher(), answer).iter().all(|nodes| *nodes <= 256));
}

#[test]
fn en_6_states_of_a_pattern_that_counts_share_their_work() {
    let vocabulary = fixture::pieces(&marks()[..1], &TEXTS);
    let compiler = compiler(&vocabulary, ALL);
    let all = compiler.masks().tree.len();
    for (pattern, answer) in [
        ("[a-zA-Z ,]{3,60}", "one, two, three and four"),
        ("[a-z]+(, [a-z]+){0,40}", "one, two, three, four, one"),
        ("[^xz]{60,90}", "Oslo is a city, and Rome too."),
    ] {
        let compiled = compiler.compile(&Grammar::Regex(pattern.to_owned())).unwrap();
        let nodes = nodes(compiled.matcher(), answer);
        // One state of each kind looks at its tokens: letters, the space behind a comma, and the letters behind it.
        let large = nodes.iter().filter(|nodes| **nodes > all / 8).count();
        assert!(large <= 4, "{pattern}: {nodes:?} of {all}");
    }
}

#[test]
fn en_6_masks_that_are_kept_go_with_their_grammar_and_stay_within_their_budget() {
    let limits = MaskLimits { few_nodes: 0, most_bytes: 64 << 10 };
    let compiler = compiler(&fixture::pieces(&marks()[..1], &TEXTS), limits);
    for length in 1..40_usize {
        let grammar = Grammar::Regex(format!("[a-zA-Z ]{{{length},60}}"));
        nodes(compiler.compile(&grammar).unwrap().matcher(), &"ab cd".repeat(8));
        let bytes = compiler.masks().kept.bytes();
        assert!(bytes > 0 && bytes <= limits.most_bytes, "{bytes}");
    }
    let kept = Arc::clone(&compiler.masks().kept);
    drop(compiler);
    assert_eq!(kept.bytes(), 0);
}

#[test]
fn en_6_a_rehearsal_computes_the_masks_that_the_first_answer_needs() {
    let vocabulary = fixture::pieces(&marks()[..1], &TEXTS);
    let threads = Arc::new(MaskThreads::start().unwrap());
    // A busy machine may be slow.
    let limits = RehearsalLimits { time: Duration::from_secs(60), ..RehearsalLimits::default() };
    let rehearsed = GrammarCompiler::new(&vocabulary, Arc::clone(&threads)).unwrap().rehearsed(limits);
    let at_once = compiler(&vocabulary, MaskLimits::default());
    // Free text in front of calls, which may end at any time.
    let mut two_tools = plan(ToolFormat::QwenCoder, ToolChoice::Auto);
    two_tools.tools.push(Tool { name: "show".to_owned(), ..two_tools.tools[0].clone() });
    for (grammar, answer) in [
        (
            two_tools.grammar(&ToolMarkers::default()).unwrap(),
            "I look.\n<tool_call>\n<function=show>\n<parameter=city>\nRome\n</parameter>\n<parameter=tags>\n[\"a\"]\n\
             </parameter>\n</function>\n</tool_call>",
        ),
        (Grammar::Regex("[a-z]+(, [a-z]+){0,20}".to_owned()), "one, two, three, four"),
        (Grammar::Regex("[A-Za-z ,]{3,60}".to_owned()), "Oslo is a city, and Rome too"),
        (
            Grammar::JsonSchema(person().to_string()),
            "{\"name\":\"Ada\",\"age\":36,\"email\":\"a@b\",\"tags\":[\"poetry\"],\"city\":\"Rome\"}",
        ),
    ] {
        let compiled = rehearsed.compile(&grammar).unwrap();
        let masks = rehearsed.masks().kept.bytes();
        threads.wait_for_spare(Duration::from_secs(120));
        assert!(rehearsed.masks().kept.bytes() >= masks);
        let all = |nodes: Vec<usize>| nodes.into_iter().sum::<usize>();
        let first = all(nodes(compiled.matcher(), answer));
        let expected = all(nodes(at_once.compile(&grammar).unwrap().matcher(), answer));
        // The library's walks over few tokens are the same in both.
        assert!(first < expected * 3 / 4, "{grammar:?}: {first} of {expected}");
        assert_eq!(threads.times().masks, 0, "made-up answers are none");
    }
}
