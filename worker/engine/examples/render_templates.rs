//! Renders templates, for comparisons with other renderers: a line of JSON in, a line of JSON out.
//!
//! `cargo build --package model-boss-engine --example render_templates`
//!
//! Input has `template` and `variables`. Output has `text`, or `error` where the template is refused.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufWriter, Write};

use model_boss_engine::text::{ChatTemplate, Conversation, NoContent, TemplateError, TemplateValue};
use serde::Deserialize;
use serde_json::json;

/// The stack that text processes give to a rendering.
const STACK: usize = 8 << 20;

#[derive(Deserialize)]
struct Question {
    template: String,
    variables: Variables,
}

#[derive(Deserialize)]
struct Variables {
    #[serde(default)]
    messages: Vec<TemplateValue>,
    #[serde(default)]
    tools: Option<TemplateValue>,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(flatten)]
    others: BTreeMap<String, TemplateValue>,
}

fn main() -> io::Result<()> {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(answer_all)?;
    thread.join().map_err(|_| io::Error::other("a rendering panicked"))?
}

fn answer_all() -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().lines() {
        let answer = match render(serde_json::from_str(&line?)?) {
            Ok(text) => json!({ "text": text }),
            Err(error) => json!({ "error": words(&error) }),
        };
        writeln!(out, "{answer}")?;
    }
    out.flush()
}

fn render(Question { template, variables }: Question) -> Result<String, TemplateError> {
    let template = ChatTemplate::new(BTreeMap::from([("default".to_owned(), template)]), BTreeMap::new())?;
    let Variables { messages, tools, add_generation_prompt, others: variables } = variables;
    let no_content = NoContent::Exact;
    template.render(&Conversation { messages, tools, add_generation_prompt, begun: None, variables, no_content })
}

fn words(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}
