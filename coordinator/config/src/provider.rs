//! One cloud provider: its address, its key, the names of its models and their prices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use http::Uri;
use model_boss_tasks::{CLAUDE, Providers};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::secrets::without_secrets;

/// The address of Anthropic's API.
const ANTHROPIC: &str = "https://api.anthropic.com";
/// The variable with the key of Anthropic's API.
const ANTHROPIC_KEY: &str = "ANTHROPIC_API_KEY";
/// Short names of Claude models, as of this version; `models` in the configuration overrides them.
const CLAUDE_MODELS: [(&str, &str); 3] =
    [("opus", "claude-opus-4-5"), ("sonnet", "claude-sonnet-4-5"), ("haiku", "claude-haiku-4-5")];

/// The table `[providers.NAME]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderSpec {
    /// The API that the provider speaks; `anthropic` for `claude`, else `openai`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<ProviderKind>,
    /// The transport; HTTP by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<TransportKind>,
    /// The program to run, for `transport = "cli"`; `claude` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<PathBuf>,
    /// The address up to, and without, `/v1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The environment variable that holds the provider's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_env: Option<String>,
    /// The file that holds the provider's key; read again for each request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_file: Option<PathBuf>,
    /// Whether requests to the provider leave the machines of this coordinator's owner. By default, all but loopback
    /// addresses do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud: Option<bool>,
    /// Short names for the provider's models.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, String>,
    /// Prices of the provider's models, by prefixes of their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prices: BTreeMap<String, Price>,
}

/// A price in US dollars for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The price of prompts.
    pub input: f64,
    /// The price of answers.
    pub output: f64,
}

/// The API that a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProviderKind {
    /// Anthropic's Messages API.
    Anthropic,
    /// OpenAI's API.
    OpenAi,
}

/// The transport to a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportKind {
    /// Requests over HTTP.
    Http,
    /// The `claude` command line, with its own login.
    Cli,
}

/// All providers, by prefix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProviderTables(pub BTreeMap<String, ProviderSpec>);

/// One provider with its defaults filled in.
pub struct Provider {
    name: String,
    spec: ProviderSpec,
    kind: ProviderKind,
    base_url: String,
}

impl ProviderSpec {
    /// The API that the provider speaks. `name` is the provider's prefix.
    fn kind(&self, name: &str) -> ProviderKind {
        let by_command = self.transport == Some(TransportKind::Cli);
        let usual = if name == CLAUDE || by_command { ProviderKind::Anthropic } else { ProviderKind::OpenAi };
        self.kind.unwrap_or(usual)
    }

    /// Checks the provider's table. `name` is the provider's prefix.
    pub fn check(&self, name: &str) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || !name.chars().all(plain) {
            return Err("is a prefix of names: letters, digits, - and _ only".to_owned());
        }
        let by_command = self.transport == Some(TransportKind::Cli);
        if by_command && self.base_url.is_some() {
            return Err("'base_url' and transport = \"cli\" say different things; keep one".to_owned());
        }
        if by_command && self.kind == Some(ProviderKind::OpenAi) {
            return Err(
                "transport = \"cli\" is the claude command line; kind \"openai\" is reached over HTTP".to_owned()
            );
        }
        if self.command.is_some() && !by_command {
            return Err("'command' is for transport = \"cli\"".to_owned());
        }
        if let Some(url) = &self.base_url {
            // An invalid address may still hold a secret, so the error shows it without.
            let shown = without_secrets(url);
            let uri: Uri = url.parse().map_err(|_| format!("'base_url': '{shown}' is not a URL"))?;
            if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() || uri.query().is_some() {
                return Err(format!("'base_url': '{shown}' must be http(s)://HOST, without a query"));
            }
            // Addresses are shown and logged, so they must not contain a key.
            if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
                return Err("'base_url' must not hold a user or a password; use key_env or key_file".to_owned());
            }
            if is_readable_on_the_way(url) && (self.key_env.is_some() || self.key_file.is_some()) {
                return Err(format!("'base_url': a key would cross the network readable to {url}; use https"));
            }
        } else if name != CLAUDE && !by_command {
            return Err("'base_url' is missing".to_owned());
        }
        if self.key_env.as_deref().is_some_and(|name| !is_variable(name)) {
            // An operator who writes the key itself here must not see it in an error.
            return Err("'key_env' must be the name of an environment variable, not the key itself".to_owned());
        }
        if self.key_env.is_some() && self.key_file.is_some() {
            return Err("'key_env' and 'key_file' say the same thing; keep one".to_owned());
        }
        let bad = |price: &Price| [price.input, price.output].iter().any(|usd| !usd.is_finite() || *usd < 0.0);
        match self.prices.iter().find(|(_, price)| bad(price)) {
            Some((model, _)) => Err(format!("'prices.{model}' must be numbers of at least 0")),
            None => Ok(()),
        }
    }
}

impl ProviderTables {
    /// The configured providers, and `claude`.
    pub fn with_claude(&self) -> BTreeMap<String, ProviderSpec> {
        let mut all = self.0.clone();
        let claude = all.entry(CLAUDE.to_owned()).or_insert_with(|| ProviderSpec {
            kind: None,
            transport: None,
            command: None,
            base_url: None,
            key_env: None,
            key_file: None,
            cloud: None,
            models: BTreeMap::new(),
            prices: BTreeMap::new(),
        });
        for (short, model) in CLAUDE_MODELS {
            claude.models.entry(short.to_owned()).or_insert_with(|| model.to_owned());
        }
        all
    }

    /// The prefixes that names may have, and which of them lead to a cloud (TR-3).
    pub fn prefixes(&self) -> Providers {
        self.with_claude().iter().fold(Providers::new(), |known, (name, spec)| {
            let cloud = spec.cloud.unwrap_or_else(|| !spec.base_url.as_deref().is_some_and(leads_here));
            known.with(name, cloud)
        })
    }

    /// The prefixes of providers that may give embeddings: those that speak OpenAI's API.
    pub fn embedding(&self) -> BTreeSet<String> {
        let all = self.with_claude().into_iter();
        all.filter(|(name, spec)| spec.kind(name) == ProviderKind::OpenAi).map(|(name, _)| name).collect()
    }

    /// Makes relative paths of key files and programs start in the configuration's folder.
    pub fn resolve(&mut self, folder: &Path) {
        for spec in self.0.values_mut() {
            if let Some(file) = &mut spec.key_file {
                *file = folder.join(&*file);
            }
            // A name without a folder is searched in PATH.
            if let Some(program) = spec.command.as_mut().filter(|program| program.components().count() > 1) {
                *program = folder.join(&*program);
            }
        }
    }
}

/// Whether a text can be the name of an environment variable, as programs write them.
fn is_variable(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(plain)
}

/// Whether requests to this URL travel unencrypted over a network.
fn is_readable_on_the_way(url: &str) -> bool {
    let is_plain = url.parse::<Uri>().is_ok_and(|uri| uri.scheme_str() != Some("https"));
    is_plain && !leads_here(url)
}

/// Whether a URL is Anthropic's own, over https: only then is Anthropic's key sent.
fn is_anthropics(url: &str) -> bool {
    let known: Option<Uri> = ANTHROPIC.parse().ok();
    let place = |uri: &Uri| {
        let port = uri.port_u16().unwrap_or(443);
        Some((uri.scheme_str()?.to_owned(), uri.host()?.to_ascii_lowercase(), port))
    };
    let named = url.parse::<Uri>().ok().as_ref().and_then(place);
    named.is_some() && named == known.as_ref().and_then(place)
}

/// Whether a URL leads to this machine.
fn leads_here(url: &str) -> bool {
    let uri: Option<Uri> = url.parse().ok();
    uri.as_ref().and_then(Uri::host).is_some_and(is_loopback)
}

/// Whether a host of a URL is this machine.
pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A provider needs a key, and its configured place holds none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("provider '{provider}' has no key: {what}")]
pub struct KeyMissing {
    /// The provider.
    provider: String,
    /// The fault of the place, or the settings that would give a key.
    what: String,
}

impl Provider {
    /// The provider that a table of the configuration describes.
    pub fn new(name: &str, spec: ProviderSpec) -> Self {
        let base_url = spec.base_url.as_deref().unwrap_or(ANTHROPIC).trim_end_matches('/');
        let base_url = base_url.strip_suffix("/v1").unwrap_or(base_url).to_owned();
        Self { name: name.to_owned(), kind: spec.kind(name), base_url, spec }
    }

    /// The API that the provider speaks.
    pub fn kind(&self) -> ProviderKind {
        self.kind
    }

    /// The provider's prefix.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address up to `/v1`, or the command that is run.
    pub fn address(&self) -> String {
        self.command().map_or_else(|| self.base_url.clone(), |program| program.display().to_string())
    }

    /// The program that is run for each request; `None` where the transport is HTTP.
    pub fn command(&self) -> Option<&Path> {
        let by_command = self.spec.transport == Some(TransportKind::Cli);
        by_command.then(|| self.spec.command.as_deref().unwrap_or(Path::new(CLAUDE)))
    }

    /// The short names, with the provider's own names of the same models.
    pub fn models(&self) -> &BTreeMap<String, String> {
        &self.spec.models
    }

    /// The whole URL of a path such as `/v1/messages`.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base_url)
    }

    /// The provider's own name of a model.
    pub fn model<'a>(&'a self, name: &'a str) -> &'a str {
        self.spec.models.get(name).map_or(name, String::as_str)
    }

    /// The configured price of a model; the longest matching prefix counts.
    pub fn listed_price(&self, model: &str) -> Option<Price> {
        let known = self.spec.prices.iter().filter(|(name, _)| model.starts_with(name.as_str()));
        known.max_by_key(|(name, _)| name.len()).map(|(_, price)| *price)
    }

    /// Whether a key sent to the provider would be transferred unencrypted. A configured key is refused at the start;
    /// this check refuses every request, for keys from any source.
    pub fn is_readable_on_the_way(&self) -> bool {
        is_readable_on_the_way(&self.base_url)
    }

    /// Dollars for a token of prompt and of answer.
    pub fn price(&self, model: &str) -> Option<(f64, f64)> {
        self.listed_price(model).map(|price| (price.input / 1e6, price.output / 1e6))
    }

    /// Whether the provider's answers cost anything: those of a provider on this machine, or marked as no cloud, do
    /// not.
    pub fn costs(&self) -> bool {
        self.spec.cloud.unwrap_or_else(|| !leads_here(&self.base_url))
    }

    /// The file with the key, where one is set.
    pub fn key_file(&self) -> Option<&Path> {
        self.spec.key_file.as_deref()
    }

    /// The variable with the key, where one is set.
    pub fn key_variable(&self) -> Option<&str> {
        self.spec.key_env.as_deref()
    }

    /// The key; never logged, and sent to the provider's own address only. `None` for a provider without one.
    pub fn key(&self) -> Result<Option<String>, KeyMissing> {
        let missing = |what: String| KeyMissing { provider: self.name.clone(), what };
        if let Some(file) = &self.spec.key_file {
            let text =
                std::fs::read_to_string(file).map_err(|error| missing(format!("{}: {error}", file.display())))?;
            let key = text.trim();
            return if key.is_empty() {
                Err(missing(format!("{} is empty", file.display())))
            } else {
                Ok(Some(key.to_owned()))
            };
        }
        // The command line has a login of its own. Anthropic's key is not for another provider that speaks the same
        // API.
        let is_own = self.kind == ProviderKind::Anthropic && self.command().is_none() && is_anthropics(&self.base_url);
        let usual = is_own.then_some(ANTHROPIC_KEY);
        let Some(variable) = self.spec.key_env.as_deref().or(usual) else { return Ok(None) };
        match std::env::var(variable) {
            Ok(key) if !key.trim().is_empty() => Ok(Some(key.trim().to_owned())),
            _ => Err(missing(format!("set {variable}, or key_file in [providers.{}]", self.name))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_boss_core::Target;

    fn spec(text: &str) -> ProviderSpec {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn rc_27_short_names_prices_and_addresses() {
        let mut tables = ProviderTables::default();
        let text = "base_url = \"http://127.0.0.1:1/v1/\"\nmodels = { opus = \"own\" }\n[prices]\nown = { input = 2, output = 4 }\no = { input = 1, output = 1 }";
        tables.0.insert("claude".into(), spec(text));
        let all = tables.with_claude();
        let provider = Provider::new("claude", all["claude"].clone());
        assert_eq!((provider.model("opus"), provider.model("haiku")), ("own", "claude-haiku-4-5"));
        assert_eq!(provider.model("claude-3-x"), "claude-3-x");
        assert_eq!(provider.price("own-2"), Some((2e-6, 4e-6)));
        assert_eq!(provider.price("x"), None);
        assert_eq!(provider.url("/v1/messages"), "http://127.0.0.1:1/v1/messages");
        assert_eq!(
            Provider::new("claude", ProviderTables::default().with_claude()["claude"].clone()).url("/x"),
            format!("{ANTHROPIC}/x")
        );
    }

    #[test]
    fn tr_3_what_is_on_loopback_is_no_cloud() {
        let mut tables = ProviderTables::default();
        for (name, text) in [
            ("near", "base_url = \"http://[::1]:8000\""),
            ("lan", "base_url = \"http://10.0.0.7:8000\"\ncloud = false"),
            ("far", "base_url = \"https://api.example.com/v1\""),
        ] {
            tables.0.insert(name.into(), spec(text));
        }
        let known = tables.prefixes();
        let leaves =
            |name: &str| matches!(known.target(name), Target::Cloud { .. }) && known.is_cloud(&known.target(name));
        assert_eq!(["near:m", "lan:m", "far:m", "claude:opus"].map(leaves), [false, false, true, true]);
        assert_eq!(tables.embedding().into_iter().collect::<Vec<_>>(), ["far", "lan", "near"]);
    }

    #[test]
    fn the_usual_key_is_for_anthropic_itself() {
        for (url, is) in [
            ("https://api.anthropic.com", true),
            ("https://API.anthropic.com:443/v1", true),
            ("http://api.anthropic.com", false),
            ("https://api.anthropic.com.example", false),
            ("https://api.anthropic.com@example.com", false),
            ("https://api.anthropic.com:8443", false),
            ("http://127.0.0.1:4000", false),
            ("https://proxy.example", false),
        ] {
            assert_eq!(is_anthropics(url), is, "{url}");
        }
        // For another provider, Anthropic's variable is not read.
        for text in ["base_url = \"https://proxy.example\"", "base_url = \"http://127.0.0.1:1\""] {
            let provider = Provider::new("claude", spec(text));
            assert_eq!((provider.kind(), provider.key().unwrap()), (ProviderKind::Anthropic, None), "{text}");
        }
        for (url, readable) in [
            ("http://10.0.0.7", true),
            ("http://[::1]:1", false),
            ("https://a.example", false),
            ("http://LOCALHOST", true),
        ] {
            assert_eq!(is_readable_on_the_way(url), readable, "{url}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (name, text, word) in [
            ("x y", "base_url = \"https://a\"", "prefix"),
            ("x", "", "'base_url' is missing"),
            ("x", "base_url = \"ftp://a\"", "http(s)"),
            ("x", "transport = \"cli\"\nbase_url = \"https://a\"", "different things"),
            ("x", "transport = \"cli\"\nkind = \"openai\"", "over HTTP"),
            ("claude", "command = \"claude\"", "transport"),
            ("x", "base_url = \"https://me:secret@a\"", "must not hold a user"),
            ("x", "base_url = \"https://me:secret@a?b\"", "without a query"),
            ("x", "base_url = \"https://a?key=secret\"", "without a query"),
            ("x", "base_url = \"https://me:se cret@a\"", "is not a URL"),
            ("x", "base_url = \"https://a\"\nkey_env = \"sk-secret\"", "name of an environment variable"),
            ("x", "base_url = \"http://a.example\"\nkey_env = \"K\"", "https"),
            ("x", "base_url = \"https://a\"\nkey_env = \"K\"\nkey_file = \"f\"", "keep one"),
            ("x", "base_url = \"https://a\"\nprices = { m = { input = -1, output = 1 } }", "prices.m"),
        ] {
            let error = spec(text).check(name).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
            assert!(!error.contains("secret") && !error.contains("cret@"), "{error}");
        }
        assert_eq!(spec("").check("claude"), Ok(()));
        assert_eq!(spec("transport = \"cli\"\nkey_env = \"K\"").check("x"), Ok(()));
    }
}
