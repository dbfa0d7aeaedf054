//! Programs of others by their command line: the template an operator writes, and the words it may hold. Fills nothing
//! in and starts nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::parse_span;

/// How a program with an OpenAI-compatible port is started, seen and stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CommandSpec {
    /// The program and its arguments; [`Placeholder`]s in braces are filled in. No shell reads it.
    pub line: Vec<String>,
    /// Variables of its environment, over those of the coordinator; filled in the same way.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Where it runs; where the coordinator does when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// It is ready when `GET` of this path is answered with 200.
    #[serde(default = "health", skip_serializing_if = "is_usual_health")]
    pub health: String,
    /// How long it may take until then (`"5m"`); by the model's size when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_timeout: Option<String>,
    /// The signal that asks it to end.
    #[serde(default)]
    pub stop_signal: StopSignal,
    /// The name it knows its model by; ours when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_name: Option<String>,
}

/// The signal that asks a program to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum StopSignal {
    /// The usual one.
    #[default]
    #[serde(rename = "SIGTERM")]
    Terminate,
    /// As from the keyboard.
    #[serde(rename = "SIGINT")]
    Interrupt,
    /// Some programs finish their work on this one.
    #[serde(rename = "SIGQUIT")]
    Quit,
}

/// A template, or the name of one that the configuration has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum CommandSource {
    /// `[backends.NAME]` of `model-boss.toml`.
    Named(String),
    /// Written out.
    Own(CommandSpec),
}

/// A word that may be written in braces in a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// The port to listen on.
    Port,
    /// The address to listen on: 127.0.0.1.
    Host,
    /// The model's id.
    Model,
    /// Where its files are.
    Path,
    /// The context to serve, in tokens.
    Context,
    /// Requests to work on at once.
    Concurrency,
    /// The UUIDs of its GPUs with commas between them; empty on `cpu`.
    Gpus,
    /// How many GPUs it has; 0 on `cpu`.
    GpuCount,
    /// The share of each GPU, as llama.cpp takes it.
    TensorSplit,
    /// The bytes of its lease in MiB, all devices together.
    MemoryMib,
    /// The key that requests will bring; a program that checks it cannot be asked by others.
    Token,
}

/// A template cannot be filled in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandTemplateError {
    /// Not one of ours.
    #[error("'{{{0}}}' cannot be filled in; there are {all}. Write {{{{ and }}}} for braces", all = all_placeholders())]
    Unknown(String),
    /// A brace alone.
    #[error("'{0}' has a brace without its other half; write {{{{ and }}}} for braces")]
    Unbalanced(String),
    /// Nothing to start.
    #[error("'line' is empty: its first word is the program")]
    NoProgram,
    /// Not a path of a URL.
    #[error("'health' must begin with '/', and '{0}' does not")]
    Health(String),
    /// Not a time.
    #[error("'load_timeout': {0}")]
    Timeout(#[from] crate::ParseSpanError),
    /// No port is passed to the program, so no request could reach it.
    #[error("no part of 'line' or 'env' holds {{port}}: the program must be told where to listen")]
    NoPort,
}

impl Placeholder {
    /// Each with its name.
    pub const ALL: [(Self, &'static str); 11] = [
        (Self::Port, "port"),
        (Self::Host, "host"),
        (Self::Model, "model"),
        (Self::Path, "path"),
        (Self::Context, "ctx"),
        (Self::Concurrency, "concurrency"),
        (Self::Gpus, "gpus"),
        (Self::GpuCount, "gpu_count"),
        (Self::TensorSplit, "tensor_split"),
        (Self::MemoryMib, "memory_mib"),
        (Self::Token, "token"),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, known)| *known == name).map(|(placeholder, _)| placeholder)
    }
}

fn all_placeholders() -> String {
    let names: Vec<String> = Placeholder::ALL.iter().map(|(_, name)| format!("{{{name}}}")).collect();
    names.join(" ")
}

/// A piece of a template: text as it is, or something to fill in.
pub type Piece = Result<Placeholder, String>;

/// The pieces of a template, in order: `Err` is text as it stands, `Ok` something to fill in.
pub fn split_template(template: &str) -> Result<Vec<Piece>, CommandTemplateError> {
    let unbalanced = || CommandTemplateError::Unbalanced(template.to_owned());
    let (mut pieces, mut text, mut rest) = (Vec::new(), String::new(), template);
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            text.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err(unbalanced());
        }
        let (name, after) = rest.split_once('}').ok_or_else(unbalanced)?;
        if !text.is_empty() {
            pieces.push(Err(std::mem::take(&mut text)));
        }
        pieces.push(Ok(Placeholder::named(name).ok_or_else(|| CommandTemplateError::Unknown(name.to_owned()))?));
        rest = after;
    }
    text.push_str(rest);
    if !text.is_empty() || pieces.is_empty() {
        pieces.push(Err(text));
    }
    Ok(pieces)
}

impl CommandSpec {
    /// Whether it can be filled in.
    pub fn check(&self) -> Result<(), CommandTemplateError> {
        if self.line.first().is_none_or(String::is_empty) {
            return Err(CommandTemplateError::NoProgram);
        }
        if !self.health.starts_with('/') {
            return Err(CommandTemplateError::Health(self.health.clone()));
        }
        if let Some(text) = &self.load_timeout {
            parse_span(text)?;
        }
        let mut has_port = false;
        for template in self.line.iter().chain(self.env.values()) {
            has_port |= split_template(template)?.contains(&Ok(Placeholder::Port));
        }
        if has_port { Ok(()) } else { Err(CommandTemplateError::NoPort) }
    }

    /// Whether the template names several GPUs, so that the program may be given them (RC-22).
    pub fn splits(&self) -> bool {
        let several = [Ok(Placeholder::GpuCount), Ok(Placeholder::TensorSplit)];
        let tells = |template: &String| {
            split_template(template).is_ok_and(|pieces| pieces.iter().any(|piece| several.contains(piece)))
        };
        self.line.iter().chain(self.env.values()).any(tells)
    }
}

impl StopSignal {
    /// Its name, as `kill -l` has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Terminate => "SIGTERM",
            Self::Interrupt => "SIGINT",
            Self::Quit => "SIGQUIT",
        }
    }
}

fn health() -> String {
    "/health".to_owned()
}

fn is_usual_health(path: &str) -> bool {
    path == health()
}

impl<'de> Deserialize<'de> for CommandSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = CommandSource;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table with 'line', or the name of a [backends.NAME] of the configuration")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<CommandSource, E> {
                Ok(CommandSource::Named(name.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CommandSource, A::Error> {
                let spec = CommandSpec::deserialize(MapAccessDeserializer::new(map))?;
                spec.check().map_err(serde::de::Error::custom)?;
                Ok(CommandSource::Own(spec))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<CommandSource, String> {
        #[derive(Deserialize)]
        struct File {
            command: CommandSource,
        }
        toml::from_str::<File>(text).map(|file| file.command).map_err(|error| error.to_string())
    }

    #[test]
    fn rc_17_a_command_is_a_table_or_a_name() {
        let own =
            read("command = { line = [\"vllm\", \"serve\", \"{path}\", \"--port={port}\"], stop_signal = \"SIGINT\" }");
        let Ok(CommandSource::Own(spec)) = own else { panic!("{own:?}") };
        assert_eq!((spec.health.as_str(), spec.stop_signal), ("/health", StopSignal::Interrupt));
        assert_eq!(read("command = \"vllm\""), Ok(CommandSource::Named("vllm".into())));
        for (text, word) in [
            ("command = { line = [] }", "'line' is empty"),
            ("command = { line = [\"x\"] }", "{port}"),
            ("command = { line = [\"x\", \"{prot}\"] }", "'{prot}'"),
            ("command = { line = [\"x\", \"{port\"] }", "brace"),
            ("command = { line = [\"x\", \"{port}\"], health = \"health\" }", "'health'"),
            ("command = { line = [\"x\", \"{port}\"], load_timeout = \"soon\" }", "soon"),
            ("command = { line = [\"x\", \"{port}\"], shell = true }", "shell"),
            ("command = 7", "a table with 'line'"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn braces_are_written_twice_to_stand_for_themselves() {
        let text = |text: &str| Err::<Placeholder, _>(text.to_owned());
        assert_eq!(split_template("a{{b}}{port}c").unwrap(), [text("a{b}"), Ok(Placeholder::Port), text("c")]);
        assert_eq!(split_template("").unwrap(), [text("")]);
        assert!(split_template("a}b").is_err());
    }

    #[test]
    fn rc_22_a_program_that_hears_of_several_gpus_may_get_them() {
        let spec = |word: &str| read(&format!("command = {{ line = [\"x\", \"{{port}}\", \"{word}\"] }}"));
        for (word, splits) in [("{gpu_count}", true), ("-tp={tensor_split}", true), ("{gpus}", false)] {
            let Ok(CommandSource::Own(spec)) = spec(word) else { panic!("{word}") };
            assert_eq!(spec.splits(), splits, "{word}");
        }
    }
}
