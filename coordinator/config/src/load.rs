//! Merges the sources: flag > environment > file > default. The module finds every fault before it reports any.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use model_boss_protocol::ByteCount;
use toml::de::{DeTable, DeValue};

use super::Config;
use super::setting::Section;
use crate::installation::{DEFAULT_FILE, Installation};
use crate::origins::OriginPattern;

/// The prefix of model-boss's environment variables.
const PREFIX: &str = "MODEL_BOSS_";

/// Variables with this prefix that are no settings of the coordinator, but belong to the command line and the worker.
const NOT_SETTINGS: [&str; 4] = ["MODEL_BOSS_CONFIG", "MODEL_BOSS_URL", "MODEL_BOSS_API_KEY", "MODEL_BOSS_LOG"];

/// The sources of values.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Values from the command line: the path of the setting, and its text.
    pub flags: Vec<(String, String)>,
    /// Environment variables; those without the prefix are ignored.
    pub environment: Vec<(String, String)>,
    /// The file to read, which must exist. By default, [`DEFAULT_FILE`] is read if it exists, else the installation's.
    pub file: Option<PathBuf>,
}

/// The configuration, and the source of each value.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    origins: BTreeMap<String, Origin>,
}

/// One setting, for `config show`.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ShownSetting {
    /// The path, such as `stay_warm.llm`.
    pub path: String,
    /// The value as it would be written in the file.
    pub value: String,
    /// The source of the value.
    pub origin: String,
    /// The help text.
    pub help: String,
    /// The number of words that the flag takes on the command line.
    #[serde(skip)]
    pub words: std::ops::RangeInclusive<usize>,
    /// Whether the flag's text may begin with a dash.
    #[serde(skip)]
    pub may_begin_with_dash: bool,
    /// Whether the flag may be given several times, once for each entry.
    #[serde(skip)]
    pub is_list: bool,
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The built-in default.
    Default,
    /// A file, and the line.
    File(PathBuf, usize),
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Every fault of the configuration, each with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// One line for each fault; never empty.
    pub problems: Vec<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [one] => write!(f, "the configuration is wrong: {one}"),
            many => {
                write!(f, "the configuration has {} problems:", many.len())?;
                many.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// This process's environment, from which settings are read.
pub fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .collect()
}

impl Sources {
    /// Reads every source, checks every value of every source, and merges them.
    pub fn load(self) -> Result<Loaded, ConfigError> {
        let (loaded, problems) = self.load_what_is_valid();
        if problems.is_empty() { Ok(loaded) } else { Err(ConfigError { problems }) }
    }

    /// Reads every source. Values that are not valid stay at their defaults; the texts are all faults, each with its
    /// place.
    pub fn load_what_is_valid(self) -> (Loaded, Vec<String>) {
        let (loaded, mut problems) = self.merged();
        for (path, problem) in loaded.config.contradictions() {
            let origin = loaded.origins.get(path).unwrap_or(&Origin::Default);
            problems.push(format!("{origin}: '{path}' {problem}"));
        }
        (loaded, problems)
    }

    /// The file of API keys. The settings may contradict each other, since some do until there is a key.
    pub fn keys_file(self) -> Result<PathBuf, ConfigError> {
        let (loaded, problems) = self.merged();
        if problems.is_empty() { Ok(loaded.config.keys_file()) } else { Err(ConfigError { problems }) }
    }

    /// The settings, and the faults of single values.
    fn merged(self) -> (Loaded, Vec<String>) {
        let mut problems = Vec::new();
        let installed = || Installation::of_this_program().map(|installed| installed.configuration());
        let usual =
            || [Some(PathBuf::from(DEFAULT_FILE)), installed()].into_iter().flatten().find(|path| path.is_file());
        let file = self.file.or_else(usual);
        let mut entries = Vec::new();
        if let Some(path) = &file {
            entries.extend(file_entries(path, &mut problems));
        }
        let known = known_paths();
        entries.extend(environment_entries(self.environment).into_iter().filter(|entry| !entry.is_for_others(&known)));
        entries.extend(self.flags.into_iter().map(|(path, text)| {
            let origin = Origin::Flag(format!("--{}", flag(&path)));
            SourcedValue { path, value: Value::from(text), origin }
        }));

        entries.retain(|entry| match entry.problem(&known) {
            None => true,
            Some(problem) => {
                problems.push(problem);
                false
            }
        });
        let (config, origins) = merge(entries);
        (Loaded { config, origins }, problems)
    }
}

/// Every setting with its default.
pub fn catalogue() -> Vec<ShownSetting> {
    Loaded { config: Config::default(), origins: BTreeMap::new() }.show()
}

impl Loaded {
    /// The source of each setting that is not at its default.
    pub fn origins(&self) -> BTreeMap<String, String> {
        self.origins.iter().map(|(path, origin)| (path.clone(), origin.to_string())).collect()
    }

    /// Every setting with its value and its source.
    pub fn show(&self) -> Vec<ShownSetting> {
        let mut shown = Vec::new();
        self.config.clone().walk("", &mut |path, setting, help| {
            let origin = self.origins.get(path).unwrap_or(&Origin::Default).to_string();
            let (path, words) = (path.to_owned(), setting.words());
            let (value, may_begin_with_dash) = (setting.show(), setting.may_begin_with_dash());
            let (help, is_list) = (help.to_owned(), setting.is_list());
            shown.push(ShownSetting { path, value, origin, help, words, may_begin_with_dash, is_list });
        });
        shown
    }
}

impl Config {
    /// Faults that only two or more settings together show, each with the setting to change.
    fn contradictions(&self) -> Vec<(&'static str, String)> {
        let mut found = Vec::new();
        let keys = self.keys();
        if let (Some(host), Ok(None)) = (self.host.open_to_others(), &keys) {
            let what_to_do = "make one with `model-boss keys create NAME`, or listen on 127.0.0.1";
            found.push(("host", format!("is {host}, where others can connect, and there are no keys; {what_to_do}")));
        }
        if let Err(error) = keys {
            found.push(("api_keys", format!("is of no use: {error}")));
        }
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => found.push(("tls_cert", "needs 'tls_key', the file of its private key".to_owned())),
            (None, Some(_)) => found.push(("tls_key", "needs 'tls_cert', the file of its certificate".to_owned())),
            _ => {}
        }
        for entry in &self.allowed_origins {
            if let Err(error) = entry.parse::<OriginPattern>() {
                found.push(("allowed_origins", format!("has an entry that does not do: {error}")));
            }
        }
        if let Some(build) = self.llamacpp.as_deref().filter(|build| !self.backends.builds.contains_key(*build)) {
            let known: Vec<&str> = self.backends.builds.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            found.push(("llamacpp", format!("is '{build}', and [backends.llama-server.builds] has {known}")));
        }
        if let Some(program) = self.llama_server.as_deref().filter(|program| !program.is_file()) {
            found.push(("llama_server", format!("is {}, which is not a file", program.display())));
        }
        if self.ctx_size == Some(0) {
            found.push(("ctx_size", "must be at least 1 token".to_owned()));
        }
        if self.leases.heartbeat * 2 > self.leases.term {
            let problem = "must be at most half of 'leases.term', or one late renewal ends a lease".to_owned();
            found.push(("leases.heartbeat", problem));
        }
        if self.text.memory < ByteCount::mib(16) {
            found.push(("text.memory", "must be at least 16 MiB, or no template can be used".to_owned()));
        }
        if !(ByteCount::mib(1)..=ByteCount::gib(1)).contains(&self.text.stack) {
            found.push(("text.stack", "must be from 1 MiB to 1 GiB".to_owned()));
        }
        for (path, span) in [
            ("sse.interval", self.sse.interval),
            ("aging_step", self.aging_step),
            ("leases.heartbeat", self.leases.heartbeat),
            ("text.time", self.text.time),
        ] {
            if span.is_zero() {
                found.push((path, "must be longer than nothing".to_owned()));
            }
        }
        found
    }
}

/// One value of one source.
struct SourcedValue {
    path: String,
    value: Value,
    origin: Origin,
}

impl SourcedValue {
    /// Whether a variable of the environment belongs to another program of model-boss, such as its tests or a client. A
    /// variable counts as a mistake only where its name resembles a setting.
    fn is_for_others(&self, known: &BTreeSet<String>) -> bool {
        let group = format!("{}.", self.path);
        !known.iter().any(|candidate| *candidate == self.path || candidate.starts_with(&group))
            && nearest(&self.path, known).is_none_or(|(likeness, _)| likeness <= 0.9)
    }

    /// The fault of this entry, if any: the setting does not exist, or the value is invalid.
    fn problem(&self, known: &BTreeSet<String>) -> Option<String> {
        let Self { path, value, origin } = self;
        // A flag or variable names its setting itself, so the message need not.
        let place = match origin {
            Origin::File(..) => format!("{origin}: '{path}'"),
            _ => origin.to_string(),
        };
        if known.contains(path) {
            let mut result = Ok(());
            Config::default().walk("", &mut |candidate, setting, _| {
                if candidate == path {
                    result = setting.read(value);
                }
            });
            return result.err().map(|wrong| format!("{place}: {wrong}"));
        }
        let written = |path: &str| match origin {
            Origin::Environment(_) => variable(path),
            _ => format!("'{path}'"),
        };
        if let Some(inner) = known.iter().find(|candidate| candidate.starts_with(&format!("{path}."))) {
            return Some(format!("{place} is a group of settings; set one of it, such as {}", written(inner)));
        }
        let nearest = nearest(path, known).filter(|(likeness, _)| *likeness > 0.8);
        Some(match nearest {
            Some((_, candidate)) => format!("{place} is not a setting; did you mean {}?", written(candidate)),
            None => format!("{place} is not a setting; `model-boss config show` lists them all"),
        })
    }
}

/// The setting with the most similar name, and the similarity from 0 to 1.
fn nearest<'a>(path: &str, known: &'a BTreeSet<String>) -> Option<(f64, &'a String)> {
    let likeness = |candidate: &'a String| (strsim::jaro_winkler(path, candidate), candidate);
    known.iter().map(likeness).max_by(|a, b| a.0.total_cmp(&b.0))
}

/// The flag of a setting, without its dashes: `stay_warm.llm` is `--stay-warm-llm`.
pub fn flag(path: &str) -> String {
    path.replace(['_', '.'], "-")
}

/// The variable of a setting: `stay_warm.llm` is `MODEL_BOSS_STAY_WARM__LLM`.
pub fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "__").to_uppercase())
}

fn known_paths() -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    Config::default().walk("", &mut |path, _, _| {
        paths.insert(path.to_owned());
    });
    paths
}

fn environment_entries(variables: Vec<(String, String)>) -> Vec<SourcedValue> {
    let mut entries: Vec<_> = variables
        .into_iter()
        .filter(|(name, _)| !NOT_SETTINGS.contains(&name.as_str()))
        .filter_map(|(name, text)| {
            let path = name.strip_prefix(PREFIX)?.to_lowercase().replace("__", ".");
            Some(SourcedValue { path, value: Value::from(text), origin: Origin::Environment(name) })
        })
        .collect();
    entries.sort_by(|a, b| a.origin.cmp(&b.origin));
    entries
}

fn file_entries(path: &Path, problems: &mut Vec<String>) -> Vec<SourcedValue> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            problems.push(format!("{}: the file cannot be read: {error}", path.display()));
            return Vec::new();
        }
    };
    let line_of = |offset: usize| 1 + text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count();
    let (table, errors) = DeTable::parse_recoverable(&text);
    for error in errors {
        let line = error.span().map_or(1, |span| line_of(span.start));
        problems.push(format!("{}:{line}: {}", path.display(), error.message()));
    }
    let known = known_paths();
    let mut entries = Vec::new();
    let mut tables = vec![(String::new(), table.into_inner())];
    while let Some((prefix, table)) = tables.pop() {
        for (key, value) in table {
            let origin = Origin::File(path.to_owned(), line_of(key.span().start));
            let name = format!("{prefix}{}", key.into_inner());
            match value.into_inner() {
                // A table that is no group of settings is reported once, by its own name.
                DeValue::Table(inner) if known.iter().any(|path| path.starts_with(&format!("{name}."))) => {
                    tables.push((format!("{name}."), inner));
                }
                other => entries.push(SourcedValue { path: name, value: figment_value(other), origin }),
            }
        }
    }
    entries.sort_by(|a, b| a.origin.cmp(&b.origin));
    entries
}

/// A value of the file in figment's type; a kind that no setting has (a date) becomes its text.
fn figment_value(value: DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::from(text.into_owned()),
        DeValue::Boolean(value) => Value::from(value),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::from(number),
            Err(_) => Value::from(number.as_str()),
        },
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(number) => Value::from(number),
            Err(_) => Value::from(number.as_str()),
        },
        DeValue::Array(items) => {
            Value::from(items.into_iter().map(|item| figment_value(item.into_inner())).collect::<Vec<_>>())
        }
        DeValue::Table(fields) => {
            let field = |(key, value): (toml::Spanned<_>, toml::Spanned<DeValue<'_>>)| {
                let key: std::borrow::Cow<'_, str> = key.into_inner();
                (key.into_owned(), figment_value(value.into_inner()))
            };
            Value::from(fields.into_iter().map(field).collect::<Dict>())
        }
        DeValue::Datetime(moment) => Value::from(moment.to_string()),
    }
}

/// Merges the entries; a later entry overrides an earlier one. Figment's tag on the winning value leads back to its
/// entry.
fn merge(entries: Vec<SourcedValue>) -> (Config, BTreeMap<String, Origin>) {
    let mut places = BTreeMap::new();
    let mut figment = Figment::new();
    for (number, entry) in entries.into_iter().enumerate() {
        let name = number.to_string();
        places.insert(name.clone(), entry.origin);
        figment = figment.merge(One { name, path: entry.path, value: entry.value });
    }
    let mut config = Config::default();
    let mut origins = BTreeMap::new();
    config.walk("", &mut |path, setting, _| {
        let Ok(value) = figment.find_value(path) else { return };
        // The value was parsed once already, alone; that reported its faults.
        if setting.read(&value).is_err() {
            return;
        }
        let origin = figment.get_metadata(value.tag()).and_then(|metadata| places.get(metadata.name.as_ref()));
        if let Some(origin) = origin {
            if let Origin::File(file, _) = origin {
                setting.resolve(file.parent().unwrap_or(Path::new("")));
            }
            origins.insert(path.to_owned(), origin.clone());
        }
    });
    (config, origins)
}

/// One entry as a source for figment.
struct One {
    name: String,
    path: String,
    value: Value,
}

impl Provider for One {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let Value::Dict(_, dict) = figment::util::nest(&self.path, self.value.clone()) else {
            return Ok(Map::new());
        };
        Ok(Profile::Default.collect(dict))
    }
}
