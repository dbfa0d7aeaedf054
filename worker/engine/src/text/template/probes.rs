//! Facts about a template that short conversations show when they are rendered.

use std::collections::BTreeSet;

use super::{ChatTemplate, Conversation, TemplateValue};

/// A word that no template has.
const PROBE: &str = "a_tool_of_no_use";

/// A second one.
const SECOND_PROBE: &str = "a_word_of_no_use";

/// The roles that every client knows. The role `developer` is shown as one of these, or asked for by its name.
const KNOWN_ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

fn message(role: &str, content: TemplateValue) -> TemplateValue {
    TemplateValue::from_pairs([("role", role.into()), ("content", content)])
}

/// A message of the assistant's that calls a tool without arguments.
fn call() -> TemplateValue {
    call_with(TemplateValue::from_pairs([]))
}

fn call_with(arguments: TemplateValue) -> TemplateValue {
    let function = [("name", "f".into()), ("arguments", arguments)];
    let call =
        [("id", "123456789".into()), ("type", "function".into()), ("function", TemplateValue::from_pairs(function))];
    let calls = TemplateValue::from(vec![TemplateValue::from_pairs(call)]);
    TemplateValue::from_pairs([("role", "assistant".into()), ("content", "".into()), ("tool_calls", calls)])
}

/// A conversation of one question.
fn question(tool: Option<TemplateValue>) -> Conversation {
    let message = message("user", "?".into());
    let tools = tool.map(|tool| TemplateValue::from(vec![tool]));
    Conversation { messages: vec![message], tools, ..Conversation::default() }
}

/// A conversation of one message of the user.
fn said(content: TemplateValue) -> Conversation {
    Conversation { messages: vec![message("user", content)], ..Conversation::default() }
}

/// A part of a message.
fn part(kind: &str, text: Option<&str>) -> TemplateValue {
    let text = text.map(|text| ("text", text.into()));
    TemplateValue::from_pairs([("type", kind.into())].into_iter().chain(text))
}

/// Whether a prompt has the text of parts, and not the parts as Python or JSON writes them.
fn shows_parts(prompt: &str) -> bool {
    prompt.contains(PROBE) && !prompt.contains("'type':") && !prompt.contains("\"type\":")
}

fn tool<const N: usize>(function: [(&str, TemplateValue); N]) -> TemplateValue {
    TemplateValue::from_pairs([("type", "function".into()), ("function", TemplateValue::from_pairs(function))])
}

fn described_tool() -> TemplateValue {
    let object = TemplateValue::from_pairs([("type", "object".into()), ("properties", TemplateValue::from_pairs([]))]);
    tool([("name", PROBE.into()), ("description", PROBE.into()), ("parameters", object)])
}

impl ChatTemplate {
    /// Whether the prompt of a conversation has the tools that it offers in it. A template that fails without more to
    /// render is taken at its word.
    pub fn shows_tools(&self) -> bool {
        match self.render(&question(Some(described_tool()))) {
            Ok(prompt) => prompt.contains(PROBE),
            Err(_) => self.tool_source().contains("tools"),
        }
    }

    /// Whether it fails for a tool that has no description and no parameters, which clients may leave out.
    pub fn needs_described_tools(&self) -> bool {
        let bare = tool([("name", PROBE.into())]);
        self.render(&question(Some(described_tool()))).is_ok() && self.render(&question(Some(bare))).is_err()
    }

    /// Whether it fails for a call whose arguments are no object: those that were cut off are a text.
    pub fn needs_object_arguments(&self) -> bool {
        let renders = |call: TemplateValue| {
            let messages = vec![message("user", "?".into()), call];
            self.render(&Conversation { messages, ..Conversation::default() }).is_ok()
        };
        renders(call()) && !renders(call_with("{".into()))
    }

    /// Whether prompts have what a system message says. Some templates refuse one, and others leave it out.
    pub fn shows_system(&self) -> bool {
        let alone = question(None);
        let messages = [vec![message("system", PROBE.into())], alone.messages.clone()].concat();
        let with = self.render(&Conversation { messages, ..alone.clone() });
        with.is_ok_and(|prompt| prompt.contains(PROBE)) || self.render(&alone).is_err()
    }

    /// Whether prompts have a mark for each image among the parts of a message.
    pub fn shows_images(&self) -> bool {
        let text = part("text", Some(PROBE));
        let of = |parts: Vec<TemplateValue>| self.render(&said(TemplateValue::from(parts))).ok();
        match (of(vec![part("image", None), text.clone()]), of(vec![text])) {
            (Some(with), Some(without)) => with != without && shows_parts(&with) && shows_parts(&without),
            _ => false,
        }
    }

    /// Whether prompts have what a message says only where that is a list of parts.
    pub fn needs_parts(&self) -> bool {
        let shows = |content| self.render(&said(content)).is_ok_and(|prompt| shows_parts(&prompt));
        !shows(PROBE.into()) && shows(TemplateValue::from(vec![part("text", Some(PROBE))]))
    }

    /// The roles, of those that every client knows, whose texts the template takes as a list of parts, and joins in its
    /// own way. It prints such a list as Python or JSON does for the others, or fails.
    pub fn roles_in_parts(&self) -> Vec<&'static str> {
        KNOWN_ROLES.into_iter().filter(|role| self.takes_parts(role)).collect()
    }

    fn takes_parts(&self, role: &str) -> bool {
        let in_parts = |role: &str, texts: &[&str]| {
            let parts: Vec<TemplateValue> = texts.iter().map(|text| part("text", Some(text))).collect();
            message(role, parts.into())
        };
        let (asked, said) = (in_parts("user", &["?"]), in_parts(role, &[PROBE, SECOND_PROBE]));
        let messages = match role {
            "user" => vec![said],
            "system" => vec![said, asked],
            "tool" => vec![asked, call(), said],
            _ => vec![asked.clone(), said, asked],
        };
        let prompt = self.render(&Conversation { messages, ..Conversation::default() });
        let is_data = |prompt: &str| ["'text'", "\"text\""].iter().any(|key| prompt.contains(key));
        prompt.is_ok_and(|prompt| prompt.contains(PROBE) && prompt.contains(SECOND_PROBE) && !is_data(&prompt))
    }

    /// Whether prompts have what messages of any role say, however it is called.
    pub fn shows_any_role(&self) -> bool {
        self.shows_role(PROBE)
    }

    /// The further roles that the template names, and whose messages are in its prompts: `ipython`, `document`, ….
    pub fn further_roles(&self) -> Vec<String> {
        const MOST_WORDS: usize = 256;
        let is_name = |word: &&str| {
            !KNOWN_ROLES.contains(word)
                && *word != "developer"
                && (2..=24).contains(&word.len())
                && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        };
        let words: BTreeSet<&str> =
            self.templates.values().flat_map(|source| source.text.split(['"', '\''])).filter(is_name).collect();
        words.into_iter().take(MOST_WORDS).filter(|word| self.shows_role(word)).map(str::to_owned).collect()
    }

    /// Whether it shows messages of a role in one of the places that such a message may have.
    fn shows_role(&self, role: &str) -> bool {
        let (asked, answered) = (message("user", "?".into()), message("assistant", "?".into()));
        let said = message(role, SECOND_PROBE.into());
        let shows = |messages: Vec<TemplateValue>| {
            let prompt = self.render(&Conversation { messages, ..Conversation::default() });
            prompt.is_ok_and(|prompt| prompt.contains(SECOND_PROBE))
        };
        shows(vec![asked.clone(), said.clone()])
            || shows(vec![said.clone(), asked.clone()])
            || shows(vec![asked.clone(), answered, said.clone()])
            || shows(vec![asked, call(), said])
    }

    /// Whether the template treats the role `developer` apart from `system`.
    pub fn knows_developer(&self) -> bool {
        self.templates.values().any(|source| source.text.contains("developer"))
    }
}
