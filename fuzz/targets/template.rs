//! Chat templates of strangers, with conversations: a rendering ends within its limits, and a second one says the same.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use model_boss_engine::text::{ChatTemplate, Conversation, NoContent, TemplateValue};

/// The conversation for inputs without one.
const MESSAGES: &str = r#"[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello <b> 'é'"},
    {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]}]"#;
const TOOLS: &str = r#"[{"type": "function", "function": {"name": "f", "parameters": {"a": null}}}]"#;

/// The most that a rendering writes.
const LONGEST: usize = 64 << 20;

/// Address sanitizers make frames several times as large as those of the released program, whose stack has 8 MiB.
const STACK: usize = 64 << 20;

fn render(template: &ChatTemplate, conversation: &Conversation) -> Result<String, String> {
    let rendered = template.render(conversation).map_err(|error| {
        let text = error.to_string();
        assert!(!text.is_empty());
        text
    });
    if let Ok(text) = &rendered {
        assert!(text.len() <= LONGEST);
    }
    rendered
}

fn run(source: &str, messages: Vec<TemplateValue>) {
    let sources = BTreeMap::from([("default".to_owned(), source.to_owned())]);
    let specials = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned()), ("eos_token".to_owned(), "</s>".to_owned())]);
    let Ok(template) = ChatTemplate::new(sources, specials) else { return };
    let _ = (template.shows_tools(), template.knows_developer(), template.roles_in_parts(), template.further_roles(), template.tool_source());
    let tools = serde_json::from_str(TOOLS).ok();
    let variables = BTreeMap::from([("enable_thinking".to_owned(), TemplateValue::from(true))]);
    let conversation = Conversation { messages, tools, variables, no_content: NoContent::Exact, ..Conversation::default() };
    let first = render(&template, &conversation);
    // The time goes on between two renderings.
    if !source.contains("strftime_now") {
        assert_eq!(first, render(&template, &conversation));
    }
    let _ = render(&template, &Conversation { no_content: NoContent::Lenient, ..conversation });
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (source, messages) = text.split_once('\0').unwrap_or((text, MESSAGES));
    let Ok(messages) = serde_json::from_str(messages) else { return };
    let source = source.to_owned();
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || run(&source, messages));
    thread.expect("a thread can be started").join().expect("no rendering panics");
});
