//! Facts about each provider, for operators and clients. They are its address, whether it can be used, the local names
//! of its models, its requests and their cost.

use std::collections::{BTreeMap, BTreeSet};

use model_boss_config::{Price, Provider, ProviderKind};
use model_boss_tasks::CLAUDE;
use schemars::JsonSchema;
use serde::Serialize;

use super::clouds::Clouds;
use super::spend::{DAY, SpendTally, Today};

/// Seconds of a day in UTC: spending is counted by such days.
pub const UTC_DAY: u64 = DAY;

/// Whether a provider's key is set. The key itself is never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeyState {
    /// The key is set, but may not be valid.
    Set,
    /// The provider needs a key, and none is set.
    Missing,
    /// None is configured, and none is sent.
    None,
}

/// The state of one provider.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ProviderReport {
    /// The provider's prefix.
    pub name: String,
    kind: ProviderKind,
    /// The provider's address, or the command to run.
    base_url: String,
    /// Whether requests to the provider leave the machines of this coordinator's owner.
    pub cloud: bool,
    /// Whether the provider's key is set.
    pub key: KeyState,
    /// The reason why the provider cannot be used, in words.
    problem: Option<String>,
    /// Short names of the provider's models.
    names: BTreeMap<String, String>,
    /// The sum over the provider's models, with the dollars of models with a known price.
    pub today: RequestCounts,
    /// The sum over the provider's models since the process began.
    pub since_start: RequestCounts,
    /// Models that were requested, or have a price or a short name.
    pub models: Vec<ProviderModel>,
}

/// The state of one model of a provider.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ProviderModel {
    /// The provider's own name of the model.
    pub model: String,
    /// US dollars for a million tokens of prompts and of answers, if they are known.
    price: Option<Price>,
    today: RequestCounts,
    pub since_start: RequestCounts,
}

/// Requests, tokens, and their cost if it is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[allow(missing_docs, reason = "the names say it")]
pub struct RequestCounts {
    pub requests: u64,
    pub errors: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// US dollars; `None` where tokens without a price were used.
    pub spent_usd: Option<f64>,
}

impl RequestCounts {
    fn of(tally: &SpendTally, provider: &Provider, model: &str) -> Self {
        let used = tally.input_tokens > 0 || tally.output_tokens > 0;
        let known = !used || tally.spent_usd > 0.0 || !provider.costs() || provider.listed_price(model).is_some();
        Self {
            requests: tally.requests,
            errors: tally.errors,
            input_tokens: tally.input_tokens,
            output_tokens: tally.output_tokens,
            spent_usd: known.then_some(tally.spent_usd),
        }
    }

    /// The sum of all counts; its dollars are the known ones.
    fn sum(all: impl Iterator<Item = Self>) -> Self {
        let nothing = Self { requests: 0, errors: 0, input_tokens: 0, output_tokens: 0, spent_usd: Some(0.0) };
        all.fold(nothing, |sum, one| Self {
            requests: sum.requests + one.requests,
            errors: sum.errors + one.errors,
            input_tokens: sum.input_tokens.saturating_add(one.input_tokens),
            output_tokens: sum.output_tokens.saturating_add(one.output_tokens),
            spent_usd: match (sum.spent_usd, one.spent_usd) {
                (Some(a), Some(b)) => Some(a + b),
                // A known sum of zero beside an unknown one is not shown as zero.
                (known, None) | (None, known) => known.filter(|usd| *usd > 0.0),
            },
        })
    }
}

impl Clouds {
    /// Every provider, and the spending on the day of `now` (seconds since 1970).
    pub fn report(&self, now: u64) -> (Vec<ProviderReport>, Today) {
        let (today, ever) = (self.spend.today(now), self.spend.ever());
        let none = BTreeMap::new();
        let report = |(name, provider): (&String, &Provider)| {
            let of_today = today.providers.get(name).unwrap_or(&none);
            let of_all = ever.get(name).unwrap_or(&none);
            let names: BTreeSet<&String> =
                provider.models().values().chain(of_today.keys()).chain(of_all.keys()).collect();
            let counted = |tallies: &BTreeMap<String, SpendTally>, model: &String| {
                RequestCounts::of(&tallies.get(model).copied().unwrap_or_default(), provider, model)
            };
            let model = |model: &String| ProviderModel {
                model: model.clone(),
                price: provider.listed_price(model),
                today: counted(of_today, model),
                since_start: counted(of_all, model),
            };
            let models: Vec<ProviderModel> = names.into_iter().map(model).collect();
            let key = provider.key();
            ProviderReport {
                name: name.clone(),
                kind: provider.kind(),
                base_url: provider.address(),
                cloud: provider.costs() || name == CLAUDE,
                problem: key.as_ref().err().map(ToString::to_string),
                key: match key {
                    Ok(Some(_)) => KeyState::Set,
                    Ok(None) => KeyState::None,
                    Err(_) => KeyState::Missing,
                },
                names: provider.models().clone(),
                today: RequestCounts::sum(models.iter().map(|model| model.today)),
                since_start: RequestCounts::sum(models.iter().map(|model| model.since_start)),
                models,
            }
        };
        (self.providers.iter().map(report).collect(), today)
    }

    /// Names of models, `PROVIDER:MODEL`, in the configuration.
    pub fn configured_models(&self) -> Vec<String> {
        let names = |(name, provider): (&String, &Provider)| -> Vec<String> {
            provider.models().keys().map(|model| format!("{name}:{model}")).collect()
        };
        self.providers.iter().flat_map(names).collect()
    }

    /// The provider's own name of a model; `None` where the provider or its key is missing.
    pub fn served_as(&self, provider: &str, model: &str) -> Option<String> {
        let provider = self.providers.get(provider).filter(|provider| provider.key().is_ok())?;
        Some(provider.model(model).to_owned())
    }

    /// Whether requests to a provider may have tools. Its model decides whether it calls them; the `claude` command
    /// line takes none.
    pub fn takes_tools(&self, provider: &str) -> bool {
        self.providers.get(provider).is_some_and(|provider| provider.command().is_none())
    }

    /// A provider's address.
    pub fn address(&self, provider: &str) -> Option<String> {
        self.providers.get(provider).map(Provider::address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spend::Used;
    use model_boss_config::ProviderTables;
    use model_boss_host::state_folder::StateFolder;
    use model_boss_protocol::ClientId;

    #[test]
    fn what_has_no_price_costs_nobody_knows_what() {
        let folder = tempfile::tempdir().unwrap();
        let text = "base_url = \"https://far.example\"\nprices = { dear = { input = 1, output = 1 } }";
        let tables = ProviderTables(BTreeMap::from([("far".to_owned(), toml::from_str(text).unwrap())]));
        let clouds = Clouds::new(&tables, &StateFolder::new(folder.path()));
        let far = || {
            let (providers, _) = clouds.report(0);
            providers.into_iter().find(|provider| provider.name == "far").unwrap()
        };
        assert_eq!(far().today.spent_usd, Some(0.0), "nothing was used");
        let used = |model: &str, dollars| {
            let (client, tokens) = (ClientId::from("me"), (1, 1));
            clouds.spend.used(&Used { client: &client, provider: "far", model, tokens, dollars }, 0);
        };
        used("secret", None);
        assert_eq!(far().today.spent_usd, None);
        used("dear", Some(2.0));
        let report = far();
        assert_eq!((report.today.spent_usd, report.today.input_tokens), (Some(2.0), 2));
        let spent: Vec<Option<f64>> = report.models.iter().map(|model| model.today.spent_usd).collect();
        assert_eq!(spent, [Some(2.0), None]);
    }
}
