use super::*;

use std::path::{Path, PathBuf};

use serde::Deserialize;

mod limits;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(BTreeMap::from([("default".into(), source.into())]), BTreeMap::new()).unwrap()
}

fn render(source: &str, variables: &str) -> Result<String, TemplateError> {
    let variables = serde_json::from_str(variables).unwrap();
    template(source).render(&Conversation { variables, ..Conversation::default() })
}

#[test]
fn blocks_take_their_line_with_them() {
    assert_eq!(render("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "{}").unwrap(), "a\nb\nc");
}

/// As Jinja2 3.1 does it.
#[test]
fn en_4_a_loop_whose_items_all_leave_early_takes_its_other_branch() {
    let loop_of = |inside: &str| format!("{{% for x in [1, 2] %}}{inside}{{% else %}}E{{% endfor %}}");
    for (inside, expected) in [
        ("{% continue %}", "E"),
        ("{% break %}", "E"),
        ("{% if x == 2 %}{% break %}{% endif %}{{ x }}", "1"),
        ("{% if x == 1 %}{% continue %}{% endif %}{{ x }}", "2"),
        ("{{ x }}", "12"),
    ] {
        assert_eq!(render(&loop_of(inside), "{}").unwrap(), expected, "{inside}");
    }
}

/// As Python 3.11 does it.
#[test]
fn en_4_letters_and_numbers_of_all_scripts_are_pythons() {
    for (source, expected) in [
        ("{{ 'ΑΣ ΣΑ'.capitalize() }}|{{ 'ΟΔΟΣ ΟΔΟΣ'.title() }}|{{ 'ΑΣ'.swapcase() }}", "Ας σα|Οδος Οδος|ας"),
        ("{{ 'ǆul ŉa ﬁx'.title() }}|{{ 'ᾳβ'.capitalize() }}|{{ 'ǅ'.swapcase() }}", "ǅul ʼNa Fix|ᾼβ|ǅ"),
        ("{{ 'Straße ẞ ſı ς'.casefold() }}", "strasse ss sı σ"),
        ("{{ 'ΑΣ-ΣΑΣ (ΣΑΣ'|title }}|{{ 'ΣΑΣ'|capitalize }}", "Ασ-Σας (Σας|Σας"),
        ("{{ ['①', '²', '一', '٣', '½']|map('upper')|join }}", "①²一٣½"),
        (
            "{% for c in ['①', '一', '٣', '½', '𝟙'] %}{{ [c.isdecimal(), c.isdigit(), c.isnumeric()]|map('int')|join }} {% endfor %}",
            "011 001 111 001 111 ",
        ),
        ("{{ ['क', 'का', 'Ⅷ', '漢']|select('string')|map('length')|join }}", "1211"),
        ("{{ ['क'.isalpha(), 'का'.isalpha(), 'Ⅷ'.isalpha(), 'Ⅷ'.isalnum()]|map('int')|join }}", "1001"),
        ("{{ ['ǅ'.istitle(), 'ǅ'.isupper(), 'ᾼΑ'.istitle()]|map('int')|join }}", "100"),
    ] {
        assert_eq!(render(source, "{}").unwrap(), expected, "{source}");
    }
}

#[test]
fn en_4_a_refusal_is_the_templates_own_words() {
    let error = render("{{ raise_exception('No systems here') }}", "{}").unwrap_err();
    assert!(matches!(&error, TemplateError::Refused(message) if message == "No systems here"));
    assert!(matches!(render("{{ none + 1 }}", "{}"), Err(TemplateError::Failed(_))));
    assert!(ChatTemplate::new(BTreeMap::from([("default".into(), "{% if".into())]), BTreeMap::new()).is_err());
}

#[test]
fn undefined_prints_nothing_and_has_no_attributes() {
    assert_eq!(render("[{{ gone }}{% for x in gone %}x{% endfor %}{{ 'a' in gone }}]", "{}").unwrap(), "[False]");
    assert!(render("{{ gone.field }}", "{}").is_err());
}

#[test]
fn en_4_a_plus_without_a_left_side_is_pythons() {
    let variables = r#"{"x": 3, "f": -2.5, "t": true, "s": "q", "rows": [{"n": "x"}, {"n": "y"}]}"#;
    for (source, expected) in [
        ("{{ +x }} {{ 1 + +x }} {{ 2 * +x }} {{ -+x }} {{ +-x }} {{ ++x }} {{ [+x, +1] }}", "3 4 6 -3 -3 3 [3, 1]"),
        ("{{ {'a': +x}['a'] }} {{ (+x) }} {{ +t }} {{ +f }} {{ +x ** 2 }} {{ x if +x else 1 }}", "3 3 1 -2.5 9 3"),
        (
            "{{ 1 == +1 }} {{ x+1 }} {{ rows[+1].n }} {{ range(+x) | list }} {{ x is defined and +x }}",
            "True 4 y [0, 1, 2] 3",
        ),
        ("{{ [1, 2][:+1] }} {{- +1 }} {{ y | default(+1) }} 'a' +b {# +x #}", "[1]1 1 'a' +b "),
        ("{% set y = +x %}{{ y }}{% if +x > 2 %}!{% endif %}{% for i in [+1] %}{{ i }}{% endfor %}", "3!1"),
        ("{% if not +x %}n{% elif +x %}é{{ +x }}{% endif %}", "é3"),
    ] {
        assert_eq!(render(source, variables).unwrap(), expected, "{source}");
    }
    for refused in ["{{ +s }}", "{{ +gone }}", "{{ +none }}", "{{ +rows }}"] {
        assert!(render(refused, variables).is_err(), "{refused}");
    }
    for unreadable in ["{{ + }}", "{{ 1 + }}", "{% set + = 1 %}"] {
        let sources = BTreeMap::from([("default".into(), unreadable.into())]);
        assert!(ChatTemplate::new(sources, BTreeMap::new()).is_err(), "{unreadable}");
    }
}

#[test]
fn en_4_unknown_names_are_found_where_jinja2_finds_them() {
    for unreadable in [
        "{{ 1 | nope }}",
        "{{ false and 1 is nope }}",
        "{% if x %}{% for i in [] %}{{ i | nope }}{% endfor %}{% endif %}",
    ] {
        let sources = BTreeMap::from([("default".into(), unreadable.into())]);
        assert!(ChatTemplate::new(sources, BTreeMap::new()).is_err(), "{unreadable}");
    }
    assert_eq!(render("{% if false %}{{ 1 | nope }}{% endif %}{{ 2 if true else 1 | nope }}", "{}").unwrap(), "2");
}

#[test]
fn en_4_tuples_need_no_brackets_and_raw_text_keeps_its_first_line_feed() {
    for (source, expected) in [
        ("{{ 1, 'a' }}{{- 2, -}} {{ [1, 2], (3) }}", "(1, 'a')(2,)([1, 2], 3)"),
        ("{% if 0, %}t{% endif %}{{ +1, +2 }}{% for a in 1, 2 if a in [1, 3] %}{{ a }}{% endfor %}", "t(1, 2)1"),
        ("{% for a, b in (1, 2), (3, 4) %}{{ a }}{% endfor %}{% for a in [5, 6] if a > 5 %}{{ a }}{% endfor %}", "136"),
        ("{% raw %}\n{{ x }}\n{% endraw %}\n.", "\n{{ x }}\n."),
        ("{% raw -%}\n{% generation %}{% endraw %}", "{% generation %}"),
        ("{{ range(5, 0, -2) }}{{ range(9)[1:8:3] }}", "range(5, 0, -2)range(1, 8, 3)"),
        ("{% for x in 'ab' %}{{ loop }}{% endfor %}", "<LoopContext 1/2><LoopContext 2/2>"),
        ("{{ x.__class__ }}{{ '{0.__class__}'.format(1) }}{{ (0.5).hex() }}", "0x1.0000000000000p-1"),
    ] {
        assert_eq!(render(source, "{}").unwrap(), expected, "{source}");
    }
    for refused in [
        "{{ ''.__class__.__name__ }}",
        "{{ x.__dict__ }}",
        "{{ 'a' | attr(1) }}",
        "{{ '{}{0}'.format(1) }}",
        "{% filter length %}a{% endfilter %}",
    ] {
        assert!(render(refused, "{}").is_err(), "{refused}");
    }
}

#[test]
fn en_4_groups_have_their_names_and_are_tuples() {
    let variables = r#"{"rows": [{"a": 2, "n": "x"}, {"a": 1, "n": "y"}, {"a": 2, "n": "z"}]}"#;
    for (source, expected) in [
        (
            "{% for g in rows | groupby('a') %}{{ g.grouper }}:{{ g.list | map(attribute='n') | join(',') }};{% endfor %}",
            "1:y;2:x,z;",
        ),
        (
            "{% for g in rows[:2] | groupby('a') %}{{ g }}{{ g[0] }}{{ g['list'] | length }}{{ g.x is defined }} {% endfor %}",
            "(1, [{'a': 1, 'n': 'y'}])11False (2, [{'a': 2, 'n': 'x'}])21False ",
        ),
        ("{{ rows | groupby('a') | map(attribute='grouper') | list }}", "[1, 2]"),
        ("{{ (rows | groupby('a') | first)[0:1].grouper is defined }}", "False"),
    ] {
        assert_eq!(render(source, variables).unwrap(), expected, "{source}");
    }
}

#[test]
fn tojson_writes_what_python_writes() {
    let variables = r#"{"v": {"b": [1, 2.0, 1e-7, 1e16, true, null], "a": "<é'\u0001\n", "e": [], "o": {}}}"#;
    assert_eq!(
        render("{{ v | tojson }}", variables).unwrap(),
        "{\"b\": [1, 2.0, 1e-07, 1e+16, true, null], \"a\": \"<é'\\u0001\\n\", \"e\": [], \"o\": {}}"
    );
    assert_eq!(
        render("{{ {'b': [1], 'a': []} | tojson(indent=2, sort_keys=true) }}", "{}").unwrap(),
        "{\n  \"a\": [],\n  \"b\": [\n    1\n  ]\n}"
    );
    assert_eq!(
        render("{{ ['é😀', 1] | tojson(ensure_ascii=true, separators=(',', ':')) }}", "{}").unwrap(),
        "[\"\\u00e9\\ud83d\\ude00\",1]"
    );
    assert!(render("{{ gone | tojson }}", "{}").is_err());
}

#[test]
fn marks_for_training_masks_render_their_body() {
    let source = "{% if true %}\n{%- generation -%}\n x {% endgeneration %}\n{% endif %}";
    assert_eq!(render(source, "{}").unwrap(), "x ");
}

#[test]
fn marked_text_escapes_what_it_meets() {
    let variables = r#"{"x": "<a> & 'b'"}"#;
    assert_eq!(
        render("{{- 'p'|safe + x + '\\n' + {'k': \"}}\"} | tojson -}}", variables).unwrap(),
        "p&lt;a&gt; &amp; &#39;b&#39;\n{&#34;k&#34;: &#34;}}&#34;}"
    );
    assert_eq!(render("{{ x + ('+' if x else 'p'|safe) }}{{ 'a' | safe }}", variables).unwrap(), "<a> & 'b'+a");
}

#[test]
fn nothing_is_nothing_and_cannot_be_looped_over() {
    let source = "{{ tools is none }} {{ tools is iterable }} {{ not tools }} {{ tools | tojson }} {{ tools }}";
    assert_eq!(render(source, "{}").unwrap(), "True False True null None");
    assert!(render("{% for tool in tools %}{% endfor %}", "{}").is_err());
    assert_eq!(render("{{ tools == none }} {{ tools != None }}", "{}").unwrap(), "True False");
    assert_eq!(
        render("{{ ([1] + [2]) is sequence }} {{ 'text' is sequence }} {{ 1 is sequence }}", "{}").unwrap(),
        "True True False"
    );
}

#[test]
fn en_4_absent_content_is_none_for_the_reference_and_nothing_for_agents() {
    let source = "{% for m in messages %}[{{ m.content }}|{{ m.content is none }}|{{ m.content or '-' }}]{% endfor %}";
    let failing = "{% for m in messages %}{{ 'x' + m.content }}{% endfor %}";
    let messages: Vec<TemplateValue> = serde_json::from_str(r#"[{"role": "assistant", "content": null}]"#).unwrap();
    let render = |source: &str, no_content| {
        template(source).render(&Conversation { messages: messages.clone(), no_content, ..Conversation::default() })
    };
    assert_eq!(render(source, NoContent::Exact).unwrap(), "[None|True|-]");
    assert_eq!(render(source, NoContent::Lenient).unwrap(), "[|True|-]");
    assert!(render(failing, NoContent::Exact).is_err());
    assert_eq!(render(failing, NoContent::Lenient).unwrap(), "x");
}

#[test]
fn en_4_lines_are_indented_as_in_python() {
    assert_eq!(render("{{ '{\n' | indent(2, first=true) }}}", "{}").unwrap(), "  {\n}");
    assert_eq!(render("{{ 'a\n\nb' | indent(width='> ') }}", "{}").unwrap(), "a\n\n> b");
    assert_eq!(render("{{ 'a\n\nb' | indent(1, true, true) }}", "{}").unwrap(), " a\n \n b");
}

#[test]
fn generators_are_not_lists() {
    assert_eq!(render("{% for m in tools | selectattr('x') %}x{% endfor %}", "{}").unwrap(), "");
    assert_eq!(render("{{ [1, 2] | map('string') | list | tojson }}", "{}").unwrap(), "[\"1\", \"2\"]");
    assert!(render("{{ [1, 2] | map('string') | tojson }}", "{}").is_err());
}

#[test]
fn strings_have_pythons_methods() {
    let source = "{{ 'a-b-c'.rsplit('-', 1)[0] }} {{ 'x=1'.partition('=')[2] }} {{ 'pre-x'.removeprefix('pre-') }}";
    assert_eq!(render(source, "{}").unwrap(), "a-b 1 x");
}

#[test]
fn the_time_is_told_in_pythons_letters() {
    let year: i32 = render("{{ strftime_now('%Y') }}", "{}").unwrap().parse().unwrap();
    assert!(year >= 2025);
    // The C library's `strftime` copies what is no field, and the time has no zone.
    assert_eq!(render("{{ strftime_now('%|%Q|%N|%é|%z%Z|a%-') }}", "{}").unwrap(), "%|%Q|%N|%é||a%-");
}

#[test]
fn en_4_a_greedy_template_runs_out_of_fuel_or_room() {
    assert!(matches!(
        render("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "{}"),
        Err(TemplateError::Limit(_))
    ));
    let source = "{% for a in range(9999) %}{{ 'x' * 99999 }}{% endfor %}";
    assert!(matches!(render(source, "{}"), Err(TemplateError::Limit("writes more than 64 MiB"))));
}

#[test]
fn en_4_what_a_template_makes_of_itself_has_limits() {
    // The stack that renderings get, by default.
    let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(assert_limits).unwrap();
    thread.join().unwrap();
}

fn assert_limits() {
    let limited = |source: &str| {
        let rendered = render(source, "{}");
        assert!(matches!(rendered, Err(TemplateError::Limit(_))), "{source}: {rendered:?}");
    };
    limited("{{ 'x' * 10000000000000 }}");
    limited("{{ [1] * 10000000000000 }}");
    limited("{{ 'x'.ljust(10000000000000) }}{{ '%9999999999d' % 1 }}");
    limited("{{ '%9999999999d' % 1 }}");
    limited("{{ '{:>9999999999}'.format(1) }}");
    limited("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}");
    // Values in one another, and lists that share their items.
    limited("{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}");
    limited("{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}");
    limited("{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}");
    limited("{% set t = 'x' * 9999999 %}{% for i in range(9999) %}{{ 'y' in t }}{% endfor %}");
    // A namespace may hold itself: it is given back all the same, but has no text.
    assert!(render("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "{}").is_err());
    let chain = format!("{{{{ {} }}}}", vec!["1"; 5000].join("+"));
    assert!(ChatTemplate::new(BTreeMap::from([("default".into(), chain)]), BTreeMap::new()).is_err());
}

#[test]
fn en_4_a_failure_names_the_line() {
    let error = render("a\n{{ 1 }}\n{{ none + 1 }}", "{}").unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.ends_with("(line 3)"), "{cause}");
}

/// The reference's renderings of small templates, as `scripts/reference/template_cases.py` writes it.
#[derive(Deserialize)]
struct Expected {
    pairs: Group,
    singles: Group,
    slices: Group,
    statements: Statements,
}

/// Templates behind a prelude, each with its results for every choice of values.
#[derive(Deserialize)]
struct Group {
    prelude: String,
    #[serde(default)]
    bounds: Vec<Option<i32>>,
    cases: BTreeMap<String, Vec<serde_json::Value>>,
}

#[derive(Deserialize)]
struct Statements<T = Option<String>> {
    variables: BTreeMap<String, TemplateValue>,
    cases: Vec<T>,
}

fn expected() -> Expected {
    serde_json::from_str(include_str!("../../../../tests/templates/expected.json")).unwrap()
}

/// Compares a template with the reference, for each choice of variables. `null` is a refusal, and `false` was not
/// recorded.
fn compare(
    source: &str,
    choices: impl Iterator<Item = serde_json::Value>,
    expected: &[serde_json::Value],
) -> Vec<String> {
    let template = template(source);
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (choice, expected) in choices.zip(expected) {
        compared += 1;
        if expected == false {
            continue;
        }
        let variables = serde_json::from_value(choice.clone()).unwrap();
        let rendered =
            template.render(&Conversation { variables, no_content: NoContent::Exact, ..Conversation::default() });
        if rendered.as_ref().ok().map(String::as_str) != expected.as_str() {
            let short = source.rsplit_once("] %}").map_or(source, |(_, rest)| rest);
            wrong.push(format!("{short} {choice}: {rendered:?}, not {expected}"));
        }
    }
    assert_eq!(compared, expected.len(), "each result has its choice");
    wrong
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn en_4_operators_of_all_pairs_of_values_are_pythons() {
    let Group { prelude, cases, .. } = expected().pairs;
    let wrong = cases.iter().flat_map(|(operator, expected)| {
        let values = expected.len().isqrt();
        let choices = (0..values).flat_map(|i| (0..values).map(move |j| serde_json::json!({"i": i, "j": j})));
        compare(&format!("{prelude}{{{{ v[i] {operator} v[j] }}}}"), choices, expected)
    });
    assert_none(&wrong.collect::<Vec<_>>());
}

#[test]
fn en_4_filters_tests_and_methods_of_all_values_are_the_references() {
    let Group { prelude, cases, .. } = expected().singles;
    let wrong = cases.iter().flat_map(|(source, expected)| {
        let choices = (0..expected.len()).map(|i| serde_json::json!({ "i": i }));
        compare(&format!("{prelude}{source}"), choices, expected)
    });
    assert_none(&wrong.collect::<Vec<_>>());
}

#[test]
fn en_4_slices_with_all_bounds_and_steps_are_pythons() {
    let Group { prelude, bounds, cases } = expected().slices;
    let wrong = cases.iter().flat_map(|(step, expected)| {
        let values = expected.len() / (bounds.len() * bounds.len());
        let bounds = &bounds;
        let choices = (0..values).flat_map(|i| {
            bounds.iter().flat_map(move |a| bounds.iter().map(move |b| serde_json::json!({"i": i, "a": a, "b": b})))
        });
        let step = if step.is_empty() { String::new() } else { format!(":{step}") };
        let source = format!("{prelude}{{% set p = v[i][a:b{step}] %}}{{{{ p if p is string else p | join }}}}");
        compare(&source, choices, expected)
    });
    assert_none(&wrong.collect::<Vec<_>>());
}

#[test]
fn en_4_statements_and_white_space_are_the_references() {
    let Statements { variables, cases } = expected().statements;
    let lines: Vec<&str> = include_str!("../../../../tests/templates/statements.txt").lines().collect();
    assert_eq!(lines.len(), cases.len());
    let mut wrong = Vec::new();
    for (line, expected) in lines.iter().zip(cases) {
        let sources = BTreeMap::from([("default".to_owned(), line.replace("\\n", "\n"))]);
        let conversation = Conversation {
            variables: variables.clone(),
            no_content: NoContent::Exact,
            add_generation_prompt: false,
            ..Conversation::default()
        };
        let rendered = ChatTemplate::new(sources, BTreeMap::new()).and_then(|template| template.render(&conversation));
        if rendered.as_ref().ok() != expected.as_ref() {
            wrong.push(format!("{line}: {rendered:?}, not {expected:?}"));
        }
    }
    assert_none(&wrong);
}

#[test]
fn en_4_random_templates_render_as_in_jinja2() {
    let Statements { variables, cases } = serde_json::from_str::<Statements<(String, Option<String>)>>(include_str!(
        "../../../../tests/templates/random.json"
    ))
    .unwrap();
    assert!(cases.len() > 400);
    let mut wrong = Vec::new();
    for (source, expected) in cases {
        let conversation = Conversation {
            variables: variables.clone(),
            no_content: NoContent::Exact,
            add_generation_prompt: false,
            ..Conversation::default()
        };
        let rendered = ChatTemplate::new(BTreeMap::from([("default".to_owned(), source.clone())]), BTreeMap::new())
            .and_then(|template| template.render(&conversation));
        if rendered.as_ref().ok() != expected.as_ref() {
            wrong.push(format!("{source:?}: {rendered:?}, not {expected:?}"));
        }
    }
    assert_none(&wrong);
}

/// One rendering of a real template by the reference renderer.
#[derive(Deserialize)]
struct Case {
    template: String,
    case: String,
    messages: Vec<TemplateValue>,
    tools: Option<TemplateValue>,
    bos_token: String,
    eos_token: String,
    date_string: String,
    add_generation_prompt: bool,
    expected: Option<String>,
    error: Option<String>,
}

/// `../shared/data/chat-templates` beside the repository.
fn cases_folder() -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    let folder = repository.parent()?.join("shared/data/chat-templates");
    folder.join("cases.json").is_file().then_some(folder)
}

#[test]
fn en_4_rc_23_real_templates_render_exactly_as_the_reference() {
    let Some(folder) = cases_folder() else {
        eprintln!("skipped: ../shared/data/chat-templates is not beside this repository");
        return;
    };
    let cases: Vec<Case> = serde_json::from_str(&std::fs::read_to_string(folder.join("cases.json")).unwrap()).unwrap();
    assert!(!cases.is_empty());
    let mut wrong = Vec::new();
    for case in &cases {
        let source = std::fs::read_to_string(folder.join(&case.template)).unwrap();
        let special = [("bos_token", &case.bos_token), ("eos_token", &case.eos_token)];
        let special = special.into_iter().map(|(name, text)| (name.to_owned(), text.clone())).collect();
        let conversation = Conversation {
            begun: None,
            no_content: NoContent::Exact,
            messages: case.messages.clone(),
            tools: case.tools.clone(),
            add_generation_prompt: case.add_generation_prompt,
            variables: BTreeMap::from([("date_string".to_owned(), case.date_string.clone().into())]),
        };
        let rendered = ChatTemplate::new(BTreeMap::from([("default".into(), source)]), special)
            .and_then(|template| template.render(&conversation));
        let right = match (&rendered, &case.expected, &case.error) {
            (Ok(text), Some(expected), None) => text == expected,
            (Err(_), _, Some(_)) => true,
            _ => false,
        };
        if !right {
            wrong.push(format!(
                "{} {}:\n{rendered:?}\nexpected {:?} {:?}",
                case.template, case.case, case.expected, case.error
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {} wrong\n{}", wrong.len(), cases.len(), wrong.join("\n\n"));
}
