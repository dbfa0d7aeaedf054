//! External programs and their command lines: the template that an operator writes, and its placeholders. Filling in
//! and starting belong to other crates.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::parse_span;

/// The command line of a program with an OpenAI-compatible port, its readiness and its stop signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CommandSpec {
    /// The program and its arguments; [`Placeholder`]s in braces are filled in. No shell reads it.
    pub line: Vec<String>,
    /// Environment variables beyond those of the coordinator, filled in the same way.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The working directory; the coordinator's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// The path of the health check: the program is ready when `GET` is answered with 200.
    #[serde(default = "health", skip_serializing_if = "is_usual_health")]
    pub health: String,
    /// The longest time of a load (`"5m"`); by the model's size when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_timeout: Option<String>,
    /// The signal that asks the program to end.
    #[serde(default)]
    pub stop_signal: StopSignal,
    /// The program's own name of the model. By default it is the manifest's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_name: Option<String>,
}

/// The signal that asks a program to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum StopSignal {
    /// The usual signal, SIGTERM.
    #[default]
    #[serde(rename = "SIGTERM")]
    Terminate,
    /// The signal of Ctrl-C, SIGINT.
    #[serde(rename = "SIGINT")]
    Interrupt,
    /// SIGQUIT, on which some programs finish their work.
    #[serde(rename = "SIGQUIT")]
    Quit,
}

/// A template, or the name of one in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum CommandSource {
    /// The name of a `[backends.NAME]` of `model-boss.toml`.
    Named(String),
    /// A template of its own.
    Own(CommandSpec),
}

/// A placeholder, written in braces in a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// The port to listen on.
    Port,
    /// The address to listen on: 127.0.0.1.
    Host,
    /// The model's id.
    Model,
    /// The path of its files.
    Path,
    /// The context to serve, in tokens.
    Context,
    /// The number of concurrent requests.
    Concurrency,
    /// The UUIDs of its GPUs, separated by commas; empty on `cpu`.
    Gpus,
    /// The number of its GPUs; 0 on `cpu`.
    GpuCount,
    /// The share of each GPU, in the form that llama.cpp reads.
    TensorSplit,
    /// The bytes of its lease in MiB, all devices together.
    MemoryMib,
    /// The key that requests carry; a program that checks it refuses requests of others.
    Token,
}

/// A template cannot be filled in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandTemplateError {
    /// The placeholder does not exist.
    #[error("'{{{0}}}' cannot be filled in; there are {all}. Write {{{{ and }}}} for braces", all = all_placeholders())]
    Unknown(String),
    /// A brace without its counterpart.
    #[error("'{0}' has a brace without its other half; write {{{{ and }}}} for braces")]
    Unbalanced(String),
    /// The template names no program.
    #[error("'line' is empty: its first word is the program")]
    NoProgram,
    /// The health path is no path of a URL.
    #[error("'health' must begin with '/', and '{0}' does not")]
    Health(String),
    /// The load timeout is no duration.
    #[error("'load_timeout': {0}")]
    Timeout(#[from] crate::ParseSpanError),
    /// No port is passed to the program, so no request could reach it.
    #[error("no part of 'line' or 'env' holds {{port}}: the program must be told where to listen")]
    NoPort,
}

impl Placeholder {
    /// All placeholders with their names.
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

/// A piece of a template: literal text or a placeholder.
pub type Piece = Result<Placeholder, String>;

/// The pieces of a template, in order: `Err` is literal text, `Ok` a placeholder.
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
    /// Checks that the template can be filled in.
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

    /// Whether the template uses the list of GPUs, so that the program can run on several (RC-22).
    pub fn splits(&self) -> bool {
        let several = [Ok(Placeholder::GpuCount), Ok(Placeholder::TensorSplit)];
        let tells = |template: &String| {
            split_template(template).is_ok_and(|pieces| pieces.iter().any(|piece| several.contains(piece)))
        };
        self.line.iter().chain(self.env.values()).any(tells)
    }
}

impl StopSignal {
    /// The name of the signal, as in `kill -l`.
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
