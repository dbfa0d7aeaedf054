//! Chat templates: a conversation becomes the text a model was trained on.
//!
//! Templates are Jinja, written for Jinja2 with the settings and helpers of `transformers`; here minijinja runs them.
//! They come with a model's files, so they are strangers. Fuel bounds their steps and a cap bounds what they write.
//! Neither bounds a single step, so what renders them has to bound time, memory and stack as well.

mod error;
mod functions;
mod markup;
mod python_types;
mod tojson;

use std::collections::BTreeMap;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Value, context};
use serde::{Deserialize, Serialize};

pub use error::TemplateError;

/// A value a template can see. Deserialises from JSON and keeps the order of keys.
pub type TemplateValue = Value;

/// Instructions one rendering may take: some hundred times what the longest known template needs for 2,000 messages.
const FUEL: u64 = 20_000_000;

/// Most bytes one rendering may write.
const LONGEST_OUTPUT: usize = 64 << 20;

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    knows_developer: bool,
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
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(TemplateError::Syntax)?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        functions::install(&mut environment);
        for (name, value) in variables {
            environment.add_global(name, value);
        }
        let knows_developer = sources.values().any(|source| source.contains("developer"));
        // A list without a `default` still has something to render with.
        if !sources.contains_key("default")
            && let Some(source) = sources.values().next()
        {
            add(&mut environment, "default", source)?;
        }
        for (name, source) in &sources {
            add(&mut environment, name, source)?;
        }
        Ok(Self { environment, knows_developer })
    }

    /// The source of the template that is used where there are tools.
    pub fn tool_source(&self) -> String {
        let template = self.environment.get_template("tool_use").or_else(|_| self.environment.get_template("default"));
        template.map(|template| template.source().to_owned()).unwrap_or_default()
    }

    /// Whether the prompt of a conversation has the tools that it offers in it. A template that fails without more to
    /// render is taken at its word.
    pub fn shows_tools(&self) -> bool {
        const NAME: &str = "a_tool_of_no_use";
        let function = context! {
            name => NAME, description => NAME, parameters => context! { type => "object", properties => context! {} },
        };
        let tools = Some(Value::from(vec![context! { type => "function", function }]));
        let message = context! { role => "user", content => "?" };
        let conversation = Conversation { messages: vec![message], tools, ..Conversation::default() };
        match self.render(&conversation) {
            Ok(prompt) => prompt.contains(NAME),
            Err(_) => self.tool_source().contains("tools"),
        }
    }

    /// Whether the template treats the role `developer` apart from `system`.
    pub fn knows_developer(&self) -> bool {
        self.knows_developer
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
        let tools = conversation.tools.clone();
        let with_tools = tools.is_some().then(|| self.environment.get_template("tool_use").ok()).flatten();
        let template = match with_tools {
            Some(template) => template,
            None => self.environment.get_template("default").map_err(TemplateError::Syntax)?,
        };
        let none = python_types::none_for(template.source());
        let mut context = conversation.variables.clone();
        let nothing = match instead {
            ContentInstead::None => none.clone(),
            ContentInstead::Nothing => python_types::no_content_for(template.source()),
            ContentInstead::Empty => Value::from(""),
        };
        context.insert("messages".to_owned(), conversation.messages_with(&nothing).into());
        // transformers passes `None` for absent values, and templates ask `is none` as well as `is defined`.
        context.insert("tools".to_owned(), tools.unwrap_or_else(|| none.clone()));
        context.entry("documents".to_owned()).or_insert(none);
        context.insert("add_generation_prompt".to_owned(), conversation.add_generation_prompt.into());
        let mut output = CappedOutput::default();
        let rendered = template.render_captured_to(Value::from(context), &mut output);
        if output.is_full {
            return Err(TemplateError::Limit("writes more than 64 MiB"));
        }
        rendered.map_err(functions::refusal)?;
        String::from_utf8(output.bytes).map_err(|_| TemplateError::Refused("its output is not text".to_owned()))
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
        self.messages.iter().any(lacks_content)
    }

    /// The messages, with this in place of content that is not there.
    fn messages_with(&self, nothing: &Value) -> Vec<Value> {
        let with = |message: &Value| {
            let keys = message.try_iter().ok().filter(|_| lacks_content(message))?;
            let field = |key: Value| {
                let value = message.get_item(&key).ok().filter(|_| key.as_str() != Some(CONTENT));
                (key, value.unwrap_or_else(|| nothing.clone()))
            };
            Some(Value::from_pairs(keys.map(field)))
        };
        self.messages.iter().map(|message| with(message).unwrap_or_else(|| message.clone())).collect()
    }
}

const CONTENT: &str = "content";

fn lacks_content(message: &Value) -> bool {
    message.get_attr(CONTENT).is_ok_and(|content| content.is_none())
}

fn add(environment: &mut Environment<'static>, name: &str, source: &str) -> Result<(), TemplateError> {
    // Jinja2 reads every kind of line end as a line feed.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    environment
        .add_template_owned(name.to_owned(), markup::rewrite(&functions::without_generation_marks(&source)))
        .map_err(TemplateError::Syntax)
}

#[derive(Default)]
struct CappedOutput {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for CappedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > LONGEST_OUTPUT {
            self.is_full = true;
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
