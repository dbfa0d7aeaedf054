use super::*;

use std::path::{Path, PathBuf};

use serde::Deserialize;

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
    assert!(render("{{ strftime_now('%') }}", "{}").is_err());
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
