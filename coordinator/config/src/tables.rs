//! Settings that are tables with names of the operator's choice: clients, devices, limits by category. In the file they
//! are tables; the environment and the command line write them as TOML in one line.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Value};
use model_boss_core::{ClientRule, ClientRules, MaxLoaded};
use model_boss_protocol::{Backend, ByteCount, Category, ClientId, CommandSpec, DeviceId};
use serde::{Deserialize, Serialize};

use super::provider::{ProviderSpec, ProviderTables};
use super::setting::{Quoted, Setting, quote, text, whole};
use crate::secrets::{hidden, is_secret_name};

/// The name of the rule for all clients.
const DEFAULT_CLIENT: &str = "default";
/// The name of llama-server's table.
const LLAMA_SERVER: &str = "llama-server";
/// The categories of `--max-loaded-models 2 1 1`, in order.
const POSITIONS: [Category; 3] = [Category::Llm, Category::Embedding, Category::Reranking];

/// A device that no probe can find, as the operator declares it (DM-1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclaredDevice {
    /// The memory that models may use.
    pub memory: ByteCount,
    /// Whether only one model at a time may use it; an `npu` is always so.
    #[serde(default)]
    pub exclusive: bool,
    /// The backend of models on the device, if a manifest states none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
}

/// All declared devices, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredDevices(pub BTreeMap<DeviceId, DeclaredDevice>);

/// External engines (RC-16): builds of llama-server, and command lines by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendTables {
    /// The table `[backends.llama-server.builds]`: a program for each name.
    pub builds: BTreeMap<String, PathBuf>,
    /// The tables `[backends.NAME]`, which manifests use by `command = "NAME"`.
    pub commands: BTreeMap<String, CommandSpec>,
}

/// The table `[backends.llama-server]`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LlamaServerTable {
    #[serde(default)]
    builds: BTreeMap<String, PathBuf>,
}

/// A table of the file, or one written as text.
fn table(value: &Value, example: &str) -> Result<Dict, String> {
    let wrong = || format!("{} is not a table; write one such as {example}", Quoted(value));
    match value {
        Value::Dict(_, dict) => Ok(dict.clone()),
        other => {
            let line = format!("table = {}", text(other).ok_or_else(wrong)?);
            let parsed: toml::Table = line.parse().map_err(|_| wrong())?;
            match parsed.get("table").map(Value::serialize) {
                Some(Ok(Value::Dict(_, dict))) => Ok(dict),
                _ => Err(wrong()),
            }
        }
    }
}

/// Parses an entry of a table; an error names the entry.
fn entry<T: for<'de> Deserialize<'de>>(name: &str, dict: Dict) -> Result<T, String> {
    Value::from(dict).deserialize().map_err(|error: figment::Error| {
        let path = error.path.join(".");
        let place = if path.is_empty() { format!("'{name}'") } else { format!("'{name}.{path}'") };
        format!("{place}: {}", error.kind)
    })
}

fn as_toml(value: &impl Serialize) -> String {
    toml::Value::try_from(value).map_or_else(|_| "{}".to_owned(), |value| value.to_string())
}

impl Setting for ClientRules {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        const EXAMPLE: &str = "{ default = { max_concurrent = 4 }, my-agent = { cooldown = \"2s\" } }";
        let mut dict = table(value, EXAMPLE)?;
        let rule = |name: &str, value: Value, base: &Dict| -> Result<(Dict, ClientRule), String> {
            let Value::Dict(_, own) = value else {
                return Err(format!("'{name}' must be a table of what this client may do, e.g. {EXAMPLE}"));
            };
            let mut whole = base.clone();
            whole.extend(own);
            Ok((whole.clone(), entry(name, whole)?))
        };
        let everybody = dict.remove(DEFAULT_CLIENT).unwrap_or_else(|| Value::from(Dict::new()));
        let (base, default) = rule(DEFAULT_CLIENT, everybody, &Dict::new())?;
        let mut named = BTreeMap::new();
        for (name, value) in dict {
            named.insert(ClientId::from(name.as_str()), rule(&name, value, &base)?.1);
        }
        *self = Self { default, named };
        Ok(())
    }

    fn show(&self) -> String {
        let named = self.named.iter().map(|(name, rule)| (name.as_str(), rule));
        let all: BTreeMap<&str, &ClientRule> = named.chain([(DEFAULT_CLIENT, &self.default)]).collect();
        as_toml(&all)
    }
}

impl Setting for DeclaredDevices {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let mut devices = BTreeMap::new();
        for (name, value) in table(value, "{ npu = { memory = \"16GiB\", exclusive = true } }")? {
            let device: DeviceId =
                name.parse().map_err(|error: model_boss_protocol::ParseDeviceError| error.to_string())?;
            if !matches!(device, DeviceId::Npu | DeviceId::Custom(_)) {
                return Err(format!("'{name}' is looked for, not declared; declare npu or a name of your own"));
            }
            let Value::Dict(_, dict) = value else {
                return Err(format!("'{name}' must be a table with 'memory'"));
            };
            let declared: DeclaredDevice = entry(&name, dict)?;
            let exclusive = declared.exclusive || device == DeviceId::Npu;
            devices.insert(device, DeclaredDevice { exclusive, ..declared });
        }
        *self = Self(devices);
        Ok(())
    }

    fn show(&self) -> String {
        let all: BTreeMap<String, &DeclaredDevice> =
            self.0.iter().map(|(name, device)| (name.to_string(), device)).collect();
        as_toml(&all)
    }
}

impl Setting for BackendTables {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        const EXAMPLE: &str = "{ vllm = { line = [\"vllm\", \"serve\", \"{path}\", \"--port\", \"{port}\"] } }";
        let mut tables = Self::default();
        for (name, value) in table(value, EXAMPLE)? {
            let Value::Dict(_, dict) = value else {
                return Err(format!("'{name}' must be a table, e.g. {EXAMPLE}"));
            };
            match name.as_str() {
                LLAMA_SERVER => tables.builds = entry::<LlamaServerTable>(&name, dict)?.builds,
                "candle" | "diffusers" | "fake" | "command" => {
                    return Err(format!("'{name}' is a backend of its own; choose another name for the command line"));
                }
                _ => {
                    let spec: CommandSpec = entry(&name, dict)?;
                    spec.check().map_err(|error| format!("'{name}': {error}"))?;
                    tables.commands.insert(name, spec);
                }
            }
        }
        *self = tables;
        Ok(())
    }

    fn show(&self) -> String {
        let mut all = toml::Table::new();
        if !self.builds.is_empty()
            && let Ok(builds) = toml::Value::try_from(LlamaServerTable { builds: self.builds.clone() })
        {
            all.insert(LLAMA_SERVER.to_owned(), builds);
        }
        for (name, spec) in &self.commands {
            let mut spec = spec.clone();
            for (_, value) in spec.env.iter_mut().filter(|(variable, _)| is_secret_name(variable)) {
                *value = hidden();
            }
            if let Ok(spec) = toml::Value::try_from(&spec) {
                all.insert(name.clone(), spec);
            }
        }
        toml::Value::Table(all).to_string()
    }

    fn resolve(&mut self, folder: &Path) {
        for program in self.builds.values_mut() {
            *program = folder.join(&*program);
        }
    }
}

impl Setting for ProviderTables {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        const EXAMPLE: &str = "{ openai = { base_url = \"https://api.openai.com\", key_env = \"OPENAI_API_KEY\" } }";
        let mut tables = Self::default();
        for (name, value) in table(value, EXAMPLE)? {
            let Value::Dict(_, dict) = value else {
                return Err(format!("'{name}' must be a table, e.g. {EXAMPLE}"));
            };
            let spec: ProviderSpec = entry(&name, dict)?;
            spec.check(&name).map_err(|error| format!("'{name}': {error}"))?;
            tables.0.insert(name, spec);
        }
        *self = tables;
        Ok(())
    }

    fn show(&self) -> String {
        as_toml(&self.0)
    }

    fn resolve(&mut self, folder: &Path) {
        Self::resolve(self, folder);
    }
}

impl Setting for MaxLoaded {
    fn read(&mut self, value: &Value) -> Result<(), String> {
        let wrong = || {
            format!(
                "{} does not say how many models; write auto, numbers for LLM [EMBEDDING [RERANKING]], or llm=2 tts=1",
                Quoted(value)
            )
        };
        let count = |value: &Value| whole(value).and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let by_position = |counts: Vec<Option<usize>>| -> Result<Self, String> {
            if counts.is_empty() || counts.len() > POSITIONS.len() {
                return Err(wrong());
            }
            let counts: Vec<usize> = counts.into_iter().collect::<Option<_>>().ok_or_else(wrong)?;
            Ok(Self::Per(POSITIONS.into_iter().zip(counts.into_iter().chain([1, 1, 1])).collect()))
        };
        let by_name = |name: &str, value: &Value| -> Result<(Category, usize), String> {
            let category = name.parse().map_err(|error: model_boss_protocol::ParseCategoryError| error.to_string())?;
            Ok((category, count(value).ok_or_else(wrong)?))
        };
        *self = match value {
            Value::Num(..) => by_position(vec![count(value)])?,
            Value::Array(_, items) => by_position(items.iter().map(count).collect())?,
            Value::Dict(_, dict) => {
                Self::Per(dict.iter().map(|(name, value)| by_name(name, value)).collect::<Result<_, _>>()?)
            }
            other => {
                let line = text(other).ok_or_else(wrong)?;
                let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
                match words.as_slice() {
                    ["auto"] => Self::Auto,
                    words if words.iter().any(|word| word.contains('=')) => {
                        let pair = |word: &&str| {
                            let (name, number) = word.split_once('=').ok_or_else(wrong)?;
                            by_name(name, &Value::from(number))
                        };
                        Self::Per(words.iter().map(pair).collect::<Result<_, _>>()?)
                    }
                    words => by_position(words.iter().map(|word| count(&Value::from(*word))).collect())?,
                }
            }
        };
        Ok(())
    }

    fn show(&self) -> String {
        match self {
            Self::Auto => quote("auto"),
            Self::Per(_) => {
                let limits = Category::ALL.into_iter().filter_map(|category| Some((category, self.of(category)?)));
                let shown: Vec<String> = limits
                    .filter(|(_, limit)| *limit > 1)
                    .map(|(category, limit)| format!("{category}={limit}"))
                    .collect();
                quote(&if shown.is_empty() { "1".to_owned() } else { shown.join(" ") })
            }
        }
    }

    fn words(&self) -> RangeInclusive<usize> {
        1..=Category::ALL.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model_boss_protocol::Priority;

    use super::*;

    fn value(toml: &str) -> Value {
        let table: toml::Table = format!("v = {toml}").parse().unwrap();
        Value::serialize(&table["v"]).unwrap()
    }

    fn limits(value: &Value) -> Result<Vec<Option<usize>>, String> {
        let mut limits = MaxLoaded::Auto;
        limits.read(value)?;
        let shown = Value::from(limits.show().trim_matches('"'));
        let mut again = MaxLoaded::Auto;
        again.read(&shown).unwrap();
        assert!(Category::ALL.into_iter().all(|category| limits.of(category) == again.of(category)), "{shown:?}");
        Ok(POSITIONS.map(|category| limits.of(category)).into())
    }

    #[test]
    fn what_a_program_is_told_in_secret_is_not_shown() {
        let mut tables = BackendTables::default();
        let text = "{ own = { line = [\"own\", \"{port}\"], env = { HF_TOKEN = \"hf-1\", MODE = \"fast\" } } }";
        tables.read(&value(text)).unwrap();
        let shown = tables.show();
        assert!(shown.contains("HF_TOKEN") && shown.contains("fast") && !shown.contains("hf-1"), "{shown}");
        assert_eq!(tables.commands["own"].env["HF_TOKEN"], "hf-1");
    }

    #[test]
    fn mm_1_limits_are_written_in_several_ways() {
        for (written, expected) in [
            ("\"auto\"", [None, None, None]),
            ("1", [Some(1), Some(1), Some(1)]),
            ("\"1\"", [Some(1), Some(1), Some(1)]),
            ("\"3 2\"", [Some(3), Some(2), Some(1)]),
            ("[3, 2, 4]", [Some(3), Some(2), Some(4)]),
            ("\"embedding=2, tts=3\"", [Some(1), Some(2), Some(1)]),
            ("{ llm = 2 }", [Some(2), Some(1), Some(1)]),
        ] {
            assert_eq!(limits(&value(written)), Ok(expected.into()), "{written}");
        }
        for written in ["0", "\"\"", "\"many\"", "[1, 1, 1, 1]", "{ llms = 2 }", "{ llm = 0 }", "-1", "\"llm=x\""] {
            assert!(limits(&value(written)).is_err(), "{written}");
        }
    }

    #[test]
    fn rc_24_a_named_client_begins_with_what_everybody_may() {
        let mut rules = ClientRules::default();
        let text = r#"{ default = { max_concurrent = 4, cooldown = "2s" }, agent = { max_concurrent = 1, max_priority = 0 } }"#;
        rules.read(&value(text)).unwrap();
        let agent = rules.of(&"agent".into());
        assert_eq!((agent.max_concurrent, agent.cooldown), (Some(1), Duration::from_secs(2)));
        assert_eq!(agent.max_priority, Priority::HIGHEST);
        assert_eq!(rules.of(&"stranger".into()).max_concurrent, Some(4));
        let mut again = ClientRules::default();
        again.read(&Value::from(rules.show())).unwrap();
        assert_eq!(again, rules);
        for (wrong, word) in [
            ("{ agent = 3 }", "agent"),
            ("{ agent = { max_conc = 3 } }", "max_conc"),
            ("{ default = { cooldown = \"soon\" } }", "soon"),
            ("7", "7"),
        ] {
            let error = rules.read(&value(wrong)).unwrap_err();
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }

    #[test]
    fn rc_16_backends_are_builds_and_command_lines() {
        let mut tables = BackendTables::default();
        let text = r#"{ llama-server = { builds = { cuda = "bin/llama-server" } },
            vllm = { line = ["vllm", "serve", "--port={port}"], stop_signal = "SIGINT" } }"#
            .replace('\n', " ");
        tables.read(&value(&text)).unwrap();
        let mut again = BackendTables::default();
        again.read(&Value::from(tables.show())).unwrap();
        assert_eq!(again, tables);
        tables.resolve(Path::new("/etc"));
        assert_eq!(tables.builds["cuda"], Path::new("/etc/bin/llama-server"));
        assert_eq!(tables.commands["vllm"].health, "/health");
        for (wrong, word) in [
            ("{ vllm = 7 }", "vllm"),
            ("{ vllm = { line = [\"x\"] } }", "{port}"),
            ("{ vllm = { lines = [\"x\"] } }", "lines"),
            ("{ candle = { line = [\"x\", \"{port}\"] } }", "candle"),
            ("{ llama-server = { build = {} } }", "build"),
        ] {
            let error = tables.read(&value(wrong)).unwrap_err();
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }

    #[test]
    fn dm_1_devices_are_declared_by_name() {
        let mut devices = DeclaredDevices::default();
        devices
            .read(&value(r#"{ npu = { memory = "16GiB" }, hailo = { memory = "4GiB", backend = "fake" } }"#))
            .unwrap();
        assert!(devices.0[&DeviceId::Npu].exclusive);
        assert!(!devices.0[&DeviceId::Custom("hailo".into())].exclusive);
        let mut again = DeclaredDevices::default();
        again.read(&Value::from(devices.show())).unwrap();
        assert_eq!(again, devices);
        for (wrong, word) in [
            ("{ \"cuda:0\" = { memory = \"1GiB\" } }", "looked for"),
            ("{ npu = { } }", "memory"),
            ("{ npu = { memory = \"much\" } }", "much"),
            ("{ \"cuda:x\" = { memory = 1 } }", "cuda:x"),
        ] {
            let error = devices.read(&value(wrong)).unwrap_err();
            assert!(error.contains(word), "{wrong}: {error}");
        }
    }
}
