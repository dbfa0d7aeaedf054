//! Chat templates: a conversation becomes the text a model was trained on.
//!
//! Templates are Jinja, written for Jinja2 with the settings and helpers of `transformers`. They are read by its
//! grammar (`syntax`), and run by Python's rules: its types, its exceptions, and the refusals of Jinja2's sandbox.
//! They come with a model's files, so they are strangers. Steps, output, depth and the size of values have limits.
//! A step may still take long, so what renders them has to bound time, memory and stack as well.

mod analysis;
mod arguments;
mod attributes;
mod calls;
mod data;
mod error;
mod escaping;
mod extent;
mod fault;
mod filters;
mod format;
mod fuel;
mod functions;
mod grammar;
mod interpreter;
mod letters;
mod lexer;
mod macros;
mod markup;
mod methods;
mod names;
mod numerals;
mod operators;
mod order;
mod parser;
mod percent;
mod predicates;
mod printing;
mod probes;
mod scope;
mod sequences;
mod soft;
mod syntax;
mod syntax_error;
mod text;
mod tojson;
mod tree;
mod value;
mod wordwrap;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use data::TemplateValue;
pub use error::TemplateError;
use tree::TemplateFrame;
use value::PythonValue;

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    /// The templates by name, one of which is `default`.
    templates: BTreeMap<String, TemplateSource>,
    /// The spellings of special tokens.
    globals: BTreeMap<String, PythonValue>,
}

/// One template.
#[derive(Debug)]
struct TemplateSource {
    text: String,
    tree: TemplateFrame,
}

/// The variables that a template is rendered with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Conversation {
    /// The messages: objects with at least `role` and `content`.
    pub messages: Vec<TemplateValue>,
    /// The tools offered.
    pub tools: Option<TemplateValue>,
    /// End with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The beginning of the assistant's turn, which is to be continued. It follows the turn's start.
    #[serde(default)]
    pub begun: Option<String>,
    /// Further variables that the template may read, such as `enable_thinking`.
    pub variables: BTreeMap<String, TemplateValue>,
    /// Whether a message without content is rendered as it is.
    #[serde(default)]
    pub no_content: NoContent,
}

/// The content that a template gets for a message whose content is `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NoContent {
    /// An empty value: it counts as `none` and prints nothing. A template that fails on it gets an empty
    /// text. Agents send such messages with tool calls, and the reference renderer would print `None` or refuse.
    #[default]
    Lenient,
    /// Python's `None`, as the reference renderer passes it.
    Exact,
}

impl Default for Conversation {
    fn default() -> Self {
        let variables = BTreeMap::new();
        let no_content = NoContent::default();
        Self { messages: Vec::new(), tools: None, add_generation_prompt: true, begun: None, variables, no_content }
    }
}

impl ChatTemplate {
    /// Parses templates by name: `default`, and `tool_use` where a model has another one for tools. `variables` are the
    /// spellings of special tokens (`bos_token`, …).
    pub fn new(sources: BTreeMap<String, String>, variables: BTreeMap<String, String>) -> Result<Self, TemplateError> {
        let mut templates = BTreeMap::new();
        for (name, text) in sources {
            let tree = syntax::read(&text).map_err(TemplateError::Syntax)?;
            templates.insert(name, TemplateSource { text, tree });
        }
        // A list without a `default` still has something to render with.
        if !templates.contains_key(DEFAULT)
            && let Some((_, first)) = templates.pop_first()
        {
            templates.insert(DEFAULT.to_owned(), first);
        }
        let globals = variables.into_iter().map(|(name, text)| (name, PythonValue::text(text))).collect();
        Ok(Self { templates, globals })
    }

    fn source(&self, has_tools: bool) -> Result<&TemplateSource, TemplateError> {
        let special = has_tools.then(|| self.templates.get("tool_use")).flatten();
        let missing = || TemplateError::Refused("there is none".to_owned());
        special.or_else(|| self.templates.get(DEFAULT)).ok_or_else(missing)
    }

    /// The source of the template that is used where there are tools.
    pub fn tool_source(&self) -> String {
        self.source(true).map(|source| source.text.clone()).unwrap_or_default()
    }

    /// The prompt for a conversation.
    pub fn render(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        if conversation.no_content == NoContent::Exact {
            return self.render_with(conversation, ContentInstead::None);
        }
        match self.render_with(conversation, ContentInstead::Nothing) {
            Err(TemplateError::Failed(_) | TemplateError::Refused(_)) if conversation.lacks_content() => {
                self.render_with(conversation, ContentInstead::Empty)
            }
            rendered => rendered,
        }
    }

    fn render_with(&self, conversation: &Conversation, instead: ContentInstead) -> Result<String, TemplateError> {
        let source = self.source(conversation.tools.is_some())?;
        let nothing = match instead {
            ContentInstead::None => PythonValue::None,
            ContentInstead::Nothing => PythonValue::NoContent,
            ContentInstead::Empty => PythonValue::text(""),
        };
        let given = |value: &Option<TemplateValue>| value.as_ref().map_or(PythonValue::None, |value| value.0.clone());
        let mut variables: BTreeMap<String, PythonValue> =
            conversation.variables.iter().map(|(name, value)| (name.clone(), value.0.clone())).collect();
        variables.insert("messages".to_owned(), PythonValue::list(conversation.messages_with(&nothing)?)?);
        // transformers passes `None` for absent values, and templates ask `is none` as well as `is defined`.
        variables.insert("tools".to_owned(), given(&conversation.tools));
        variables.entry("documents".to_owned()).or_insert(PythonValue::None);
        if conversation.no_content == NoContent::Lenient {
            // A model without such a token has an empty one, as in llama-server: templates add them to other texts.
            for name in ["bos_token", "eos_token"].into_iter().filter(|name| !self.globals.contains_key(*name)) {
                variables.entry(name.to_owned()).or_insert_with(|| PythonValue::text(""));
            }
        }
        variables.insert("add_generation_prompt".to_owned(), PythonValue::Bool(conversation.add_generation_prompt));
        Ok(interpreter::run(&source.tree, &variables, &self.globals)?)
    }
}

/// The value in place of absent content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentInstead {
    /// Python's `None`.
    None,
    /// A value that prints nothing.
    Nothing,
    /// An empty text.
    Empty,
}

impl Conversation {
    fn lacks_content(&self) -> bool {
        self.messages.iter().any(|message| lacks_content(&message.0))
    }

    /// The messages, with this in place of content that is not there.
    fn messages_with(&self, nothing: &PythonValue) -> Result<Vec<PythonValue>, TemplateError> {
        let with = |TemplateValue(message): &TemplateValue| match message {
            PythonValue::Dict(dict) if lacks_content(message) => {
                let field = |(key, value): &(PythonValue, PythonValue)| match key.as_str() {
                    Some(CONTENT) => (key.clone(), nothing.clone()),
                    _ => (key.clone(), value.clone()),
                };
                Ok(PythonValue::dict(dict.entries().iter().map(field))?)
            }
            _ => Ok(message.clone()),
        };
        self.messages.iter().map(with).collect()
    }
}

const CONTENT: &str = "content";

/// The name of the template that is used where no other one is meant.
const DEFAULT: &str = "default";

fn lacks_content(message: &PythonValue) -> bool {
    matches!(message, PythonValue::Dict(dict) if dict.named(CONTENT).is_some_and(PythonValue::is_none))
}

#[cfg(test)]
mod tests;
