//! Limits of what a template may take apart, put together and nest.

use super::*;

/// Renders on the stack that renderings get by default.
fn limited(sources: &'static [&'static str]) {
    let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(move || {
        for source in sources {
            let rendered = render(source, "{}");
            assert!(matches!(rendered, Err(TemplateError::Limit(_))), "{source}: {rendered:?}");
        }
    });
    thread.unwrap().join().unwrap();
}

#[test]
fn en_4_no_width_makes_a_text_without_bounds() {
    limited(&[
        "{{ 'a' | center(1000000000000) }}",
        "{{ 'a'.center(1000000000000) }}{{ 'a'.zfill(1000000000000) }}",
        "{{ 'a'.rjust(99999999999999999999) }}",
        "{{ '\t'.expandtabs(1000000000000) }}",
        "{{ 'a\nb' | indent(1000000000000) }}",
        "{{ [1] | tojson(indent=1000000000000) }}",
        "{{ '{:{w}}'.format(1, w=1000000000000) }}",
        "{{ '{:.1000000000000f}'.format(1.5) }}",
        "{{ '%*d' % (1000000000000, 1) }}",
        "{{ '%.1000000000000d' % 1 }}",
        "{{ ['a'] * 1000000000000 }}",
        "{{ [1, 2] | batch(1000000000000, 'x') | list }}",
        "{{ [1, 2] | slice(1000000000000) | list }}",
    ]);
}

#[test]
fn en_4_texts_do_not_grow_from_filter_to_filter() {
    limited(&[
        "{% set t = '&' * 30000000 %}{{ t | forceescape }}",
        "{% set t = '%' * 30000000 %}{{ t | urlencode }}",
        "{% set t = 'a' * 30000000 %}{{ t | replace('a', t) }}",
        "{% set t = 'a' * 30000000 %}{{ t.replace('', 'bbb') }}",
        "{% set t = 'a' * 30000000 %}{{ t.join('abcd') }}",
        "{% set t = 'a' * 30000000 %}{{ [t, t, t] | join }}",
        "{% set t = 'a' * 30000000 %}{{ '%s%s%s' % (t, t, t) }}",
        "{% set t = 'a' * 30000000 %}{{ '{0}{0}{0}'.format(t) }}",
        "{% set t = '\\x01' * 30000000 %}{{ t | tojson }}",
        "{% set t = 'ΐ' * 20000000 %}{{ t | upper }}",
        "{% set t = 'a' * 30000000 %}{{ t ~ t ~ t }}",
        "{% set ns = namespace(t='ab') %}{% for i in range(99) %}{% set ns.t = ns.t.replace('a', ns.t) %}{% endfor %}",
    ]);
}

#[test]
fn en_4_texts_are_not_taken_apart_without_bounds() {
    limited(&[
        "{{ ('x' * 5000000) | list | length }}",
        "{{ ('x ' * 5000000).split() | length }}",
        "{{ ('x,' * 5000000).split(',') | length }}",
        "{{ ('x\n' * 5000000).splitlines() | length }}",
        "{% for c in 'x' * 5000000 %}{% endfor %}",
        "{{ ('x' * 5000000) | map('string') | list | length }}",
        "{{ ('x' * 5000000) | batch(2) | list | length }}",
        "{{ ('x' * 5000000) | reverse | list | length }}",
    ]);
}

#[test]
fn en_4_no_comparison_is_free() {
    limited(&[
        "{% set t = 'x' * 9999999 %}{% for i in range(9999) %}{{ loop.changed(t ~ '') }}{% endfor %}",
        "{% set t = 'x' * 9999999 %}{% for i in range(9999) %}{{ 'y'.startswith(t) }}{% endfor %}",
        "{% set l = ['x' * 999999] * 9 %}{% for i in range(99999) %}{{ l | sort | length }}{% endfor %}",
    ]);
}

#[test]
fn en_4_a_source_is_not_nested_without_bounds() {
    let thread = std::thread::Builder::new().stack_size(8 << 20).spawn(|| {
        let nested = [
            format!("{{{{ {}1{} }}}}", "(".repeat(9999), ")".repeat(9999)),
            format!("{{{{ {}1{} }}}}", "[".repeat(300), "]".repeat(300)),
            format!("{{{{ {}1 }}}}", "not ".repeat(700)),
            format!("{{{{ {}1 }}}}", "-".repeat(700)),
            format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(700)),
            format!("{}{}", "{% if 1 %}".repeat(9999), "{% endif %}".repeat(9999)),
            format!("{}{}", "{% for x in [] %}".repeat(300), "{% endfor %}".repeat(300)),
            format!("{{{{ 1{} }}}}", ".a".repeat(9999)),
            format!("{{{{ 1{} }}}}", " | abs".repeat(9999)),
        ];
        for source in nested {
            let read = ChatTemplate::new(BTreeMap::from([("default".into(), source.clone())]), BTreeMap::new());
            assert!(matches!(read, Err(TemplateError::Syntax(_))), "{source:.40}");
        }
        // Branches and brackets that Jinja2 can read are read.
        let branches = format!("{{% if 0 %}}{}{{% else %}}b{{% endif %}}", "{% elif 0 %}a".repeat(5000));
        assert_eq!(render(&branches, "{}").unwrap(), "b");
        let deep = format!("{{{{ {}1{} }}}}", "(".repeat(60), ")".repeat(60));
        assert_eq!(render(&deep, "{}").unwrap(), "1");
        let long = format!("{{{{ [{}] | length }}}}", "'a', ".repeat(50_000));
        assert_eq!(render(&long, "{}").unwrap(), "50000");
    });
    thread.unwrap().join().unwrap();
}
