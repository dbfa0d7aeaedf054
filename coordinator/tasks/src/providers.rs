//! Providers that a rung may name, as far as resolving names needs them: their prefix, and whether requests to them
//! leave the machine.

use std::collections::BTreeMap;

use model_boss_core::Target;
use model_boss_protocol::ModelId;

/// The prefix of Anthropic's models. It always names a provider and a cloud, configured or not.
pub const CLAUDE: &str = "claude";

/// Providers by prefix, with whether each is a cloud.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Providers(BTreeMap<String, bool>);

impl Providers {
    /// A list with only the built-in provider.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a provider: `NAME:anything` is a model of it. `cloud` is whether requests to it leave this machine's
    /// owner. That is so unless the provider is on loopback or marked `cloud = false` (TR-3).
    #[must_use]
    pub fn with(mut self, prefix: &str, cloud: bool) -> Self {
        self.0.insert(prefix.to_owned(), cloud || prefix == CLAUDE);
        self
    }

    /// The prefixes; that of Anthropic's models only if it was added.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The target of a name: a model of a provider if the name begins with its prefix, else a local one.
    pub fn target(&self, name: &str) -> Target {
        match name.split_once(':') {
            Some((prefix, model)) if (prefix == CLAUDE || self.0.contains_key(prefix)) && !model.is_empty() => {
                Target::Cloud { provider: prefix.to_owned(), model: model.to_owned() }
            }
            _ => Target::Local(ModelId::from(name)),
        }
    }

    /// Whether requests to the target leave the machine. Those to an undeclared provider do.
    pub fn is_cloud(&self, target: &Target) -> bool {
        match target {
            Target::Local(_) => false,
            Target::Cloud { provider, .. } => self.0.get(provider).copied().unwrap_or(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_makes_a_provider_only_where_one_is_declared() {
        let providers = Providers::new().with("lan", false).with("together", true);
        let cloud = |name: &str| providers.is_cloud(&providers.target(name));
        assert!(matches!(providers.target("qwen3:8b"), Target::Local(_)));
        assert!(matches!(providers.target("file:x"), Target::Local(_)));
        assert!(matches!(providers.target("claude:"), Target::Local(_)));
        assert_eq!(providers.target("lan:a/b:c").to_string(), "lan:a/b:c");
        assert!(matches!(providers.target("lan:a"), Target::Cloud { .. }));
        assert_eq!((cloud("lan:a"), cloud("together:a"), cloud("claude:opus"), cloud("m")), (false, true, true, false));
        assert!(
            Providers::new().with(CLAUDE, false).is_cloud(&providers.target("claude:opus")),
            "it is always a cloud"
        );
    }
}
